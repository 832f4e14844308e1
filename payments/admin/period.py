"""The filter "when": the last 24 hours unless asked otherwise, so that the first look is a quick one."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

_PERIODS = {
    "hour": (_("Last hour"), timedelta(hours=1)),
    "day": (_("Last 24 hours"), timedelta(hours=24)),
    "week": (_("Last 7 days"), timedelta(days=7)),
    "all": (_("Any time"), None),
}


class Period(admin.SimpleListFilter):
    """Rows of a recent period, by a time column that has an index.

    Whoever looks for an id, or comes from a link that narrows the list already, sees rows of any time.
    """

    title = _("when")
    parameter_name = "period"
    column: str

    def __init__(self, request: HttpRequest, params: Any, model: type[Model], model_admin: Any) -> None:
        narrowing = {SEARCH_VAR, *model_admin.narrowed_by}
        is_narrowed = any(request.GET.get(name) for name in narrowing)
        self._default = "all" if is_narrowed else "day"
        super().__init__(request, params, model, model_admin)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(name, label) for name, (label, _length) in _PERIODS.items()]

    def value(self) -> str:
        given = super().value()
        return given if given in _PERIODS else self._default

    def choices(self, changelist: Any) -> Iterator[Any]:
        for name, label in self.lookup_choices:
            yield {
                "selected": self.value() == name,
                "query_string": changelist.get_query_string({self.parameter_name: name}),
                "display": label,
            }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        length = _PERIODS[self.value()][1]
        if length is None:
            return queryset
        return queryset.filter(**{f"{self.column}__gte": timezone.now() - length})


def by(column: str) -> type[Period]:
    """Return the filter over a model's time column."""
    return type("Period", (Period,), {"column": column})
