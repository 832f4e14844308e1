"""The admin of history: everything can be seen, nothing can be added, changed or deleted, whatever is posted.

Nobody has a permission to write here, superusers neither: Django's own views answer 403 to crafted requests.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import flatten_fieldsets
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.urls import URLPattern, path
from django.utils.text import capfirst

from payments.admin import acts, bodies, codes, export, search
from payments.admin.changelist import KeysetChangeList
from payments.admin.estimates import EstimatedPaginator
from payments.admin.tables import Section

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Model]
else:
    _ModelAdmin = admin.ModelAdmin


def _lead_to(*_ignored: Any) -> None:
    """Stand for an act in Django's table of actions; response_action does what there is to do."""


class ReadOnlyAdmin(_ModelAdmin):
    """A model that staff see and never edit.

    searched      the indexed columns that the search box looks in
    narrowed_by   the lookups that links from other pages narrow the list by; each must have an index
    related       the foreign keys that lists and pages show
    left_out      columns too large for a list
    """

    fields: ClassVar[Any] = None  # Django's stubs don't know that columns (functions) may stand in it
    change_form_template = "admin/payments/detail.html"
    change_list_template = "admin/payments/list.html"
    list_per_page = 50
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by = ()
    paginator = EstimatedPaginator
    view_on_site = False

    searched: Sequence[search.Column] = ()
    narrowed_by: Sequence[str] = ()
    related: Sequence[str] = ()
    left_out: Sequence[str] = ()

    def sections(self, request: HttpRequest, instance: Any) -> list[Section]:
        """Return the parts of an object's page that follow its own fields."""
        return []

    def complete(self, instances: Sequence[Any]) -> None:
        """Read what the rows of one page of a list need beside their columns."""

    # Nobody may write --------------------------------------------------------------------------------

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return flatten_fieldsets(self.get_fieldsets(request, obj))

    # Lists -------------------------------------------------------------------------------------------

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        return super().get_queryset(request).select_related(*self.related).defer(*self.left_out)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        return KeysetChangeList

    def get_search_fields(self, request: HttpRequest) -> list[str]:
        # Not looked in by Django (get_search_results is ours); says that there is a search box.
        return [column.path for column in self.searched]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if not search_term or not self.searched:
            return queryset, False
        return queryset.filter(pk__in=search.matching_ids(self.model, self.searched, search_term)), False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow what a filter or a link of ours asks for, and nothing that has no index."""
        return lookup in self.narrowed_by or lookup in self._filter_parameters()

    def _filter_parameters(self) -> set[str]:
        parameters: set[str] = set()
        for item in self.list_filter:
            if isinstance(item, str):
                parameters |= {f"{item}__exact", f"{item}__id__exact"}
            elif isinstance(item, type) and issubclass(item, admin.SimpleListFilter):
                parameters |= {str(item.parameter_name), *getattr(item, "parameters", ())}
        return parameters

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if request.method not in ("GET", "HEAD") and not self.get_actions(request):
            raise PermissionDenied
        title = capfirst(str(self.opts.verbose_name_plural))
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def get_urls(self) -> list[URLPattern]:
        name = f"payments_{self.opts.model_name}_export"
        return [path("export/", self.admin_site.admin_view(self.export_view), name=name), *super().get_urls()]

    def export_view(self, request: HttpRequest) -> StreamingHttpResponse:
        """Answer with the list as a file of CSV, as its address filters it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        shown = self.get_changelist_instance(request)
        return export.response(shown.queryset, left_out=self.left_out)

    # Acts: a list only leads to the page that asks for the reason ------------------------------------

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        allowed = acts.of_list(request, self.model)
        return {name: (_lead_to, name, act.label) for name, act in allowed.items()}

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], action_location: Any = None
    ) -> HttpResponse:
        act = acts.of_list(request, self.model).get(request.POST.get("action", ""))
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if act is None or not all(pk.isascii() and pk.isdigit() for pk in chosen):
            raise PermissionDenied
        return HttpResponseRedirect(act.url(chosen))

    # Pages -------------------------------------------------------------------------------------------

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        name = bodies.visible(codes.name_of(obj))
        context["title"] = f"{capfirst(str(self.opts.verbose_name))} {name}"
        context["subtitle"] = None
        context["original"] = name  # what the way back here says
        context["sections"] = self.sections(request, obj)
        return super().render_change_form(request, context, add, change, form_url, obj)
