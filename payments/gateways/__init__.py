"""The gateways that Sekali understands: one file each, and one line here."""

from typing import Final

from payments.gateways.adyen import Adyen
from payments.gateways.base import Gateway
from payments.gateways.midtrans import Midtrans
from payments.gateways.razorpay import Razorpay
from payments.gateways.standard_webhooks import StandardWebhooks
from payments.gateways.stripe import Stripe
from payments.gateways.xendit import Xendit

_GATEWAYS: Final[tuple[Gateway, ...]] = (
    Adyen(),
    Midtrans(),
    Razorpay(),
    StandardWebhooks(),
    Stripe(),
    Xendit(),
)
REGISTRY: Final[dict[str, Gateway]] = {gateway.name: gateway for gateway in _GATEWAYS}
