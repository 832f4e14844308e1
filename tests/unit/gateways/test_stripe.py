"""Stripe's events: what they prove, and what they say happened."""

import json
from typing import Any

import pytest

from payments.facts import Fact, FactKind, business_key
from payments.gateways import base, stripe
from tests.unit.gateways import cases
from tests.unit.gateways.signing import NOW

GATEWAY = stripe.Stripe()


def notice_of(name: str, *, endpoint: base.EndpointConfig | None = None, **changes: Any) -> base.Notice:
    """Translate tests/payloads/stripe/<name>.json, with members of data.object changed."""
    named = {f"data__object__{path}": value for path, value in changes.items()}
    body = cases.variant(cases.payload("stripe", name), **named)
    (notice,) = GATEWAY.translate(
        base.Verified.of(base.Delivery({}, body, NOW)), endpoint or base.EndpointConfig(slug="stripe")
    )
    return notice


def fact_of(name: str, **changes: Any) -> Fact:
    """Return the one fact of a payload."""
    notice = notice_of(name, **changes)
    assert notice.unusable is None
    (fact,) = notice.facts
    return fact


def money_of(name: str, **changes: Any) -> tuple[FactKind, int | None, str | None]:
    """Return kind, amount and currency of the one fact of a payload."""
    fact = fact_of(name, **changes)
    return fact.kind, fact.amount_minor, fact.currency


def key_of(name: str, **changes: Any) -> str:
    """Return the business key of the one fact of a payload."""
    return business_key("stripe", fact_of(name, **changes))


class TestStripe(cases.GatewayCases):
    gateway = GATEWAY
    secret = "whsec_of_the_stripe_tests"
    other_secret = "whsec_of_another_stripe_endpoint"
    good_body = cases.payload("stripe", "payment_intent.succeeded__typical")
    proof_header = "stripe-signature"
    has_age = True
    has_several = True

    def joined(self, proofs: list[str]) -> str:
        """One time, and a v1 for each active secret."""
        time, *_ = proofs[0].split(",")
        return ",".join([time, *(proof.split(",")[1] for proof in proofs)])

    def test_v0_signature_is_no_proof(self) -> None:
        """Schemes other than v1 are for Stripe's own tests, even when they hold the right signature."""
        delivery = self.good()

        self.assert_refused(self.with_proof(delivery, self.proof_of(delivery).replace("v1=", "v0=")))

    def test_two_times_are_refused(self) -> None:
        """A header with two times could mean either of them."""
        delivery = self.good()

        self.assert_refused(self.with_proof(delivery, f"t=1,{self.proof_of(delivery)}"))

    def test_changed_time_is_refused(self) -> None:
        """The time is signed too: an old delivery can't be made young."""
        delivery = self.good()
        time, proof = self.proof_of(delivery).split(",")

        self.assert_refused(self.with_proof(delivery, f"t={int(time[2:]) + 1},{proof}"))


# --- captures


@pytest.mark.parametrize(
    "name",
    [
        "payment_intent.succeeded__typical",
        "charge.succeeded__automatic",
        "checkout.session.completed__paid",
        "checkout.session.async_payment_succeeded__later",
    ],
)
def test_one_capture_has_one_key_whoever_reports_it(name: str) -> None:
    """Intent, charge and checkout session tell of the same money: one key, one amount, one payment."""
    assert money_of(name) == (FactKind.PAYMENT_CAPTURED, 10000, "USD")
    assert key_of(name) == "stripe:pi_SekaliA1:captured"
    assert fact_of(name).payment == "pi_SekaliA1"


def test_charge_without_intent_is_known_by_itself() -> None:
    """Charges made without an intent are payments of their own."""
    assert key_of("charge.succeeded__without_intent") == "stripe:ch_SekaliB1:captured"


@pytest.mark.parametrize("method", ["automatic", "automatic_async", None])
def test_automatic_capture_is_a_single_fact(method: str | None) -> None:
    """What Stripe captures by itself is captured once."""
    assert fact_of("payment_intent.succeeded__typical", capture_method=method).kind is FactKind.PAYMENT_CAPTURED


