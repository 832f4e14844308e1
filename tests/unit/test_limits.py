"""Named limits: each deadlock the field knows, what a refusal says, and who holds what now."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from payments import limits

STUCK_S = 10  # nothing here takes long; who waits so long waits for ever

Threads = ThreadPoolExecutor
Hold = Callable[[limits.Limit], AbstractContextManager[threading.Thread]]


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ToldLimit(limits.Limit):
    """A limit whose waiters say that they wait, and whose time is up when the test says so."""

    def __init__(self, *, permits: int = 1, name: str = "told") -> None:
        super().__init__(name=name, permits=permits, wait_s=STUCK_S)
        self.asleep: SimpleQueue[limits.Waiter] = SimpleQueue()
        self.time_is_up: threading.Event | None = None

    def _sleep(self, waiter: limits.Waiter, until: float) -> bool:
        self.asleep.put(waiter)
        if self.time_is_up is None:
            return super()._sleep(waiter, until)
        assert self.time_is_up.wait(STUCK_S)
        return False


@pytest.fixture
def threads() -> Iterator[Threads]:
    with Threads(8) as pool:
        yield pool


@pytest.fixture
def hold() -> Hold:
    """Hold a permit in another thread."""

    @contextmanager
    def hold(limit: limits.Limit) -> Iterator[threading.Thread]:
        taken, let_go = threading.Event(), threading.Event()

        def stand_here() -> None:
            with limit:
                taken.set()
                let_go.wait(STUCK_S)

        thread = threading.Thread(target=stand_here, name="the-holder")
        thread.start()
        assert taken.wait(STUCK_S)
        try:
            yield thread
        finally:
            let_go.set()
            thread.join(STUCK_S)

    return hold


def use(limit: limits.Limit) -> str:
    with limit:
        return "used"


def gauges(limit: limits.Limit) -> tuple[int, int, int]:
    return limit.in_use, limit.waiting, limit.refused_total


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_permit_comes_back_whatever_leaves_the_body(error: type[BaseException]) -> None:
    limit = limits.Limit(name="one", permits=1, wait_s=0)

    with pytest.raises(error), limit:
        raise error

    assert use(limit) == "used"
    assert gauges(limit) == (0, 0, 0)


def test_permit_comes_back_from_an_abandoned_generator() -> None:
    limit = limits.Limit(name="one", permits=1, wait_s=0)

    def rows() -> Iterator[int]:
        with limit:
            yield 1
            yield 2

    abandoned = rows()
    next(abandoned)
    assert limit.in_use == 1
    del abandoned

    assert gauges(limit) == (0, 0, 0)


def test_nested_acquire_raises_at_once_even_with_permits_free() -> None:
    limit = limits.Limit(name="many", permits=5, wait_s=STUCK_S)

    with limit, pytest.raises(limits.NestedAcquire) as caught:
        use(limit)

    assert caught.value.limit == "many"
    assert gauges(limit) == (0, 0, 0)


def test_different_limits_nest() -> None:
    outer = limits.Limit(name="outer", permits=1, wait_s=0)
    inner = limits.Limit(name="inner", permits=1, wait_s=0)

    with outer:
        assert use(inner) == "used"


def test_no_wait_means_now_or_never(hold: Hold) -> None:
    limit = limits.Limit(name="full", permits=1, wait_s=0)

    with hold(limit):
        with pytest.raises(limits.Saturated) as caught:
            use(limit)
        assert gauges(limit) == (1, 0, 1)

    assert (caught.value.limit, caught.value.retry_after_s) == ("full", 1)
    assert gauges(limit) == (0, 0, 1)


def test_wait_ends_after_wait_s(hold: Hold) -> None:
    limit = limits.Limit(name="slow", permits=1, wait_s=0.01)

    with hold(limit), pytest.raises(limits.Saturated):
        use(limit)

    assert gauges(limit) == (0, 0, 1)


def test_more_waiters_than_may_wait_are_refused_at_once(hold: Hold, threads: Threads) -> None:
    limit = ToldLimit()
    limit.queue_max = 1

    with hold(limit):
        waiter = threads.submit(use, limit)
        limit.asleep.get(timeout=STUCK_S)
        with pytest.raises(limits.Saturated):
            use(limit)

    assert waiter.result(STUCK_S) == "used"
    assert gauges(limit) == (0, 0, 1)


def test_permits_held_across_a_timed_out_wait_come_back(hold: Hold) -> None:
    """Waiting for one limit while holding another: a wait in vain must not keep the first one's permit."""
    held = limits.Limit(name="held", permits=1, wait_s=0)
    wanted = limits.Limit(name="wanted", permits=1, wait_s=0.01)

    with hold(wanted), pytest.raises(limits.Saturated), held:
        use(wanted)

    assert gauges(held) == (0, 0, 0)
    assert gauges(wanted) == (0, 0, 1)


