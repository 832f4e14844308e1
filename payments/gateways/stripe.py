"""Stripe: snapshot events, signed over their time and body.

https://docs.stripe.com/webhooks
Fees stand in balance transactions, which no event carries whole: they come with the statement.
"""

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from payments import money
from payments.facts import Fact, FactKind
from payments.gateways import base

# Digits after the point on Stripe's wire, where they are not 2. ISK and UGX are 2 here, and always end in 00.
# https://docs.stripe.com/currencies#zero-decimal  https://docs.stripe.com/currencies#special-cases
_EXPONENTS: Final[dict[str, int]] = {
    **dict.fromkeys(["BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF"], 0),
    **dict.fromkeys(["VND", "VUV", "XAF", "XOF", "XPF"], 0),
    **dict.fromkeys(["BHD", "JOD", "KWD", "OMR", "TND"], 3),
}
# A rotation has a few signatures in its header; more than this is nobody's honest one.
_SIGNATURE_PARTS_MAX: Final = 16
# What of the object makes two deliveries of one event the same content; `pending_webhooks` is delivery state.
_ENVELOPE_FIELDS: Final = ("type", "livemode", "account", "created")
_OBJECT_FIELDS: Final = {
    f"object.{name}": name
    for name in (
        *("id", "amount", "amount_received", "amount_captured", "amount_refunded", "amount_total"),
        *("currency", "status", "payment_intent", "payment_status", "client_reference_id"),
    )
}
_Object = Mapping[str, Any]
_Facts = tuple[Fact, ...]


class Stripe(base.Gateway):
    name = "stripe"
    assurance = base.Assurance.BODY_SIGNED
    settling_days = 7

    def authenticate(self, delivery: base.Delivery, secrets: Sequence[str]) -> base.Verified:
        """Verify `t=<time>,v1=<hex HMAC-SHA256 of time.body>`; one good v1 of several is enough, v0 is none.

        https://docs.stripe.com/webhooks#verify-manually
        """
        parts = delivery.headers.get("stripe-signature", "").split(",", _SIGNATURE_PARTS_MAX)
        times = [part[2:] for part in parts if part.startswith("t=")]
        if len(times) != 1:
            raise base.VerificationFailed
        base.assert_fresh(times[0], delivery.received_at)
        given = [part[3:].encode("latin-1", "replace") for part in parts if part.startswith("v1=")]
        message = f"{times[0]}.".encode() + delivery.body
        for secret in filter(None, secrets):  # everybody knows the empty key
            expected = base.hmac_sha256(secret.encode(), message).hex().encode()
            if any(hmac.compare_digest(expected, candidate) for candidate in given):
                return base.Verified.of(delivery)
        raise base.VerificationFailed

    def translate(self, verified: base.Verified, endpoint: base.EndpointConfig) -> list[base.Notice]:
        """Return the one notice of an event. https://docs.stripe.com/api/events/object"""
        document = verified.document
        if not isinstance(document, dict):
            return [base.unreadable(verified)]
        try:
            event_id = _event_id(document)
        except base.Unusable:
            return [base.unreadable(verified)]
        facts, ignored, unusable = base.understand(lambda: _facts(document, endpoint))
        return [
            base.Notice(
                event_id=event_id,
                event_type=base.type_name(document.get("type")),
                occurred_at=base.moment_from_unix_or(document.get("created"), verified.received_at),
                fingerprint=_fingerprint(document),
                facts=facts,
                ignored=ignored,
                unusable=unusable,
            )
        ]

    def exponent(self, currency: str) -> int:
        """Return Stripe's own: IDR, ISK and UGX are 2."""
        return _EXPONENTS.get(currency, 2)


def _event_id(document: _Object) -> str:
    # With Connect one URL hears of many accounts. https://docs.stripe.com/connect/webhooks
    event_id = base.identifier(document.get("id"), "id")
    account = base.optional_identifier(document.get("account"), "account")
    return base.composed_event_id(account, event_id) if account else base.composed_event_id(event_id)


def _object(document: _Object) -> _Object:
    data = document.get("data")
    about = data.get("object") if isinstance(data, dict) else None
    if isinstance(about, dict):
        return about
    raise base.Unusable("data.object is not an object")


def _fingerprint(document: _Object) -> dict[str, str]:
    fields = {name: document.get(name) for name in _ENVELOPE_FIELDS}
    try:
        about = _object(document)
        fields |= {shown: about.get(name) for shown, name in _OBJECT_FIELDS.items()}
        fields["object.order_id"] = _order_id(about)
    except base.Unusable:
        fields["data"] = document.get("data")
    return base.fingerprint({name: value for name, value in fields.items() if value is not None})


