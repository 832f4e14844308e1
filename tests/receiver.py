"""A receiver of outbox messages on this machine: remembers every request, answers as the test says."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

SECRET: Final = "whsec_" + "b3V0Ym94LW9mLXRoZS10ZXN0cy0wMDAwMDAwMDAw"
OTHER_SECRET: Final = "whsec_" + "b3V0Ym94LW9mLXRoZS10ZXN0cy0xMTExMTExMTEx"


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]
    body: bytes
    received_at: float

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass(frozen=True)
class Reply:
    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    after_s: float = 0.0


ACCEPTED: Final = Reply()
Behaviour = Callable[[Request], Reply]


class Receiver:
    """Use it as a context. behave is called in a thread of each request's own, after the request was remembered."""

    def __init__(self, behave: Behaviour = lambda request: ACCEPTED) -> None:
        self.behave = behave
        self.requests: list[Request] = []
        self._gone = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.receiver = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._gone.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def ids(self, path: str | None = None) -> Counter[str]:
        """Return how often each id was received, at one path or all."""
        return Counter(request.id for request in list(self.requests) if path in (None, request.path))

    def pause(self, seconds: float) -> None:
        """Wait, unless the test is over."""
        self._gone.wait(seconds)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    receiver: Receiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients hang up on purpose here."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        receiver = self.server.receiver
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path, headers, body, time.monotonic())
        receiver.requests.append(request)
        reply = receiver.behave(request)
        receiver.pause(reply.after_s)
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
