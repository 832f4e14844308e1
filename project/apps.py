"""Which admin site the project has: the payments' own, in place of Django's."""

from django.contrib.admin.apps import AdminConfig


class StaffSiteConfig(AdminConfig):
    default_site = "payments.admin.site.StaffSite"
