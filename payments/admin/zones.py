"""The reader's time zone: chosen on a page, kept in a cookie, used for every time that is shown; UTC stands beside."""

import zoneinfo
from functools import cache
from typing import Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone

from payments.admin.middleware import StaffOnly

COOKIE: Final = "zone"
UTC: Final = "UTC"
# Places only: no abbreviations, whose meaning depends on who reads them, and no second names of the database's.
_NOT_PLACES: Final = ("Etc/", "SystemV/", "US/", "posix/", "right/", "Brazil/", "Canada/", "Chile/", "Mexico/")


@cache
def names() -> tuple[str, ...]:
    """Return the zones to choose from, UTC first; only that where the machine has no time zone database."""
    places = [name for name in zoneinfo.available_timezones() if "/" in name and not name.startswith(_NOT_PLACES)]
    return (UTC, *sorted(places))


def chosen(request: HttpRequest) -> str:
    """Return the name of the reader's zone."""
    name = request.COOKIES.get(COOKIE, UTC)
    return name if name in names() else UTC


class StaffZone(StaffOnly):
    """Shows staff all times in their zone."""

    def answer_staff(self, request: HttpRequest) -> HttpResponseBase:
        with timezone.override(zoneinfo.ZoneInfo(name) if (name := chosen(request)) != UTC else None):
            return self.pass_on(request)
