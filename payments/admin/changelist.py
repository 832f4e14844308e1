"""Lists of big tables: newest first, page by page along the primary key; never a count or sort of the table.

`?before=<id>` and `?after=<id>` are the pages older and newer than a row. `?p=<n>` is the n-th page, so far
as an OFFSET stays cheap.
"""

from typing import Any, Final

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from payments.admin import cells, estimates

BEFORE: Final = "before"
AFTER: Final = "after"
OFFSET_MAX: Final = 100_000  # rows walked over in well under a second; farther, older and newer lead


class KeysetChangeList(ChangeList):
    """Django's change list, with pages that start at a row instead of a number."""

    newer_url: str | None = None
    older_url: str | None = None
    row_estimate: int | None = None

    @property
    def row_estimate_shown(self) -> str:
        return "" if self.row_estimate is None else cells.number(self.row_estimate)

    def get_filters_params(self, params: Any = None) -> Any:
        """Return the parameters that narrow the list: not those that turn its pages."""
        lookups = super().get_filters_params(params)
        for name in (BEFORE, AFTER):
            lookups.pop(name, None)
        return lookups

    def get_query_string(self, new_params: Any = None, remove: Any = None) -> Any:
        """Return the address of this list with something changed; it begins at the first page again."""
        return super().get_query_string(new_params, [*(remove or ()), BEFORE, AFTER])

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the one order that needs no sort, whatever the address asks for."""
        return ["-pk"]

    def get_results(self, request: HttpRequest) -> None:
        """Read one page of rows and one row more, to know whether there is a next page."""
        before, after = self._row(BEFORE), self._row(AFTER)
        offset = (self.page_num - 1) * self.list_per_page
        if not 0 <= offset <= OFFSET_MAX:
            raise IncorrectLookupParameters
        size = self.list_per_page
        newer = [] if after is None else list(self.queryset.filter(pk__gt=after).order_by("pk")[: size + 1])
        if len(newer) >= size:
            has_newer, has_older = len(newer) > size, True
            rows = newer[:size][::-1]
        else:
            queryset = self.queryset if before is None else self.queryset.filter(pk__lt=before)
            if offset:
                # What is only walked over needs none of what a row shows of other tables.
                walked = queryset.select_related(None).values_list("pk", flat=True)
                queryset = queryset.filter(pk__in=list(walked[offset : offset + size + 1]))
            rows = list(queryset[: size + 1])
            has_newer, has_older = before is not None or offset > 0, len(rows) > size
            rows = rows[:size]
        self.model_admin.complete(rows)  # type: ignore[attr-defined]
        self._set_pages(rows, has_newer=has_newer, has_older=has_older)
        if has_newer or has_older:
            self.row_estimate = estimates.row_estimate(self.model)
        self._set_what_templates_read(request, rows)

    @property
    def export_url(self) -> str:
        """Return the address of this list as a file: all of its rows, and not only this page's."""
        return f"export/{self.get_query_string()}"

    def _row(self, name: str) -> int | None:
        text = self.params.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise IncorrectLookupParameters
        return int(text)

    def _set_pages(self, rows: list[Model], *, has_newer: bool, has_older: bool) -> None:
        if not rows:
            return
        if has_newer:
            self.newer_url = self.get_query_string({AFTER: rows[0].pk})
        if has_older:
            self.older_url = self.get_query_string({BEFORE: rows[-1].pk})

    def _set_what_templates_read(self, request: HttpRequest, rows: list[Model]) -> None:
        self.result_list = rows
        self.result_count = len(rows)
        self.full_result_count = None
        self.show_full_result_count = False
        self.show_admin_actions = bool(rows)
        self.can_show_all = False
        self.multi_page = False
        self.paginator = self.model_admin.get_paginator(request, self.queryset, self.list_per_page)
