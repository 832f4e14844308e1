"""What /metrics tells: counters and gauges of all processes together, from prometheus-client's multiprocess files.

Labels hold only names that are ours (endpoints, outcomes, limits), never ids or paths from outside. Limits' gauges are
published by a thread of each process a few times a second, so that a delivery pays nothing for them.

After a crash: a dead worker's gauges are dropped by the master (gunicorn.conf.py); counters begin anew at a restart.
"""

import os
import threading
import time
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

from payments import limits

PUBLISH_EVERY_S: Final = 0.25

deliveries = Counter("payments_deliveries_total", "Deliveries answered.", ["endpoint", "outcome"])
replays = Counter("payments_replays_total", "Deliveries answered from a stored reply.", ["endpoint"])
conflicts = Counter("payments_conflicts_total", "Event ids re-used for other content.", ["endpoint"])
batch_size = Histogram(
    "payments_settle_batch_size", "Deliveries settled together.", buckets=(1, 2, 4, 8, 16, 32, 64, 128)
)
settle_seconds = Histogram(
    "payments_settle_seconds", "Time of one settlement.", buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 3)
)
handler_seconds = Histogram(
    "payments_handler_seconds",
    "Time of one run of an application's handler.",
    ["handler"],
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 3),
)
limit_in_use = Gauge("payments_limit_in_use", "Permits held now.", ["limit"], multiprocess_mode="livesum")
limit_waiting = Gauge("payments_limit_waiting", "Threads waiting for a permit.", ["limit"], multiprocess_mode="livesum")
limit_refused = Counter("payments_limit_refused_total", "Waits that ended without a permit.", ["limit"])

attempts_lost = Counter("payments_attempts_lost_total", "Deliveries that the attempt log did not record.")

_started = threading.Event()
_refused_published: dict[str, int] = {}


def count_delivery(endpoint: str, outcome: str, *, is_replay: bool = False) -> None:
    """Count one answered delivery."""
    deliveries.labels(endpoint, outcome).inc()
    if is_replay:
        replays.labels(endpoint).inc()
    if outcome == "conflict":
        conflicts.labels(endpoint).inc()


def publish_limits() -> None:
    """Write this process's limits into the gauges."""
    for limit in limits.all_limits():
        limit_in_use.labels(limit.name).set(limit.in_use)
        limit_waiting.labels(limit.name).set(limit.waiting)
        refused = limit.refused_total
        limit_refused.labels(limit.name).inc(refused - _refused_published.get(limit.name, 0))
        _refused_published[limit.name] = refused


def start_publishing() -> None:
    """Start this process's publishing thread, once; not before the web server has forked."""
    if not _started.is_set():
        _started.set()
        threading.Thread(target=_publish_forever, name="metrics", daemon=True).start()


def _publish_forever() -> None:
    while True:
        publish_limits()
        time.sleep(PUBLISH_EVERY_S)


def exposition() -> bytes:
    """Return the text that Prometheus reads, for all processes where they share a folder, else for this one."""
    publish_limits()
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
    return generate_latest()
