"""The first page: how it goes, each figure a link, and bounded however much there is."""

import html
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from payments.admin import figures
from payments.models import Attempt, Claim, Event, Finding, OutboxMessage, Verification
from tests import staff

pytestmark = pytest.mark.django_db

Deliver = Callable[..., Any]


def _attempts(endpoint_id: int, number: int, *, status: int = 200, replayed: bool = False, hours_ago: int = 0) -> None:
    received_at = timezone.now() - timedelta(hours=hours_ago)
    row = {"endpoint_id": endpoint_id, "event_id": "e", "status": status, "replayed": replayed}
    Attempt.objects.bulk_create(Attempt(**row, received_at=received_at, duration_ms=1.0) for _ in range(number))


@pytest.fixture
def busy(conflict: Event, unusable: Event, deliver: Deliver) -> None:
    """Some of everything that may stand on the page."""
    deliver("evt_2", payment="pay_2", amount=500, currency="JPY")
    deliver("evt_3", payment="pay_3", amount=7_000, currency="IDR")
    deliver("evt_4", "invoice.made", payment="pay_3")
    _attempts(conflict.endpoint_id, 5, replayed=True, hours_ago=2)
    _attempts(conflict.endpoint_id, 3, status=503, hours_ago=2)
    _attempts(conflict.endpoint_id, 7)
    _attempts(conflict.endpoint_id, 2, status=422)
    OutboxMessage.objects.update(created_at=timezone.now() - timedelta(hours=3))
    OutboxMessage.objects.filter(pk=OutboxMessage.objects.latest("pk").pk).update(state="dead")


def _tiles(client: Client) -> dict[str, Any]:
    answer = client.get("/admin/")
    assert answer.status_code == 200
    return {str(tile.label): tile for tile in answer.context["board"].tiles}


def test_figures_tell_what_is_stuck(busy: None, viewer: Client) -> None:
    """Failures, replays, findings, suspense per currency, the outbox, the ledger."""
    tiles = _tiles(viewer)

    shown = {label: (tile.value, tile.is_bad) for label, tile in tiles.items()}
    assert shown == {
        "Failures, last 24 hours": ("3", True),
        "Replays, last 24 hours": ("5", False),
        "Open findings": ("2", True),
        "In suspense, IDR": ("IDR 70,00", True),
        "In suspense, JPY": ("JPY 500", True),
        "Oldest outbox message": ("3 h", True),
        "Dead outbox messages": ("1", True),
        "Ledger verified": ("Clean", False),
    }


def test_each_kind_of_finding_leads_to_its_list(busy: None, viewer: Client) -> None:
    """Many of one kind hide none of another."""
    Finding.objects.bulk_create(Finding(kind="outbox_dead", subject=f"shop:{n}") for n in range(30))

    text = staff.text(viewer, "/admin/")

    kinds = re.findall(r'<a href="(/admin/payments/finding/\?kind=\w+)">(\w+)</a></td><td>(\d+)</td>', text)
    assert [(kind, count) for _url, kind, count in kinds] == [
        ("conflict", "1"),
        ("outbox_dead", "30"),
        ("quarantined", "1"),
    ]
    for url, _kind, count in kinds:
        assert viewer.get(url).context["cl"].result_count == int(count)


def test_every_figure_leads_to_its_list(busy: None, viewer: Client) -> None:
    """As many rows as the figure says; each bar, too."""
    text = staff.text(viewer, "/admin/")

    expected = {"3": 3, "5": 5, "2": 2}
    for tile in _tiles(viewer).values():
        listed = viewer.get(tile.url).context["cl"].result_count
        assert listed == expected.get(tile.value, listed), tile
        assert listed, tile
    bars = re.findall(r'<a href="([^"]+)"><rect class="\w+"[^>]*><title>[^<]*: ([\d,]+)</title>', text)
    assert {int(count) for _url, count in bars} == {7, 5, 3, 2, 1}
    for url, count in bars:
        assert viewer.get(html.unescape(url)).context["cl"].result_count == int(count)


def test_dashboard_takes_few_queries_and_counts_no_table(busy: None, viewer: Client) -> None:
    """Every count has a LIMIT or a sample below it."""
    _tiles(viewer)  # the endpoints' copy is read by the first one
    with CaptureQueriesContext(connection) as queries:
        _tiles(viewer)

    assert len(queries) <= staff.QUERIES_MAX
    for query in queries:
        sql = query["sql"].lower()
        assert "count(" not in sql or "limit" in sql or "generate_series" in sql, sql


def test_many_rows_are_estimated_and_rare_ones_counted(
    capture: Event, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From evenly spread rows; a failure among thousands is still one."""
    monkeypatch.setattr(figures, "SAMPLE_MAX", 50)
    _attempts(capture.endpoint_id, 300)
    _attempts(capture.endpoint_id, 1, status=503)
    _attempts(capture.endpoint_id, 700, replayed=True)

    hours = figures.attempts_by_hour(timezone.now())

    assert hours.step > 1
    assert hours.total("first") == pytest.approx(300, abs=hours.step)
    assert hours.total("replayed") == pytest.approx(700, abs=hours.step)
    assert hours.total("failed") == 1
    assert "≈ " in _tiles(viewer)["Replays, last 24 hours"].value


def test_older_rows_are_not_counted(capture: Event) -> None:
    """A day is a day."""
    _attempts(capture.endpoint_id, 9, hours_ago=30)
    _attempts(capture.endpoint_id, 4, hours_ago=20)

    assert figures.attempts_by_hour(timezone.now()).total("first") == 4


def test_empty_service_has_a_dashboard(viewer: Client) -> None:
    """Before the first delivery; not recovered yet is said."""
    answer = viewer.get("/admin/")

    assert answer.status_code == 200
    assert b"No money is served: not recovered" in answer.content


def test_broken_invariant_is_said_first(capture: Event, viewer: Client) -> None:
    """In words, before all figures."""
    Verification.objects.create(
        is_full=True, horizon=0, checked={}, broken=[{"kind": "unbalanced"}], started_at=datetime.now(UTC)
    )

    text = staff.text(viewer, "/admin/")

    assert "No money is served: broken invariant: unbalanced" in html.unescape(" ".join(text.split()))


def test_figures_need_permission(busy: None, client: Client) -> None:
    """A newcomer sees that there is a service, and nothing of it."""
    user = staff.member("newcomer")
    user.user_permissions.clear()
    client.force_login(user)

    board = client.get("/admin/").context["board"]

    assert board.tiles == board.drawings == []
    assert [str(section.title) for section in board.sections] == ["Limits now"]


def test_limits_show_who_is_in(capture: Event, viewer: Client) -> None:
    """This very request holds one of the staff's permits."""
    section = next(one for one in viewer.get("/admin/").context["board"].sections if str(one.title) == "Limits now")

    in_use = {row[0]: row[1] for row in section.rows}
    assert in_use["staff"] == 1
    assert in_use["settle"] == in_use["intake"] == 0
    assert Claim.objects.exists()
    assert not Finding.objects.exists()
