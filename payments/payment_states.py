"""What is known of each payment: the only writer of Payment.

A payment's row is a function of the set of facts told about it, in whatever order. Facts that must see each other meet
on locks, taken after the claims and before everything else of the ledger, in one order for everybody: first every
(books, merchant reference) and every payout of the batch, then the payments' rows. Totals change by F() arithmetic in
the database, and only for transfers that are new.

After a crash: rows are written in the transaction that books their facts, or not at all.

Raw SQL: locking in a told order, and many different rows in one statement, are not to be had from the ORM.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from django.db import connection

from payments import database, postings
from payments.facts import PAYOUTS, Fact, FactKind, Told, escape
from payments.findings import Found

Ref = tuple[int, str]  # books id, the gateway's reference: how a payment is known; also: books id, merchant reference

_RANKS: Final = {
    FactKind.PAYMENT_PENDING: 0,
    FactKind.PAYMENT_FAILED: 1,
    FactKind.PAYMENT_AUTHORIZED: 2,
    FactKind.PAYMENT_EXPIRED: 3,
    FactKind.PAYMENT_VOIDED: 4,
    FactKind.PAYMENT_CAPTURED: 5,
    FactKind.PAYMENT_CAPTURED_TOTAL: 5,
}
REGISTERED_RANK: Final = 3
STAFF_RANK: Final = 4  # a payee whom staff chose; 3 registration, 2 capture, 1 other fact, 0 the endpoint's default
_CAPTURES: Final = frozenset({FactKind.PAYMENT_CAPTURED, FactKind.PAYMENT_CAPTURED_TOTAL})

# transfer kind -> the total it changes, and in which sense. A reversal changes its original's, the other way.
TOTALS_CHANGED: Final[dict[str, tuple[str, int]]] = {
    FactKind.PAYMENT_CAPTURED: ("captured", 1),
    FactKind.PAYMENT_CAPTURED_TOTAL: ("captured", 1),
    postings.CAPTURE_NAMED: ("captured", -1),
    FactKind.REFUND_SUCCEEDED: ("refunded", 1),
    FactKind.REFUNDED_TOTAL: ("refunded", 1),
    postings.REFUND_NAMED: ("refunded", -1),
    FactKind.DISPUTE_FUNDS_WITHDRAWN: ("disputed", 1),
    FactKind.DISPUTE_FUNDS_RETURNED: ("disputed", -1),
    FactKind.FEE_ASSESSED: ("fees", 1),
    FactKind.FEE_RETURNED: ("fees", -1),
}


@dataclass(slots=True)
class State:
    """One locked payment row in memory; `changes` are what new transfers add to its totals."""

    books_id: int
    books: str
    reference: str
    id: int = 0
    merchant_reference: str | None = None
    reference_rank: int = 0
    currency: str | None = None
    currency_rank: int = 0
    other_currencies: bool = False
    payee: str | None = None
    payee_rank: int | None = None
    payee_by_capture: str | None = None
    payee_by_fact: str | None = None
    payee_account_id: int | None = None
    authorized: int = 0
    captured: int = 0
    refunded: int = 0
    told_captured: int = 0
    named_captured: int = 0
    told_refunded: int = 0
    named_refunded: int = 0
    rank: int = 0
    ever_captured: bool = False
    is_new: bool = False
    had_money: bool = False
    payee_before: str | None = None
    reference_before: str | None = None  # what stood in for the merchant's own until now
    fees_switched: bool = False
    staff_action_id: int | None = None
    changes: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("captured", "refunded", "disputed", "fees"), 0)
    )
    contradictions: dict[str, dict[str, object]] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """How findings name this payment."""
        return f"{self.books}:{escape(self.reference)}"

    @property
    def ref(self) -> Ref:
        return self.books_id, self.reference

    @property
    def merchant_ref(self) -> Ref:
        """How a registration of this payment is known; no reference can be empty, so none is registered of it."""
        return self.books_id, self.merchant_reference or ""

    @property
    def reference_changed(self) -> bool:
        return self.reference_before is not None

    @property
    def merchant_refs(self) -> set[Ref]:
        """How registrations are known that are its own now, or were until now."""
        before = set() if self.reference_before is None else {(self.books_id, self.reference_before)}
        return {self.merchant_ref, *before}

    def tell_reference(self, fact: Fact) -> None:
        if fact.reference is None or fact.reference_rank < self.reference_rank:
            return
        if fact.reference_rank > self.reference_rank:
            self.reference_before = self.merchant_reference
            self.merchant_reference, self.reference_rank = fact.reference, fact.reference_rank
        elif fact.reference != self.merchant_reference:
            self.contradictions["reference_differs"] = {"first": self.merchant_reference, "then": fact.reference}

    def tell(self, fact: Fact, *, moves_money: bool) -> None:
        """Take in what a fact says besides its transfer. moves_money: it is new, or has no transfer to be known by."""
        self.rank = max(self.rank, _RANKS.get(fact.kind, 0))
        if fact.account is not None:
            self._tell_payee(fact.account, is_capture=fact.kind in _CAPTURES)
        if moves_money and fact.currency is not None:
            self._tell_currency(fact)
            # Told, not booked: a total may name nothing that its single captures didn't.
            self.ever_captured = self.ever_captured or (fact.kind in _CAPTURES and fact.currency == self.currency)
        if fact.kind is FactKind.PAYMENT_AUTHORIZED and fact.currency == self.currency:
            self.authorized = max(self.authorized, fact.amount_minor or 0)

    def _tell_payee(self, account: str, *, is_capture: bool) -> None:
        # Each rank keeps the account it named first, also while a higher one decides: what is found to contradict
        # must not depend on the order in which it was told.
        named = self.payee_by_capture if is_capture else self.payee_by_fact
        if named is not None and named != account:
            self.contradictions["payee_differs"] = {"first": named, "then": account}
        elif is_capture:
            self.payee_by_capture = account
        else:
            self.payee_by_fact = account

    def _tell_currency(self, fact: Fact) -> None:
        # A fee may be in another currency than its payment: it decides only until something else does.
        is_fee = fact.kind in (FactKind.FEE_ASSESSED, FactKind.FEE_RETURNED)
        if self.currency is None or (self.currency_rank == 1 and not is_fee):
            self.fees_switched = self.fees_switched or self.currency not in (None, fact.currency)
            self.currency, self.currency_rank = fact.currency, 1 if is_fee else 2
        elif fact.currency != self.currency and not is_fee:
            self.other_currencies = True
            self.contradictions["wrong_currency"] = {"payment": self.currency, "told": fact.currency}

    @property
    def payee_changed(self) -> bool:
        return self.payee != self.payee_before

    def choose_payee(self, registered_account: str | None, *, default: str | None) -> None:
        """Set the payee of the highest rank; only a higher rank than the present one's changes it."""
        if self.reference_changed and self.payee_rank == REGISTERED_RANK:
            # What was registered of the reference that stood in for the merchant's own says nothing any more.
            self.payee, self.payee_rank = default, None if default is None else 0
        for rank, account in (
            (REGISTERED_RANK, registered_account),
            (2, self.payee_by_capture),
            (1, self.payee_by_fact),
        ):
            if account is not None:
                if self.payee_rank is None or rank > self.payee_rank:
                    self.payee, self.payee_rank = account, rank
                return

    def assign(self, account: str, *, staff_action_id: int) -> None:
        """Set the payee as staff decided; that beats every rank."""
        self.payee, self.payee_rank, self.staff_action_id = account, STAFF_RANK, staff_action_id

    def change_total(self, kind: str, *, amount: int, currency: str, is_reversal: bool = False) -> None:
        """Note what a new transfer adds to the totals; money in another currency stays out of them."""
        if kind not in TOTALS_CHANGED or currency != self.currency:
            return
        total, sense = TOTALS_CHANGED[kind]
        self.changes[total] += -sense * amount if is_reversal else sense * amount

    def unnamed(self, what: str) -> int:
        """Return how much of a total ("captured", "refunded") no single id accounts for yet."""
        return max(0, self._count(f"told_{what}") - self._count(f"named_{what}"))

    def name(self, what: str, amount: int) -> int:
        """Count a single id at its first sight; return how much of the unnamed total it takes over."""
        taken = min(amount, self.unnamed(what))
        setattr(self, f"named_{what}", self._count(f"named_{what}") + amount)
        return taken

    def tell_total(self, what: str, total: int) -> int | None:
        """Take in a total; return by how much it raises what is unnamed, or None if it was known."""
        if total <= self._count(f"told_{what}"):
            return None
        before = self.unnamed(what)
        setattr(self, f"told_{what}", total)
        return self.unnamed(what) - before

    def _count(self, column: str) -> int:
        return int(getattr(self, column))


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
