"""Which admin site the project has: one with the payments' own pages, in place of Django's."""

from http import HTTPStatus
from math import ceil
from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver
from django.utils.translation import gettext_lazy as _


class StaffSite(AdminSite):
    """Django's admin site, with a dashboard and the pages of payments.admin that are no model's.

    Those are imported late: importing payments.admin registers its models, for which this site must be there.
    """

    site_title = "Sekali"
    site_header = "Sekali"
    site_url = None
    index_title = _("Now")
    index_template = "admin/payments/dashboard.html"

    def get_urls(self) -> list[URLPattern | URLResolver]:
        from payments.admin import pages

        return [*pages.urls(self), *super().get_urls()]

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Let nobody guess for long, whichever form asks for passwords or second factors."""
        if request.method != "POST":
            return super().login(request, extra_context)
        from payments import logins

        attempt = logins.Attempt.of(request)
        if wait_s := attempt.wait_s():
            context = {
                **self.each_context(request),
                "title": _("Log in"),
                "minutes": ceil(wait_s / 60),
                "is_nav_sidebar_enabled": False,
            }
            headers = {"Retry-After": str(wait_s), "Cache-Control": "no-store"}
            return TemplateResponse(request, "admin/payments/braked.html", context, status=429, headers=headers)
        answer = super().login(request, extra_context)
        if answer.status_code == HTTPStatus.FOUND:  # a form that is wrong is shown again
            attempt.forget()
        return answer

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        from payments.admin import dashboard

        return super().index(request, {"board": dashboard.read(request), **(extra_context or {})})


class StaffSiteConfig(AdminConfig):
    default_site = "project.apps.StaffSite"
