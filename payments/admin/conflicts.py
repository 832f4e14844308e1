"""Another content under an id that is taken: in which fields it differs from what was claimed."""

from collections.abc import Sequence
from typing import Final

from django.utils.html import format_html
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from payments import claims
from payments.admin import cells, compare, reread
from payments.admin.tables import Section
from payments.gateways import base
from payments.models import Claim, Event, Finding

# A claim with more contents than this is an attack or a broken sender; the first ones tell what is going on.
CONTENTS_MAX: Final = 20
COMPARED_MAX: Final = 3  # on one page; each has a page of its own


def contents_of(claim: Claim) -> list[Event]:
    """Return the stored contents of a claim, the first one first; the bodies of the first few are read."""
    contents = Event.objects.filter(claim=claim).select_related("endpoint", "claim").defer("body", "claim__reply_body")
    found = list(contents.order_by("pk")[:CONTENTS_MAX])
    read_bodies(found[: COMPARED_MAX + 1])
    return found


def read_bodies(events: Sequence[Event]) -> None:
    """Read the bodies of events that were read without them: one query."""
    read = dict(Event.objects.filter(pk__in=[event.pk for event in events]).values_list("pk", "body"))
    for event in events:
        event.body = read[event.pk]


def others(contents: Sequence[Event]) -> list[Event]:
    return [event for event in contents if event.role == Event.Role.CONFLICT]


def differing_fields(claim: Claim, event: Event, told: Sequence[Finding]) -> list[str]:
    """Return the names of the fields in which a conflicting content differs from the claim's.

    Read again from the bytes; where they are pruned, from what was found when it came.
    """
    fingerprint = reread.fingerprint_of(event)
    if fingerprint is not None:
        return claims.differing_fields(claim.fingerprint, fingerprint)
    return sorted({name for finding in told for name in finding.detail.get("differing_fields", [])})


def warning(claim: Claim, contents: Sequence[Event], told: Sequence[Finding]) -> list[Section]:
    """Return a warning that names the differing fields of each other content that came under the id."""
    if not (conflicting := others(contents)):
        return []
    rows = [
        [
            cells.link(event, _now("see it")),
            cells.moment(event.received_at),
            ", ".join(differing_fields(claim, event, told)) or _now("no longer known: the body is pruned"),
        ]
        for event in conflicting[:COMPARED_MAX]
    ]
    rows += [
        [cells.link(event, _now("see it")), cells.moment(event.received_at), cells.EMPTY]
        for event in conflicting[COMPARED_MAX:]
    ]
    return [
        Section(
            title=_("Conflict: other content under the same event id"),
            warning=_("This event id was used again for other content. Nothing of that was booked."),
            headings=[_("Other content"), _("Received"), _("Fields that differ")],
            rows=rows,
        )
    ]


def comparisons(contents: Sequence[Event], event: Event, told: Sequence[Finding]) -> list[Section]:
    """Return the first content and others side by side; on another content's page only that one."""
    is_other = event.role == Event.Role.CONFLICT
    compared = [other for other in others(contents) if other.pk == event.pk or not is_other][:COMPARED_MAX]
    return [_comparison(contents[0], other, told, in_full=len(compared) == 1) for other in compared]


def _comparison(first: Event, other: Event, told: Sequence[Finding], *, in_full: bool) -> Section:
    title = _("Side by side: what we claimed, and the other content")
    if first.claim is None or first.body is None or other.body is None:
        return Section(title=title, empty=_("A body was pruned; there is nothing left to compare."))
    deciding = differing_fields(first.claim, other, told)
    try:
        found = compare.side_by_side(bytes(first.body), bytes(other.body), deciding=deciding)
    except base.Unusable:
        return Section(title=title, empty=_("One of them is not JSON; compare the texts on their pages."))
    return Section(
        title=title,
        headings=[_("Field"), _("Claimed"), cells.link(other, _now("Other content")), _("Decides")],
        rows=[
            [_code(row.name), _code(row.first), _code(row.other), _decides(row)]
            for row in found
            if in_full or row.differs
        ],
        marked=sum(row.differs for row in found),
        note=_("What differs comes first. “Decides”: this makes it another content, not only other bytes."),
    )


def _code(text: str) -> str:
    return format_html("<code>{}</code>", text)


def _decides(row: compare.Row) -> str:
    return _now("yes") if row.differs and row.decides else ""