def _facts(document: _Object, endpoint: base.EndpointConfig) -> _Facts:
    event_type, live = document.get("type"), document.get("livemode")
    if not isinstance(event_type, str):
        raise base.Unusable("type is not a text")
    translate = _TRANSLATIONS.get(event_type)
    if translate is None and event_type not in _UNTRANSLATED:
        raise base.Ignorable("no money in this type of event")
    if not isinstance(live, bool):
        raise base.Unusable("livemode is neither true nor false")
    if live is not endpoint.live:
        raise base.Ignorable("the event's mode is not the endpoint's")
    if endpoint.external_account and document.get("account") not in (None, endpoint.external_account):
        raise base.Ignorable("the event is about another account than the endpoint's")
    if translate is None:
        raise base.Unusable("money of this type of event is not translated")
    return translate(_object(document), base.moment_from_unix(document.get("created"), "created"))


def _amount(amount: object, currency: object) -> tuple[int, str]:
    code = money.currency_code(currency.upper() if isinstance(currency, str) else currency)
    minor = money.amount_minor(amount)
    scaled = money.rescale(minor, from_exponent=_EXPONENTS.get(code, 2), to_exponent=money.exponent(code))
    return scaled, code


def _order_id(about: _Object) -> object:
    metadata = about.get("metadata")
    return metadata.get("order_id") if isinstance(metadata, dict) else None


def _payment_of(about: _Object, fallback: str) -> str:
    # An intent, its charge and its checkout session report one payment: all are known by the intent.
    intent = base.optional_identifier(about.get("payment_intent"), "payment_intent")
    return intent or base.identifier(about.get(fallback), fallback)


def _payment(kind: FactKind, about: _Object, at: datetime, *, amount: str | None = None, less: int = 0) -> _Facts:
    # amount names the member that tells it: what was only asked for is no capture.
    named = base.optional_identifier(_order_id(about), "metadata.order_id")
    reference = named or base.optional_identifier(about.get("client_reference_id"), "client_reference_id")
    payment = _payment_of(about, "id")
    told = money.amount_minor(about.get(amount)) - less if amount else None
    minor, currency = (None, None) if told is None else _amount(told, about.get("currency"))
    fact = Fact(
        kind=kind,
        occurred_at=at,
        object_id=payment,
        payment=payment,
        amount_minor=minor,
        currency=currency,
        reference=reference,
        reference_rank=2 if named else 1 if reference else 0,
    )
    return (fact,)


# A manual capture can be one of several, and the intent tells only their sum.
# https://docs.stripe.com/payments/multicapture
def _intent_succeeded(intent: _Object, at: datetime) -> _Facts:
    manual = intent.get("capture_method") == "manual"
    kind = FactKind.PAYMENT_CAPTURED_TOTAL if manual else FactKind.PAYMENT_CAPTURED
    return _payment(kind, intent, at, amount="amount_received")


# Succeeded but not captured is a hold. https://docs.stripe.com/api/charges/object#charge_object-captured
def _charge_succeeded(charge: _Object, at: datetime) -> _Facts:
    if charge.get("captured") is False:
        return _payment(FactKind.PAYMENT_AUTHORIZED, charge, at, amount="amount")
    return _payment(FactKind.PAYMENT_CAPTURED, charge, at, amount="amount_captured")


# One without an intent pays by subscription or not at all; an unpaid one is told of again when it is paid.
# https://docs.stripe.com/checkout/fulfillment
def _checkout(kind: FactKind, session: _Object, at: datetime) -> _Facts:
    if session.get("payment_intent") is None:
        raise base.Ignorable("the checkout session has no payment intent")
    if kind is not FactKind.PAYMENT_CAPTURED:
        return _payment(kind, session, at)
    if session.get("payment_status") != "paid":
        raise base.Ignorable("the checkout session is not paid")
    return _payment(kind, session, at, amount="amount_total")


