"""Several relays, slow and broken receivers, late commits: everything goes out, and each good message once."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import connection, transaction
from pytest_django import Settings

from payments import destinations, models, outbox, relay
from tests import receiver as receivers
from tests.receiver import ACCEPTED, Receiver, Reply, Request

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as started:
        yield started


@pytest.fixture
def shop(settings: Settings, receiver: Receiver, close_connections: None) -> Settings:
    """Destinations `shop` and `other`, each at a path of its own."""
    settings.PAYMENTS_OUTBOX = {
        name: {"url": receiver.url(f"/{name}"), "secrets": (receivers.SECRET,)} for name in ("shop", "other")
    }
    settings.PAYMENTS_OUTBOX_ALLOW_HOSTS = ("127.0.0.1",)
    settings.PAYMENTS_OUTBOX_TIMEOUT_MS = 5000
    settings.PAYMENTS_OUTBOX_TRIES_MAX = 3
    settings.PAYMENTS_OUTBOX_BACKOFF_MS = 200
    settings.PAYMENTS_OUTBOX_BACKOFF_MAX_MS = 60_000
    return settings


def enqueue(*keys: str, destination: str = "shop") -> set[str]:
    """Enqueue messages of these keys in one transaction; return their ids."""
    with transaction.atomic():
        for key in keys:
            outbox.enqueue(topic="order.paid", data={}, key=key, destinations=[destination])
    return {f"{destination}:app:{key}" for key in keys}


class Stopped(Exception):
    """What ends a relay in a thread of the test's."""


class Relays:
    """Relays in threads, as processes of their own would run, until the test has seen enough."""

    def __init__(self, count: int) -> None:
        self._enough = threading.Event()
        self._pool = ThreadPoolExecutor(count)
        self._running = [self._pool.submit(self._run) for _ in range(count)]

    def _run(self) -> None:
        started = relay.Relay(destinations.configured())
        original = started._round

        def until_enough() -> int:
            if self._enough.is_set():
                raise Stopped
            return original()

        started._round = until_enough  # type: ignore[method-assign,assignment]
        try:
            started.run()
        except Stopped:
            return
        finally:
            connection.close()

    def __enter__(self) -> "Relays":
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for running in self._running:
            running.result(timeout=20)
        self._pool.shutdown()


def wait_until(condition: Callable[[], bool], *, within_s: float) -> float:
    """Return the seconds it took until the condition held; fail when it took longer."""
    began_at = time.monotonic()
    while not condition():
        assert time.monotonic() - began_at < within_s
        time.sleep(0.02)
    return time.monotonic() - began_at


def unsent(destination: str = "shop") -> int:
    return models.OutboxMessage.objects.filter(destination=destination, state="ready").count()


@pytest.mark.usefixtures("shop")
def test_relays_share_the_work(receiver: Receiver) -> None:
    """Four of them: each message is sent once."""
    ids = enqueue(*map(str, range(400)))

    with Relays(4):
        wait_until(lambda: unsent() == 0, within_s=30)

    assert receiver.ids() == dict.fromkeys(ids, 1)


@pytest.mark.usefixtures("shop")
def test_low_id_that_commits_late_is_sent(receiver: Receiver) -> None:
    """A transaction enqueues, stays open while a hundred later messages go out, and commits: its message goes out."""
    entered, may_commit = threading.Event(), threading.Event()

    def commit_late() -> None:
        with transaction.atomic():
            connection.cursor().execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            outbox.enqueue(topic="order.paid", data={}, key="late", destinations=["shop"])
            entered.set()
            may_commit.wait(30)
        connection.close()

    late = threading.Thread(target=commit_late)
    late.start()
    assert entered.wait(10)
    with Relays(2):
        later = enqueue(*map(str, range(100)))
        wait_until(lambda: len(receiver.ids()) == 100, within_s=20)
        assert set(receiver.ids()) == later

        may_commit.set()
        late.join(timeout=10)
        wait_until(lambda: len(receiver.ids()) == 101, within_s=5)

    lowest = models.OutboxMessage.objects.order_by("id").values_list("key", flat=True)[0]
    assert receiver.ids()[lowest] == receiver.ids()["shop:app:late"] == 1


