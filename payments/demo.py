"""The demo's endpoints, accounts and staff user: what `make run` serves at its first start.

After a crash: run again; what is there already stays as it is.
"""

from typing import Final

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction

from payments import models, payees

# slug -> gateway. Each real gateway's payments are merchant-1's unless something names another payee.
ENDPOINTS: Final = {
    "demo": "standard_webhooks",
    "stripe": "stripe",
    "midtrans": "midtrans",
    "xendit": "xendit",
    "adyen": "adyen",
    "razorpay": "razorpay",
}
MERCHANTS: Final = 1000
MERCHANTS_WITH_ALL_CURRENCIES: Final = 10
OTHER_CURRENCIES: Final = ("USD", "JPY", "KWD", "EUR", "INR")


def seed() -> dict[str, int]:
    """Make what is missing of the demo; return how many endpoints and accounts were made."""
    with transaction.atomic():
        endpoints = [
            models.Endpoint.objects.get_or_create(
                slug=slug,
                defaults={"gateway": gateway, "default_payee": None if slug == "demo" else "merchant-1"},
            )[1]
            for slug, gateway in ENDPOINTS.items()
        ]
    wanted = [(f"merchant-{n}", "IDR") for n in range(1, MERCHANTS + 1)]
    wanted += [(f"merchant-{n}", c) for n in range(1, MERCHANTS_WITH_ALL_CURRENCIES + 1) for c in OTHER_CURRENCIES]
    opened = payees.open_accounts([(code, currency, "liability") for code, currency in wanted])
    _staff_user()
    return {"endpoints": sum(endpoints), "accounts": opened}


def _staff_user() -> None:
    user, is_new = get_user_model().objects.get_or_create(
        username="admin", defaults={"is_staff": True, "is_superuser": True}
    )
    if is_new or not user.check_password(settings.ADMIN_PASSWORD):
        user.set_password(settings.ADMIN_PASSWORD)
        user.save()
