"""What is said of a line, given what is booked: one case each, without a database."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from payments.facts import FactKind
from payments.reconciliation import verdicts
from payments.reconciliation.verdicts import (
    BOOKED,
    DIFFERS,
    FEE_DIFFERS,
    MATCHED,
    MISSING_HERE,
    History,
    Judgement,
    Known,
    Row,
)

NOON: Final = datetime(2026, 11, 30, 12, tzinfo=UTC)


def row(position: int = 0, **changes: Any) -> Row:
    """Return a refund's row of 40.00; changes name what is otherwise."""
    values: dict[str, Any] = {
        "position": position,
        "number": position + 2,
        "is_beside": False,
        "unit": "demo:ref_1:refunded",
        "kind": FactKind.REFUND_SUCCEEDED.value,
        "object_id": "ref_1",
        "part": None,
        "payment": "pay_1",
        "amount": 4000,
        "currency": "IDR",
        "account": None,
        "reference": None,
        "reference_rank": 0,
        "occurred_at": NOON,
        "into_minor": None,
        "into_currency": None,
        "is_summed": False,
        "alias": None,
        "why": "",
        "first": position,
        "at": position,
    }
    return Row(**{**values, **changes})


def capture(position: int = 0, amount: int = 10_000, **changes: Any) -> Row:
    """Return a line of a capture that names none; several of them are one sum, at position 0."""
    summed = {"unit": "demo:pay_1:captured", "kind": "PaymentCaptured", "object_id": "pay_1", "is_summed": True}
    return row(position, amount=amount, first=0, at=0, **{**summed, **changes})


def known(amount: int = 4000, **changes: Any) -> Known:
    values: dict[str, Any] = {
        "id": 1,
        "kind": "RefundSucceeded",
        "amount": amount,
        "currency": "IDR",
        "payment": "pay_1",
        "account": None,
    }
    return Known(**{**values, **changes})


def captured(amount: int = 10_000, **changes: Any) -> Known:
    return known(amount, **{"kind": "PaymentCaptured", **changes})


def judge(rows: Sequence[Row], *captures: Known, booked_now: Sequence[str] = (), **transfers: Any) -> list[Judgement]:
    """Return the judgements, given transfers by key and captures of pay_1."""
    history = History(
        transfers=transfers.get("transfers", {}),
        corrections=transfers.get("corrections", {}),
        captures={"pay_1": captures} if captures else {},
        booked_now=booked_now,
    )
    return list(verdicts.judge(rows, history))


def said(judged: Sequence[Judgement]) -> list[tuple[str | None, str]]:
    return [(one.verdict, one.why) for one in judged for _ in one.rows]


REF: Final = "demo:ref_1:refunded"


def test_line_that_agrees_is_matched() -> None:
    assert said(judge([row()], transfers={REF: known()})) == [(MATCHED, "")]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"amount": 4001}, "amount"),
        ({"currency": "USD"}, "currency"),
        ({"payment": "pay_2"}, "payment"),
        ({"account": "merchant-1"}, "account"),
        ({"amount": 1, "currency": "USD"}, "amount, currency"),
    ],
)
def test_line_that_says_something_else_differs(changes: dict[str, Any], why: str) -> None:
    """Amount, currency, payment, and the payee where both name one."""
    (one,) = judge([row(**changes)], transfers={REF: known(account="merchant-9")})

    assert (one.verdict, one.why, one.booked) == (DIFFERS, why, (4000, "IDR"))


def test_payee_or_payment_that_only_one_names_is_no_difference() -> None:
    transfers = {REF: known(account="merchant-9")}

    assert said(judge([row(payment=None)], transfers=transfers)) == [(MATCHED, "")]


def test_fact_that_is_not_booked_is_told() -> None:
    (one,) = judge([row()])

    assert one.verdict is None
    assert one.fact is not None
    assert (one.fact.kind, one.fact.amount_minor) == (FactKind.REFUND_SUCCEEDED, 4000)


def test_second_line_of_one_key_differs() -> None:
    """Whether the first is booked or not; and a fee so told isn't the line's verdict."""
    again = row(1, first=0)

    assert said(judge([again], transfers={REF: known()})) == [(DIFFERS, verdicts.TWICE)]
    assert said(judge([again])) == [(DIFFERS, verdicts.TWICE)]
    assert said(judge([row(1, first=0, is_beside=True)])) == [(FEE_DIFFERS, verdicts.TWICE)]


def test_line_of_what_this_run_booked_before_it_was_killed_is_booked() -> None:
    assert said(judge([row()], transfers={REF: known()}, booked_now=[REF])) == [(BOOKED, "")]


def test_unusable_line_is_missing_here() -> None:
    assert said(judge([row(why="amount is not a plain decimal", unit="x")])) == [
        (MISSING_HERE, "amount is not a plain decimal")
    ]


def test_refund_of_an_unnamed_payment_is_missing_here_unless_it_is_known() -> None:
    """It can't be booked, but it can agree."""
    nameless = row(payment=None)

    assert [verdict for verdict, _ in said(judge([nameless]))] == [MISSING_HERE]
    assert said(judge([nameless], transfers={REF: known()})) == [(MATCHED, "")]


