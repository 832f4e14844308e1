"""Who settles for whom: whoever gets a permit runs for all who queued meanwhile.

With a permit free, an item runs alone and at once. With none, its thread queues; a leader that ends its run
hands its permit to the first waiter, and that one, when it wakes, takes what has queued until then into its
batch. So batches grow with the load by themselves, without a timer. How a permit changes hands is
limits.Permits' part.

Must not: know what an item or a result is.
After a crash: the queue is gone, and nobody in it had been told anything.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from payments import limits

Item = TypeVar("Item")
Result = TypeVar("Result")


class ResultUnknown(Exception):
    """The item's batch didn't end in time, or failed: it may be done or not.

    Likely cause: a stalled database. Say "try again later"; what is run must bear a repetition.
    """

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


class LeaderLost(ResultUnknown):
    """`run` raised in the thread that led the batch, where what it raised goes on; here it is `__cause__`."""


class _Ticket(limits.Waiter, Generic[Item, Result]):
    __slots__ = ("answer", "answered", "deadline", "item")

    answer: Result | Exception

    def __init__(self, item: Item, deadline: float) -> None:
        super().__init__()
        self.item = item
        self.deadline = deadline
        self.answered = False

    def deliver(self, answer: Result | Exception) -> None:
        self.answer = answer
        self.answered = True
        self.wake.release()


class Batcher(limits.Permits[_Ticket[Item, Result]], Generic[Item, Result]):
    """Runs items in batches, at most `permits` batches at a time.

    `run(items, deadline)` gets 1 to batch_max items and returns one result for each, in order; an Exception
    among the results is raised in its item's thread. `deadline` (on `clock`) is the leader's: it waited
    longest, and a hasty follower must not shorten its neighbours' run.

    patience_s: how long the newest run must have lasted before a further permit is taken beside it. Two small batches
    at once cost more than one that is twice as large; the further permits are for when a run is stuck.
    """

    def __init__(
        self,
        *,
        name: str,
        permits: int,
        batch_max: int,
        queue_max: int,
        run: Callable[[Sequence[Item], float], Sequence[Result | Exception]],
        patience_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name=name, permits=permits, queue_max=queue_max, clock=clock)
        self.batch_max = batch_max
        self.patience_s = patience_s
        self._run = run
        self._last_batches: deque[int] = deque(maxlen=32)

    def submit(self, item: Item, *, queue_deadline: float, deadline: float) -> Result:
        """Run the item, alone or with others, and return its result. Both deadlines are times on `clock`.

        Raises limits.Saturated (not run: the queue is full, or its turn didn't come by queue_deadline),
        ResultUnknown (its batch didn't end by `deadline`, or failed), limits.NestedAcquire (called from
        within `run`), or what `run` gave for this item.
        """
        me: _Ticket[Item, Result] = _Ticket(item, deadline)
        if self._take(me):
            return self._lead(me)
        self._wait(me, queue_deadline)
        if not self._holds(me):
            return self._answer(me)
        if self._clock() >= deadline:
            self._hand_on(items=0)
            raise self._refused()
        return self._lead(me)

    def _is_free(self) -> bool:
        if not self._holders or not self.patience_s:
            return super()._is_free()
        newest_s = self._clock() - max(self._holders.values())
        return newest_s >= self.patience_s and super()._is_free()

    def _await_turn(self, waiter: _Ticket[Item, Result], until: float) -> bool:
        if not self.patience_s:
            return super()._await_turn(waiter, until)
        patient_until = min(until, self._clock() + self.patience_s)
        return self._sleep(waiter, patient_until) or self._overtake(waiter) or self._sleep(waiter, until)

    def _overtake(self, me: _Ticket[Item, Result]) -> bool:
        """Take a permit that is free by now, rather than wait for a leader that is stuck."""
        with self._lock:
            # Whoever is no longer queued has been taken out this very moment, and is woken in a moment.
            if me not in self._queue or not self._is_free():
                return False
            self._queue.remove(me)
            self._holders[me.thread_id] = self._clock()
            return True

    def describe(self) -> dict[str, Any]:
        return super().describe() | {
            "drain_rate": round(self.drain_rate, 1),
            "last_batches": list(self._last_batches),
        }

    def _lead(self, me: _Ticket[Item, Result]) -> Result:
        followers: list[_Ticket[Item, Result]] = []
        try:
            try:
                followers = self._take_in()
                results = self._run([me.item, *(follower.item for follower in followers)], me.deadline)
                if len(results) != 1 + len(followers):
                    raise AssertionError(f"Bug: {len(results)} results for {1 + len(followers)} items")
            finally:
                # Before the answers, so that the next batch is on its way while they go out.
                self._hand_on(items=1 + len(followers))
        except BaseException as error:
            for follower in followers:
                lost = LeaderLost(self.name)
                lost.__cause__ = error
                follower.deliver(lost)
            raise
        for follower, result in zip(followers, results[1:], strict=True):
            follower.deliver(result)
        self._last_batches.append(len(results))
        return _value(results[0])

    def _take_in(self) -> list[_Ticket[Item, Result]]:
        """Take the first waiters out of the queue; from now on they wait for a result, not for a permit."""
        with self._lock:
            return [self._queue.popleft() for _ in range(min(self.batch_max - 1, len(self._queue)))]

    def _answer(self, me: _Ticket[Item, Result]) -> Result:
        """Return what this thread's leader got for it, waiting for the end of the batch if need be."""
        if not me.answered:
            self._sleep(me, me.deadline)
        if not me.answered:
            raise ResultUnknown(self.name)
        return _value(me.answer)


def _value(result: Result | Exception) -> Result:
    if isinstance(result, Exception):
        raise result
    return result
