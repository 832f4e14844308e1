"""The Django application."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class PaymentsConfig(AppConfig):
    name = "payments"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and the handlers of installed applications."""
        from payments import checks  # noqa: F401

        autodiscover_modules("handlers")
