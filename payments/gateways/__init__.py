"""The gateways that Sekali understands: one file each, and one line here."""

from typing import Final

from payments.gateways.base import Gateway
from payments.gateways.razorpay import Razorpay
from payments.gateways.standard_webhooks import StandardWebhooks
from payments.gateways.stripe import Stripe

_GATEWAYS: Final[tuple[Gateway, ...]] = (
    Razorpay(),
    StandardWebhooks(),
    Stripe(),
)
REGISTRY: Final[dict[str, Gateway]] = {gateway.name: gateway for gateway in _GATEWAYS}
