"""What the application said in advance (or afterwards) of a merchant's reference: the only writer of Registration.

A payment's money is compared with what was expected over all payments of one reference. Both sides take the lock of
that reference first (payment_states.lock), so a registration and its capture can't pass each other unseen.

After a crash: a registration is committed together with what it moved to its payee.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from django.db import connection

from payments import database, models
from payments.facts import escape
from payments.findings import Found
from payments.precedence import Ref


@dataclass(frozen=True, slots=True)
class Registered:
    """Whose payment it is and what it should be; amount in minor units."""

    account: str
    amount: int
    currency: str


class RegistrationDiffers(Exception):
    """The reference was registered before with other arguments; nothing was changed."""

    def __init__(self, known: Registered) -> None:
        super().__init__(known)
        self.known = known


def insert(ref: Ref, wanted: Registered) -> bool:
    """Register the merchant's reference; return False if it was so already. Raises RegistrationDiffers."""
    row, is_new = models.Registration.objects.get_or_create(
        endpoint_id=ref[0],
        merchant_reference=ref[1],
        defaults={"account": wanted.account, "amount": wanted.amount, "currency": wanted.currency},
    )
    known = Registered(row.account, row.amount, row.currency)
    if known != wanted:
        raise RegistrationDiffers(known)
    return is_new


def read(refs: Collection[Ref]) -> dict[Ref, Registered]:
    """Return what was registered of these merchant references, locked in their order.

    What `compare` sums up must not change beside it: a fact may name a payment and not its reference, so its
    transaction holds no other lock that the reference's other payments would meet.
    """
    if not refs:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT r.endpoint_id, r.merchant_reference, r.account, r.amount, r.currency"
            " FROM unnest(%s::bigint[], %s::text[]) WITH ORDINALITY AS k (endpoint_id, reference, n)"
            " JOIN payments_registration r"
            " ON r.endpoint_id = k.endpoint_id AND r.merchant_reference = k.reference"
            " ORDER BY k.n FOR NO KEY UPDATE OF r",
            database.arrays(sorted(refs)),
        )
        return {(row[0], row[1]): Registered(*row[2:]) for row in cursor.fetchall()}


# Money of another currency than expected counts for nothing, and is named.
_PAID: Final = """
    SELECT k.endpoint_id, b.slug, k.reference,
           COALESCE(sum(p.captured) FILTER (WHERE p.currency = k.currency), 0),
           COALESCE(bool_or(p.captured > 0 AND p.currency <> k.currency), false)
    FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS k (endpoint_id, reference, currency)
    JOIN payments_endpoint b ON b.id = k.endpoint_id
    LEFT JOIN payments_payment p ON p.endpoint_id = k.endpoint_id AND p.merchant_reference = k.reference
    GROUP BY k.endpoint_id, b.slug, k.reference
"""
KINDS: Final = ("underpaid", "overpaid", "paid_in_other_currency")


def compare(registered: dict[Ref, Registered]) -> tuple[list[Found], list[tuple[str, str]]]:
    """Return the findings of what was paid otherwise than expected, and the (kind, subject) of those that are not so.

    Nothing captured yet is no finding: it may still come.
    """
    if not registered:
        return [], []
    rows = [(*ref, wanted.currency) for ref, wanted in registered.items()]
    with connection.cursor() as cursor:
        cursor.execute(_PAID, database.arrays(rows))
        paid = cursor.fetchall()
    found: list[Found] = []
    healed: list[tuple[str, str]] = []
    for endpoint_id, books, reference, amount, other_currency in paid:
        wanted = registered[endpoint_id, reference]
        is_so = (0 < amount < wanted.amount, amount > wanted.amount, other_currency)
        subject = f"{books}:{escape(reference)}"
        detail = {"expected": wanted.amount, "currency": wanted.currency, "captured": int(amount)}
        for kind, is_found in zip(KINDS, is_so, strict=True):
            if is_found:
                found.append(Found(kind, subject, detail, endpoint_id))
            else:
                healed.append((kind, subject))
    return found, healed
