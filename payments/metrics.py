"""What /metrics tells: counters and gauges of all processes together, from prometheus-client's multiprocess files.

Labels hold only names that are ours (endpoints, outcomes, limits), never ids or paths from outside. Limits' gauges are
published by a thread of each process a few times a second, so that a delivery pays nothing for them.

After a crash: a dead worker's gauges are dropped by the master, its counts kept (metric_files.py); counters begin anew
at a restart.
"""

import logging
import os
import struct
import threading
import time
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

from payments import database, limits, metric_files

PUBLISH_EVERY_S: Final = 0.25
READ_TRIES: Final = 5  # a worker that starts at this moment may have made a file and not yet written to it

deliveries = Counter("payments_deliveries_total", "Deliveries answered.", ["endpoint", "outcome"])
replays = Counter("payments_replays_total", "Deliveries answered from a stored reply.", ["endpoint"])
conflicts = Counter("payments_conflicts_total", "Event ids re-used for other content.", ["endpoint"])
quarantined = Counter("payments_quarantined_total", "Events newly kept as unusable.", ["endpoint"])
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

limit_wait_seconds = Histogram(
    "payments_limit_wait_seconds",
    "Waits for a permit, in vain or not; a free permit is no wait.",
    ["limit"],
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 3),
)
transaction_failures = Counter(
    "payments_transaction_failures_total", "Transactions that failed, each try for itself.", ["reason"]
)
transaction_retries = Counter("payments_transaction_retries_total", "Of these, those tried again.", ["reason"])

attempts_lost = Counter("payments_attempts_lost_total", "Deliveries that the attempt log did not record.")

logger = logging.getLogger(__name__)

_started = threading.Event()
_publishing = threading.Lock()
_refused_published: dict[str, int] = {}


def count_delivery(endpoint: str, outcome: str, *, is_replay: bool = False) -> None:
    """Count one answered delivery."""
    deliveries.labels(endpoint, outcome).inc()
    if is_replay:
        replays.labels(endpoint).inc()
    elif outcome == "quarantined":
        quarantined.labels(endpoint).inc()
    if outcome == "conflict":
        conflicts.labels(endpoint).inc()


def _count_failure(reason: str, is_retried: bool) -> None:
    transaction_failures.labels(reason).inc()
    if is_retried:
        transaction_retries.labels(reason).inc()


def _observe_wait(limit: str, seconds: float) -> None:
    limit_wait_seconds.labels(limit).observe(seconds)


limits.set_wait_observer(_observe_wait)
database.set_failure_observer(_count_failure)


def publish_limits() -> None:
    """Write this process's limits into the gauges."""
    with _publishing:  # or a scrape and the thread would both count the same refusals
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
        try:
            publish_limits()
        except Exception:
            logger.exception("metrics_failed")
        time.sleep(PUBLISH_EVERY_S)


def exposition() -> bytes:
    """Return the text that Prometheus reads, for all processes where they share a folder, else for this one."""
    publish_limits()
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if folder is None:
        return generate_latest()
    for _ in range(READ_TRIES - 1):
        try:
            return _read_files(folder)
        except (FileNotFoundError, struct.error, RuntimeError):
            time.sleep(0.01)
    return _read_files(folder)


def _read_files(folder: str) -> bytes:
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    with metric_files.reading(Path(folder)):
        return generate_latest(registry)