# `amount_refunded` is the sum so far, and counts what was held and let go again, which nobody ever paid.
# https://docs.stripe.com/payments/place-a-hold-on-a-payment-method#capture-funds
def _charge_refunded(charge: _Object, at: datetime) -> _Facts:
    total, released = money.amount_minor(charge.get("amount_refunded")), _released(charge)
    never_captured = charge.get("captured") is False and not charge.get("amount_captured")
    if never_captured and total == charge.get("amount"):
        return _payment(FactKind.PAYMENT_VOIDED, charge, at)
    listed = _listed_refunds(charge, total, released)
    if listed:
        payment = _payment_of(charge, "id")
        return tuple(_refund_fact(refund, at, payment) for refund in listed)
    if total == released:
        raise base.Ignorable("only the uncaptured rest of a hold was let go")
    if total < released:
        raise base.Unusable("a refund can't be told from the uncaptured rest of a hold")
    return _payment(FactKind.REFUNDED_TOTAL, charge, at, amount="amount_refunded", less=released)


def _released(charge: _Object) -> int:
    held, captured = charge.get("amount"), charge.get("amount_captured")
    if type(held) is int and type(captured) is int and 0 < captured < held:
        return held - captured
    return 0


# Older API versions list a charge's refunds; empty unless the list is whole and adds up to the total.
# https://docs.stripe.com/upgrades#2022-11-15
def _listed_refunds(charge: _Object, total: int, released: int) -> list[_Object]:
    refunds = charge.get("refunds")
    data = refunds.get("data") if isinstance(refunds, dict) and refunds.get("has_more") is False else None
    if not isinstance(data, list) or not all(isinstance(refund, dict) for refund in data):
        return []
    live = [refund for refund in data if refund.get("status") not in ("failed", "canceled")]
    amounts = [refund.get("amount") for refund in live]
    if not all(type(amount) is int for amount in amounts) or sum(amounts) != total:
        return []
    rest = [r for r in live if r["amount"] == released and r.get("balance_transaction") is None]
    return [refund for refund in data if refund not in rest[:1]]


# https://docs.stripe.com/api/refunds/object#refund_object-status
def _refund(refund: _Object, at: datetime) -> _Facts:
    return (_refund_fact(refund, at, _payment_of(refund, "charge")),)


def _refund_fact(refund: _Object, at: datetime, payment: str) -> Fact:
    status = refund.get("status")
    kind = _REFUND_KINDS.get(status) if isinstance(status, str) else None
    if kind is None:
        raise base.Unusable("the refund's status is not known")
    minor, currency = _amount(refund.get("amount"), refund.get("currency"))
    return Fact(
        kind=kind,
        occurred_at=at,
        object_id=base.identifier(refund.get("id"), "refund"),
        payment=payment,
        amount_minor=minor,
        currency=currency,
    )


# https://docs.stripe.com/disputes/how-disputes-work
def _dispute(kind: FactKind, dispute: _Object, at: datetime) -> _Facts:
    dispute_id, payment = base.identifier(dispute.get("id"), "dispute"), _payment_of(dispute, "charge")
    return (Fact(kind=kind, occurred_at=at, object_id=dispute_id, payment=payment),)


# https://docs.stripe.com/api/disputes/object#dispute_object-status
def _dispute_closed(dispute: _Object, at: datetime) -> _Facts:
    status = dispute.get("status")
    if status == "lost":
        return _dispute_legs(FactKind.DISPUTE_LOST, dispute, at)[-1:]  # the withdrawal that it ends with
    if status in ("won", "warning_closed"):  # an inquiry that ended moved nothing either
        return _dispute(FactKind.DISPUTE_WON, dispute, at)
    raise base.Unusable("the dispute is closed neither won nor lost")


# Money moves with the balance transactions that a dispute lists, one for each leg, out or back in.
# https://docs.stripe.com/api/disputes/object#dispute_object-balance_transactions
def _dispute_legs(kind: FactKind, dispute: _Object, at: datetime) -> _Facts:
    (fact,) = _dispute(kind, dispute, at)
    disputed = _amount(dispute.get("amount"), dispute.get("currency"))
    listed = dispute.get("balance_transactions")
    if not listed:
        return (replace(fact, part="1", amount_minor=disputed[0], currency=disputed[1]),)
    if not isinstance(listed, list):
        raise base.Unusable("balance_transactions is not a list")
    direction = 1 if kind is FactKind.DISPUTE_FUNDS_RETURNED else -1
    legs = [transaction for transaction in listed if _moved(transaction) * direction > 0]
    if not legs:
        raise base.Unusable("no balance transaction of the dispute moves money this way")
    return tuple(_leg(fact, transaction, dispute, disputed) for transaction in legs)


def _moved(transaction: Any) -> int:
    moved = transaction.get("amount") if isinstance(transaction, dict) else None
    if type(moved) is int:
        return moved
    raise base.Unusable("a balance transaction of the dispute tells no amount")


