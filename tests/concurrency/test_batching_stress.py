"""The hand-over under fire: many threads, random failures, deadlines of a few milliseconds.

What is told step by step in tests/unit/test_batching.py is counted here.
"""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from payments import batching, limits

pytestmark = pytest.mark.concurrency

THREADS, SUBMITS_EACH, PERMITS, BATCH_MAX, QUEUE_MAX = 64, 1000, 2, 8, 48
SECONDS_MAX = 60  # takes a few; a lost permit or a waiter without a leader would take for ever


@pytest.fixture(autouse=True)
def hasty_interpreter() -> Iterator[None]:
    """Let threads interrupt each other a hundred times as often as usual."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(usual_s / 100)
    yield
    sys.setswitchinterval(usual_s)


class Busy:
    """Counts how many are inside at once."""

    def __init__(self) -> None:
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.now -= 1


def test_every_item_runs_at_most_once_and_is_answered_in_exactly_one_way() -> None:
    ran: Counter[int] = Counter()
    sizes: set[int] = set()
    busy, dice = Busy(), random.Random(1)

    def run(items: Sequence[int], deadline: float) -> Sequence[int | Exception]:
        with busy:
            with busy.lock:
                ran.update(items)
                sizes.add(len(items))
            time.sleep(dice.choice((0, 0, 0.0005, 0.003)))
            fate = dice.random()
            if fate < 0.02:
                raise ConnectionError
            if fate < 0.04:
                raise SystemExit
            return [ValueError(item) if item % 50 == 0 else -item for item in items]

    batcher = batching.Batcher[int, int](
        name="settle", permits=PERMITS, batch_max=BATCH_MAX, queue_max=QUEUE_MAX, run=run
    )
    answers: dict[int, str] = {}

    def submit_all(number: int) -> None:
        own_dice = random.Random(number)
        for item in range(1 + number * SUBMITS_EACH, 1 + (number + 1) * SUBMITS_EACH):
            queue_deadline = time.monotonic() + own_dice.choice((0, 0.001, 0.004, 0.02))
            deadline = queue_deadline + own_dice.choice((0, 0.001, 1))
            try:
                result = batcher.submit(item, queue_deadline=queue_deadline, deadline=deadline)
            except ValueError as error:
                answers[item] = "own failure" if error.args == (item,) else f"another's {error}"
            except BaseException as error:  # noqa: BLE001 (a leader gets SystemExit as it is)
                answers[item] = type(error).__name__
            else:
                answers[item] = "done" if result == -item else f"another's {result}"

    started_at = time.monotonic()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(submit_all, range(THREADS), timeout=SECONDS_MAX))

    assert (batcher.in_use, batcher.waiting) == (0, 0)
    assert time.monotonic() - started_at < SECONDS_MAX
    assert busy.most == PERMITS
    assert max(sizes) == BATCH_MAX
    assert set(ran.values()) == {1}
    assert len(answers) == THREADS * SUBMITS_EACH
    by_answer = Counter(answers.values())
    # Every way out was really taken, and there is no other.
    ran_or_not = {"done", "own failure", "ConnectionError", "SystemExit", "LeaderLost", "ResultUnknown"}
    assert set(by_answer) == {*ran_or_not, "Saturated"}
    assert by_answer["Saturated"] == batcher.refused_total
    # Refused means not run, anything else means run.
    assert {item for item, answer in answers.items() if answer != "Saturated"} == set(ran)


def test_limit_never_lets_in_more_than_its_permits() -> None:
    limit, busy = limits.Limit(name="stress", permits=3, wait_s=0.002, queue_max=20), Busy()
    used: Counter[str] = Counter()

    def use(number: int) -> None:
        own_dice = random.Random(number)
        for _ in range(SUBMITS_EACH // 4):
            try:
                with limit, busy:
                    time.sleep(own_dice.choice((0, 0.0005)))
                    if own_dice.random() < 0.1:
                        raise ValueError
            except (limits.Saturated, ValueError) as error:
                used[type(error).__name__] += 1

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(use, range(THREADS), timeout=SECONDS_MAX))

    assert busy.most == 3
    assert (limit.in_use, limit.waiting) == (0, 0)
    assert set(used) == {"Saturated", "ValueError"}
    with limit:
        assert limit.in_use == 1
