"""There is no code that must run at exit: SIGTERM, SIGINT and SIGKILL leave the same state."""

import signal
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
    after_exit, after_retries, files = {}, {}, {}
    for number in SIGNALS:
        app.serve()
        run, sender = f"signal-{number:02}", Gateway(app)
        for told in [_capture(run, n) for n in range(5)]:
            answer = sender.deliver(told)
            assert answer is not None
            assert answer.status == 200

        answers = _end_amid([_capture(run, n) for n in range(5, 10)], number, sender=sender, postgres=postgres)
        assert all(answer is None or answer.status == 503 for answer in answers)
        after_exit[number] = _state(postgres, run)
        files[number] = [path.name for path in tmp_path.rglob("*") if path.suffix in (".pid", ".lock", ".tmp")]

        app.start()
        sender.retry()
        sender.deliver_all_again()
        after_retries[number] = _state(postgres, run)
        app.kill_all()

    assert len([row for row in after_exit[signal.SIGKILL] if row[0] == "transfer"]) == 5
    assert after_exit[signal.SIGTERM] == after_exit[signal.SIGINT] == after_exit[signal.SIGKILL]
    assert len([row for row in after_retries[signal.SIGKILL] if row[0] == "transfer"]) == 10
    assert after_retries[signal.SIGTERM] == after_retries[signal.SIGINT] == after_retries[signal.SIGKILL]
    assert files[signal.SIGTERM] == files[signal.SIGINT] == files[signal.SIGKILL] == []


def _end_amid(
    under_way: list[gateway.Event], number: signal.Signals, *, sender: Gateway, postgres: Postgres
) -> list[gateway.Answer | None]:
    """Send the signal while these deliveries are in their last step, all else written: their account is locked."""
    app = sender.app
    with postgres.connect() as holder:
        with holder.transaction():
            holder.execute("SELECT FROM payments_account WHERE code = 'merchant-5' FOR NO KEY UPDATE")
            with gateway.in_background(lambda: sender.deliver_at_once(under_way)) as waiting:
                processes.wait_until("they wait for the lock", postgres.count_waiters, within_s=10)
                app.kill(number, [app.master, *(app.list_workers() if number == signal.SIGKILL else [])])
                processes.wait_until("the server is gone", lambda: not app.is_running, within_s=20)
                answers = waiting.result(timeout=20)
        processes.wait_until("its sessions end", lambda: not postgres.list_backends(), within_s=20)
    return answers


def _capture(run: str, number: int) -> gateway.Event:
    return gateway.capture(
        amount=1_000 + number, account="merchant-5", payment=f"pay-{run}-{number}", event_id=f"evt-{run}-{number}"
    )


def _state(postgres: Postgres, run: str) -> list[Row]:
    with postgres.connect() as connection, invariants.snapshot(connection) as cursor:
        return cursor.execute(STATE, {"run": run, "like": f"%{run}%"}).fetchall()
