"""How long bodies of events and messages, and the attempt log, are kept. All else stays for ever.

What is still needed keeps its body, however old: an event that is quarantined or conflicts with another content, until
somebody closes its finding, one that isn't claimed yet because we failed on it, and a message that isn't sent. Of the
attempt log nothing is needed.

After a crash: some chunks are done and the others are not; run it again. Deliveries, also of the very events that are
pruned, are answered from their claims and need no body. A message's row is what makes its key known for ever: enqueued
again, it is not sent again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from payments import attempts, claims, database, failpoints, outbox

Progress = Callable[[str, int], None]  # what is done, and to how many
Place = TypeVar("Place")  # where a chunk ended
Result = TypeVar("Result")

CHUNK: Final = 1_000  # bodies, or attempts, of one transaction
CHUNK_S: Final = 60.0  # how long a lost connection is replaced in, for one chunk
COUNT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Pruned:
    """pruned: bodies forgotten, or that would be; kept: as old, but still needed."""

    pruned: int
    kept: int

    def as_json(self) -> dict[str, Any]:
        return {"pruned": self.pruned, "kept": self.kept}


def prune_events(*, before: datetime, is_dry_run: bool = False, progress: Progress = lambda what, done: None) -> Pruned:
    """Forget the bodies of events that were received before then, in chunks; return how many."""
    prunable, kept = _patiently(partial(claims.count_bodies, before=before), within_s=COUNT_S)
    if is_dry_run:
        return Pruned(prunable, kept)
    return Pruned(_in_chunks(partial(_forget_events, before), 0, progress), kept)


def prune_outbox(*, before: datetime, is_dry_run: bool = False, progress: Progress = lambda what, done: None) -> Pruned:
    """Forget the bodies of messages that were sent before then, in chunks; return how many."""
    prunable, kept = _patiently(partial(outbox.count_bodies, before=before), within_s=COUNT_S)
    if is_dry_run:
        return Pruned(prunable, kept)
    return Pruned(_in_chunks(partial(_forget_messages, before), 0, progress), kept)


def prune_attempts(*, before: datetime, is_dry_run: bool = False, progress: Progress = lambda what, done: None) -> int:
    """Delete the attempt log's rows of deliveries before then, in chunks; return how many."""
    if is_dry_run:
        return _patiently(partial(attempts.count_old, before=before), within_s=COUNT_S)
    return _in_chunks(partial(_forget_attempts, before), datetime.min.replace(tzinfo=UTC), progress)


def _in_chunks(forget: Callable[[Place], tuple[int, Place | None]], begin: Place, progress: Progress) -> int:
    """Return how many in all. forget: where the last chunk ended -> how many more, and where; None: the end."""
    pruned, place = 0, begin
    while True:
        forgotten, ended = _patiently(partial(forget, place), within_s=CHUNK_S)
        if ended is None:
            return pruned
        failpoints.hit("prune_chunk")
        pruned, place = pruned + forgotten, ended
        progress("forgotten", pruned)


def _patiently(work: Callable[[], Result], *, within_s: float) -> Result:
    def run() -> Result:
        # Finding the next ones may mean to pass by millions that are forgotten already.
        database.lift_statement_timeout()
        return work()

    return database.in_transaction(run, time.monotonic() + within_s)


def _forget_events(before: datetime, after_id: int) -> tuple[int, int | None]:
    ids = claims.forget_bodies(before=before, after_id=after_id, limit=CHUNK)
    failpoints.hit("prune_forgotten")
    return len(ids), max(ids, default=None)


def _forget_messages(before: datetime, after_id: int) -> tuple[int, int | None]:
    ids = outbox.forget_bodies(before=before, after_id=after_id, limit=CHUNK)
    return len(ids), max(ids, default=None)


def _forget_attempts(before: datetime, since: datetime) -> tuple[int, datetime | None]:
    return attempts.forget_old(before=before, since=since, limit=CHUNK)
