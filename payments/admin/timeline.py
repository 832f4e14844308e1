"""What happened, in the order in which it did: one line each, with its time and how long after the line before."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _

from payments import conf
from payments.admin import cells, codes, rows
from payments.gateways import base
from payments.models import (
    Attempt,
    Claim,
    Correction,
    Entry,
    Event,
    Finding,
    OutboxMessage,
    Sighting,
    StaffAction,
    Transfer,
)

GOOD: Final = "good"
BAD: Final = "bad"
QUIET: Final = "quiet"


@dataclass(frozen=True, slots=True)
class Moment:
    """One line. rank decides between moments of one transaction, which have one time. mood: a CSS class."""

    at: datetime
    what: str
    detail: str = ""
    rank: int = 5
    mood: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A moment as it is shown; gap: since the line before."""

    moment: Moment
    time: str
    gap: str


def lines(moments: Iterable[Moment]) -> list[Line]:
    """Return the moments in order."""
    shown: list[Line] = []
    previous: datetime | None = None
    for moment in sorted(moments, key=lambda one: (one.at, one.rank)):
        gap = "" if previous is None else _gap(moment.at - previous)
        shown.append(Line(moment, cells.moment(moment.at), gap))
        previous = moment.at
    return shown


def _gap(length: timedelta) -> str:
    seconds = length.total_seconds()
    if seconds < 0.001:
        return ""
    for size, unit in ((86_400, _("d")), (3600, _("h")), (60, _("min")), (1, _("s"))):
        if seconds >= size:
            return f"+{seconds / size:.0f} {unit}"
    return f"+{seconds * 1000:.0f} ms"


# Of an event ---------------------------------------------------------------------------------------------


def of_content(event: Event) -> list[Moment]:
    """Return when an event's content happened and came."""
    moments = []
    if event.occurred_at is not None and event.role != Event.Role.CONFLICT:
        moments.append(Moment(event.occurred_at, _("Happened, says the gateway"), event.event_type, 0, QUIET))
    if event.role == Event.Role.CONFLICT:
        link = cells.link(event, _("see it"))
        moments.append(Moment(event.received_at, _("Other content under the same id came"), link, 1, BAD))
    elif event.claim_id is None:
        moments.append(Moment(event.received_at, _("Failed on our side"), event.note, 1, BAD))
    else:
        moments.append(Moment(event.received_at, _("Came for the first time"), _signature(event), 1))
    return moments


def _signature(event: Event) -> str:
    """Return what was proved; nothing else is ever kept."""
    endpoint = conf.known_endpoint(event.endpoint.slug)
    if endpoint is None:
        return _("signature verified")
    return {
        base.Assurance.BODY_SIGNED: _("signature verified: over the whole body"),
        base.Assurance.FIELDS_SIGNED: _("signature verified: over some fields"),
        base.Assurance.TOKEN_ONLY: _("sender's token verified; this gateway signs no body"),
    }[endpoint.gateway.assurance]


def of_claim(claim: Claim) -> Moment:
    """Return when it was decided what an event is."""
    is_good = claim.outcome in (Claim.Outcome.APPLIED, Claim.Outcome.DUPLICATE)
    mood = BAD if claim.outcome == Claim.Outcome.QUARANTINED else GOOD if is_good else QUIET
    what = _("Claimed: %(outcome)s") % {"outcome": claim.get_outcome_display()}
    detail = _("answer %(status)d, the same every time") % {"status": claim.reply_status}
    return Moment(claim.claimed_at, what, detail, 2, mood)


def of_attempt(attempt: Attempt) -> Moment:
    """Return when a delivery was answered, with what, and after how long."""
    if attempt.status is None:
        lost = _("%(lost)d deliveries of any events are not in the log") % {"lost": attempt.lost}
        return Moment(attempt.received_at, lost, rank=9, mood=QUIET)
    what = _("Re-delivery answered %(status)d") if attempt.replayed else _("Delivery answered %(status)d")
    detail = _("after %(duration)s") % {"duration": rows.duration(attempt)}
    mood = BAD if attempt.status >= 400 else QUIET if attempt.replayed else ""
    return Moment(attempt.received_at, what % {"status": attempt.status}, detail, 9, mood)


# Of money ------------------------------------------------------------------------------------------------


def of_transfer(transfer: Transfer, entries: Sequence[Entry]) -> Moment:
    """Return when a fact was booked, and from where to where."""
    legs = format_html_join(", ", "{} {}", ((entry.get_direction_display(), _account(entry)) for entry in entries))
    detail = format_html(
        "{} {} · {}",
        cells.link(transfer, codes.shown(transfer.kind)),
        cells.amount(transfer.amount, transfer.currency),
        legs,
    )
    return Moment(transfer.recorded_at, _("Booked"), detail, 3, GOOD)


def _account(entry: Entry) -> str:
    return cells.link(entry.account, entry.account.code)


def of_sighting(sighting: Sighting) -> Moment:
    """Return when a fact was told that was booked before."""
    detail = cells.link(sighting.transfer)
    return Moment(sighting.seen_at, _("Told again, not booked twice"), detail, 3, QUIET)


def of_correction(correction: Correction) -> Moment:
    detail = format_html("{} {}", codes.shown(correction.kind), cells.link(correction))
    return Moment(correction.recorded_at, _("Corrects"), detail, 3)


# Of what follows -----------------------------------------------------------------------------------------


def of_message(message: OutboxMessage) -> list[Moment]:
    """Return when a message to the outside world was written, and when it was sent."""
    detail = format_html("{} → {}", cells.link(message, message.topic), message.destination)
    moments = [Moment(message.created_at, _("Message written"), detail, 6, QUIET)]
    if message.sent_at is not None:
        moments.append(Moment(message.sent_at, _("Message sent"), detail, 7, GOOD))
    elif message.state == OutboxMessage.State.DEAD:
        moments.append(Moment(message.due_at, _("Message given up"), detail, 7, BAD))
    return moments


def of_finding(finding: Finding) -> list[Moment]:
    detail = cells.link(finding, codes.shown(finding.kind))
    moments = [Moment(finding.opened_at, _("Finding opened"), detail, 4, BAD)]
    if finding.closed_at is not None:
        why = format_html("{} · {}: {}", detail, codes.closed_by(finding), codes.close_reason(finding))
        moments.append(Moment(finding.closed_at, _("Finding closed"), why, 8, GOOD))
    return moments


def of_action(action: StaffAction) -> Moment:
    detail = format_html("{} · {}: {}", cells.link(action, codes.shown(action.action)), action.actor, action.reason)
    return Moment(action.done_at, _("Staff"), detail, 8)


def every(show: Callable[[Any], list[Moment]], instances: Iterable[Any]) -> list[Moment]:
    return [moment for instance in instances for moment in show(instance)]
