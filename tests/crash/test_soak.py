"""`make soak`: hundreds of random SIGKILLs under load, and proof that faults would be found.

SOAK_KILLS: how many, 500 unless set. SOAK_SEED: repeats a run; unless set, a new one is made and printed.
"""

import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tests.crash import faults, figures, gateway
from tests.crash.gateway import Load
from tests.crash.servers import App, Postgres
from tests.crash.soak import KILLS, SPOKEN, Soak, Tally, Violation

pytestmark = pytest.mark.crash

KILLS_TOTAL: Final = int(os.environ.get("SOAK_KILLS", "500"))
# A round has a ledger of its own, so that its checks stay quick and its seed repeats it alone.
KILLS_OF_ROUND: Final = 50
# So many kills at most, until a planted fault must have been found.
KILLS_TO_FIND: Final = 40
STARTS: Final = 10
SEED: Final = int(os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(2**32))


@pytest.mark.soak
@pytest.mark.timeout(60 + 30 * KILLS_TOTAL)
def test_random_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 lost, 0 doubled, every replay identical, every snapshot sound."""
    tally = Tally()
    for number, begin in enumerate(range(0, KILLS_TOTAL, KILLS_OF_ROUND)):
        seed, kills = SEED + number, min(KILLS_OF_ROUND, KILLS_TOTAL - begin)
        endpoint = list(SPOKEN)[seed % len(SPOKEN)]  # rounds take turns, and a seed is enough to repeat one
        _say(capsys, f"round {number + 1}: SOAK_SEED={seed} SOAK_KILLS={kills} ({endpoint})")
        folder = tmp_path / str(number)
        folder.mkdir()
        Soak(folder=folder, seed=seed, kills=kills, tally=tally, endpoint=endpoint).execute()
        _say(capsys, "so far: " + "; ".join(tally.lines()))
    for line in tally.lines():
        figures.tell(f"soak, seed {SEED}", line)
    tally.require_worth()


@pytest.mark.timeout(180)
def test_few_random_kills_beside_another_gateway(tmp_path: Path) -> None:
    """Its events have other ids, other keys and one payee for all; the promises are the same."""
    Soak(folder=tmp_path, seed=1, kills=3, tally=Tally(), endpoint="stripe").execute()


def _say(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """At once, for who watches: this takes long."""
    with capsys.disabled():
        sys.stdout.write(f"\n{line}\n")
        sys.stdout.flush()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_claim_that_is_committed_before_the_work_is_found(tmp_path: Path) -> None:
    """A worker that dies between them leaves an event that is acknowledged and never booked."""
    tally = Tally()
    kinds = {"worker": 1, "all workers": 1}

    with pytest.raises(Violation) as found:
        Soak(
            folder=tmp_path, seed=SEED, kills=KILLS_TO_FIND, tally=tally, kinds=kinds, wsgi=faults.CLAIM_FIRST
        ).execute()

    assert "a claim that says applied has no transfer" in str(found.value)
    figures.tell("claim committed before the work: found after", f"{tally.kills_total} kills")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_lost_update_is_found(tmp_path: Path) -> None:
    """Two that change one balance at once without a lock."""
    tally = Tally()

    with pytest.raises(Violation) as found:
        Soak(
            folder=tmp_path, seed=SEED, kills=KILLS_TO_FIND, tally=tally, kinds=KILLS, wsgi=faults.LOST_UPDATE
        ).execute()

    assert "a balance differs from its entries" in str(found.value) or "balance_differs_from_entries" in str(
        found.value
    )
    figures.tell("lost update: found after", f"{tally.kills_total} kills")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_commit_that_is_not_durable_is_found(tmp_path: Path) -> None:
    """With synchronous_commit off, what was acknowledged just before PostgreSQL dies is gone."""
    tally = Tally()
    kinds = {"all of PostgreSQL": 1}

    with pytest.raises(Violation) as found:
        Soak(
            folder=tmp_path,
            seed=SEED,
            kills=KILLS_TO_FIND,
            tally=tally,
            kinds=kinds,
            database_options="&options=-csynchronous_commit%3Doff",
        ).execute()

    assert "acknowledged and not claimed so" in str(found.value)
    figures.tell("synchronous_commit off: found after", f"{tally.kills_total} kills")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_start_after_a_crash_takes_no_longer(tmp_path: Path) -> None:
    """Median of ten starts after SIGKILL of everything under load, against ten after an orderly end. Wanted: 1.2."""
    postgres = Postgres(tmp_path)
    orderly, crashed = [], []
    try:
        postgres.start()
        with App(folder=tmp_path, database_url=postgres.whole_url) as app:
            app.start()
            for _ in range(STARTS):
                with Load(app) as load:
                    load.first_acknowledged_after(time.monotonic(), within_s=10)
                    time.sleep(1.0)
                    app.kill_all()
                    postgres.kill_all()
                crashed.append(_start_s(app, postgres))
                app.kill_all()
                postgres.server.stop()
                orderly.append(_start_s(app, postgres))
    finally:
        postgres.remove()

    ratio = statistics.median(crashed) / statistics.median(orderly)
    figures.tell("start after an orderly end, median", statistics.median(orderly))
    figures.tell("start after SIGKILL of everything under load, median", statistics.median(crashed))
    figures.tell("ratio of the two (1.2)", f"{ratio:.2f}")
    assert ratio < 2.0


def _start_s(app: App, postgres: Postgres) -> float:
    """Return the seconds from the command to the first 2xx."""
    began_at = time.monotonic()
    if postgres.whole_url:
        postgres.start()
    app.start()
    answer = gateway.send(app, gateway.capture(amount=100))
    assert answer is not None
    assert answer.status == 200
    return time.monotonic() - began_at
