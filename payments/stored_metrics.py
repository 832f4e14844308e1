"""What /metrics tells of what is stored: read from the database when it is asked, the same from whichever process.

One short read under the limit "health", so that no number of scrapes takes a connection from a delivery. Where the
database doesn't answer in time the gauges are absent, but for the one that says so: a scrape never fails for it.

Reads only. Raw SQL: aggregates over partial indexes, in one transaction's few statements.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from payments import database, limits, outbox

READ_S: Final = 0.4  # less than /readyz waits for the same permit, so that a slow scrape doesn't make it say no

_SUSPENSE: Final = """
    SELECT currency, sum(balance) FROM payments_account WHERE code LIKE 'suspense:%' GROUP BY currency ORDER BY currency
"""
_FINDINGS: Final = "SELECT kind, count(*) FROM payments_finding WHERE closed_at IS NULL GROUP BY kind ORDER BY kind"
# One row per statement; the lines behind it may be millions.
_TOLD_FIRST: Final = """
    SELECT e.slug, sum((r.counts ->> 'booked')::bigint)
    FROM payments_reconciliation r JOIN payments_endpoint e ON e.id = r.endpoint_id
    WHERE r.counts ? 'booked' GROUP BY e.slug ORDER BY e.slug
"""
# What is counted is bounded, or the figures would be missing just when they are high.
_WAITING: Final = (
    f"Messages not sent yet; {outbox.WAITING_COUNTED_MAX + 1} stands for more than {outbox.WAITING_COUNTED_MAX}."
)
_DEAD: Final = f"Messages given up, among the newest {outbox.ROWS_READ_MAX} of all destinations."
_OLDEST: Final = f"How long the oldest message waits, among the {outbox.ROWS_READ_MAX} due first."


class _Stored(Collector):
    def __init__(self, families: list[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._families


def exposition() -> bytes:
    """Return the gauges in the text that Prometheus reads; without the database only that it did not answer."""
    answers = GaugeMetricFamily("payments_database_answers", "1: the gauges of what is stored could be read.", value=1)
    families: list[GaugeMetricFamily] = []
    try:
        with limits.get("health"), database.connected(time.monotonic() + READ_S):
            families = _read()
    except (DatabaseError, InterfaceError, limits.Saturated):
        answers = GaugeMetricFamily("payments_database_answers", answers.documentation, value=0)
    registry = CollectorRegistry()
    registry.register(_Stored([answers, *families]))
    return generate_latest(registry)


def _read() -> list[GaugeMetricFamily]:
    owed = outbox.backlogs()
    silent = settings.PAYMENTS_OUTBOX.keys() - {one.destination for one in owed}
    backlogs = [*owed, *(outbox.Backlog(name, 0, 0, None) for name in sorted(silent))]
    now = datetime.now(UTC)
    ages = [(one.destination, (now - one.oldest_at).total_seconds() if one.oldest_at else 0) for one in backlogs]
    return [
        _gauges(
            "payments_suspense_minor_units", "Money that waits for an owner, in minor units.", "currency", _SUSPENSE
        ),
        _gauges("payments_findings_open", "Findings that wait for somebody.", "kind", _FINDINGS),
        _gauges(
            "payments_first_seen_by_statement",
            "Facts that a gateway's statement told before any webhook did.",
            "endpoint",
            _TOLD_FIRST,
        ),
        _family("payments_outbox_waiting", _WAITING, "destination", _each(backlogs, "waiting")),
        _family("payments_outbox_dead", _DEAD, "destination", _each(backlogs, "dead")),
        _family("payments_outbox_oldest_seconds", _OLDEST, "destination", ages),
    ]


def _each(backlogs: list[outbox.Backlog], name: str) -> list[tuple[str, float]]:
    return [(one.destination, getattr(one, name)) for one in backlogs]


def _gauges(name: str, documentation: str, label: str, sql: str) -> GaugeMetricFamily:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return _family(name, documentation, label, cursor.fetchall())


def _family(name: str, documentation: str, label: str, rows: list[tuple[Any, ...]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=[label])
    for value_of_label, value in rows:
        family.add_metric([value_of_label], float(value))
    return family
