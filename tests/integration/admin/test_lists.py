"""Lists of big tables: bounded, and every row once."""

import io
import logging
from datetime import UTC, datetime, timedelta
from itertools import chain

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from payments.models import Claim, Event, Finding
from project.logs import CallersFault

pytestmark = pytest.mark.django_db


@pytest.fixture
def claims(capture: Event) -> list[Claim]:
    """120 more claims, the first 40 of them two days old."""
    now = datetime.now(UTC)
    rows = [
        Claim(
            endpoint_id=capture.endpoint_id,
            event_id=f"old_{n:03}" if n < 40 else f"new_{n:03}",
            fingerprint={},
            outcome="ignored",
            reply_status=200,
            reply_content_type="application/json",
            reply_body=b"{}",
            claimed_at=now - timedelta(hours=48 if n < 40 else 1),
        )
        for n in range(120)
    ]
    return Claim.objects.bulk_create(rows)


def _listed(client: Client, query: str = "") -> list[str]:
    answer = client.get(f"/admin/payments/claim/{query}")
    assert answer.status_code == 200
    return [claim.event_id for claim in answer.context["cl"].result_list]


def test_lists_begin_with_the_last_24_hours(claims: list[Claim], viewer: Client) -> None:
    """Older rows show when asked for."""
    oldest_page = f"before={claims[40].pk}"

    assert _listed(viewer, f"?{oldest_page}") == []
    assert _listed(viewer, f"?period=all&{oldest_page}")[0] == "old_039"


def test_search_finds_an_id_of_any_time(claims: list[Claim], viewer: Client) -> None:
    """Exactly, by its beginning, and with a pasted space; never by a part of it."""
    assert _listed(viewer, "?q=old_007") == ["old_007"]
    assert len(_listed(viewer, "?q=old_01")) == 10
    assert _listed(viewer, "?q=%20old_007%20") == ["old_007"]
    assert _listed(viewer, "?q=ld_007") == []
    assert _listed(viewer, "?q=old%25") == []


@pytest.mark.parametrize(
    ("term", "subject"),
    [
        ("evt_9", "demo:evt_9"),
        ("demo:evt_9", "demo:evt_9"),
        ("pay_9", "demo:pay_9:captured"),
        ("demo:pay_9:captured", "demo:pay_9:captured"),
        ("pay:8", "demo:pay%3A8"),
        (" pay:8 ", "demo:pay%3A8"),
        ("shop:17", "shop:17"),
        ("over_r", "demo:pay%3A8"),
    ],
)
def test_findings_are_found_by_what_they_are_about(capture: Event, viewer: Client, term: str, subject: str) -> None:
    """An operator pastes what they have: an event's id, a payment's reference, a key; or a kind."""
    for kind, about in (
        ("conflict", "demo:evt_9"),
        ("fact_differs", "demo:pay_9:captured"),
        ("over_refund", "demo:pay%3A8"),
        ("outbox_dead", "shop:17"),
    ):
        Finding.objects.create(kind=kind, subject=about)

    answer = viewer.get("/admin/payments/finding/", {"q": term})

    assert [finding.subject for finding in answer.context["cl"].result_list] == [subject]


def test_findings_of_one_kind_are_listed(capture: Event, viewer: Client) -> None:
    """Of open ones without columns about their end."""
    now = datetime.now(UTC)
    for n, (kind, closed_at) in enumerate([("conflict", None), ("conflict", now), ("over_refund", None)]):
        Finding.objects.create(kind=kind, subject=str(n), closed_at=closed_at, closed_by="siti" if closed_at else "")

    def listed(query: str) -> tuple[list[str], bool]:
        answer = viewer.get(f"/admin/payments/finding/?kind=conflict{query}")
        return [one.subject for one in answer.context["cl"].result_list], b"column-closed_by" in answer.content

    assert listed("") == (["0"], False)
    assert listed("&state=all") == (["1", "0"], True)
    assert listed("&state=closed") == (["1"], True)


def test_older_and_newer_walk_through_every_row_once(claims: list[Claim], viewer: Client) -> None:
    """There and back again, on the same pages."""
    url, pages = "?period=all", []
    while url:
        answer = viewer.get(f"/admin/payments/claim/{url}")
        pages.append([claim.pk for claim in answer.context["cl"].result_list])
        url = answer.context["cl"].older_url
    newer = viewer.get(f"/admin/payments/claim/{answer.context['cl'].newer_url}")
    newer_page = [claim.pk for claim in newer.context["cl"].result_list]

    assert [len(page) for page in pages] == [50, 50, 21]
    walked = list(chain.from_iterable(pages))
    assert walked == sorted(set(walked), reverse=True)
    assert newer_page == pages[1]


def test_lists_never_count(claims: list[Claim], viewer: Client) -> None:
    """However they are asked for."""
    for query in ("", "?p=2", "?q=old", "?outcome__exact=ignored", "?period=all", "?o=1.-2"):
        with CaptureQueriesContext(connection) as queries:
            _listed(viewer, query)
        assert not [query for query in queries if "count(" in query["sql"].lower()]


@pytest.mark.parametrize("query", ["?reply_body__contains=a", "?event_id__regex=.", "?endpoint__slug=demo"])
def test_lookups_without_an_index_are_refused(
    claims: list[Claim], viewer: Client, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crafted address can't make the database read a whole table; it wakes nobody."""
    log = io.StringIO()
    handlers = logging.getLogger("django.security").handlers
    (handler,) = (one for one in handlers if isinstance(one.formatter, CallersFault))  # pytest adds its own
    monkeypatch.setattr(handler, "stream", log)

    assert viewer.get(f"/admin/payments/claim/{query}").status_code == 400

    (line,) = log.getvalue().splitlines()
    assert " INFO django.security.DisallowedModelAdminLookup Filtering by" in line
    assert "Traceback" not in line


@pytest.mark.parametrize("query", ["?before=x", "?p=-1", "?p=999999999", f"?after={'9' * 40}", "?p=x"])
def test_unusable_pages_lead_back_to_a_list(claims: list[Claim], viewer: Client, query: str) -> None:
    """Never a crash."""
    assert viewer.get(f"/admin/payments/claim/{query}", follow=True).status_code == 200


def test_lists_are_narrowed_to_an_hour(claims: list[Claim], viewer: Client) -> None:
    """As the dashboard's bars do: older than the last 24 hours, too."""
    begin, end = (claims[n].claimed_at.isoformat().replace("+", "%2B") for n in (0, 40))

    assert len(_listed(viewer, f"?from={begin}&until={end}")) == 40
    for unusable in ("from=yesterday", "until=2026-01-01", "from=0001-01-01T00:00:00%2B00:00", "from="):
        assert viewer.get(f"/admin/payments/claim/?{unusable}", follow=True).status_code == 200
