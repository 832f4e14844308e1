"""Accounts: a balance, and the entries that make it."""

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from payments.admin import cells, rows
from payments.admin.readonly import ReadOnlyAdmin
from payments.admin.search import Column
from payments.admin.tables import Section, table
from payments.models import Account, Entry


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
        entries = Entry.objects.filter(account=instance).order_by("-pk")
        related = entries.select_related("transfer__payment", "transfer__claim")
        return [
            table(
                _("Entries, the newest first"),
                related.defer("transfer__claim__reply_body"),
                rows.ACCOUNT_ENTRIES,
                more_url=cells.list_url(Entry, account__id__exact=instance.pk),
                empty=_("Nothing was ever booked here."),
            )
        ]
