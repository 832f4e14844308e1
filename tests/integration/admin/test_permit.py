"""Staff have permits of their own, and are told plainly when there is none."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import OperationalError, connection
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from payments import limits
from payments.admin.middleware import StaffLimit

pytestmark = pytest.mark.django_db


def _served(request: HttpRequest) -> HttpResponse:
    return HttpResponse("served")


def test_staff_beyond_the_limit_are_told_to_come_back(rf: RequestFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick 503, never a wait without end; webhooks have nothing to do with it."""
    limit = limits.Limit(name="staff", permits=1, wait_s=0.0)
    monkeypatch.setattr(limits, "get", lambda name: limit)
    middleware = StaffLimit(_served)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(limit.__enter__).result()
        refused, webhook = middleware(rf.get("/admin/")), middleware(rf.get("/webhooks/demo/"))
        thread.submit(limit.__exit__, None, None, None).result()

    assert refused.status_code == 503
    assert int(refused["Retry-After"]) >= 1
    assert webhook.status_code == 200
    assert middleware(rf.get("/admin/")).status_code == 200
    assert limit.in_use == 0


def test_database_that_is_away_is_said_plainly(rf: RequestFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 503 in words, and the permit is given back."""

    def away() -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(connection, "ensure_connection", away)

    answer = StaffLimit(_served)(rf.get("/admin/"))

    assert answer.status_code == 503
    assert limits.get("staff").in_use == 0


def test_slow_page_is_said_plainly(rf: RequestFactory) -> None:
    """A statement that ran into its timeout is no crash; a crash stays one."""
    middleware, request = StaffLimit(_served), rf.get("/admin/payments/entry/")

    answer = middleware.process_exception(request, OperationalError("canceling statement due to timeout"))

    assert answer is not None
    assert answer.status_code == 503
    assert middleware.process_exception(request, ValueError()) is None
