"""What was delivered and what was decided: events, claims and the log of deliveries."""

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from payments.admin import answers, cells, event_page, period, rows
from payments.admin.readonly import ReadOnlyAdmin
from payments.admin.search import Column
from payments.admin.tables import Section
from payments.models import Attempt, Claim, Event

BY_EVENT_ID = _("An event id, or how it begins")


def outcome(event: Event) -> str:
    """Return what was decided about an event, or how often it failed on our side so far."""
    if event.claim is None:
        return gettext("Failed on our side: %(times)d") % {"times": event.failures}
    if event.role == Event.Role.CONFLICT:
        return gettext("Not booked: other content")
    return str(event.claim.get_outcome_display())


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    related = ("endpoint", "claim__endpoint")
    left_out = ("body", "claim__reply_body")
    narrowed_by = ("claim__id__exact",)
    searched = (
        Column("claim__event_id", endpoint="claim__endpoint_id"),
        Column("event_id", endpoint="endpoint_id", only=Q(claim__isnull=True)),
    )
    search_help_text = BY_EVENT_ID
    list_display = [
        "event_id",
        cells.link_column("endpoint", _("endpoint")),
        "event_type",
        "role",
        cells.column(_("outcome"), outcome),
        cells.moment_column("received_at", _("received")),
    ]
    fields = [
        "event_id",
        "endpoint",
        "event_type",
        "role",
        cells.column(_("outcome"), outcome),
        "claim",
        cells.moment_column("received_at", _("received")),
        cells.moment_column("occurred_at", _("occurred")),
        "note",
        "failures",
    ]

    def sections(self, request: HttpRequest, instance: Event) -> list[Section]:
        return event_page.sections(request, instance)


@admin.register(Claim)
class ClaimAdmin(ReadOnlyAdmin):
    related = ("endpoint",)
    list_filter = [period.by("claimed_at"), "outcome"]
    searched = (Column("event_id", endpoint="endpoint_id"),)
    search_help_text = BY_EVENT_ID
    list_display = [
        "event_id",
        cells.link_column("endpoint", _("endpoint")),
        "event_type",
        "outcome",
        "reply_status",
        cells.moment_column("claimed_at", _("claimed")),
    ]
    fields = [
        "event_id",
        "endpoint",
        "event_type",
        "outcome",
        cells.moment_column("claimed_at", _("claimed")),
        cells.json_column("fingerprint", _("fingerprint")),
        "fingerprint_version",
    ]

    def sections(self, request: HttpRequest, instance: Claim) -> list[Section]:
        # All that there is to say stands on the page of the event that was claimed.
        first = Event.objects.filter(claim=instance, role=Event.Role.FIRST).select_related(
            "endpoint", "claim__endpoint"
        )
        return [section for event in first for section in event_page.sections(request, event)]


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    related = ("endpoint",)
    list_filter = [period.by("received_at"), answers.Answer]
    narrowed_by = ("endpoint__id__exact", "event_id__exact")
    searched = (Column("event_id", endpoint="endpoint_id"),)
    search_help_text = BY_EVENT_ID
    list_display = [
        cells.moment_column("received_at", _("received")),
        cells.link_column("endpoint", _("endpoint")),
        "event_id",
        "status",
        cells.yes_or_no_column("replayed", _("replayed")),
        cells.column(_("took"), rows.duration),
        "lost",
    ]
    fields = [
        cells.moment_column("received_at", _("received")),
        "endpoint",
        "event_id",
        "status",
        cells.yes_or_no_column("replayed", _("replayed")),
        cells.column(_("took"), rows.duration),
        "lost",
        cells.moment_column("lost_until", _("lost until")),
    ]