def test_manual_captures_are_told_as_totals() -> None:
    """A manual capture may be one of several: the key holds the sum so far, from intent and charge alike."""
    assert key_of("charge.captured__story_first") == "stripe:pi_SekaliStory:captured-to:3000"
    assert key_of("charge.captured__story_final") == "stripe:pi_SekaliStory:captured-to:9000"
    assert key_of("payment_intent.succeeded__story") == "stripe:pi_SekaliStory:captured-to:9000"


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("payment_intent.succeeded__typical", "amount_received"),
        ("payment_intent.succeeded__story", "amount_received"),
        ("charge.succeeded__automatic", "amount_captured"),
        ("charge.captured__story_final", "amount_captured"),
        ("checkout.session.completed__paid", "amount_total"),
        ("payment_intent.amount_capturable_updated__hold", "amount_capturable"),
    ],
)
@pytest.mark.parametrize("told", [0, ..., None, -5, "10000", 100.0, True, 2**53])
def test_what_was_asked_is_never_read_for_what_was_received(name: str, member: str, told: Any) -> None:
    """Without an exact positive amount received the event is quarantined, whatever `amount` says."""
    notice = notice_of(name, **{member: told})

    assert notice.facts == ()
    assert notice.unusable is not None


def test_nothing_received_is_unusable() -> None:
    """A succeeded intent that received 0 is quarantined."""
    assert notice_of("payment_intent.succeeded__nothing_received").unusable is not None


def test_partial_capture_is_what_was_captured() -> None:
    """The amount is what was captured, not what was held."""
    assert money_of("charge.captured__story_final")[1] == 9000


# --- other states of a payment


@pytest.mark.parametrize(
    ("name", "kind", "amount"),
    [
        ("payment_intent.created__story", FactKind.PAYMENT_PENDING, None),
        ("charge.succeeded__story", FactKind.PAYMENT_AUTHORIZED, 10000),
        ("payment_intent.amount_capturable_updated__hold", FactKind.PAYMENT_AUTHORIZED, 10000),
        ("payment_intent.payment_failed__attempt", FactKind.PAYMENT_FAILED, None),
        ("charge.failed__card_declined", FactKind.PAYMENT_FAILED, None),
        ("checkout.session.async_payment_failed__later", FactKind.PAYMENT_FAILED, None),
        ("payment_intent.canceled__before_capture", FactKind.PAYMENT_VOIDED, None),
        ("charge.expired__hold", FactKind.PAYMENT_EXPIRED, None),
    ],
)
def test_state_of_a_payment(name: str, kind: FactKind, amount: int | None) -> None:
    """Everything before the capture is a state, known by the intent."""
    fact = fact_of(name)

    assert (fact.kind, fact.amount_minor) == (kind, amount)
    assert fact.object_id == fact.payment
    assert str(fact.payment).startswith("pi_")


@pytest.mark.parametrize(
    "name",
    [
        "checkout.session.completed__unpaid",
        "checkout.session.completed__subscription",
        "checkout.session.expired__open",
    ],
)
def test_checkout_that_is_no_payment_yet_is_ignored(name: str) -> None:
    """A session that isn't paid, or pays by something else than an intent, books nothing."""
    assert notice_of(name).ignored is not None


# --- refunds


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("refund.created__pending", FactKind.REFUND_REQUESTED),
        ("refund.updated__succeeded", FactKind.REFUND_SUCCEEDED),
        ("refund.failed__failed", FactKind.REFUND_FAILED),
        ("charge.refund.updated__canceled", FactKind.REFUND_FAILED),
    ],
)
def test_refund_is_what_its_status_says(name: str, kind: FactKind) -> None:
    """Created, updated and failed carry the same object: its status decides, not the event's name."""
    assert money_of(name) == (kind, 2000, "USD")
    assert fact_of(name).payment == "pi_SekaliA1"


