"""gunicorn's threaded worker, for clients that can't be trusted to be quick.

A request takes a thread when it has arrived whole, and the main loop waits for nobody. gunicorn's own
(27.0.1) gives a thread to whoever connects, so as many slow clients as there are threads shut out everybody
else, and it waits in its main loop, up to 2 s each, for clients to close a connection after their last
answer, until the master takes the worker for dead. Here a slow client costs a connection and some memory, for
a bounded time.

Must not decide what a request is: of HTTP it reads only what tells whether more is to come, gunicorn's parser
does the rest, and where the two differ, a thread waits, no longer than ANSWER_SECONDS_MAX.

After a crash: nothing is kept. A request that was cut off is one that the client has to send again.
"""

import collections
import contextlib
import enum
import errno
import re
import socket
import time
from concurrent.futures import Future
from functools import partial
from selectors import EVENT_READ
from typing import Any

from gunicorn.workers.gthread import TConn, ThreadWorker

from project import settings

# From a connection, or the first byte of its next request, to the request's last byte.
REQUEST_SECONDS_MAX = 10
# The same, while other clients find no place: then whoever dawdled longest makes room.
REQUEST_SECONDS_WHEN_CROWDED = 1
# From a request's last byte to the answer's last byte in the client's hands.
ANSWER_SECONDS_MAX = 30
# After the last answer, for the client to close first: if we did, what it still sends could cost it that
# answer.
LINGER_SECONDS_MAX = 2
# Request line and headers; gunicorn's limits for each of them lie within.
HEAD_BYTES_MAX = 64 * 1024
# A body no larger than this arrives here; of a larger one, the application says that it is too large.
BODY_BYTES_MAX = settings.PAYMENTS_BODY_BYTES_MAX
# What all unfinished requests of a process may take of its memory.
ARRIVING_BYTES_MAX = 64 * 1024 * 1024
READ_BYTES_MAX = 64 * 1024

_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r\n]*chunked", re.IGNORECASE)
_LAST_CHUNK = re.compile(rb"\r\n0+(?:;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*\r\n\Z")
_EXPECT = re.compile(rb"(?<=\r\n)expect:[ \t]*100-continue[ \t]*\r\n", re.IGNORECASE)


class Arrival(enum.Enum):
    """How far a request has come; the value of a refusal is its status line."""

    UNFINISHED = enum.auto()
    WHOLE = enum.auto()
    GONE = enum.auto()
    LATE = "408 Request Timeout"
    HEAD_TOO_LARGE = "431 Request Header Fields Too Large"
    NO_ROOM = "503 Service Unavailable"


