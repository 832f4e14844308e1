"""Kept events through settle()'s booking again: after an adapter's fix, or a bug's.

The claim and its stored reply stay; the facts are told again under their business keys, so nothing is booked twice. An
event that only failed so far has no claim yet: the gateway still delivers it, and at the third failure it has one.

After a crash: run again; what was booked is known by its keys.
"""

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db.models import Q, QuerySet

from payments import claims, conf, database, findings, intake, models, staff
from payments.facts import Told
from payments.gateways import base

logger = logging.getLogger(__name__)

BATCH: Final = 50  # events per transaction
SECONDS: Final = 10.0  # for one batch's transaction


@dataclass(slots=True)
class Replayed:
    """retried = applied + duplicate + ignored + quarantined; quarantined: still unusable, or it failed again."""

    counts: Counter[str] = field(default_factory=Counter)
    still_quarantined: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        names = ("retried", "applied", "duplicate", "ignored", "quarantined")
        return {name: self.counts[name] for name in names} | {"still_quarantined": self.still_quarantined}


def quarantined() -> Q:
    """Select events whose quarantine finding is open."""
    subjects = models.Finding.objects.filter(kind="quarantined", closed_at=None).values_list("subject", flat=True)
    event_ids = [subject.partition(":")[2] for subject in subjects]
    return Q(event_id__in=event_ids)


def ignored() -> Q:
    return Q(claim__outcome=models.Claim.Outcome.IGNORED)


def received_since(moment: datetime) -> Q:
    return Q(received_at__gte=moment)


def known_as(event_id: str) -> Q:
    return Q(event_id=event_id)


def claimed_as(claim_ids: Collection[int]) -> Q:
    return Q(claim_id__in=claim_ids)


def retry(selection: Q, *, dry_run: bool = False, why: staff.Why | None = None) -> Replayed:
    """Tell the selected events' facts again, oldest first. Raises LookupError when none is selected and kept.

    why: who asks for it, where it is a person; recorded as a StaffAction for each event, in the event's transaction.
    """
    replayed = Replayed()
    conf.read_copy()
    rows = _evidence(selection)
    for batch in _batches(rows):
        _retry_batch(batch, replayed, dry_run=dry_run, why=why)
    return replayed


def _evidence(selection: Q) -> QuerySet[models.Event]:
    # Of each event the content that its claim is about: conflicting ones are never booked.
    kept = models.Event.objects.filter(selection, body__isnull=False, claim__isnull=False)
    kept = kept.exclude(role=models.Event.Role.CONFLICT)
    return kept.select_related("endpoint", "claim").order_by("id")


def _batches(rows: QuerySet[models.Event]) -> Iterator[list[models.Event]]:
    last_id = 0
    while batch := list(rows.filter(id__gt=last_id)[:BATCH]):
        yield batch
        last_id = batch[-1].pk


def _retry_batch(events: Sequence[models.Event], replayed: Replayed, *, dry_run: bool, why: staff.Why | None) -> None:
    jobs = [(event, job_of(event)) for event in events]
    for event, outcome in zip(events, _retried_together(jobs, dry_run=dry_run, why=why), strict=True):
        replayed.counts["retried"] += 1
        replayed.counts[outcome] += 1
        if outcome == "quarantined":
            replayed.still_quarantined.append(event.event_id)


def _retried_together(
    jobs: Sequence[tuple[models.Event, intake.Job]], *, dry_run: bool, why: staff.Why | None
) -> list[str]:
    if dry_run:
        return [job.candidates[0].expected_outcome for _, job in jobs]
    try:
        return database.in_transaction(lambda: _book(jobs, why), time.monotonic() + SECONDS)
    except Exception as error:
        if len(jobs) > 1:  # one event's failure must not end the others' retry
            return [outcome for one in jobs for outcome in _retried_together([one], dry_run=False, why=why)]
        logger.error("retry_failed", exc_info=error, extra={"event": jobs[0][0].pk})
        return ["quarantined"]


def _book(jobs: Sequence[tuple[models.Event, intake.Job]], why: staff.Why | None) -> list[str]:
    told: list[Told] = []
    spans: list[range] = []
    event_ids: dict[int, str] = {}
    for event, job in jobs:
        candidate = job.candidates[0]
        facts = intake.tell(job.endpoint, candidate.notice.facts, claim_id=event.claim_id)
        spans.append(range(len(told), len(told) + len(facts)))
        told += facts
        event_ids[event.claim_id or 0] = event.event_id
    booked = intake.book(told, event_ids=event_ids)
    outcomes = [
        "duplicate" if intake.is_known(booked, span) else job.candidates[0].expected_outcome
        for (_, job), span in zip(jobs, spans, strict=True)
    ]
    findings.close_healed(
        [
            ("quarantined", f"{job.endpoint.slug}:{event.event_id}")
            for (event, job), outcome in zip(jobs, outcomes, strict=True)
            if outcome != "quarantined"
        ]
    )
    if why is not None:
        for (event, job), outcome in zip(jobs, outcomes, strict=True):
            subject = f"{job.endpoint.slug}:{event.event_id}"
            why.record("retry", subject, claim=event.claim_id, outcome=outcome)
    return outcomes


def job_of(event: models.Event) -> intake.Job:
    """Return a kept event as a delivery of just that event, translated by its adapter as it is now."""
    endpoint = conf.known_endpoint(event.endpoint.slug)
    if endpoint is None:
        raise LookupError(f"no adapter for the gateway {event.endpoint.gateway}")
    verified = base.Verified.of(base.Delivery(event.headers, bytes(event.body or b""), event.received_at))
    notices = endpoint.gateway.translate(verified, endpoint.config)
    notice = next((one for one in notices if one.event_id == event.event_id), notices[0])
    return intake.Job(endpoint, (claims.Candidate(endpoint, notice, verified),))
