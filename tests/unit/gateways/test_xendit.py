"""Xendit: a token, four kinds of bodies, amounts as numbers and as texts."""

import dataclasses
from datetime import UTC, datetime
from typing import Any, Final

import iso4217
import pytest

from payments import facts, money
from payments.facts import FactKind
from payments.gateways import base, xendit
from tests.unit.gateways import cases
from tests.unit.gateways.signing import NOW

PAYMENT: Final = "py-5d1b0001-0000-4000-8000-00000000000a"
INVOICE: Final = "6561aa00bb11cc22dd330001"


class TestXendit(cases.GatewayCases):
    gateway = xendit.Xendit()
    secret = "xnd-token-of-the-tests"
    other_secret = "xnd-token-of-somebody-else"
    good_body = cases.payload("xendit", "payment.capture__captures")
    proof_header = "x-callback-token"
    has_age = False
    has_several = False

    @pytest.mark.parametrize("event_id", ["", " \x00", "é", "w" * 256, "☃"])
    def test_unusable_header_id_is_refused(self, event_id: str) -> None:
        """A header id that isn't 1 to 255 printable ASCII characters is nobody's."""
        good = self.good()

        self.assert_refused(dataclasses.replace(good, headers={**good.headers, "webhook-id": event_id}))

    def test_header_id_is_the_event_id(self) -> None:
        """It is kept exactly, also where the body can't be read."""
        good = self.good()
        headers = {**good.headers, "webhook-id": " Aa:% "}

        for body in (good.body, b"garbage"):
            verified = self.gateway.authenticate(base.Delivery(headers, body, NOW), [self.secret])
            (notice,) = self.gateway.translate(verified, self.endpoint)
            assert notice.event_id == " Aa:% "

    def test_unset_secret_does_not_verify_a_missing_token(self) -> None:
        """An empty secret equals nothing: no token is no proof."""
        self.assert_refused(base.Delivery({}, self.good_body, NOW), [""])
        self.assert_refused(base.Delivery({"x-callback-token": ""}, self.good_body, NOW), ["", ""])


def translated(name: str, **changes: Any) -> base.Notice:
    """Return the notice of a payload with members changed, delivered without an id in a header."""
    body = cases.payload("xendit", name)
    return notice_of(cases.variant(body, **changes) if changes else body)


def notice_of(body: bytes) -> base.Notice:
    verified = base.Verified.of(base.Delivery({}, body, NOW))
    (notice,) = xendit.Xendit().translate(verified, base.EndpointConfig(slug="xendit"))
    cases.assert_sound([notice])
    return notice


def told(notice: base.Notice) -> list[tuple[str, int | None, str | None]]:
    """Return key (or kind, where there is no money) with amount and currency of each fact."""
    assert notice.unusable is None
    return [
        (
            facts.business_key("xendit", fact) if fact.kind in facts.MONEY else fact.kind.value,
            fact.amount_minor,
            fact.currency,
        )
        for fact in notice.facts
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("payment.authorization__card", [("PaymentAuthorized", 12_500_000, "IDR")]),
        (
            "payment.capture__captures",
            [
                ("xendit:cap-5d1b0001-0000-4000-8000-0000000000c1:captured", 10_000_000, "IDR"),
                ("xendit:cap-5d1b0001-0000-4000-8000-0000000000c2:captured", 2_500_000, "IDR"),
            ],
        ),
        (
            "payment.capture__virtual_account",
            [("xendit:py-5d1b0002-0000-4000-8000-00000000000b:captured-to:8000000", 8_000_000, "IDR")],
        ),
        ("payment.failure__card", [("PaymentFailed", None, None)]),
        ("payment.expiry__virtual_account", [("PaymentExpired", None, None)]),
        (
            "payment.succeeded__version_2",
            [("xendit:ewpy-5d1b0004-0000-4000-8000-00000000000d:captured-to:25050", 25_050, "PHP")],
        ),
        ("payment.failed__version_2", [("PaymentFailed", None, None)]),
        ("invoice.paid__flat", [(f"xendit:{INVOICE}:captured", 30_000_000, "IDR")]),
        ("invoice.settled__flat", [(f"xendit:{INVOICE}:captured", 30_000_000, "IDR")]),
        ("invoice.expired__flat", [("PaymentExpired", None, None)]),
        (
            "refund.succeeded__card",
            [("xendit:rfd-5d1b0001-0000-4000-8000-0000000000f1:refunded", 2_500_000, "IDR")],
        ),
        (
            "refund.failed__card",
            [("xendit:rfd-5d1b0001-0000-4000-8000-0000000000f1:refunded", 2_500_000, "IDR")],
        ),
        ("dispute.action_required__card", [("DisputeOpened", None, None)]),
        ("dispute.won__card", [("DisputeWon", None, None)]),
        (
            "dispute.lost__card",
            [("xendit:mi-dspt-5d1b0001-0000-4000-8000-0000000000d1:lost", 9_000_000, "IDR")],
        ),
        (
            "v3_payout.succeeded__idr",
            [("xendit:po-5d1b0001-0000-4000-8000-0000000000e1:paid", 15_000_000, "IDR")],
        ),
        (
            "v3_payout.reversed__idr",
            [("xendit:po-5d1b0001-0000-4000-8000-0000000000e1:paid", 15_000_000, "IDR")],
        ),
        (
            "v3_payout.failed__php",
            [("xendit:po-5d1b0002-0000-4000-8000-0000000000e2:paid", 50_050, "PHP")],
        ),
    ],
)
def test_events_become_facts(name: str, expected: list[tuple[str, int | None, str | None]]) -> None:
    """Each event says what its documentation says, under the keys of the capture, refund, dispute or payout."""
    assert told(translated(name)) == expected


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("refund.succeeded__card", FactKind.REFUND_SUCCEEDED),
        ("refund.failed__card", FactKind.REFUND_FAILED),
        ("v3_payout.succeeded__idr", FactKind.PAYOUT_PAID),
        ("v3_payout.reversed__idr", FactKind.PAYOUT_FAILED),
        ("v3_payout.failed__php", FactKind.PAYOUT_FAILED),
        ("dispute.lost__card", FactKind.DISPUTE_LOST),
    ],
)
def test_failures_correct_what_succeeded(name: str, kind: FactKind) -> None:
    """Success and failure of one refund or payout share a key and differ in kind."""
    (fact,) = translated(name).facts

    assert fact.kind is kind


