"""Everything that belongs to an event or to a payment, read once for all parts of its page; each list is bounded."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from django.conf import settings
from django.db.models import QuerySet

from payments import outbox
from payments.admin import timeline
from payments.admin.timeline import Moment
from payments.facts import escape
from payments.models import (
    Claim,
    Correction,
    Entry,
    Event,
    Finding,
    OutboxMessage,
    Payment,
    Sighting,
    StaffAction,
    Transfer,
)

ROWS_MAX: Final = 50  # of each kind; a payment has a few


@dataclass(slots=True)
class Story:
    """What was booked, what follows from it, and what people did about it."""

    transfers: list[Transfer]
    entries: list[Entry]
    sightings: list[Sighting]
    corrections: list[Correction]
    messages: list[OutboxMessage]
    findings: list[Finding] = field(default_factory=list)
    actions: list[StaffAction] = field(default_factory=list)

    @property
    def open_findings(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.closed_at is None]

    def moments(self) -> list[Moment]:
        """Return all of it as lines of a timeline."""
        legs = {key: list(group) for key, group in groupby(self.entries, lambda entry: entry.transfer_id)}
        return [
            *(timeline.of_transfer(transfer, legs.get(transfer.pk, [])) for transfer in self.transfers),
            *map(timeline.of_sighting, self.sightings),
            *map(timeline.of_correction, self.corrections),
            *timeline.every(timeline.of_message, self.messages),
            *timeline.every(timeline.of_finding, self.findings),
            *map(timeline.of_action, self.actions),
        ]


def of_event(event: Event, payments: Iterable[Payment]) -> Story:
    """Read what an event led to. payments: those that it is about."""
    subjects = [f"{event.endpoint.slug}:{event.event_id}"]
    if event.claim_id is None:
        return _with_people(_story(), subjects)
    told = Sighting.objects.filter(claim=event.claim_id)
    # By the payment's index and then by claim: corrections have no index by claim.
    corrected = Correction.objects.filter(payment__in=list(payments), claim=event.claim_id)
    story = _story(Transfer.objects.filter(claim=event.claim_id), told, corrected)
    return _with_people(story, subjects)


def of_payment(payment: Payment) -> Story:
    """Read what was told, booked, sent and found of a payment."""
    transfers = Transfer.objects.filter(payment=payment)
    told = Sighting.objects.filter(transfer__payment=payment)
    story = _story(transfers, told, Correction.objects.filter(payment=payment))
    books, reference = payment.endpoint, payment.reference
    # An allocation names the books by their id.
    subjects = {f"{books.slug}:{escape(reference)}", f"{books.slug}:{reference}", f"{books.pk}:{reference}"}
    keys = {transfer.key for transfer in story.transfers} | {one.key for one in story.corrections}
    return _with_people(story, subjects | keys)


def events_of(payments: Collection[Payment], *, events_max: int) -> list[Claim]:
    """Return the events that booked, corrected or told again any fact of the payments, the oldest first.

    An event that only told a status leaves nothing that names it.
    """
    if not payments:
        return []
    told: list[QuerySet[Any, Any]] = [
        Transfer.objects.filter(payment__in=payments).values_list("claim_id"),
        Correction.objects.filter(payment__in=payments).values_list("claim_id"),
        Sighting.objects.filter(transfer__payment__in=payments).values_list("claim_id"),
    ]
    claim_ids = {row[0] for row in told[0].union(*told[1:])[: events_max + 1]} - {None}
    return list(Claim.objects.filter(pk__in=claim_ids).defer("reply_body").order_by("pk"))


def _story(
    transfers: QuerySet[Transfer] | None = None,
    sightings: QuerySet[Sighting] | None = None,
    corrections: QuerySet[Correction] | None = None,
) -> Story:
    if transfers is None or sightings is None or corrections is None:
        return Story([], [], [], [], [])
    booked = _first(transfers.select_related("claim", "payment").defer("claim__reply_body"))
    entries = Entry.objects.filter(transfer__in=booked).select_related("transfer", "account")
    return Story(
        transfers=booked,
        entries=list(entries.order_by("transfer_id", "line")) if booked else [],
        sightings=_first(sightings.select_related("transfer", "claim").defer("claim__reply_body")),
        corrections=_first(corrections.select_related("claim").defer("claim__reply_body")),
        messages=messages_of(booked),
    )


def messages_of(transfers: Iterable[Transfer]) -> list[OutboxMessage]:
    # By their keys: there is no index by transfer, which every booked transfer would have to pay for.
    names = sorted(settings.PAYMENTS_OUTBOX)
    keys = [outbox.key_of(name, transfer.key) for transfer in transfers for name in names]
    return list(OutboxMessage.objects.filter(key__in=keys).defer("body").order_by("pk")) if keys else []


def _with_people(story: Story, subjects: Collection[str]) -> Story:
    wanted = [*subjects, *(message.key for message in story.messages)]
    story.findings = _first(Finding.objects.filter(subject__in=wanted))
    story.actions = _first(StaffAction.objects.filter(subject__in=wanted))
    return story


def _first(instances: QuerySet[Any]) -> list[Any]:
    return list(instances.order_by("pk")[:ROWS_MAX])
