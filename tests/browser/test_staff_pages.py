"""The staff's ways through the pages, in a real browser: no error in its console, nothing that the policy stops.

Screenshots are kept in DATA_DIR/screenshots.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from django.conf import settings as project
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from payments import conf
from payments.models import Account, Attempt, Endpoint, Event, Finding, Payment, StaffAction, Verification
from tests import staff
from tests.browser import chromium
from tests.deliveries import SECRETS
from tests.unit.gateways import signing

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PASSWORD: Final = "long-enough-17"
PICTURES: Final = Path(project.DATA_DIR) / "screenshots"
CUSTOMER: Final = {"email": "budi@example.com", "name": "Budi Santoso"}

Shoot = Callable[[str], None]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    executable = chromium.find()
    if executable is None:
        if os.environ.get("CI"):
            pytest.fail("CI is set, and there is no Chromium: install Debian's `chromium`, or name one in CHROMIUM")
        pytest.skip("there is no Chromium on this machine: install Debian's `chromium`, or name one in CHROMIUM")
    with chromium.Browser(executable=executable, profile=tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(browser: chromium.Browser, live_server: LiveServer, settings: Settings, client: Client) -> chromium.Browser:
    """A browser at the login page of a service on which things have happened."""
    settings.SECURE_SSL_REDIRECT = settings.SESSION_COOKIE_SECURE = settings.CSRF_COOKIE_SECURE = False
    settings.PAYMENTS_SECRETS = {"DEMO": (SECRETS["DEMO"],)}
    settings.PAYMENTS_OUTBOX = {"shop": {"url": "https://shop.example.com/", "secrets": ()}}
    _tell(client)
    user = staff.member("operator", *staff.ACTS)
    user.set_password(PASSWORD)
    user.save()
    browser.problems.clear()
    browser.look(width=1280, dark=False)
    browser.clear_cookies()
    browser.open(f"{live_server.url}/admin/")
    return browser


@pytest.fixture
def logged_in(page: chromium.Browser) -> chromium.Browser:
    page.fill({"#id_username": "operator", "#id_password": PASSWORD})
    page.click("[type=submit]")
    return page


@pytest.fixture(autouse=True)
def _no_problems(browser: chromium.Browser) -> Iterator[None]:
    yield
    assert browser.problems == []


@pytest.fixture
def shoot(browser: chromium.Browser) -> Shoot:
    """Take a picture wide and narrow, light and dark; nothing may stick out of a narrow page."""
    PICTURES.mkdir(parents=True, exist_ok=True)

    def take(name: str) -> None:
        for width, size in ((1280, "wide"), (390, "phone")):
            for dark in (False, True):
                browser.look(width=width, dark=dark)
                browser.run("new Promise(done => setTimeout(done, 400))")  # colours fade
                browser.screenshot(PICTURES / f"{name}-{size}-{'dark' if dark else 'light'}.png")
            sticks_out = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert sticks_out <= 0, (name, size)
        browser.look(width=1280, dark=False)

    return take


def _tell(client: Client) -> None:
    """A capture, another content under its id, a refund, money without an owner, an unusable event, hostile texts."""
    Endpoint.objects.create(slug="demo", gateway="standard_webhooks")
    for code in ("merchant-1", "merchant-2"):
        Account.objects.create(code=code, currency="IDR", kind="liability")
    Verification.objects.create(is_full=True, horizon=0, checked={}, broken=[], started_at=datetime.now(UTC))
    conf.forget_copy()
    capture: dict[str, Any] = {
        "payment": "pay_1",
        "reference": "order-7",
        "account": "merchant-1",
        "currency": "IDR",
        "amount": 1_000_000,
        "customer": CUSTOMER,
    }
    for event_id, event_type, data in (
        ("evt_1", "payment.captured", capture),
        ("evt_1", "payment.captured", {**capture, "amount": 5, "account": "merchant-2"}),
        ("evt_2", "refund.succeeded", {"payment": "pay_1", "refund": "re_1", "amount": 300_000, "currency": "IDR"}),
        ("evt_3", "payment.captured", {"payment": "pay_2", "amount": 70_000, "currency": "IDR"}),
        ("evt_4", "payment.captured", {"payment": "pay_3", "amount": "100", "currency": "IDR"}),
        ("evt_5", "payment.captured", {**capture, "payment": staff.HOSTILE, "reference": staff.HOSTILE, "amount": 1}),
    ):
        body = json.dumps({"type": event_type, "data": data}).encode()
        signed = signing.standard_webhooks(body, SECRETS["DEMO"], at=datetime.now(UTC), event_id=event_id)
        client.post("/webhooks/demo/", signed.body, "application/json", headers=signed.headers)
    endpoint = Endpoint.objects.get()
    for status, replayed in ((200, False), (200, True), (422, False), (503, False)):
        row = {"endpoint": endpoint, "event_id": "evt_1", "status": status, "replayed": replayed}
        Attempt.objects.create(**row, duration_ms=8.5, received_at=datetime.now(UTC))


def test_from_the_dashboard_to_a_closed_conflict(logged_in: chromium.Browser, shoot: Shoot) -> None:
    """What is open, which fields differ, why it is closed."""
    shoot("dashboard")
    logged_in.follow("conflict: demo:evt_1")
    shoot("finding")
    logged_in.follow("evt_1")
    text = logged_in.text()
    assert "This event id was used again for other content" in text
    assert "data.amount" in text
    shoot("event")

    logged_in.follow("Close finding")
    shoot("act")
    logged_in.fill({"#id_reason": "the gateway says that the first one is true"})
    logged_in.click("form.act button")

    assert "Findings closed: 1." in logged_in.text()
    assert Finding.objects.get(kind="conflict").closed_by == "operator"


def test_from_an_id_to_a_payment_an_account_and_back(logged_in: chromium.Browser, shoot: Shoot) -> None:
    """The search box, the payment's life, the account's balance and its curve."""
    logged_in.fill({"#find input": "order-7"})
    logged_in.click("#find button")
    assert "Payment pay_1" in logged_in.text("h1")
    assert "RefundSucceeded" in logged_in.text()
    shoot("payment")

    logged_in.follow("merchant-1")
    assert "debits IDR 3.000,00" in logged_in.text()
    assert logged_in.run("document.querySelector('.plot .curve').getBBox().width") > 0
    shoot("account")

    logged_in.fill({"#find input": "nothing"})
    logged_in.click("#find button")
    assert "What can be looked for" in logged_in.text()
    shoot("not-found")


def test_money_in_suspense_gets_an_owner(logged_in: chromium.Browser, shoot: Shoot) -> None:
    """From the figure to the list, from the list to the page that asks why; an unknown account is told so."""
    logged_in.click(".tile[href*='owner=waiting']")
    shoot("suspense")
    logged_in.run("document.querySelector('.action-select').click()")
    logged_in.fill({"[name=action]": "allocate"})
    logged_in.click("[name=index]")
    logged_in.fill({"#id_account": "nobody", "#id_reason": "order 9 names them"})
    logged_in.click("form.act button")
    assert "No payee has an account nobody in IDR" in logged_in.text()
    shoot("allocate")
    logged_in.fill({"#id_account": "merchant-2"})
    logged_in.click("form.act button")

    assert "Payments that now belong to merchant-2: 1." in logged_in.text()
    assert Account.objects.get(code="merchant-2").balance == 70_000


def test_personal_data_is_shown_once_and_recorded(logged_in: chromium.Browser, live_server: LiveServer) -> None:
    """Hidden, shown with a reason, hidden again."""
    event = Event.objects.get(event_id="evt_1", role="first")
    logged_in.open(f"{live_server.url}{staff.page(event)}")
    assert CUSTOMER["email"] not in logged_in.text()

    logged_in.follow("Show personal data")
    logged_in.fill({"#id_reason": "the customer called"})
    logged_in.click("form.act button")

    assert CUSTOMER["email"] in logged_in.text()
    assert StaffAction.objects.get().action == "reveal"


def test_unusable_event_is_retried(logged_in: chromium.Browser, shoot: Shoot) -> None:
    """Still unusable: said before and after."""
    logged_in.follow("quarantined: demo:evt_4")
    logged_in.follow("Retry event")
    assert "still unusable: 1" in logged_in.text()
    logged_in.fill({"#id_reason": "trying"})
    logged_in.click("form.act button")

    assert "still unusable: 1" in logged_in.text()
    shoot("retried")


def test_every_page_stands_in_indonesian_too(
    logged_in: chromium.Browser, live_server: LiveServer, shoot: Shoot
) -> None:
    """Language and zone are chosen on a page; lists and pages of everything load without an error."""
    logged_in.open(f"{live_server.url}/admin/view/")
    logged_in.fill({"#id_language": "id", "#id_zone": "Asia/Jakarta"})
    logged_in.click("form.act button")
    assert "Temuan terbuka" in logged_in.text()
    shoot("dasbor")

    for model in staff.all_models():
        newest = model.objects.order_by("pk").last()
        for path in (f"/admin/payments/{model._meta.model_name}/", *([staff.page(newest)] if newest else [])):
            logged_in.open(f"{live_server.url}{path}")
    hostile = Payment.objects.get(reference=staff.HOSTILE)
    logged_in.open(f"{live_server.url}{staff.page(hostile)}")
    assert staff.HOSTILE in logged_in.text()
    assert "WIB" in logged_in.text()


def test_users_are_managed_without_an_exception_from_the_policy(
    logged_in: chromium.Browser, live_server: LiveServer
) -> None:
    """Django's own pages with the most script in them."""
    User.objects.filter(username="operator").update(is_superuser=True)
    user = User.objects.get()
    for path in ("user/", "user/add/", f"user/{user.pk}/change/", "group/", "group/add/"):
        logged_in.open(f"{live_server.url}/admin/auth/{path}")
    logged_in.open(f"{live_server.url}/admin/password_change/")


def test_what_the_policy_stops_would_be_seen(logged_in: chromium.Browser) -> None:
    """These tests can fail: a script inside the page is stopped, and noted."""
    script = "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
    logged_in.run(script)
    logged_in.run("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">x</p>')")

    assert logged_in.run("window.ran") is None
    assert len([problem for problem in logged_in.problems if "Content Security Policy" in problem]) == 2
    logged_in.problems.clear()


def test_login_says_what_is_wrong(page: chromium.Browser, shoot: Shoot) -> None:
    """And nothing of who exists."""
    shoot("login")
    page.fill({"#id_username": "operator", "#id_password": "wrong"})
    page.click("[type=submit]")

    assert "Please enter the correct username and password" in page.text()
    with suppress(chromium.PageFailed):
        assert page.text("#find") == ""
