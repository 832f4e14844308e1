"""A list as CSV: as it is filtered, the newest first, streamed. For machines: minor units, ISO 8601 in UTC, English.

Each piece of rows is read under a staff permit of its own, and none is held while a piece goes to a slow reader.
"""

import csv
import io
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from django.conf import settings
from django.db.models import BinaryField, ForeignKey, JSONField, QuerySet
from django.http import StreamingHttpResponse
from django.utils import timezone

from payments import database, limits

PIECE: Final = 2_000  # rows read and sent at a time
ROWS_MAX: Final = 100_000  # what a server thread can send within its time; a longer list is to be narrowed
TRIES_MAX: Final = 5  # for a permit, each as long as the limit lets one wait

AnyField = Any  # one of a model's concrete fields

# A spreadsheet takes a text that begins so for a formula: https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA_BEGINS: Final = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # the last four are wide ones, which do it as well


def response(queryset: QuerySet[Any], *, left_out: Sequence[str]) -> StreamingHttpResponse:
    """Return the download. The first rows are read at once, so that what fails fails as a page, not half-way."""
    columns = _columns(queryset.model, left_out)
    # Of other rows only the names of those that this one points to.
    pointed = [column.name for column in columns if isinstance(column, ForeignKey)]
    kept_out = [name for name in left_out if "__" not in name]
    ordered = queryset.select_related(None).select_related(*pointed).defer(None).defer(*kept_out).order_by("-pk")
    first = list(ordered[:PIECE])
    name = f"{queryset.model._meta.model_name}-{timezone.now():%Y%m%dT%H%M%SZ}.csv"
    return StreamingHttpResponse(
        _pieces(ordered, first, columns),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"},
    )


def _columns(model: Any, left_out: Sequence[str]) -> list[AnyField]:
    """Return what can stand in a cell: neither bytes nor JSON, which hold what gateways sent."""
    fields: list[AnyField] = list(model._meta.concrete_fields)
    return [one for one in fields if one.name not in left_out and not isinstance(one, BinaryField | JSONField)]


def _pieces(ordered: QuerySet[Any], first: list[Any], columns: Sequence[AnyField]) -> Iterator[bytes]:
    yield _lines([[column.name for column in columns]])
    rows, sent = first, 0
    while rows:
        yield _lines([[_cell(row, column) for column in columns] for row in rows])
        sent += len(rows)
        if len(rows) < PIECE:
            return
        rows = _next(ordered.filter(pk__lt=rows[-1].pk))
        if rows and sent >= ROWS_MAX:
            yield _lines([[f"There are more rows than {ROWS_MAX}: narrow the list, and download it again."]])
            return


def _next(older: QuerySet[Any]) -> list[Any]:
    """Read the next rows with a permit; raises limits.Saturated, which cuts the download off, if none is to be had."""
    for attempt in range(1, TRIES_MAX + 1):
        try:
            deadline = time.monotonic() + settings.PAYMENTS_DEADLINE_MS / 1000
            with limits.get("staff"), database.connected(deadline):
                return list(older[:PIECE])
        except limits.Saturated:
            if attempt == TRIES_MAX:
                raise
    raise AssertionError("Bug: the last try neither returned nor raised")


def _lines(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cell(row: Any, column: AnyField) -> object:
    # A foreign key's row is there where the list shows it: its name says more than its number.
    if isinstance(column, ForeignKey) and column.is_cached(row):
        value = getattr(row, column.name)
        return "" if value is None else safe(str(value))
    value = getattr(row, column.attname)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if value is None or isinstance(value, int | float):
        return "" if value is None else value
    return safe(str(value))


def safe(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA_BEGINS) else text
