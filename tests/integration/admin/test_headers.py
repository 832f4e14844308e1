"""What browsers are told."""

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from payments.models import Event
from tests import staff

pytestmark = pytest.mark.django_db

INLINE = re.compile(
    r"<style|<script(?![^>]*\ssrc=)|<\w[^<>]*\s(?:style|on\w+)=|<\w[^<>]*=\W?javascript:", re.IGNORECASE
)


def _policy(answer: object) -> dict[str, str]:
    header = str(answer["Content-Security-Policy"])  # type: ignore[index]
    return dict(part.strip().partition(" ")[::2] for part in header.split(";"))


def test_nothing_runs_but_our_own_files(capture: Event, viewer: Client) -> None:
    """On pages, redirects and refusals alike."""
    for url in ("/admin/", "/admin/find/?q=evt_1", "/admin/payments/nothing/", "/admin/login/", staff.page(capture)):
        policy = _policy(viewer.get(url))

        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert "unsafe" not in str(policy)


def test_pages_have_nothing_inline(conflict: Event, operator: Client) -> None:
    """Neither styles nor scripts nor handlers, so that the policy needs no exception."""
    lists = [f"/admin/payments/{model._meta.model_name}/" for model in staff.all_models()]
    pages = [staff.page(newest) for model in staff.all_models() if (newest := model.objects.last())]
    others = ["/admin/", "/admin/find/?q=x", "/admin/view/", staff.act("close", conflict), "/admin/password_change/"]
    for url in [*lists, *pages, *others]:
        found = INLINE.search(staff.text(operator, url))
        assert found is None, (url, found)


def test_pages_are_not_kept_and_say_nothing_elsewhere(capture: Event, viewer: Client) -> None:
    """A shared computer, and an address with an id in it."""
    answer = viewer.get(staff.page(capture))

    assert answer["Cache-Control"] == "no-store"
    assert answer["Referrer-Policy"] == "same-origin"
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["X-Content-Type-Options"] == "nosniff"


def test_answers_to_gateways_have_none_of_it(capture: Event, client: Client) -> None:
    """They get the headers that they always got, and no cookie."""
    answer = client.get("/webhooks/demo/")

    assert "Content-Security-Policy" not in answer
    assert not answer.cookies


def test_cookies_are_for_staff_pages_only(client: Client) -> None:
    """Out of reach of scripts, other sites and other paths."""
    User.objects.create_superuser("root", password="long-enough-17")
    client.get("/admin/login/")
    answer = client.post("/admin/login/?next=/admin/", {"username": "root", "password": "long-enough-17"})

    assert answer.status_code == 302
    for name in ("sessionid", "csrftoken"):
        cookie = answer.cookies[name]
        assert (cookie["path"], bool(cookie["httponly"])) == ("/admin/", True)
        assert cookie["samesite"] in ("Lax", "Strict")
