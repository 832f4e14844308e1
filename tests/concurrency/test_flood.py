"""A flood of four times what a server can do, and one claim that stands still: what everybody else sees of it.

What one settlement takes is told by the database (a trigger that sleeps), so that the capacity is the same on a busy
machine as on an idle one. What was measured is printed with `pytest -rP`.
"""

# ruff: noqa: T201

import http.client
import math
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from payments import views
from tests import serving
from tests.crash import gateway, processes
from tests.crash.gateway import Answer, Event
from tests.serving import Served

pytestmark = [pytest.mark.concurrency, pytest.mark.crash]

PERMITS: Final = 16  # deliveries at once; as many clients keep the server just busy
THREADS: Final = PERMITS + 8
BATCH_MAX: Final = 4
SETTLE_S: Final = 0.4  # two batches at once: about 2 * BATCH_MAX / SETTLE_S deliveries a second
CAPACITY: Final = 2 * BATCH_MAX / SETTLE_S
FLOOD: Final = 4  # times as much
PEAK_S: Final = 6.0
LATE_S: Final = 0.1  # how long after its wait a refusal may come, beside what any answer takes at that moment
PAUSE_S: Final = (
    PERMITS * FLOOD / (CAPACITY * FLOOD)
)  # of a refused client: the flood's clients together ask that often

SLOW_DOWN: Final = """
    CREATE OR REPLACE FUNCTION tests_sleep() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(%s); RETURN NULL; END $$;
    CREATE OR REPLACE TRIGGER tests_sleep AFTER INSERT ON payments_claim
        FOR EACH STATEMENT EXECUTE FUNCTION tests_sleep();
"""
SPEED_UP: Final = "DROP TRIGGER IF EXISTS tests_sleep ON payments_claim"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {
        "WEB_CONCURRENCY": "1",
        "WEB_THREADS": str(THREADS),
        "PAYMENTS_INTAKE_PERMITS": str(PERMITS),
        "PAYMENTS_SETTLE_BATCH_MAX": str(BATCH_MAX),
    }
    with serving.served(tmp_path_factory.mktemp("flood"), **settings) as made:
        yield made


@contextmanager
def slowed(server: Served, seconds: float) -> Iterator[None]:
    """Each settlement takes so long while the block runs."""
    server.postgres.query(SLOW_DOWN % seconds)
    try:
        yield
    finally:
        server.postgres.query(SPEED_UP)


@pytest.fixture
def slow_server(server: Served) -> Iterator[Served]:
    with slowed(server, SETTLE_S):
        yield server


