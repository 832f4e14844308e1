"""The gateways that Sekali understands: one file each, and one line here."""

from typing import Final

from django.utils.module_loading import import_string

from payments.gateways.base import Gateway

_GATEWAYS: Final = (
    "payments.gateways.adyen.Adyen",
    "payments.gateways.midtrans.Midtrans",
    "payments.gateways.razorpay.Razorpay",
    "payments.gateways.standard_webhooks.StandardWebhooks",
    "payments.gateways.stripe.Stripe",
    "payments.gateways.xendit.Xendit",
)


def register(gateway: type[Gateway]) -> None:
    """Let endpoints be of this gateway, by its name. Raises ValueError where another has the name."""
    known = REGISTRY.setdefault(gateway.name, gateway())
    if type(known) is not gateway:
        raise ValueError(f"there is a gateway {gateway.name} already: {type(known).__qualname__}")


REGISTRY: Final[dict[str, Gateway]] = {}
for _path in _GATEWAYS:
    register(import_string(_path))
