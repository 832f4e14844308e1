"""What the facts told of a payment come to: totals, status, currency, reference and payee, whatever their order.

Pure: payment_states.py reads and writes the rows, booking.py tells what is new.
"""

from dataclasses import dataclass, field
from typing import Final

from payments import postings
from payments.facts import Fact, FactKind, escape

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