@dataclass
class Seen:
    """What clients saw: seconds of each answer by status (0: none came), and how long they asked."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    lasted_s: float = 0.0

    def add(self, answer: Answer | None) -> None:
        self.seconds.setdefault(0 if answer is None else answer.status, []).append(answer.seconds if answer else 0.0)

    def count(self, status: int) -> int:
        return len(self.seconds.get(status, []))

    def rate(self, status: int) -> float:
        return self.count(status) / self.lasted_s

    def quantile(self, status: int, share: float) -> float:
        return quantile(self.seconds[status], share)


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, math.floor(share * len(values)))]


def new_capture() -> Event:
    return gateway.capture(amount=100, account=f"merchant-{time.monotonic_ns() % 50 + 1}")


@contextmanager
def clients(
    server: Served, count: int, told: Callable[[], Event] = new_capture, pause_s: float = 0.0
) -> Iterator[Seen]:
    """Deliver from so many clients at once, each one after the other, while the block runs."""
    seen, stop = Seen(), threading.Event()
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            while not stop.is_set():
                answer = gateway.send(server.app, told())
                seen.add(answer)
                if answer is None or answer.status != 200:
                    stop.wait(PAUSE_S)
                elif pause_s:
                    stop.wait(pause_s)
        except BaseException as failure:  # noqa: BLE001  shown at the end of the `with`
            failures.append(failure)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    began_at = time.monotonic()
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        seen.lasted_s = time.monotonic() - began_at
    assert not failures, failures


def get(server: Served, path: str) -> tuple[int, float, str]:
    """Return status, seconds and text; 0: no answer."""
    began_at = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", server.app.port, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, time.monotonic() - began_at, answer.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, time.monotonic() - began_at, ""
    finally:
        connection.close()


def gauges(server: Served) -> dict[tuple[str, str], float]:
    """Return how many hold a permit of each limit, and wait for one."""
    families = text_string_to_metric_families(get(server, "/metrics")[2])
    return {
        (sample.name.removeprefix("payments_limit_"), sample.labels["limit"]): sample.value
        for family in families
        for sample in family.samples
        if sample.name in ("payments_limit_in_use", "payments_limit_waiting")
    }


def memory_kb(server: Served) -> int:
    (worker,) = server.app.list_workers()
    said = subprocess.run(["ps", "-o", "rss=", "-p", str(worker)], capture_output=True, text=True, check=True)
    return int(said.stdout)


def busy(server: Served, seconds: float, count: int) -> Seen:
    with clients(server, count) as seen:
        time.sleep(seconds)
    return seen


@pytest.mark.parametrize(
    ("seconds", "share"), [(6.0, 0.6), pytest.param(60.0, 0.8, marks=[pytest.mark.soak, pytest.mark.timeout(300)])]
)
def test_a_flood_takes_nothing_from_those_who_are_in(slow_server: Served, seconds: float, share: float) -> None:
    """Goodput stays, refusals are quick, staff and balancers are answered, memory stays, and nothing is held after."""
    busy(slow_server, 2.0, PERMITS)  # warm
    peak = busy(slow_server, PEAK_S, PERMITS)
    memory_before_kb = memory_kb(slow_server)
    pages: dict[str, list[float]] = {"/admin/login/": [], "/readyz": [], "/livez": [], "/metrics": []}

    with clients(slow_server, PERMITS * FLOOD) as flood:
        end_at = time.monotonic() + seconds
        while time.monotonic() < end_at:
            for path, took in pages.items():
                status, page_s, _ = get(slow_server, path)
                assert status in (200, 301), f"{path} answered {status}"
                took.append(page_s)
            time.sleep(0.05)

    growth = memory_kb(slow_server) / memory_before_kb - 1
    asked = sum(map(len, flood.seconds.values())) / flood.lasted_s
    print(f"peak {peak.rate(200):.0f}/s; flood: asked {asked:.0f}/s, goodput {flood.rate(200):.0f}/s")
    print(f"200: p50 {flood.quantile(200, 0.5):.3f} s, p99 {flood.quantile(200, 0.99):.3f} s")
    print(f"503: p50 {flood.quantile(503, 0.5):.3f} s, p95 {flood.quantile(503, 0.95):.3f} s")
    print("p95 of " + ", ".join(f"{path} {quantile(took, 0.95):.3f} s" for path, took in pages.items()))
    print(f"memory {memory_before_kb} kB, {growth:+.1%}")
    assert set(flood.seconds) == {200, 503}
    assert flood.rate(200) >= share * peak.rate(200)
    # The limit is free or not at once. What an answer takes that needs nothing at all is the machine's part.
    assert flood.quantile(503, 0.5) < LATE_S + quantile(pages["/livez"], 0.5)
    assert quantile(pages["/admin/login/"], 0.95) < 1.0
    assert growth < 0.2
    processes.wait_until(
        "all gauges zero",
        lambda: not any(gauges(slow_server).values()),
        within_s=10,
        explain=lambda: str(gauges(slow_server)),
    )


def test_a_refusal_comes_when_the_wait_is_over(server: Served) -> None:
    """Each settlement takes longer than a delivery queues for one: those who queue are told so then, not later."""
    with slowed(server, views.QUEUE_S + 0.5), ThreadPoolExecutor(PERMITS) as pool:
        sent = [pool.submit(gateway.send, server.app, new_capture()) for _ in range(PERMITS)]
        plain = [get(server, "/livez")[1] for _ in range(20)]
        answers = [one.result() for one in sent]

    late = [one.seconds - views.QUEUE_S for one in answers if one is not None and one.status == 503]
    print(f"{len(late)} refused, late by {statistics.median(late):.3f} s, at most {max(late):.3f} s")
    assert {one and one.status for one in answers} == {200, 503}
    assert len(late) >= PERMITS - 1 - BATCH_MAX
    assert min(late) >= 0
    assert statistics.median(late) < LATE_S + quantile(plain, 0.5)


def test_little_s_law(slow_server: Served) -> None:
    """Deliveries in flight, as the gauge tells, are the rate times the latency, as clients see them."""
    in_flight: list[float] = []
    with ExitStack() as stack:
        seen = stack.enter_context(clients(slow_server, PERMITS - 4))
        time.sleep(1.0)
        end_at = time.monotonic() + PEAK_S
        while time.monotonic() < end_at:
            in_flight.append(gauges(slow_server)["in_use", "intake"])
            time.sleep(0.1)

    expected = seen.rate(200) * statistics.mean(seen.seconds[200])
    told = statistics.mean(in_flight)
    print(f"in flight: gauge {told:.2f}, rate * latency {expected:.2f}")
    assert told == pytest.approx(expected, rel=0.2)


def test_who_holds_what_is_told_while_everything_is_stuck(server: Served) -> None:
    """PostgreSQL is frozen, every thread of the worker waits for it or queues: an operator asks what is going on."""
    (worker,) = server.app.list_workers()
    with server.postgres.frozen(), clients(server, THREADS):
        processes.wait_until(
            "all permits taken",
            lambda: held(server.app.manage_json("limits", expect=0), worker)["intake"] == PERMITS,
            within_s=20,
        )
        told = server.app.manage_json("limits", expect=0)
        shown = server.app.manage("limits", expect=0).stdout

    (settling, *_) = next(one for one in told["processes"][0]["limits"] if one["limit"] == "settle")["holders"]
    assert any("database.py" in frame for frame in settling["stack"])
    assert f"worker {worker}" in shown
    assert "batching.py" in shown
    processes.wait_until(
        "nothing held",
        lambda: not any(held(server.app.manage_json("limits", expect=0), worker).values()),
        within_s=20,
    )


def held(told: dict[str, Any], worker: int) -> dict[str, int]:
    """Return how many permits of each limit the worker's threads hold, as `manage.py limits` tells."""
    (process,) = told["processes"]
    assert process["pid"] == worker
    return {limit["limit"]: len(limit["holders"]) for limit in process["limits"]}


