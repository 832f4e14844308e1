"""What follows from a claim, for its own page and its event's: conflicts, the reply, the money."""

from collections.abc import Iterable, Sequence

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from payments.admin import bodies, cells, conflicts, rows
from payments.admin.tables import ROWS_MAX, Section, table
from payments.models import Claim, Entry, Event, Sighting, Transfer


def conflict_warning(claim: Claim, contents: Sequence[Event]) -> list[Section]:
    """Return a warning that names the differing fields of each other content that came under the id."""
    others = [event for event in contents if event.role == Event.Role.CONFLICT]
    if not others:
        return []
    return [
        Section(
            title=_("Conflict: other content under the same event id"),
            warning=_("This event id was used again for other content. Nothing of that was booked."),
            headings=[_("Other content"), _("Received"), _("Fields that differ")],
            rows=[
                [
                    cells.link(event, gettext("see it")),
                    cells.moment(event.received_at),
                    ", ".join(conflicts.differing_fields(claim, event))
                    or gettext("no longer known: the body is pruned"),
                ]
                for event in others
            ],
        )
    ]


def contents_table(contents: Sequence[Event]) -> Section:
    return table(_("What was delivered under this id"), contents, rows.CONTENTS)


def reply(claim: Claim, *, of_first: bool = False) -> Section:
    """Return the stored answer to the claimed content. of_first: told on another content's page."""
    return Section(
        title=_("What we answer to the first content") if of_first else _("What we answer, every time"),
        note=f"{claim.reply_status} {claim.reply_content_type}",
        text=bodies.as_sent(bytes(claim.reply_body)),
    )


def money(claim: Claim) -> list[Section]:
    """Return what the event booked, and what it told again that was booked before."""
    transfers = Transfer.objects.filter(claim=claim).select_related("claim").order_by("pk")
    entries = Entry.objects.filter(transfer__claim=claim).select_related("transfer", "account").order_by("pk")
    return [
        table(
            _("Transfers it booked"),
            transfers,
            rows.TRANSFERS,
            more_url=cells.list_url(Transfer, claim__id__exact=claim.pk),
        ),
        table(_("Their entries"), entries, rows.ENTRIES),
        *_told_again(
            Sighting.objects.filter(claim=claim).select_related("transfer__claim").order_by("pk")[:ROWS_MAX]
        ),
    ]


def _told_again(sightings: Iterable[Sighting]) -> list[Section]:
    transfers = [sighting.transfer for sighting in sightings]
    if not transfers:
        return []
    return [table(_("Transfers it told again: booked before, not booked twice"), transfers, rows.TRANSFERS)]
