"""Relays that die of SIGKILL at any moment: everything arrives, with the same id each time, and none is forgotten."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from django.db import connection, transaction
from pytest_django import Settings

from payments import inspection, models, outbox, runtime_folder
from tests import receiver as receivers
from tests.crash import figures
from tests.databases import database_url
from tests.receiver import ACCEPTED, Receiver, Reply, Request

pytestmark = [pytest.mark.crash, pytest.mark.django_db(transaction=True)]

CHECKOUT: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = 1.0
GOOD: Final = ("shop", "office")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as started:
        yield started


@dataclass
class Relays:
    """`manage.py relay_outbox` as often as wanted, on the tests' database."""

    receiver: Receiver
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        names = ("shop", "office", "poison", "nobody")
        urls = {name: self.receiver.url(f"/{name}") for name in names} | {"nobody": "http://127.0.0.1:9/"}
        return (
            os.environ
            | {"DJANGO_SETTINGS_MODULE": "project.settings", "DATABASE_URL": database_url(), "DEBUG": "1"}
            | {"DATA_DIR": str(self.folder), "PYTHONWARNINGS": "ignore"}
            | {"PAYMENTS_OUTBOX_DESTINATIONS": ",".join(names), "PAYMENTS_OUTBOX_ALLOW_HOSTS": "127.0.0.1"}
            | {f"PAYMENTS_OUTBOX_URL_{name.upper()}": url for name, url in urls.items()}
            | {f"PAYMENTS_OUTBOX_SECRETS_{name.upper()}": receivers.SECRET for name in names}
            | {"PAYMENTS_OUTBOX_TIMEOUT_MS": str(int(TIMEOUT_S * 1000)), "PAYMENTS_OUTBOX_BACKOFF_MS": "100"}
            | {"PAYMENTS_OUTBOX_BACKOFF_MAX_MS": "2000", "PAYMENTS_OUTBOX_TRIES_MAX": "12"}
            | self.settings
        )

    def start(self, *options: str, **settings: str) -> subprocess.Popen[bytes]:
        started = subprocess.Popen(
            [sys.executable, "manage.py", "relay_outbox", *options],
            cwd=CHECKOUT,
            env=self.environment() | settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if "--json" in options else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.running.append(started)
        return started

    def kill(self, one: subprocess.Popen[bytes]) -> None:
        one.kill()
        one.wait()
        self.running.remove(one)

    def kill_all(self) -> None:
        for one in list(self.running):
            self.kill(one)


@pytest.fixture
def relays(receiver: Receiver, tmp_path: Path) -> Iterator[Relays]:
    started = Relays(receiver, tmp_path)
    yield started
    started.kill_all()
    shutil.rmtree(runtime_folder.locate(tmp_path), ignore_errors=True)


@pytest.fixture
def known(settings: object) -> None:
    """In this process too, or nothing could be enqueued."""
    names = (*GOOD, "poison", "nobody")
    settings.PAYMENTS_OUTBOX = {name: {"url": "http://192.0.2.1/", "secrets": ()} for name in names}  # type: ignore[attr-defined]


def enqueue(destination: str, *keys: str) -> set[str]:
    with transaction.atomic():
        for key in keys:
            outbox.enqueue(topic="order.paid", data={"key": key}, key=key, destinations=[destination])
    return {f"{destination}:app:{key}" for key in keys}


def wait_until(what: str, condition: Callable[[], bool], *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.05)


def states(destination: str) -> dict[str, int]:
    rows = models.OutboxMessage.objects.filter(destination=destination)
    return {state: rows.filter(state=state).count() for state in ("ready", "sent", "dead")}


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("failpoint", "received"),
    [("relay_taken", 1), ("relay_sent", 2), ("relay_recorded", 1)],
)
def test_relay_that_dies_at_a_step_is_followed_by_another(
    relays: Relays, receiver: Receiver, failpoint: str, received: int
) -> None:
    """Taken and not sent; sent and not recorded; recorded. The id is the same, also the second time."""
    (message,) = enqueue("shop", "1")

    dying = relays.start("--once", PAYMENTS_FAILPOINT=failpoint)
    assert dying.wait(timeout=30) == -signal.SIGKILL
    after_death = states("shop")
    follower = relays.start("--once", "--json")
    said = json.loads(follower.communicate(timeout=30)[0])

    if failpoint == "relay_recorded":
        assert after_death["sent"] == 1
    else:
        assert said["sent"] == 0  # it has its lease still
        assert models.OutboxMessage.objects.get().attempts == 0  # a death is no failure
        models.OutboxMessage.objects.update(due_at=outbox.database_now())  # the lease ends
        assert send_once(relays) == 1
    assert states("shop") == {"ready": 0, "sent": 1, "dead": 0}
    assert receiver.ids() == {message: received}


