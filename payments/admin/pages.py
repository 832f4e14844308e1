"""The pages that are no model's."""

from typing import Final

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from payments.admin import act_page, finder, preferences


def urls(site: AdminSite) -> list[URLPattern]:
    """Return their addresses; each is shown to staff who are logged in."""
    own = Pages(site)
    return [
        path("find/", site.admin_view(own.find), name="find"),
        path("view/", site.admin_view(own.preferences), name="preferences"),
        path("act/<slug:name>/", site.admin_view(own.act), name="act"),
    ]


class Pages:
    """Views that know which site they are on."""

    def __init__(self, site: AdminSite) -> None:
        self.site: Final = site

    def find(self, request: HttpRequest) -> HttpResponse:
        """Go to what an id belongs to; show a list where that is several things, or none."""
        term = request.GET.get("q", "")
        found = finder.find(self.site, request, term)
        if (only := found.only) is not None:
            return HttpResponseRedirect(only)
        return self._page(request, "found.html", {"title": _("Search"), "term": term, "sections": found.sections})

    def act(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask for a reason, then do something."""
        return act_page.answer(self.site, request, name)

    def preferences(self, request: HttpRequest) -> HttpResponse:
        """Choose the language and the time zone."""
        form = preferences.form_for(request)
        if form.is_valid():
            return preferences.kept(request, form)
        return self._page(request, "preferences.html", {"title": _("Your view"), "form": form})

    def _page(self, request: HttpRequest, template: str, context: dict[str, object]) -> HttpResponse:
        shown = {**self.site.each_context(request), **context}
        return TemplateResponse(request, f"admin/payments/{template}", shown)
