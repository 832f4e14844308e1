"""The tables on an object's page: what belongs to it, cut to size, with a link to the whole list."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from payments.admin.cells import Column, Label

NONE: Final = _("None.")
ALL: Final = _("All of them")
ROWS_MAX: Final = 25  # what fits on a page beside other tables; the link leads to the rest


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a page: rows under headings, or a text that keeps its lines.

    warning    said first, and in a way that is not overlooked
    note       said below the heading
    more_url   the list that these rows are the beginning of
    """

    title: Label
    headings: Sequence[Label] = ()
    rows: Sequence[Sequence[object]] = ()
    text: str | None = None
    warning: Label = ""
    note: Label = ""
    more_url: str | None = None
    more: Label = ALL
    empty: Label = NONE


def table(
    title: Label,
    instances: Iterable[Any],
    columns: Sequence[tuple[Label, Column]],
    *,
    more_url: str | None = None,
    note: Label = "",
    empty: Label = NONE,
) -> Section:
    """Return a section of at most ROWS_MAX rows; reads one row more, to know whether there are more."""
    found = list(instances[: ROWS_MAX + 1] if isinstance(instances, QuerySet | list) else instances)
    return Section(
        title=title,
        headings=[label for label, _show in columns],
        rows=[[show(instance) for _label, show in columns] for instance in found[:ROWS_MAX]],
        note=note,
        more_url=more_url if len(found) > ROWS_MAX else None,
        empty=empty,
    )
