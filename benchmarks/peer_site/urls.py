"""dj-stripe's webhook, and the sign that the site serves."""

from django.http import HttpRequest, HttpResponse
from django.urls import include, path

import benchmarks.peer_site.handlers  # noqa: F401


def ready(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


urlpatterns = [path("stripe/", include("djstripe.urls", namespace="djstripe")), path("readyz", ready)]
