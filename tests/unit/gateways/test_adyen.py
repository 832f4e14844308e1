"""Adyen: batches of signed items, two ways of capturing, and disputes with several legs."""

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any, Final

import iso4217
import pytest

from payments import facts, money
from payments.facts import FactKind
from payments.gateways import adyen, base
from tests.unit.gateways import cases, signing
from tests.unit.gateways.signing import NOW

AUTO: Final = base.EndpointConfig(slug="adyen")
MANUAL: Final = base.EndpointConfig(slug="adyen", auto_capture=False)
ITEM: Final = "notificationItems__0__NotificationRequestItem__"
PAYMENT: Final = "AUTH000000000001"
ACCOUNT: Final = "SekaliShopNL"


class TestAdyen(cases.GatewayCases):
    gateway = adyen.Adyen()
    secret = "A1" * 32
    other_secret = "B2" * 32
    good_body = cases.payload("adyen", "AUTHORISATION__success")
    proof_header = None
    has_age = False
    has_several = False

    def proof_of(self, delivery: base.Delivery) -> str:
        item = json.loads(delivery.body)["notificationItems"][0]["NotificationRequestItem"]
        return str(item["additionalData"]["hmacSignature"])

    def with_proof(self, delivery: base.Delivery, proof: str | None) -> base.Delivery:
        value = ... if proof is None else proof
        body = cases.variant(delivery.body, **{f"{ITEM}additionalData__hmacSignature": value})
        return dataclasses.replace(delivery, body=body)

    def tampered(self, delivery: base.Delivery) -> base.Delivery:
        return self.changed(delivery, amount__value=12501)

    def changed(self, delivery: base.Delivery, **changes: Any) -> base.Delivery:
        """Return the signed delivery with members of its first item changed."""
        changes = {f"{ITEM}{path}": value for path, value in changes.items()}
        return dataclasses.replace(delivery, body=cases.variant(delivery.body, **changes))

    @pytest.mark.parametrize(
        "path",
        [
            *("pspReference", "originalReference", "merchantAccountCode", "merchantReference"),
            *("amount__value", "amount__currency", "eventCode", "success"),
        ],
    )
    @pytest.mark.parametrize("value", ["", "1", 1, True, 1.5, [], {}, "é", "\ud800", "a:b"])
    def test_every_signed_field_counts(self, path: str, value: Any) -> None:
        """Eight fields are signed: another value in any one refuses the delivery."""
        if (path, value) == ("originalReference", ""):
            return  # absent and empty are signed alike
        self.assert_refused(self.changed(self.good(), **{path: value}))

    def test_additional_data_is_not_signed(self) -> None:
        """What isn't signed can change, and decides nothing."""
        delivery = self.changed(self.good(), additionalData__authCode="999999", reason="other")

        verified = self.gateway.authenticate(delivery, [self.secret])

        (notice,) = self.gateway.translate(verified, self.endpoint)
        (original,) = self.translate(self.good_body)
        assert (notice.facts, notice.fingerprint) == (original.facts, original.fingerprint)

    def test_absent_null_and_empty_reference_are_signed_alike(self) -> None:
        """An absent field is signed as empty text."""
        for value in (..., None, ""):
            body = cases.variant(self.good_body, **{f"{ITEM}merchantReference": ""})
            delivery = self.changed(self.deliver(body), merchantReference=value)
            self.gateway.authenticate(delivery, [self.secret])

    def test_one_bad_item_refuses_the_whole_delivery(self) -> None:
        """Every item is verified, whichever place the bad one has; a good one beside it isn't used."""
        good = self.deliver(cases.payload("adyen", "batch__authorisation_and_refund"))
        self.gateway.authenticate(good, [self.secret])

        for place in (0, 1):
            item = f"notificationItems__{place}__NotificationRequestItem"
            changes: list[dict[str, Any]] = [{f"{item}__amount__value": 9}, {f"{item}__additionalData": ...}]
            for change in changes:
                self.assert_refused(dataclasses.replace(good, body=cases.variant(good.body, **change)))

    def test_items_may_be_signed_with_different_keys(self) -> None:
        """While a key is rotated old and new signatures arrive for a while, each good for its item."""
        document = json.loads(cases.payload("adyen", "batch__authorisation_and_refund"))
        for wrapper, secret in zip(document["notificationItems"], (self.secret, self.other_secret), strict=True):
            item = wrapper["NotificationRequestItem"]
            item.setdefault("additionalData", {})["hmacSignature"] = signing.adyen_signature(item, secret)
        delivery = base.Delivery({}, json.dumps(document).encode(), NOW)

        self.gateway.authenticate(delivery, [self.secret, self.other_secret])
        self.assert_refused(delivery, [self.secret])

    @pytest.mark.parametrize("wrong", ["", "not hex", "ABC", "é", "0x12", "A1" * 31 + "A"])
    def test_mistyped_secret_leaves_the_good_one_working(self, wrong: str) -> None:
        """A secret that isn't hexadecimal verifies nothing and takes no other with it."""
        self.gateway.authenticate(self.good(), [wrong, self.secret])
        self.assert_refused(self.good(), [wrong])

    def test_colon_stands_in_the_merchants_reference_only(self) -> None:
        """Fields are joined by colons: a second field that holds one could be cut elsewhere."""
        body = cases.variant(self.good_body, **{f"{ITEM}merchantReference": "order:\\1/2"})
        delivery = self.deliver(body)
        self.gateway.authenticate(delivery, [self.secret])

        moved = self.changed(delivery, merchantAccountCode=f"{ACCOUNT}:order", merchantReference="\\1/2")
        self.assert_refused(moved)

    @pytest.mark.parametrize("items", [..., None, [], {}, [None], [{}], [{"NotificationRequestItem": None}]])
    def test_delivery_without_items_is_refused(self, items: Any) -> None:
        """Where nothing is signed nothing is proved."""
        body = cases.variant(self.good().body, notificationItems=items)

        self.assert_refused(base.Delivery({}, body, NOW))

    def test_everything_is_acknowledged_alike(self) -> None:
        """Adyen wants one word, whatever became of the event."""
        for outcome in ("applied", "duplicate", "ignored", "quarantined"):
            reply = self.gateway.acknowledge("e", outcome)
            assert (reply.status, reply.body, reply.content_type) == (200, b"[accepted]", "text/plain")


