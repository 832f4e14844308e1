"""Who settles for whom, told step by step: nothing here depends on how fast a thread is.

Threads say when they begin to wait and when they run; the test says when a run ends and a waiter's time is
up.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from payments import batching, limits

STUCK_S = 10  # nothing here takes long; who waits so long waits for ever

# Deadlines on a clock that stands at 0. NEVER is slept in earnest; the others pass when the test says so.
NEVER, SOON, LATER = float(STUCK_S), 1.0, 2.0


class Told(batching.Batcher[str, str]):
    """A batcher whose steps are told by the test."""

    def __init__(self, *, permits: int = 1, batch_max: int = 64, queue_max: int = 64) -> None:
        super().__init__(
            name="settle",
            permits=permits,
            batch_max=batch_max,
            queue_max=queue_max,
            run=self.wait_for_the_end,
            clock=lambda: self.now,
        )
        self.now = 0.0
        self.asleep: SimpleQueue[str] = SimpleQueue()
        self.running: SimpleQueue[list[str]] = SimpleQueue()
        self.ends: SimpleQueue[Callable[[Sequence[str]], Sequence[str | Exception]]] = SimpleQueue()
        self.time_is_up = {SOON: threading.Event(), LATER: threading.Event()}
        self.interrupt: BaseException | None = None

    def wait_for_the_end(self, items: Sequence[str], deadline: float) -> Sequence[str | Exception]:
        self.running.put(list(items))
        return self.ends.get(timeout=STUCK_S)(items)

    def _sleep(self, waiter: Any, until: float) -> bool:
        self.asleep.put(waiter.item)
        if until == NEVER:
            return super()._sleep(waiter, until)
        assert self.time_is_up[until].wait(STUCK_S)
        if self.interrupt is not None:
            raise self.interrupt
        return False

    def next_batch(self) -> list[str]:
        return self.running.get(timeout=STUCK_S)

    def end(self, how: Callable[[Sequence[str]], Sequence[str | Exception]] | None = None) -> None:
        self.ends.put(how or (lambda items: [item.upper() for item in items]))


class Story:
    """A batcher and the threads that use it."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.batcher = Told()

    def submit(self, item: str, *, queue_deadline: float = NEVER, deadline: float = NEVER) -> "Future[str]":
        return self.pool.submit(self.batcher.submit, item, queue_deadline=queue_deadline, deadline=deadline)

    def lead(self, item: str) -> "Future[str]":
        """Submit, and return once its run has begun."""
        future = self.submit(item)
        assert self.batcher.next_batch() == [item]
        return future

    def queue(self, item: str, *, queue_deadline: float = NEVER, deadline: float = NEVER) -> "Future[str]":
        """Submit, and return once it waits."""
        future = self.submit(item, queue_deadline=queue_deadline, deadline=deadline)
        assert self.batcher.asleep.get(timeout=STUCK_S) == item
        return future


@pytest.fixture
def story() -> Iterator[Story]:
    """After every scenario: all permits back, nobody in the queue, no answer left over."""
    with ThreadPoolExecutor(16) as pool:
        story = Story(pool)
        yield story
        pool.shutdown()
        assert (story.batcher.in_use, story.batcher.waiting) == (0, 0)
        assert story.batcher.running.empty()
        assert story.batcher.ends.empty()


def fail_with(error: BaseException) -> Callable[[Sequence[str]], Sequence[str | Exception]]:
    def fail(items: Sequence[str]) -> Sequence[str | Exception]:
        raise error

    return fail


def test_with_a_permit_free_an_item_runs_alone_in_its_own_thread() -> None:
    ran_in: list[int] = []

    def run(items: Sequence[int], deadline: float) -> Sequence[int]:
        ran_in.append(threading.get_ident())
        return [item * 10 for item in items]

    batcher = batching.Batcher[int, int](name="settle", permits=1, batch_max=64, queue_max=0, run=run)

    assert batcher.submit(4, queue_deadline=0.0, deadline=0.0) == 40
    assert ran_in == [threading.get_ident()]
    assert (batcher.in_use, batcher.waiting, batcher.refused_total) == (0, 0, 0)


