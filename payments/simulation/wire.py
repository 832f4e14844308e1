"""HTTP on one kept-alive connection, one request at a time.

On bare sockets because the simulator shares a machine with the server that it tries: http.client or a library
would take more of it than the server does. Reads only answers with a Content-Length; ours have one.
"""

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

HEAD_BYTES_MAX = 65_536
BODY_BYTES_MAX = 1_048_576


class BadAnswer(Exception):
    """What came back is no HTTP answer that can be read; the text says why. Is it our server that answers?"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. Two answers are the same if a gateway couldn't tell them apart."""

    status: int
    content_type: str
    body: bytes
    retry_after_s: float = field(default=0.0, compare=False)
    is_last: bool = field(default=False, compare=False)  # the server closes the connection after it


@dataclass(frozen=True, slots=True)
class Target:
    """Where the deliveries of one endpoint go. head: request line and headers that all of them share."""

    host: str
    port: int
    secure: bool
    head: str

    @classmethod
    def of(cls, url: str, slug: str) -> "Target":
        """Return the endpoint's target: its address, or below the server's. Raises ValueError for any other."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not of the form http://host:port")
        secure = parts.scheme == "https"
        above = parts.path.rstrip("/").removesuffix(f"/webhooks/{slug}")
        line = f"POST {above}/webhooks/{slug}/ HTTP/1.1"
        head = f"{line}\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        return cls(parts.hostname, parts.port or (443 if secure else 80), secure, head)

    def request(self, headers: dict[str, str], body: bytes) -> bytes:
        """Return the bytes of one request."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        return f"{self.head}{lines}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body


class Connection(asyncio.Protocol):
    """One connection; `exchange` sends a request and returns the answer to it."""

    def __init__(self) -> None:
        self.is_closed = False
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._answer: asyncio.Future[Answer] | None = None

    @classmethod
    async def open(cls, target: Target) -> "Connection":
        """Connect, or raise OSError."""
        context = ssl.create_default_context() if target.secure else None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, target.host, target.port, ssl=context)
        return connection

    async def exchange(self, request: bytes) -> Answer:
        """Return the answer. Raises OSError (the connection broke) or BadAnswer: use it no more."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            self._answer = None

    def close(self) -> None:
        self.is_closed = True
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            answer = _read(self._received)
        except (BadAnswer, ValueError) as error:
            self._end(error if isinstance(error, BadAnswer) else BadAnswer("the answer is not HTTP"))
            return
        if answer is None:
            return
        if answer.is_last:
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionResetError("the connection was closed without an answer"))

    def _end(self, error: Exception) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _read(received: bytearray) -> Answer | None:
    """Take one whole answer out of what was received, or return None while there is none."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        if len(received) > HEAD_BYTES_MAX:
            raise BadAnswer("the answer's headers have no end")
        return None
    status_line, *lines = received[:end].decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if not status_line.startswith("HTTP/1.") or "content-length" not in headers:
        raise BadAnswer("the answer is not HTTP/1 with a Content-Length")
    begin, length = end + 4, int(headers["content-length"])
    if length > BODY_BYTES_MAX:
        raise BadAnswer("the answer is too long")
    if len(received) < begin + length:
        return None
    body = bytes(received[begin : begin + length])
    del received[: begin + length]
    wait = headers.get("retry-after", "")
    return Answer(
        status=int(status_line.split(" ", 2)[1]),
        content_type=headers.get("content-type", ""),
        body=body,
        retry_after_s=float(wait) if wait.isdecimal() else 0.0,
        is_last=headers.get("connection", "").lower() == "close",
    )
