"""Which admin site the project has: one with the payments' own pages, in place of Django's."""

from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig
from django.http import HttpRequest
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

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        from payments.admin import dashboard

        return super().index(request, {"board": dashboard.read(request), **(extra_context or {})})


class StaffSiteConfig(AdminConfig):
    default_site = "project.apps.StaffSite"
