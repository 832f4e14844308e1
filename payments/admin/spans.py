"""A span of time as a span of ids, so that a list in the order of ids reads no row outside of it.

Ids and times of these tables grow together, but for what was written late: rows are in order to within LATE. Without
this, "older than … of the last 24 hours" would walk through all of the table to learn that there is nothing more.
"""

from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Max, Min, Q, QuerySet

# A claim has its time from the statement that writes it; an attempt waits some seconds for the log's thread.
LATE: Final = timedelta(minutes=1)


def within(rows: QuerySet[Any], column: str, *, since: datetime | None, until: datetime | None) -> QuerySet[Any]:
    """Return the rows of [since, until); None: without an end. Reads an index at each end."""
    times: QuerySet[Any] = rows.model._default_manager.all()
    if since is not None:
        rows = rows.filter(**{f"{column}__gte": since})
        first = _time(times.filter(**{f"{column}__gte": since}).order_by(column), column)
        if first is None:
            return rows.none()
        near = Q(**{f"{column}__gte": since, f"{column}__lte": first + LATE})
        rows = rows.filter(pk__gte=times.filter(near).aggregate(bound=Min("pk"))["bound"])
    if until is not None:
        rows = rows.filter(**{f"{column}__lt": until})
        last = _time(times.filter(**{f"{column}__lt": until}).order_by(f"-{column}"), column)
        if last is None:
            return rows.none()
        near = Q(**{f"{column}__gte": last - LATE, f"{column}__lt": until})
        rows = rows.filter(pk__lte=times.filter(near).aggregate(bound=Max("pk"))["bound"])
    return rows


def _time(ordered: QuerySet[Any], column: str) -> datetime | None:
    moment: datetime | None = ordered.values_list(column, flat=True).first()
    return moment
