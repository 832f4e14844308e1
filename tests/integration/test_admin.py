"""What staff see of a delivery, and that nothing they send changes anything."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connection
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import Settings

from payments import conf, limits
from payments.admin import amounts, bodies
from payments.admin.middleware import StaffLimit
from payments.models import (
    Account,
    Attempt,
    Claim,
    Endpoint,
    Event,
    Finding,
    Payment,
    StaffAction,
    Transfer,
    Verification,
)
from tests.unit.gateways import signing

SECRET = "whsec_c2VrYWxpLWRlbW8tZW5kcG9pbnQtc2VjcmV0LTAwMA=="
HOSTILE = "<img src=x onerror=alert(1)>"
QUERIES_MAX = 20

Deliver = Callable[..., Any]

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _without_tls(settings: Settings) -> None:
    settings.SECURE_SSL_REDIRECT = False


@pytest.fixture
def deliver(client: Client, settings: Settings) -> Deliver:
    """Post one event of the demo endpoint, signed; return the response."""
    settings.PAYMENTS_SECRETS = {"DEMO": (SECRET,)}
    Endpoint.objects.create(slug="demo", gateway="standard_webhooks")
    for code in ("merchant-1", HOSTILE):
        Account.objects.create(code=code, currency="IDR", kind="liability")
    # What a verification of the ledger leaves; without one no money is served.
    Verification.objects.create(
        is_full=True, horizon=0, checked={}, broken=[], started_at=datetime.now(UTC)
    )
    conf.forget_copy()

    def post(event_id: str, event_type: str = "payment.captured", **data: Any) -> Any:
        body = json.dumps({"type": event_type, "data": data}).encode()
        signed = signing.standard_webhooks(body, SECRET, at=datetime.now(UTC), event_id=event_id)
        return client.post("/webhooks/demo/", signed.body, "application/json", headers=signed.headers)

    return post


@pytest.fixture
def capture(deliver: Deliver) -> Event:
    """A capture of IDR 10.000,00 for merchant-1, booked."""
    answer = deliver("evt_1", payment="pay_1", account="merchant-1", amount=1_000_000, currency="IDR")
    assert answer.status_code == 200, answer.content
    return Event.objects.get(event_id="evt_1")


@pytest.fixture
def conflict(capture: Event, deliver: Deliver) -> Event:
    """Another amount and payee under the id of that capture."""
    deliver("evt_1", payment="pay_1", account="merchant-2", amount=5, currency="IDR")
    return Event.objects.get(event_id="evt_1", role="conflict")


@pytest.fixture
def viewer(client: Client) -> Client:
    """A member of staff who may see all payments and do nothing."""
    user = User.objects.create_user("viewer", is_staff=True)
    may_view = Permission.objects.filter(content_type__app_label="payments", codename__startswith="view_")
    user.user_permissions.set(may_view)
    client.force_login(user)
    return client


def _page(instance: Any) -> str:
    return f"/admin/payments/{instance._meta.model_name}/{instance.pk}/change/"


def _text(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200
    return str(answer.content.decode())


def _all_models() -> list[Any]:
    return [model for model in admin.site._registry if model._meta.app_label == "payments"]


# What is shown --------------------------------------------------------------------------------------------


def test_event_page_links_to_its_claim_payment_transfers_and_entries(capture: Event, viewer: Client) -> None:
    """From what the gateway said to what was booked, without SQL."""
    text = _text(viewer, _page(capture))

    transfer = Transfer.objects.get()
    assert capture.claim is not None
    for related in (capture.claim, Payment.objects.get(), transfer, *transfer.entry_set.all()):
        assert _page(related) in text
    assert "IDR 10.000,00" in text


def test_event_page_shows_the_body_and_the_stored_reply(capture: Event, viewer: Client) -> None:
    """Both as text: re-indented, quotes escaped."""
    text = _text(viewer, _page(capture))

    assert "&quot;payment&quot;: &quot;pay_1&quot;" in text
    assert "&quot;outcome&quot;: &quot;applied&quot;" in text


@pytest.mark.parametrize("page", ["the conflicting content", "the first content", "the claim"])
def test_conflict_names_the_differing_fields(conflict: Event, viewer: Client, page: str) -> None:
    """On every page where one could stand and ask."""
    subject = {
        "the conflicting content": conflict,
        "the first content": Event.objects.get(event_id="evt_1", role="first"),
        "the claim": conflict.claim,
    }[page]

    assert "data.account, data.amount" in _text(viewer, _page(subject))


def test_conflict_names_the_differing_fields_after_pruning(conflict: Event, viewer: Client) -> None:
    """The bytes are gone; the finding that was opened then still knows."""
    Event.objects.update(body=None)

    text = _text(viewer, _page(conflict))

    assert "data.account, data.amount" in text
    assert "The body was pruned" in text


def test_account_page_leads_to_its_entries_transfers_and_events(capture: Event, viewer: Client) -> None:
    """Balance -> entries -> transfers -> events."""
    account = Account.objects.get(code="merchant-1")

    text = _text(viewer, _page(account))

    assert _page(Transfer.objects.get()) in text
    assert _page(capture.claim) in text
    assert "IDR 10.000,00" in text


def test_every_page_and_list_can_be_seen(conflict: Event, deliver: Deliver, viewer: Client) -> None:
    """One of everything that a delivery leaves behind, and at most 20 queries each."""
    deliver("evt_2", "refund.succeeded", payment="pay_1", refund="re_1", amount=1, currency="IDR")
    deliver("evt_3", "refund.failed", payment="pay_1", refund="re_1", amount=1, currency="IDR")
    deliver("evt_4", "dispute.funds_withdrawn", payment="pay_1", dispute="dp_1", amount=1, currency="IDR")
    deliver("evt_5", payment="pay_1", amount="1")
    Attempt.objects.create(
        endpoint_id=conflict.endpoint_id, event_id="evt_1", received_at=conflict.received_at
    )
    StaffAction.objects.create(actor="somebody", action="close", subject="x", reason="y")

    for model in _all_models():
        newest = model.objects.order_by("-pk").first()
        urls = [f"/admin/payments/{model._meta.model_name}/", *([_page(newest)] if newest else [])]
        for url in urls:
            with CaptureQueriesContext(connection) as queries:
                _text(viewer, url)
            assert len(queries) <= QUERIES_MAX, url


def test_event_of_a_broken_adapter_can_still_be_seen(capture: Event, viewer: Client) -> None:
    """Evidence that today's code can't read: the very event that somebody looks at."""
    Event.objects.filter(pk=capture.pk).update(headers={})

    assert "pay_1" in _text(viewer, _page(capture))


def test_hostile_text_is_only_text(deliver: Deliver, viewer: Client) -> None:
    """In every field that a payload can fill, on every list and page."""
    data = {"payment": HOSTILE, "account": HOSTILE, "reference": HOSTILE, "amount": 1, "currency": "IDR"}
    deliver(f"evt_{HOSTILE}", **data)
    deliver("evt_type", HOSTILE, **data)
    deliver(f"evt_bad_{HOSTILE}", **data | {"amount": HOSTILE})
    deliver(f"evt_{HOSTILE}", **data | {"amount": 2})
    Finding.objects.create(kind=HOSTILE, subject=HOSTILE, detail={HOSTILE: HOSTILE})

    for model in _all_models():
        list_url = f"/admin/payments/{model._meta.model_name}/"
        for url in [list_url, f"{list_url}?q={HOSTILE}", *map(_page, model.objects.all())]:
            assert "<img src=x" not in _text(viewer, url), url


# Nothing can be changed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["add/", "{pk}/change/", "{pk}/delete/", ""])
@pytest.mark.parametrize("who", ["viewer", "superuser"])
def test_crafted_posts_are_refused(
    capture: Event, client: Client, viewer: Client, path: str, who: str
) -> None:
    """No permission makes history editable."""
    if who == "superuser":
        client.force_login(User.objects.create_superuser("root"))
    rows_before = _everything()

    for model in _all_models():
        newest = model.objects.order_by("-pk").first()
        url = f"/admin/payments/{model._meta.model_name}/{path.format(pk=newest.pk if newest else 1)}"
        form = {"action": "delete_selected", "_selected_action": "1", "index": "0", "post": "yes", "key": "x"}
        assert client.post(url, form).status_code in ((403,) if newest else (403, 302)), url

    assert _everything() == rows_before


def _everything() -> dict[str, list[Any]]:
    return {model.__name__: list(model.objects.order_by("pk").values_list()) for model in _all_models()}


def test_pages_offer_nothing_to_edit(capture: Event, viewer: Client) -> None:
    """No save, delete or add; no field but the search box."""
    for url in (_page(capture), "/admin/payments/event/"):
        text = _text(viewer, url)

        assert "_save" not in text
        assert "/delete/" not in text
        assert "/add/" not in text


def test_staff_without_permission_see_nothing(capture: Event, client: Client) -> None:
    """Neither the page nor the raw bytes."""
    client.force_login(User.objects.create_user("newcomer", is_staff=True))

    for url in (_page(capture), "/admin/payments/event/", f"/admin/act/download/?id={capture.pk}"):
        assert client.get(url).status_code == 403


# Lists ------------------------------------------------------------------------------------------------------


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

    assert _listed(viewer, f"?{oldest_page}") == ["evt_1"]
    assert _listed(viewer, f"?period=all&{oldest_page}")[0] == "old_039"


def test_search_finds_an_id_of_any_time(claims: list[Claim], viewer: Client) -> None:
    """Exactly, by its beginning, and with a pasted space; never by a part of it."""
    assert _listed(viewer, "?q=old_007") == ["old_007"]
    assert len(_listed(viewer, "?q=old_01")) == 10
    assert _listed(viewer, "?q=%20old_007%20") == ["old_007"]
    assert _listed(viewer, "?q=ld_007") == []
    assert _listed(viewer, "?q=old%25") == []


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
def test_lookups_without_an_index_are_refused(claims: list[Claim], viewer: Client, query: str) -> None:
    """A crafted address can't make the database read a whole table."""
    assert viewer.get(f"/admin/payments/claim/{query}").status_code == 400


