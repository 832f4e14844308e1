"""Where there are no more cores than workers, each worker keeps to one of its own, whoever was killed before."""

import os
import signal
from functools import partial

import pytest

from tests.crash import processes
from tests.crash.servers import App

pytestmark = pytest.mark.crash

WORKERS = 2
CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def cores(app: App) -> list[set[int]]:
    return [os.sched_getaffinity(pid) for pid in app.list_workers()]


def are_apart(app: App, gone: set[int]) -> bool:
    living = set(app.list_workers())
    return len(living) == WORKERS and not living & gone and sorted(map(len, cores(app))) == [1] * WORKERS


@pytest.mark.skipif(len(CORES) < WORKERS, reason="needs Linux, and two cores")
def test_each_worker_has_a_core_of_its_own(app: App) -> None:
    """Whichever is killed, and whichever after that: no two are left on one core."""
    os.sched_setaffinity(0, sorted(CORES)[:WORKERS])  # what we start inherits it
    try:
        app.serve()
    finally:
        os.sched_setaffinity(0, CORES)
    gone: set[int] = set()
    for victim in (0, 0, 1, 1):
        processes.wait_until("two workers that keep to one core each", partial(are_apart, app, gone), within_s=20)
        assert len(set.union(*cores(app))) == WORKERS
        killed = sorted(app.list_workers())[victim]
        app.kill(signal.SIGKILL, [killed])
        gone.add(killed)
