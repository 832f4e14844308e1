"""Looking an id up in a list: exactly or by its beginning, along an index, and bounded.

A plain `LIKE` ordered by primary key can make PostgreSQL walk a whole table backwards when nothing matches.
So the matching rows' ids are read first, each part in its own index's order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Model, Q

from payments.facts import escape
from payments.models import Endpoint

MATCHES_MAX: Final = 200  # per index walked; whoever gets so many types one more character


@dataclass(frozen=True, slots=True)
class Column:
    """A text column with an index in byte order.

    endpoint   the path to the endpoint that the index begins with, where it does
    only       the condition of a partial index
    is_key     says `<endpoint>:<id>`; the id is looked for behind each endpoint, as it is and escaped
    """

    path: str
    endpoint: str | None = None
    only: Q | None = None
    is_key: bool = False


def matching_ids(model: type[Model], columns: Sequence[Column], term: str) -> set[int]:
    """Return the ids of rows in which a column begins with the term. A pasted space around it is forgiven."""
    found = _ids(model, columns, term)
    trimmed = term.strip()
    return _ids(model, columns, trimmed) if not found and trimmed not in ("", term) else found


def _ids(model: type[Model], columns: Sequence[Column], term: str) -> set[int]:
    walks = [walk for column in columns for walk in _walks(model, column, term)]
    if not walks:
        return set()
    return set(walks[0].union(*walks[1:], all=True) if len(walks) > 1 else walks[0])


def _walks(model: type[Model], column: Column, term: str) -> Iterator[Any]:
    rows = model._default_manager.filter(column.only or Q()).order_by(column.path).values_list("pk", flat=True)
    matching = rows.filter(**{f"{column.path}__startswith": term})
    if column.endpoint is None:
        yield matching[:MATCHES_MAX]
    else:
        for endpoint_id in Endpoint.objects.order_by("id").values_list("id", flat=True):
            yield matching.filter(**{column.endpoint: endpoint_id})[:MATCHES_MAX]
    if column.is_key:
        for slug in Endpoint.objects.order_by("id").values_list("slug", flat=True):
            for name in sorted({term, escape(term)}):
                yield rows.filter(**{f"{column.path}__startswith": f"{slug}:{name}"})[:MATCHES_MAX]
