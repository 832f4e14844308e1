"""An event's page: what the gateway said, what we made of it, what was booked, in the order in which it happened."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from payments.admin import acts, bodies, cells, codes, conflicts, curl, finding_page, reread, rows, stories, timeline
from payments.admin.tables import Section, table
from payments.facts import Fact
from payments.models import Attempt, Claim, Event, Finding, Payment, Transfer

DELIVERIES_MAX: Final = 25
EVENTS_MAX: Final = 25

FACTS: rows.Columns = [
    (_("Fact"), lambda fact: codes.shown(fact.kind)),
    (_("About"), lambda fact: fact.object_id),
    (_("Amount"), lambda fact: cells.amount(fact.amount_minor, fact.currency)),
    (_("Payee it names"), lambda fact: fact.account or cells.EMPTY),
    (_("Merchant's reference"), lambda fact: fact.reference or cells.EMPTY),
]


def sections(request: HttpRequest, event: Event) -> list[Section]:
    """Return the parts of the page, what needs a person first."""
    notice = reread.notice_of(event)
    facts = () if notice is None else notice.facts
    payments = _payments(event, facts)
    contents = [event] if event.claim is None else conflicts.contents_of(event.claim)
    story = stories.of_event(event, payments)
    return [
        *_conflict(event, contents, story),
        *_trouble(request, event, story),
        _timeline(event, contents, story),
        *_differences(event, contents, story),
        body(request, event),
        table(_("What we understood"), facts, FACTS, empty=_("No facts that we book.")),
        *([] if event.claim is None else [reply(event.claim, of_first=event.role == Event.Role.CONFLICT)]),
        _booked(event, story),
        *_told_again(story),
        *_if_any(table(_("Payment"), payments, rows.PAYMENTS)),
        *_if_any(table(_("Messages to the outside"), story.messages, rows.MESSAGES)),
        *_if_any(_events(payments)),
        _curl(request, event),
    ]


def body(request: HttpRequest, event: Event, *, revealed: bool = False) -> Section:
    """Return the raw body as text, cut to size."""
    title = _("What the gateway said")
    if event.body is None:
        return Section(title=title, empty=_("The body was pruned after its retention time."))
    shown = bodies.shown(bytes(event.body), revealed=revealed)
    notes = [gettext("%(bytes)d bytes.") % {"bytes": shown.size_bytes}]
    if shown.is_cut:
        notes.append(gettext("Only the beginning is shown; the download has all of it."))
    if shown.is_masked:
        notes.append(gettext("Personal data is hidden."))
    # There is nothing to reveal where nothing is hidden.
    hidden = [] if shown.is_masked else ["reveal"]
    buttons = [] if revealed else acts.buttons(request, event, without=hidden)
    return Section(title=title, note=" ".join(notes), text=shown.text, buttons=buttons)


def reply(claim: Claim, *, of_first: bool = False) -> Section:
    """Return the stored answer to the claimed content. of_first: told on another content's page."""
    return Section(
        title=_("What we answer to the first content") if of_first else _("What we answer, every time"),
        note=f"{claim.reply_status} {claim.reply_content_type}",
        text=bodies.as_sent(bytes(claim.reply_body)),
    )


def _booked(event: Event, story: stories.Story) -> Section:
    is_other = event.role == Event.Role.CONFLICT
    title = _("What the first content booked") if is_other else _("What was booked")
    return table(title, story.entries, rows.ENTRIES, empty=_("Nothing was booked by this event."))


def _if_any(section: Section) -> list[Section]:
    return [section] if section.rows else []


def _conflict(event: Event, contents: Sequence[Event], story: stories.Story) -> list[Section]:
    if event.claim is None:
        return []
    return conflicts.warning(event.claim, contents, _conflicts_found(story))


def _differences(event: Event, contents: Sequence[Event], story: stories.Story) -> list[Section]:
    return [] if event.claim is None else conflicts.comparisons(contents, event, _conflicts_found(story))


def _conflicts_found(story: stories.Story) -> list[Finding]:
    return [finding for finding in story.findings if finding.kind == "conflict"]


def _trouble(request: HttpRequest, event: Event, story: stories.Story) -> list[Section]:
    """Return what is open about an event, and what the reader may do about it."""
    buttons = acts.buttons(request, event.claim)
    if story.open_findings:
        # To retry the finding is to retry the event.
        shown = finding_page.open_ones(request, _("Open findings"), story.open_findings, without=["retry-found"])
        return [replace(shown, text=event.note or None, buttons=buttons)]
    if event.claim is None or event.claim.outcome in (Claim.Outcome.QUARANTINED, Claim.Outcome.IGNORED):
        return [Section(title=_("Why nothing is booked"), text=event.note, buttons=buttons)]
    return []


def _timeline(event: Event, contents: Sequence[Event], story: stories.Story) -> Section:
    attempts = Attempt.objects.filter(endpoint_id=event.endpoint_id, event_id=event.event_id).order_by("-pk")
    newest = list(attempts[: DELIVERIES_MAX + 1])
    moments = [
        *timeline.every(timeline.of_content, contents),
        *([] if event.claim is None else [timeline.of_claim(event.claim)]),
        *map(timeline.of_attempt, reversed(newest[:DELIVERIES_MAX])),
        *story.moments(),
    ]
    lookups = {"endpoint__id__exact": event.endpoint_id, "event_id__exact": event.event_id}
    return Section(
        title=_("What happened"),
        lines=timeline.lines(moments),
        note="" if newest else _("No delivery is in the log: it doesn't wait for the disk, and may have gaps."),
        more_url=cells.list_url(Attempt, **lookups) if len(newest) > DELIVERIES_MAX else None,
        more=_("All deliveries of this event; only the newest are shown here"),
    )


def _payments(event: Event, facts: Iterable[Fact]) -> list[Payment]:
    """Return the payments that the event is about: by what it says and by what it booked."""
    references = {fact.payment for fact in facts if fact.payment is not None}
    books_id = event.endpoint.books_id or event.endpoint_id
    about = Q(endpoint_id=books_id, reference__in=references)
    if event.claim_id is not None and not references:
        about = Q(pk__in=Transfer.objects.filter(claim_id=event.claim_id).values("payment_id"))
    return list(Payment.objects.filter(about).order_by("pk")[:20])


def _told_again(story: stories.Story) -> list[Section]:
    transfers = [sighting.transfer for sighting in story.sightings]
    if not transfers:
        return []
    return [table(_("Told again: booked before, not booked twice"), transfers, rows.TRANSFERS_TOLD)]


def _events(payments: Sequence[Payment]) -> Section:
    return table(
        _("All events of this payment"),
        stories.events_of(payments, events_max=EVENTS_MAX),
        rows.CLAIMS,
        note=_("Those that booked, corrected or told again; one that only tells a status leaves no trace here."),
    )


def _curl(request: HttpRequest, event: Event) -> Section:
    return Section(
        title=_("Deliver it again by hand"),
        note=_("Without secrets: sign it yourself. The file is the download of the raw bytes."),
        text=curl.command(event, origin=f"{request.scheme}://{request.get_host()}"),
    )