def test_a_claim_that_stands_still_stalls_nobody_else(server: Served) -> None:
    """Its winner is frozen mid-transaction, longer than any of ours could be; its re-deliveries come and come."""
    frozen = new_capture()
    with clients(server, 8, pause_s=0.02) as before:
        time.sleep(3.0)
    with server.postgres.connect() as winner, winner.transaction(force_rollback=True):
        winner.execute(
            "INSERT INTO payments_claim (endpoint_id, event_id, event_type, fingerprint, outcome, reply_status,"
            " reply_content_type, reply_body) SELECT id, %s, '', '{}', 'ignored', 200, '', '' FROM payments_endpoint"
            " WHERE slug = 'demo'",
            [frozen.event_id],
        )
        with clients(server, 8, pause_s=0.02) as others, clients(server, 1, lambda: frozen) as stuck:
            time.sleep(6.0)
    after = gateway.send(server.app, frozen)

    print(f"others before: {before.rate(200):.0f}/s, p99 {before.quantile(200, 0.99):.3f} s")
    print(
        f"others meanwhile: {others.rate(200):.0f}/s, p50 {others.quantile(200, 0.5):.3f} s, "
        f"p99 {others.quantile(200, 0.99):.3f} s, max {max(others.seconds[200]):.3f} s"
    )
    print(f"the one: {stuck.count(503)} times 503, max {max(stuck.seconds[503]):.3f} s")
    assert set(others.seconds) == {200}
    assert others.quantile(200, 0.99) < 3.0
    assert set(stuck.seconds) == {503}
    assert max(stuck.seconds[503]) < 7.0
    assert after is not None
    assert after.status == 200
