"""`make run` with somebody to tell: a relay runs beside the server, however often it dies, and never without it."""

import signal
from collections.abc import Iterator
from typing import Final

import pytest

from tests import receiver as receivers
from tests.crash import gateway, processes
from tests.crash.gateway import Gateway
from tests.crash.servers import App
from tests.receiver import Receiver

pytestmark = pytest.mark.crash

WITHIN_S: Final = 20.0  # on a busy machine; a relay starts in a second or two


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as started:
        yield started


def start(app: App, url: str) -> None:
    app.start(
        PAYMENTS_OUTBOX_DESTINATIONS="shop",
        PAYMENTS_OUTBOX_URL_SHOP=url,
        PAYMENTS_OUTBOX_SECRETS_SHOP=receivers.SECRET,
        PAYMENTS_OUTBOX_ALLOW_HOSTS="127.0.0.1",
    )


def keeper_and_relay(app: App, *, other_than: int = 0) -> tuple[int, int]:
    """Return their process ids, as soon as both are there. Of the master's children only the keeper has a child."""

    def look() -> list[tuple[int, int]]:
        pairs = [(child, relay) for child in app.list_workers() for relay in processes.list_children(child)]
        return [pair for pair in pairs if pair[1] != other_than]

    (pair,) = processes.wait_until("a relay runs", look, within_s=WITHIN_S, explain=app.read_log)
    return pair


def deliver(app: App, receiver: Receiver) -> None:
    """Deliver a capture; return when the receiver was told."""
    before = len(receiver.requests)
    answer = Gateway(app).deliver(gateway.capture(amount=100))
    assert answer is not None
    assert answer.status == 200
    processes.wait_until("the receiver is told", lambda: len(receiver.requests) > before, within_s=WITHIN_S)


def test_relay_that_dies_is_followed_by_another(app: App, receiver: Receiver) -> None:
    """By a SIGKILL as by an error; the server takes no notice."""
    start(app, receiver.url())
    deliver(app, receiver)
    keeper, relay = keeper_and_relay(app)

    processes.send(signal.SIGKILL, [relay])

    assert keeper_and_relay(app, other_than=relay)[0] == keeper
    deliver(app, receiver)
    assert "the relay ended (-9)" in app.read_log()


@pytest.mark.parametrize("killed", ["server", "keeper"])
def test_no_relay_is_left_behind(app: App, receiver: Receiver, killed: str) -> None:
    """Whichever of them is killed alone: a relay of an older configuration must not go on beside the next one."""
    start(app, receiver.url())
    keeper, relay = keeper_and_relay(app)

    if killed == "server":
        app.kill_master()
    else:
        processes.send(signal.SIGKILL, [keeper])

    for pid in (keeper, relay):
        processes.wait_until("it is gone", lambda pid=pid: processes.is_gone(pid), within_s=WITHIN_S)  # type: ignore[misc]


def test_without_destinations_there_is_no_relay(app: App) -> None:
    app.start()

    assert [processes.list_children(child) for child in app.list_workers()] == [[], []]


def test_destination_that_cannot_be_used_stops_the_start(app: App) -> None:
    """By name, and before anything is served."""
    with pytest.raises(AssertionError, match="PAYMENTS_OUTBOX_URL_SHOP must be"):
        start(app, "ftp://shop.example.com/")