def notices_of(body: bytes, endpoint: base.EndpointConfig = AUTO) -> list[base.Notice]:
    notices = adyen.Adyen().translate(base.Verified.of(base.Delivery({}, body, NOW)), endpoint)
    cases.assert_sound(notices)
    return notices


def translated(name: str, endpoint: base.EndpointConfig = AUTO, **changes: Any) -> base.Notice:
    """Return the notice of a payload with members of its item changed."""
    changes = {f"{ITEM}{path}": value for path, value in changes.items()}
    (notice,) = notices_of(cases.variant(cases.payload("adyen", name), **changes), endpoint)
    return notice


def told(notice: base.Notice) -> list[tuple[str, str, int | None]]:
    """Return kind, key (or object, where there is no money) and amount of each fact."""
    assert notice.unusable is None
    return [
        (
            fact.kind.value,
            facts.business_key("b", fact) if fact.kind in facts.MONEY else fact.object_id,
            fact.amount_minor,
        )
        for fact in notice.facts
    ]


AUTHORIZED: Final = ("PaymentAuthorized", PAYMENT, 12_500)
CAPTURE_KEY: Final = f"b:{ACCOUNT}/{PAYMENT}:captured"
REFUND_KEY: Final = f"b:{ACCOUNT}/PSP00000000000C1:refunded"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("AUTHORISATION__success", [AUTHORIZED, ("PaymentCaptured", CAPTURE_KEY, 12_500)]),
        ("AUTHORISATION__refused", [("PaymentFailed", "AUTH000000000002", None)]),
        ("CAPTURE__success", [("PaymentCaptured", CAPTURE_KEY, 12_500)]),
        ("CAPTURE_FAILED__scheme", [("PaymentReversed", CAPTURE_KEY, 12_500)]),
        (
            "CANCELLATION__success",
            [("PaymentVoided", PAYMENT, None), ("PaymentReversed", CAPTURE_KEY, 12_500)],
        ),
        ("EXPIRE__authorisation", [("PaymentExpired", PAYMENT, None)]),
        ("REFUND__success", [("RefundSucceeded", REFUND_KEY, 2_500)]),
        ("REFUND__failure", [("RefundFailed", REFUND_KEY, 2_500)]),
        ("REFUND_FAILED__bank", [("RefundFailed", REFUND_KEY, 2_500)]),
        ("REFUNDED_REVERSED__bank", [("RefundFailed", REFUND_KEY, 2_500)]),
        ("NOTIFICATION_OF_CHARGEBACK__fraud", [("DisputeOpened", "DISPUTE000000001", None)]),
        ("CHARGEBACK__fraud", [("DisputeFundsWithdrawn", "b:DISPUTE000000001:withdrawn:1", 5_000)]),
        (
            "CHARGEBACK_REVERSED__defended",
            [("DisputeFundsReturned", "b:DISPUTE000000001:returned:1", 5_000)],
        ),
        ("SECOND_CHARGEBACK__fraud", [("DisputeFundsWithdrawn", "b:DISPUTE000000001:withdrawn:2", 5_000)]),
        ("PREARBITRATION_WON__fraud", [("DisputeWon", "DISPUTE000000001", None)]),
        ("PREARBITRATION_LOST__fraud", [("DisputeLost", "b:DISPUTE000000001:lost", 5_000)]),
    ],
)
def test_events_under_auto_capture(name: str, expected: list[tuple[str, str, int | None]]) -> None:
    """The default: an authorisation is a capture, and its CAPTURE the same fact once more."""
    assert told(translated(name)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("AUTHORISATION__success", [AUTHORIZED]),
        ("AUTHORISATION__refused", [("PaymentFailed", "AUTH000000000002", None)]),
        ("CAPTURE__success", [("PaymentCaptured", f"b:{ACCOUNT}/PSP00000000000A1:captured", 12_500)]),
        ("CAPTURE__partial", [("PaymentCaptured", f"b:{ACCOUNT}/PSP00000000000A2:captured", 4_500)]),
        ("CAPTURE_FAILED__scheme", [("PaymentReversed", f"b:{ACCOUNT}/PSP00000000000A1:captured", 12_500)]),
        ("CANCELLATION__success", [("PaymentVoided", PAYMENT, None)]),
        ("REFUND__success", [("RefundSucceeded", REFUND_KEY, 2_500)]),
        ("REFUND__failure", [("RefundFailed", REFUND_KEY, 2_500)]),
    ],
)
def test_events_under_manual_capture(name: str, expected: list[tuple[str, str, int | None]]) -> None:
    """An authorisation is only that; each capture has a key of its own and can fail alone."""
    assert told(translated(name, MANUAL)) == expected


