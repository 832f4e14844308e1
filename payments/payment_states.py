"""What is known of each payment: the only writer of Payment.

A payment's row is a function of the set of facts told about it, in whatever order: precedence.py says which. Facts that
must see each other meet on locks, taken after the claims and before everything else of the ledger, in one order for
everybody: first every (books, merchant reference) and every payout of the batch, then the payments' rows. Totals change
by F() arithmetic in the database, and only for transfers that are new.

After a crash: rows are written in the transaction that books their facts, or not at all.

Raw SQL: locking in a told order, and many different rows in one statement, are not to be had from the ORM.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

from django.db import connection

from payments import database
from payments.facts import PAYOUTS, Told
from payments.findings import Found
from payments.precedence import Ref, State


def lock(told: Sequence[Told], *, registered: Collection[Ref] = (), payments: Collection[Ref] = ()) -> dict[Ref, State]:
    """Lock all that the facts are about, in the order of the module's docstring; return the payments' states.

    registered: merchant references whose payments are locked too, though no fact tells of them; payments: further ones.
    Needs a transaction.
    """
    lock_subjects(told, registered)
    states = _new_states(told)
    refs = sorted(states.keys() | _payments_of(registered) | set(payments))
    inserted = _insert([states[ref] for ref in refs if ref in states])
    existing = [ref for ref in refs if ref not in inserted]
    if existing:
        states |= _read_locked(existing)
        for one in told:
            if (ref := payment_of(one)) is not None and ref not in inserted:
                states[ref].tell_reference(one.fact)
    return states


def waiting_for(accounts: Collection[tuple[str, str]], *, batch: int) -> Iterator[list[Ref]]:
    """Yield batches of payments that may have money in suspense for one of these payees (account code, currency)."""
    last_id = 0
    while rows := _waiting(accounts, last_id, batch):
        yield [(row[1], row[2]) for row in rows]
        last_id = rows[-1][0]


def _waiting(accounts: Collection[tuple[str, str]], last_id: int, batch: int) -> list[tuple[int, int, str]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT p.id, p.endpoint_id, p.reference FROM payments_payment p"
            " JOIN unnest(%s::text[], %s::text[]) AS k (payee, currency)"
            " ON p.payee = k.payee AND (p.currency = k.currency OR p.other_currencies)"
            " WHERE (p.payee_account_id IS NULL OR p.other_currencies) AND p.id > %s ORDER BY p.id LIMIT %s",
            [*database.arrays(accounts), last_id, batch],
        )
        return list(cursor.fetchall())


def payment_of(one: Told) -> Ref | None:
    """Return which payment a fact is about; payouts are about none."""
    return None if one.fact.payment is None else (one.books_id, one.fact.payment)


def lock_subjects(told: Sequence[Told], registered: Collection[Ref] = ()) -> None:
    """Lock every merchant reference and payout that the facts name. Locking again what is locked waits for nobody."""
    subjects = {f"reference:{books_id}:{reference}" for books_id, reference in registered}
    for one in told:
        if one.fact.reference is not None:
            subjects.add(f"reference:{one.books_id}:{one.fact.reference}")
        if one.fact.kind in PAYOUTS:
            subjects.add(f"payout:{one.key}")
    # Sorted by what is really locked. Two subjects of one hash only wait for each other without need.
    locks = sorted(int.from_bytes(blake2b(s.encode(), digest_size=8).digest(), signed=True) for s in subjects)
    if locks:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(k) FROM unnest(%s::bigint[]) AS k", [database.array(locks)])


def _new_states(told: Iterable[Told]) -> dict[Ref, State]:
    states: dict[Ref, State] = {}
    for one in told:
        if (ref := payment_of(one)) is None:
            continue
        if (state := states.get(ref)) is None:
            rank = None if one.default_payee is None else 0
            state = State(one.books_id, one.books, ref[1], payee=one.default_payee, payee_rank=rank, is_new=True)
            state.payee_before = one.default_payee
            states[ref] = state
        state.tell_reference(one.fact)
    return states


def captured_payments(references: Collection[Ref]) -> dict[Ref, set[str]]:
    """Return {(books id, merchant reference): references of its payments that have captured money now}."""
    payments: dict[Ref, set[str]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT p.endpoint_id, p.merchant_reference, p.reference FROM payments_payment p"
            " JOIN unnest(%s::bigint[], %s::text[]) AS k (books_id, reference)"
            " ON p.endpoint_id = k.books_id AND p.merchant_reference = k.reference"
            " WHERE p.captured > 0",
            database.arrays(references),
        )
        for books_id, merchant_reference, reference in cursor.fetchall():
            payments.setdefault((books_id, merchant_reference), set()).add(reference)
    return payments


def _payments_of(references: Collection[Ref]) -> set[Ref]:
    if not references:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT p.endpoint_id, p.reference FROM payments_payment p"
            " JOIN unnest(%s::bigint[], %s::text[]) AS k (books_id, reference)"
            " ON p.endpoint_id = k.books_id AND p.merchant_reference = k.reference",
            database.arrays(references),
        )
        return {(row[0], row[1]) for row in cursor.fetchall()}


_INSERT: Final = """
    INSERT INTO payments_payment (endpoint_id, reference, merchant_reference, reference_rank, payee, payee_rank)
    SELECT endpoint_id, reference, merchant_reference, reference_rank, payee, payee_rank
    FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::smallint[], %s::text[], %s::smallint[])
        WITH ORDINALITY AS t (endpoint_id, reference, merchant_reference, reference_rank, payee, payee_rank, n)
    ORDER BY n
    ON CONFLICT (endpoint_id, reference) DO NOTHING
    RETURNING endpoint_id, reference, id
