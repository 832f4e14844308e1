"""How long service is interrupted, seen from outside, by each thing that can be killed or freeze.

The limits here are generous, for machines that have other work to do; what was measured is printed.
"""

import signal
import time

import pytest

from tests.crash import figures, gateway, processes
from tests.crash.gateway import Gateway, Load
from tests.crash.servers import App, Postgres

pytestmark = pytest.mark.crash

SLOW = 2.0  # times the contract's limit: a test must not fail because somebody else compiles


def settle_down(load: Load) -> None:
    """Wait until deliveries go through, then a little."""
    load.first_acknowledged_after(time.monotonic(), within_s=10)
    time.sleep(0.2)


def end_well(load: Load) -> None:
    """All that was delivered is acknowledged in the end, and each again as it was first."""
    load.gateway.retry()
    load.gateway.deliver_all_again()


def test_a_worker_is_killed(app: App) -> None:
    """Contract: first 2xx within 3 s. The other worker goes on, and a new one takes the place."""
    app.serve()
    with Load(app) as load:
        settle_down(load)
        workers = app.list_workers()
        killed_at = time.monotonic()
        app.kill(signal.SIGKILL, workers[:1])
        seconds = load.first_acknowledged_after(killed_at, within_s=3 * SLOW)
        processes.wait_until("two workers again", lambda: len(set(app.list_workers()) - {workers[0]}) == 2, within_s=10)
        replaced = time.monotonic() - killed_at
        settle_down(load)
    end_well(load)
    figures.tell("first 2xx after one worker's SIGKILL (3 s)", seconds)
    figures.tell("new process in its place", replaced)


def test_the_only_worker_is_killed(app: App) -> None:
    """With one process nobody goes on: first 2xx within 3 s all the same."""
    app.serve(WEB_CONCURRENCY="1")
    with Load(app) as load:
        settle_down(load)
        killed_at = time.monotonic()
        app.kill(signal.SIGKILL, app.list_workers())
        seconds = load.first_acknowledged_after(killed_at, within_s=3 * SLOW)
    end_well(load)
    figures.tell("first 2xx after the only worker's SIGKILL (3 s)", seconds)


def test_all_workers_are_killed(app: App) -> None:
    """Contract: first 2xx within 5 s, by the master alone."""
    app.serve()
    with Load(app) as load:
        settle_down(load)
        killed_at = time.monotonic()
        app.kill(signal.SIGKILL, app.list_workers())
        seconds = load.first_acknowledged_after(killed_at, within_s=5 * SLOW)
    end_well(load)
    figures.tell("first 2xx after all workers' SIGKILL (5 s)", seconds)


def test_everything_is_killed_and_started_again(app: App, postgres: Postgres) -> None:
    """Contract: first 2xx within 15 s by the ordinary start path, PostgreSQL's recovery included."""
    with App(folder=postgres.folder, database_url=postgres.whole_url) as whole:
        with processes.stopwatch() as clean_s:
            whole.start()
        with Load(whole) as load:
            settle_down(load)
            postgres.kill_all()
            whole.kill_all()
            killed_at = time.monotonic()
            if postgres.whole_url:
                postgres.start()
            whole.start()
            seconds = load.first_acknowledged_after(killed_at, within_s=15 * SLOW)
        end_well(load)
    figures.tell("start path where PostgreSQL runs and nothing was killed", clean_s[0])
    figures.tell("first 2xx after SIGKILL of everything, start path included (15 s)", seconds)


def test_postgres_is_killed_and_comes_back(app: App, postgres: Postgres) -> None:
    """Meanwhile 503 with Retry-After; then 2xx, from the same processes. Contract: 5 s after it accepts connections."""
    app.serve()
    with Load(app) as load:
        settle_down(load)
        pids = [app.master, *app.list_workers()]
        postgres.kill_all()
        meanwhile = [gateway.send(app, gateway.capture(amount=1)) for _ in range(3)]
        postgres.start()
        accepted_at = time.monotonic()
        seconds = load.first_acknowledged_after(accepted_at, within_s=5 * SLOW)
        settle_down(load)
        assert [app.master, *app.list_workers()] == pids
    for answer in meanwhile:
        assert answer is not None
        assert answer.status == 503
        assert int(answer.retry_after or 0) >= 1
        assert answer.seconds < 7
    end_well(load)
    figures.tell("first 2xx after PostgreSQL accepts again (5 s)", seconds)