def test_payment_is_the_original_of_a_modification() -> None:
    """Captures, refunds and disputes belong to the payment they modify."""
    for name in ("CAPTURE__success", "REFUND__success", "CHARGEBACK__fraud", "CANCELLATION__success"):
        assert {fact.payment for fact in translated(name).facts} == {PAYMENT}


def test_payment_of_an_authorisation_is_itself() -> None:
    """An authorisation modifies nothing, also where it names another one that it follows."""
    found = translated("AUTHORISATION__success", originalReference="AUTH000000000000").facts

    assert {fact.payment for fact in found} == {PAYMENT}


def test_dispute_without_an_original_is_about_its_own_reference() -> None:
    """Later steps of a dispute can name no original payment."""
    (fact,) = translated("CHARGEBACK_REVERSED__defended", originalReference=...).facts

    assert fact.payment == fact.object_id == "DISPUTE000000001"


def test_lost_prearbitration_implies_the_second_withdrawal() -> None:
    """The first leg came back: what is lost is the second."""
    (fact,) = translated("PREARBITRATION_LOST__fraud").facts

    assert fact.part == "2"


@pytest.mark.parametrize("endpoint", [AUTO, MANUAL], ids=["auto", "manual"])
@pytest.mark.parametrize("name", ["CAPTURE__failure", "CANCELLATION__failure"])
def test_modification_that_failed_changes_nothing(name: str, endpoint: base.EndpointConfig) -> None:
    """A capture or cancellation that was refused leaves the payment as it is."""
    assert translated(name, endpoint).ignored is not None


