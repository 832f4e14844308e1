"""How long the bodies of events are kept. Claims, their replies, the events' rows and the ledger stay for ever.

What is still needed keeps its body, however old: an event that is quarantined, until somebody closes its finding, and
one that isn't claimed yet because we failed on it.

After a crash: some chunks are done and the others are not; run it again. Deliveries, also of the very events that are
pruned, are answered from their claims and need no body.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from payments import claims, database, failpoints

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


def prune_events(
    *, before: datetime, is_dry_run: bool = False, progress: Callable[[str, int], None] = lambda what, done: None
) -> Pruned:
    """Forget the bodies of events that were received before then, in chunks; return how many."""
    deadline = time.monotonic() + COUNT_S
    prunable, kept = database.in_transaction(partial(_count, before), deadline)
    if is_dry_run:
        return Pruned(prunable, kept)
    pruned, last_id = 0, 0
    while True:
        forgotten = database.in_transaction(partial(_forget, before, last_id), time.monotonic() + CHUNK_S)
        if not forgotten:
            return Pruned(pruned, kept)
        failpoints.hit("prune_chunk")
        pruned, last_id = pruned + len(forgotten), max(forgotten)
        progress("forgotten", pruned)


def _count(before: datetime) -> tuple[int, int]:
    database.lift_statement_timeout()
    return claims.count_bodies(before=before)


def _forget(before: datetime, after_id: int) -> list[int]:
    # Finding the next ones may mean to pass by millions that are forgotten already.
    database.lift_statement_timeout()
    forgotten = claims.forget_bodies(before=before, after_id=after_id, limit=CHUNK)
    failpoints.hit("prune_forgotten")
    return forgotten
