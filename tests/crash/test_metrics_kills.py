"""Metrics of workers that are killed: their counts stay, what they held doesn't, and their files go."""

import signal
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from payments import runtime_folder
from tests.crash import gateway, processes
from tests.crash.gateway import Gateway
from tests.crash.servers import App

pytestmark = pytest.mark.crash

KILLS = 4
FILES_MAX = 2 * 3 + 2  # counter, gauge and histogram of each worker; what the dead left


def are_new(app: App, gone: set[int]) -> bool:
    return len(set(app.list_workers()) - gone) == 2 and app.get("/readyz")[0] == 200


def scrape(app: App) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(app.get("/metrics")[1])
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_counts_outlive_their_workers(app: App) -> None:
    """However many are killed: every acknowledged delivery is counted, gauges read zero, the folder doesn't grow."""
    app.serve()
    client = Gateway(app)
    acknowledged = 0
    for _ in range(KILLS):
        acknowledged += sum(
            answer is not None and answer.status == 200 for answer in client.deliver_at_once(gateway.captures(8))
        )
        victims = app.list_workers()
        app.kill(signal.SIGKILL, victims)
        processes.wait_until("two new workers", partial(are_new, app, set(victims)), within_s=20)

    seen = scrape(app)
    folder = runtime_folder.locate(app.log.parent) / "metrics" / str(app.port)
    assert seen["payments_deliveries_total", "demo,applied"] == acknowledged == 8 * KILLS
    assert seen["payments_settle_seconds_count", ""] > 0
    assert not any(value for (name, _), value in seen.items() if name == "payments_limit_in_use")
    assert len(list(folder.glob("*.db"))) <= FILES_MAX


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no such place on macOS, nor /proc to look into")
def test_a_full_disk_kills_nobody(app: App) -> None:
    """Who writes to a mapped file of a full disk dies of SIGBUS: what workers map to write is in memory."""
    app.serve()
    assert app.get("/metrics")[0] == 200

    mapped = {
        line.split()[5]
        for worker in app.list_workers()
        for line in Path(f"/proc/{worker}/maps").read_text().splitlines()
        if line.split()[1] == "rw-s"
    }

    assert {path.rsplit("/", 1)[1].split("_")[0] for path in mapped if path.endswith(".db")} >= {"counter", "gauge"}
    assert not [path for path in mapped if not path.startswith(("/dev/shm/", "/dev/zero"))]
