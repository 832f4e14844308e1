"""The attempt log: who is in it, and that it never slows or fails a delivery, whatever becomes of its own rows."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from prometheus_client import REGISTRY

from payments import attempts, database, limits, models
from tests.deliveries import Deliver

pytestmark = pytest.mark.django_db

MORNING = datetime(2026, 11, 30, 10, 2, tzinfo=UTC)


def attempted(number: int) -> attempts.Attempted:
    return attempts.Attempted(
        endpoint_id=1,
        event_id=f"evt_{number}",
        status=200,
        replayed=False,
        duration_ms=1.25,
        received_at=MORNING + timedelta(seconds=number),
    )


def lost_total() -> float:
    return REGISTRY.get_sample_value("payments_attempts_lost_total") or 0.0


def gaps() -> list[tuple[int, datetime, datetime | None]]:
    rows = models.Attempt.objects.filter(lost__gt=0).order_by("id")
    return [(row.lost, row.received_at, row.lost_until) for row in rows]


def fail(*_: Any, **__: Any) -> None:
    raise OperationalError("the database is away")


def test_each_verified_delivery_is_a_row(deliver: Deliver, attempt_log: attempts.Log) -> None:
    """First, again, refused for other content: each with what it was answered and how long that took."""
    for amount in (1, 1, 2):
        deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=amount)

    assert attempt_log.write_once() == 3

    rows = models.Attempt.objects.order_by("id")
    assert [(row.event_id, row.status, row.replayed, row.lost) for row in rows] == [
        ("evt_1", 200, False, 0),
        ("evt_1", 200, True, 0),
        ("evt_1", 422, False, 0),
    ]
    assert all(row.duration_ms and row.duration_ms > 0 for row in rows)
    assert {row.endpoint_id for row in rows} == {models.Endpoint.objects.get(slug="demo").pk}


def test_what_can_not_be_verified_is_not_recorded(deliver: Deliver, attempt_log: attempts.Log) -> None:
    """Who can't sign must not be able to fill a disk."""
    deliver.client.get("/webhooks/demo")
    deliver.client.post("/webhooks/demo", b"{}", "application/json")
    deliver.client.post("/webhooks/demo", b"{}", "application/json", headers={"webhook-id": "evt_1"})
    deliver.client.post("/webhooks/nobody", b"{}", "application/json")

    assert attempt_log.write_once() == 0


