"""Deliveries as gateways make them, for tests: signed by the tests' own code, never the product's."""

import itertools
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from django.test import Client

from tests.unit.gateways import signing

SECRETS: Final = {
    "DEMO": "whsec_c2VrYWxpLWRlbW8tZW5kcG9pbnQtc2VjcmV0LTAwMA==",
    "STRIPE": "whsec_demo_stripe",
    "MIDTRANS": "SB-Mid-server-demo",
    "XENDIT": "xnd-callback-demo",
    "ADYEN": "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056",
    "RAZORPAY": "rzp-demo-secret",
}
Answer = Any  # what Django's test client returns has no name of its own
_numbers = itertools.count(1)


def demo_body(event_type: str, data: Any, *, timestamp: str = "2026-11-30T10:00:00Z") -> bytes:
    """Return the body of an event of the demo's vocabulary."""
    return json.dumps({"type": event_type, "timestamp": timestamp, "data": data}).encode()


def demo(body: bytes, *, event_id: str | None = None, at: datetime | None = None) -> signing.Signed:
    """Return a delivery to the demo endpoint, signed now; the event id is a new one unless given."""
    number = f"evt_{next(_numbers)}" if event_id is None else event_id
    return signing.standard_webhooks(body, SECRETS["DEMO"], at=at or datetime.now(UTC), event_id=number)


@dataclass
class Deliver:
    """Call with an event type and its data's members: `deliver("payment.captured", payment="pay_1", …)`."""

    client: Client
    slug: str = "demo"
    defaults: dict[str, Any] = field(default_factory=lambda: {"currency": "IDR"})

    def __call__(self, event_type: str, *, event_id: str | None = None, **data: Any) -> Answer:
        return self.raw(demo_body(event_type, {**self.defaults, **data}), event_id=event_id)

    def raw(self, body: bytes, *, event_id: str | None = None) -> Answer:
        """Post these very bytes, signed."""
        signed = demo(body, event_id=event_id)
        return self.client.post(f"/webhooks/{self.slug}/", signed.body, "application/json", headers=signed.headers)


def outcome(response: Answer) -> str:
    """Return the outcome that a 200 tells, else the status."""
    return str(json.loads(response.content)["outcome"]) if response.status_code == 200 else str(response.status_code)
