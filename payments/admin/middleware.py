"""Staff have permits and connections of their own: webhooks can't take the last of them, nor they theirs.

Stands first, so that the permit covers all that a request of staff does with the database, its session too.
The statement_timeout that every session has bounds a page's queries; who runs into it is told so plainly.
"""

import time
from typing import Final, cast

from django.conf import settings
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _

from payments import database, limits

PREFIX: Final = "/admin/"
RETRY_AFTER_S: Final = 5  # how long a failed-over or restarted database usually needs


class StaffOnly(MiddlewareMixin):
    """Lets all requests but those of staff pass by, at no cost. To be derived from, or mixed into one of Django's."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.answer_staff(request) if request.path_info.startswith(PREFIX) else self.pass_on(request)

    def answer_staff(self, request: HttpRequest) -> HttpResponseBase:
        return cast(HttpResponseBase, super().__call__(request))

    def pass_on(self, request: HttpRequest) -> HttpResponseBase:
        # Nothing here is served asynchronously.
        return cast(HttpResponseBase, self.get_response(request))


class StaffLimit(StaffOnly):
    """Serves each request of staff under the limit "staff"."""

    def answer_staff(self, request: HttpRequest) -> HttpResponseBase:
        deadline = time.monotonic() + settings.PAYMENTS_DEADLINE_MS / 1000
        try:
            # On leaving, the connection goes back before the permit that stands for it.
            with limits.get("staff"), database.connected(deadline):
                return self.pass_on(request)
        except limits.Saturated as saturated:
            return _come_back(saturated.retry_after_s, _("Too many people are looking at these pages now."))
        except OperationalError:
            return _come_back(RETRY_AFTER_S, _("The database can't be reached."))

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer for a database that is away, or that takes longer for a page than we let it."""
        is_slow = isinstance(exception, OperationalError | database.TransactionFailed)
        if not (request.path_info.startswith(PREFIX) and is_slow):
            return None
        return _come_back(
            RETRY_AFTER_S,
            _("The database did not answer in time. Look for one id, or for a shorter period."),
        )


def _come_back(seconds: int, reason: str) -> HttpResponse:
    text = _("%(reason)s\nTry again in %(seconds)d seconds.\n") % {"reason": reason, "seconds": seconds}
    headers = {"Retry-After": str(seconds), "Cache-Control": "no-store"}
    return HttpResponse(text, status=503, content_type="text/plain; charset=utf-8", headers=headers)
