"""What was compared with gateways' statements: each run, and the lines that a person may want to see."""

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from payments.admin import cells, period, rows
from payments.admin.readonly import ReadOnlyAdmin
from payments.admin.tables import Section, table
from payments.models import Finding, Reconciliation, ReconciliationLine, Transfer


@admin.register(Reconciliation)
class ReconciliationAdmin(ReadOnlyAdmin):
    related = ("endpoint",)
    list_filter = [period.by("started_at")]
    list_display = [
        cells.moment_column("started_at", _("started")),
        cells.link_column("endpoint", _("endpoint")),
        "file_name",
        "format",
        cells.json_column("counts", _("counts")),
        cells.moment_column("finished_at", _("finished")),
    ]
    fields = [
        "endpoint",
        "file_name",
        "format",
        "file_digest",
        cells.moment_column("window_from", _("from")),
        cells.moment_column("window_to", _("to")),
        cells.moment_column("started_at", _("started")),
        cells.moment_column("finished_at", _("finished")),
        cells.json_column("counts", _("counts")),
        cells.json_column("summary", _("summary")),
    ]

    def sections(self, request: HttpRequest, instance: Reconciliation) -> list[Section]:
        lines = ReconciliationLine.objects.filter(reconciliation=instance).order_by("pk")
        booked = ReconciliationLine.Verdict.BOOKED
        narrowed = {"reconciliation__id__exact": instance.pk}
        return [
            table(
                _("Lines to look at"),
                lines.exclude(verdict=booked),
                rows.RECONCILED,
                more_url=cells.list_url(ReconciliationLine, **narrowed),
                empty=_("None: statement and ledger agree."),
            ),
            table(
                _("Booked from the statement: no webhook brought them"),
                lines.filter(verdict=booked),
                rows.RECONCILED,
                more_url=cells.list_url(ReconciliationLine, verdict__exact=booked, **narrowed),
            ),
        ]


@admin.register(ReconciliationLine)
class ReconciliationLineAdmin(ReadOnlyAdmin):
    related = ("reconciliation",)
    narrowed_by = ("reconciliation__id__exact",)
    list_filter = ["verdict"]
    list_display = [
        "key",
        "verdict",
        "number",
        cells.amount_column("amount", _("statement")),
        cells.amount_column("booked_amount", _("booked"), currency="booked_currency"),
        cells.moment_column("occurred_at", _("occurred")),
        "why",
        cells.link_column("reconciliation", _("reconciliation")),
    ]
    fields = [
        "key",
        "verdict",
        "why",
        cells.code_column("kind", _("kind")),
        "number",
        "is_beside",
        cells.amount_column("amount", _("statement")),
        cells.amount_column("booked_amount", _("booked"), currency="booked_currency"),
        cells.moment_column("occurred_at", _("occurred")),
        "reconciliation",
    ]

    def sections(self, request: HttpRequest, instance: ReconciliationLine) -> list[Section]:
        transfers = Transfer.objects.filter(key=instance.key).select_related("claim").order_by("pk")
        found = Finding.objects.filter(subject=instance.key).order_by("pk")
        return [table(_("Transfers"), transfers, rows.TRANSFERS), table(_("Findings"), found, rows.FINDINGS)]