def test_failed_refund_corrects_the_key_of_the_refund() -> None:
    """A failure is known by what it corrects."""
    assert key_of("refund.failed__failed") == key_of("refund.updated__succeeded") == "stripe:re_SekaliA1:refunded"


def test_refund_of_unknown_status_is_unusable() -> None:
    """A status that Stripe has invented since can't be guessed."""
    assert notice_of("refund.updated__succeeded", status="perhaps").unusable is not None


def test_refund_of_no_payment_is_unusable() -> None:
    """Refunds out of a customer's balance name neither intent nor charge."""
    assert notice_of("refund.updated__succeeded", payment_intent=None, charge=None).unusable is not None


def test_refunded_charge_tells_a_total() -> None:
    """Without a list of refunds the charge tells the sum so far, for the whole payment."""
    assert money_of("charge.refunded__total") == (FactKind.REFUNDED_TOTAL, 2000, "USD")
    assert key_of("charge.refunded__total") == "stripe:pi_SekaliA1:refunded-to:2000"


def test_listed_refunds_are_used_and_no_total() -> None:
    """Where the charge lists all its refunds with their ids each is a fact, also the failed one."""
    facts = notice_of("charge.refunded__listed").facts

    assert [(fact.object_id, fact.kind, fact.amount_minor) for fact in facts] == [
        ("re_SekaliL2", FactKind.REFUND_SUCCEEDED, 700),
        ("re_SekaliL3", FactKind.REFUND_FAILED, 300),
        ("re_SekaliL1", FactKind.REFUND_SUCCEEDED, 2000),
    ]
    assert {fact.payment for fact in facts} == {"pi_SekaliA1"}


@pytest.mark.parametrize(
    "changes",
    [
        {"refunds__has_more": True},
        {"refunds__data": []},
        {"refunds__data__0__amount": 699},
        {"refunds__data__0__amount": "700"},
        {"refunds__data__0": "re_SekaliL2"},
        {"refunds": None},
    ],
)
def test_list_that_is_not_whole_is_a_total(changes: dict[str, Any]) -> None:
    """A list with more pages, or that doesn't add up, is no list of all refunds: the total counts."""
    assert money_of("charge.refunded__listed", **changes) == (FactKind.REFUNDED_TOTAL, 2700, "USD")


def test_release_of_a_hold_is_no_refund() -> None:
    """Stripe calls a hold that is let go refunded; nobody ever had that money."""
    assert money_of("charge.refunded__hold_released") == (FactKind.PAYMENT_VOIDED, None, None)


def test_release_of_the_uncaptured_rest_is_no_refund() -> None:
    """After a partial capture the rest counts as refunded; alone it books nothing."""
    assert notice_of("charge.refunded__rest_released").ignored is not None


def test_refund_beside_the_uncaptured_rest_is_the_difference() -> None:
    """Of 30.00 told as refunded 10.00 were never captured."""
    assert money_of("charge.refunded__story") == (FactKind.REFUNDED_TOTAL, 2000, "USD")


def test_listed_release_is_left_out() -> None:
    """In the list the release is the refund of just the rest that no balance transaction paid for."""
    facts = notice_of("charge.refunded__rest_released_listed").facts

    assert [fact.object_id for fact in facts] == ["re_SekaliL1"]


def test_refund_smaller_than_the_uncaptured_rest_is_unusable() -> None:
    """While more captures may follow, a small total can be a refund or the release: nobody can tell."""
    assert notice_of("charge.refunded__rest_released", amount_refunded=400).unusable is not None


# --- disputes


def test_dispute_opened_moves_nothing() -> None:
    """Money follows in an event of its own."""
    fact = fact_of("charge.dispute.created__open")

    assert (fact.kind, fact.object_id, fact.payment) == (
        FactKind.DISPUTE_OPENED,
        "du_SekaliA1",
        "pi_SekaliA1",
    )
    assert fact.amount_minor is None


