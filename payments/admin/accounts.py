"""Accounts: a balance, and the entries that make it."""

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from payments.admin import account_page, cells
from payments.admin.readonly import ReadOnlyAdmin
from payments.admin.search import Column
from payments.admin.tables import Section
from payments.models import Account


@admin.register(Account)
class AccountAdmin(ReadOnlyAdmin):
    related = ("endpoint",)
    searched = (Column("code"),)
    search_help_text = _("An account's code, or how it begins")
    list_display = [
        "code",
        "currency",
        "kind",
        cells.amount_column("balance", _("balance")),
        cells.amount_column("debits", _("debits")),
        cells.amount_column("credits", _("credits")),
        cells.link_column("endpoint", _("endpoint")),
    ]
    fields = [
        "code",
        "currency",
        "kind",
        "endpoint",
        cells.amount_column("balance", _("balance")),
        cells.amount_column("debits", _("debits")),
        cells.amount_column("credits", _("credits")),
        cells.moment_column("opened_at", _("opened")),
    ]

    def sections(self, request: HttpRequest, instance: Account) -> list[Section]:
        return account_page.sections(instance)