@pytest.mark.parametrize("query", ["?before=x", "?p=-1", "?p=999999999", f"?after={'9' * 40}", "?p=x"])
def test_unusable_pages_lead_back_to_a_list(claims: list[Claim], viewer: Client, query: str) -> None:
    """Never a crash."""
    assert viewer.get(f"/admin/payments/claim/{query}", follow=True).status_code == 200


# The permit -------------------------------------------------------------------------------------------------


def _served(request: HttpRequest) -> HttpResponse:
    return HttpResponse("served")


def test_staff_beyond_the_limit_are_told_to_come_back(
    rf: RequestFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# Texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount_minor", "currency", "shown"),
    [
        (1_000_000, "IDR", "IDR 10.000,00"),
        (500, "JPY", "JPY 500"),
        (123_456_789, "USD", "USD 1,234,567.89"),
        (-5, "EUR", "EUR -0,05"),
        (1_234_567, "KWD", "KWD 1,234.567"),
        (1_234_567_89, "INR", "INR 12,34,567.89"),
        (0, "IDR", "IDR 0,00"),
        (7, None, "7"),
    ],
)
def test_amounts_are_written_as_at_home(amount_minor: int, currency: str | None, shown: str) -> None:
    """Grouped, with the currency's own number of decimals."""
    assert amounts.shown(amount_minor, currency) == shown


def test_bodies_are_shown_as_they_were_written() -> None:
    """Odd numbers, members named twice and invalid bytes are what somebody is looking for."""
    shown = bodies.shown(b'{"a":1e400,"a":[],"b":{"c":[1,"x,{"]},"d":"\xff"}')

    assert shown.text.splitlines() == [
        "{",
        '  "a": 1e400,',
        '  "a": [],',
        '  "b": {',
        '    "c": [',
        "      1,",
        '      "x,{"',
        "    ]",
        "  },",
        '  "d": "\\xff"',
        "}",
    ]


def test_bodies_hide_nothing_and_are_cut() -> None:
    """What would reorder or hide text is shown as an escape; a megabyte is shown in part."""
    assert bodies.shown("a\u202eb\x00".encode()).text == "a\\u202eb\\u0000"
    long = bodies.shown(b"[" * 1_000_000)
    assert long.is_cut
    assert len(long.text) <= bodies.SHOWN_CHARS_MAX
