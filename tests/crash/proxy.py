"""Stands between the app and PostgreSQL, and can break the connection exactly at a COMMIT.

Speaks just enough of the protocol to see a COMMIT pass: https://www.postgresql.org/docs/current/protocol-message-formats.html
The app reaches it by a Unix socket in a folder of its own, as it reaches PostgreSQL.
"""

import contextlib
import enum
import socket
import struct
import threading
import urllib.parse
from pathlib import Path
from typing import Final, Self

CHUNK_BYTES: Final = 65_536


class Fault(enum.Enum):
    """What happens to the next COMMIT of a settlement."""

    CUT_BEFORE = "the connection breaks before PostgreSQL gets it"
    CUT_AFTER = "PostgreSQL commits, and the connection breaks before it says so"
    SWALLOW = "PostgreSQL commits, and its answer never comes"


class Proxy:
    """Forwards connections to a PostgreSQL's socket; `arm` makes one COMMIT fail."""

    def __init__(self, folder: Path, upstream: Path) -> None:
        self.url = f"postgresql://sekali@:5432/sekali?host={urllib.parse.quote(str(folder))}"
        self.claims_sent = 0  # transactions that tried to claim something
        self.struck = threading.Event()  # the armed fault has happened
        self._upstream = upstream / ".s.PGSQL.5432"
        self._armed: Fault | None = None
        self._skipped = 0  # COMMITs that go through before the fault strikes
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen(64)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._listener)
        for one in self._sockets:
            _end(one)
        for thread in self._threads:
            thread.join(timeout=10)

    def arm(self, fault: Fault, *, skip: int = 0) -> None:
        """Let the next COMMIT of a transaction that claims something fail so, once; or a later one."""
        self.struck.clear()
        with self._lock:
            self._armed, self._skipped = fault, skip

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                self._sockets += [client, server]
                try:
                    server.connect(str(self._upstream))
                except OSError:
                    _end(client)
                    continue
                link = _Link(self, client, server)
                for target in (link.upwards, link.downwards):
                    self._threads.append(threading.Thread(target=target, daemon=True))
                    self._threads[-1].start()

    def count_claim(self) -> None:
        with self._lock:
            self.claims_sent += 1

    def take_fault(self) -> Fault | None:
        """Return the fault that strikes this COMMIT; the next one goes through."""
        with self._lock:
            if self._armed is not None and self._skipped:
                self._skipped -= 1
                return None
            fault, self._armed = self._armed, None
            return fault


class _Link:
    """One connection of the app."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy, self.client, self.server = proxy, client, server
        self.fault: Fault | None = None
        self._has_claimed = False

    def upwards(self) -> None:
        """Client to server, message by message; the first one has no type."""
        arrived, header_bytes = bytearray(), 0
        with contextlib.suppress(OSError):
            while data := self.client.recv(CHUNK_BYTES):
                arrived += data
                while len(arrived) >= header_bytes + 4:
                    (length,) = struct.unpack_from("!I", arrived, header_bytes)
                    if len(arrived) < header_bytes + length:
                        break
                    message = bytes(arrived[: header_bytes + length])
                    del arrived[: header_bytes + length]
                    if header_bytes and not self._forward(message):
                        return
                    if not header_bytes:
                        self.server.sendall(message)
                        header_bytes = 1
        self._close()

    def _forward(self, message: bytes) -> bool:
        if b"INSERT INTO payments_claim" in message:
            self._has_claimed = True
            self.proxy.count_claim()
        elif self._has_claimed and message[:1] == b"Q" and message[5:].rstrip(b"\0") == b"COMMIT":
            self._has_claimed = False
            self.fault = self.proxy.take_fault()
        if self.fault is Fault.CUT_BEFORE:
            self._close()
            self.proxy.struck.set()
            return False
        self.server.sendall(message)
        return True

    def downwards(self) -> None:
        """Server to client, until a fault says that nothing more gets through."""
        with contextlib.suppress(OSError):
            while data := self.server.recv(CHUNK_BYTES):
                if self.fault is None:
                    self.client.sendall(data)
                    continue
                # The answer to the COMMIT has come: it is done, and only we know.
                if self.fault is Fault.CUT_AFTER:
                    self._close()
                self.proxy.struck.set()
        if self.fault is not Fault.SWALLOW:
            self._close()

    def _close(self) -> None:
        _end(self.client)
        _end(self.server)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)  # wakes up who waits on it; close alone doesn't
    one.close()
