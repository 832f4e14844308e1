"""Named limits: how many threads may do a thing at once, how long others wait, and who holds what now.

Different concerns have different limits, so that a flood of one can't take the last thread or connection of
another. A `Limit` is taken only by `with`, so it is released on every path. A permit is handed directly to
the first waiter: first come, first served, one wake-up each. Waiting is bounded in number and in time; past
either, `Saturated` is raised, with the seconds after which trying again makes sense.

Must not: know Django models or money; start threads or open anything (it may be used before gunicorn forks).
After a crash: nothing is true, and nothing needs to be. Permits are memory of one process and die with it.
"""

import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

from django.conf import settings

logger = logging.getLogger(__name__)

# Longer than any stall that ends by itself.
RETRY_AFTER_MAX_S = 30
# A flood is refused thousands of times a second; writing out stacks each time would feed it.
LOG_EVERY_S = 1.0
# Enough to reach from the driver's wait up through the ORM to our own code.
STACK_FRAMES_MAX = 20
# Weight of the past in the observed drain rate: about the last ten runs count.
DRAIN_MEMORY = 0.9


class Saturated(Exception):
    """No permit was to be had in time; nothing was done.

    Likely cause: more load than capacity, or a stalled database. The log's limit_wait_timed_out tells which.
    """

    def __init__(self, limit: str, retry_after_s: int) -> None:
        super().__init__(limit, retry_after_s)
        self.limit = limit
        self.retry_after_s = retry_after_s


class NestedAcquire(Exception):
    """This thread already holds a permit of this limit, and would wait for itself.

    A bug in the caller: take it once, outside, or give the inner work a limit of its own.
    """

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


class Waiter:
    """A thread that may have to wait. `wake` is released once, when it is out of the queue."""

    __slots__ = ("thread_id", "wake")

    def __init__(self) -> None:
        self.thread_id = threading.get_ident()
        self.wake = threading.Lock()
        self.wake.acquire()


AnyWaiter = TypeVar("AnyWaiter", bound=Waiter)


