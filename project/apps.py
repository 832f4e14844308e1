"""Which admin site the project has: one with the payments' own pages, in place of Django's."""

from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig
from django.urls import URLPattern, URLResolver


class StaffSite(AdminSite):
    """Django's admin site and the pages of payments.admin that are no model's."""

    site_title = "Sekali"
    site_header = "Sekali"

    def get_urls(self) -> list[URLPattern | URLResolver]:
        # Not above: importing payments.admin registers its models, for which this site must be there already.
        from payments.admin import pages

        return [*pages.urls(self), *super().get_urls()]


class StaffSiteConfig(AdminConfig):
    default_site = "project.apps.StaffSite"