def _leg(fact: Fact, transaction: _Object, dispute: _Object, disputed: tuple[int, str]) -> Fact:
    # Balances are kept in the settlement currency, payments in the presentment currency.
    if transaction.get("currency") == dispute.get("currency"):
        disputed = _amount(abs(_moved(transaction)), dispute.get("currency"))
    part = base.identifier(transaction.get("id"), "balance transaction")
    return replace(fact, part=part, amount_minor=disputed[0], currency=disputed[1])


# A negative payout collects from the bank what the balance owes. Failed can follow paid.
# https://docs.stripe.com/api/payouts/object#payout_object-status
def _payout(kind: FactKind, payout: _Object, at: datetime) -> _Facts:
    amount, payout_id = payout.get("amount"), base.identifier(payout.get("id"), "payout")
    if type(amount) is int and amount < 0:
        is_paid = kind is FactKind.PAYOUT_PAID
        kind = FactKind.PAYOUT_COLLECTED if is_paid else FactKind.PAYOUT_COLLECTION_FAILED
        amount = -amount
    minor, currency = _amount(amount, payout.get("currency"))
    return (Fact(kind=kind, occurred_at=at, object_id=payout_id, amount_minor=minor, currency=currency),)


_REFUND_KINDS: Final = {
    "pending": FactKind.REFUND_REQUESTED,
    "requires_action": FactKind.REFUND_REQUESTED,
    "succeeded": FactKind.REFUND_SUCCEEDED,
    "failed": FactKind.REFUND_FAILED,
    "canceled": FactKind.REFUND_FAILED,
}
# https://docs.stripe.com/api/events/types
_TRANSLATIONS: Final[dict[str, Callable[[_Object, datetime], _Facts]]] = {
    "payment_intent.created": partial(_payment, FactKind.PAYMENT_PENDING),
    "payment_intent.processing": partial(_payment, FactKind.PAYMENT_PENDING),
    "payment_intent.requires_action": partial(_payment, FactKind.PAYMENT_PENDING),
    "payment_intent.partially_funded": partial(_payment, FactKind.PAYMENT_PENDING),
    "payment_intent.amount_capturable_updated": partial(
        _payment, FactKind.PAYMENT_AUTHORIZED, amount="amount_capturable"
    ),
    "payment_intent.succeeded": _intent_succeeded,
    "payment_intent.payment_failed": partial(_payment, FactKind.PAYMENT_FAILED),
    "payment_intent.canceled": partial(_payment, FactKind.PAYMENT_VOIDED),
    "charge.pending": partial(_payment, FactKind.PAYMENT_PENDING),
    "charge.succeeded": _charge_succeeded,
    "charge.captured": partial(_payment, FactKind.PAYMENT_CAPTURED_TOTAL, amount="amount_captured"),
    "charge.failed": partial(_payment, FactKind.PAYMENT_FAILED),
    "charge.expired": partial(_payment, FactKind.PAYMENT_EXPIRED),
    "charge.refunded": _charge_refunded,
    "charge.refund.updated": _refund,
    "refund.created": _refund,
    "refund.updated": _refund,
    "refund.failed": _refund,
    "charge.dispute.created": partial(_dispute, FactKind.DISPUTE_OPENED),
    "charge.dispute.funds_withdrawn": partial(_dispute_legs, FactKind.DISPUTE_FUNDS_WITHDRAWN),
    "charge.dispute.funds_reinstated": partial(_dispute_legs, FactKind.DISPUTE_FUNDS_RETURNED),
    "charge.dispute.closed": _dispute_closed,
    "checkout.session.completed": partial(_checkout, FactKind.PAYMENT_CAPTURED),
    "checkout.session.async_payment_succeeded": partial(_checkout, FactKind.PAYMENT_CAPTURED),
    "checkout.session.async_payment_failed": partial(_checkout, FactKind.PAYMENT_FAILED),
    "checkout.session.expired": partial(_checkout, FactKind.PAYMENT_EXPIRED),
    "payout.paid": partial(_payout, FactKind.PAYOUT_PAID),
    "payout.failed": partial(_payout, FactKind.PAYOUT_FAILED),
    "payout.canceled": partial(_payout, FactKind.PAYOUT_FAILED),
}
# Money moves here too, but nobody has said yet where it belongs in the books.
_UNTRANSLATED: Final = frozenset(
    {
        *("transfer.created", "transfer.reversed", "topup.succeeded", "topup.reversed"),
        *("application_fee.created", "application_fee.refunded"),
        *("issuing_transaction.created", "customer_cash_balance_transaction.created"),
    }
)