def test_dispute_leg_is_known_by_its_balance_transaction() -> None:
    """Withdrawn and returned money are legs, each with the id of the transaction that moved it."""
    assert money_of("charge.dispute.funds_withdrawn__first_leg") == (
        FactKind.DISPUTE_FUNDS_WITHDRAWN,
        4000,
        "USD",
    )
    assert key_of("charge.dispute.funds_withdrawn__first_leg") == "stripe:du_SekaliA1:withdrawn:txn_SekaliD1"
    assert key_of("charge.dispute.funds_reinstated__back") == "stripe:du_SekaliA1:returned:txn_SekaliD2"


def test_dispute_without_transactions_has_leg_one() -> None:
    """Where no balance transaction is listed the one leg is the disputed amount."""
    assert key_of("charge.dispute.funds_withdrawn__unlisted") == "stripe:du_SekaliU1:withdrawn:1"


def test_second_withdrawal_is_a_leg_beside_the_first() -> None:
    """An event that lists two withdrawals tells both; the first is known already."""
    again = {"id": "txn_SekaliD3", "amount": -4000, "currency": "usd"}
    listed = json.loads(cases.payload("stripe", "charge.dispute.funds_reinstated__back"))
    legs = [*listed["data"]["object"]["balance_transactions"], again]

    facts = notice_of("charge.dispute.funds_withdrawn__first_leg", balance_transactions=legs).facts

    assert [fact.part for fact in facts] == ["txn_SekaliD1", "txn_SekaliD3"]


def test_dispute_in_another_settlement_currency_keeps_the_payments_currency() -> None:
    """Balance transactions are in the settlement's currency; the payment's money is the disputed amount."""
    assert money_of("charge.dispute.funds_withdrawn__other_currency")[1:] == (4000, "USD")


def test_lost_dispute_names_the_withdrawal_that_it_implies() -> None:
    """Lost implies the withdrawal, under the leg's own key."""
    fact = fact_of("charge.dispute.closed__lost")

    assert (fact.kind, fact.part, fact.amount_minor) == (FactKind.DISPUTE_LOST, "txn_SekaliD1", 4000)


@pytest.mark.parametrize("name", ["charge.dispute.closed__won", "charge.dispute.closed__inquiry"])
def test_won_dispute_moves_nothing(name: str) -> None:
    """A won dispute, or an inquiry that went no further, closes; the money has its own events."""
    assert money_of(name) == (FactKind.DISPUTE_WON, None, None)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("charge.dispute.closed__won", {"status": "under_review"}),
        ("charge.dispute.funds_withdrawn__first_leg", {"balance_transactions__0__amount": 0}),
        ("charge.dispute.funds_withdrawn__first_leg", {"balance_transactions__0__amount": "-4000"}),
        ("charge.dispute.funds_withdrawn__first_leg", {"balance_transactions__0__id": None}),
        ("charge.dispute.funds_withdrawn__first_leg", {"balance_transactions": {"data": []}}),
        ("charge.dispute.funds_reinstated__back", {"balance_transactions__1__amount": -1}),
    ],
)
def test_dispute_that_makes_no_sense_is_unusable(name: str, changes: dict[str, Any]) -> None:
    """Neither verdict nor direction is guessed."""
    assert notice_of(name, **changes).unusable is not None


# --- payouts


@pytest.mark.parametrize(
    ("name", "kind", "amount"),
    [
        ("payout.paid__paid", FactKind.PAYOUT_PAID, 5500),
        ("payout.paid__collected", FactKind.PAYOUT_COLLECTED, 1200),
        ("payout.failed__after_paid", FactKind.PAYOUT_FAILED, 5500),
        ("payout.canceled__before_paid", FactKind.PAYOUT_FAILED, 5500),
    ],
)
def test_payout(name: str, kind: FactKind, amount: int) -> None:
    """Payouts belong to no payment; a negative one collects from the bank."""
    assert money_of(name) == (kind, amount, "USD")
    assert fact_of(name).payment is None


