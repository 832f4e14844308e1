"""The double-entry ledger: the only writer of Account, Transfer, Entry, Sighting and Correction.

Whether money is booked is decided by one INSERT of transfers by business key, ON CONFLICT DO NOTHING: the keys that
come back are new, all others are known. Entries of all new transfers follow in one statement. Accounts come last before
COMMIT, locked in id order, because every batch of an endpoint touches its receivable account and the row stays locked
until the commit is on disk.

After a crash: a transfer, its entries and the balances they change are there together, or none of them.

Raw SQL: the ORM doesn't tell which rows of an INSERT … DO NOTHING are new, and set-based inserts cost it twice as much.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import connection
from django.db.models import F
from django.db.models.expressions import RawSQL

from payments import database, models, postings
from payments.facts import Told
from payments.precedence import State

AccountKey = tuple[str, str]  # code, currency
Leg = tuple[AccountKey, str, int]  # account, "debit" or "credit", minor units


@dataclass(slots=True)
class Posting:
    """A transfer to be booked. id is set once it is new. legs: None until the payee of now is known."""

    key: str
    kind: str
    books_id: int
    books: str
    amount: int
    currency: str
    occurred_at: datetime
    source: str
    claim_id: int | None = None
    state: State | None = None
    account_hint: str | None = None
    into: tuple[int, str] | None = None  # what a conversion made of the amount
    reverses: "Original | None" = None
    legs: list[Leg] | None = None
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Original:
    """A booked transfer, as far as what comes later has to know it."""

    id: int
    kind: str
    amount: int
    currency: str
    payment_id: int | None
    account_hint: str | None


@dataclass(frozen=True, slots=True)
class Account:
    id: int
    can_be_payee: bool


# Transfers ------------------------------------------------------------------------------------------------------------

_RECORD: Final = """
    INSERT INTO payments_transfer (key, kind, endpoint_id, payment_id, claim_id, source, reverses_id, amount, currency,
                                   account_hint, occurred_at)
    SELECT key, kind, endpoint_id, payment_id, claim_id, source, reverses_id, amount, currency, account_hint,
           occurred_at
    FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::bigint[],
                %s::bigint[], %s::text[], %s::text[], %s::timestamptz[])
        WITH ORDINALITY AS t (key, kind, endpoint_id, payment_id, claim_id, source, reverses_id, amount, currency,
                              account_hint, occurred_at, n)
    ORDER BY n
    ON CONFLICT (key) DO NOTHING
    RETURNING key, id
"""


def record(wanted: Sequence[Posting]) -> list[Posting]:
    """Insert the transfers in key order; return those that are new, with their ids. Needs a transaction."""
    if not wanted:
        return []
    in_order = sorted(wanted, key=lambda posting: posting.key)
    rows = [
        (
            p.key,
            p.kind,
            p.books_id,
            None if p.state is None else p.state.id,
            p.claim_id,
            p.source,
            None if p.reverses is None else p.reverses.id,
            p.amount,
            p.currency,
            p.account_hint,
            p.occurred_at,
        )
        for p in in_order
    ]
    with connection.cursor() as cursor:
        cursor.execute(_RECORD, database.arrays(rows))
        ids = dict(cursor.fetchall())
    for posting in in_order:
        posting.id = ids.get(posting.key)
    return [posting for posting in wanted if posting.id is not None]


def record_derived(wanted: Sequence[Posting]) -> list[Posting]:
    """Insert transfers that follow from what was just taken in, and so must be new: payments' rows say so already."""
    new = record(wanted)
    if len(new) != len(wanted):
        raise AssertionError(f"Bug: booked before: {sorted(p.key for p in wanted if p.id is None)}")
    return new


_ORIGINALS: Final = """
    SELECT key, id, kind, amount, currency, payment_id, account_hint FROM payments_transfer WHERE key = ANY(%s::text[])
"""


def originals(keys: Collection[str]) -> dict[str, Original]:
    """Return the booked transfers of these business keys."""
    if not keys:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_ORIGINALS, [database.array(sorted(keys))])
        return {row[0]: Original(*row[1:]) for row in cursor.fetchall()}


# Corrections ----------------------------------------------------------------------------------------------------------

_CORRECT: Final = """
    INSERT INTO payments_correction (key, kind, payment_id, claim_id, source, amount, currency, occurred_at)
    SELECT key, kind, payment_id, claim_id, source, amount, currency, occurred_at
    FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::text[], %s::bigint[], %s::text[],
                %s::timestamptz[])
        WITH ORDINALITY AS t (key, kind, payment_id, claim_id, source, amount, currency, occurred_at, n)
    ORDER BY n
    ON CONFLICT (key) DO NOTHING
    RETURNING key
"""


