"""Each gateway's story, as tests/payloads/<gateway>/story.toml tells it: in any order it ends in the balances there."""

import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from django.test import Client

from payments import conf, intake, models
from payments.gateways import base
from payments.replies import Answer
from tests import books, deliveries
from tests.unit.gateways import cases, signing

pytestmark = pytest.mark.django_db

SLUGS: Final = {
    **{name: name for name in ("adyen", "midtrans", "razorpay", "stripe", "xendit")},
    "standard_webhooks": "demo",
}
ORDERS: Final = ("told", "reversed", "doubled", *(f"shuffled {seed}" for seed in range(4)))


def in_order(events: Sequence[str], order: str) -> list[str]:
    """Return the events' names in another order, some of the orders with every event twice."""
    if order == "reversed":
        return list(reversed(events))
    if order == "doubled":
        return [name for name in events for _ in range(2)]
    if order.startswith("shuffled"):
        return random.Random(order).sample([*events, *events[::2]], len(events) + len(events[::2]))
    return list(events)


def signed(gateway: str, name: str) -> signing.Signed:
    """Return an event of the story as its gateway sends it now."""
    body = cases.payload(gateway, name)
    secret = deliveries.SECRETS[SLUGS[gateway].upper()]
    return signing.SIGN[gateway](body, secret, at=datetime.now(UTC), event_id=f"evt_{name}")


def post(client: Client, gateway: str, name: str) -> deliveries.Answer:
    delivery = signed(gateway, name)
    url = f"/webhooks/{SLUGS[gateway]}/"
    return client.post(url, delivery.body, "application/json", headers=delivery.headers)


def job(gateway: str, name: str) -> intake.Job:
    delivery, endpoint = signed(gateway, name), conf.known_endpoint(SLUGS[gateway])
    assert endpoint is not None
    return intake.receive(endpoint, base.Delivery(delivery.headers, delivery.body, datetime.now(UTC)))


def assert_told_end(story: dict[str, Any]) -> None:
    """The payment and the balances are those that stand beside the story, and nothing needs a person's eye."""
    payment, wanted = models.Payment.objects.get(), story["payment"]
    assert {name: getattr(payment, name) for name in wanted} == wanted
    told = {(code, currency): amount for currency, of in story["balances"].items() for code, amount in of.items()}
    held = books.read()
    assert held.balances == {key: amount for key, amount in told.items() if amount}
    assert held.findings == set()  # what was found on the way has healed


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("gateway", SLUGS)
def test_story_ends_in_its_balances(small_demo: None, client: Client, gateway: str, order: str) -> None:
    """Posted one by one, in any order, with duplicates: each is acknowledged, a second time with the same bytes."""
    story = cases.story(gateway)
    with books.undone():
        for name in story["events"]:
            post(client, gateway, name)
        expected = books.read()

    answers: dict[str, bytes] = {}
    for name in in_order(story["events"], order):
        response = post(client, gateway, name)
        assert response.status_code == 200, name
        assert b"quarantined" not in response.content, name
        assert answers.setdefault(name, response.content) == response.content

    assert_told_end(story)
    assert books.read() == expected


@pytest.mark.parametrize("size", [2, 5, 100])
@pytest.mark.parametrize("gateway", SLUGS)
def test_story_settled_in_batches(small_demo: None, gateway: str, size: int) -> None:
    """Several events in one transaction, each of them twice, shuffled: the same end."""
    story = cases.story(gateway)
    names = random.Random(size).sample(story["events"] * 2, len(story["events"]) * 2)

    for start in range(0, len(names), size):
        jobs = [job(gateway, name) for name in names[start : start + size]]
        answers = intake.settle(jobs, time.monotonic() + 5)
        assert [type(answer) for answer in answers] == [Answer] * len(jobs)

    assert_told_end(story)
