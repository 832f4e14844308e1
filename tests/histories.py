"""One payment's history as any gateway could tell it, and what the books hold afterwards.

`History` is a plan, the same for all gateways; tellers.py makes of it what a gateway sends. `expected` is the second
road to the truth: the rules of money over the plan, which knows neither gateways nor orders.
"""

from dataclasses import dataclass
from itertools import accumulate

from hypothesis import strategies as st

# The plan -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refund:
    """fate: "requested", "succeeded", "failed" (it never succeeded), or "undone" (it failed after it had succeeded)."""

    amount: int
    fate: str


@dataclass(frozen=True)
class Dispute:
    """How often its money went out and came back, and how it ended: "", "won" or "lost"."""

    amount: int
    out: int
    back: int
    end: str


@dataclass(frozen=True)
class Payout:
    """A negative amount was collected from the bank."""

    amount: int
    is_undone: bool


@dataclass(frozen=True)
class History:
    """One payment and the payouts after it. Amounts in ISO 4217's minor units, all of them whole major units.

    reversed_captures    how many of the captures were undone later, from the last one on
    """

    before: tuple[str, ...] = ()  # of "pending", "failed", "expired", "voided"
    authorized: int = 0
    captures: tuple[int, ...] = ()
    reversed_captures: int = 0
    fee: int = 0
    refunds: tuple[Refund, ...] = ()
    disputes: tuple[Dispute, ...] = ()
    payouts: tuple[Payout, ...] = ()

    @property
    def captured(self) -> int:
        return sum(self.captures)


@dataclass(frozen=True)
class Abilities:
    """What of a history a gateway's events can tell."""

    before: frozenset[str]
    captures_max: int = 1
    reverses: bool = False
    fees: bool = False
    fates: tuple[str, ...] = ("succeeded", "failed", "undone")
    over_refunds: bool = True
    courses: tuple[tuple[int, int, str], ...] = ()  # out, back and end of a dispute
    disputes_max: int = 2
    disputes_whole: bool = False  # always the payment's whole amount
    payouts_max: int = 2
    payouts_fail: bool = True
    payouts_negative: bool = False


amounts = st.integers(1, 9).map(lambda n: n * 100)


@st.composite
def histories(draw: st.DrawFn, can: Abilities) -> History:
    """Return any history within a gateway's abilities."""
    captures = tuple(draw(st.lists(amounts, min_size=1, max_size=can.captures_max)))
    captured = sum(captures)
    refunds = draw(st.lists(st.builds(Refund, amounts, st.sampled_from(can.fates)), max_size=3))
    if not can.over_refunds:
        totals = accumulate(refund.amount for refund in refunds)
        refunds = [refund for refund, total in zip(refunds, totals, strict=True) if total <= captured]
    courses = draw(st.lists(st.sampled_from(can.courses), max_size=can.disputes_max))
    disputed = st.just(captured) if can.disputes_whole else amounts
    undone = st.booleans() if can.payouts_fail else st.just(False)
    paid = st.one_of(amounts, amounts.map(lambda amount: -amount)) if can.payouts_negative else amounts
    return History(
        before=tuple(sorted(draw(st.sets(st.sampled_from(sorted(can.before)))))),
        authorized=draw(st.sampled_from([0, captured])),
        captures=captures,
        reversed_captures=draw(st.integers(0, len(captures))) if can.reverses else 0,
        fee=draw(st.sampled_from([0, 100])) if can.fees else 0,
        refunds=tuple(refunds),
        disputes=tuple(Dispute(draw(disputed), *course) for course in courses),
        payouts=tuple(draw(st.lists(st.builds(Payout, paid, undone), max_size=can.payouts_max))),
    )


# What the books hold --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """Of the payment its totals and status, balances that aren't zero by role, and kinds of open findings."""

    totals: dict[str, int]
    status: str
    balances: dict[str, int]
    findings: set[str]


def expected(history: History) -> End:
    """Return what a history ends in, from the rules of money alone."""
    kept = history.captures[: len(history.captures) - history.reversed_captures]
    captured, refunded = sum(kept), sum(one.amount for one in history.refunds if one.fate == "succeeded")
    lost = sum(one.amount for one in history.disputes if one.end == "lost")
    withdrawn = sum(one.amount * max(one.out, one.end == "lost") for one in history.disputes)
    returned = sum(one.amount * one.back for one in history.disputes)
    paid_out = sum(one.amount for one in history.payouts if not one.is_undone)
    balances = {
        "payee": captured - refunded - lost,
        "receivable": captured - refunded - history.fee - withdrawn + returned - paid_out,
        "fees": history.fee,
        "disputes": withdrawn - returned - lost,
        "bank": paid_out,
    }
    findings = {"over_refund"} if refunded > captured else set()
    if any(one.end and max(one.out, one.end == "lost") - one.back - (one.end == "lost") for one in history.disputes):
        findings.add("dispute_closed_not_zero")
    return End(
        {"captured": captured, "refunded": refunded, "disputed": withdrawn - returned, "fees": history.fee},
        _status(captured, refunded),
        {role: amount for role, amount in balances.items() if amount},
        findings,
    )


def _status(captured: int, refunded: int) -> str:
    if captured == 0:
        return "reversed"
    if refunded == 0:
        return "captured"
    return "refunded" if refunded >= captured else "partially_refunded"
