"""The floor: the same server, the same reading, verification and translation, and no database.

Nothing that answers a delivery truthfully can be faster in this process.
"""

from datetime import UTC, datetime
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from payments import conf, models, replies, views
from payments.gateways import base

ENDPOINT: Final = conf._endpoint(models.Endpoint(id=1, slug="demo", gateway="standard_webhooks"))


@csrf_exempt
def webhook(request: HttpRequest, slug: str) -> HttpResponse:
    """Answer what a new claim would."""
    try:
        _, notice = translated(request, ENDPOINT)
    except base.VerificationFailed:
        return views._response(replies.problem(400, "The delivery could not be verified"))
    return views._response(ENDPOINT.gateway.acknowledge(notice.event_id, "applied"))


def translated(request: HttpRequest, endpoint: conf.Endpoint) -> tuple[base.Verified, base.Notice]:
    """Read, verify and translate a delivery as the product does."""
    delivery = base.Delivery(views._headers(request), views._body(request) or b"", datetime.now(UTC))
    verified = endpoint.gateway.authenticate(delivery, endpoint.secrets)
    [notice] = endpoint.gateway.translate(verified, endpoint.config)
    return verified, notice


def ready(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ready\n")


urlpatterns = [path("webhooks/<str:slug>/", webhook), path("readyz", ready)]