def test_permit_handed_over_as_time_runs_out_is_taken_not_lost(hold: Hold, threads: Threads) -> None:
    limit = ToldLimit()
    limit.time_is_up = threading.Event()

    with hold(limit):
        waiter = threads.submit(use, limit)
        limit.asleep.get(timeout=STUCK_S)
    assert gauges(limit) == (1, 0, 0)  # the waiter's already, though it still sleeps
    limit.time_is_up.set()

    assert waiter.result(STUCK_S) == "used"
    assert gauges(limit) == (0, 0, 0)


@pytest.mark.parametrize("promoted", [False, True])
def test_interrupted_wait_leaves_nothing_behind(hold: Hold, threads: Threads, promoted: bool) -> None:
    """A signal's handler raises in the waiting thread, before or just after it was handed the permit."""
    asleep, interrupt = threading.Event(), threading.Event()

    class Interrupted(limits.Limit):
        def _sleep(self, waiter: limits.Waiter, until: float) -> bool:
            asleep.set()
            assert interrupt.wait(STUCK_S)
            raise KeyboardInterrupt

    limit = Interrupted(name="interrupted", permits=1, wait_s=STUCK_S)

    with hold(limit):
        waiter = threads.submit(use, limit)
        assert asleep.wait(STUCK_S)
        if not promoted:
            interrupt.set()
            waiter.exception(STUCK_S)
    interrupt.set()

    assert isinstance(waiter.exception(STUCK_S), KeyboardInterrupt)
    assert gauges(limit) == (0, 0, 0)


def test_waiters_are_served_in_the_order_of_their_coming(hold: Hold, threads: Threads) -> None:
    limit, served = ToldLimit(), []

    def serve(number: int) -> None:
        with limit:
            served.append(number)

    with hold(limit):
        for number in range(5):
            threads.submit(serve, number)
            limit.asleep.get(timeout=STUCK_S)
    threads.shutdown()

    assert served == [0, 1, 2, 3, 4]


def test_newcomer_does_not_overtake_a_waiter_that_has_not_woken_yet(hold: Hold, threads: Threads) -> None:
    limit = ToldLimit()
    limit.queue_max = 1
    limit.time_is_up = threading.Event()

    with hold(limit):
        slow_waker = threads.submit(use, limit)
        limit.asleep.get(timeout=STUCK_S)
    limit.queue_max = 0
    with pytest.raises(limits.Saturated):
        use(limit)
    limit.time_is_up.set()

    assert slow_waker.result(STUCK_S) == "used"


def test_refusal_logs_who_holds_the_permits_and_where_they_stand(hold: Hold, caplog: pytest.LogCaptureFixture) -> None:
    limit = limits.Limit(name="full", permits=1, wait_s=0.01)

    with hold(limit) as holder, caplog.at_level(logging.WARNING), pytest.raises(limits.Saturated):
        use(limit)

    (record,) = caplog.records
    fields = vars(record)
    assert record.getMessage() == "limit_wait_timed_out"
    assert (fields["limit"], fields["permits"], fields["in_use"], fields["waiting"]) == ("full", 1, 1, 0)
    (described,) = fields["holders"]
    assert (described["thread"], described["thread_id"]) == ("the-holder", holder.ident)
    assert 0 <= described["held_s"] < STUCK_S
    assert any(line.endswith("stand_here") and __file__ in line for line in described["stack"])
    assert described["stack"][-1].endswith(".wait")  # innermost last: it waits for an event


