"""Endpoints: where gateways post to. Their secrets are in the environment and never shown."""

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from payments.admin import cells
from payments.admin.readonly import ReadOnlyAdmin
from payments.models import Endpoint


@admin.register(Endpoint)
class EndpointAdmin(ReadOnlyAdmin):
    related = ("books",)
    list_display = ["slug", "gateway", "mode", "default_payee", "books"]
    fields = [
        "slug",
        "gateway",
        "mode",
        "external_account",
        "default_payee",
        "books",
        "conflicts",
        cells.yes_or_no_column("auto_capture", _("auto capture")),
        cells.yes_or_no_column("confirms", _("confirms")),
        cells.moment_column("created_at", _("created")),
    ]
