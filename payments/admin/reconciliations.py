"""What was compared with gateways' statements: each run, and the lines that a person may want to see."""

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from payments.admin import cells, codes, period, rows
from payments.admin.readonly import ReadOnlyAdmin
from payments.admin.tables import Section, table
from payments.models import Finding, Reconciliation, ReconciliationLine, Transfer
from payments.reconciliation.summary import REASONS


def _counts(run: Reconciliation) -> str:
    """Return how many lines are what; not what there is none of."""
    return ", ".join(f"{codes.shown(name)}: {cells.number(count)}" for name, count in run.counts.items() if count)


def _summary(run: Reconciliation) -> Section:
    """Return what the gateway owes by its statement and by our books, and what explains the difference."""
    return Section(
        title=_("What the gateway owes us"),
        headings=[_("By its statement"), _("By our books"), _("Difference"), _("Explained by"), _("Unexplained")],
        rows=[
            [
                *(cells.amount(one[name], one["currency"]) for name in ("gateway", "ours", "difference")),
                cells.joined(
                    format_html("{}: {}", codes.shown(REASONS[reason]), cells.amount(amount, one["currency"]))
                    for reason, amount in one["explained"].items()
                ),
                cells.amount(one["unexplained"], one["currency"]),
            ]
            for one in run.summary
        ],
        empty=_("Nothing yet."),
    )


@admin.register(Reconciliation)
class ReconciliationAdmin(ReadOnlyAdmin):
    related = ("endpoint",)
    list_filter = [period.by("started_at")]
    list_display = [
        cells.moment_column("started_at", _("started")),
        cells.link_column("endpoint", _("endpoint")),
        "file_name",
        "format",
        cells.column(_("counts"), _counts),
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
        cells.column(_("counts"), _counts),
    ]

    def sections(self, request: HttpRequest, instance: Reconciliation) -> list[Section]:
        lines = ReconciliationLine.objects.filter(reconciliation=instance).order_by("pk")
        booked = ReconciliationLine.Verdict.BOOKED
        narrowed = {"reconciliation__id__exact": instance.pk}
        return [
            _summary(instance),
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
        cells.yes_or_no_column("is_beside", _("is beside")),
        cells.amount_column("amount", _("statement")),
        cells.amount_column("booked_amount", _("booked"), currency="booked_currency"),
        cells.moment_column("occurred_at", _("occurred")),
        "reconciliation",
    ]

    def sections(self, request: HttpRequest, instance: ReconciliationLine) -> list[Section]:
        transfers = Transfer.objects.filter(key=instance.key).select_related("claim").order_by("pk")
        found = Finding.objects.filter(subject=instance.key).order_by("pk")
        return [table(_("Transfers"), transfers, rows.TRANSFERS), table(_("Findings"), found, rows.FINDINGS)]