def test_other_mode_is_ignored_in_both_directions() -> None:
    """A test event at a live endpoint books nothing, nor a live one at a test endpoint."""
    test_endpoint = base.EndpointConfig(slug="adyen", live=False)

    assert translated("AUTHORISATION__test_mode").ignored is not None
    assert translated("AUTHORISATION__success", test_endpoint).ignored is not None
    assert translated("AUTHORISATION__test_mode", test_endpoint).facts


@pytest.mark.parametrize("name", ["REPORT_AVAILABLE__settlement", "AUTHORISATION__nothing"])
def test_events_without_money_are_ignored(name: str) -> None:
    """Reports are no money, and an authorisation of nothing only checked a card."""
    assert translated(name).ignored is not None


def test_unknown_event_is_listed_by_its_name() -> None:
    """A new event code is how a gateway renames money: the name is kept."""
    notice = translated("CAPTURE__success", eventCode="CAPTURE_SOMEHOW")

    assert (notice.ignored is not None, notice.event_type) == (True, "CAPTURE_SOMEHOW")


def test_event_id_is_code_reference_success_and_account() -> None:
    """Adyen gives none; success and failure of one request are two events."""
    success, failure = translated("REFUND__success"), translated("REFUND__failure")

    assert success.event_id == f"REFUND:PSP00000000000C1:true:{ACCOUNT}"
    assert failure.event_id == f"REFUND:PSP00000000000C1:false:{ACCOUNT}"
    elsewhere = translated("REFUND__success", merchantAccountCode="SekaliShopDE")
    assert elsewhere.event_id != success.event_id


def test_signed_fields_are_the_content() -> None:
    """A copy with newer additionalData or another reason is the same content; another amount is not."""
    first = translated("REFUND__success")

    assert translated("REFUND__success", reason="later", additionalData={"a": "b"}).fingerprint == first.fingerprint
    other = translated("REFUND__success", amount__value=2501)
    assert (other.event_id, other.fingerprint.keys()) == (first.event_id, first.fingerprint.keys())
    assert {name for name in first.fingerprint if first.fingerprint[name] != other.fingerprint[name]} == {"value"}


def test_each_item_of_a_batch_is_an_event() -> None:
    """Its evidence is a delivery of its own, which translates to the same notice."""
    notices = notices_of(cases.payload("adyen", "batch__authorisation_and_refund"))

    assert [notice.event_type for notice in notices] == ["AUTHORISATION", "REFUND"]
    for notice in notices:
        assert notice.evidence is not None
        (alone,) = notices_of(notice.evidence)
        assert alone == dataclasses.replace(notice, evidence=None)


def test_unusable_item_does_not_hurt_its_neighbour() -> None:
    """One notice of a batch is quarantined, the other booked."""
    body = cases.variant(
        cases.payload("adyen", "batch__authorisation_and_refund"),
        notificationItems__1__NotificationRequestItem__amount__currency="euro",
    )

    authorisation, refund = notices_of(body)

    assert authorisation.facts
    assert refund.unusable is not None


def test_merchant_reference_is_the_reference() -> None:
    """Registrations know a payment by merchantReference; without one there is none."""
    (fact, _) = translated("AUTHORISATION__success").facts
    assert (fact.reference, fact.reference_rank) == ("order-ad-1", 2)

    (fact, _) = translated("AUTHORISATION__success", merchantReference="").facts
    assert (fact.reference, fact.reference_rank) == (None, 0)


def test_time_is_the_events() -> None:
    """eventDate carries its zone; without it the time of arrival stands in."""
    (fact,) = translated("CAPTURE__success").facts
    assert fact.occurred_at == datetime(2026, 11, 28, 10, 0, tzinfo=UTC)

    (fact,) = translated("CAPTURE__success", eventDate=...).facts
    assert fact.occurred_at == NOW


# https://docs.adyen.com/development-resources/currency-codes, where it differs from ISO 4217
DIFFERENT: Final = {"CVE": 0, "IDR": 0, "CLP": 2, "ISK": 2}