"""


def _insert(states: Sequence[State]) -> set[Ref]:
    if not states:
        return set()
    rows = [(s.books_id, s.reference, s.merchant_reference, s.reference_rank, s.payee, s.payee_rank) for s in states]
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, database.arrays(rows))
        ids = {(row[0], row[1]): row[2] for row in cursor.fetchall()}
    for state in states:
        state.id = ids.get((state.books_id, state.reference), 0)
    return set(ids)


_STORED: Final = (
    "merchant_reference",
    "reference_rank",
    "currency",
    "currency_rank",
    "other_currencies",
    "payee",
    "payee_rank",
    "payee_by_capture",
    "payee_by_fact",
    "payee_account_id",
    "authorized",
    "told_captured",
    "named_captured",
    "told_refunded",
    "named_refunded",
    "rank",
    "ever_captured",
)

_READ_LOCKED: Final = f"""
    SELECT p.endpoint_id, b.slug, p.reference, p.id, p.captured, p.refunded,
           {", ".join(f"p.{name}" for name in _STORED)}
    FROM unnest(%s::bigint[], %s::text[]) WITH ORDINALITY AS k (books_id, reference, n)
    JOIN payments_payment p ON p.endpoint_id = k.books_id AND p.reference = k.reference
    JOIN payments_endpoint b ON b.id = p.endpoint_id
    ORDER BY k.n
    FOR NO KEY UPDATE OF p
"""


def _read_locked(refs: Sequence[Ref]) -> dict[Ref, State]:
    with connection.cursor() as cursor:
        cursor.execute(_READ_LOCKED, database.arrays(refs))
        return {(row[0], row[2]): _state(row) for row in cursor.fetchall()}


def _state(row: Sequence[Any]) -> State:
    state = State(
        row[0], row[1], row[2], id=row[3], captured=row[4], refunded=row[5], **dict(zip(_STORED, row[6:], strict=True))
    )
    state.had_money, state.payee_before = state.currency is not None, state.payee
    return state


_SAVE: Final = f"""
    UPDATE payments_payment p
    SET {", ".join(f"{name} = t.{name}" for name in _STORED)},
        captured = p.captured + t.captured, refunded = p.refunded + t.refunded,
        disputed = p.disputed + t.disputed, fees = p.fees + t.fees
    FROM unnest(%s::bigint[], %s::text[], %s::smallint[], %s::text[], %s::smallint[], %s::boolean[], %s::text[],
                %s::smallint[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
                %s::bigint[], %s::bigint[], %s::smallint[], %s::boolean[], %s::bigint[], %s::bigint[], %s::bigint[],
                %s::bigint[])
        AS t (id, {", ".join(_STORED)}, captured, refunded, disputed, fees)
    WHERE p.id = t.id
"""

# Fees told before the payment's currency was known, counted anew in that currency.
_SAVE_SWITCHED_FEES: Final = """
    UPDATE payments_payment p
    SET fees = (SELECT COALESCE(sum(CASE t.kind WHEN 'FeeAssessed' THEN t.amount ELSE -t.amount END), 0)
                FROM payments_transfer t
                WHERE t.payment_id = p.id AND t.currency = p.currency AND t.kind IN ('FeeAssessed', 'FeeReturned'))
    WHERE p.id = ANY(%s)
"""


def find_contradictions(states: Iterable[State]) -> tuple[list[Found], list[tuple[str, str]]]:
    """Return the findings of what was told against each other, and the (kind, subject) of what has healed."""
    found: list[Found] = []
    healed: list[tuple[str, str]] = []
    for state in states:
        for kind, detail in state.contradictions.items():
            found.append(Found(kind, state.subject, detail, state.books_id))
        captured = state.captured + state.changes["captured"]
        refunded = state.refunded + state.changes["refunded"]
        if state.ever_captured and refunded > captured:
            detail = {"captured": captured, "refunded": refunded, "currency": state.currency}
            found.append(Found("over_refund", state.subject, detail, state.books_id))
        elif state.refunded > state.captured:
            healed.append(("over_refund", state.subject))
    return found, healed


def save(states: Collection[State]) -> None:
    """Write the states, and add what new transfers changed to the totals as the database has them."""
    rows = [(s.id, *(getattr(s, name) for name in _STORED), *s.changes.values()) for s in states]
    if not rows:
        return
    switched = [state.id for state in states if state.fees_switched]
    with connection.cursor() as cursor:
        cursor.execute(_SAVE, database.arrays(rows))
        if switched:
            cursor.execute(_SAVE_SWITCHED_FEES, [switched])