class Permits(Generic[AnyWaiter]):
    """Permits, their holders and the queue for them: what `Limit` and `batching.Batcher` have in common.

    A permit is an entry in `_holders` and nothing else: who holds it is always known, and none is counted
    twice. While a permit is free the queue is empty: it is freed only if nobody queues, queued for only if
    none is free. A waiter leaves the queue once, under the lock: handed a permit, taken into a batch, or by
    itself. Removing it is what decides between them when they happen at once.
    """

    def __init__(self, *, name: str, permits: int, queue_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        if permits < 1:
            raise ValueError(f"{name}: permits must be at least 1, not {permits}")
        self.name = name
        self.permits = permits
        self.queue_max = queue_max
        self.refused_total = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._holders: dict[int, float] = {}  # thread id -> since when
        self._queue: deque[AnyWaiter] = deque()
        self._log_again_at = -math.inf
        self._drained_items, self._drained_in_s = 1.0, 0.0

    @property
    def in_use(self) -> int:
        return len(self._holders)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def drain_rate(self) -> float:
        """Items a second that all permits together get done when busy, as lately observed; 0.0 before any."""
        return self.permits * self._drained_items / self._drained_in_s if self._drained_in_s else 0.0

    def retry_after_s(self) -> int:
        """Whole seconds after which trying again makes sense. The caller adds jitter.

        The queue at the observed drain rate; or as long as the oldest holder has been at it, because a stall
        shows in the rate only when it is over.
        """
        with self._lock:
            now = self._clock()
            oldest_s = now - min(self._holders.values(), default=now)
            queue_s = (len(self._queue) + 1) * self._drained_in_s / (self._drained_items * self.permits)
        return min(RETRY_AFTER_MAX_S, max(1, math.ceil(max(queue_s, oldest_s))))

    def describe(self) -> dict[str, Any]:
        """Who holds what now, in plain values: for the log, a command or a page."""
        with self._lock:
            now, holders, waiting = self._clock(), dict(self._holders), len(self._queue)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = sys._current_frames()
        return {
            "limit": self.name,
            "permits": self.permits,
            "in_use": len(holders),
            "waiting": waiting,
            "queue_max": self.queue_max,
            "refused_total": self.refused_total,
            "holders": [
                {
                    "thread": names.get(thread_id, "unknown"),
                    "thread_id": thread_id,
                    "held_s": round(now - since, 3),
                    "stack": _stack(frames.get(thread_id)),
                }
                for thread_id, since in holders.items()
            ],
        }

    def _take(self, waiter: AnyWaiter) -> bool:
        """Take a free permit (True) or queue (False). Raises NestedAcquire, or Saturated if that is full."""
        with self._lock:
            if waiter.thread_id in self._holders:
                raise NestedAcquire(self.name)
            if self._is_free():
                self._holders[waiter.thread_id] = self._clock()
                return True
            if len(self._queue) < self.queue_max:
                self._queue.append(waiter)
                return False
        raise self._refused()

    def _is_free(self) -> bool:
        """Say whether a permit may be taken now. Called under the lock."""
        return len(self._holders) < self.permits

    def _wait(self, waiter: AnyWaiter, until: float) -> None:
        """Wait until somebody takes the waiter out of the queue. Raises Saturated if nobody did in time."""
        started_at = self._clock()
        try:
            woken = self._await_turn(waiter, until)
            if _observe_wait is not None:
                _observe_wait(self.name, self._clock() - started_at)
        except BaseException:
            # A signal's handler, or the observer, raised. A permit must not stay with a thread that is gone.
            if not self._withdraw(waiter) and self._holds(waiter):
                self._hand_on(items=0)
            raise
        # Time may be up just as somebody takes the waiter out: then it was served, not refused.
        if not woken and self._withdraw(waiter):
            raise self._refused()

    def _await_turn(self, waiter: AnyWaiter, until: float) -> bool:
        """True: the waiter was taken out of the queue. False: time is up."""
        return self._sleep(waiter, until)

    def _sleep(self, waiter: AnyWaiter, until: float) -> bool:
        """True: woken. False: time is up. (Tests tell interleavings by standing in for this.)"""
        return waiter.wake.acquire(timeout=max(0.0, until - self._clock()))

    def _withdraw(self, waiter: AnyWaiter) -> bool:
        """Leave the queue. False: somebody else took the waiter out before."""
        with self._lock:
            try:
                self._queue.remove(waiter)
            except ValueError:
                return False
            return True

    def _holds(self, waiter: AnyWaiter) -> bool:
        # Needs no lock: a thread is handed a permit only while it is queued, and gives it away itself.
        return waiter.thread_id in self._holders

    def _hand_on(self, *, items: int = 1) -> None:
        """Give this thread's permit to the first waiter, or free it. `items`: how many were done with it."""
        with self._lock:
            now = self._clock()
            since = self._holders.pop(threading.get_ident())
            self._drained_items = DRAIN_MEMORY * self._drained_items + items
            self._drained_in_s = DRAIN_MEMORY * self._drained_in_s + now - since
            if not self._queue:
                return
            heir = self._queue.popleft()
            self._holders[heir.thread_id] = now
        heir.wake.release()

    def _refused(self) -> Saturated:
        """Count and log a refusal, for the caller to raise."""
        with self._lock:
            now = self._clock()
            self.refused_total += 1
            log_now = now >= self._log_again_at
            if log_now:
                self._log_again_at = now + LOG_EVERY_S
        if log_now:
            logger.warning("limit_wait_timed_out", extra=self.describe())
        return Saturated(self.name, self.retry_after_s())


class Limit(Permits[Waiter]):
    """A limit taken by `with limit:`, in one thread at most once at a time.

    `wait_s` 0 means that a permit is free now, or Saturated. `queue_max`: how many threads waiting may
    occupy.
    """

    def __init__(
        self,
        *,
        name: str,
        permits: int,
        wait_s: float,
        queue_max: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name=name, permits=permits, queue_max=queue_max, clock=clock)
        self.wait_s = wait_s

    def __enter__(self) -> None:
        waiter = Waiter()
        if not self._take(waiter):
            self._wait(waiter, self._clock() + self.wait_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._hand_on()


def _stack(frame: FrameType | None) -> list[str]:
    """Where a thread stands, innermost last; neither source lines (files to read) nor locals (secrets)."""
    lines: list[str] = []
    while frame is not None and len(lines) < STACK_FRAMES_MAX:
        lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return lines[::-1]


# name -> permits (a number, or the setting that holds it), wait in seconds, threads that may wait
TABLE: dict[str, tuple[int | str, float, int]] = {
    # A gateway tries again by itself, and soon; waiting here would only occupy threads.
    "intake": ("PAYMENTS_INTAKE_PERMITS", 0.0, 0),
    # A person would rather wait than see an error, but waiting must not take the threads from webhooks.
    "staff": ("PAYMENTS_STAFF_PERMITS", 2.0, 8),
    # Questions to gateways' APIs. A slow one must not take the threads from deliveries that need no answer of it.
    "confirm": (4, 0.5, 8),
    # One writer of the attempt log in a process; nobody ever waits for it.
    "attempts": (1, 0.0, 0),
    # Tries to send an outbox message; relay.py shares them out among the destinations, so nobody waits.
    "relay": (64, 0.0, 0),
    # /readyz asks the database one at a time; a few balancers may ask at once.
    "health": (1, 0.5, 4),
}

_registry: dict[str, Permits[Any]] = {}
_observe_wait: Callable[[str, float], None] | None = None


def get(name: str) -> Limit:
    """Return the limit of this name in TABLE, made from the settings at its first use."""
    limit = _registry.get(name) or _make(name)
    if not isinstance(limit, Limit):
        raise TypeError(f"{name} is no Limit but a {type(limit).__name__}")
    return limit


def register(limit: Permits[Any]) -> None:
    """Let what TABLE doesn't know (the batcher) show in the gauges and in describe()."""
    if _registry.setdefault(limit.name, limit) is not limit:
        raise ValueError(f"a limit named {limit.name} is already registered")


def all_limits() -> list[Permits[Any]]:
    """All limits, sorted by name, used or not: an idle one's gauge reads zero instead of being absent."""
    for name in TABLE:
        get(name)
    return [limit for _, limit in sorted(_registry.items())]


def describe() -> list[dict[str, Any]]:
    return [limit.describe() for limit in all_limits()]


def set_wait_observer(observe: Callable[[str, float], None] | None) -> None:
    """Call `observe(limit's name, seconds)` after every wait, in vain or not. A free permit is no wait."""
    global _observe_wait
    _observe_wait = observe


def _make(name: str) -> Permits[Any]:
    permits, wait_s, queue_max = TABLE[name]
    if isinstance(permits, str):
        permits = int(getattr(settings, permits))
    # Two threads may be here at once; if both kept their own there would be twice the permits.
    return _registry.setdefault(name, Limit(name=name, permits=permits, wait_s=wait_s, queue_max=queue_max))
