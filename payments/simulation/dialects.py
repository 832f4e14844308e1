"""How each gateway tells a made-up happening: the body, and the headers that prove who sent it.

Pure, and only as much of each gateway's shape as its adapter reads. Signed from the vendors' documentation,
without the adapters' code.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta, timezone
from typing import Any, Final

from payments import money
from payments.facts import TYPE_NAMES, FactKind
from payments.simulation.stories import Happening

Telling = tuple[dict[str, str], bytes]  # headers, body

_JAKARTA: Final = timezone(timedelta(hours=7))


@dataclass(frozen=True, slots=True)
class Dialect:
    """One gateway's way to tell things.

    tell          happening, secret, now in unix seconds -> headers and body. The body is the same every time
    kinds         what it has events for
    names_payees  its events can say whose a payment is; else all are the endpoint's default payee's
    names_event   a delivery carries the event's id, and so the answer to it must
    only_idr      it knows no other currency
    """

    tell: Callable[[Happening, str, int], Telling]
    kinds: frozenset[FactKind]
    names_payees: bool = False
    names_event: bool = True
    only_idr: bool = False


def _standard_webhooks(happening: Happening, secret: str, now: int) -> Telling:
    """https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md#signature-scheme"""
    event_type = TYPE_NAMES[happening.kind]
    data: dict[str, Any] = {"payment": happening.payment}
    data[event_type.split(".")[0]] = happening.object_id
    if happening.names_payee:
        data["account"] = happening.payee
    data |= {"amount": happening.amount_minor, "currency": happening.currency}
    timestamp = happening.occurred_at.isoformat(timespec="microseconds")
    body = json.dumps({"type": event_type, "timestamp": timestamp, "data": data}).encode()
    key = base64.b64decode(secret.removeprefix("whsec_"))
    proof = hmac.digest(key, f"{happening.event_id}.{now}.".encode() + body, "sha256")
    headers = {
        "webhook-id": happening.event_id,
        "webhook-timestamp": str(now),
        "webhook-signature": f"v1,{base64.b64encode(proof).decode()}",
    }
    return headers, body


def _stripe(happening: Happening, secret: str, now: int) -> Telling:
    """https://docs.stripe.com/webhooks#verify-manually, https://docs.stripe.com/api/events"""
    subject: dict[str, Any] = {"currency": happening.currency.lower(), "livemode": True}
    if happening.kind is FactKind.PAYMENT_CAPTURED:
        event_type = "payment_intent.succeeded"
        amounts = dict.fromkeys(("amount", "amount_received"), happening.amount_minor)
        subject |= {"id": happening.payment, "object": "payment_intent", "status": "succeeded", **amounts}
        subject["metadata"] = {"order_id": f"order_{happening.payment}"}
    else:
        event_type = "refund.updated"
        subject |= {"id": happening.object_id, "object": "refund", "status": "succeeded"}
        subject |= {"amount": happening.amount_minor, "payment_intent": happening.payment}
    event = {
        "id": happening.event_id,
        "object": "event",
        "api_version": "2025-09-30.clover",
        "type": event_type,
        "created": int(happening.occurred_at.timestamp()),
        "livemode": True,
        "data": {"object": subject},
    }
    body = json.dumps(event).encode()
    proof = hmac.digest(secret.encode(), b"%d.%b" % (now, body), "sha256")
    return {"stripe-signature": f"t={now},v1={proof.hex()}"}, body


def _midtrans(happening: Happening, secret: str, now: int) -> Telling:
    """https://docs.midtrans.com/docs/https-notification-webhooks#verifying-notification-authenticity"""
    at = happening.occurred_at.astimezone(_JAKARTA).strftime("%Y-%m-%d %H:%M:%S")
    notification: dict[str, Any] = {
        "transaction_status": "settlement",
        "status_code": "200",
        "payment_type": "bank_transfer",
        "transaction_id": happening.payment,
        "order_id": f"order_{happening.payment}",
        "gross_amount": money.format_major(happening.captured_minor, happening.currency),
        "currency": happening.currency,
        "transaction_time": at,
        "settlement_time": at,
    }
    if happening.kind is FactKind.REFUND_SUCCEEDED:
        refund = {"refund_chargeback_id": 1, "created_at": at}
        refund["refund_amount"] = money.format_major(happening.amount_minor, happening.currency)
        notification |= {"transaction_status": "refund", "refunds": [refund]}
    signed = "".join(notification[name] for name in ("order_id", "status_code", "gross_amount"))
    notification["signature_key"] = hashlib.sha512((signed + secret).encode()).hexdigest()
    return {}, json.dumps(notification).encode()


