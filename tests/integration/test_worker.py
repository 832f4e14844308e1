"""The server's worker: what arrives in pieces is one request, and a slow client keeps nobody else waiting."""

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from payments import runtime_folder
from project import worker

CHECKOUT = Path(__file__).parents[2]
THREADS = 2
# Slow clients, many times the threads.
CROWD = 40
CONNECTIONS = 100
REQUEST_SECONDS = 3
CONFIG = f"""
from pathlib import Path
exec(Path("gunicorn.conf.py").read_text())
from project import worker
worker.REQUEST_SECONDS_MAX, worker.REQUEST_SECONDS_WHEN_CROWDED = {REQUEST_SECONDS}, 0.1
worker.ANSWER_SECONDS_MAX = 1
workers, threads, worker_connections = 1, {THREADS}, {CONNECTIONS}
wsgi_app = "tests.integration.test_worker:application"
post_worker_init = lambda worker: None
"""

Connect = Callable[[], socket.socket]


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Answer with the digest of the body; to /large with more than any socket takes unread."""
    if environ["PATH_INFO"] == "/large":
        start_response("200 OK", [("Content-Length", str(64 * 1024 * 1024))])
        return [b"x" * 64 * 1024 * 1024]
    start_response("200 OK", [("Content-Length", "64")])
    return [digest(environ["wsgi.input"].read())]


def digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A server with one process and few threads that answers `application`."""
    folder = tmp_path_factory.mktemp("worker")
    (folder / "conf.py").write_text(CONFIG)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    environment = os.environ | {"DATA_DIR": str(folder), "PORT": str(address[1])}
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "-c", str(folder / "conf.py")], cwd=CHECKOUT, env=environment
    )
    try:
        deadline = time.monotonic() + 20
        while not is_open(address):
            assert time.monotonic() < deadline
            assert server.poll() is None
            time.sleep(0.05)
        yield address
    finally:
        server.send_signal(signal.SIGQUIT)  # the master alone, killed, would leave its worker behind for a while
        server.wait(timeout=20)
        shutil.rmtree(runtime_folder.locate(folder), ignore_errors=True)


def is_open(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=5).close()
    except OSError:
        return False
    return True


