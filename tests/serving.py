"""A real server for tests that look at it from outside: gunicorn on a PostgreSQL of its own, and bytes on a socket."""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.crash.servers import App, Postgres

PATIENCE_S: Final = 20.0  # of a client, on a machine that has other work to do


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is ready, with the demo in it, and its database."""

    app: App
    postgres: Postgres


@contextlib.contextmanager
def served(folder: Path, **settings: str) -> Iterator[Served]:
    """Start both, as an operator does; end both."""
    postgres = Postgres(folder)
    try:
        postgres.start()
        with App(folder=folder, database_url=postgres.whole_url, **settings) as app:
            app.start()
            yield Served(app, postgres)
    finally:
        postgres.remove()


@dataclass(frozen=True, slots=True)
class WireAnswer:
    """One answer as it came; status 0: the connection was closed without one."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)

    @property
    def lasting(self) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
        """All of it but the server's clock."""
        return self.status, tuple(pair for pair in self.headers if pair[0] != "date"), self.body


def exchange(port: int, request: bytes, *, is_cut: bool = False) -> WireAnswer:
    """Send these very bytes on a connection of their own, read to its end. is_cut: say that no more will come."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        said = b""
        with contextlib.suppress(OSError):  # refused before it was sent whole; the answer is there all the same
            client.sendall(request)
            if is_cut:
                client.shutdown(socket.SHUT_WR)
        while data := client.recv(65536):
            said += data
    head, _, body = said.partition(b"\r\n\r\n")
    if not head:
        return WireAnswer(0, (), b"")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.split(": ", 1) for line in lines)
    return WireAnswer(int(status_line.split(" ")[1]), tuple((name.lower(), value) for name, value in pairs), body)