def test_who_queued_meanwhile_is_run_in_one_batch_in_order_and_gets_its_own_result(story: Story) -> None:
    futures = [story.lead("a"), *(story.queue(item) for item in "bcdef")]
    assert (story.batcher.in_use, story.batcher.waiting) == (1, 5)

    story.batcher.end()
    assert story.batcher.next_batch() == ["b", "c", "d", "e", "f"]
    story.batcher.end()

    assert [future.result(STUCK_S) for future in futures] == ["A", "B", "C", "D", "E", "F"]


def test_batch_max_is_respected_and_the_rest_follows_in_order(story: Story) -> None:
    story.batcher.batch_max = 3
    futures = [story.lead("a"), *(story.queue(item) for item in "bcdef")]

    for expected in (["b", "c", "d"], ["e", "f"]):
        story.batcher.end()
        assert story.batcher.next_batch() == expected
    story.batcher.end()

    assert [future.result(STUCK_S) for future in futures] == ["A", "B", "C", "D", "E", "F"]


def test_batch_grows_until_its_leader_wakes(story: Story) -> None:
    leader = story.lead("a")
    slow_waker = story.queue("b", queue_deadline=SOON)
    story.batcher.end()
    leader.result(STUCK_S)
    latecomer = story.queue("c")

    story.batcher.time_is_up[SOON].set()
    assert story.batcher.next_batch() == ["b", "c"]
    story.batcher.end()

    assert [slow_waker.result(STUCK_S), latecomer.result(STUCK_S)] == ["B", "C"]


def test_each_permit_runs_a_batch_of_its_own(story: Story) -> None:
    story.batcher.permits = 2
    futures = [story.lead("a"), story.lead("b"), story.queue("c")]
    assert story.batcher.in_use == 2

    for _ in range(3):
        story.batcher.end()

    assert [future.result(STUCK_S) for future in futures] == ["A", "B", "C"]
    assert story.batcher.next_batch() == ["c"]


def test_second_permit_is_not_taken_while_the_first_run_is_young(story: Story) -> None:
    """With patience, who comes during a run waits for its end; also one whose patience ends just then leads next."""
    story.batcher = Told(permits=2)
    story.batcher.patience_s = SOON
    first = story.lead("a")
    second = story.queue("b")
    story.batcher.end()
    assert first.result(STUCK_S) == "A"

    story.batcher.now = SOON
    story.batcher.time_is_up[SOON].set()
    assert story.batcher.next_batch() == ["b"]
    story.batcher.end()
    assert second.result(STUCK_S) == "B"


def test_stuck_run_is_overtaken_by_those_who_waited(story: Story) -> None:
    """Patience over and the run still going: one waiter takes the second permit and the others into its batch."""
    story.batcher = Told(permits=2)
    story.batcher.patience_s = SOON
    stuck = story.lead("a")
    waiting = [story.queue("b"), story.queue("c")]

    story.batcher.now = SOON
    story.batcher.time_is_up[SOON].set()
    assert sorted(story.batcher.next_batch()) == ["b", "c"]
    assert story.batcher.in_use == 2
    story.batcher.end()
    story.batcher.end()
    assert {future.result(STUCK_S) for future in (stuck, *waiting)} == {"A", "B", "C"}


def test_newcomer_takes_the_second_permit_beside_a_stuck_run(story: Story) -> None:
    """Who comes when the newest run has lasted longer than patience leads at once."""
    story.batcher = Told(permits=2)
    story.batcher.patience_s = SOON
    stuck = story.lead("a")
    story.batcher.now = SOON
    newcomer = story.lead("b")
    story.batcher.end()
    story.batcher.end()

    assert {stuck.result(STUCK_S), newcomer.result(STUCK_S)} == {"A", "B"}


def test_full_queue_refuses_at_once_and_hurts_nobody_in_it(story: Story) -> None:
    story.batcher.queue_max = 1
    leader, waiter = story.lead("a"), story.queue("b")

    with pytest.raises(limits.Saturated) as caught:
        story.batcher.submit("c", queue_deadline=NEVER, deadline=NEVER)
    story.batcher.end()
    story.batcher.end()

    assert (caught.value.limit, caught.value.retry_after_s) == ("settle", 1)
    assert story.batcher.refused_total == 1
    assert [leader.result(STUCK_S), waiter.result(STUCK_S)] == ["A", "B"]
    assert story.batcher.next_batch() == ["b"]


