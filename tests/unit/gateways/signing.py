"""How each gateway signs, written a second time from the vendors' documentation.

Tests, the simulator's tests and payload stories sign with these, never with the product's own code: a mistake
made twice the same way would otherwise pass. Every function takes the same arguments and gives what goes over
the wire; a gateway whose proof stands in the body gives other bytes than it got.
"""

import base64
import binascii
import hashlib
import hmac
import json
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol

NOW: Final = datetime(2026, 11, 30, 10, 0, 0, tzinfo=UTC)
EVENT_ID: Final = "evt-of-the-tests"


class Signed(NamedTuple):
    """Headers (names in lower case) and body of one delivery."""

    headers: dict[str, str]
    body: bytes


class Sign(Protocol):
    """Sign a body as the gateway would, at a time; event_id is for the gateways that carry it in a header."""

    def __call__(self, body: bytes, secret: str, *, at: datetime = NOW, event_id: str = EVENT_ID) -> Signed: ...


def stripe(body: bytes, secret: str, *, at: datetime = NOW, event_id: str = EVENT_ID) -> Signed:
    """https://docs.stripe.com/webhooks#verify-manually"""
    timestamp = int(at.timestamp())
    proof = hmac.new(secret.encode(), b"%d.%b" % (timestamp, body), hashlib.sha256).hexdigest()
    return Signed({"stripe-signature": f"t={timestamp},v1={proof}"}, body)


def razorpay(body: bytes, secret: str, *, at: datetime = NOW, event_id: str = EVENT_ID) -> Signed:
    """https://razorpay.com/docs/webhooks/validate-test/"""
    proof = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return Signed({"x-razorpay-signature": proof, "x-razorpay-event-id": event_id}, body)


def standard_webhooks(body: bytes, secret: str, *, at: datetime = NOW, event_id: str = EVENT_ID) -> Signed:
    """https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md#signature-scheme"""
    timestamp = int(at.timestamp())
    key = base64.b64decode(secret.removeprefix("whsec_"))
    proof = hmac.new(key, b"%b.%d.%b" % (event_id.encode(), timestamp, body), hashlib.sha256).digest()
    headers = {
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(proof).decode()}",
    }
    return Signed(headers, body)


def midtrans(body: bytes, secret: str, *, at: datetime = NOW, event_id: str = EVENT_ID) -> Signed:
    """https://docs.midtrans.com/docs/https-notification-webhooks#verifying-notification-authenticity"""
    document = json.loads(body)
    message = document["order_id"] + document["status_code"] + document["gross_amount"] + secret
    document["signature_key"] = hashlib.sha512(message.encode()).hexdigest()
    return Signed({}, json.dumps(document).encode())


def xendit(body: bytes, secret: str, *, at: datetime = NOW, event_id: str = EVENT_ID) -> Signed:
    """https://docs.xendit.co/apidocs/payment-webhook-notification"""
    return Signed({"x-callback-token": secret, "webhook-id": event_id}, body)


def adyen(body: bytes, secret: str, *, at: datetime = NOW, event_id: str = EVENT_ID) -> Signed:
    """https://docs.adyen.com/development-resources/webhooks/secure-webhooks/verify-hmac-signatures"""
    document = json.loads(body)
    for wrapper in document["notificationItems"]:
        item = wrapper["NotificationRequestItem"]
        item.setdefault("additionalData", {})["hmacSignature"] = adyen_signature(item, secret)
    return Signed({}, json.dumps(document).encode())


def adyen_signature(item: dict[str, Any], secret: str) -> str:
    """Return the signature of one NotificationRequestItem."""
    fields = [
        item.get("pspReference", ""),
        item.get("originalReference", ""),
        item.get("merchantAccountCode", ""),
        item.get("merchantReference", ""),
        str(item["amount"]["value"]),
        item["amount"]["currency"],
        item["eventCode"],
        item["success"],
    ]
    proof = hmac.new(binascii.unhexlify(secret), ":".join(fields).encode(), hashlib.sha256).digest()
    return base64.b64encode(proof).decode()


# One line per gateway, by the name it is registered under.
SIGN: Final[dict[str, Sign]] = {
    "stripe": stripe,
    "razorpay": razorpay,
    "standard_webhooks": standard_webhooks,
    "midtrans": midtrans,
    "xendit": xendit,
    "adyen": adyen,
}