def test_only_the_postmaster_is_killed(app: App, postgres: Postgres) -> None:
    """Its children see it and end by themselves; what they had not committed is not there."""
    app.serve()
    with Load(app) as load:
        settle_down(load)
        postgres.kill_postmaster()
        postgres.start()
        accepted_at = time.monotonic()
        seconds = load.first_acknowledged_after(accepted_at, within_s=5 * SLOW)
    end_well(load)
    figures.tell("first 2xx after a new postmaster accepts (5 s)", seconds)


def test_a_backend_is_killed(app: App, postgres: Postgres) -> None:
    """PostgreSQL ends all its sessions and recovers; the app goes on when it accepts connections again."""
    app.serve()
    with Load(app) as load:
        settle_down(load)
        victim = postgres.list_backends()[0]
        killed_at = time.monotonic()
        postgres.kill_backend(victim)
        seconds = load.first_acknowledged_after(killed_at, within_s=5 * SLOW)
    end_well(load)
    figures.tell("first 2xx after a PostgreSQL backend's SIGKILL, its recovery included", seconds)


def test_postgres_freezes(app: App, postgres: Postgres) -> None:
    """It accepts connections and answers nothing: each delivery is answered 503 within 7 s; then all is well again."""
    app.serve()
    sender = Gateway(app)
    first = gateway.captures(4)
    sender.deliver_at_once(first)
    told = gateway.captures(48, account="merchant-3")
    with Load(app) as load:  # which has some under way in that moment
        settle_down(load)
        with postgres.frozen(), gateway.in_background(lambda: sender.deliver_at_once(told)) as waiting:
            time.sleep(1.0)
            again = [gateway.send(app, first[0]), gateway.send(app, gateway.capture(amount=1))]
            answers = [*waiting.result(timeout=30), *again]
        thawed_at = time.monotonic()
        seconds = load.first_acknowledged_after(thawed_at, within_s=5 * SLOW)

    for answer in answers:
        assert answer is not None, "a delivery was not answered"
        assert answer.status == 503
        assert answer.retry_after is not None
        assert answer.seconds < 7.0
    assert load.gateway.tries["none"] == 0, "a delivery was not answered"
    assert load.gateway.slowest_s < 7.0
    sender.retry()
    sender.deliver_all_again()
    end_well(load)
    slowest_s = max(load.gateway.slowest_s, *(answer.seconds for answer in answers if answer))
    figures.tell("slowest answer while PostgreSQL is frozen (7 s)", slowest_s)
    figures.tell("first 2xx after it goes on", seconds)


def test_a_worker_freezes(app: App, postgres: Postgres) -> None:
    """It holds locks and says nothing: PostgreSQL takes them from it, and the other worker goes on."""
    app.serve(PAYMENTS_SETTLE_PERMITS="1")
    with Load(app, threads=8) as load:
        settle_down(load)
        frozen = app.list_workers()[:1]
        with postgres.connect() as holder, holder.transaction():
            holder.execute("SELECT FROM payments_account WHERE code = %s FOR NO KEY UPDATE", [load.account])
            # Each of the two has one transaction at a time: both wait for their last lock, and hold all others.
            processes.wait_until("both workers wait", lambda: postgres.count_waiters() == 2, within_s=5)
            app.kill(signal.SIGSTOP, frozen)
        frozen_at = time.monotonic()
        time.sleep(3.0)
        thawed_at = time.monotonic()
        app.kill(signal.SIGCONT, frozen)
        load.first_acknowledged_after(thawed_at, within_s=5 * SLOW)
    assert load.gateway.tries["none"] == 0, "a delivery was not answered"
    pause_s = load.longest_pause_s(frozen_at, thawed_at)
    assert pause_s < 1.5 * SLOW
    end_well(load)
    figures.tell("longest pause while one of two workers is frozen inside its transaction", pause_s)