def test_waiter_that_gives_up_is_not_run_and_the_next_one_leads(story: Story) -> None:
    leader, impatient, patient = story.lead("a"), story.queue("b", queue_deadline=SOON), story.queue("c")

    story.batcher.time_is_up[SOON].set()
    assert isinstance(impatient.exception(STUCK_S), limits.Saturated)
    assert story.batcher.waiting == 1
    story.batcher.end()
    assert story.batcher.next_batch() == ["c"]
    story.batcher.end()

    assert [leader.result(STUCK_S), patient.result(STUCK_S)] == ["A", "C"]


def test_waiter_promoted_as_its_time_runs_out_leads(story: Story) -> None:
    leader, promoted = story.lead("a"), story.queue("b", queue_deadline=SOON)

    story.batcher.end()
    leader.result(STUCK_S)  # the permit is b's now; b does not know it yet
    story.batcher.time_is_up[SOON].set()
    assert story.batcher.next_batch() == ["b"]
    story.batcher.end()

    assert promoted.result(STUCK_S) == "B"


def test_waiter_promoted_past_its_deadline_passes_the_permit_on(story: Story) -> None:
    leader = story.lead("a")
    too_late, next_one = story.queue("b", queue_deadline=SOON, deadline=LATER), story.queue("c")

    story.batcher.end()
    leader.result(STUCK_S)
    story.batcher.now = LATER
    story.batcher.time_is_up[SOON].set()
    assert isinstance(too_late.exception(STUCK_S), limits.Saturated)
    assert story.batcher.next_batch() == ["c"]
    story.batcher.end()

    assert next_one.result(STUCK_S) == "C"


def test_waiter_taken_into_a_batch_waits_past_its_queue_deadline(story: Story) -> None:
    futures = [story.lead("a"), story.queue("b"), story.queue("c", queue_deadline=SOON)]

    story.batcher.end()
    assert story.batcher.next_batch() == ["b", "c"]
    story.batcher.time_is_up[SOON].set()
    assert story.batcher.asleep.get(timeout=STUCK_S) == "c"  # asleep again, for its result now
    story.batcher.end()

    assert [future.result(STUCK_S) for future in futures] == ["A", "B", "C"]
    assert story.batcher.refused_total == 0


def test_waiter_whose_batch_does_not_end_in_time_does_not_know_its_result(story: Story) -> None:
    leader, heir = story.lead("a"), story.queue("b")
    unlucky = story.queue("c", queue_deadline=SOON, deadline=LATER)

    story.batcher.end()
    assert story.batcher.next_batch() == ["b", "c"]
    story.batcher.time_is_up[SOON].set()
    story.batcher.time_is_up[LATER].set()
    with pytest.raises(batching.ResultUnknown) as caught:
        unlucky.result(STUCK_S)
    story.batcher.end()

    assert type(caught.value) is batching.ResultUnknown
    assert [leader.result(STUCK_S), heir.result(STUCK_S)] == ["A", "B"]


def test_result_that_comes_as_the_deadline_passes_is_returned(story: Story) -> None:
    futures = [story.lead("a"), story.queue("b"), story.queue("c", queue_deadline=SOON, deadline=LATER)]

    story.batcher.end()
    assert story.batcher.next_batch() == ["b", "c"]
    story.batcher.time_is_up[SOON].set()
    assert story.batcher.asleep.get(timeout=STUCK_S) == "c"
    story.batcher.end()
    futures[1].result(STUCK_S)  # b returns after it has delivered
    story.batcher.time_is_up[LATER].set()

    assert futures[2].result(STUCK_S) == "C"


def test_interrupted_waiter_of_a_running_batch_touches_nothing(story: Story) -> None:
    leader, heir, interrupted = story.lead("a"), story.queue("b"), story.queue("c", queue_deadline=SOON)

    story.batcher.end()
    assert story.batcher.next_batch() == ["b", "c"]
    story.batcher.interrupt = KeyboardInterrupt()
    story.batcher.time_is_up[SOON].set()
    assert interrupted.exception(STUCK_S) is story.batcher.interrupt
    assert story.batcher.in_use == 1
    story.batcher.end()

    assert [leader.result(STUCK_S), heir.result(STUCK_S)] == ["A", "B"]