def _xendit(happening: Happening, secret: str, now: int) -> Telling:
    """https://docs.xendit.co/apidocs/payment-webhook-notification, https://docs.xendit.co/docs/set-up-webhooks"""
    at = happening.occurred_at.isoformat()
    amount = money.format_major(happening.amount_minor, happening.currency)
    data: dict[str, Any] = {"payment_id": happening.payment, "currency": happening.currency, "created": at}
    if happening.kind is FactKind.PAYMENT_CAPTURED:
        event, capture = "payment.capture", {"capture_id": f"cptr_{happening.payment}", "capture_amount": amount}
        data |= {"status": "SUCCEEDED", "captures": [capture], "reference_id": f"order_{happening.payment}"}
    else:
        event = "refund.succeeded"
        data |= {"id": happening.object_id, "status": "SUCCEEDED", "amount": amount}
    body = json.dumps({"event": event, "business_id": "simulated", "created": at, "data": data}).encode()
    return {"x-callback-token": secret, "webhook-id": happening.event_id}, body


def _adyen(happening: Happening, secret: str, now: int) -> Telling:
    """https://docs.adyen.com/development-resources/webhooks/secure-webhooks/verify-hmac-signatures"""
    # https://docs.adyen.com/development-resources/currency-codes: a rupiah has no minor unit there
    value = happening.amount_minor // 100 if happening.currency == "IDR" else happening.amount_minor
    is_refund = happening.kind is FactKind.REFUND_SUCCEEDED
    signed = {
        "pspReference": happening.object_id,
        "originalReference": happening.payment if is_refund else "",
        "merchantAccountCode": "Simulated",
        "merchantReference": f"order_{happening.payment}",
        "value": str(value),
        "currency": happening.currency,
        "eventCode": "REFUND" if is_refund else "AUTHORISATION",
        "success": "true",
    }
    proof = hmac.digest(bytes.fromhex(secret), ":".join(signed.values()).encode(), "sha256")
    item: dict[str, Any] = {name: text for name, text in signed.items() if name not in ("value", "currency")}
    item["amount"] = {"value": value, "currency": happening.currency}
    item["eventDate"] = happening.occurred_at.isoformat()
    item["additionalData"] = {"hmacSignature": base64.b64encode(proof).decode()}
    body = {"live": "true", "notificationItems": [{"NotificationRequestItem": item}]}
    return {}, json.dumps(body).encode()


def _razorpay(happening: Happening, secret: str, now: int) -> Telling:
    """https://razorpay.com/docs/webhooks/validate-test/"""
    entity: dict[str, Any] = {"amount": happening.amount_minor, "currency": happening.currency}
    if happening.kind is FactKind.PAYMENT_CAPTURED:
        event, name = "payment.captured", "payment"
        entity |= {"id": happening.payment, "status": "captured", "order_id": f"order_{happening.payment}"}
    else:
        event, name = "refund.processed", "refund"
        entity |= {"id": happening.object_id, "status": "processed", "payment_id": happening.payment}
    created_at = int(happening.occurred_at.timestamp())
    payload = {name: {"entity": entity}}
    body = json.dumps({"event": event, "created_at": created_at, "payload": payload}).encode()
    proof = hmac.digest(secret.encode(), body, "sha256").hex()
    return {"x-razorpay-signature": proof, "x-razorpay-event-id": happening.event_id}, body


_CAPTURES_AND_REFUNDS: Final = frozenset({FactKind.PAYMENT_CAPTURED, FactKind.REFUND_SUCCEEDED})
_WITH_FEES: Final = _CAPTURES_AND_REFUNDS | {FactKind.FEE_ASSESSED}

# By the gateway's name. A gateway that isn't here can't be simulated.
TABLE: Final[Mapping[str, Dialect]] = {
    "standard_webhooks": Dialect(_standard_webhooks, _WITH_FEES, names_payees=True),
    "stripe": Dialect(_stripe, _CAPTURES_AND_REFUNDS),
    "midtrans": Dialect(_midtrans, _CAPTURES_AND_REFUNDS, names_event=False, only_idr=True),
    "xendit": Dialect(_xendit, _CAPTURES_AND_REFUNDS),
    "adyen": Dialect(_adyen, _CAPTURES_AND_REFUNDS, names_event=False),
    "razorpay": Dialect(_razorpay, _CAPTURES_AND_REFUNDS),
}