@dataclass(frozen=True, slots=True)
class Corrected:
    """A known correction of one business key."""

    amount: int
    currency: str
    payment_id: int | None


def correct(told: Mapping[str, Told], payment_ids: Mapping[str, int | None]) -> set[str]:
    """Record the corrections {key corrected: fact}; return the keys for which none was known."""
    if not told:
        return set()
    rows = [
        (
            key,
            one.fact.kind,
            payment_ids[key],
            one.claim_id,
            one.source,
            one.fact.amount_minor,
            one.fact.currency,
            one.fact.occurred_at,
        )
        for key, one in sorted(told.items())
    ]
    with connection.cursor() as cursor:
        cursor.execute(_CORRECT, database.arrays(rows))
        return {row[0] for row in cursor.fetchall()}


def corrections(keys: Collection[str]) -> dict[str, Corrected]:
    """Return the known corrections of these business keys."""
    if not keys:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT key, amount, currency, payment_id FROM payments_correction WHERE key = ANY(%s::text[])",
            [database.array(sorted(keys))],
        )
        return {row[0]: Corrected(*row[1:]) for row in cursor.fetchall()}


# Sightings ------------------------------------------------------------------------------------------------------------

_SEE: Final = """
    INSERT INTO payments_sighting (transfer_id, claim_id, source)
    SELECT DISTINCT s.transfer_id, s.claim_id, s.source FROM unnest(%s::bigint[], %s::bigint[], %s::text[])
        AS s (transfer_id, claim_id, source)
    WHERE NOT EXISTS (SELECT FROM payments_transfer t WHERE t.id = s.transfer_id AND t.claim_id = s.claim_id)
    ORDER BY s.transfer_id, s.claim_id, s.source
    ON CONFLICT DO NOTHING
"""


def see_again(sightings: Collection[tuple[int, int | None, str]]) -> None:
    """Note (transfer id, claim id, source) of facts that were told again. The claim that booked one is no second."""
    if sightings:
        with connection.cursor() as cursor:
            cursor.execute(_SEE, database.arrays(sightings))


# Accounts and entries -------------------------------------------------------------------------------------------------


# Note [Accounts opened meanwhile]
# Who finds that a payee has no account books to suspense; who opens it moves there what waits. Both take this lock, the
# first shared and before looking again, or they could pass each other unseen and the money would wait for ever.
_OPENING: Final = 7_236_402


def read_accounts(keys: Collection[AccountKey]) -> dict[AccountKey, Account]:
    """Return those of the accounts that are open. A payee's that isn't will not be opened before our COMMIT."""
    found = _read_accounts(keys)
    missing = [key for key in keys if key not in found and not postings.is_own_code(key[0])]
    if missing:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [_OPENING])
        found |= _read_accounts(missing)
    return found


def _read_accounts(keys: Collection[AccountKey]) -> dict[AccountKey, Account]:
    if not keys:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT a.code, a.currency, a.id, a.kind = 'liability' AND a.endpoint_id IS NULL"
            " FROM unnest(%s::text[], %s::text[]) AS k (code, currency)"
            " JOIN payments_account a ON a.code = k.code AND a.currency = k.currency",
            database.arrays(sorted(keys)),
        )
        return {(row[0], row[1]): Account(row[2], row[3]) for row in cursor.fetchall()}


_OPEN_ACCOUNTS: Final = """
    INSERT INTO payments_account (code, currency, kind, endpoint_id)
    SELECT code, currency, kind, endpoint_id
    FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[]) WITH ORDINALITY
        AS t (code, currency, kind, endpoint_id, n)
    ORDER BY n
    ON CONFLICT (code, currency) DO NOTHING
    RETURNING code, currency
"""


def open_accounts(wanted: Iterable[tuple[str, str, str, int | None]]) -> set[AccountKey]:
    """Open the accounts (code, currency, kind, endpoint id or None) that aren't yet; return which were opened."""
    rows = sorted(set(wanted))
    if not rows:
        return set()
    with connection.cursor() as cursor:
        if any(endpoint_id is None for *_, endpoint_id in rows):  # Note [Accounts opened meanwhile]
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_OPENING])
        cursor.execute(_OPEN_ACCOUNTS, database.arrays(rows))
        return {(row[0], row[1]) for row in cursor.fetchall()}


class AccountDiffers(Exception):
    """The account can't be what was asked for: its code is an endpoint's own, or it is open as another kind."""

    def __init__(self, code: str, currency: str, kind: str) -> None:
        super().__init__(code, currency, kind)
        self.code, self.currency, self.kind = code, currency, kind
        self.is_reserved = postings.is_own_code(code)


