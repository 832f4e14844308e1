"""The staff's site: Django's admin, with one search box for any id."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path
from django.utils.translation import gettext as _

from payments.admin import finder


class StaffSite(admin.AdminSite):
    """Registered as the default site in project/apps.py."""

    site_title = "Sekali"
    site_header = "Sekali"

    def get_urls(self) -> list[URLPattern | URLResolver]:
        return [path("find/", self.admin_view(self.find), name="find"), *super().get_urls()]

    def find(self, request: HttpRequest) -> HttpResponse:
        """Go to what an id belongs to; show a list where that is several things, or none."""
        term = request.GET.get("q", "")
        found = finder.find(self, request, term)
        if (only := found.only) is not None:
            return HttpResponseRedirect(only)
        context = {
            **self.each_context(request),
            "title": _("Search"),
            "term": term,
            "sections": found.sections,
        }
        return TemplateResponse(request, "admin/payments/found.html", context)
