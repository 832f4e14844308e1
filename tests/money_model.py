"""The rules of money a second time, and histories to try them on.

`Model` is written from the rules alone, over the set of facts; it knows nothing of batches, locks, totals kept or
transfers derived. What the ledger holds after a history, in whatever order, must be what the model says.
"""

from collections.abc import Sequence
from typing import Any, Final

from hypothesis import strategies as st

from payments.registrations import Registered
from tests import books
from tests.steps import Open, Register, Said, Step

CURRENCIES: Final = ("IDR", "JPY", "USD")
OPEN_FROM_THE_START: Final = {(code, currency) for code in ("merchant-1", "merchant-2") for currency in CURRENCIES}


# Histories ------------------------------------------------------------------------------------------------------------


amounts = st.integers(1, 9).map(lambda n: n * 100)
accounts = st.sampled_from([None, "merchant-1", "merchant-2", "late", "nobody", "receivable:demo"])


@st.composite
def payment_facts(draw: st.DrawFn, payment: str) -> list[Said]:
    """All that is said of one payment: nothing that contradicts itself, anything else."""
    currency = draw(st.sampled_from(["IDR", "IDR", "JPY"]))
    reference = draw(st.sampled_from([None, "order-1", "order:%2"]))
    by_capture, by_fact = draw(accounts), draw(accounts)
    said: list[Said] = []

    def say(event_type: str, *, payee: str | None = by_fact, **members: Any) -> None:
        account = payee if draw(st.booleans()) else None
        named = reference if draw(st.booleans()) else None
        members = {"currency": currency if "amount" in members else None, **members}
        said.append(Said(event_type, payment, account=account, reference=named, **members))

    for event_type in draw(st.lists(st.sampled_from(["pending", "failed", "expired", "voided"]), max_size=2)):
        say(f"payment.{event_type}")
    for amount in draw(st.lists(amounts, max_size=2)):
        say("payment.authorized", amount=amount)
    for part in draw(st.lists(st.sampled_from([None, "1", "b:%", "b"]), max_size=3, unique=True)):
        amount, told = draw(amounts), draw(st.sampled_from(["captured", "captured", "reversed", "both"]))
        if told != "reversed":
            say("payment.captured", payee=by_capture, part=part, amount=amount)
        if told != "captured":
            say("payment.reversed", part=part, amount=amount)
    for number in range(draw(st.integers(0, 3))):
        amount = draw(amounts)
        for event_type in draw(st.sets(st.sampled_from(["requested", "succeeded", "failed"]), min_size=1)):
            say(f"refund.{event_type}", id=f"r{number}:{payment}", amount=amount)
    for amount in draw(st.lists(amounts, max_size=2, unique=True)):
        say("refunded.total", amount=amount)
    for amount in draw(st.lists(amounts, max_size=2, unique=True)):
        say("captured.total", payee=by_capture, amount=amount)
    if draw(st.booleans()):
        legs = {None: draw(amounts), "2": draw(amounts)}
        for movement, amount in legs.items():
            for event_type in draw(st.sets(st.sampled_from(["funds_withdrawn", "funds_returned", "lost"]))):
                if event_type != "lost" or not any(one.type == "dispute.lost" for one in said):
                    say(f"dispute.{event_type}", id=f"d:{payment}", part=movement, amount=amount)
        for event_type in draw(st.sets(st.sampled_from(["opened", "won"]))):
            say(f"dispute.{event_type}", id=f"d:{payment}")
    # Which of two fees of different currencies came first would decide a payment's currency if nothing else did.
    currencies = [currency, "USD"] if any(one.amount for one in said) else [currency]
    for number in range(draw(st.integers(0, 2))):
        say("fee.assessed", id=f"f{number}:{payment}", amount=draw(amounts), currency=draw(st.sampled_from(currencies)))
    return said


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Facts of one or two payments and payouts, with what the application says and opens meanwhile."""
    payments = draw(st.sampled_from([["a"], ["a", "a:b"], ["a:b", "a%3Ab"]]))
    steps: list[Step] = [fact for payment in payments for fact in draw(payment_facts(payment))]
    references = sorted({merchant_reference(payment, steps) for payment in payments})
    for number in range(draw(st.integers(0, 2))):
        amount = draw(amounts)
        for event_type in draw(st.sets(st.sampled_from(["paid", "failed"]), min_size=1)):
            steps.append(Said(f"payout.{event_type}", id=f"po:{number}", amount=amount, currency="IDR"))
    for reference in draw(st.sets(st.sampled_from([*references, *payments, "another"]))):
        wanted = Registered(
            draw(accounts.filter(bool)) or "", draw(amounts), draw(st.sampled_from(["IDR", "IDR", "USD"]))
        )
        steps.append(Register(reference, wanted))
    for currency in draw(st.sets(st.sampled_from(["IDR", "JPY"]))):
        steps.append(Open("late", currency))
    return steps


def merchant_reference(payment: str, steps: Sequence[Step]) -> str:
    named = [one.reference for one in steps if isinstance(one, Said) and one.payment == payment and one.reference]
    return named[0] if named else payment


# The model ------------------------------------------------------------------------------------------------------------


def escaped(identifier: str) -> str:
    return identifier.replace("%", "%25").replace(":", "%3A")


class Model:
    """The rules of money over a set of facts."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.facts = {one for one in steps if isinstance(one, Said)}
        self.registered = {one.reference: one.wanted for one in steps if isinstance(one, Register)}
        self.open = OPEN_FROM_THE_START | {(one.code, one.currency) for one in steps if isinstance(one, Open)}
        self.books = books.Books()
        for payment in sorted({one.payment for one in self.facts if one.payment is not None}):
            self._payment(payment)
        self._payouts()
        self._registrations()
        self.books.balances = {key: balance for key, balance in self.books.balances.items() if balance}

    def _move(self, code: str, currency: str, amount: int) -> None:
        self.books.balances[code, currency] = self.books.balances.get((code, currency), 0) + amount

    def _transfers(self, made: dict[str, int], undone: dict[str, int]) -> int:
        """Note the transfers of single facts and of their reversals; return what stays."""
        self.books.transfers |= made
        both = {key: amount for key, amount in made.items() if key in undone}
        self.books.transfers |= {f"{key}:reversed": amount for key, amount in both.items()}
        return sum(made.values()) - sum(both.values())

    def _payment(self, payment: str) -> None:
        facts = [one for one in self.facts if one.payment == payment]
        money = [one for one in facts if one.amount and one.type != "refund.requested"]
        principal = [one for one in facts if one.amount and not one.type.startswith("fee")]
        currency = (principal or money or [Said("")])[0].currency

        def named(event_type: str) -> dict[str, int]:
            return {key(one): one.amount or 0 for one in facts if one.type == event_type}

        def total_of(event_type: str, made: dict[str, int], undone: dict[str, int]) -> int:
            told = max((one.amount or 0 for one in facts if one.type == event_type), default=0)
            return self._transfers(made, undone) + max(0, told - sum((made | undone).values()))

        captures, refunds = named("payment.captured"), named("refund.succeeded")
        captured = total_of("captured.total", captures, named("payment.reversed"))
        refunded = total_of("refunded.total", refunds, named("refund.failed"))
        lost = named("dispute.lost")
        implied = {
            f"demo:{escaped(one.id or '')}:withdrawn:{escaped(one.part or '1')}": one.amount or 0
            for one in facts
            if one.type == "dispute.lost"
        }
        withdrawn = self._transfers(named("dispute.funds_withdrawn") | implied, {})
        returned = self._transfers(named("dispute.funds_returned"), {})
        charged = self._transfers(lost, {})
        self._transfers(named("fee.assessed"), {})
        charges = [one for one in facts if one.type == "fee.assessed"]
        fees = {code: sum(one.amount or 0 for one in charges if one.currency == code) for code in CURRENCIES}

        payee, payee_rank = self._payee(payment, facts)
        home = payee if (payee, currency) in self.open else None
        if currency is not None:
            self._move(home or "suspense:demo", currency, captured - refunded - charged)
            self._move("receivable:demo", currency, captured - refunded - withdrawn + returned)
            self._move("disputes:demo", currency, withdrawn - returned - charged)
        for fee_currency, amount in fees.items():
            self._move("fees:demo", fee_currency, amount)
            self._move("receivable:demo", fee_currency, -amount)

        was_captured = bool(captures) or any(one.type == "captured.total" for one in facts)
        self.books.payments[payment] = {
            "merchant_reference": merchant_reference(payment, facts),
            "currency": currency,
            "authorized": max((one.amount or 0 for one in facts if one.type == "payment.authorized"), default=0),
            "captured": captured,
            "refunded": refunded,
            "disputed": withdrawn - returned,
            "fees": fees.get(currency or "", 0),
            "status": status(facts, captured, refunded, was_captured=was_captured),
            "payee": payee,
            "payee_rank": payee_rank,
            "home": home,
        }
        if was_captured and refunded > captured:
            self.books.findings.add(("over_refund", f"demo:{escaped(payment)}"))
        is_closed = bool(lost) or any(one.type == "dispute.won" for one in facts)
        if is_closed and withdrawn - returned - charged:
            self.books.findings.add(("dispute_closed_not_zero", f"demo:{escaped(f'd:{payment}')}"))

    def _payee(self, payment: str, facts: Sequence[Said]) -> tuple[str | None, int | None]:
        registered = self.registered.get(merchant_reference(payment, facts))
        if registered is not None:
            return registered.account, 3
        for rank, is_asked in ((2, True), (1, False)):
            for one in facts:
                if one.account is not None and (one.type in ("payment.captured", "captured.total")) is is_asked:
                    return one.account, rank
        return None, None

    def _payouts(self) -> None:
        paid, failed = (
            {key(one): one.amount or 0 for one in self.facts if one.type == event_type}
            for event_type in ("payout.paid", "payout.failed")
        )
        stays = self._transfers(paid, failed)
        self._move("bank:demo", "IDR", stays)
        self._move("receivable:demo", "IDR", -stays)

    def _registrations(self) -> None:
        for reference, wanted in self.registered.items():
            paying = [row for row in self.books.payments.values() if row["merchant_reference"] == reference]
            captured = sum(row["captured"] for row in paying if row["currency"] == wanted.currency)
            other = any(row["captured"] for row in paying if row["currency"] != wanted.currency)
            is_so = {
                "underpaid": 0 < captured < wanted.amount,
                "overpaid": captured > wanted.amount,
                "paid_in_other_currency": other,
            }
            self.books.findings |= {(kind, f"demo:{escaped(reference)}") for kind, holds in is_so.items() if holds}


def key(one: Said) -> str:
    """The business key of a single fact, or of what it corrects."""
    name = {
        "payment.captured": "captured",
        "payment.reversed": "captured",
        "refund.succeeded": "refunded",
        "refund.failed": "refunded",
        "dispute.funds_withdrawn": "withdrawn",
        "dispute.funds_returned": "returned",
        "dispute.lost": "lost",
        "fee.assessed": "fee",
        "payout.paid": "paid",
        "payout.failed": "paid",
    }[one.type]
    part = one.part
    if name in ("withdrawn", "returned"):
        part = part or "1"
    elif name == "lost":
        part = None
    return ":".join(["demo", escaped(one.id or one.payment or ""), name, *([escaped(part)] if part else [])])


def status(facts: Sequence[Said], captured: int, refunded: int, *, was_captured: bool) -> str:
    if was_captured and captured == 0:
        return "reversed"
    if captured > 0:
        return "refunded" if refunded >= captured else "partially_refunded" if refunded > 0 else "captured"
    told = {one.type for one in facts}
    ranks = ("payment.voided", "payment.expired", "payment.authorized", "payment.failed")
    return next((name.split(".")[1] for name in ranks if name in told), "pending")
