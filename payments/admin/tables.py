"""The parts of a page: tables, texts, timelines, drawings, each cut to size, with a link to the whole."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from payments.admin.cells import Column, Label
from payments.admin.timeline import Line

NONE: Final = _("None.")
ALL: Final = _("All of them")
ROWS_MAX: Final = 25  # what fits on a page beside other tables; the link leads to the rest


@dataclass(frozen=True, slots=True)
class Button:
    """What a reader may do here: it leads to a page that asks for a reason, and does nothing yet."""

    label: Label
    url: str


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a page: rows under headings, a text that keeps its lines, a timeline, or a drawing.

    warning    said first, and in a way that is not overlooked
    note       said below the heading
    marked     how many of the first rows stand out
    more_url   the list that these rows are the beginning of
    """

    title: Label
    headings: Sequence[Label] = ()
    rows: Sequence[Sequence[object]] = ()
    text: str | None = None
    lines: Sequence[Line] = ()
    drawing: str = ""
    warning: Label = ""
    note: Label = ""
    marked: int = 0
    buttons: Sequence[Button] = ()
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
