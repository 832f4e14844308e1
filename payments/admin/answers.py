"""The filter of deliveries by what they were answered, in the dashboard's words."""

from typing import Any, Final

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

_CONDITIONS: Final = {
    "first": Q(status__lt=400, replayed=False),
    "replayed": Q(status__lt=400, replayed=True),
    "refused": Q(status__gte=400, status__lt=500),
    "failed": Q(status__gte=500),
    "gap": Q(status__isnull=True),
}


class Answer(admin.SimpleListFilter):
    """Deliveries that went well, or did not."""

    title = _("answer")
    parameter_name = "answer"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("first", _("Answered")),
            ("replayed", _("Replayed")),
            ("refused", _("Refused (4xx)")),
            ("failed", _("Failed (5xx)")),
            ("gap", _("Not recorded")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        condition = _CONDITIONS.get(self.value() or "")
        if condition is None:
            return queryset
        # 4xx and 5xx have an index, which the planner finds only by its very condition.
        is_rare = self.value() in ("refused", "failed")
        return queryset.filter(condition, *([Q(status__gte=400)] if is_rare else []))
