"""The ledger's history: transfers, their entries, and who told them again."""

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from payments.admin import cells, rows, stories
from payments.admin.readonly import ReadOnlyAdmin
from payments.admin.search import Column
from payments.admin.tables import Section, table
from payments.models import Correction, Entry, Event, Finding, Sighting, Transfer


@admin.register(Transfer)
class TransferAdmin(ReadOnlyAdmin):
    related = ("endpoint", "payment", "claim", "reverses")
    left_out = ("claim__reply_body",)
    narrowed_by = ("payment__id__exact", "claim__id__exact")
    searched = (Column("key"),)
    search_help_text = _("A business key, or how it begins: demo:pay_1:captured")
    list_display = [
        "key",
        cells.code_column("kind", _("kind")),
        cells.amount_column("amount", _("amount")),
        cells.link_column("payment", _("payment")),
        cells.link_column("claim", _("event")),
        "source",
        cells.moment_column("occurred_at", _("occurred")),
        cells.moment_column("recorded_at", _("recorded")),
    ]
    fields = [
        "key",
        cells.code_column("kind", _("kind")),
        cells.amount_column("amount", _("amount")),
        "endpoint",
        "payment",
        "claim",
        "source",
        "reverses",
        "account_hint",
        cells.moment_column("occurred_at", _("occurred")),
        cells.moment_column("recorded_at", _("recorded")),
    ]

    def sections(self, request: HttpRequest, instance: Transfer) -> list[Section]:
        entries = Entry.objects.filter(transfer=instance).select_related("transfer", "account")
        events = Event.objects.filter(claim=instance.claim).order_by("pk")
        again = Sighting.objects.filter(transfer=instance).select_related("claim").order_by("pk")
        corrections = Correction.objects.filter(key=instance.key).select_related("claim").order_by("pk")
        reversals = Transfer.objects.filter(reverses=instance).select_related("claim").order_by("pk")
        return [
            table(_("Entries"), entries.order_by("line"), rows.ENTRIES),
            table(
                _("The event that told it"),
                [] if instance.claim_id is None else events,
                rows.CONTENTS,
                empty=_("No webhook told it; see its source."),
            ),
            table(_("Told again by"), again, rows.SIGHTINGS, empty=_("Nobody.")),
            table(_("Corrected by"), corrections, rows.CORRECTIONS, empty=_("Nothing.")),
            table(_("Reversed by"), reversals, rows.TRANSFERS, empty=_("Nothing.")),
            table(_("Messages to the outside"), stories.messages_of([instance]), rows.MESSAGES),
            table(_("Findings"), Finding.objects.filter(subject=instance.key).order_by("pk"), rows.FINDINGS),
        ]


@admin.register(Entry)
class EntryAdmin(ReadOnlyAdmin):
    related = ("transfer__payment", "transfer__claim", "account")
    left_out = ("transfer__claim__reply_body",)
    narrowed_by = ("account__id__exact", "transfer__id__exact")
    searched = (Column("transfer__key"),)
    search_help_text = _("The business key of its transfer, or how it begins")
    list_display = [
        "id",
        cells.link_column("transfer", _("transfer")),
        "line",
        cells.link_column("account", _("account")),
        cells.column(_("debit"), lambda entry: rows.side(entry, Entry.Direction.DEBIT)),
        cells.column(_("credit"), lambda entry: rows.side(entry, Entry.Direction.CREDIT)),
        cells.column(_("payment"), lambda entry: cells.link(entry.transfer.payment)),
        cells.column(_("event"), lambda entry: cells.link(entry.transfer.claim)),
        cells.column(_("recorded"), lambda entry: cells.moment(entry.transfer.recorded_at)),
    ]
    fields = [
        "transfer",
        "line",
        "account",
        "direction",
        cells.amount_column("amount", _("amount")),
        cells.column(_("payment"), lambda entry: cells.link(entry.transfer.payment)),
        cells.column(_("event"), lambda entry: cells.link(entry.transfer.claim)),
    ]


@admin.register(Sighting)
class SightingAdmin(ReadOnlyAdmin):
    related = ("transfer", "claim")
    left_out = ("claim__reply_body",)
    narrowed_by = ("transfer__id__exact", "claim__id__exact")
    searched = (Column("transfer__key"),)
    search_help_text = _("The business key of its transfer, or how it begins")
    list_display = [
        "id",
        cells.link_column("transfer", _("transfer")),
        "source",
        cells.link_column("claim", _("event")),
        cells.moment_column("seen_at", _("seen")),
    ]
    fields = ["transfer", "source", "claim", cells.moment_column("seen_at", _("seen"))]
