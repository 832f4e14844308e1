"""Midtrans: what its signature covers, what bounds the rest, and every status."""

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from payments import facts
from payments.facts import FactKind
from payments.gateways import base, midtrans
from tests.unit.gateways import cases
from tests.unit.gateways.signing import NOW

CARD: Final = "6f1f7c0e-3a52-4f0a-9d0e-51a1c2d3e4f5"
GOPAY: Final = "7b2c9f10-aaaa-4bbb-8ccc-dddd00000003"
CARD_MINOR: Final = 25_000_000  # IDR 250000.00: two decimals in ISO 4217
GOPAY_MINOR: Final = 6_000_000


class TestMidtrans(cases.GatewayCases):
    gateway = midtrans.Midtrans()
    secret = "Mid-server-of-the-tests"
    other_secret = "Mid-server-of-somebody-else"
    good_body = cases.payload("midtrans", "settlement__card")
    proof_header = None
    has_age = False
    has_several = False

    def proof_of(self, delivery: base.Delivery) -> str:
        return str(json.loads(delivery.body)["signature_key"])

    def with_proof(self, delivery: base.Delivery, proof: str | None) -> base.Delivery:
        body = cases.variant(delivery.body, signature_key=... if proof is None else proof)
        return dataclasses.replace(delivery, body=body)

    def tampered(self, delivery: base.Delivery) -> base.Delivery:
        return dataclasses.replace(delivery, body=cases.variant(delivery.body, gross_amount="250001.00"))

    @pytest.mark.parametrize("name", ["order_id", "status_code", "gross_amount"])
    @pytest.mark.parametrize("value", [..., None, 200, 250000.0, "", "1", True, ["200"], "é", "\ud800"])
    def test_every_signed_field_counts(self, name: str, value: Any) -> None:
        """Order, status code and amount are signed, as texts: another value or type is refused."""
        delivery = self.good()

        self.assert_refused(dataclasses.replace(delivery, body=cases.variant(delivery.body, **{name: value})))

    def test_amount_is_signed_as_written(self) -> None:
        """250000 and 250000.00 are the same money but not the same signature."""
        delivery = self.good()

        self.assert_refused(dataclasses.replace(delivery, body=cases.variant(delivery.body, gross_amount="250000")))

    def test_status_is_not_signed(self) -> None:
        """The very signature of a settlement verifies a cancellation: why the rest is bounded."""
        delivery = self.good()
        body = cases.variant(delivery.body, transaction_status="cancel")

        self.gateway.authenticate(dataclasses.replace(delivery, body=body), [self.secret])

    def test_subscription_without_signature_is_refused(self) -> None:
        """Notifications of subscriptions carry no signature: nothing proves them."""
        body = cases.payload("midtrans", "subscription_charge__without_signature")

        self.assert_refused(base.Delivery({}, body, NOW))


def translated(name: str, **changes: Any) -> base.Notice:
    """Return the notice of a payload with members changed."""
    body = cases.payload("midtrans", name)
    return notice_of(cases.variant(body, **changes) if changes else body)


def notice_of(body: bytes) -> base.Notice:
    verified = base.Verified.of(base.Delivery({}, body, NOW))
    (notice,) = midtrans.Midtrans().translate(verified, base.EndpointConfig(slug="midtrans"))
    cases.assert_sound([notice])
    return notice


