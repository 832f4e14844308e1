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
from tests.unit.gateways.signing import NOW, SIGN

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


# The status API -------------------------------------------------------------------------------------------------------


def notified(name: str, **changes: Any) -> base.Verified:
    body = cases.payload("midtrans", name)
    return base.Verified.of(base.Delivery({}, cases.variant(body, **changes) if changes else body, NOW))


def answered(name: str, **changes: Any) -> bytes:
    """Return what the status API says: a notification's shape, signed."""
    body = cases.variant(cases.payload("midtrans", name), status_message="Success", **changes)
    return SIGN["midtrans"](body, TestMidtrans.secret).body


def confirmed(notification: base.Verified, answer: bytes) -> base.Notice:
    """Return the notice of a notification that was confirmed by this answer, as evidence of it would be read again."""
    verified = midtrans.Midtrans().confirmed(notification, answer, [TestMidtrans.secret])
    kept = json.loads(json.dumps({name: verified.headers[name] for name in midtrans.Midtrans.evidence_headers}))
    assert all(value.isprintable() for value in kept.values())
    again = base.Verified.of(base.Delivery(kept, verified.body, NOW))
    (notice,) = midtrans.Midtrans().translate(again, base.EndpointConfig(slug="midtrans", confirms=True))
    cases.assert_sound([notice])
    return notice


@pytest.mark.parametrize(
    "name", ["pending__bank_transfer", "capture__card", "settlement__card", "cancel__card", "expire__bank_transfer"]
)
def test_status_api_says_the_same_as_the_notification(name: str) -> None:
    """The status API answers in the notification's shape: the same event with the same facts."""
    assert confirmed(notified(name), answered(name)) == translated(name)


@pytest.mark.parametrize("name", ["partial_refund__confirmed", "refund__gopay", "chargeback__card"])
def test_status_api_of_a_refunded_transaction_tells_the_capture_too(name: str) -> None:
    """It answers with the state of now: what has been refunded or charged back was captured."""
    notification = translated(name)

    notice = confirmed(notified(name), answered(name))

    assert (notice.event_id, notice.fingerprint) == (notification.event_id, notification.fingerprint)
    assert notice.facts[0].kind is FactKind.PAYMENT_CAPTURED
    assert notice.facts[1:] == notification.facts


def test_refunds_of_a_charged_back_transaction_stay() -> None:
    """The transaction was refunded in part before the bank charged it back."""
    refunds = json.loads(cases.payload("midtrans", "partial_refund__confirmed"))["refunds"]

    notice = confirmed(notified("partial_refund__confirmed"), answered("chargeback__card", refunds=refunds))

    assert [kind for kind, _ in told(notice)] == [
        FactKind.PAYMENT_CAPTURED,
        *[FactKind.REFUND_SUCCEEDED] * 2,
        FactKind.DISPUTE_OPENED,
        FactKind.DISPUTE_FUNDS_WITHDRAWN,
    ]


@pytest.mark.parametrize(
    ("name", "later"),
    [
        ("authorize__card", "settlement__card"),
        ("authorize__card", "cancel__card"),
        ("capture__card", "settlement__card"),
        ("capture__card", "partial_refund__confirmed"),
        ("settlement__card", "cancel__card"),
        ("settlement__card", "chargeback__card"),
        ("partial_refund__requested", "partial_refund__confirmed"),
    ],
)
def test_status_api_may_be_further_than_the_notification(name: str, later: str) -> None:
    """A notification that comes late: what is so now is told, under the late one's event id."""
    notice = confirmed(notified(name), answered(later))

    assert notice.event_id == translated(name).event_id
    assert set(told(notice)) >= set(told(translated(later)))


@pytest.mark.parametrize(
    ("name", "behind"),
    [
        ("settlement__card", "authorize__card"),
        ("settlement__card", "capture__challenge"),
        ("cancel__card", "settlement__card"),
        ("chargeback__card", "settlement__card"),
        ("partial_refund__requested", "settlement__card"),
        ("partial_refund__confirmed", "partial_refund__requested"),
    ],
)
def test_status_api_that_is_behind_confirms_nothing(name: str, behind: str) -> None:
    """Too early, or forged: claimed now, the event id of the true notification of that status would be taken."""
    same = {name: json.loads(notified("settlement__card").body)[name] for name in ("transaction_id", "order_id")}

    with pytest.raises(base.NotConfirmed, match="bear it out"):
        confirmed(notified(name), answered(behind, **same))


@pytest.mark.parametrize(
    "changes",
    [
        {"transaction_id": "another"},
        {"order_id": "another"},
        {"gross_amount": "250000.01"},
        {"gross_amount": "?"},
        {"transaction_id": 7},
    ],
)
def test_status_of_another_transaction_confirms_nothing(changes: dict[str, Any]) -> None:
    """An answer is never trusted blindly: it must be about what was asked for, and about that much money."""
    with pytest.raises(base.NotConfirmed):
        confirmed(notified("settlement__card"), answered("settlement__card", **changes))


@pytest.mark.parametrize(
    "answer",
    [b"", b"null", b"[]", b"{}", b"<html>", b'{"status_code": "404"}', b'{"a": 1, "a": 2}', b"[" * 1000],
)
def test_status_api_answer_of_another_shape_confirms_nothing(answer: bytes) -> None:
    """A missing transaction, an error page, or anything else."""
    with pytest.raises(base.NotConfirmed):
        confirmed(notified("settlement__card"), answer)


def test_status_api_answer_is_verified_where_it_is_signed() -> None:
    """A signature under another key confirms nothing; an answer without one comes over TLS."""
    forged = SIGN["midtrans"](cases.payload("midtrans", "settlement__card"), TestMidtrans.other_secret).body

    with pytest.raises(base.NotConfirmed, match="signed"):
        confirmed(notified("settlement__card"), forged)
    assert confirmed(notified("settlement__card"), cases.payload("midtrans", "settlement__card")).facts


@pytest.mark.parametrize("changes", [{"currency": "USD"}, {"transaction_status": "renewed"}, {"status_code": "201"}])
def test_status_api_answer_that_cant_be_used_is_kept_for_staff(changes: dict[str, Any]) -> None:
    """It is about this transaction and this money, and books nothing."""
    notice = confirmed(notified("settlement__card"), answered("settlement__card", **changes))

    assert notice.facts == ()


def test_answer_is_no_header_that_can_be_sent() -> None:
    """Whoever could send it as a header would decide what is believed."""
    delivery = TestMidtrans().good()
    answer = {base.CONFIRMED: answered("settlement__card").decode()}

    with pytest.raises(base.VerificationFailed):
        midtrans.Midtrans().authenticate(dataclasses.replace(delivery, headers=answer), [TestMidtrans.secret])


def test_no_signature_is_kept_of_an_answer() -> None:
    """Evidence holds what decides about money, and no proof that could be used again."""
    verified = midtrans.Midtrans().confirmed(
        notified("settlement__card"), answered("settlement__card"), [TestMidtrans.secret]
    )

    assert set(json.loads(verified.headers[base.CONFIRMED])) <= {
        *("order_id", "status_code", "gross_amount", "transaction_id", "transaction_status", "fraud_status"),
        *("currency", "payment_type", "transaction_time", "settlement_time", "refunds"),
    }
