"""Razorpay's events: what they prove, and what they say happened."""

import dataclasses
from typing import Any

import pytest

from payments.facts import Fact, FactKind, business_key
from payments.gateways import base, razorpay
from tests.unit.gateways import cases
from tests.unit.gateways.signing import EVENT_ID, NOW

GATEWAY = razorpay.Razorpay()
HEADERS = {"x-razorpay-event-id": EVENT_ID}


def notice_of(name: str, *, endpoint: base.EndpointConfig | None = None, **changes: Any) -> base.Notice:
    """Translate tests/payloads/razorpay/<name>.json, with members of entities changed: payment__fee=5."""
    named = {}
    for path, value in changes.items():
        entity, member = path.split("__", 1)
        named[f"payload__{entity}__entity__{member}"] = value
    body = cases.variant(cases.payload("razorpay", name), **named)
    (notice,) = GATEWAY.translate(
        base.Verified.of(base.Delivery(HEADERS, body, NOW)), endpoint or base.EndpointConfig(slug="razorpay")
    )
    return notice


def fact_of(name: str, **changes: Any) -> Fact:
    """Return the first fact of a payload: beside a capture stands its fee."""
    notice = notice_of(name, **changes)
    assert notice.unusable is None
    return notice.facts[0]


def money_of(name: str, **changes: Any) -> list[tuple[FactKind, int | None, str | None]]:
    """Return kind, amount and currency of the facts of a payload."""
    return [(fact.kind, fact.amount_minor, fact.currency) for fact in notice_of(name, **changes).facts]


def keys_of(name: str, **changes: Any) -> list[str]:
    """Return the business keys of the facts of a payload."""
    return [business_key("razorpay", fact) for fact in notice_of(name, **changes).facts]


class TestRazorpay(cases.GatewayCases):
    gateway = GATEWAY
    secret = "the-razorpay-tests-own-secret"
    other_secret = "the-secret-before-that"
    good_body = cases.payload("razorpay", "payment.captured__typical")
    proof_header = "x-razorpay-signature"
    has_age = False
    has_several = False

    def test_event_id_is_the_headers(self) -> None:
        """The header names the event, exactly."""
        verified = self.gateway.authenticate(self.good(), [self.secret])

        assert [notice.event_id for notice in self.gateway.translate(verified, self.endpoint)] == [EVENT_ID]

    def test_without_the_header_the_body_names_the_event(self) -> None:
        """A delivery without an event id is known by its bytes: a re-delivery is the same event."""
        delivery = self.good()
        bare = dataclasses.replace(delivery, headers={self.proof_header: self.proof_of(delivery)})

        verified = self.gateway.authenticate(bare, [self.secret])

        (notice,) = self.gateway.translate(verified, self.endpoint)
        assert notice.event_id == base.body_event_id(delivery.body)
        assert notice.facts

    @pytest.mark.parametrize("event_id", ["", "é", "a\x7fb", "x" * 256])
    def test_event_id_that_cannot_be_kept_is_refused(self, event_id: str) -> None:
        """A header id that isn't 1 to 255 printable ASCII characters is refused, like at every gateway."""
        delivery = self.good()
        headers = {**delivery.headers, "x-razorpay-event-id": event_id}

        self.assert_refused(dataclasses.replace(delivery, headers=headers))


# --- captures


@pytest.mark.parametrize("name", ["payment.captured__typical", "order.paid__paid", "payment_link.paid__paid"])
def test_one_capture_has_one_key_whoever_reports_it(name: str) -> None:
    """A captured payment, its paid order and its paid link are the same money, and the same fee."""
    assert money_of(name) == [(FactKind.PAYMENT_CAPTURED, 50000, "INR"), (FactKind.FEE_ASSESSED, 1180, "INR")]
    assert keys_of(name) == [
        "razorpay:pay_SekaliA0000001:captured",
        "razorpay:pay_SekaliA0000001:fee",
    ]


def test_fee_includes_its_tax() -> None:
    """`fee` holds `tax` already: it isn't added again."""
    assert money_of("payment.captured__typical", payment__tax=999)[1] == (FactKind.FEE_ASSESSED, 1180, "INR")


@pytest.mark.parametrize("fee", [0, None, ...])
def test_no_fee_books_none(fee: object) -> None:
    """A free capture is a capture alone."""
    assert money_of("payment.captured__typical", payment__fee=fee) == [(FactKind.PAYMENT_CAPTURED, 50000, "INR")]


