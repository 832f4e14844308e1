"""Kept events through settle()'s booking again: after an adapter's fix, or a bug's.

The claim and its stored reply stay; the facts are told again under their business keys, so nothing is booked twice. An
event that only failed so far has no claim yet: the gateway still delivers it, and at the third failure it has one.

After a crash: run again; what was booked is known by its keys.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Q, QuerySet

from payments import claims, conf, confirmation, database, failpoints, findings, handlers, intake, limits, models, staff
from payments.findings import Found
from payments.gateways import base

logger = logging.getLogger(__name__)

BATCH: Final = 50  # events per transaction
SECONDS: Final = 10.0  # for one batch's transaction


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events to tell again.

    is_chosen: a person named this very one. What is quarantined because it may be forged is booked only then, or the
    retry of all after an adapter's fix would book it on the way.
    is_short: a few that are known by their ids, which are found in no time.
    """

    events: Q
    is_chosen: bool = False
    is_short: bool = False


@dataclass(slots=True)
class Replayed:
    """retried = applied + duplicate + ignored + quarantined; quarantined: still unusable, or it failed again.

    again counts the runs of applications' handlers that had failed before: done, and failed again.
    """

    counts: Counter[str] = field(default_factory=Counter)
    still_quarantined: list[str] = field(default_factory=list)
    again: handlers.Again = field(default_factory=handlers.Again)

    def as_json(self) -> dict[str, Any]:
        names = ("retried", "applied", "duplicate", "ignored", "quarantined")
        again = {"handlers_done": self.again.done, "handlers_failed": self.again.failed}
        return {name: self.counts[name] for name in names} | again | {"still_quarantined": self.still_quarantined}


def quarantined() -> Selection:
    """Select events whose quarantine finding is open."""
    opened = models.Finding.objects.filter(kind="quarantined", closed_at=None).order_by("id")
    keys = {(row.endpoint_id or 0, row.subject.partition(":")[2]) for row in opened}
    return Selection(_claims_of(keys))


def ignored() -> Selection:
    return Selection(Q(claim__outcome=models.Claim.Outcome.IGNORED))


def received_since(moment: datetime) -> Selection:
    # Nothing is claimed before it is received; claims have the index.
    return Selection(Q(received_at__gte=moment, claim__claimed_at__gte=moment))


def known_as(event_id: str) -> Selection:
    """Select an event by its id, at whichever endpoint."""
    endpoints = models.Endpoint.objects.order_by("id").values_list("id", flat=True)
    return Selection(_claims_of({(endpoint_id, event_id) for endpoint_id in endpoints}), is_chosen=True)


def claimed_as(claim_ids: Collection[int]) -> Selection:
    return Selection(Q(claim_id__in=claim_ids), is_chosen=len(claim_ids) == 1, is_short=True)


def _claims_of(keys: Collection[claims.Key]) -> Q:
    found = claims.find(keys).values() if keys else ()
    return Q(claim_id__in=[one.claim_id for one in found if one.claim_id is not None])


def retry(
    selection: Selection,
    *,
    dry_run: bool = False,
    why: staff.Why | None = None,
    progress: Callable[[int], None] = lambda retried: None,
) -> Replayed:
    """Tell the selected events' facts again, in the order of their claims.

    dry_run  everything happens, and is undone batch by batch
    why      who asks for it, where it is a person; recorded as a StaffAction for each event, in the event's transaction

    A database that can't be reached or is busy ends it with its own error, or database.TransactionFailed.
    """
    replayed = Replayed()
    conf.read_copy()
    run = _Run(selection.is_chosen, dry_run, why)
    for batch in _batches(selection):
        for event, outcome in zip(batch, run.tell_again(batch), strict=True):
            replayed.counts["retried"] += 1
            replayed.counts[outcome] += 1
            if outcome == "quarantined":
                replayed.still_quarantined.append(event.event_id)
        failpoints.hit("retry_booked")
        if not dry_run:
            replayed.again += handlers.run_again(claim_ids=[event.claim_id or 0 for event in batch])
        progress(replayed.counts["retried"])
    return replayed


def _evidence(selected: Q) -> QuerySet[models.Event]:
    # Of each event the content that its claim is about: what conflicts with it, or failed before it, is never booked.
    kept = models.Event.objects.filter(selected, body__isnull=False, claim__isnull=False, role=models.Event.Role.FIRST)
    return kept.select_related("endpoint", "claim").order_by("claim_id", "id")