def test_flood_of_refusals_is_logged_once_a_second_and_counted_in_full(
    hold: Hold, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    limit = limits.Limit(name="full", permits=1, wait_s=0, clock=clock)

    with hold(limit), caplog.at_level(logging.WARNING):
        for pause_s in (0.0, 0.5, 0.25, 0.25):
            clock.now += pause_s
            with pytest.raises(limits.Saturated):
                use(limit)

    assert [vars(record)["refused_total"] for record in caplog.records] == [1, 4]


def test_retry_after_grows_with_a_stall_and_has_a_cap(hold: Hold) -> None:
    clock = Clock()
    limit = limits.Limit(name="stalled", permits=1, wait_s=0, clock=clock)
    seen = []

    with hold(limit):
        for pause_s in (0.0, 2.5, 3600.0):
            clock.now += pause_s
            seen.append(limit.retry_after_s())

    assert seen == [1, 3, limits.RETRY_AFTER_MAX_S]


def test_retry_after_follows_the_observed_drain_rate() -> None:
    clock = Clock()
    limit = limits.Limit(name="steady", permits=2, wait_s=0, clock=clock)
    assert limit.drain_rate == 0.0

    for _ in range(200):
        with limit:
            clock.now += 8.0

    assert limit.drain_rate == pytest.approx(2 / 8.0)
    assert limit.retry_after_s() == 4


def test_waits_are_observed_and_free_permits_are_not(
    hold: Hold, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, float]] = []
    monkeypatch.setattr(limits, "_observe_wait", None)
    limits.set_wait_observer(lambda name, wait_s: seen.append((name, wait_s)))
    limit = ToldLimit()

    with hold(limit):
        assert seen == []
        waiter = threads.submit(use, limit)
        limit.asleep.get(timeout=STUCK_S)
    waiter.result(STUCK_S)

    ((name, wait_s),) = seen
    assert name == "told"
    assert 0 <= wait_s < STUCK_S


def test_limit_without_permits_is_refused() -> None:
    with pytest.raises(ValueError, match="intake"):
        limits.Limit(name="intake", permits=0, wait_s=0)


@pytest.fixture
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_registry", {})
    settings = SimpleNamespace(PAYMENTS_INTAKE_PERMITS=3, PAYMENTS_STAFF_PERMITS=2)
    monkeypatch.setattr(limits, "settings", settings)


@pytest.mark.usefixtures("fresh_registry")
def test_get_builds_once_from_the_settings() -> None:
    intake = limits.get("intake")

    assert (intake.permits, intake.wait_s) == (3, 0.0)
    assert limits.get("intake") is intake
    with pytest.raises(KeyError):
        limits.get("unheard-of")


@pytest.mark.usefixtures("fresh_registry")
def test_concerns_do_not_share_a_limit(hold: Hold) -> None:
    """A flood that fills intake leaves staff's permits untouched."""
    with hold(limits.get("intake")), hold(limits.get("intake")), hold(limits.get("intake")):
        with pytest.raises(limits.Saturated):
            use(limits.get("intake"))
        assert use(limits.get("staff")) == "used"


@pytest.mark.usefixtures("fresh_registry")
def test_describe_shows_every_limit_idle_or_not(hold: Hold) -> None:
    extra = limits.Limit(name="settle", permits=2, wait_s=0)
    limits.register(extra)
    limits.register(extra)

    with hold(extra):
        now = {row["limit"]: row for row in limits.describe()}

    assert list(now) == sorted([*limits.TABLE, "settle"])
    assert {name: row["in_use"] for name, row in now.items() if row["in_use"]} == {"settle": 1}
    assert now["settle"]["holders"][0]["thread"] == "the-holder"
    with pytest.raises(ValueError, match="settle"):
        limits.register(limits.Limit(name="settle", permits=2, wait_s=0))


def test_limit_made_before_a_fork_works_after_it() -> None:
    """As gunicorn's workers do. Tried in a process of its own, since pytest's has threads."""
    program = """
import os
from payments import limits
limit = limits.Limit(name="forked", permits=1, wait_s=0)
with limit: pass
child = os.fork()
with limit: pass
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    path = ":".join(sys.path)

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env={"PYTHONPATH": path})
