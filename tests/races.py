"""Threads with connections of their own, and interleavings that are told, not slept for."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg
import pytest
from django.db import connection, connections

Result = TypeVar("Result")
Session = psycopg.Connection[Any]
SECONDS: Final = 20  # until a thread that waits for another says that it never came


@contextmanager
def session() -> Iterator[Session]:
    """Open another session of the tests' database, for what happens beside ours."""
    given = connection.settings_dict
    parameters = {"dbname": given["NAME"], "user": given["USER"], "password": given["PASSWORD"]}
    with psycopg.connect(host=given["HOST"], port=given["PORT"], autocommit=True, **parameters) as opened:
        yield opened


def at_once(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run the works in threads that begin together; return what each returned."""
    start = threading.Barrier(len(works))

    def run(work: Callable[[], Result]) -> Result:
        start.wait(SECONDS)
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(SECONDS) for future in [pool.submit(run, work) for work in works]]


class Thread(threading.Thread):
    """Works beside the test; result() waits for its end."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001  it is raised in the test's thread
            self._error = error
        finally:
            connections.close_all()

    def result(self) -> Any:
        """Return what the work returned, or raise what it raised."""
        self.join(SECONDS)
        assert not self.is_alive(), "the thread never came to an end"
        if self._error is not None:
            raise self._error
        return self._result


class Pause:
    """Lets the thread that first calls a function stand still after it (or before) until the test says go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, *, before: bool = False) -> None:
        self._reached, self._go, self._first = threading.Event(), threading.Event(), threading.Lock()
        original = getattr(module, name)

        def paused(*args: Any, **kwargs: Any) -> Any:
            result = None if before else original(*args, **kwargs)
            if self._first.acquire(blocking=False):
                self._reached.set()
                assert self._go.wait(SECONDS)
            return original(*args, **kwargs) if before else result

        monkeypatch.setattr(module, name, paused)

    def wait_reached(self) -> None:
        """Return once a thread stands still."""
        assert self._reached.wait(SECONDS), "the paused call was never made"

    def go_on(self) -> None:
        self._go.set()


def wait_until_blocked(other: Session, *, or_ended: Thread) -> None:
    """Return once some session of this database waits for a lock, or the thread has ended without."""
    while or_ended.is_alive():
        (waiting,) = other.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone() or (0,)
        if waiting:
            return