def _batches(selection: Selection) -> Iterator[list[models.Event]]:
    last_id = 0
    has_more = True
    while has_more:
        rows = _evidence(selection.events).filter(claim_id__gt=last_id)[: BATCH + 1]
        read = list(rows) if selection.is_short else _read_slowly(rows)
        has_more = len(read) > BATCH
        if batch := read[:BATCH]:
            yield batch
            last_id = batch[-1].claim_id or 0


def _read_slowly(rows: QuerySet[models.Event]) -> list[models.Event]:
    with transaction.atomic():
        # To find them may take as long as the table is large, and holds no lock that a delivery wants.
        database.lift_statement_timeout()
        return list(rows)


@dataclass(slots=True)
class _Run:
    is_chosen: bool
    dry_run: bool
    why: staff.Why | None

    def tell_again(self, events: Sequence[models.Event]) -> list[str]:
        """Return what becomes of each event; one that fails doesn't end the others' retry."""
        try:
            jobs = [job_of(event) for event in events]  # before the transaction: an API may be asked
            return database.in_transaction(lambda: self._book(events, jobs), time.monotonic() + SECONDS)
        except (OperationalError, InterfaceError, database.TransactionFailed):
            raise  # nothing is wrong with the events
        except Exception as error:
            if len(events) > 1:
                return [outcome for event in events for outcome in self.tell_again([event])]
            logger.error("retry_failed", exc_info=error, extra={"event": events[0].pk})
            if not self.dry_run and not isinstance(error, intake.SettlementFailed | limits.Saturated):
                _keep_failure(events[0], error)
            return ["quarantined"]

    def _book(self, events: Sequence[models.Event], jobs: Sequence[intake.Job]) -> list[str]:
        # Known by the id that they were claimed under, also where today's adapter would compose another.
        candidates = [
            replace(one, notice=replace(one.notice, event_id=event.event_id))
            for event, job in zip(events, jobs, strict=True)
            for one in job.candidates
        ]
        decisions = {
            one.key: claims.Decision({}, event.claim_id) for one, event in zip(candidates, events, strict=True)
        }
        if not self.is_chosen:
            intake.quarantine_rivals(candidates, decisions)
        told, spans = intake.tell_all(candidates, decisions)
        subjects = [_subject(event) for event in events]
        booked = intake.book(
            told,
            found=[
                Found("quarantined", subject, {"why": one.notice.unusable}, one.endpoint.id)
                for subject, one in zip(subjects, candidates, strict=True)
                if one.notice.unusable is not None
            ],
            event_ids={event.claim_id or 0: event.event_id for event in events},
        )
        outcomes = [
            "duplicate" if intake.is_known(booked, span) else one.expected_outcome
            for one, span in zip(candidates, spans, strict=True)
        ]
        if self.dry_run:
            transaction.set_rollback(True)
            return outcomes
        usable = [subject for subject, outcome in zip(subjects, outcomes, strict=True) if outcome != "quarantined"]
        findings.close_healed([("quarantined", subject) for subject in usable])
        if self.why is not None:
            told_of = zip(events, subjects, outcomes, strict=True)
            self.why.record_each("retry", [(of, {"claim": one.claim_id, "outcome": to}) for one, of, to in told_of])
        failpoints.hit("retry_told")
        return outcomes


def _subject(event: models.Event) -> str:
    return f"{event.endpoint.slug}:{event.event_id}"


def _keep_failure(event: models.Event, error: Exception) -> None:
    """Let staff see an event that can't be told again by a bug of ours, also where it wasn't quarantined before."""
    why = f"retrying failed: {type(error).__name__}"
    with transaction.atomic(durable=True):
        findings.open_findings([Found("quarantined", _subject(event), {"why": why}, event.endpoint_id)])


def job_of(event: models.Event) -> intake.Job:
    """Return a kept event as a delivery of just that event, translated by its adapter as it is now.

    Where it must be confirmed and never was, its gateway's API is asked. Raises what the adapter raises.
    """
    endpoint = conf.known_endpoint(event.endpoint.slug)
    if endpoint is None:
        raise LookupError(f"no adapter for the gateway {event.endpoint.gateway}")
    verified = base.Verified.of(base.Delivery(event.headers, bytes(event.body or b""), event.received_at))
    job = intake.translate(endpoint, verified)
    if job.bug is not None:
        raise job.bug
    if job.is_unconfirmed:
        job = confirmation.confirm(job, deadline=time.monotonic() + SECONDS)
    chosen = next((one for one in job.candidates if one.notice.event_id == event.event_id), job.candidates[0])
    return intake.Job(endpoint, (chosen,))
