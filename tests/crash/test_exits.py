"""There is no code that must run at exit: SIGTERM, SIGINT and SIGKILL leave the same state."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.crash import gateway, invariants, processes
from tests.crash.gateway import Gateway
from tests.crash.servers import App, Postgres, Row

pytestmark = pytest.mark.crash

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)

# Everything that deliveries write, without what differs between any two runs: ids, times, the run's own names.
STATE = """
    SELECT 'claim', outcome, reply_status, replace(convert_from(reply_body, 'UTF8'), %(run)s, 'run')
    FROM payments_claim WHERE event_id LIKE %(like)s
    UNION ALL
    SELECT 'transfer', kind, amount, replace(key, %(run)s, 'run') FROM payments_transfer WHERE key LIKE %(like)s
    UNION ALL
    SELECT 'entry', e.direction, e.amount, replace(t.key, %(run)s, 'run')
    FROM payments_entry e JOIN payments_transfer t ON t.id = e.transfer_id WHERE t.key LIKE %(like)s
    UNION ALL
    SELECT 'payment', status, captured, replace(reference, %(run)s, 'run')
    FROM payments_payment WHERE reference LIKE %(like)s
    UNION ALL
    SELECT 'event', role, octet_length(body), replace(event_id, %(run)s, 'run')
    FROM payments_event WHERE event_id LIKE %(like)s
    ORDER BY 1, 4, 2, 3
"""


def test_every_signal_leaves_the_same_state(postgres: Postgres, app: App, tmp_path: Path) -> None:
    """Five deliveries are answered, five are inside their transaction when the signal comes."""
    states, retried, files = {}, {}, {}
    for number in SIGNALS:
        app.serve()
        run, sender = f"signal-{number:02}", Gateway(app)
        for told in [_capture(run, n) for n in range(5)]:
            answer = sender.deliver(told)
            assert answer is not None
            assert answer.status == 200
        under_way = [_capture(run, n) for n in range(5, 10)]

        with postgres.connect() as holder, ThreadPoolExecutor(1) as pool:
            with holder.transaction():
                # They stop at their last step, all else written: the account of all of them is locked.
                holder.execute("SELECT FROM payments_account WHERE code = 'merchant-5' FOR UPDATE")
                waiting = pool.submit(sender.deliver_at_once, under_way)
                processes.wait_until("they wait for the lock", lambda: _waiters(postgres), within_s=5)
                app.kill(number, [app.master, *(app.list_workers() if number == signal.SIGKILL else [])])
                processes.wait_until("the server is gone", lambda: not app.is_running, within_s=10)
                answers = waiting.result(timeout=15)
            processes.wait_until("its sessions end", lambda: not postgres.list_backends(), within_s=10)
        assert all(answer is None or answer.status == 503 for answer in answers)
        states[number] = _state(postgres, run)
        files[number] = sorted(path.name for path in tmp_path.rglob("*") if path.suffix in (".pid", ".lock", ".tmp"))

        app.start()
        sender.retry()
        sender.deliver_all_again()
        retried[number] = _state(postgres, run)
        app.kill_all()

    assert len([row for row in states[signal.SIGKILL] if row[0] == "transfer"]) == 5
    assert states[signal.SIGTERM] == states[signal.SIGINT] == states[signal.SIGKILL]
    assert len([row for row in retried[signal.SIGKILL] if row[0] == "transfer"]) == 10
    assert retried[signal.SIGTERM] == retried[signal.SIGINT] == retried[signal.SIGKILL]
    assert files[signal.SIGTERM] == files[signal.SIGINT] == files[signal.SIGKILL] == []


def _capture(run: str, number: int) -> gateway.Event:
    return gateway.capture(
        amount=1_000 + number, account="merchant-5", payment=f"pay-{run}-{number}", event_id=f"evt-{run}-{number}"
    )


def _waiters(postgres: Postgres) -> int:
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sekali' AND wait_event_type = 'Lock'"
    return int(postgres.query(sql)[0][0])


def _state(postgres: Postgres, run: str) -> list[Row]:
    with postgres.connect() as connection, invariants.snapshot(connection) as cursor:
        return cursor.execute(STATE, {"run": run, "like": f"%{run}%"}).fetchall()
