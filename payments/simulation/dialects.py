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
from typing import Any, Final

from payments.facts import TYPE_NAMES, FactKind
from payments.simulation.stories import Happening

Telling = tuple[Mapping[str, str], bytes]  # headers, body


@dataclass(frozen=True, slots=True)
class Dialect:
    """One gateway's way to tell things.

    tell          happening, secret, now in unix seconds -> headers and body. The body is the same every time
    kinds         what it has events for
    names_payees  its events can say whose a payment is; else all are the endpoint's default payee's
    names_event   a delivery carries the event's id, and so the answer to it must
    """

    tell: Callable[[Happening, str, int], Telling]
    kinds: frozenset[FactKind]
    names_payees: bool = False
    names_event: bool = True


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
    intent = f"pi_{happening.payment}"
    subject: dict[str, Any] = {"currency": happening.currency.lower(), "livemode": True}
    if happening.kind is FactKind.PAYMENT_CAPTURED:
        event_type = "payment_intent.succeeded"
        amounts = dict.fromkeys(("amount", "amount_received"), happening.amount_minor)
        subject |= {"id": intent, "object": "payment_intent", "status": "succeeded", **amounts}
        subject["metadata"] = {"order_id": f"order_{happening.payment}"}
    else:
        event_type = "refund.updated"
        subject |= {"id": f"re_{happening.object_id}", "object": "refund", "status": "succeeded"}
        subject |= {"amount": happening.amount_minor, "payment_intent": intent}
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
    proof = hmac.digest(secret.encode(), b"%d.%b" % (now, body), hashlib.sha256)
    return {"stripe-signature": f"t={now},v1={proof.hex()}"}, body


_CAPTURES_AND_REFUNDS: Final = frozenset({FactKind.PAYMENT_CAPTURED, FactKind.REFUND_SUCCEEDED})

# By the gateway's name. A gateway that isn't here can't be simulated.
TABLE: Final[Mapping[str, Dialect]] = {
    "standard_webhooks": Dialect(
        _standard_webhooks, _CAPTURES_AND_REFUNDS | {FactKind.FEE_ASSESSED}, names_payees=True
    ),
    "stripe": Dialect(_stripe, _CAPTURES_AND_REFUNDS),
}
