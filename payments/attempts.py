"""The attempt log: one row for each HTTP delivery, fire-and-forget. The only writer of Attempt.

A delivery only appends to a bounded queue; one thread of each process writes what is there, in batches, with a
connection of its own (limit "attempts"). What doesn't fit, or can't be written, is dropped, counted, and becomes a row
of its own at the next success: "37 attempts not recorded, from … to …". Nothing here ever slows or fails a delivery.

After a crash: what was queued is lost, and that loss is not recorded; nothing that money needs is in this log.
"""

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from django.db import DatabaseError, InterfaceError
from django.db.models import Q

from payments import database, limits, metrics, models
from payments.replies import Answer

logger = logging.getLogger(__name__)

QUEUE_MAX: Final = 10_000  # attempts of one process that wait to be written: some MB
BATCH_MAX: Final = 500  # rows per INSERT
PAUSE_S: Final = 0.5  # between two batches, so that under load a batch is large
WRITE_S: Final = 2.0  # for one batch; a slower database costs attempts, not memory


@dataclass(frozen=True, slots=True)
class Attempted:
    """What is recorded of one delivery; status is what was answered."""

    endpoint_id: int
    event_id: str
    status: int
    replayed: bool
    duration_ms: float
    received_at: datetime


@dataclass(slots=True)
class _Gap:
    """Attempts that were not recorded, between two moments."""

    lost: int
    first_at: datetime
    last_at: datetime


class Log:
    """A bounded queue and the thread that writes it."""

    def __init__(self) -> None:
        self._queue: deque[Attempted] = deque()
        self._lock = threading.Lock()
        self._gap: _Gap | None = None
        self._thread: threading.Thread | None = None

    def record(self, attempt: Attempted) -> None:
        """Queue an attempt, or count it as lost. Never waits for the database."""
        with self._lock:
            if len(self._queue) < QUEUE_MAX:
                self._queue.append(attempt)
            else:
                self._lose(1, attempt.received_at, attempt.received_at)
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="attempts", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the machine has no thread left: the next delivery tries again
            logger.warning("attempts_not_recorded", extra={"count": 0, "error": repr(error)})
        else:
            self._thread = thread

    def write_once(self) -> int:
        """Write one batch, and the gap before it if there is one; return how many attempts were taken off the queue."""
        with self._lock:
            batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
            gap, self._gap = self._gap, None
        if not batch and gap is None:
            return 0
        try:
            with limits.get("attempts"), database.connected(time.monotonic() + WRITE_S):
                models.Attempt.objects.bulk_create([*_rows(batch), *_gap_rows(gap)])
        except Exception as error:
            with self._lock:
                if gap is not None:
                    self._lose(gap.lost, gap.first_at, gap.last_at, counted=True)
                if batch:
                    self._lose(len(batch), batch[0].received_at, batch[-1].received_at)
            if not isinstance(error, DatabaseError | InterfaceError | limits.Saturated):
                raise
            logger.warning("attempts_not_recorded", extra={"count": len(batch), "error": repr(error)})
        return len(batch)

    def _lose(self, lost: int, first_at: datetime, last_at: datetime, *, counted: bool = False) -> None:
        if not counted:
            metrics.attempts_lost.inc(lost)
        if self._gap is None:
            self._gap = _Gap(lost, first_at, last_at)
        else:
            self._gap.lost += lost
            self._gap.first_at, self._gap.last_at = min(self._gap.first_at, first_at), max(self._gap.last_at, last_at)

    def _run(self) -> None:
        while True:
            try:
                taken = self.write_once()
            except Exception:
                logger.exception("attempts_failed")
                taken = 0
            if taken < BATCH_MAX:
                time.sleep(PAUSE_S)


log = Log()


def record(endpoint_id: int, event_id: str, answer: Answer, *, started_at: float) -> None:
    """Record a delivery that is answered now; started_at: perf_counter() when it came."""
    duration_ms = (time.perf_counter() - started_at) * 1000
    attempt = Attempted(endpoint_id, event_id, answer.reply.status, answer.is_replay, duration_ms, datetime.now(UTC))
    log.record(attempt)


def count_old(*, before: datetime) -> int:
    """Return how many rows tell of deliveries that came before then."""
    return models.Attempt.objects.filter(_is_old(before)).count()


def forget_old(*, before: datetime, since: datetime, limit: int) -> tuple[int, datetime | None]:
    """Delete the oldest rows from `since` on that tell of deliveries before then, at most so many.

    Returns how many, and where to go on, or None at the end: beginning anew would pass by all that was just deleted.
    """
    old = models.Attempt.objects.filter(_is_old(before), received_at__gte=since).order_by("received_at", "id")
    found = list(old.values_list("id", "received_at")[:limit])
    if not found:
        return 0, None
    deleted, _ = models.Attempt.objects.filter(id__in=[pk for pk, _ in found]).delete()
    return deleted, found[-1][1]


def _is_old(before: datetime) -> Q:
    # A gap is as old as the last attempt that it stands for.
    return Q(received_at__lt=before) & (Q(lost_until=None) | Q(lost_until__lt=before))


def _rows(batch: list[Attempted]) -> list[models.Attempt]:
    return [
        models.Attempt(
            endpoint_id=one.endpoint_id,
            event_id=one.event_id,
            status=one.status,
            replayed=one.replayed,
            duration_ms=round(one.duration_ms, 1),
            received_at=one.received_at,
        )
        for one in batch
    ]


def _gap_rows(gap: _Gap | None) -> list[models.Attempt]:
    if gap is None:
        return []
    return [models.Attempt(lost=gap.lost, received_at=gap.first_at, lost_until=gap.last_at)]
