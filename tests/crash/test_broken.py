"""A start that finds something wrong says what; money waits, staff can look; after the repair all goes on."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.crash import figures, gateway, processes
from tests.crash.gateway import Gateway
from tests.crash.servers import App, Postgres, Row

pytestmark = pytest.mark.crash


@contextmanager
def guards_off(postgres: Postgres, *tables: str) -> Iterator[psycopg.Connection[Row]]:
    """Do as a superuser with bad intentions, or bad luck."""
    with postgres.connect() as connection, connection.transaction():
        for table in tables:
            connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield connection
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # or ALTER TABLE would meet what is pending
        for table in tables:
            connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def change_balance(postgres: Postgres, amount: int) -> None:
    with guards_off(postgres, "payments_account") as connection:
        connection.execute(
            "UPDATE payments_account SET credits = credits + %s WHERE code = 'merchant-8' AND currency = 'IDR'",
            [amount],
        )


def test_broken_invariant_closes_the_money_lane_alone(app: App, postgres: Postgres) -> None:
    """recover exits 1; deliveries hear 503; /readyz names it; /livez and the admin are up; repaired, all is served."""
    app.serve()
    sender = Gateway(app)
    sender.deliver_at_once(gateway.captures(3, account="merchant-8"))
    app.kill_all()
    change_balance(postgres, +5)
    try:
        found = app.manage_json("recover", expect=1)
        app.serve(path="/livez")
        refused = sender.deliver(gateway.capture(amount=700, account="merchant-8"))
        ready, live, admin = app.get("/readyz"), app.get("/livez"), app.get("/admin/login/")
        again = app.manage_json("recover", expect=1)
    finally:
        change_balance(postgres, -5)

    assert "balance_differs_from_entries" in {one["kind"] for one in found["findings"]}
    assert "merchant-8 IDR" in {one["subject"] for one in found["findings"]}
    assert {one["kind"] for one in again["findings"]} == {one["kind"] for one in found["findings"]}
    assert refused is not None
    assert refused.status == 503
    assert refused.retry_after is not None
    assert ready[0] == 503
    assert "balance_differs_from_entries" in ready[1]
    assert live[0] == 200
    assert admin[0] == 200

    app.manage("recover", expect=0)
    processes.wait_until("it is ready again", lambda: app.get("/readyz")[0] == 200, within_s=10)
    sender.retry()
    sender.deliver_all_again()


def test_disabled_guard_forbids_the_start(app: App, postgres: Postgres) -> None:
    """recover exits 2 and names the trigger."""
    postgres.query("ALTER TABLE payments_entry DISABLE TRIGGER payments_entry_balanced")
    try:
        told = app.manage("recover", expect=2)
    finally:
        postgres.query("ALTER TABLE payments_entry ENABLE TRIGGER payments_entry_balanced")

    assert "payments_entry_balanced" in told.stderr
    app.manage("recover", expect=0)


def test_missing_migration_forbids_the_start(app: App, postgres: Postgres) -> None:
    """recover exits 2 and says what to run."""
    newest = "(SELECT max(id) FROM django_migrations WHERE app = 'payments')"
    (name,) = postgres.query(f"SELECT name FROM django_migrations WHERE id = {newest}")[0]
    postgres.query(f"UPDATE django_migrations SET app = 'hidden' WHERE id = {newest}")
    try:
        told = app.manage("recover", expect=2)
    finally:
        postgres.query("UPDATE django_migrations SET app = 'payments' WHERE app = 'hidden'")

    assert name in told.stderr
    assert "migrate" in told.stderr
    app.manage("recover", expect=0)


def test_incremental_verification_misses_nothing_that_commits_late(app: App, postgres: Postgres) -> None:
    """A transaction begins before a verification and ends after it: the next one sees what it wrote."""
    app.serve()
    sender = Gateway(app)
    late = postgres.connect()
    try:
        with late.transaction():
            # A transfer without entries: the guard looks at entries, so only a verification finds it.
            late.execute(
                """
                INSERT INTO payments_transfer (key, kind, endpoint_id, source, amount, currency, occurred_at)
                SELECT 'demo:late:paid', 'PayoutPaid', id, 'webhook', 5, 'IDR', now()
                FROM payments_endpoint WHERE slug = 'demo'
                """
            )
            sender.deliver_at_once(gateway.captures(3))
            first = app.manage_json("recover", expect=0)
            sender.deliver_at_once(gateway.captures(3))
            second = app.manage_json("recover", expect=0)
        third = app.manage_json("recover", expect=1)
    finally:
        late.close()
        with guards_off(postgres, "payments_transfer") as connection:
            connection.execute("DELETE FROM payments_transfer WHERE key = 'demo:late:paid'")
    repaired = app.manage_json("recover", expect=0)

    assert [report["full"] for report in (first, second, third)] == [False] * 3
    assert [(one["kind"], one["subject"]) for one in third["findings"]] == [("transfer_incomplete", "demo:late:paid")]
    assert repaired["full"], "what was broken must be looked at again, whenever it was written"


def test_incremental_verification_sees_a_late_correction_of_what_was_verified(app: App, postgres: Postgres) -> None:
    """The original lies before the checkpoint; its correction is known since, and the reversal is missing."""
    app.serve()
    sender = Gateway(app)
    original = gateway.capture(amount=900)
    sender.deliver(original)
    app.manage("recover", expect=0)
    app.manage("recover", expect=0)
    (key,) = postgres.query(
        "SELECT t.key FROM payments_transfer t JOIN payments_claim c ON c.id = t.claim_id WHERE c.event_id = %(id)s",
        {"id": original.event_id},
    )[0]
    try:
        postgres.query(
            "INSERT INTO payments_correction (key, kind, payment_id, source, amount, currency, occurred_at)"
            " SELECT key, 'PaymentReversed', payment_id, 'webhook', amount, currency, now()"
            " FROM payments_transfer WHERE key = %(key)s",
            {"key": key},
        )
        report = app.manage_json("recover", expect=1)
    finally:
        with guards_off(postgres, "payments_correction") as connection:
            connection.execute("DELETE FROM payments_correction WHERE key = %s", [key])
        app.manage("recover", expect=0)

    assert not report["full"]
    assert [(one["kind"], one["subject"]) for one in report["findings"]] == [("correction_not_booked", key)]


@pytest.mark.soak
def test_frozen_verification_does_not_keep_the_start_waiting(app: App, postgres: Postgres) -> None:
    """Verifications run one at a time. PostgreSQL ends one that says nothing, and the start goes on."""
    with postgres.connect() as holder, app.running("verify_ledger") as verification:
        with holder.transaction():
            holder.execute("LOCK TABLE payments_claim")
            processes.wait_until("it waits, holding its own lock", postgres.count_waiters, within_s=20)
            processes.send(signal.SIGSTOP, [verification.pid])
        with processes.stopwatch() as seconds:
            app.manage("recover", expect=0)
        verification.kill()

    figures.tell("recover beside a frozen verification", seconds[0])
    assert seconds[0] < 30


def verify_in_chunks(app: App, chunk: str, *, full: bool, failpoint: str) -> None:
    """Run a verification in chunks so small that there are several, and see it die."""
    code = f"from payments import models, verification as v; v.CHUNK = {chunk}; v.verify(full={full})"
    environment, app.environment = app.environment, app.environment | {"PAYMENTS_FAILPOINT": failpoint}
    try:
        died = app.manage("shell", "-c", code)
    finally:
        app.environment = environment
    assert died.returncode == -signal.SIGKILL, died.stderr


@pytest.mark.parametrize(("failpoint", "chunks"), [("verify_moved:2", 1), ("verify_chunk:2", 2)])
def test_killed_verification_goes_on_behind_its_last_chunk(
    app: App, postgres: Postgres, failpoint: str, chunks: int
) -> None:
    """From the beginning, and at a start that has much to catch up with; nothing is verified twice or left out."""
    app.serve()
    app.manage("recover", expect=0)
    sender = Gateway(app)
    for told in gateway.captures(6):
        sender.deliver(told)
    app.kill_all()
    processes.wait_until("nothing runs", lambda: not postgres.list_backends(), within_s=10)

    verify_in_chunks(app, "2", full=False, failpoint=failpoint)
    start = app.manage_json("recover", expect=0)
    verify_in_chunks(app, "models.Transfer.objects.count() // 3", full=True, failpoint=failpoint)
    looked_at, begun_at = postgres.query("SELECT checked -> 'transfers', started_at FROM payments_verificationpass")[0]
    beside = app.manage_json("recover", expect=0)
    whole = app.manage_json("verify_ledger", expect=0)

    assert (start["full"], start["checked"]["transfers"]) == (False, 6 - 2 * chunks)
    assert (beside["full"], beside["checked"]["transfers"]) == (False, 0)
    (count,) = postgres.query("SELECT count(*) FROM payments_transfer")[0]
    assert 0 < looked_at < count
    assert (whole["full"], whole["checked"]["transfers"]) == (True, count)
    newest = "SELECT started_at FROM payments_verification ORDER BY id DESC LIMIT 1"
    assert postgres.query(newest)[0][0] == begun_at
    assert app.manage_json("recover", expect=0)["checked"]["transfers"] == 0
