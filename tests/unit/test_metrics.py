"""Metrics of several processes: what the dead leave behind, and who counts what."""

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import OperationalError
from prometheus_client import REGISTRY

from payments import database, limits, metric_files, metrics

COUNT = """
import os, sys
from prometheus_client import Counter, Gauge, Histogram
Counter("told_total", "t", ["endpoint"]).labels("demo").inc(int(sys.argv[1]))
Gauge("in_use", "t", multiprocess_mode="livesum").set(7)
Histogram("seconds", "t", buckets=(1, 2)).observe(1.5)
print(os.getpid())
"""
Count = Callable[[int], int]


@pytest.fixture
def count(tmp_path: Path) -> Count:
    """Count so much in another process, which is dead afterwards; return its id."""

    def count(number: int) -> int:
        return int(
            subprocess.run(
                [sys.executable, "-c", COUNT, str(number)],
                env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
                capture_output=True,
                check=True,
            ).stdout
        )

    return count


@pytest.fixture
def scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, float]]:
    """Return what all processes' files say together, without what this process adds."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(metrics, "publish_limits", lambda: None)

    def scrape() -> dict[str, float]:
        lines = metrics.exposition().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    return scrape


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.db"))


def test_the_dead_are_counted_and_leave_no_files(
    count: Count, scrape: Callable[[], dict[str, float]], tmp_path: Path
) -> None:
    """However many workers die: the same sums as before, no gauge of theirs, and three files fewer each."""
    for number in range(1, 6):
        dead = count(number)
        before = scrape()
        metric_files.bury(tmp_path, dead, living=[])
        after = scrape()
        assert before.pop("in_use") == 7
        assert after == before

    assert scrape()['told_total{endpoint="demo"}'] == 15
    assert scrape()["seconds_count"] == 5
    assert scrape()['seconds_bucket{le="2.0"}'] == 5
    assert files(tmp_path) == ["counter_dead.db", "histogram_dead.db"]


def test_nothing_is_moved_under_a_reader(count: Count, tmp_path: Path) -> None:
    """The master doesn't wait for a scrape, frozen perhaps: it moves the counts at the next death."""
    first = count(1)
    with metric_files.reading(tmp_path):
        metric_files.bury(tmp_path, first, living=[])
        assert files(tmp_path) == [f"counter_{first}.db", f"histogram_{first}.db"]

    metric_files.bury(tmp_path, count(2), living=[])

    assert files(tmp_path) == ["counter_dead.db", "histogram_dead.db"]


def test_a_reader_does_not_wait_for_a_frozen_master(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with metric_files.reading(tmp_path):
            pass


def test_a_living_process_keeps_its_files(count: Count, tmp_path: Path) -> None:
    """A process id can be used again before the dead one's counts were moved."""
    pid = count(1)
    metric_files.bury(tmp_path, pid, living=[pid])

    assert f"counter_{pid}.db" in files(tmp_path)


@pytest.mark.parametrize("cut", [0, 3, 12, 100])
def test_a_file_that_was_cut_off_hurts_nobody(count: Count, tmp_path: Path, cut: int) -> None:
    """SIGKILL between making a file and writing to it; or a full disk."""
    pid = count(1)
    path = tmp_path / f"counter_{pid}.db"
    path.write_bytes(path.read_bytes()[:cut])

    metric_files.bury(tmp_path, pid, living=[])

    assert not path.exists()


def test_a_scrape_meets_a_file_that_has_just_been_made(
    scrape: Callable[[], dict[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker makes a file, then gives it its size: the scrape looks again instead of failing."""
    fresh = tmp_path / "counter_1.db"
    fresh.touch()
    monkeypatch.setattr("payments.metrics.time.sleep", lambda seconds: fresh.write_bytes(bytes(64)))

    assert scrape() == {}


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_waits_are_in_the_histogram() -> None:
    before = value("payments_limit_wait_seconds_count", limit="told")
    limit = limits.Limit(name="told", permits=1, wait_s=0.0)
    waiter = limits.Waiter()
    waiter.thread_id = 0

    with limit:
        assert not limit._take(waiter)
        with pytest.raises(limits.Saturated):
            limit._wait(waiter, until=0.0)

    assert value("payments_limit_wait_seconds_count", limit="told") == before + 1


class Failed(Exception):
    """What the driver raises, with its SQLSTATE."""

    def __init__(self, sqlstate: str) -> None:
        self.sqlstate = sqlstate


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("sqlstate", "reason", "tries"),
    [
        ("40P01", "deadlock", database.TRIES_MAX),
        ("40001", "serialization", database.TRIES_MAX),
        ("55P03", "lock_timeout", 1),
        ("57014", "statement_timeout", 1),
        ("23505", "other", 1),
    ],
)
def test_failed_transactions_are_counted_by_reason(sqlstate: str, reason: str, tries: int) -> None:
    failures, retries = (f"payments_transaction_{what}_total" for what in ("failures", "retries"))
    before = value(failures, reason=reason), value(retries, reason=reason)

    def fail() -> None:
        raise OperationalError from Failed(sqlstate)

    with pytest.raises(OperationalError):
        database.in_transaction(fail, deadline=float("inf"))

    assert value(failures, reason=reason) == before[0] + tries
    assert value(retries, reason=reason) == before[1] + tries - 1
