"""One HTTP exchange whose every wait ends at one deadline: connecting, TLS, sending and each byte of the answer.

A socket's own timeout begins anew with each byte, so whoever drips would never end. No redirect is followed, no proxy
asked, and of an answer no more than RESPONSE_BYTES_MAX is read.

Knows neither messages nor gateways. Writes nothing.
"""

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, cast

from payments import addresses

RESPONSE_BYTES_MAX: Final = 64 * 1024  # of an answer, headers included


class Wire:
    """A socket as http.client uses one."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> http.client.HTTPResponse:
        """Send a request; return the answer once its headers are there. Raises OSError or HTTPException."""
        connection = http.client.HTTPConnection(headers["Host"])
        connection.sock = cast(socket.socket, self)
        connection.request(method, target, body, dict(headers))
        return connection.getresponse()

    def hurry(self, seconds: float) -> None:
        """Let what is still to come take no longer than so many seconds."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def hang_up(self) -> None:
        self._socket.close()

    # What http.client calls.

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._socket.settimeout(remaining_s(self._deadline))
            view = view[self._socket.send(view) :]

    def recv_into(self, buffer: memoryview) -> int:
        self._socket.settimeout(remaining_s(self._deadline))
        return self._socket.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Answer(self))

    def close(self) -> None:
        """Do nothing: http.client closes as soon as it has read the headers."""


def dial(host: str, port: int, *, is_tls: bool, deadline: float, may_be_private: bool) -> Wire:
    """Return a connection made by the deadline (monotonic). Raises addresses.Unreachable."""
    plain = addresses.connect(host, port, deadline=deadline, may_be_private=may_be_private)
    if not is_tls:
        return Wire(plain, deadline)
    try:
        plain.settimeout(remaining_s(deadline))
        return Wire(tls().wrap_socket(plain, server_hostname=host), deadline)
    except OSError as error:
        plain.close()
        reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or type(error).__name__
        raise addresses.Unreachable(f"TLS with {host}: {reason}") from error


@cache
def tls() -> ssl.SSLContext:
    """Return what this process trusts; reading the authorities' certificates takes milliseconds: once."""
    return ssl.create_default_context()


def remaining_s(deadline: float) -> float:
    """Return the seconds until a deadline (monotonic). Raises TimeoutError when it is past."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


class _Answer(io.RawIOBase):
    """What comes over a wire, up to RESPONSE_BYTES_MAX."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._bytes_left = RESPONSE_BYTES_MAX

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._bytes_left <= 0:
            raise http.client.HTTPException("the answer is too long")
        received = self._wire.recv_into(memoryview(buffer)[: self._bytes_left])
        self._bytes_left -= received
        return received