def test_rejected_payout_is_a_failed_one() -> None:
    """Compliance rejected it, the money is back: the same as failed and reversed."""
    (fact,) = translated("v3_payout.failed__php", event="v3_payout.rejected").facts

    assert fact.kind is FactKind.PAYOUT_FAILED


def test_paid_and_settled_invoice_is_one_payment() -> None:
    """Two events, one business key, one amount."""
    paid, settled = translated("invoice.paid__flat"), translated("invoice.settled__flat")

    assert paid.event_id != settled.event_id
    assert told(paid) == told(settled)
    assert (paid.event_type, settled.event_type) == ("invoice.paid", "invoice.settled")


def test_lost_dispute_implies_its_withdrawal() -> None:
    """No event of its own tells of the money: the lost one names the leg, of what it ended with."""
    (fact,) = translated("dispute.lost__card").facts

    assert (fact.part, fact.payment) == ("1", PAYMENT)
    (without_end,) = translated("dispute.lost__card", amount__terminal=None).facts
    assert without_end.amount_minor == 10_000_000


def test_refund_belongs_to_its_invoice_or_payment() -> None:
    """An invoice's payment is known by the invoice; the refund's own reference is nobody's order."""
    (of_payment,) = translated("refund.succeeded__card").facts
    (of_invoice,) = translated("refund.succeeded__of_an_invoice").facts

    assert (of_payment.payment, of_payment.reference) == (PAYMENT, None)
    assert (of_invoice.payment, of_invoice.reference) == (INVOICE, None)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("payment.capture__captures", "order-xd-1"),
        ("payment.expiry__virtual_account", "order-xd-2"),
        ("payment.succeeded__version_2", "order-xd-4"),
        ("invoice.paid__flat", "inv-2026-31"),
        ("invoice.expired__flat", "inv-2026-32"),
        ("dispute.lost__card", "order-xd-1"),
    ],
)
def test_reference_is_the_merchants(name: str, reference: str) -> None:
    """Registrations know payments by reference_id and invoices by external_id."""
    fact = translated(name).facts[0]

    assert (fact.reference, fact.reference_rank) == (reference, 2)


def test_time_of_the_attempt_is_not_content() -> None:
    """The envelope's `created` is another one in every try: same event, same content."""
    first = translated("payment.capture__captures")
    second = translated("payment.capture__captures", created="2026-11-28T09:00:00.000Z")

    assert (first.event_id, first.fingerprint) == (second.event_id, second.fingerprint)


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("payment.capture__captures", "data__captures__0__capture_amount"),
        ("payment.capture__virtual_account", "data__request_amount"),
        ("payment.capture__virtual_account", "data__reference_id"),
        ("invoice.paid__flat", "paid_amount"),
        ("refund.succeeded__card", "data__currency"),
        ("v3_payout.succeeded__idr", "data__source_amount"),
        ("dispute.lost__card", "amount"),
    ],
)
def test_money_is_content(name: str, member: str) -> None:
    """Another amount, currency or reference is other content, and under a composed id another event."""
    first, second = translated(name), translated(name, **{member: "7"})

    assert first.fingerprint != second.fingerprint
    assert first.event_id != second.event_id


@pytest.mark.parametrize(
    ("written", "minor"),
    [
        (b"10000", 1_000_000),
        (b'"10000"', 1_000_000),
        (b"10000.00", 1_000_000),
        (b'"10000.5"', 1_000_050),
        (b"19.99", 1_999),
        (b"0.01", 1),
        (b"90071992547409.91", 2**53 - 1),
        (b"1.10", 110),
        (b"1.1000000000", 110),
    ],
)
def test_amounts_are_exact_as_number_and_as_text(written: bytes, minor: int) -> None:
    """No float stands between what was written and what is booked."""
    body = cases.variant(cases.payload("xendit", "payment.capture__virtual_account"), data__request_amount=7)

    (fact,) = notice_of(body.replace(b'"request_amount": 7', b'"request_amount": ' + written)).facts

    assert fact.amount_minor == minor