def told(notice: base.Notice) -> list[tuple[FactKind, int | None]]:
    assert notice.unusable is None
    return [(fact.kind, fact.amount_minor) for fact in notice.facts]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pending__bank_transfer", [(FactKind.PAYMENT_PENDING, None)]),
        ("authorize__card", [(FactKind.PAYMENT_AUTHORIZED, CARD_MINOR)]),
        ("capture__card", [(FactKind.PAYMENT_CAPTURED, CARD_MINOR)]),
        ("capture__challenge", [(FactKind.PAYMENT_AUTHORIZED, CARD_MINOR)]),
        ("settlement__card", [(FactKind.PAYMENT_CAPTURED, CARD_MINOR)]),
        ("settlement__bank_transfer", [(FactKind.PAYMENT_CAPTURED, 12_000_000)]),
        ("settlement__store_without_fraud_status", [(FactKind.PAYMENT_CAPTURED, 7_550_000)]),
        ("settlement__gopay", [(FactKind.PAYMENT_CAPTURED, GOPAY_MINOR)]),
        (
            "deny__after_settlement",
            [(FactKind.PAYMENT_FAILED, None), (FactKind.PAYMENT_REVERSED, GOPAY_MINOR)],
        ),
        ("cancel__card", [(FactKind.PAYMENT_VOIDED, None), (FactKind.PAYMENT_REVERSED, CARD_MINOR)]),
        ("expire__bank_transfer", [(FactKind.PAYMENT_EXPIRED, None)]),
        ("failure__gopay", [(FactKind.PAYMENT_FAILED, None)]),
        (
            "partial_refund__requested",
            [(FactKind.REFUND_REQUESTED, 5_000_000), (FactKind.REFUND_REQUESTED, 3_000_000)],
        ),
        (
            "partial_refund__confirmed",
            [(FactKind.REFUND_SUCCEEDED, 5_000_000), (FactKind.REFUND_SUCCEEDED, 3_000_000)],
        ),
        ("refund__gopay", [(FactKind.REFUND_SUCCEEDED, GOPAY_MINOR)]),
        (
            "chargeback__card",
            [(FactKind.DISPUTE_OPENED, None), (FactKind.DISPUTE_FUNDS_WITHDRAWN, CARD_MINOR)],
        ),
    ],
)
def test_statuses_become_facts(name: str, expected: list[tuple[FactKind, int | None]]) -> None:
    """Each status says what its documentation says; amounts are whole rupiah with two decimals."""
    assert told(translated(name)) == expected


def test_keys_are_of_the_transaction() -> None:
    """A capture is known by its transaction, a refund by its number in it, a chargeback by its name."""
    keys = [
        facts.business_key("midtrans", fact)
        for name in ("settlement__card", "partial_refund__confirmed", "chargeback__card")
        for fact in translated(name).facts
        if fact.kind in facts.MONEY
    ]

    assert keys == [
        f"midtrans:{CARD}:captured",
        f"midtrans:{CARD}/1:refunded",
        f"midtrans:{CARD}/2:refunded",
        f"midtrans:{CARD}:withdrawn:chargeback",
    ]


def test_capture_and_settlement_are_one_fact() -> None:
    """They come as two events and have one business key and one amount."""
    capture, settlement = translated("capture__card"), translated("settlement__card")

    assert capture.event_id != settlement.event_id
    keys = {facts.business_key("b", notice.facts[0]) for notice in (capture, settlement)}
    assert len(keys) == 1
    assert capture.facts[0].amount_minor == settlement.facts[0].amount_minor


def test_reversal_corrects_the_capture() -> None:
    """Cancel and deny carry the key of the capture that they undo."""
    (captured,) = translated("settlement__card").facts
    reversed_ = translated("cancel__card").facts[1]

    assert facts.business_key("b", reversed_) == facts.business_key("b", captured)


def test_refund_has_two_events_and_one_key() -> None:
    """With the bank's confirmation it is another event about the same refund."""
    requested, confirmed = translated("partial_refund__requested"), translated("partial_refund__confirmed")

    assert requested.event_id != confirmed.event_id
    assert [fact.object_id for fact in requested.facts] == [fact.object_id for fact in confirmed.facts]


def test_refund_of_other_payment_types_needs_no_confirmation() -> None:
    """Only a card's refund waits for the bank; the confirmation of another changes nothing of the fact."""
    first = translated("refund__gopay").facts[0]
    second = translated("refund__gopay", refunds__0__bank_confirmed_at="2026-11-29 13:00:00").facts[0]

    assert first.kind is second.kind is FactKind.REFUND_SUCCEEDED
    assert facts.business_key("b", first) == facts.business_key("b", second)


def test_two_partial_refunds_of_one_amount_are_two_events() -> None:
    """Order, status and code are the same; the listed refunds make the difference."""
    body = cases.payload("midtrans", "partial_refund__confirmed")
    document = json.loads(body)
    second = [*document["refunds"], {**document["refunds"][0], "refund_chargeback_id": 3}]

    assert notice_of(body).event_id != notice_of(cases.variant(body, refunds=second)).event_id