@pytest.mark.parametrize("fee", [-1, "1180", 11.8, True, [1180]])
def test_fee_that_is_no_amount_makes_the_event_unusable(fee: object) -> None:
    """One unusable fact quarantines its event: a capture isn't booked without its fee."""
    assert notice_of("payment.captured__typical", payment__fee=fee).unusable is not None


def test_fee_of_an_international_payment_is_in_the_base_currency() -> None:
    """The customer pays in dollars, Razorpay settles and charges in rupees."""
    assert money_of("payment.captured__usd") == [
        (FactKind.PAYMENT_CAPTURED, 2000, "USD"),
        (FactKind.FEE_ASSESSED, 4980, "INR"),
    ]


def test_three_decimal_currency() -> None:
    """KWD has three digits on the wire, as in the ledger."""
    assert money_of("payment.captured__kwd") == [(FactKind.PAYMENT_CAPTURED, 295990, "KWD")]


@pytest.mark.parametrize("amount", [0, ..., None, "50000", 500.0, True, 2**53])
def test_amount_that_is_no_exact_integer_is_unusable(amount: object) -> None:
    """No amount is guessed or rounded."""
    assert notice_of("payment.captured__typical", payment__amount=amount).unusable is not None


# --- other states of a payment


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("payment.pending__cash_on_delivery", (FactKind.PAYMENT_PENDING, None, None)),
        ("payment.authorized__authorized", (FactKind.PAYMENT_AUTHORIZED, 50000, "INR")),
        ("payment.failed__attempt", (FactKind.PAYMENT_FAILED, None, None)),
    ],
)
def test_state_of_a_payment(name: str, expected: tuple[FactKind, int | None, str | None]) -> None:
    """A failed payment may still be authorized: all states are known by the payment's id."""
    assert money_of(name) == [expected]
    assert fact_of(name).payment == "pay_SekaliA0000001"


# --- refunds


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("refund.created__normal", FactKind.REFUND_REQUESTED),
        ("refund.processed__normal", FactKind.REFUND_SUCCEEDED),
        ("refund.failed__normal", FactKind.REFUND_FAILED),
    ],
)
def test_refund_is_what_the_event_says(name: str, kind: FactKind) -> None:
    """A created refund is a request, even where its snapshot says processed already."""
    fact = fact_of(name)

    assert (fact.kind, fact.amount_minor, fact.payment) == (kind, 20000, "pay_SekaliA0000001")


def test_failed_refund_corrects_the_key_of_the_refund() -> None:
    """A failure is known by what it corrects."""
    assert keys_of("refund.failed__normal") == keys_of("refund.processed__normal")
    assert keys_of("refund.failed__normal") == ["razorpay:rfnd_SekaliA000001:refunded"]


def test_refund_of_an_uncaptured_payment_is_a_release() -> None:
    """What was never captured goes back by itself: nobody here ever had that money."""
    assert money_of("refund.processed__never_captured") == [(FactKind.PAYMENT_VOIDED, None, None)]
    assert notice_of("refund.created__never_captured").ignored is not None


def test_refund_without_the_payments_entity_is_a_refund() -> None:
    """Only a payment that says it was never captured makes a release of a refund."""
    notice = notice_of("refund.processed__normal", payment__captured=None)

    assert [fact.kind for fact in notice.facts] == [FactKind.REFUND_SUCCEEDED]


# --- disputes


def test_dispute_opened_moves_nothing() -> None:
    """Money is deducted when the dispute is lost."""
    assert money_of("payment.dispute.created__chargeback") == [(FactKind.DISPUTE_OPENED, None, None)]


def test_lost_dispute_implies_its_withdrawal() -> None:
    """No event of its own tells of the deduction: lost names leg 1."""
    fact = fact_of("payment.dispute.lost__chargeback")

    assert (fact.kind, fact.object_id, fact.part) == (FactKind.DISPUTE_LOST, "disp_SekaliA000001", "1")
    assert (fact.amount_minor, fact.payment) == (10000, "pay_SekaliA0000001")


def test_lost_dispute_is_what_was_deducted() -> None:
    """Of a dispute lost in part only the deduction moves."""
    assert money_of("payment.dispute.lost__partly") == [(FactKind.DISPUTE_LOST, 4000, "INR")]


def test_deduction_in_another_currency_is_not_the_disputed_amount() -> None:
    """83000 paise are no 83000 cents: more than was disputed is never taken."""
    assert money_of("payment.dispute.lost__usd") == [(FactKind.DISPUTE_LOST, 1000, "USD")]