def test_fee_and_payout_need_no_payment() -> None:
    for kind in ("FeeAssessed", "PayoutPaid", "FundsConverted"):
        (one,) = judge([row(payment=None, kind=kind)])
        assert one.verdict is None


def test_line_known_under_another_key_agrees() -> None:
    """A dispute's leg that its webhook could not name."""
    leg = row(unit="s:du_1:withdrawn:txn_1", alias="s:du_1:withdrawn:1", kind="DisputeFundsWithdrawn")

    assert said(judge([leg], transfers={"s:du_1:withdrawn:1": known()})) == [(MATCHED, "")]


class TestCorrections:
    """Lines that say that something else did not happen after all."""

    failed = row(unit=f"{REF}:reversed", kind="RefundFailed")

    def test_known_correction_agrees(self) -> None:
        assert said(judge([self.failed], corrections={REF: (4000, "IDR")})) == [(MATCHED, "")]

    def test_correction_of_another_amount_differs(self) -> None:
        (one,) = judge([self.failed], corrections={REF: (3999, "IDR")})

        assert (one.verdict, one.why, one.booked) == (DIFFERS, "amount", (3999, "IDR"))

    def test_correction_that_does_not_fit_its_original_differs(self) -> None:
        """It would reverse nothing, so it isn't told either."""
        (one,) = judge([self.failed], transfers={REF: known(5000)})

        assert (one.verdict, one.booked) == (DIFFERS, (5000, "IDR"))

    def test_unknown_correction_is_told(self) -> None:
        (one,) = judge([self.failed], transfers={REF: known()})

        assert (one.verdict, one.fact and one.fact.kind) == (None, FactKind.REFUND_FAILED)


class TestSums:
    """Lines that name no capture are one amount: their sum within the file."""

    def test_one_line_is_the_capture(self) -> None:
        (one,) = judge([capture()])

        assert one.fact is not None
        assert (one.verdict, one.fact.kind, one.fact.amount_minor) == (None, FactKind.PAYMENT_CAPTURED, 10_000)

    def test_several_lines_are_told_as_a_total(self) -> None:
        """Single captures may be told by their ids later; a total gives way to them."""
        (one,) = judge([capture(0, 3_000), capture(1, 7_000)])

        assert one.fact is not None
        assert len(one.rows) == 2
        assert (one.fact.kind, one.fact.amount_minor) == (FactKind.PAYMENT_CAPTURED_TOTAL, 10_000)

    def test_sum_agrees_with_captures_named_one_by_one(self) -> None:
        judged = judge([capture()], captured(4_000), captured(6_000, id=2))

        assert said(judged) == [(MATCHED, "")]
        assert judged[0].transfer_ids == [1, 2]

    def test_sum_agrees_with_totals_less_what_was_named(self) -> None:
        """Told 300 then 700, and 700 by name: 700 are captured."""
        totals = [captured(300, kind="PaymentCapturedTotal"), captured(400, kind="PaymentCapturedTotal", id=2)]
        named = [captured(700, kind="CaptureNamed", id=3), captured(700, id=4)]

        assert said(judge([capture(0, 700)], *totals, *named)) == [(MATCHED, "")]

    def test_sum_that_is_another_differs_once(self) -> None:
        judged = judge([capture(0, 3_000), capture(1, 8_000)], captured())

        assert said(judged) == [(DIFFERS, "amount"), (DIFFERS, "amount")]
        assert [one.booked for one in judged] == [(10_000, "IDR"), None]

    def test_line_beyond_the_sum_differs_alone(self) -> None:
        """The same line twice: the first agrees, the second is too much."""
        judged = judge([capture(0), capture(1)], captured())

        assert said(judged) == [(MATCHED, ""), (DIFFERS, "more than is captured here")]

    def test_part_that_is_taken_back_counts(self) -> None:
        assert said(judge([capture(0), capture(1, -4_000)], captured(6_000))) == [(MATCHED, ""), (MATCHED, "")]

    def test_sum_of_nothing_is_missing_here(self) -> None:
        verdict_of_both = {verdict for verdict, _ in said(judge([capture(0), capture(1, -10_000)]))}

        assert verdict_of_both == {MISSING_HERE}

    def test_other_currency_differs(self) -> None:
        (one,) = judge([capture(currency="USD")], captured())

        assert (one.verdict, one.why, one.booked) == (DIFFERS, "currency", (10_000, "IDR"))

    def test_other_payee_differs(self) -> None:
        assert said(judge([capture(account="merchant-1")], captured(account="merchant-2"))) == [(DIFFERS, "account")]
        assert said(judge([capture(account="merchant-2")], captured(account="merchant-2"))) == [(MATCHED, "")]

    def test_sum_that_this_run_booked_before_is_booked(self) -> None:
        total = captured(kind="PaymentCapturedTotal")

        judged = judge([capture(0, 3_000), capture(1, 7_000)], total, booked_now=["demo:pay_1:captured"])
        assert said(judged) == [(BOOKED, ""), (BOOKED, "")]

    def test_sums_of_several_payments_are_kept_apart(self) -> None:
        other = capture(2, 500, unit="demo:pay_2:captured", payment="pay_2")._replace(at=2, first=2)

        assert said(judge([capture(0), other], captured())) == [(MATCHED, ""), (None, "")]
