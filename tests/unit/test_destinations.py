"""Which addresses may be called, and that the address that was checked is the one that is called."""

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from payments import addresses, destinations, relay

PRIVATE = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",  # a cloud's metadata
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",  # another's
    "169.254.169.254",  # most clouds' metadata
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",  # another's
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",  # IPv4-compatible
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",  # NAT64 of 127.0.0.1
    "64:ff9b::a9fe:a9fe",  # NAT64 of 169.254.169.254
    "64:ff9b:1::1",
    "100::1",
    "2001::1",  # Teredo
    "2001:db8::1",
    "2002:7f00:1::",  # 6to4 of 127.0.0.1
    "2002:a9fe:a9fe::1",
    "2002:0a00:1::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",  # a cloud's metadata
    "fe80::1",
    "fe80::1%1",
    "fec0::1",
    "ff02::1",
]
PUBLIC = [
    "1.1.1.1",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "223.255.255.255",
    "::ffff:1.1.1.1",
    "64:ff9b::101:101",
    "2002:101:101::1",
    "2606:4700:4700::1111",
    "2a00:1450:4001:800::200e",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_address_that_is_not_for_everybody(address: str) -> None:
    assert not addresses.is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_address_that_anybody_may_call(address: str) -> None:
    assert addresses.is_public(ipaddress.ip_address(address))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def connect(host: str, port: int, *, seconds: float = 2.0, may_be_private: bool = False) -> socket.socket:
    deadline = time.monotonic() + seconds
    return addresses.connect(host, port, deadline=deadline, may_be_private=may_be_private)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "::ffff:127.0.0.1"]
)
def test_this_machine_is_not_called_however_it_is_written(host: str, listener: socket.socket) -> None:
    """As a name, or in any of the forms that resolvers take for a number."""
    listener.settimeout(0.05)

    with pytest.raises(addresses.Unreachable, match="not a public address"):
        connect(host, listener.getsockname()[1])

    with pytest.raises(TimeoutError):
        listener.accept()


def test_host_that_is_allowed_is_called(listener: socket.socket) -> None:
    connect("127.0.0.1", listener.getsockname()[1], may_be_private=True).close()


LookUp = Callable[[list[str]], list[str]]


@pytest.fixture
def resolve_to(monkeypatch: pytest.MonkeyPatch) -> LookUp:
    """Let every name resolve to these addresses; return the list of the names that were looked up."""
    original, asked = socket.getaddrinfo, list[str]()

    def resolve_to(answers: list[str]) -> list[str]:
        def look_up(host: str, port: int, **options: Any) -> Any:
            asked.append(host)
            return [found for answer in answers for found in original(answer, port, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        return asked

    return resolve_to


def test_name_is_resolved_once(resolve_to: LookUp, listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was checked is what is connected to: a second look-up could answer otherwise (rebinding)."""
    called: list[Any] = []

    def open_(candidate: Any, until: float) -> socket.socket:
        called.append(candidate[3][0])
        return socket.socket()

    monkeypatch.setattr(addresses, "_open", open_)
    asked = resolve_to(["1.1.1.1"])

    connect("receiver.test", 443).close()

    assert asked == ["receiver.test"]
    assert called == ["1.1.1.1"]


def test_private_addresses_among_public_ones_are_left_out(resolve_to: LookUp, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def open_(candidate: Any, until: float) -> socket.socket:
        called.append(candidate[3][0])
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(addresses, "_open", open_)
    resolve_to(["10.0.0.1", "1.1.1.1", "::1", "169.254.169.254", "2606:4700:4700::1111"])

    with pytest.raises(addresses.Unreachable, match="2606:4700:4700::1111: Connection refused"):
        connect("receiver.test", 443)
    assert called == ["1.1.1.1", "2606:4700:4700::1111"]


def test_next_address_is_tried_where_one_refuses(resolve_to: LookUp, listener: socket.socket) -> None:
    resolve_to(["127.0.0.2", "127.0.0.1"])

    with connect("receiver.test", listener.getsockname()[1], may_be_private=True) as connected:
        assert connected.getpeername()[0] == "127.0.0.1"


def test_address_that_swallows_packets_leaves_time_for_the_next() -> None:
    now = time.monotonic()
    until = [until - now for _, until in addresses._shares([(0, 0, 0, None)] * 4, now + 4.0)]

    assert until == pytest.approx([1.0, 4 / 3, 2.0, 4.0], abs=0.01)


def test_slow_resolver_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can't be interrupted, so its thread is left to end by itself."""
    goes_on = threading.Event()

    def look_up(host: str, port: int, **options: Any) -> Any:
        goes_on.wait(10)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    began_at = time.monotonic()

    with pytest.raises(addresses.Unreachable, match="not resolved in time"):
        connect("receiver.test", 443, seconds=0.2)

    assert time.monotonic() - began_at < 0.4
    goes_on.set()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 64 + ".example", "-"])
def test_name_without_address_is_unreachable(host: str) -> None:
    with pytest.raises(addresses.Unreachable):
        connect(host, 443)


def test_deadline_that_has_passed_is_unreachable(listener: socket.socket) -> None:
    with pytest.raises(addresses.Unreachable, match="no connection in time"):
        connect("127.0.0.1", listener.getsockname()[1], seconds=-1, may_be_private=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("Mon, 30 Nov 2026 10:00:30 GMT", 30.0),
        ("Mon, 30 Nov 2026 09:00:00 GMT", 0.0),
        ("Mon, 30 Nov 2026 10:00:30 -0000", 30.0),
        ("9" * 400, 999_999_999.0),
        ("1.5", None),
        ("-1", None),
        ("²", None),
        ("soon", None),
        ("", None),
        (None, None),
        ("Mon, 99 Nov 2026 10:00:30 GMT", None),
    ],
)
def test_retry_after(text: str | None, seconds: float | None) -> None:
    """As RFC 9110 has it: whole seconds, or a date."""
    assert destinations.seconds_until(text, now=datetime(2026, 11, 30, 10, tzinfo=UTC)) == seconds