def test_exponents_are_iso_4217s_with_four_exceptions() -> None:
    """Of the currencies that Adyen names; those it doesn't sell (BIF) are 2 on the wire by default."""
    gateway = adyen.Adyen()

    for currency in iso4217.Currency:
        if currency.exponent in (None, 4) or currency.code in {"BIF", "UYI"}:
            continue
        assert gateway.exponent(currency.code) == DIFFERENT.get(currency.code, currency.exponent), currency.code


@pytest.mark.parametrize(
    ("currency", "value", "minor"),
    [
        *[("IDR", 250_000, 25_000_000), ("CVE", 7, 700), ("CLP", 500_000, 5_000), ("ISK", 100, 1)],
        *[("JPY", 500, 500), ("KWD", 1_234, 1_234), ("EUR", 1, 1)],
    ],
)
def test_amounts_are_converted_to_iso_4217(currency: str, value: int, minor: int) -> None:
    """The rupiah gains two zeros, the Chilean peso loses them."""
    notice = translated("AUTHORISATION__success", amount={"currency": currency, "value": value})

    assert [fact.amount_minor for fact in notice.facts] == [minor, minor]
    assert money.exponent(currency) == iso4217.Currency(currency).exponent


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("CANCEL_OR_REFUND__refund", {}),
        ("CANCEL_OR_REFUND__refund", {"success": "false"}),
        ("CAPTURE__success", {"eventCode": "REFUND_WITH_DATA"}),
        ("CAPTURE__success", {"eventCode": "PAYOUT_THIRDPARTY"}),
        ("CAPTURE__success", {"eventCode": "DISPUTE_DEFENSE_PERIOD_ENDED"}),
        ("CAPTURE__success", {"success": "TRUE"}),
        ("CAPTURE__success", {"success": ""}),
        ("CAPTURE__success", {"originalReference": ...}),
        ("REFUND__success", {"originalReference": ""}),
        ("CANCELLATION__success", {"originalReference": None}),
        ("CAPTURE__success", {"pspReference": "p" * 256, "eventCode": "CHARGEBACK"}),
        ("CAPTURE__success", {"merchantAccountCode": ""}),
        ("CAPTURE__success", {"merchantAccountCode": "m" * 250}),
        ("CAPTURE__success", {"merchantReference": "r" * 256}),
        ("CAPTURE__success", {"amount__value": "12500"}),
        ("CAPTURE__success", {"amount__value": 0}),
        ("CAPTURE__success", {"amount__value": -1}),
        ("CAPTURE__success", {"amount__value": 12500.0}),
        ("CAPTURE__success", {"amount__value": ...}),
        ("CAPTURE__success", {"amount__value": 10**18}),
        ("CAPTURE__success", {"amount__currency": "eur"}),
        ("CAPTURE__success", {"amount": {"currency": "CLP", "value": 101}}),
        ("CAPTURE__success", {"amount": {"currency": "IDR", "value": 2**53 - 1}}),
        ("CAPTURE__success", {"amount": None}),
        ("CAPTURE__success", {"eventDate": "2026-11-28T11:00:00"}),
    ],
)
def test_what_cannot_be_used_is_kept_and_not_booked(name: str, changes: dict[str, Any]) -> None:
    """Money that isn't translated or not exact, a modification of nothing, an id that is none."""
    notice = translated(name, **changes)

    assert notice.unusable is not None
    assert notice.facts == ()


@pytest.mark.parametrize("live", [..., None, True, "TRUE", "yes"])
def test_mode_must_be_told(live: Any) -> None:
    """Without a mode nobody knows whether it was money."""
    (notice,) = notices_of(cases.variant(cases.payload("adyen", "CAPTURE__success"), live=live))

    assert notice.unusable is not None


def test_failed_and_reversed_refunds_correct_the_refund() -> None:
    """All of them name the refund's own reference, so each undoes it."""
    names = ("REFUND__failure", "REFUND_FAILED__bank", "REFUNDED_REVERSED__bank")
    kinds = {translated(name).facts[0].kind for name in names}

    assert kinds == {FactKind.REFUND_FAILED}