def require_kinds(wanted: Iterable[tuple[str, str, str]]) -> None:
    """Raise AccountDiffers unless each (code, currency) is open as that kind, and as nobody's own."""
    kinds = {(code, currency): kind for code, currency, kind in wanted}
    for account in models.Account.objects.filter(code__in={key[0] for key in kinds}):
        wanted_kind = kinds.get((account.code, account.currency))
        if wanted_kind is not None and (wanted_kind != account.kind or postings.is_own_code(account.code)):
            raise AccountDiffers(account.code, account.currency, account.kind)


def is_payee(code: str) -> bool:
    """Say whether a payee has an account of this code, in any currency."""
    return models.Account.objects.filter(code=code, kind="liability", endpoint__isnull=True).exists()


_NETS: Final = """
    SELECT t.payment_id, a.code, a.currency, sum(CASE e.direction WHEN 'credit' THEN e.amount ELSE -e.amount END)
    FROM payments_transfer t
    JOIN payments_entry e ON e.transfer_id = t.id
    JOIN payments_account a ON a.id = e.account_id
    WHERE t.payment_id = ANY(%s::bigint[]) AND a.kind = 'liability'
    GROUP BY t.payment_id, a.code, a.currency
    HAVING sum(CASE e.direction WHEN 'credit' THEN e.amount ELSE -e.amount END) <> 0
    ORDER BY t.payment_id, a.code, a.currency
"""


def payee_nets(payment_ids: Collection[int]) -> list[tuple[int, AccountKey, int]]:
    """Return (payment id, account, net in minor units) of what payments have on payees' and suspense accounts."""
    if not payment_ids:
        return []
    with connection.cursor() as cursor:
        cursor.execute(_NETS, [database.array(payment_ids)])
        return [(row[0], (row[1], row[2]), int(row[3])) for row in cursor.fetchall()]


_ENTER: Final = """
    INSERT INTO payments_entry (transfer_id, line, account_id, currency, direction, amount)
    SELECT transfer_id, line, account_id, currency, direction, amount
    FROM unnest(%s::bigint[], %s::smallint[], %s::bigint[], %s::text[], %s::text[], %s::bigint[])
        AS t (transfer_id, line, account_id, currency, direction, amount)
"""


def enter(booked: Sequence[Posting], accounts: Mapping[AccountKey, Account]) -> None:
    """Insert the entries of new transfers and add them to the accounts' sums. The last step before COMMIT."""
    if not booked:
        return
    known = _with_own_accounts(booked, accounts)
    rows = [
        (posting.id, line, known[key].id, key[1], direction, amount)
        for posting in booked
        for line, (key, direction, amount) in enumerate(posting.legs or (), start=1)
    ]
    with connection.cursor() as cursor:
        cursor.execute(_ENTER, database.arrays(rows))
    _add_to_balances((row[2], row[4], row[5]) for row in rows)


def _with_own_accounts(
    booked: Sequence[Posting], accounts: Mapping[AccountKey, Account]
) -> Mapping[AccountKey, Account]:
    """Return the accounts with all that the legs name; an endpoint's own are opened on demand, in any currency."""
    missing = {key: p.books_id for p in booked for key, _, _ in p.legs or () if key not in accounts}
    if not missing:
        return accounts
    known = {**accounts, **read_accounts(missing)}
    unopened = [(key, books_id) for key, books_id in missing.items() if key not in known]
    open_accounts(
        (code, currency, postings.OWN_ACCOUNTS[postings.Role(code.partition(":")[0])], books_id)
        for (code, currency), books_id in unopened
    )
    return {**known, **read_accounts([key for key, _ in unopened])}


def _add_to_balances(entries: Iterable[tuple[int, str, int]]) -> None:
    debits: dict[int, int] = {}
    credits: dict[int, int] = {}
    for account_id, direction, amount in entries:
        is_debit = direction == "debit"
        debits[account_id] = debits.get(account_id, 0) + (amount if is_debit else 0)
        credits[account_id] = credits.get(account_id, 0) + (0 if is_debit else amount)
    accounts = models.Account.objects.filter(id__in=list(debits))
    # Locked in id order, or two batches would wait for each other. NO KEY: entries' foreign keys lock the key.
    list(accounts.order_by("id").select_for_update(no_key=True).values_list("id"))
    accounts.update(debits=F("debits") + _change_of_row(debits), credits=F("credits") + _change_of_row(credits))


def _change_of_row(changes: Mapping[int, int]) -> RawSQL:
    """Return the expression for a row's change: one UPDATE for any number of accounts, at nearly raw cost."""
    columns = [database.array(changes.values()), database.array(changes.keys())]
    return RawSQL("(%s::numeric[])[array_position(%s::bigint[], id)]", columns)