@pytest.mark.parametrize("deducted", [0, None, ...])
def test_lost_dispute_without_a_deduction_is_the_disputed_amount(deducted: object) -> None:
    """Lost means withdrawn."""
    assert money_of("payment.dispute.lost__chargeback", dispute__amount_deducted=deducted) == [
        (FactKind.DISPUTE_LOST, 10000, "INR")
    ]


@pytest.mark.parametrize(
    ("name", "kind", "amount"),
    [
        ("payment.dispute.won__chargeback", FactKind.DISPUTE_WON, None),
        ("payment.dispute.closed__no_deduction", FactKind.DISPUTE_WON, None),
        ("payment.dispute.closed__deducted", FactKind.DISPUTE_LOST, 10000),
    ],
)
def test_end_of_a_dispute(name: str, kind: FactKind, amount: int | None) -> None:
    """Closed without a verdict is lost where money was deducted."""
    fact = fact_of(name)

    assert (fact.kind, fact.amount_minor) == (kind, amount)


# --- settlements


def test_settlement_is_a_payout_in_rupees() -> None:
    """A settlement names no currency."""
    assert money_of("settlement.processed__bank") == [(FactKind.PAYOUT_PAID, 18820, "INR")]
    assert keys_of("settlement.processed__bank") == ["razorpay:setl_SekaliA000001:paid"]
    assert fact_of("settlement.processed__bank").payment is None


# --- references


@pytest.mark.parametrize(
    ("name", "reference", "rank"),
    [
        ("payment.captured__typical", "order-2001", 2),
        ("order.paid__noted_on_order", "order-2001", 2),
        ("payment.captured__without_notes", "order_SekaliA00001", 1),
    ],
)
def test_reference_is_noted_or_razorpays_order(name: str, reference: str, rank: int) -> None:
    """`notes.order_id` is the merchant's own; Razorpay's order stands in for it."""
    fact = fact_of(name)

    assert (fact.reference, fact.reference_rank) == (reference, rank)


def test_payment_without_an_order_has_no_reference() -> None:
    """Payments may come without an order."""
    fact = fact_of("payment.captured__without_notes", payment__order_id=None)

    assert (fact.reference, fact.reference_rank) == (None, 0)


# --- whose event it is


@pytest.mark.parametrize(("account", "books"), [("", True), ("acc_SekaliShop01", True), ("acc_Else", False)])
def test_event_of_another_account_is_ignored(account: str, books: bool) -> None:
    """An endpoint that names its account books nothing of others."""
    endpoint = base.EndpointConfig(slug="razorpay", external_account=account)

    notice = notice_of("payment.captured__typical", endpoint=endpoint)

    assert (bool(notice.facts), notice.ignored is None) == (books, books)


def test_unknown_type_is_ignored_by_name() -> None:
    """A type that says nothing about money is listed with its name."""
    notice = notice_of("payment.downtime.started__unknown")

    assert notice.ignored is not None
    assert notice.event_type == "payment.downtime.started"


def test_money_that_is_not_translated_is_unusable() -> None:
    """Transfers to linked accounts move money that nobody has given a place yet."""
    assert notice_of("transfer.processed__untranslated").unusable is not None


# --- fingerprint


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"payment__amount_refunded": 100, "payment__email": "x@example.com"}, set()),
        ({"payment__id": "pay_Else"}, {"id"}),
        ({"payment__amount": 1}, {"amount"}),
        ({"payment__currency": "USD"}, {"currency"}),
        ({"payment__status": "refunded"}, {"status"}),
        ({"payment__fee": 1}, {"fee"}),
    ],
)
def test_content_is_the_principal_entity(changes: dict[str, Any], differing: set[str]) -> None:
    """What is named of the payment is content; the rest of its snapshot may drift."""
    ours = notice_of("payment.captured__typical").fingerprint
    other = notice_of("payment.captured__typical", **changes).fingerprint

    assert {name for name in ours if ours[name] != other[name]} == differing


@pytest.mark.parametrize(
    ("name", "principal"),
    [
        ("refund.processed__normal", "refund"),
        ("payment.dispute.lost__chargeback", "dispute"),
        ("settlement.processed__bank", "settlement"),
        ("order.paid__paid", "payment"),
    ],
)
def test_principal_is_what_the_event_is_about(name: str, principal: str) -> None:
    """Refunds and disputes come with their payment, whose state is not their content."""
    ours = notice_of(name).fingerprint
    other: dict[str, Any] = {f"{principal}__amount": 1}

    assert notice_of(name, **other).fingerprint != ours
    if principal in ("refund", "dispute"):
        assert notice_of(name, payment__status="refunded").fingerprint == ours