class Silent(destinations.Destination):
    name = "silent"

    def send(self, message: Any, *, deadline: float) -> destinations.Tried:
        raise NotImplementedError


UNREACHABLE = destinations.Tried("no connection", is_unavailable=True)
BUSY = destinations.Tried("HTTP 429", retry_after_s=5.0, is_unavailable=True)
REFUSED = destinations.Tried("HTTP 500")
SENT = destinations.Tried()


@pytest.fixture
def lane(settings: Any) -> relay.Lane:
    settings.PAYMENTS_OUTBOX_BACKOFF_MS, settings.PAYMENTS_OUTBOX_BACKOFF_MAX_MS = 1000, 3_600_000
    return relay.Lane(Silent(), room_max=8)


def test_lane_gives_room_up_to_its_maximum(lane: relay.Lane) -> None:
    assert lane.room(0.0) == 8
    lane.under_way = 8
    assert lane.room(0.0) == 0


def test_refusal_of_one_message_is_not_the_destinations(lane: relay.Lane) -> None:
    """A poison message must not make the good ones behind it wait."""
    for _ in range(100):
        lane.note(REFUSED, 0.0)

    assert lane.room(0.0) == 8


def test_lane_rests_longer_each_time_up_to_a_limit(lane: relay.Lane) -> None:
    now, rests = 0.0, []
    for _ in range(10):
        lane.note(UNREACHABLE, now)
        rests.append(lane.rests_until - now)
        assert lane.room(now) == 0
        now = lane.rests_until
        assert lane.room(now) == 1  # one, to see whether it is back

    assert 0.5 <= rests[0] <= 1.0
    assert rests[-1] == pytest.approx(relay.REST_MAX_S)
    lane.note(SENT, now)
    assert lane.room(now) == 8


def test_failures_at_the_same_time_are_one_rest(lane: relay.Lane) -> None:
    for _ in range(8):
        lane.note(UNREACHABLE, 0.0)

    assert lane.rests == 1


def test_lane_rests_as_long_as_it_is_asked_to(lane: relay.Lane) -> None:
    lane.note(BUSY, 0.0)
    assert lane.rests_until == 5.0

    lane.note(destinations.Tried("HTTP 503", retry_after_s=86_400.0, is_unavailable=True), 5.0)
    assert lane.rests_until == 5.0 + relay.REST_MAX_S