def test_a_delivery_that_is_told_to_come_back_is_a_row(
    deliver: Deliver, attempt_log: attempts.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 503 is what staff look for first."""
    with monkeypatch.context() as patch:
        patch.setattr("payments.claims.find", fail)
        assert deliver("payment.captured", event_id="evt_1", payment="p", amount=1).status_code == 503
    attempt_log.write_once()

    assert models.Attempt.objects.get().status == 503


def test_rows_are_written_in_batches(
    attempt_log: attempts.Log, django_assert_num_queries: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "BATCH_MAX", 40)
    for number in range(100):
        attempt_log.record(attempted(number))

    with django_assert_num_queries(3):
        taken = [attempt_log.write_once() for _ in range(4)]

    assert taken == [40, 40, 20, 0]
    assert models.Attempt.objects.count() == 100


def test_what_the_queue_does_not_hold_becomes_a_gap(attempt_log: attempts.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest ones are kept; the rest is counted, and told with its span at the next success."""
    monkeypatch.setattr(attempts, "QUEUE_MAX", 3)
    before = lost_total()

    for number in range(40):
        attempt_log.record(attempted(number))
    attempt_log.write_once()

    assert lost_total() == before + 37
    assert gaps() == [(37, MORNING + timedelta(seconds=3), MORNING + timedelta(seconds=39))]
    assert models.Attempt.objects.filter(lost=0).count() == 3


def test_the_database_was_away(
    attempt_log: attempts.Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two batches are lost, each is counted once, and one gap covers both and what the queue lost meanwhile."""
    monkeypatch.setattr(attempts, "QUEUE_MAX", 10)
    before = lost_total()
    with monkeypatch.context() as patch:
        patch.setattr(connection, "ensure_connection", fail)
        for begin in (0, 20):
            for number in range(begin, begin + 12):
                attempt_log.record(attempted(number))
            attempt_log.write_once()
        assert attempt_log.write_once() == 0  # only a gap to write, and it is kept
    attempt_log.record(attempted(99))
    attempt_log.write_once()

    assert lost_total() == before + 24
    assert gaps() == [(24, MORNING, MORNING + timedelta(seconds=31))]
    assert models.Attempt.objects.filter(lost=0).count() == 1
    assert [record.message for record in caplog.records] == ["attempts_not_recorded"] * 3


def test_a_gap_is_told_once(attempt_log: attempts.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "QUEUE_MAX", 0)
    attempt_log.record(attempted(1))

    for _ in range(3):
        attempt_log.write_once()

    assert len(gaps()) == 1


def test_a_bug_loses_no_attempt_without_a_word(attempt_log: attempts.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody foresaw is raised, and still is a gap of the right size."""
    before = lost_total()
    for number in range(7):
        attempt_log.record(attempted(number))
    with monkeypatch.context() as patch:
        patch.setattr(attempts, "_rows", lambda batch: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            attempt_log.write_once()
    attempt_log.write_once()

    assert lost_total() == before + 7
    assert gaps() == [(7, MORNING, MORNING + timedelta(seconds=6))]


def test_no_permit_is_a_gap(attempt_log: attempts.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt_log.record(attempted(1))
    with monkeypatch.context() as patch:
        patch.setitem(limits.get("attempts")._holders, 0, 0.0)
        assert attempt_log.write_once() == 1

    attempt_log.write_once()
    assert [lost for lost, _, _ in gaps()] == [1]


def test_recording_never_waits_for_writing(attempt_log: attempts.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a batch stands still in the database, deliveries go on being recorded."""
    writing, go_on = threading.Event(), threading.Event()

    @contextmanager
    def stand_still(deadline: float) -> Iterator[None]:
        writing.set()
        assert go_on.wait(20)
        fail()
        yield

    monkeypatch.setattr(database, "connected", stand_still)
    attempt_log.record(attempted(0))
    writer = threading.Thread(target=attempt_log.write_once)
    writer.start()
    assert writing.wait(20)

    def record() -> None:
        for number in range(1, 100):
            attempt_log.record(attempted(number))

    recorder = threading.Thread(target=record)
    recorder.start()
    recorder.join(20)

    assert not recorder.is_alive()
    assert writer.is_alive()
    go_on.set()
    writer.join(20)


def test_a_machine_without_threads_fails_no_delivery(
    deliver: Deliver, attempt_log: attempts.Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The money is booked and the answer given; the next delivery tries to start the writer again."""

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        assert deliver("payment.captured", payment="pay_1", account="merchant-1", amount=1).status_code == 200

    deliver("payment.captured", payment="pay_2", account="merchant-1", amount=1)

    assert attempt_log._thread is not None
    assert [record.message for record in caplog.records] == ["attempts_not_recorded"]
    assert attempt_log.write_once() == 2


def test_the_writer_outlives_a_bug(
    attempt_log: attempts.Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its failure is a log line; it goes on with the next batch."""

    class Ended(BaseException):
        pass

    outcomes: list[BaseException] = [ZeroDivisionError(), Ended()]

    def write_once() -> int:
        raise outcomes.pop(0)

    monkeypatch.undo()  # the thread's own loop, run here
    monkeypatch.setattr(attempt_log, "write_once", write_once)
    monkeypatch.setattr(attempts, "PAUSE_S", 0)
    with caplog.at_level(logging.ERROR), pytest.raises(Ended):
        attempt_log._run()

    assert [record.message for record in caplog.records] == ["attempts_failed"]


def test_pruning_bodies_leaves_attempts(deliver: Deliver, attempt_log: attempts.Log) -> None:
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=1)
    attempt_log.write_once()

    with pytest.raises(SystemExit):
        call_command("prune_events", "--older-than", "0", "--json")

    assert models.Event.objects.get().body is None
    assert models.Attempt.objects.count() == 1