def send_once(relays: Relays) -> int:
    said = relays.start("--once", "--json").communicate(timeout=30)[0]
    return int(json.loads(said)["sent"])


class Moody:
    """A receiver that fails 20 %, accepts and then doesn't answer in time 10 %, and has a path that always refuses."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.dice = random.Random(7)
        self.accepted: set[str] = set()
        self.moods = dict.fromkeys(("refused", "late", "accepted"), 0)

    def __call__(self, request: Request) -> Reply:
        time.sleep(self.dice.uniform(0, 0.1))  # so that there is something to be killed in
        fate = self.dice.random()
        if request.path == "/poison" or fate < 0.2:
            self.moods["refused"] += 1
            return Reply(500)
        self.accepted.add(request.id)
        if fate < 0.3:
            self.moods["late"] += 1
            return Reply(after_s=TIMEOUT_S + 0.5)
        self.moods["accepted"] += 1
        return ACCEPTED


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("kills", "messages", "workers"),
    [(20, 60, 3), pytest.param(200, 600, 4, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])],
)
def test_everything_arrives_however_often_relays_are_killed(
    relays: Relays, receiver: Receiver, kills: int, messages: int, workers: int
) -> None:
    """The set of ids received equals the set enqueued; nothing in good destinations waits a minute."""
    moody = receiver.behave = Moody(receiver)
    dice = random.Random(11)
    expected: set[str] = set()
    enqueue("poison", *map(str, range(20)))
    enqueue("nobody", *map(str, range(20)))
    hit = 0
    for kill in range(kills):
        share = range(kill * messages // kills, (kill + 1) * messages // kills)
        for name in GOOD:
            expected |= enqueue(name, *map(str, share))
        while len(relays.running) < workers:
            relays.start()
        seen = len(receiver.requests)
        # Some are killed while they start, most while they send.
        with contextlib.suppress(AssertionError):
            wait_until("something is sent", lambda seen=seen: len(receiver.requests) > seen, within_s=3)  # type: ignore[misc]
        time.sleep(dice.uniform(0, 0.15))
        hit += kill_one(relays, dice)
    while len(relays.running) < 2:
        relays.start()
    wait_until("all good ones are sent", lambda: all(states(name)["ready"] == 0 for name in GOOD), within_s=60)
    relays.kill_all()

    assert {key for key in receiver.ids() if not key.startswith("poison")} == expected == moody.accepted
    assert [states(name) for name in GOOD] == [{"ready": 0, "sent": messages, "dead": 0}] * 2
    assert states("poison")["sent"] == states("nobody")["sent"] == 0
    waited_s = longest_wait_s()
    assert waited_s < 60
    repeated = sum(times - 1 for key, times in receiver.ids().items() if not key.startswith("poison"))
    assert hit >= kills / 5
    assert moody.moods["late"]
    figures.tell(f"relay, {kills} kills: messages enqueued and received", len(expected))
    figures.tell(f"relay, {kills} kills: that found messages taken and not yet recorded", hit)
    figures.tell(f"relay, {kills} kills: received again under the same id", repeated)
    figures.tell(f"relay, {kills} kills: longest wait of a message", waited_s)


def kill_one(relays: Relays, dice: random.Random) -> bool:
    """Kill any relay; say whether it left a message that it had taken."""
    leased = models.OutboxMessage.objects.filter(state="ready", destination__in=GOOD, last_error="", attempts=0)
    before = leased.filter(due_at__gt=outbox.database_now()).count()
    relays.kill(dice.choice(relays.running))
    return before > 0


def longest_wait_s() -> float:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT max(extract(epoch FROM sent_at - created_at)) FROM payments_outboxmessage"
            " WHERE destination = ANY(%s)",
            [list(GOOD)],
        )
        return float(cursor.fetchone()[0])


@pytest.mark.usefixtures("known")
def test_a_relay_can_be_asked_what_it_holds(
    relays: Relays, receiver: Receiver, settings: Settings, tmp_path: Path
) -> None:
    """A try whose receiver is slow holds a permit, as `manage.py limits` shows."""
    settings.RUNTIME_DIR = runtime_folder.locate(tmp_path)
    slow = receiver.behave = SlowOnce()
    enqueue("shop", "1")

    relay = relays.start(PAYMENTS_OUTBOX_TIMEOUT_MS="20000")
    assert slow.asked.wait(30)
    (told,) = inspection.ask_all().processes
    slow.go_on.set()

    assert (told["pid"], told["role"]) == (relay.pid, "relay")
    assert [limit["in_use"] for limit in told["limits"] if limit["limit"] == "relay"] == [1]
    assert [limit["held_s_max"] for limit in told["limits"] if limit["limit"] == "relay"] == [20.5]


class SlowOnce:
    """A receiver that takes a message, and answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Reply:
        self.asked.set()
        assert self.go_on.wait(20)
        return ACCEPTED
