"""The demo's vocabulary over Standard Webhooks."""

from typing import Any

import pytest

from payments.facts import Fact, FactKind, business_key
from payments.gateways import base, standard_webhooks
from tests.unit.gateways import cases, signing

GATEWAY = standard_webhooks.StandardWebhooks()
HEADERS = {"webhook-id": signing.EVENT_ID, "webhook-timestamp": str(int(signing.NOW.timestamp()))}


def notice_of(name: str, **changes: Any) -> base.Notice:
    """Translate tests/payloads/standard_webhooks/<name>.json with members changed."""
    body = cases.variant(cases.payload("standard_webhooks", name), **changes)
    verified = base.Verified.of(base.Delivery(HEADERS, body, signing.NOW))
    (notice,) = GATEWAY.translate(verified, base.EndpointConfig(slug="demo"))
    return notice


def fact_of(name: str, **changes: Any) -> Fact:
    """Return the one fact of a payload."""
    notice = notice_of(name, **changes)
    assert notice.unusable is None
    (fact,) = notice.facts
    return fact


class TestStandardWebhooks(cases.GatewayCases):
    gateway = GATEWAY
    secret = "whsec_dGVzdHMtb2YtdGhlLWRlbW8tZW5kcG9pbnQtMDA="
    other_secret = "whsec_YW5vdGhlci1zZWNyZXQtb2YtdGhlLXRlc3RzLTA="
    good_body = cases.payload("standard_webhooks", "payment.captured__typical")
    proof_header = "webhook-signature"
    has_age = True
    has_several = True

    def joined(self, proofs: list[str]) -> str:
        return " ".join(proofs)

    @pytest.mark.parametrize("header", ["webhook-id", "webhook-timestamp"])
    def test_changed_header_is_refused(self, header: str) -> None:
        """Id and time are signed with the body."""
        delivery = self.good()
        headers = {**delivery.headers, header: delivery.headers[header] + "0"}

        self.assert_refused(base.Delivery(headers, delivery.body, delivery.received_at))

    @pytest.mark.parametrize("event_id", ["", "x" * 256, "é", "a\nb", "a\x00"])
    def test_event_id_that_cannot_be_kept_is_refused(self, event_id: str) -> None:
        """An id that isn't 1 to 255 printable ASCII characters is refused, even when it is signed."""
        signed = signing.standard_webhooks(self.good_body, self.secret, event_id=event_id)

        self.assert_refused(base.Delivery(signed.headers, signed.body, signing.NOW))


@pytest.mark.parametrize(
    ("name", "kind", "key"),
    [
        ("payment.pending__open", FactKind.PAYMENT_PENDING, None),
        ("payment.authorized__story", FactKind.PAYMENT_AUTHORIZED, None),
        ("payment.captured__typical", FactKind.PAYMENT_CAPTURED, "demo:pay_sw_1001:captured"),
        ("payment.captured__story_second", FactKind.PAYMENT_CAPTURED, "demo:pay_sw_story:captured:cap_2"),
        ("payment.failed__attempt", FactKind.PAYMENT_FAILED, None),
        ("payment.expired__late", FactKind.PAYMENT_EXPIRED, None),
        ("payment.voided__hold", FactKind.PAYMENT_VOIDED, None),
        ("payment.reversed__back", FactKind.PAYMENT_REVERSED, "demo:pay_sw_1001:captured"),
        ("fee.assessed__story", FactKind.FEE_ASSESSED, "demo:fee_sw_story:fee"),
        ("refund.requested__asked", FactKind.REFUND_REQUESTED, None),
        ("refund.succeeded__story_second", FactKind.REFUND_SUCCEEDED, "demo:re_sw_story_2:refunded"),
        ("refund.failed__story", FactKind.REFUND_FAILED, "demo:re_sw_story_2:refunded"),
        ("dispute.opened__open", FactKind.DISPUTE_OPENED, None),
        (
            "dispute.funds_withdrawn__story_first",
            FactKind.DISPUTE_FUNDS_WITHDRAWN,
            "demo:dp_sw_story:withdrawn:1",
        ),
        (
            "dispute.funds_withdrawn__story_again",
            FactKind.DISPUTE_FUNDS_WITHDRAWN,
            "demo:dp_sw_story:withdrawn:2",
        ),
        ("dispute.funds_returned__story", FactKind.DISPUTE_FUNDS_RETURNED, "demo:dp_sw_story:returned:1"),
        ("dispute.won__closed", FactKind.DISPUTE_WON, None),
        ("dispute.lost__story", FactKind.DISPUTE_LOST, "demo:dp_sw_story:lost"),
        ("payout.paid__story", FactKind.PAYOUT_PAID, "demo:po_sw_story:paid"),
        ("payout.failed__after_paid", FactKind.PAYOUT_FAILED, "demo:po_sw_1:paid"),
    ],
)
def test_every_type_is_a_fact(name: str, kind: FactKind, key: str | None) -> None:
    """Each type of the demo's vocabulary is one fact; those of money have a key."""
    fact = fact_of(name)

    assert fact.kind is kind
    if key is not None:
        assert business_key("demo", fact) == key
        assert fact.amount_minor is not None


def test_reference_is_the_merchants_or_the_payment() -> None:
    """Without `reference` a payment is known to the merchant by the gateway's own name."""
    named, unnamed = fact_of("payment.captured__typical"), fact_of("payment.captured__without_account")

    assert (named.reference, named.reference_rank) == ("order-1001", 2)
    assert (unnamed.reference, unnamed.reference_rank) == ("pay_sw_1002", 1)


def test_account_is_the_payee_that_the_event_names() -> None:
    """`account` is optional."""
    assert fact_of("payment.captured__typical").account == "merchant-1"
    assert fact_of("payment.captured__without_account").account is None


@pytest.mark.parametrize("amount", [0, -1, "10000", 10000.0, True, None, ..., 2**53, [10000]])
def test_amount_that_is_no_exact_integer_is_unusable(amount: object) -> None:
    """Texts, floats, booleans and what a JSON reader might round are no amounts."""
    assert notice_of("payment.captured__typical", data__amount=amount).unusable is not None


@pytest.mark.parametrize("member", ["payment", "amount", "currency"])
def test_required_member_missing_is_unusable(member: str) -> None:
    """A known type without what it must name is quarantined."""
    assert notice_of("payment.captured__typical", **{f"data__{member}": ...}).unusable is not None


def test_unknown_type_is_ignored() -> None:
    """Any other type books nothing and is listed by name."""
    notice = notice_of("customer.created__unknown")

    assert notice.ignored is not None
    assert notice.event_type == "customer.created"


def test_time_of_the_notification_is_not_its_content() -> None:
    """`timestamp` may differ between two deliveries of one event; every member of data counts."""
    original = notice_of("payment.captured__typical").fingerprint

    assert notice_of("payment.captured__typical", timestamp="2026-11-30T11:00:00Z").fingerprint == original
    assert notice_of("payment.captured__typical", data__amount=1).fingerprint != original
    assert notice_of("payment.captured__typical", data__note="new").fingerprint != original