def poisoned(receiver: Receiver, after_s: float) -> Callable[[Request], Reply]:
    """A receiver that is slow, and refuses what has `poison` in its id."""
    return lambda request: Reply(500 if "poison" in request.id else 204, after_s=after_s)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("receiver_s", "within_s"),
    [(0.3, 12.0), pytest.param(3.0, 60.0, marks=pytest.mark.soak)],
)
def test_poison_messages_delay_good_ones_little(receiver: Receiver, receiver_s: float, within_s: float) -> None:
    """200 that are refused and 10 good ones behind them at one slow receiver, two relays: good ones arrive once."""
    receiver.behave = poisoned(receiver, receiver_s)
    enqueue(*(f"poison-{number}" for number in range(200)))
    good = enqueue(*(f"good-{number}" for number in range(10)))

    with Relays(2):
        wait_until(lambda: good <= set(receiver.ids()), within_s=within_s)
        wait_until(lambda: not models.OutboxMessage.objects.filter(key__in=good, state="ready").exists(), within_s=10)

    assert {key: times for key, times in receiver.ids().items() if key in good} == dict.fromkeys(good, 1)


def test_slow_destination_delays_no_other(shop: Settings, receiver: Receiver) -> None:
    """One that never answers in time, with hundreds due before: the other's go out at once."""
    shop.PAYMENTS_OUTBOX_TIMEOUT_MS = 3000
    receiver.behave = lambda request: Reply(after_s=20) if request.path == "/shop" else ACCEPTED
    enqueue(*(f"slow-{number}" for number in range(300)))
    good = enqueue(*map(str, range(100)), destination="other")

    with Relays(1):
        seconds = wait_until(lambda: set(receiver.ids("/other")) == good, within_s=10)

    assert seconds < 3.0
    assert set(receiver.ids("/other").values()) == {1}


def test_unreachable_destination_is_left_alone(shop: Settings, receiver: Receiver) -> None:
    """Its messages are not tried one after the other while it is away, and go out when it is back."""
    shop.PAYMENTS_OUTBOX_BACKOFF_MS = 2000
    shop.PAYMENTS_OUTBOX_ALLOW_HOSTS = ()
    ids = enqueue(*map(str, range(100)))

    with Relays(1):
        wait_until(lambda: models.OutboxMessage.objects.filter(attempts=1).exists(), within_s=5)
        time.sleep(0.5)
    assert models.OutboxMessage.objects.filter(attempts=1).count() == relay.LANE_ROOM_MAX

    shop.PAYMENTS_OUTBOX_ALLOW_HOSTS = ("127.0.0.1",)
    with Relays(1):
        wait_until(lambda: unsent() == 0, within_s=10)
    assert receiver.ids() == dict.fromkeys(ids, 1)


@pytest.mark.usefixtures("shop")
def test_nothing_is_held_while_sending(receiver: Receiver) -> None:
    """No lock, no transaction, no connection in use: staff may look at the row and change it meanwhile."""
    is_called, may_answer = threading.Event(), threading.Event()

    def wait_for_leave(request: Request) -> Reply:
        is_called.set()
        may_answer.wait(10)
        return ACCEPTED

    receiver.behave = wait_for_leave
    enqueue("1")
    with Relays(1):
        assert is_called.wait(5)
        given = connection.settings_dict
        with psycopg.connect(
            host=given["HOST"],
            port=given["PORT"] or 5432,
            user=given["USER"],
            password=given["PASSWORD"] or None,
            dbname=given["NAME"],
            autocommit=True,
        ) as other:
            other.execute("SELECT FROM payments_outboxmessage FOR UPDATE NOWAIT")
            busy = other.execute(
                "SELECT state, query FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND (state LIKE 'idle in transaction%' OR wait_event_type = 'Lock')"
            ).fetchall()
        may_answer.set()
        wait_until(lambda: unsent() == 0, within_s=5)

    assert busy == []
