"""The filter "when": the last 24 hours unless asked otherwise, so that the first look is a quick one.

`?from=…&until=…` is any span, as the dashboard's bars ask for.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from payments.admin import spans

FROM: Final = "from"
UNTIL: Final = "until"
_PERIODS: Final = {
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
    parameters = (parameter_name, FROM, UNTIL)
    column: str

    def __init__(self, request: HttpRequest, params: Any, model: type[Model], model_admin: Any) -> None:
        narrowing = {SEARCH_VAR, FROM, UNTIL, *model_admin.narrowed_by}
        self._is_narrowed = any(request.GET.get(name) for name in narrowing)
        super().__init__(request, params, model, model_admin)
        self._span = [_moment(params.pop(name)[-1]) if name in params else None for name in (FROM, UNTIL)]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(name, label) for name, (label, _length) in _PERIODS.items()]

    def expected_parameters(self) -> list[str | None]:
        return list(self.parameters)

    def value(self) -> str:
        given = super().value()
        return given if given in _PERIODS else "all" if self._is_narrowed else "day"

    def choices(self, changelist: Any) -> Iterator[Any]:
        for name, label in self.lookup_choices:
            yield {
                "selected": self.value() == name,
                "query_string": changelist.get_query_string({self.parameter_name: name}, [FROM, UNTIL]),
                "display": label,
            }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        since, until = self._span
        length = _PERIODS[self.value()][1]
        if length is not None:
            recently = timezone.now() - length
            since = recently if since is None else max(since, recently)
        return spans.within(queryset, self.column, since=since, until=until)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise IncorrectLookupParameters from error
    if moment.tzinfo is None or not 2000 <= moment.year <= 2100:
        raise IncorrectLookupParameters
    return moment


def by(column: str) -> type[Period]:
    """Return the filter over a model's time column."""
    return type("Period", (Period,), {"column": column})
