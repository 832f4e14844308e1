"""What browsers are told of staff's pages: run nothing but our own files, and keep nothing.

Text from outside is escaped wherever it is shown. This is the second wall: were it ever not, nothing of it would run.
"""

from typing import Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from payments.admin.middleware import StaffOnly

# No script, style, picture or form from elsewhere, nor any that stands inside the page itself.
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "font", "connect")),
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    # Addresses hold ids, which are nobody else's business.
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
    # A page must not come back from a browser's memory after somebody has logged out.
    "Cache-Control": "no-store",
}


class StaffHeaders(StaffOnly):
    """Adds them to every answer to staff; webhooks pass through untouched."""

    def answer_staff(self, request: HttpRequest) -> HttpResponseBase:
        response = self.pass_on(request)
        for name, value in HEADERS.items():
            response.headers[name] = value
        return response
