"""One search box, any id."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from payments.models import Account, Correction, Event, OutboxMessage, Payment, Transfer
from tests import staff

pytestmark = pytest.mark.django_db

Deliver = Callable[..., Any]


@pytest.fixture
def told(deliver: Deliver) -> None:
    """A capture with an order number, a refund that fails, and a payment of which nothing is known but a reference."""
    deliver("evt_1", payment="pay_1", reference="order-7", account="merchant-1", amount=10_000, currency="IDR")
    deliver("evt_2", "refund.succeeded", payment="pay_1", refund="re_1", amount=10, currency="IDR")
    deliver("evt_3", "refund.failed", payment="pay_2", refund="re_2", amount=10, currency="IDR")


def _found(client: Client, term: str) -> Any:
    with CaptureQueriesContext(connection) as queries:
        answer = client.get("/admin/find/", {"q": term})
    assert len(queries) <= staff.QUERIES_MAX
    return answer


def _page_of(name: str) -> str:
    wanted: dict[str, Any] = {
        "event": lambda: Event.objects.get(event_id="evt_1"),
        "payment": lambda: Payment.objects.get(reference="pay_1"),
        "capture": lambda: Transfer.objects.get(key="demo:pay_1:captured"),
        "refund": lambda: Transfer.objects.get(key="demo:re_1:refunded"),
        "correction": Correction.objects.get,
        "account": lambda: Account.objects.get(code="merchant-1"),
        "message": lambda: OutboxMessage.objects.get(transfer__key="demo:pay_1:captured"),
    }
    return staff.page(wanted[name]())


@pytest.mark.parametrize(
    ("term", "name"),
    [
        ("evt_1", "event"),
        ("  evt_1 ", "event"),
        ("demo:evt_1", "event"),
        ("pay_1", "payment"),
        ("order-7", "payment"),
        ("demo:pay_1:captured", "capture"),
        ("re_1", "refund"),
        ("re_2", "correction"),
        ("merchant-1", "account"),
        ("message", "message"),
    ],
)
def test_any_id_goes_to_the_thing_itself(told: None, viewer: Client, term: str, name: str) -> None:
    """Event, gateway's and merchant's reference, business key, account, refund, message; a pasted space is forgiven."""
    if term == "message":
        term = OutboxMessage.objects.get(transfer__key="demo:pay_1:captured").key

    answer = _found(viewer, term)

    assert answer.status_code == 302
    assert answer["Location"] == _page_of(name)


def test_beginning_of_ids_gives_a_short_list(told: None, viewer: Client) -> None:
    """Each of them a link."""
    answer = _found(viewer, "evt_")

    assert answer.status_code == 200
    for event_id in ("evt_1", "evt_2", "evt_3"):
        assert f">{event_id}</a>" in answer.content.decode()


@pytest.mark.parametrize("term", ["", " ", "nothing", "evt%", "\0", "x" * 5000, "a:b:c", "💰", f"{staff.HOSTILE}!"])
def test_unknown_ids_are_told_what_can_be_looked_for(told: None, viewer: Client, term: str) -> None:
    """Never a crash, and text stays text."""
    answer = _found(viewer, term)

    assert answer.status_code == 200
    assert b"What can be looked for" in answer.content
    assert b"<img src=x" not in answer.content


def test_only_what_may_be_seen_is_found(told: None, client: Client) -> None:
    """A member of staff without permissions learns nothing from the box."""
    user = staff.member("newcomer")
    user.user_permissions.clear()
    client.force_login(user)

    assert b"What can be looked for" in _found(client, "evt_1").content
