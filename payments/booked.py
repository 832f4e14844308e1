"""One booked transfer, as applications are told of it: a frozen value, the same from a new posting and from its row."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from payments import models, postings
from payments.facts import FactKind
from payments.ledger import Posting

# What a transfer is to handlers, where that isn't its kind: a total's rise is money like any other.
_NAMES: Final[dict[str, str]] = {
    FactKind.PAYMENT_CAPTURED_TOTAL: FactKind.PAYMENT_CAPTURED,
    FactKind.REFUNDED_TOTAL: FactKind.REFUND_SUCCEEDED,
}
_REVERSAL_NAMES: Final[dict[str, str]] = {
    FactKind.PAYMENT_CAPTURED: FactKind.PAYMENT_REVERSED,
    FactKind.REFUND_SUCCEEDED: FactKind.REFUND_FAILED,
    FactKind.PAYOUT_PAID: FactKind.PAYOUT_FAILED,
    FactKind.PAYOUT_COLLECTED: FactKind.PAYOUT_COLLECTION_FAILED,
}
NAMES: Final = frozenset(
    {
        *(str(kind) for kind in postings.TABLE if kind not in _NAMES),
        *map(str, _REVERSAL_NAMES.values()),
        postings.ALLOCATION,
        postings.ADJUSTMENT,
        str(FactKind.FUNDS_CONVERTED),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """One new transfer, as handlers are told of it.

    fact          what happened, a name in NAMES
    key           its business key, unique for ever; transfer_id its row
    books         slug of the endpoint whose payments and accounts it is in
    payment       the gateway's reference of the payment, payment_id its row; None for payouts
    reference     the merchant's own reference: an order number
    account       code of the payee's account, None while nobody is named
    amount_minor  minor units of currency, always positive
    occurred_at   when it happened in the world
    source        webhook, statement, registration, staff or system
    event         id of the gateway's event that told it; None where none did
    """

    fact: str
    key: str
    transfer_id: int
    books: str
    payment: str | None
    payment_id: int | None
    reference: str | None
    account: str | None
    amount_minor: int
    currency: str
    occurred_at: datetime
    source: str
    event: str | None


def fact_of(kind: str, reversed_kind: str | None) -> str:
    """Return what a transfer is to handlers."""
    if reversed_kind is not None:
        return _REVERSAL_NAMES[reversed_kind]
    return _NAMES.get(kind, kind)


def fact_of_posting(posting: Posting) -> str:
    """Return what a new transfer is to handlers."""
    return fact_of(posting.kind, None if posting.reverses is None else posting.reverses.kind)


def of_posting(posting: Posting, event_ids: Mapping[int, str]) -> Booked:
    """Return what a transfer is told as when it is new. event_ids: claim id -> event id."""
    if posting.id is None:
        raise AssertionError(f"Bug: {posting.key} is not new")
    state = posting.state
    return Booked(
        fact=fact_of_posting(posting),
        key=posting.key,
        transfer_id=posting.id,
        books=posting.books,
        payment=state.reference if state else None,
        payment_id=state.id if state else None,
        reference=state.merchant_reference if state else None,
        account=state.payee if state else None,
        amount_minor=posting.amount,
        currency=posting.currency,
        occurred_at=posting.occurred_at,
        source=posting.source,
        event=event_ids.get(posting.claim_id) if posting.claim_id is not None else None,
    )


def of_row(transfer: models.Transfer) -> Booked:
    """Return what a booked transfer is told as: the same, but for what its payment has learned since."""
    payment = transfer.payment
    return Booked(
        fact=fact_of(transfer.kind, None if transfer.reverses is None else transfer.reverses.kind),
        key=transfer.key,
        transfer_id=transfer.pk,
        books=transfer.endpoint.slug,
        payment=payment.reference if payment else None,
        payment_id=payment.pk if payment else None,
        reference=payment.merchant_reference if payment else None,
        account=payment.payee if payment else None,
        amount_minor=transfer.amount,
        currency=transfer.currency,
        occurred_at=transfer.occurred_at,
        source=transfer.source,
        event=transfer.claim.event_id if transfer.claim else None,
    )