@pytest.fixture
def connect(address: tuple[str, int]) -> Iterator[Connect]:
    """Open a connection to the server; all are closed at the end of the test."""
    opened = []

    def connect() -> socket.socket:
        opened.append(socket.create_connection(address, timeout=10))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def post(body: bytes, *headers: str, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = ["POST / HTTP/1.1", "Host: here", f"Content-Length: {size}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


def read_answer(client: socket.socket) -> tuple[bytes, bytes]:
    """Return an answer's status line and body, which is 64 bytes or none."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = client.recv(1)
        assert piece, f"closed after {answer!r}"
        answer += piece
    size = 64 if b"Content-Length: 64" in answer else 0
    body = b""
    while len(body) < size:
        body += client.recv(size - len(body))
    return answer.split(b"\r\n", 1)[0], body


def assert_serves(connect: Connect, *, within: float = 1.0) -> None:
    """Another client is answered, and at once."""
    begin = time.monotonic()
    client = connect()
    client.sendall(post(b"quick"))

    assert read_answer(client) == (b"HTTP/1.1 200 OK", digest(b"quick"))
    assert time.monotonic() - begin < within


@pytest.mark.parametrize("size", [0, 1, 600, 100_000, worker.BODY_BYTES_MAX])
def test_body_arrives_as_it_was_sent(connect: Connect, size: int) -> None:
    """Of any size up to the limit, twice on one connection."""
    body = os.urandom(size)
    client = connect()

    for _ in range(2):
        client.sendall(post(body))
        assert read_answer(client) == (b"HTTP/1.1 200 OK", digest(body))


def test_request_may_come_byte_by_byte(connect: Connect) -> None:
    """Where the network cuts a request makes no difference."""
    client = connect()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    for byte in post(b"a body"):
        client.sendall(bytes([byte]))

    assert read_answer(client) == (b"HTTP/1.1 200 OK", digest(b"a body"))


def test_requests_may_come_together(connect: Connect) -> None:
    """A client that doesn't wait for answers gets them in order; the last request comes in halves."""
    requests = post(b"one") + post(b"two") + post(b"three")
    client = connect()

    client.sendall(requests[:-2])
    answers = [read_answer(client)[1], read_answer(client)[1]]
    client.sendall(requests[-2:])
    answers.append(read_answer(client)[1])

    assert answers == [digest(b"one"), digest(b"two"), digest(b"three")]


@pytest.mark.parametrize("trailer", [b"", b"Checked: yes\r\n"])
def test_chunked_body_arrives(connect: Connect, trailer: bytes) -> None:
    """A body without a length ends with its last chunk."""
    head = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    client = connect()

    for part in (head, b"3\r\none\r\n", b"5;x=y\r\n 0\r\n!\r\n", b"0\r\n" + trailer + b"\r\n"):
        client.sendall(part)
        time.sleep(0.05)  # so that each arrives alone

    assert read_answer(client) == (b"HTTP/1.1 200 OK", digest(b"one 0\r\n!"))


def test_client_that_asks_first_is_told_to_continue(connect: Connect) -> None:
    """Told once, although the application would tell it too."""
    client = connect()
    client.sendall(post(b"", "Expect: 100-continue", length=4))
    assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"

    client.sendall(b"body")

    assert read_answer(client) == (b"HTTP/1.1 200 OK", digest(b"body"))


def test_too_large_head_is_refused(connect: Connect) -> None:
    client = connect()

    client.sendall(b"GET / HTTP/1.1\r\nCookie: " + b"x" * worker.HEAD_BYTES_MAX)

    assert read_answer(client)[0] == b"HTTP/1.1 431 Request Header Fields Too Large"


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"POST / HT",
        post(b"half", length=8),
        post(b"", "Expect: 100-continue", length=worker.BODY_BYTES_MAX),
    ],
    ids=["nothing", "half_a_head", "half_a_body", "leave_to_send"],
)
def test_slow_clients_keep_nobody_waiting(connect: Connect, beginning: bytes) -> None:
    """More of them than threads, each with a request that does not come to its end."""
    slow = [connect() for _ in range(CROWD)]
    for client in slow:
        client.sendall(beginning)

    assert_serves(connect)


def test_request_that_does_not_come_to_its_end_is_refused(connect: Connect) -> None:
    """After its time, however busily its client drips."""
    client = connect()
    client.sendall(b"GET / HTTP/1.1\r\n")
    begin = time.monotonic()

    while time.monotonic() - begin < REQUEST_SECONDS:
        client.sendall(b"A: b\r\n")
        time.sleep(0.1)

    assert read_answer(client)[0] == b"HTTP/1.1 408 Request Timeout"


def test_clients_that_never_close_keep_nobody_waiting(connect: Connect) -> None:
    """They have asked for the connection's end, were answered, and stay."""
    stayers = [connect() for _ in range(CROWD)]
    for client in stayers:
        client.sendall(post(b"", "Connection: close"))
    for client in stayers:
        assert read_answer(client)[0] == b"HTTP/1.1 200 OK"

    assert_serves(connect)


def test_clients_that_do_not_read_keep_nobody_waiting_for_long(connect: Connect) -> None:
    """An answer that is larger than a socket takes holds a thread, until the client's time is up."""
    for _ in range(THREADS):
        connect().sendall(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n")

    assert_serves(connect, within=5)


def test_more_connections_than_there_is_room_for(connect: Connect) -> None:
    """Who dawdles has to go before its time, when others wait."""
    for _ in range(CONNECTIONS + CROWD):
        connect()

    assert_serves(connect, within=REQUEST_SECONDS - 0.5)


def test_unfinished_requests_take_bounded_memory(connect: Connect) -> None:
    """Past the bound, whoever sends more is told to come again."""
    refused = 0
    for _ in range(worker.ARRIVING_BYTES_MAX // worker.BODY_BYTES_MAX + 1):
        client = connect()
        client.sendall(post(b"x" * (worker.BODY_BYTES_MAX - 1), length=worker.BODY_BYTES_MAX))
        client.settimeout(0.01)
        with contextlib.suppress(TimeoutError):
            refused += client.recv(100).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")

    assert refused
    assert_serves(connect)