def test_event_id_does_not_depend_on_the_order_of_refunds() -> None:
    """The same refunds listed otherwise are the same event with the same content."""
    body = cases.payload("midtrans", "partial_refund__confirmed")
    turned = cases.variant(body, refunds=list(reversed(json.loads(body)["refunds"])))

    assert notice_of(turned).event_id == notice_of(body).event_id
    assert notice_of(turned).fingerprint == notice_of(body).fingerprint


def test_event_id_ignores_what_is_not_money() -> None:
    """Another message or masked card is the same event with the same content."""
    plain, other = translated("capture__card"), translated("capture__card", status_message="x", eci="07")

    assert (plain.event_id, plain.fingerprint) == (other.event_id, other.fingerprint)


def test_payment_type_is_content() -> None:
    """It decides when a refund has succeeded: changed under the same event id it is other content."""
    card = translated("partial_refund__requested")
    other = translated("partial_refund__requested", payment_type="gopay")

    assert card.event_id == other.event_id
    assert {name for name in card.fingerprint if card.fingerprint[name] != other.fingerprint[name]} == {"payment_type"}


@pytest.mark.parametrize("order_id", ["ø" * 40, "o" * 255, "a:b|c%d", "é\x00"])
def test_any_order_id_gives_an_event_id(order_id: str) -> None:
    """Long and foreign order numbers still give 1 to 255 printable ASCII characters, another for each."""
    notice = translated("capture__card", order_id=order_id)
    other = translated("capture__card", order_id=order_id + "x")

    assert base.is_printable_ascii(notice.event_id)
    assert notice.event_id != other.event_id


def test_statuses_are_compared_whatever_their_case() -> None:
    """Capture, CAPTURE and capture are one event."""
    loud = translated("capture__card", transaction_status="CAPTURE", fraud_status="Accept")

    assert told(loud) == told(translated("capture__card"))
    assert loud.event_id == translated("capture__card").event_id


def test_order_is_the_merchants_reference() -> None:
    """Registrations know a payment by its order_id."""
    (fact,) = translated("settlement__card").facts

    assert (fact.payment, fact.reference, fact.reference_rank) == (CARD, "INV/2026/1101", 2)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("settlement__card", {}, datetime(2026, 11, 29, 9, 0, 10, tzinfo=UTC)),
        ("capture__card", {}, datetime(2026, 11, 28, 2, 15, tzinfo=UTC)),
        ("capture__card", {"transaction_time": ...}, NOW),
        ("partial_refund__requested", {}, datetime(2026, 11, 30, 1, 0, tzinfo=UTC)),
        ("partial_refund__confirmed", {}, datetime(2026, 11, 30, 4, 45, tzinfo=UTC)),
    ],
)
def test_times_are_of_jakarta(name: str, changes: dict[str, Any], expected: datetime) -> None:
    """Times carry no zone and are GMT+7; without any it is the time of arrival."""
    assert translated(name, **changes).facts[0].occurred_at == expected


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("capture__card", {"status_code": "201"}),
        ("settlement__card", {"status_code": "201"}),
        ("settlement__card", {"status_code": "2000"}),
        ("refund__gopay", {"status_code": "201"}),
        ("chargeback__card", {"status_code": "202"}),
        ("settlement__card", {"currency": "USD"}),
        ("settlement__card", {"currency": "idr"}),
        ("settlement__card", {"currency": 360}),
        ("capture__card", {"fraud_status": "deny"}),
        ("capture__card", {"fraud_status": "review"}),
        ("partial_chargeback__card", {}),
        ("partial_refund__confirmed", {"refunds__0__refund_amount": "220000.01"}),
        ("partial_refund__confirmed", {"refunds__0__refund_amount": "-1.00"}),
        ("partial_refund__confirmed", {"refunds__0__refund_amount": "0.00"}),
        ("partial_refund__confirmed", {"refunds__0__refund_amount": 1e-7}),
        ("partial_refund__confirmed", {"refunds__1__refund_chargeback_id": ...}),
        ("partial_refund__confirmed", {"refunds__1__refund_chargeback_id": ""}),
        ("partial_refund__confirmed", {"refunds__1__bank_confirmed_at": "soon"}),
        ("partial_refund__confirmed", {"refunds": []}),
        ("partial_refund__confirmed", {"refunds": ...}),
        ("partial_refund__confirmed", {"refunds": {"0": {}}}),
        ("settlement__card", {"gross_amount": "250000.001"}),
        ("settlement__card", {"gross_amount": "0.00"}),
        ("settlement__card", {"gross_amount": "2.5e5"}),
        ("settlement__card", {"gross_amount": "٢٥"}),
        ("settlement__card", {"transaction_id": ...}),
        ("settlement__card", {"transaction_id": "t" * 256}),
        ("settlement__card", {"transaction_id": "a\x00b"}),
        ("partial_refund__confirmed", {"transaction_id": "t" * 255}),
        ("settlement__card", {"settlement_time": "29/11/2026 16:00"}),
        ("settlement__card", {"settlement_time": "2026-11-29T16:00:10Z"}),
        ("settlement__card", {"transaction_status": ...}),
        ("settlement__card", {"transaction_status": 7}),
    ],
)
def test_what_the_signature_leaves_open_is_bounded(name: str, changes: dict[str, Any]) -> None:
    """No success in the signed code, another currency, refunds above the amount: kept, never booked."""
    notice = translated(name, **changes)

    assert notice.unusable is not None
    assert notice.facts == ()