def test_failed_payout_corrects_the_key_of_the_payout() -> None:
    """Paid and then failed meet under one key, in either order."""
    assert key_of("payout.failed__after_paid") == key_of("payout.paid__paid") == "stripe:po_SekaliA1:paid"


@pytest.mark.parametrize("name", ["payout.failed__after_paid", "payout.canceled__before_paid"])
def test_failed_collection_corrects_the_key_of_the_collection(name: str) -> None:
    """A negative payout that failed took nothing from the bank."""
    failed = {"id": "po_SekaliNeg", "amount": -1200}

    assert money_of(name, **failed) == (FactKind.PAYOUT_COLLECTION_FAILED, 1200, "USD")
    assert key_of(name, **failed) == key_of("payout.paid__collected") == "stripe:po_SekaliNeg:collected"


# --- currencies


@pytest.mark.parametrize(
    ("name", "amount", "currency"),
    [
        ("payment_intent.succeeded__idr", 1000000, "IDR"),
        ("payment_intent.succeeded__jpy", 500, "JPY"),
        ("payment_intent.succeeded__isk", 500, "ISK"),
        ("payment_intent.succeeded__ugx", 3700, "UGX"),
        ("payment_intent.succeeded__kwd", 10010, "KWD"),
        ("payment_intent.succeeded__mga", 450000, "MGA"),
    ],
)
def test_amount_in_minor_units_of_iso_4217(name: str, amount: int, currency: str) -> None:
    """Stripe's wire has 2 digits for ISK, UGX and IDR, and none for MGA; the ledger has ISO 4217's."""
    assert money_of(name) == (FactKind.PAYMENT_CAPTURED, amount, currency)


def test_fraction_of_a_zero_decimal_currency_is_unusable() -> None:
    """ISK always ends in 00: anything else isn't rounded."""
    assert notice_of("payment_intent.succeeded__isk", amount_received=50050).unusable is not None


@pytest.mark.parametrize("currency", ["us", "usdd", "", None, 840, "us1", ["usd"]])
def test_currency_that_is_none_is_unusable(currency: object) -> None:
    """Money without a currency isn't money."""
    assert notice_of("payment_intent.succeeded__typical", currency=currency).unusable is not None


@pytest.mark.parametrize(
    ("currency", "digits"),
    [("IDR", 2), ("ISK", 2), ("UGX", 2), ("JPY", 0), ("MGA", 0), ("KWD", 3), ("IQD", 2), ("USD", 2)],
)
def test_wire_exponent(currency: str, digits: int) -> None:
    """Stripe's own table, not ISO 4217's."""
    assert GATEWAY.exponent(currency) == digits


# --- references


def test_reference_is_the_order_id_of_the_metadata() -> None:
    """`metadata.order_id` is the merchant's own reference."""
    fact = fact_of("payment_intent.succeeded__typical")

    assert (fact.reference, fact.reference_rank) == ("order-1001", 2)


def test_client_reference_stands_in_for_the_order_id() -> None:
    """A checkout session's client_reference_id counts where the metadata name no order."""
    stand_in = fact_of("checkout.session.completed__paid")
    named = fact_of("checkout.session.completed__paid", metadata={"order_id": "order-1001"})

    assert (stand_in.reference, stand_in.reference_rank) == ("basket-77", 1)
    assert (named.reference, named.reference_rank) == ("order-1001", 2)


@pytest.mark.parametrize("metadata", [None, {}, [], "order-1001", {"order_id": ""}, {"order_id": None}])
def test_no_reference_is_none(metadata: object) -> None:
    """Metadata without an order leave the payment without a reference."""
    fact = fact_of("payment_intent.succeeded__typical", metadata=metadata)

    assert (fact.reference, fact.reference_rank) == (None, 0)


# --- whose event it is


def test_event_id_is_stripes() -> None:
    """The id of an account's own event is kept exactly."""
    assert notice_of("payment_intent.succeeded__typical").event_id == "evt_SekaliTypical"


