"""The machine is gone at a random moment: its disk starts, verifies clean, and has all that was acknowledged."""

import random
import time
from pathlib import Path

import pytest

from tests.crash import figures, invariants
from tests.crash.gateway import Gateway, Load
from tests.crash.servers import App, Postgres

pytestmark = pytest.mark.crash


def test_copy_of_the_data_folder_at_a_random_moment(app: App, postgres: Postgres, tmp_path: Path) -> None:
    """A copy taken under load is another machine's start: recovered, verified, and the gateway's retries go there."""
    app.serve()
    with Load(app, threads=8) as load:
        load.first_acknowledged_after(time.monotonic(), within_s=10)
        time.sleep(random.uniform(0.1, 0.6))
        acknowledged = load.gateway.acknowledged()
        copy = postgres.copy(tmp_path, "copy")
    app.kill_all()

    try:
        copy.start()
        with App(folder=tmp_path, database_url=copy.url) as other:
            other.start()
            verified = other.manage_json("verify_ledger", expect=0)
            with copy.connect() as connection, invariants.snapshot(connection) as cursor:
                assert invariants.find_violations(cursor) == []
                assert invariants.find_lost(cursor, acknowledged) == []
            sender = Gateway(other)
            for told in load.gateway.told:
                sender.deliver(told)
            sender.retry()
            assert {told: answer.body for told, answer in load.gateway.answered.items()} == {
                told: sender.answered[told].body for told in load.gateway.answered
            }
    finally:
        copy.remove()
    app.serve()
    load.gateway.retry()
    figures.tell("copy taken under load: acknowledged before it and found in it", len(acknowledged))
    assert verified["findings"] == []


def test_immediate_stop_of_postgres(app: App, postgres: Postgres) -> None:
    """`pg_ctl stop -m immediate` under load, then the ordinary start path."""
    app.serve()
    with Load(app, threads=8) as load:
        load.first_acknowledged_after(time.monotonic(), within_s=10)
        postgres.stop_immediately()
        app.kill_all()
        postgres.start()
        app.start()
        load.first_acknowledged_after(time.monotonic(), within_s=10)
    load.gateway.retry()
    load.gateway.deliver_all_again()

    assert app.manage_json("verify_ledger", expect=0)["findings"] == []