def test_exactly_the_gross_amount_can_be_refunded() -> None:
    """The bound is the whole amount, not less."""
    notice = translated("partial_refund__confirmed", refunds__0__refund_amount="220000.00")

    assert sum(fact.amount_minor or 0 for fact in notice.facts) == CARD_MINOR


def test_absent_currency_is_rupiah() -> None:
    """Refund notifications and some payment types name no currency."""
    (fact,) = translated("settlement__card", currency=...).facts

    assert (fact.amount_minor, fact.currency) == (CARD_MINOR, "IDR")


def test_unknown_status_is_ignored() -> None:
    """A status that isn't known is listed under its name, and books nothing."""
    notice = translated("settlement__card", transaction_status="Renewed", currency="USD")

    assert notice.ignored is not None
    assert notice.event_type == "renewed"


def test_every_price_is_exact() -> None:
    """From 0.01 to 100.00 no price is a cent off."""
    for cents in range(1, 10_001):
        (fact,) = translated("settlement__card", gross_amount=f"{cents // 100}.{cents % 100:02}").facts

        assert fact.amount_minor == cents


def confirmed(name: str, **changes: Any) -> list[tuple[FactKind, int | None]]:
    body = cases.variant(cases.payload("midtrans", name), status_message="Success", **changes)
    document = base.parse_json(body)
    found = midtrans.confirmed_facts(document, order_id="INV/2026/1101", transaction_id=CARD, received_at=NOW)
    return [(fact.kind, fact.amount_minor) for fact in found]


def test_status_api_says_the_same_as_the_notification() -> None:
    """The status API answers in the notification's shape: the same facts with the same keys."""
    assert confirmed("settlement__card") == told(translated("settlement__card"))
    assert confirmed("cancel__card") == told(translated("cancel__card"))


def test_status_api_of_a_refunded_transaction_tells_the_capture_too() -> None:
    """It answers with the state of now: what has been refunded or charged back was captured."""
    captured = (FactKind.PAYMENT_CAPTURED, CARD_MINOR)

    assert confirmed("partial_refund__confirmed") == [
        captured,
        *told(translated("partial_refund__confirmed")),
    ]
    assert confirmed("chargeback__card")[0] == captured


@pytest.mark.parametrize("changes", [{"transaction_id": "another"}, {"order_id": "another"}, {"gross_amount": "?"}])
def test_status_of_another_transaction_is_unusable(changes: dict[str, Any]) -> None:
    """An answer is never trusted blindly: it must be about what was asked for, and make sense."""
    with pytest.raises(base.Unusable):
        confirmed("settlement__card", **changes)


@pytest.mark.parametrize("document", [None, [], "settlement", {}, {"status_code": "404"}])
def test_status_api_answer_of_another_shape_is_unusable(document: object) -> None:
    """A missing transaction, or anything else, confirms nothing."""
    with pytest.raises(base.Unusable):
        midtrans.confirmed_facts(document, order_id="o", transaction_id="t", received_at=NOW)
