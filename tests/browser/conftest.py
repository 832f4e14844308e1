"""A server for the browser that speaks plain HTTP."""

from collections.abc import Iterator

import pytest
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer


@pytest.fixture(scope="module")
def live_server() -> Iterator[LiveServer]:
    """pytest-django's, but made without the redirect to https, which a server decides once, when it is made."""
    with override_settings(SECURE_SSL_REDIRECT=False, SESSION_COOKIE_SECURE=False, CSRF_COOKIE_SECURE=False):
        server = LiveServer("127.0.0.1")
        yield server
        server.stop()
