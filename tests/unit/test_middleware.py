"""The project's middleware leaves what machines get alone."""

from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils import translation

from project.middleware import StaffLocaleMiddleware


def answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse(translation.get_language())


def get(path: str, *, accept: str) -> HttpResponse:
    response = StaffLocaleMiddleware(answer)(RequestFactory().get(path, headers={"Accept-Language": accept}))
    assert isinstance(response, HttpResponse)
    return response


def test_staff_read_their_language() -> None:
    assert get("/admin/", accept="id").content == b"id"
    assert get("/admin/", accept="en").content == b"en"


def test_replies_are_the_same_in_every_language() -> None:
    """Also on a thread that has just served a reader of another language."""
    get("/admin/", accept="id")

    reply = get("/webhooks/demo/", accept="id")

    assert reply.content == b"en"
    assert "Content-Language" not in reply.headers