@pytest.mark.parametrize(
    ("currency", "amount", "minor"), [("VND", "50000", 50_000), ("JPY", 500, 500), ("KWD", "1.234", 1_234)]
)
def test_major_units_follow_iso_4217(currency: str, amount: object, minor: int) -> None:
    """The dong and the yen have no decimals, the dinar has three."""
    (fact,) = translated("payment.capture__virtual_account", data__currency=currency, data__request_amount=amount).facts

    assert (fact.amount_minor, fact.currency) == (minor, currency)


def test_payout_exponents() -> None:
    """Payouts count minor units: ISO 4217's, except that the rupiah has none."""
    gateway = xendit.Xendit()

    for currency in iso4217.Currency:
        if currency.exponent is not None and currency.code != "IDR":
            assert gateway.exponent(currency.code) == currency.exponent == money.exponent(currency.code)
    assert (gateway.exponent("IDR"), money.exponent("IDR")) == (0, 2)


@pytest.mark.parametrize("amount", ["150000", 150_000])
def test_payout_amount_is_number_or_text(amount: object) -> None:
    """The documentation shows both."""
    (fact,) = translated("v3_payout.succeeded__idr", data__source_amount=amount).facts

    assert fact.amount_minor == 15_000_000


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("payment.capture__virtual_account", {"data__request_amount": ...}),
        ("payment.capture__virtual_account", {"data__request_amount": "10.001"}),
        ("payment.capture__virtual_account", {"data__request_amount": 0}),
        ("payment.capture__virtual_account", {"data__request_amount": -1}),
        ("payment.capture__virtual_account", {"data__request_amount": 1e300}),
        ("payment.capture__virtual_account", {"data__request_amount": True}),
        ("payment.capture__virtual_account", {"data__currency": "idr"}),
        ("payment.capture__virtual_account", {"data__currency": ...}),
        ("payment.capture__virtual_account", {"data__payment_id": ...}),
        ("payment.capture__virtual_account", {"data__payment_id": "p" * 256}),
        ("payment.capture__virtual_account", {"data__updated": "yesterday"}),
        ("payment.capture__captures", {"data__captures__0__capture_id": ...}),
        ("payment.capture__captures", {"data__captures__1__capture_amount": 0}),
        ("payment.capture__captures", {"data__captures__1": "c"}),
        ("payment.capture__captures", {"data__captures": {"0": 1}}),
        ("payment.capture__captures", {"event": None}),
        ("payment.capture__captures", {"event": "ewallet.capture"}),
        ("payment.capture__captures", {"event": "payout.succeeded"}),
        ("invoice.paid__flat", {"paid_amount": ...}),
        ("invoice.paid__flat", {"paid_amount": 0}),
        ("invoice.paid__flat", {"status": "COMPLETED"}),
        ("invoice.paid__flat", {"status": ...}),
        ("invoice.paid__flat", {"external_id": ...}),
        ("refund.succeeded__card", {"data__payment_id": None}),
        ("dispute.lost__card", {"amount": "100000.00"}),
        ("dispute.lost__card", {"payment_id": None}),
        ("v3_payout.succeeded__idr", {"data__source_amount": "1500.50"}),
        ("v3_payout.succeeded__idr", {"data__source_amount": "150000.00"}),
        ("v3_payout.succeeded__idr", {"data__source_amount": ...}),
    ],
)
def test_what_cannot_be_used_is_kept_and_not_booked(name: str, changes: dict[str, Any]) -> None:
    """A missing id, an inexact amount, money of a shape that isn't translated."""
    notice = translated(name, **changes)

    assert notice.unusable is not None
    assert notice.facts == ()


@pytest.mark.parametrize(
    "event", ["payment_method.activated", "dispute.under_review", "v3_payout.pending_compliance", "x" * 500]
)
def test_events_without_money_are_ignored(event: str) -> None:
    """They are listed by name and book nothing."""
    notice = translated("payment.capture__captures", event=event)

    assert notice.ignored is not None
    assert notice.event_type == event[:255]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("payment.capture__captures", datetime(2026, 11, 28, 3, 0, 4, tzinfo=UTC)),
        ("payment.capture__virtual_account", datetime(2026, 11, 28, 3, 0, 5, 500_000, tzinfo=UTC)),
        ("invoice.paid__flat", datetime(2026, 11, 28, 5, 10, tzinfo=UTC)),
        ("dispute.lost__card", datetime(2026, 12, 22, 6, 0, tzinfo=UTC)),
    ],
)
def test_facts_have_the_time_of_the_world(name: str, expected: datetime) -> None:
    """Captures have a time of their own; others that of the object's last change, never the attempt's."""
    assert translated(name).facts[0].occurred_at == expected
