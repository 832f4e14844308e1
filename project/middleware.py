"""What the project adds to Django's middleware. Must not touch webhooks: a reply is the same every time."""

from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.locale import LocaleMiddleware
from django.utils import translation


class StaffLocaleMiddleware(LocaleMiddleware):
    """Chooses the reader's language for the admin only.

    Elsewhere it would add a Content-Language header that follows the caller's Accept-Language, and a re-delivery
    must get the headers that the first delivery got.
    """

    def process_request(self, request: HttpRequest) -> None:
        if request.path_info.startswith("/admin/"):
            super().process_request(request)

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if not request.path_info.startswith("/admin/"):
            return response
        response = super().process_response(request, response)
        translation.deactivate()  # or the thread's next delivery would be answered in this reader's language
        return response


class StaffSessionMiddleware(SessionMiddleware):
    """Answers about sessions in the admin only: elsewhere a caller's odd cookie would be answered with a Set-Cookie."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        return super().process_response(request, response) if request.path_info.startswith("/admin/") else response
