"""What is owed to the outside world, what checks saw, and what staff did."""

from operator import itemgetter
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from payments.admin import acts, bodies, cells, codes, finding_page, period, rows
from payments.admin.readonly import ReadOnlyAdmin
from payments.admin.search import Column
from payments.admin.tables import Section, table
from payments.models import Finding, OutboxMessage, StaffAction, Verification


class OpenFindings(admin.SimpleListFilter):
    """Open findings, unless asked for others."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("open", _("Open")), ("closed", _("Closed")), ("all", _("All"))]

    def value(self) -> str:
        given = super().value()
        return given if given in ("closed", "all") else "open"

    def choices(self, changelist: Any) -> Any:
        for name, label in self.lookup_choices:
            query = changelist.get_query_string({self.parameter_name: name})
            yield {"selected": self.value() == name, "query_string": query, "display": label}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == "all" or request.GET.get("q"):
            return queryset
        return queryset.filter(closed_at__isnull=self.value() == "open")


class Kind(admin.SimpleListFilter):
    """Findings of one kind."""

    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return sorted(((kind, codes.shown(kind)) for kind in finding_page.MEANINGS), key=itemgetter(1))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(kind=self.value()) if self.value() else queryset


@admin.register(Finding)
class FindingAdmin(ReadOnlyAdmin):
    related = ("endpoint",)
    list_filter = [OpenFindings, Kind]
    searched = (Column("kind"), Column("subject", is_key=True))
    search_help_text = _("An event's id, a payment's reference, a business key or a kind of finding, or how it begins")
    list_display = [
        cells.code_column("kind", _("kind")),
        "subject",
        cells.link_column("endpoint", _("endpoint")),
        cells.moment_column("opened_at", _("opened")),
        cells.moment_column("closed_at", _("closed")),
        cells.column(_("closed by"), codes.closed_by, name="closed_by"),
    ]
    fields = [
        cells.code_column("kind", _("kind")),
        "subject",
        "endpoint",
        cells.moment_column("opened_at", _("opened")),
        cells.moment_column("closed_at", _("closed")),
        cells.column(_("closed by"), codes.closed_by, name="closed_by"),
        cells.column(_("close reason"), codes.close_reason, name="close_reason"),
    ]

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns; of open findings, none about their end."""
        if request.GET.get("q") or request.GET.get("state") in ("closed", "all"):
            return self.list_display
        return [one for one in self.list_display if getattr(one, "__name__", "") not in ("closed_at", "closed_by")]

    def sections(self, request: HttpRequest, instance: Finding) -> list[Section]:
        return finding_page.sections(self.admin_site, request, instance)


@admin.register(OutboxMessage)
class OutboxMessageAdmin(ReadOnlyAdmin):
    related = ("transfer",)
    left_out = ("body",)
    list_filter = ["state"]
    searched = (Column("key"),)
    search_help_text = _("A message's key (webhook-id), or how it begins")
    list_display = [
        "key",
        "destination",
        "topic",
        "state",
        "attempts",
        cells.moment_column("due_at", _("due")),
        cells.moment_column("sent_at", _("sent")),
        cells.link_column("transfer", _("transfer")),
    ]
    fields = [
        "key",
        "destination",
        "topic",
        "state",
        "attempts",
        "last_error",
        "transfer",
        cells.moment_column("created_at", _("created")),
        cells.moment_column("due_at", _("due")),
        cells.moment_column("sent_at", _("sent")),
    ]

    def sections(self, request: HttpRequest, instance: OutboxMessage) -> list[Section]:
        done = StaffAction.objects.filter(subject=instance.key).order_by("-pk")
        return [
            Section(
                title=_("What is sent"),
                text=bodies.shown(instance.body.encode()).text if instance.body else None,
                empty=_("The body was pruned after its retention time."),
                note=instance.last_error,
                buttons=acts.buttons(request, instance),
            ),
            table(_("What staff did"), done, rows.ACTIONS),
        ]


@admin.register(StaffAction)
class StaffActionAdmin(ReadOnlyAdmin):
    list_filter = [period.by("done_at")]
    list_display = [
        cells.moment_column("done_at", _("done")),
        "actor",
        cells.code_column("action", _("action")),
        "subject",
        "reason",
    ]
    fields = [
        "actor",
        cells.code_column("action", _("action")),
        "subject",
        "reason",
        cells.json_column("detail", _("detail")),
        cells.moment_column("done_at", _("done")),
    ]


def _verdict(run: Verification) -> str:
    return gettext("Broken: %(count)d") % {"count": len(run.broken)} if run.broken else gettext("Clean")


@admin.register(Verification)
class VerificationAdmin(ReadOnlyAdmin):
    list_filter = [period.by("finished_at")]
    list_display = [
        cells.moment_column("finished_at", _("finished")),
        cells.column(_("verdict"), _verdict),
        cells.yes_or_no_column("is_full", _("is full")),
    ]
    fields = [
        cells.column(_("verdict"), _verdict),
        cells.yes_or_no_column("is_full", _("is full")),
        "horizon",
        cells.json_column("checked", _("checked")),
        cells.json_column("broken", _("broken")),
        cells.moment_column("started_at", _("started")),
        cells.moment_column("finished_at", _("finished")),
    ]
