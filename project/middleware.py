"""What the project makes of Django's middleware for staff. Must not touch webhooks.

A webhook's reply is the same every time: no header may follow the caller's language or a cookie of theirs. And it must
be cheap: sessions, languages, users and messages cost a delivery as much as verifying it does.
"""

from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.messages.middleware import MessageMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.locale import LocaleMiddleware
from django.utils import translation

from payments.admin.middleware import StaffOnly


class StaffSessionMiddleware(StaffOnly, SessionMiddleware):
    """Elsewhere, a caller's odd cookie would be answered with a Set-Cookie."""


class StaffLocaleMiddleware(StaffOnly, LocaleMiddleware):
    """Elsewhere, it would add a Content-Language header that follows the caller's Accept-Language."""

    def answer_staff(self, request: HttpRequest) -> HttpResponseBase:
        try:
            return super().answer_staff(request)
        finally:
            translation.deactivate()  # or the thread's next delivery would be answered in this reader's language


class StaffAuthenticationMiddleware(StaffOnly, AuthenticationMiddleware):
    """Nobody else logs in."""


class StaffMessageMiddleware(StaffOnly, MessageMiddleware):
    """Nobody else reads messages."""