def test_event_of_a_connected_account_is_scoped_by_it() -> None:
    """With Connect one URL hears of many accounts."""
    body = cases.payload("stripe", "payment_intent.succeeded__connect")
    notice = notice_of("payment_intent.succeeded__connect")

    assert notice.event_id == f"acct_SekaliShop1:{json.loads(body)['id']}"
    assert notice.facts


@pytest.mark.parametrize(("account", "books"), [("", True), ("acct_SekaliShop1", True), ("acct_Else", False)])
def test_event_of_another_account_is_ignored(account: str, books: bool) -> None:
    """An endpoint that names its account hears of others, and books nothing of them."""
    endpoint = base.EndpointConfig(slug="stripe", external_account=account)

    notice = notice_of("payment_intent.succeeded__connect", endpoint=endpoint)

    assert (bool(notice.facts), notice.ignored is None) == (books, books)


@pytest.mark.parametrize(
    ("name", "live", "books"),
    [
        ("payment_intent.succeeded__typical", True, True),
        ("payment_intent.succeeded__typical", False, False),
        ("payment_intent.succeeded__test_mode", True, False),
        ("payment_intent.succeeded__test_mode", False, True),
    ],
)
def test_mode_that_differs_is_ignored(name: str, live: bool, books: bool) -> None:
    """Test-mode events at a live endpoint book nothing, and the other way round."""
    notice = notice_of(name, endpoint=base.EndpointConfig(slug="stripe", live=live))

    assert (bool(notice.facts), notice.ignored is None) == (books, books)


def test_unknown_type_is_ignored_by_name() -> None:
    """A type that says nothing about money is listed with its name."""
    notice = notice_of("customer.updated__unknown")

    assert notice.ignored is not None
    assert notice.event_type == "customer.updated"


def test_money_that_is_not_translated_is_unusable() -> None:
    """A transfer between accounts moves money that nobody has given a place yet: quarantined, not ignored."""
    assert notice_of("transfer.created__untranslated").unusable is not None


# --- fingerprint


def fingerprint_of(name: str = "charge.refunded__total", **changes: Any) -> dict[str, str]:
    body = cases.variant(cases.payload("stripe", name), **changes)
    (notice,) = GATEWAY.translate(base.Verified.of(base.Delivery({}, body, NOW)), base.EndpointConfig(slug="stripe"))
    return dict(notice.fingerprint)


@pytest.mark.parametrize(
    "changes",
    [
        {"pending_webhooks": 3},
        {"api_version": "2019-12-03"},
        {"request": None},
        {"data__object__receipt_url": "https://example.com"},
        {"data__object__refunds": {"data": []}},
    ],
)
def test_delivery_state_and_rendering_are_the_same_content(changes: dict[str, Any]) -> None:
    """The same event comes with other bytes: what Stripe may change about it isn't its content."""
    assert fingerprint_of(**changes) == fingerprint_of()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("type", "charge.updated"),
        ("livemode", False),
        ("account", "acct_Else"),
        ("created", 1796032999),
        ("data__object__id", "ch_Else"),
        ("data__object__amount", 1),
        ("data__object__amount_captured", 1),
        ("data__object__amount_refunded", 1),
        ("data__object__amount_received", 1),
        ("data__object__amount_total", 1),
        ("data__object__currency", "eur"),
        ("data__object__status", "failed"),
        ("data__object__payment_intent", "pi_Else"),
        ("data__object__payment_status", "unpaid"),
        ("data__object__metadata", {"order_id": "order-else"}),
        ("data__object__client_reference_id", "basket-else"),
    ],
)
def test_named_field_is_content_and_is_named(path: str, value: Any) -> None:
    """Each named field that differs makes other content, and can be named."""
    ours, other = fingerprint_of(), fingerprint_of(**{path: value})

    (name,) = {name for name in ours | other if ours.get(name) != other.get(name)}
    assert name.split(".")[-1] in (path.split("__")[-1], "order_id")
