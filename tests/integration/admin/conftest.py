"""Deliveries to look at, and people who look."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from payments import conf
from payments.models import Account, Endpoint, Event, Verification
from tests import staff
from tests.deliveries import SECRETS
from tests.unit.gateways import signing

Deliver = Callable[..., Any]


@pytest.fixture(autouse=True)
def _without_tls(settings: Settings) -> None:
    settings.SECURE_SSL_REDIRECT = False


@pytest.fixture
def deliver(client: Client, settings: Settings) -> Deliver:
    """Post one event of the demo endpoint, signed; return the response."""
    settings.PAYMENTS_SECRETS = {"DEMO": (SECRETS["DEMO"],)}
    settings.PAYMENTS_OUTBOX = {"shop": {"url": "https://shop.example.com/", "secrets": ()}}
    Endpoint.objects.create(slug="demo", gateway="standard_webhooks")
    for code in ("merchant-1", "merchant-2", staff.HOSTILE):
        Account.objects.create(code=code, currency="IDR", kind="liability")
    # What a verification of the ledger leaves; without one no money is served.
    Verification.objects.create(is_full=True, horizon=0, checked={}, broken=[], started_at=datetime.now(UTC))
    conf.forget_copy()

    def post(event_id: str, event_type: str = "payment.captured", **data: Any) -> Any:
        body = json.dumps({"type": event_type, "data": data}).encode()
        signed = signing.standard_webhooks(body, SECRETS["DEMO"], at=datetime.now(UTC), event_id=event_id)
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
def unusable(deliver: Deliver) -> Event:
    """A capture whose amount is a text: quarantined."""
    deliver("evt_bad", payment="pay_bad", amount="100", currency="IDR")
    return Event.objects.get(event_id="evt_bad")


@pytest.fixture
def viewer(client: Client) -> Client:
    """A member of staff who may see all payments and do nothing."""
    client.force_login(staff.member("viewer"))
    return client


@pytest.fixture
def operator(client: Client) -> Client:
    """A member of staff who may do all that there is to do."""
    client.force_login(staff.member("operator", *staff.ACTS))
    return client
