"""Razorpay: events that carry whole entities, signed over the body; the event's id is an unsigned header.

https://razorpay.com/docs/webhooks/
Nothing in a body tells test mode from live mode: each has webhooks, and so secrets, of its own.
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

_ID_HEADER: Final = "x-razorpay-event-id"
_PRINCIPALS: Final = ("dispute", "refund", "settlement", "payment")
_FINGERPRINT_FIELDS: Final = ("id", "amount", "currency", "status", "fee")
_Entity = Mapping[str, Any]
_Entities = Mapping[str, _Entity]
_Facts = tuple[Fact, ...]


class Razorpay(base.Gateway):
    name = "razorpay"
    assurance = base.Assurance.BODY_SIGNED
    evidence_headers = (_ID_HEADER,)
    settling_days = 3

    def authenticate(self, delivery: base.Delivery, secrets: Sequence[str]) -> base.Verified:
        """Verify the hex HMAC-SHA256 of the body; old secrets sign the retries of old events.

        https://razorpay.com/docs/webhooks/validate-test/#validate-webhooks
        """
        if not base.is_printable_ascii(delivery.headers.get(_ID_HEADER, "none: the body's hash")):
            raise base.VerificationFailed
        given = delivery.headers.get("x-razorpay-signature", "").encode("latin-1", "replace")
        for secret in filter(None, secrets):  # everybody knows the empty key
            expected = base.hmac_sha256(secret.encode(), delivery.body).hex().encode()
            if hmac.compare_digest(expected, given):
                return base.Verified.of(delivery)
        raise base.VerificationFailed

    def translate(self, verified: base.Verified, endpoint: base.EndpointConfig) -> list[base.Notice]:
        """Return the one notice of an event; without the header the body's hash is its id.

        https://razorpay.com/docs/webhooks/validate-test/#idempotency
        """
        document, header_id = verified.document, verified.headers.get(_ID_HEADER)
        if not isinstance(document, dict):
            return [base.unreadable(verified, event_id=header_id)]
        facts, ignored, unusable = base.understand(lambda: _facts(document, endpoint))
        return [
            base.Notice(
                event_id=header_id or base.body_event_id(verified.body),
                event_type=base.type_name(document.get("event")),
                occurred_at=base.moment_from_unix_or(document.get("created_at"), verified.received_at),
                fingerprint=_fingerprint(document),
                facts=facts,
                ignored=ignored,
                unusable=unusable,
            )
        ]


def _entities(document: _Entity) -> _Entities:
    # {"payment": {"entity": {…}}, …} as {"payment": {…}, …}
    payload = document.get("payload")
    items = payload.items() if isinstance(payload, dict) else ()
    wrapped = {name: value.get("entity") for name, value in items if isinstance(value, dict)}
    return {name: entity for name, entity in wrapped.items() if isinstance(entity, dict)}


def _fingerprint(document: _Entity) -> dict[str, str]:
    entities = _entities(document)
    # Disputes and refunds come with their payment; where the payment is alone it is the principal.
    principal: _Entity = next((entities[name] for name in _PRINCIPALS if name in entities), {})
    told = {name: principal[name] for name in _FINGERPRINT_FIELDS if principal.get(name) is not None}
    return base.fingerprint({"event": document.get("event"), **told})


def _facts(document: _Entity, endpoint: base.EndpointConfig) -> _Facts:
    event_type = document.get("event")
    if not isinstance(event_type, str):
        raise base.Unusable("event is not a text")
    translate = _TRANSLATIONS.get(event_type)
    if translate is None and event_type not in _UNTRANSLATED:
        raise base.Ignorable("no money in this type of event")
    if endpoint.external_account and document.get("account_id") not in (None, endpoint.external_account):
        raise base.Ignorable("the event is about another account than the endpoint's")
    if translate is None:
        raise base.Unusable("money of this type of event is not translated")
    return translate(_entities(document), base.moment_from_unix(document.get("created_at"), "created_at"))


def _entity(entities: _Entities, name: str) -> _Entity:
    if name in entities:
        return entities[name]
    raise base.Unusable(f"the payload holds no {name}")


def _amount(amount: object, currency: object) -> tuple[int, str]:
    # Subunits as ISO 4217 has them. https://razorpay.com/docs/payments/international-payments/
    return money.amount_minor(amount), money.currency_code(currency)


def _order_id(entities: _Entities, name: str) -> str | None:
    notes = entities.get(name, {}).get("notes")  # an empty list where there are none
    order_id = notes.get("order_id") if isinstance(notes, dict) else None
    return base.optional_identifier(order_id, "notes.order_id")


# A failed payment may be authorized later. https://razorpay.com/docs/webhooks/payments/
def _payment(kind: FactKind, entities: _Entities, at: datetime) -> _Facts:
    payment = _entity(entities, "payment")
    payment_id = base.identifier(payment.get("id"), "payment")
    named = _order_id(entities, "payment") or _order_id(entities, "order")
    reference = named or base.optional_identifier(payment.get("order_id"), "order_id")
    fact = Fact(
        kind=kind,
        occurred_at=at,
        object_id=payment_id,
        payment=payment_id,
        reference=reference,
        reference_rank=2 if named else 1 if reference else 0,
    )
    if kind not in (FactKind.PAYMENT_AUTHORIZED, FactKind.PAYMENT_CAPTURED):
        return (fact,)
    minor, currency = _amount(payment.get("amount"), payment.get("currency"))
    return (replace(fact, amount_minor=minor, currency=currency),)


# A captured payment tells its fee, tax included, in the currency of the settlement.
# https://razorpay.com/docs/api/payments/entity/
def _captured(entities: _Entities, at: datetime) -> _Facts:
    (captured,) = _payment(FactKind.PAYMENT_CAPTURED, entities, at)
    payment = _entity(entities, "payment")
    fee = payment.get("fee")
    if fee is None or (type(fee) is int and fee == 0):
        return (captured,)
    minor, currency = _amount(fee, payment.get("base_currency") or payment.get("currency"))
    assessed = replace(captured, kind=FactKind.FEE_ASSESSED, amount_minor=minor, currency=currency)
    return captured, assessed


# A payment that was never captured goes back by itself, as a "refund" of what the merchant never had.
# https://razorpay.com/docs/webhooks/refunds/
def _refund(kind: FactKind, entities: _Entities, at: datetime) -> _Facts:
    refund = _entity(entities, "refund")
    if entities.get("payment", {}).get("captured") is False:
        if kind is not FactKind.REFUND_SUCCEEDED:
            raise base.Ignorable("a payment that was never captured is on its way back")
        return _payment(FactKind.PAYMENT_VOIDED, entities, at)
    minor, currency = _amount(refund.get("amount"), refund.get("currency"))
    fact = Fact(
        kind=kind,
        occurred_at=at,
        object_id=base.identifier(refund.get("id"), "refund"),
        payment=base.identifier(refund.get("payment_id"), "payment"),
        amount_minor=minor,
        currency=currency,
    )
    return (fact,)


# https://razorpay.com/docs/webhooks/disputes/
def _dispute(kind: FactKind, entities: _Entities, at: datetime) -> _Facts:
    dispute = _entity(entities, "dispute")
    fact = Fact(
        kind=kind,
        occurred_at=at,
        object_id=base.identifier(dispute.get("id"), "dispute"),
        payment=base.identifier(dispute.get("payment_id"), "payment"),
    )
    if kind is not FactKind.DISPUTE_LOST:
        return (fact,)
    minor, currency = _amount(_deducted(dispute) or dispute.get("amount"), dispute.get("currency"))
    return (replace(fact, part="1", amount_minor=minor, currency=currency),)


def _deducted(dispute: _Entity) -> int:
    # Told in the balance's currency: where that is another one, it isn't this dispute's amount.
    # https://razorpay.com/docs/api/disputes/entity/
    deducted, disputed = dispute.get("amount_deducted"), dispute.get("amount")
    if type(deducted) is int and type(disputed) is int and 0 < deducted <= disputed:
        return deducted
    return 0


# Closed without a verdict: what was deducted says whether it was lost.
def _dispute_closed(entities: _Entities, at: datetime) -> _Facts:
    dispute = _entity(entities, "dispute")
    lost = dispute.get("status") == "lost" or dispute.get("amount_deducted") not in (None, 0)
    return _dispute(FactKind.DISPUTE_LOST if lost else FactKind.DISPUTE_WON, entities, at)


# A settlement names no currency. https://razorpay.com/docs/webhooks/settlements/
def _settlement(entities: _Entities, at: datetime) -> _Facts:
    settlement = _entity(entities, "settlement")
    minor, currency = _amount(settlement.get("amount"), "INR")
    settlement_id = base.identifier(settlement.get("id"), "settlement")
    kind = FactKind.PAYOUT_PAID
    return (Fact(kind=kind, occurred_at=at, object_id=settlement_id, amount_minor=minor, currency=currency),)


# One capture has many names, and all of them carry the payment. https://razorpay.com/docs/webhooks/all/
_SAME_CAPTURE: Final = (
    *("payment.captured", "order.paid", "invoice.paid", "invoice.partially_paid", "subscription.charged"),
    *("payment_link.paid", "payment_link.partially_paid", "virtual_account.credited", "qr_code.credited"),
)
_TRANSLATIONS: Final[dict[str, Callable[[_Entities, datetime], _Facts]]] = {
    **dict.fromkeys(_SAME_CAPTURE, _captured),
    "payment.pending": partial(_payment, FactKind.PAYMENT_PENDING),
    "payment.authorized": partial(_payment, FactKind.PAYMENT_AUTHORIZED),
    "payment.failed": partial(_payment, FactKind.PAYMENT_FAILED),
    "refund.created": partial(_refund, FactKind.REFUND_REQUESTED),
    "refund.processed": partial(_refund, FactKind.REFUND_SUCCEEDED),
    "refund.failed": partial(_refund, FactKind.REFUND_FAILED),
    "payment.dispute.created": partial(_dispute, FactKind.DISPUTE_OPENED),
    "payment.dispute.won": partial(_dispute, FactKind.DISPUTE_WON),
    "payment.dispute.lost": partial(_dispute, FactKind.DISPUTE_LOST),
    "payment.dispute.closed": _dispute_closed,
    "settlement.processed": _settlement,
}
# Money moves here too, but nobody has said yet where it belongs in the books.
_UNTRANSLATED: Final = frozenset({"transfer.processed", "payout.processed", "payout.reversed"})
