"""Connecting only to addresses that anybody may call: what a name resolves to is checked, and that very address used.

A destination's URL is somebody's word. It must not make us call what only we can reach: this machine, the private
network, a cloud's metadata. Checking a name before connecting would not do, because a second look-up may answer
otherwise, so a name is resolved once, here.

Knows no HTTP and no messages. Writes nothing.
"""

import ipaddress
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
SocketAddress = tuple[int, int, int, Any]  # family, type, protocol, what connect() takes

ADDRESSES_MAX: Final = 4  # of one name that are tried, each within its share of the time

# What isn't for everybody: https://www.iana.org/assignments/iana-ipv4-special-registry/. Python's own is_global differs
# between its versions, and doesn't know clouds.
_REFUSED_V4: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network; 0.0.0.0 is this machine
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carriers' own; a cloud's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's host
        "169.254.0.0/16",  # link-local; most clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocols' own; a cloud's metadata
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved; broadcast
    )
)
# Of IPv6 only what is assigned to be reached by everybody, without what is special in it:
# https://www.iana.org/assignments/iana-ipv6-special-registry/
_GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
_REFUSED_V6: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocols' own; Teredo, which hides an IPv4 address
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)
# An IPv4 address in its last 32 bits, which a translator in the network calls for us.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class Unreachable(Exception):
    """Nothing was sent: no address that may be called, or no connection in time. Its text says which."""


def is_public(address: IPAddress) -> bool:
    """Say whether anybody may call this address. An IPv4 address inside an IPv6 one is what counts."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _REFUSED_V4)
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and address in _NAT64:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is not None:
        return is_public(inner)
    return address in _GLOBAL_V6 and not any(address in network for network in _REFUSED_V6)


def connect(host: str, port: int, *, deadline: float, may_be_private: bool) -> socket.socket:
    """Return a connection to the host, made by the deadline (monotonic). Raises Unreachable.

    may_be_private: whoever runs us allowed this host whatever its address is.
    """
    found = _resolve(host, port, deadline)
    callable_ones = [one for one in found if may_be_private or is_public(_ip(one))]
    if not callable_ones:
        shown = ", ".join(sorted({str(_ip(one)) for one in found}))
        raise Unreachable(f"{host} is {shown}: not a public address, and not in PAYMENTS_OUTBOX_ALLOW_HOSTS")
    why = ""
    for candidate, until in _shares(callable_ones[:ADDRESSES_MAX], deadline):
        try:
            return _open(candidate, until)
        except OSError as error:
            why = f"{_ip(candidate)}: {error.strerror or 'no connection in time'}"
    raise Unreachable(why)


def _resolve(host: str, port: int, deadline: float) -> list[SocketAddress]:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return _look_up(host, port, deadline)
    return _addresses(host, port)


def _look_up(host: str, port: int, deadline: float) -> list[SocketAddress]:
    # The system's resolver can't be told how long it may take; its thread ends when it gives up, within a minute.
    answers: queue.SimpleQueue[list[SocketAddress] | Unreachable] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(_addresses(host, port))
        except Unreachable as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True, name=f"resolve {host}").start()
    try:
        answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        raise Unreachable(f"{host} was not resolved in time") from None
    if isinstance(answer, Unreachable):
        raise answer
    return answer


def _addresses(host: str, port: int) -> list[SocketAddress]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except OSError as error:
        raise Unreachable(f"{host}: {error.strerror}") from error
    except UnicodeError as error:  # a label that is empty or too long
        raise Unreachable(f"{host} is not a host's name") from error
    return [(family, kind, protocol, address) for family, kind, protocol, _, address in found]


def _ip(candidate: SocketAddress) -> IPAddress:
    return ipaddress.ip_address(str(candidate[3][0]))


def _shares(candidates: list[SocketAddress], deadline: float) -> Iterator[tuple[SocketAddress, float]]:
    """Yield each candidate with its own deadline: one that swallows packets leaves time for the next."""
    for left, candidate in zip(range(len(candidates), 0, -1), candidates, strict=True):
        now = time.monotonic()
        yield candidate, now + (deadline - now) / left


def _open(candidate: SocketAddress, until: float) -> socket.socket:
    family, kind, protocol, address = candidate
    remaining_s = until - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    opened = socket.socket(family, kind, protocol)
    try:
        opened.settimeout(remaining_s)
        opened.connect(address)
        # The head and the body are two writes; the second must not wait for the first one's acknowledgement.
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        opened.close()
        raise
    return opened