def test_exception_among_the_results_is_raised_for_its_own_item_only(story: Story) -> None:
    futures = [story.lead("a"), story.queue("b"), story.queue("c"), story.queue("d")]
    bad = ValueError("c is bad")

    story.batcher.end()
    assert story.batcher.next_batch() == ["b", "c", "d"]
    story.batcher.end(lambda items: ["B", bad, "D"])

    assert futures[2].exception(STUCK_S) is bad
    assert [futures[i].result(STUCK_S) for i in (0, 1, 3)] == ["A", "B", "D"]


@pytest.mark.parametrize("kind", [ConnectionError, SystemExit, KeyboardInterrupt])
def test_failed_run_fails_its_batch_and_the_permit_goes_on(story: Story, kind: type[BaseException]) -> None:
    error = kind()
    story.batcher.batch_max = 2
    first, leader, follower, next_one = (story.lead("a"), *(story.queue(item) for item in "bcd"))

    story.batcher.end()
    assert story.batcher.next_batch() == ["b", "c"]
    story.batcher.end(fail_with(error))
    assert story.batcher.next_batch() == ["d"]
    story.batcher.end()

    assert leader.exception(STUCK_S) is error
    lost = follower.exception(STUCK_S)
    assert isinstance(lost, batching.LeaderLost)
    assert lost.__cause__ is error
    assert [first.result(STUCK_S), next_one.result(STUCK_S)] == ["A", "D"]


def test_run_that_forgets_a_result_is_a_bug_for_the_whole_batch(story: Story) -> None:
    first, leader, follower = story.lead("a"), story.queue("b"), story.queue("c")

    story.batcher.end()
    assert story.batcher.next_batch() == ["b", "c"]
    story.batcher.end(lambda items: ["B"])

    assert isinstance(leader.exception(STUCK_S), AssertionError)
    assert isinstance(follower.exception(STUCK_S), batching.LeaderLost)
    assert first.result(STUCK_S) == "A"


def test_run_that_submits_again_raises_instead_of_waiting_for_itself(story: Story) -> None:
    leader = story.lead("a")

    story.batcher.end(lambda items: [story.batcher.submit("again", queue_deadline=NEVER, deadline=NEVER)])

    assert isinstance(leader.exception(STUCK_S), limits.NestedAcquire)


def test_run_gets_the_deadline_of_its_leader() -> None:
    seen: list[float] = []

    def run(items: Sequence[int], deadline: float) -> Sequence[int]:
        seen.append(deadline)
        return items

    batcher = batching.Batcher[int, int](name="settle", permits=1, batch_max=64, queue_max=0, run=run)

    batcher.submit(1, queue_deadline=5.0, deadline=7.0)

    assert seen == [7.0]


def test_retry_after_is_the_queue_at_the_drain_rate() -> None:
    now = 0.0

    def run(items: Sequence[int], deadline: float) -> Sequence[int]:
        nonlocal now
        now += 0.5
        return items

    batcher = batching.Batcher[int, int](
        name="settle", permits=2, batch_max=64, queue_max=64, run=run, clock=lambda: now
    )
    for item in range(200):
        batcher.submit(item, queue_deadline=now, deadline=now)
    assert batcher.drain_rate == pytest.approx(4.0)
    assert batcher.retry_after_s() == 1

    for item in range(20):
        batcher._queue.append(batching._Ticket(item, now))

    assert batcher.retry_after_s() == 6  # 21 items at 4 a second


def test_describe_tells_who_leads_and_how_large_batches_are(story: Story) -> None:
    futures = [story.lead("a"), story.queue("b"), story.queue("c")]
    story.batcher.end()
    story.batcher.next_batch()

    described = story.batcher.describe()
    story.batcher.end()

    assert (described["limit"], described["permits"], described["in_use"], described["waiting"]) == (
        "settle",
        1,
        1,
        0,
    )
    assert any("wait_for_the_end" in line for line in described["holders"][0]["stack"])
    assert [future.result(STUCK_S) for future in futures] == ["A", "B", "C"]
    assert story.batcher.describe()["last_batches"] == [1, 2]
