"""The dashboard's figures. Each query reads a bounded number of rows, however large the tables are.

What happens often is counted in a sample of rows evenly spread over their ids: exactly while there are few, else to
about a percent. What is rare and matters (failures, quarantined events) is counted one by one along its own index.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import connection

from payments.admin import cells

SAMPLE_MAX: Final = 5_000  # rows; read by primary key, some ten milliseconds
COUNTED_MAX: Final = 10_000  # of rare things; past it the figure is "more than"
HOURS: Final = 24


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows; is_more: counting ended there."""

    number: int
    is_more: bool = False

    @classmethod
    def of(cls, number: int) -> "Count":
        return cls(min(number, COUNTED_MAX), number > COUNTED_MAX)

    def __str__(self) -> str:
        return f"> {cells.number(self.number)}" if self.is_more else cells.number(self.number)


@dataclass(slots=True)
class Hours:
    """How often what happened in each of the last hours. step: 1 where that is exact, else every so many rows."""

    begins: list[datetime]
    counts: Counter[tuple[datetime, str]] = field(default_factory=Counter)
    step: int = 1
    first_id: int | None = None

    def total(self, *names: str) -> int:
        return sum(count for (_hour, name), count in self.counts.items() if name in names)


# What a delivery was answered; `gap` is a row that says how many were not recorded.
ANSWERS: Final = """
    CASE WHEN status IS NULL THEN 'gap' WHEN status >= 500 THEN 'failed' WHEN status >= 400 THEN 'refused'
         WHEN replayed THEN 'replayed' ELSE 'first' END
"""
_SAMPLED: Final = """
    WITH span AS (
        SELECT (SELECT id FROM {table} WHERE {time} >= %(since)s ORDER BY {time}, id LIMIT 1) AS first_id,
               (SELECT max(id) FROM {table}) AS last_id
    ), spread AS (
        SELECT first_id, last_id, greatest(1, (last_id - first_id) / %(rows_max)s) AS step FROM span
    )
    SELECT s.first_id, s.step, date_bin('1 hour', t.{time}, %(origin)s), {name}, count(*) * s.step
    FROM spread s, generate_series(s.first_id, s.last_id, s.step) AS g (id) JOIN {table} t ON t.id = g.id
    WHERE t.{time} >= %(since)s
    GROUP BY 1, 2, 3, 4
"""
_RARE: Final = """
    SELECT date_bin('1 hour', {time}, %(origin)s), {name}, count(*)
    FROM (SELECT * FROM {table} WHERE {rare} AND id >= %(first_id)s ORDER BY id DESC LIMIT %(counted_max)s) t
    WHERE {time} >= %(since)s
    GROUP BY 1, 2
"""
_ORIGIN: Final = datetime(2000, 1, 1, tzinfo=UTC)


def attempts_by_hour(now: datetime) -> Hours:
    """Return deliveries by what they were answered."""
    return _by_hour(
        now, table="payments_attempt", time="received_at", name=ANSWERS, rare="status >= 400", rare_names=_FAILURES
    )


def claims_by_hour(now: datetime) -> Hours:
    """Return events by their outcome."""
    rare = "outcome = 'quarantined'"
    return _by_hour(
        now, table="payments_claim", time="claimed_at", name="outcome", rare=rare, rare_names=("quarantined",)
    )


_FAILURES: Final = ("refused", "failed")


def _by_hour(now: datetime, *, rare: str, rare_names: tuple[str, ...], **parts: str) -> Hours:
    end = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    hours = Hours([end - timedelta(hours=back) for back in range(HOURS, 0, -1)])
    given: dict[str, Any] = {"since": hours.begins[0], "origin": _ORIGIN, "rows_max": SAMPLE_MAX}
    with connection.cursor() as cursor:
        cursor.execute(_SAMPLED.format(**parts), given)
        for first_id, step, hour, name, count in cursor.fetchall():
            hours.first_id, hours.step = first_id, step
            hours.counts[hour, name] = count
        if hours.step > 1:
            given |= {"first_id": hours.first_id, "counted_max": COUNTED_MAX}
            cursor.execute(_RARE.format(rare=rare, **parts), given)
            for key in [key for key in hours.counts if key[1] in rare_names]:
                del hours.counts[key]
            hours.counts.update({(hour, name): count for hour, name, count in cursor.fetchall()})
    return hours


def _rows(sql: str, *given: int) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, given)
        return list(cursor.fetchall())


def open_findings() -> list[tuple[str, Count]]:
    """Return how many findings are open, by kind."""
    rows = _rows(
        "SELECT kind, count(*) FROM (SELECT kind FROM payments_finding WHERE closed_at IS NULL"
        " ORDER BY opened_at DESC LIMIT %s) f GROUP BY kind ORDER BY kind",
        COUNTED_MAX + 1,
    )
    return [(kind, Count.of(number)) for kind, number in rows]


@dataclass(frozen=True, slots=True)
class Outbox:
    waiting: Count
    dead: Count
    oldest_at: datetime | None


def outbox() -> Outbox:
    """Return what is owed to the outside: how much, since when, and what was given up."""
    number = "(SELECT count(*) FROM (SELECT FROM payments_outboxmessage WHERE state = '{}' LIMIT %s) m)"
    oldest = "(SELECT created_at FROM payments_outboxmessage WHERE state = 'ready' ORDER BY id LIMIT 1)"
    sql = f"SELECT {number.format('ready')}, {number.format('dead')}, {oldest}"
    (row,) = _rows(sql, COUNTED_MAX + 1, COUNTED_MAX + 1)
    return Outbox(Count.of(row[0]), Count.of(row[1]), row[2])


def suspense() -> list[tuple[str, int]]:
    """Return what waits for an owner: (currency, minor units). There is one account per endpoint and currency."""
    return [
        (currency, int(total))
        for currency, total in _rows(
            "SELECT currency, sum(balance) FROM payments_account WHERE code LIKE 'suspense:%%'"
            " GROUP BY currency HAVING sum(balance) <> 0 ORDER BY currency"
        )
    ]
