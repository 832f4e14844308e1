"""`prune_outbox`: the bodies of messages sent long ago are forgotten; what is owed, and every key, stays."""

from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models import F
from django.test import Client
from pytest_django import Settings

from payments import models, outbox, retention
from tests import receiver as receivers
from tests.conftest import assert_sound
from tests.deliveries import Deliver
from tests.integration.statements import run, run_apart
from tests.staff import member, page, text

pytestmark = pytest.mark.django_db(transaction=True)

STATES = models.OutboxMessage.State


@pytest.fixture(autouse=True)
def shop(settings: Settings) -> None:
    settings.PAYMENTS_OUTBOX = {"shop": {"url": "http://192.0.2.1/", "secrets": (receivers.SECRET,)}}


def enqueue(*keys: str, state: str = STATES.SENT, days_ago: int = 31) -> int:
    """Enqueue messages, and let them be in this state since so many days; return how many are new."""
    with transaction.atomic():
        new = sum(outbox.enqueue(topic="order.paid", data={"order": key}, key=key) for key in keys)
    at = outbox.database_now() - timedelta(days=days_ago)
    rows = models.OutboxMessage.objects.filter(key__in=[f"shop:app:{key}" for key in keys])
    rows.update(state=state, created_at=at, due_at=at, sent_at=at if state == STATES.SENT else None)
    return new


def with_body() -> set[str]:
    return {
        key.rpartition(":")[2] for key in models.OutboxMessage.objects.exclude(body="").values_list("key", flat=True)
    }


def test_old_sent_bodies_are_forgotten_and_all_else_stays() -> None:
    """What is owed keeps its body however old it is, and so does what was given up: staff may send it again."""
    enqueue("old")
    enqueue("young", days_ago=29)
    enqueue("ready", state=STATES.READY)
    enqueue("dead", state=STATES.DEAD)
    before = list(models.OutboxMessage.objects.order_by("id").values("id", "key", "state", "sent_at", "transfer"))

    ran = run("prune_outbox", "--older-than", 30)

    assert (ran.status, ran.data["pruned"], ran.data["kept"]) == (0, 1, 2)
    assert with_body() == {"young", "ready", "dead"}
    after = list(models.OutboxMessage.objects.order_by("id").values("id", "key", "state", "sent_at", "transfer"))
    assert after == before
    assert run("prune_outbox", "--older-than", 0).data["pruned"] == 1
    assert with_body() == {"ready", "dead"}


def test_pruned_key_is_not_sent_again() -> None:
    """A handler that is run again, or whoever else enqueues a key once more: it is the same message, and was sent."""
    enqueue("order-1")
    run("prune_outbox", "--older-than", 0)

    with transaction.atomic():
        new = outbox.enqueue(topic="order.paid", data={"order": "order-1"}, key="order-1")

    assert new == 0
    assert models.OutboxMessage.objects.get().state == STATES.SENT


def test_redelivery_enqueues_nothing_after_the_prune(deliver: Deliver) -> None:
    """Neither under the event's id, nor under another, nor by `retry`: the transfer is there, and so is its message."""
    event = {"payment": "pay_1", "account": "merchant-1", "amount": 1}
    deliver("payment.captured", event_id="evt_1", **event)
    models.OutboxMessage.objects.update(state=STATES.SENT, sent_at=F("created_at"))
    run("prune_outbox", "--older-than", 0)

    deliver("payment.captured", event_id="evt_1", **event)
    deliver("payment.captured", event_id="evt_2", **event)
    run("retry", "--event", "evt_1")

    message = models.OutboxMessage.objects.get()
    assert (message.state, message.body) == (STATES.SENT, "")
    assert_sound()


def test_dry_run_only_counts() -> None:
    enqueue("old")
    enqueue("ready", state=STATES.READY)

    ran = run("prune_outbox", "--older-than", 30, "--dry-run")

    assert (ran.status, ran.data["pruned"], ran.data["kept"], ran.data["dry_run"]) == (0, 1, 1, True)
    assert with_body() == {"old", "ready"}


@pytest.mark.parametrize("days", ["-1", "x", "1.5", ""])
def test_number_of_days_must_be_one(days: str) -> None:
    assert run_apart("prune_outbox", "--older-than", days).status == 2


@pytest.mark.crash
def test_killed_between_chunks_and_run_again_all_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is whole or not there; what stays with its body is passed by."""
    monkeypatch.setattr(retention, "CHUNK", 2)
    enqueue("1", "2", "3")
    enqueue("ready", state=STATES.READY)
    enqueue("4")

    killed = run_apart("prune_outbox", "--older-than", 30, failpoint="prune_chunk")
    enqueue("5")

    assert killed.status == -9, killed.data
    assert with_body() == {"ready", "5"}
    enqueue("6", "7")
    assert run("prune_outbox", "--older-than", 30).data["pruned"] == 3
    assert with_body() == {"ready"}


def test_page_of_a_pruned_message_says_so(small_demo: None, client: Client) -> None:
    enqueue("old")
    run("prune_outbox", "--older-than", 30)
    client.force_login(member("viewer"))

    assert "pruned after its retention time" in text(client, page(models.OutboxMessage.objects.get()))
