"""How long bodies are kept, of events and of messages. Claims, their replies, all rows and the ledger stay for ever.

What is still needed keeps its body, however old: an event that is quarantined, until somebody closes its finding, one
that isn't claimed yet because we failed on it, and a message that isn't sent.

After a crash: some chunks are done and the others are not; run it again. Deliveries, also of the very events that are
pruned, are answered from their claims and need no body. A message's row is what makes its key known for ever: enqueued
again, it is not sent again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from payments import claims, database, failpoints, outbox

Progress = Callable[[str, int], None]  # what is done, and to how many

CHUNK: Final = 1_000  # bodies of one transaction
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
    prunable, kept = database.in_transaction(partial(_count, before), time.monotonic() + COUNT_S)
    if is_dry_run:
        return Pruned(prunable, kept)
    return Pruned(_in_chunks(partial(_forget, before), progress), kept)


def prune_outbox(*, before: datetime, is_dry_run: bool = False, progress: Progress = lambda what, done: None) -> Pruned:
    """Forget the bodies of messages that were sent before then, in chunks; return how many."""
    prunable, kept = database.in_transaction(partial(_count_sent, before), time.monotonic() + COUNT_S)
    if is_dry_run:
        return Pruned(prunable, kept)
    return Pruned(_in_chunks(partial(_forget_sent, before), progress), kept)


def _in_chunks(forget: Callable[[int], list[int]], progress: Progress) -> int:
    """Return how many were forgotten in all. forget: after which id -> ids of one chunk; none: there are no more."""
    pruned = last_id = 0
    while forgotten := database.in_transaction(partial(forget, last_id), time.monotonic() + CHUNK_S):
        failpoints.hit("prune_chunk")
        pruned, last_id = pruned + len(forgotten), max(forgotten)
        progress("forgotten", pruned)
    return pruned


def _count(before: datetime) -> tuple[int, int]:
    database.lift_statement_timeout()
    return claims.count_bodies(before=before)


def _forget(before: datetime, after_id: int) -> list[int]:
    # Finding the next ones may mean to pass by millions that are forgotten already.
    database.lift_statement_timeout()
    return claims.forget_bodies(before=before, after_id=after_id, limit=CHUNK)


def _count_sent(before: datetime) -> tuple[int, int]:
    database.lift_statement_timeout()
    return outbox.count_bodies(before=before)


def _forget_sent(before: datetime, after_id: int) -> list[int]:
    database.lift_statement_timeout()
    return outbox.forget_bodies(before=before, after_id=after_id, limit=CHUNK)