class Connection(TConn):  # type: ignore[misc]
    """A client's connection, and what has arrived of its next request."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.expect_request()

    def expect_request(self, begun: bytes = b"") -> None:
        self.arrived = bytearray(begun)
        self.is_chunked = False
        self.bytes_expected: int | None = None  # None: not known before the head is there
        self.timeout = time.monotonic() + REQUEST_SECONDS_MAX

    def judge(self, *, looked_at: int = 0) -> Arrival:
        """Tell how far the request has come, the first so many bytes of which were judged before."""
        if self.bytes_expected is None:
            head_end = self.arrived.find(b"\r\n\r\n", max(0, looked_at - 3))
            if head_end < 0:
                return Arrival.UNFINISHED if len(self.arrived) <= HEAD_BYTES_MAX else Arrival.HEAD_TOO_LARGE
            self._read_head(head_end + 4)
        if len(self.arrived) >= (self.bytes_expected or 0):
            return Arrival.WHOLE
        if self.is_chunked and _LAST_CHUNK.search(self.arrived, max(0, len(self.arrived) - HEAD_BYTES_MAX)):
            return Arrival.WHOLE
        return Arrival.UNFINISHED

    def _read_head(self, head_bytes: int) -> None:
        head = bytes(self.arrived[:head_bytes])
        length = _CONTENT_LENGTH.search(head)
        body_bytes = int(length[1]) if length else 0
        self.is_chunked = bool(_CHUNKED.search(head))
        if self.is_chunked:
            body_bytes = BODY_BYTES_MAX + 1
        elif body_bytes > BODY_BYTES_MAX:
            body_bytes = 0
        if body_bytes and (expect := _EXPECT.search(head)):
            # The client waits for our leave to send the body. With the header gone, gunicorn won't give it
            # again.
            del self.arrived[expect.start() : expect.end()]
            head_bytes -= expect.end() - expect.start()
            self.say("100 Continue")
        self.bytes_expected = head_bytes + body_bytes

    def say(self, status: str, *headers: str) -> None:
        """Send an answer without a body, if the client takes it at once."""
        with contextlib.suppress(OSError):
            self.sock.send("\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode())


class Worker(ThreadWorker):  # type: ignore[misc]
    """The threaded worker with the arrival and the end of requests moved out of its threads and their way."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.arriving_bytes = 0
        self.answering: dict[Connection, float] = {}  # connection -> when it is cut off
        self.lingering: collections.deque[Connection] = collections.deque()

    # Arrival, in the main loop. Overridden: accept, on_client_socket_readable, on_pending_socket_readable.

    def accept(self, listener: Any) -> None:
        try:
            client, address = listener.accept()
        except OSError as failure:
            if failure.errno not in (errno.EAGAIN, errno.EWOULDBLOCK, errno.ECONNABORTED):
                raise
            return
        self.nr_conns += 1
        self._receive_first(Connection(self.cfg, client, address, listener.getsockname()))

    def on_client_socket_readable(self, conn: Connection, client: socket.socket) -> None:
        self.poller.unregister(client)
        self.keepalived_conns.remove(conn)
        conn.expect_request()
        self._receive_first(conn)

    def on_pending_socket_readable(self, conn: Connection, client: socket.socket) -> None:
        arrival = self._receive(conn)
        if arrival is not Arrival.UNFINISHED:
            self._end_arrival(conn, arrival)

    def _receive_first(self, conn: Connection) -> None:
        arrival = self._receive(conn)
        if arrival is Arrival.UNFINISHED:
            self._await_rest(conn)
        else:
            self._pass_on(conn, arrival)

    def _await_rest(self, conn: Connection) -> None:
        self.pending_conns.append(conn)  # in the order of their timeouts, which are equally long
        self.poller.register(conn.sock, EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def _end_arrival(self, conn: Connection, arrival: Arrival) -> None:
        self.poller.unregister(conn.sock)
        self.pending_conns.remove(conn)
        self._pass_on(conn, arrival)

    def _receive(self, conn: Connection) -> Arrival:
        try:
            data = conn.sock.recv(READ_BYTES_MAX)
        except BlockingIOError:
            return Arrival.UNFINISHED
        except OSError:
            return Arrival.GONE
        if not data:
            return Arrival.GONE
        looked_at = len(conn.arrived)
        conn.arrived += data
        self.arriving_bytes += len(data)
        arrival = conn.judge(looked_at=looked_at)
        crowded = arrival is Arrival.UNFINISHED and self.arriving_bytes > ARRIVING_BYTES_MAX
        return Arrival.NO_ROOM if crowded else arrival

    def _pass_on(self, conn: Connection, arrival: Arrival) -> None:
        """Give a whole request to a thread, refuse another."""
        self.arriving_bytes -= len(conn.arrived)
        if arrival is Arrival.WHOLE:
            conn.init()
            conn.parser.unreader.unread(bytes(conn.arrived))
            conn.arrived = bytearray()
            self.enqueue_req(conn)
            return
        if isinstance(arrival.value, str) and (conn.arrived or arrival is not Arrival.LATE):
            conn.say(arrival.value, "Connection: close", "Content-Length: 0", "Retry-After: 1")
        self.nr_conns -= 1
        self._linger(conn)

    # Answer, in a thread. Overridden: handle.

    def handle(self, conn: Connection) -> bool:
        self.answering[conn] = time.monotonic() + ANSWER_SECONDS_MAX
        try:
            return bool(super().handle(conn))
        finally:
            del self.answering[conn]

    # End, in the main loop. Overridden: finish_request, murder_pending (called at least once a second).

    def finish_request(self, conn: Connection, done: Future[bool]) -> None:
        if done.cancelled() or done.exception() or not done.result():
            self.nr_conns -= 1
            self._linger(conn)
            return
        conn.sock.setblocking(False)
        begun = conn.parser.unreader.take_buffered()  # of the next request, if the client didn't wait
        if begun:
            self._receive_begun(conn, begun)
            return
        conn.set_timeout()
        self.keepalived_conns.append(conn)
        self.poller.register(conn.sock, EVENT_READ, partial(self.on_client_socket_readable, conn))

    def _receive_begun(self, conn: Connection, begun: bytes) -> None:
        conn.expect_request(begun)
        self.arriving_bytes += len(begun)
        arrival = conn.judge()
        if arrival is Arrival.UNFINISHED:
            self._await_rest(conn)
        else:
            self._pass_on(conn, arrival)

    def murder_pending(self) -> None:
        now = time.monotonic()
        crowded = self.nr_conns >= self.worker_connections
        grace = REQUEST_SECONDS_MAX - REQUEST_SECONDS_WHEN_CROWDED if crowded else 0
        while self.pending_conns and self.pending_conns[0].timeout <= now + grace:
            self._end_arrival(self.pending_conns[0], Arrival.LATE)
        while self.lingering and self.lingering[0].timeout <= now:
            self._end_lingering(self.lingering[0])
        for conn, deadline in list(self.answering.items()):
            if deadline <= now:
                with contextlib.suppress(OSError):
                    conn.sock.shutdown(socket.SHUT_RDWR)  # ends the thread's wait for the client, if it has one

    def _linger(self, conn: Connection) -> None:
        """Say that no more will come, and close when the client has, or when its time is up."""
        try:
            conn.sock.setblocking(False)
            conn.sock.shutdown(socket.SHUT_WR)
        except OSError:
            conn.close()
            return
        if len(self.lingering) >= self.worker_connections:
            conn.close()
            return
        conn.timeout = time.monotonic() + LINGER_SECONDS_MAX
        self.lingering.append(conn)
        self.poller.register(conn.sock, EVENT_READ, partial(self._drain, conn))

    def _drain(self, conn: Connection, client: socket.socket) -> None:
        try:
            ended = not client.recv(READ_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            ended = True
        if ended:
            self._end_lingering(conn)

    def _end_lingering(self, conn: Connection) -> None:
        self.poller.unregister(conn.sock)
        self.lingering.remove(conn)
        conn.close()
