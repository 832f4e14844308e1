"""The outbox, from a booked transfer to a receiver's answer: what is sent, when again, and when no more."""

import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks
from django.core import mail
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from pytest_django import Settings

from payments import destinations, limits, models, outbox, relay, staff, wire
from tests import receiver as receivers
from tests.deliveries import Deliver, outcome
from tests.receiver import Receiver, Reply

# Real commits: while a relay waits for a receiver no transaction may be open, the tests' own included.
pytestmark = pytest.mark.django_db(transaction=True)
nothing_waits = pytest.mark.django_db

CERTIFICATES = Path(__file__).parents[1] / "certificates"
Enqueue = Callable[..., models.OutboxMessage]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as started:
        yield started


@pytest.fixture
def shop(settings: Settings, receiver: Receiver) -> Settings:
    """One destination, `shop`, at the receiver; the settings are there to be changed."""
    settings.PAYMENTS_OUTBOX = {"shop": {"url": receiver.url(), "secrets": (receivers.SECRET,)}}
    settings.PAYMENTS_OUTBOX_ALLOW_HOSTS = ("127.0.0.1",)
    settings.PAYMENTS_OUTBOX_TIMEOUT_MS = 1000
    settings.PAYMENTS_OUTBOX_TRIES_MAX = 3
    settings.PAYMENTS_OUTBOX_BACKOFF_MS = 1000
    settings.PAYMENTS_OUTBOX_BACKOFF_MAX_MS = 60_000
    return settings


@pytest.fixture
def enqueue(shop: Settings) -> Enqueue:
    """Enqueue a message of a key; return its row."""

    def enqueue(key: str = "1", destination: str = "shop", **data: Any) -> models.OutboxMessage:
        with transaction.atomic():
            outbox.enqueue(topic="order.paid", data=data, key=key, destinations=[destination])
        return models.OutboxMessage.objects.get(key=f"{destination}:app:{key}")

    return enqueue


def relay_once(*options: str) -> tuple[int, dict[str, Any]]:
    """Run `relay_outbox --once`; return its exit status and its JSON."""
    return relay_outbox("--once", *options)


def relay_outbox(*options: str) -> tuple[int, dict[str, Any]]:
    said = Output()
    with pytest.raises(SystemExit) as ended:
        call_command("relay_outbox", *options, "--json", stdout=said, stderr=Output())
    return int(str(ended.value.code)), json.loads(said.text)


class Output:
    """What a command writes."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False


def make_due(*rows: models.OutboxMessage) -> None:
    """Let the time until the next try be over."""
    models.OutboxMessage.objects.filter(id__in=[row.pk for row in rows]).update(due_at=datetime.now(UTC))


def wait_of(row: models.OutboxMessage) -> float:
    """Return the seconds until the next try."""
    row.refresh_from_db()
    return (row.due_at - datetime.now(UTC)).total_seconds()


# What is enqueued -----------------------------------------------------------------------------------------------------


def test_enqueue_needs_the_transaction_of_its_cause(shop: Settings) -> None:
    with pytest.raises(transaction.TransactionManagementError):
        outbox.enqueue(topic="order.paid", data={}, key="1")


@nothing_waits
def test_same_key_is_the_same_message(shop: Settings) -> None:
    """Enqueued twice, sent once; the first one's content stands."""
    with transaction.atomic():
        first = outbox.enqueue(topic="order.paid", data={"order": 1}, key="order-1")
    with transaction.atomic():
        second = outbox.enqueue(topic="order.paid", data={"order": 2}, key="order-1")

    assert (first, second) == (1, 0)
    message = models.OutboxMessage.objects.get()
    assert message.key == "shop:app:order-1"
    assert json.loads(message.body)["data"] == {"order": 1}


@nothing_waits
def test_nothing_is_enqueued_without_destinations(settings: Settings) -> None:
    settings.PAYMENTS_OUTBOX = {}

    with transaction.atomic():
        assert outbox.enqueue(topic="order.paid", data={}, key="1") == 0


@nothing_waits
@pytest.mark.parametrize(
    "wrong",
    [
        {"key": ""},
        {"key": "a.b"},
        {"key": "a b"},
        {"key": "a\nb"},
        {"key": "é"},
        {"key": "x" * 181},
        {"topic": ""},
        {"topic": "order paid"},
        {"data": {"amount": float("nan")}},
        {"data": {"text": "x" * outbox.BODY_BYTES_MAX}},
    ],
    ids=lambda wrong: str(wrong)[:30],
)
def test_unusable_message_is_refused(shop: Settings, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError), transaction.atomic():  # noqa: PT011 (which of them, the parameters say)
        outbox.enqueue(**{"topic": "order.paid", "data": {}, "key": "1", **wrong})

    assert not models.OutboxMessage.objects.exists()


@nothing_waits
def test_named_destination_must_be_configured(shop: Settings) -> None:
    """Nobody may think that the warehouse was told, when its name is misspelt."""
    with pytest.raises(LookupError, match="wharehouse"), transaction.atomic():
        outbox.enqueue(topic="order.paid", data={}, key="1", destinations=["shop", "wharehouse"])


# What is sent ---------------------------------------------------------------------------------------------------------


def test_booked_transfer_is_told(shop: Settings, deliver: Deliver, receiver: Receiver) -> None:
    """One message for one transfer, known by its fact and not by its row; a re-delivery tells nothing."""
    for _ in range(2):
        deliver(
            "payment.captured", event_id="evt_1", payment="p", account="merchant-1", amount=700, reference="order-7"
        )

    status, counts = relay_once()

    assert (status, counts["sent"]) == (0, 1)
    (request,) = receiver.requests
    said = json.loads(request.body)
    assert said["type"] == "payment.captured"
    assert said["data"] == {
        "transfer": "demo:p:captured",
        "payment": "p",
        "reference": "order-7",
        "account": "merchant-1",
        "amount": 700,
        "currency": "IDR",
        "event": "evt_1",
    }
    row = models.OutboxMessage.objects.get()
    assert (row.key, row.state, row.attempts, row.last_error) == (request.id, "sent", 1, "")
    assert row.key == outbox.key_of("shop", "demo:p:captured")
    assert row.sent_at is not None
    assert relay_once()[1]["sent"] == 0


def test_message_is_signed_with_every_secret(shop: Settings, enqueue: Enqueue, receiver: Receiver) -> None:
    """Verified by the official library; the body is the stored text byte for byte."""
    shop.PAYMENTS_OUTBOX["shop"]["secrets"] = (receivers.SECRET, receivers.OTHER_SECRET)
    row = enqueue("order-1")
    text = '{"type": "order.paid",  "data": {"name": "Ayu — é"}}'
    models.OutboxMessage.objects.filter(pk=row.pk).update(body=text)

    relay_once()

    (request,) = receiver.requests
    assert request.body == text.encode()
    assert request.headers["content-type"] == "application/json"
    assert request.headers["webhook-id"] == "shop:app:order-1"
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    for secret in (receivers.SECRET, receivers.OTHER_SECRET):
        assert standardwebhooks.Webhook(secret).verify(request.body, dict(request.headers))


def test_mail_is_told_too(shop: Settings, enqueue: Enqueue) -> None:
    """A mailto: destination, with a Message-ID that is the same on every try."""
    shop.PAYMENTS_OUTBOX["office"] = {"url": "mailto:office@example.com,boss@example.com", "secrets": ()}
    row = enqueue("order-1", "office", order=1)
    relay_once()
    models.OutboxMessage.objects.filter(pk=row.pk).update(state="ready")
    make_due(row)

    relay_once()

    first, second = mail.outbox
    assert first.to == ["office@example.com", "boss@example.com"]
    assert first.subject == "order.paid"
    assert json.loads(str(first.body))["data"] == {"order": 1}
    assert first.extra_headers == second.extra_headers
    assert first.extra_headers["webhook-id"] == "office:app:order-1"


def test_mail_server_that_is_away_is_a_failed_try(shop: Settings, enqueue: Enqueue) -> None:
    shop.PAYMENTS_OUTBOX["office"] = {"url": "mailto:office@example.com", "secrets": ()}
    shop.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    shop.EMAIL_HOST, shop.EMAIL_PORT = "127.0.0.1", free_port()
    row = enqueue("order-1", "office")

    assert relay_once()[1]["failed"] == 1

    row.refresh_from_db()
    assert (row.state, row.attempts) == ("ready", 1)
    assert "mail server" in row.last_error


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


# What fails -----------------------------------------------------------------------------------------------------------


@nothing_waits
@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 404, 410, 500, 503])
def test_anything_but_2xx_is_tried_again(enqueue: Enqueue, receiver: Receiver, status: int) -> None:
    """A redirect too, and whereto is not asked. The row tells staff what the receiver said."""
    receiver.behave = lambda request: Reply(status, {"Location": receiver.url("/elsewhere")}, b"out of\x00 order")
    row = enqueue()

    exit_status, counts = relay_once()

    assert (exit_status, counts["failed"], counts["dead"]) == (0, 1, 0)
    assert [request.path for request in receiver.requests] == ["/hook"]
    row.refresh_from_db()
    assert (row.state, row.attempts, row.sent_at) == ("ready", 1, None)
    assert row.last_error == f"HTTP {status}: " + ("a redirect, not followed" if status < 400 else "out of order")


@nothing_waits
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_success(enqueue: Enqueue, receiver: Receiver, status: int) -> None:
    receiver.behave = lambda request: Reply(status)
    enqueue()

    assert relay_once()[1]["sent"] == 1


def test_backoff_doubles_up_to_its_cap(shop: Settings) -> None:
    """With up to half of it taken off by chance, never more than the cap."""
    shop.PAYMENTS_OUTBOX_BACKOFF_MAX_MS = 5000
    random.seed(1)

    waits = {failures: [relay.backoff_s(failures) for _ in range(200)] for failures in (1, 2, 3, 4, 1000)}

    for failures, most in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (1000, 5.0)):
        assert most / 2 <= min(waits[failures]) < 0.55 * most
        assert 0.95 * most < max(waits[failures]) <= most


def test_message_is_dead_after_its_tries(
    enqueue: Enqueue, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """The same id on each of them; then a finding, an error in the log, and no more tries."""
    receiver.behave = lambda request: Reply(500)
    row = enqueue("order-1")
    results = []
    for _ in range(4):
        make_due(row)
        results.append(relay_once()[0])

    assert results == [0, 0, 1, 0]
    said = [record.message for record in caplog.records if record.name == "payments.relay"]
    assert said == ["message_not_sent", "message_not_sent", "message_given_up"]
    assert receiver.ids() == {"shop:app:order-1": 3}
    row.refresh_from_db()
    assert (row.state, row.attempts) == ("dead", 3)
    finding = models.Finding.objects.get(closed_at=None)
    assert (finding.kind, finding.subject) == ("outbox_dead", row.key)
    assert finding.detail == {"destination": "shop", "topic": "order.paid", "attempts": 3, "error": "HTTP 500"}


def test_requeued_message_has_all_its_tries_again(shop: Settings, enqueue: Enqueue, receiver: Receiver) -> None:
    shop.PAYMENTS_OUTBOX_TRIES_MAX = 1
    receiver.behave = lambda request: Reply(500)
    row, sent = enqueue("order-1"), enqueue("order-2")
    models.OutboxMessage.objects.filter(pk=sent.pk).update(state="sent")
    relay_once()

    with pytest.raises(ValueError, match="reason"):
        outbox.requeue([row.pk], why=staff.Why(actor="ayu", reason=" "))
    requeued = outbox.requeue([row.pk, sent.pk], why=staff.Why(actor="ayu", reason="their disk was full"))

    assert requeued == 1
    assert not models.Finding.objects.filter(closed_at=None).exists()
    action = models.StaffAction.objects.get()
    assert (action.actor, action.action, action.subject) == ("ayu", "requeue", row.key)
    receiver.behave = lambda request: receivers.ACCEPTED
    assert relay_once()[1]["sent"] == 1
    row.refresh_from_db()
    assert (row.state, row.attempts) == ("sent", 1)


@nothing_waits
@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [
        ("20", 19, 20),
        ("99999999999999999999", 59, 60),
        ("0", 0, 1),
        ("soon", 0, 1),
        ("-5", 0, 1),
        (lambda: (datetime.now(UTC) + timedelta(seconds=30)).strftime("%a, %d %b %Y %H:%M:%S GMT"), 28, 30),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0, 1),
    ],
    ids=["seconds", "for_ever", "zero", "words", "negative", "date", "past"],
)
def test_retry_after_is_honoured_and_bounded(
    enqueue: Enqueue, receiver: Receiver, asked: Any, least: float, most: float
) -> None:
    """Up to PAYMENTS_OUTBOX_BACKOFF_MAX_MS, here 60 s; what says nothing usable leaves the backoff."""
    receiver.behave = lambda request: Reply(503, {"Retry-After": asked() if callable(asked) else asked})
    row = enqueue()

    relay_once()

    assert least <= wait_of(row) <= most


def test_receiver_that_asks_for_time_is_left_alone(enqueue: Enqueue, receiver: Receiver) -> None:
    """The messages behind are not tried and lose no try; the command says how many it left."""
    receiver.behave = lambda request: Reply(429, {"Retry-After": "30"})
    rows = [enqueue(str(number)) for number in range(30)]

    _, counts = relay_once()

    assert counts["failed"] == len(receiver.requests) <= relay.LANE_ROOM_MAX
    assert counts["failed"] + counts["left"] == len(rows)
    assert counts["owed"] == {"shop": {"waiting": 30, "dead": 0}}
    untouched = models.OutboxMessage.objects.filter(attempts=0, due_at__lte=datetime.now(UTC))
    assert untouched.count() == counts["left"]


def test_once_tries_each_due_message_once(shop: Settings, enqueue: Enqueue, receiver: Receiver) -> None:
    """Also where the next try is due again at once, and where nobody listens."""
    shop.PAYMENTS_OUTBOX_BACKOFF_MS = shop.PAYMENTS_OUTBOX_BACKOFF_MAX_MS = 1
    shop.PAYMENTS_OUTBOX_TRIES_MAX = 100
    shop.PAYMENTS_OUTBOX["nobody"] = {"url": f"http://127.0.0.1:{free_port()}/", "secrets": (receivers.SECRET,)}
    receiver.behave = lambda request: Reply(500)
    for number in range(20):
        enqueue(str(number))
        enqueue(str(number), "nobody")

    _, counts = relay_once()

    assert counts["failed"] == 40
    assert set(receiver.ids().values()) == {1}
    assert set(models.OutboxMessage.objects.values_list("attempts", flat=True)) == {1}


def test_what_is_not_due_waits(enqueue: Enqueue, receiver: Receiver) -> None:
    row = enqueue()
    models.OutboxMessage.objects.filter(pk=row.pk).update(due_at=datetime.now(UTC) + timedelta(seconds=5))

    assert relay_once()[1]["sent"] == 0
    assert receiver.requests == []


def test_a_bug_costs_a_try_and_not_the_lane(enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """What raises in a try is a failed try; the place in the lane is free again."""

    def send(self: Any, message: outbox.Message, *, deadline: float) -> destinations.Tried:
        raise ZeroDivisionError

    monkeypatch.setattr(destinations.Receiver, "send", send)
    for number in range(2 * relay.LANE_ROOM_MAX):
        enqueue(str(number))

    assert relay_once()[1]["failed"] == 2 * relay.LANE_ROOM_MAX
    assert models.OutboxMessage.objects.filter(last_error__contains="ZeroDivisionError").count() == 16
    assert limits.get("relay").in_use == 0


# Time and bytes -------------------------------------------------------------------------------------------------------


class RawServer:
    """Accepts, reads a request, and does to the connection what the test says."""

    def __init__(self, answer: Callable[[socket.socket], None], *, tls: ssl.SSLContext | None = None) -> None:
        self._answer, self._tls = answer, tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.errors: list[Exception] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "RawServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        self._listener.settimeout(5)
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        with client:
            client.settimeout(5)
            try:
                self._talk(client)
            except OSError as error:
                self.errors.append(error)

    def _talk(self, client: socket.socket) -> None:
        if self._tls is None:
            read_request(client)
            self._answer(client)
            return
        with self._tls.wrap_socket(client, server_side=True) as secure:
            read_request(secure)
            self._answer(secure)


def read_request(client: socket.socket) -> None:
    """Read all of it: a connection closed with something unread loses its answer."""
    request = b""
    while not request.endswith(b"}}"):  # of the message's JSON
        piece = client.recv(65536)
        if not piece:
            raise ConnectionResetError
        request += piece


def drip_head(client: socket.socket) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000:
        client.sendall(bytes([byte]))
        time.sleep(0.02)


def drip_continues(client: socket.socket) -> None:
    for _ in range(1000):
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.01)


def say_nothing(client: socket.socket) -> None:
    while client.recv(65536):
        pass


def flood_head(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(10_000):
        client.sendall(b"X: " + b"x" * 1000 + b"\r\n")


def say_rubbish(client: socket.socket) -> None:
    client.sendall(b"\x00\xff rubbish\r\n\r\n")


def hang_up(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (drip_head, "no answer in time"),
        (drip_continues, "no answer in time"),
        (say_nothing, "no answer in time"),
        (flood_head, "no usable answer (HTTPException)"),
        (say_rubbish, "no usable answer (BadStatusLine)"),
        (hang_up, "no usable answer (RemoteDisconnected)"),
    ],
)
def test_try_ends_in_time_whatever_the_receiver_does(
    shop: Settings, enqueue: Enqueue, answer: Callable[[socket.socket], None], error: str
) -> None:
    shop.PAYMENTS_OUTBOX_TIMEOUT_MS = 400
    with RawServer(answer) as server:
        shop.PAYMENTS_OUTBOX["shop"]["url"] = f"http://127.0.0.1:{server.port}/"
        row = enqueue()
        began_at = time.monotonic()

        _, counts = relay_once()

        assert time.monotonic() - began_at < 0.8
    assert counts["failed"] == 1
    row.refresh_from_db()
    assert row.last_error == error


def drip_body(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(500):
        client.sendall(b"x")
        time.sleep(0.01)


def flood_body(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(1000):
        client.sendall(b"x" * 65536)


@pytest.mark.parametrize("answer", [drip_body, flood_body])
def test_accepted_is_accepted_however_its_body_goes_on(
    shop: Settings, enqueue: Enqueue, answer: Callable[[socket.socket], None]
) -> None:
    """The verdict is in the first line; the rest is neither waited for nor read beyond its limit."""
    with RawServer(answer) as server:
        shop.PAYMENTS_OUTBOX["shop"]["url"] = f"http://127.0.0.1:{server.port}/"
        enqueue()
        began_at = time.monotonic()

        assert relay_once()[1]["sent"] == 1
        assert time.monotonic() - began_at < 1.5
    assert server.errors  # we hung up on it


# Where to -------------------------------------------------------------------------------------------------------------


def test_private_address_is_not_called(shop: Settings, enqueue: Enqueue, receiver: Receiver) -> None:
    """Unless PAYMENTS_OUTBOX_ALLOW_HOSTS names the host."""
    shop.PAYMENTS_OUTBOX_ALLOW_HOSTS = ("localhost", "10.0.0.1")
    row = enqueue()

    assert relay_once()[1]["failed"] == 1

    assert receiver.requests == []
    row.refresh_from_db()
    assert "127.0.0.1: not a public address" in row.last_error


def test_host_may_be_allowed_by_name(shop: Settings, enqueue: Enqueue, receiver: Receiver) -> None:
    shop.PAYMENTS_OUTBOX_ALLOW_HOSTS = ("LOCALHOST",)
    shop.PAYMENTS_OUTBOX["shop"]["url"] = f"http://LocalHost.:{receiver.port}/a%20b?c=d"
    enqueue()

    assert relay_once()[1]["sent"] == 1
    (request,) = receiver.requests
    assert request.path == "/a%20b?c=d"
    assert request.headers["host"] == f"LocalHost.:{receiver.port}"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch, shop: Settings) -> None:
    """The name receiver.test is this machine, and may be called."""
    original = socket.getaddrinfo

    def look_up(host: str, *args: Any, **options: Any) -> Any:
        return original("127.0.0.1" if host.endswith(".test") else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    shop.PAYMENTS_OUTBOX_ALLOW_HOSTS = ("receiver.test", "other.test")


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trust the tests' own certificate, whose name is receiver.test."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "receiver.pem"))
    wire.tls.cache_clear()
    yield
    wire.tls.cache_clear()


def tls_receiver() -> RawServer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "receiver.pem", CERTIFICATES / "receiver.key")
    return RawServer(lambda client: client.sendall(b"HTTP/1.1 204 No Content\r\n\r\n"), tls=context)


@pytest.mark.usefixtures("named", "trusted")
def test_tls_is_verified_with_the_urls_host(shop: Settings, enqueue: Enqueue) -> None:
    with tls_receiver() as server:
        shop.PAYMENTS_OUTBOX["shop"]["url"] = f"https://receiver.test:{server.port}/"
        enqueue()

        assert relay_once()[1]["sent"] == 1


@pytest.mark.usefixtures("named", "trusted")
def test_certificate_of_another_host_is_refused(shop: Settings, enqueue: Enqueue) -> None:
    with tls_receiver() as server:
        shop.PAYMENTS_OUTBOX["shop"]["url"] = f"https://other.test:{server.port}/"
        row = enqueue()

        assert relay_once()[1]["failed"] == 1
    row.refresh_from_db()
    assert "TLS with other.test: Hostname mismatch" in row.last_error


@pytest.mark.usefixtures("named")
def test_unknown_certificate_is_refused(shop: Settings, enqueue: Enqueue) -> None:
    with tls_receiver() as server:
        shop.PAYMENTS_OUTBOX["shop"]["url"] = f"https://receiver.test:{server.port}/"
        row = enqueue()

        assert relay_once()[1]["failed"] == 1
    row.refresh_from_db()
    assert "TLS with receiver.test: self-signed certificate" in row.last_error


# Leases ---------------------------------------------------------------------------------------------------------------


def test_taken_message_is_nobody_elses_until_its_lease_ends(enqueue: Enqueue) -> None:
    enqueue()

    (first,) = outbox.take({"shop": 5}, lease_s=0.2)
    assert outbox.take({"shop": 5}, lease_s=5) == []
    time.sleep(0.25)
    (second,) = outbox.take({"shop": 5}, lease_s=5)

    assert second.key == first.key


def test_renewed_lease_lasts_from_then_on(enqueue: Enqueue) -> None:
    """Also one that had ended, as long as nobody took the message; a message that another one took stays its own."""
    enqueue()
    (mine,) = outbox.take({"shop": 1}, lease_s=0)
    outbox.renew([mine], lease_s=5)
    assert outbox.take({"shop": 1}, lease_s=5) == []

    outbox.renew([mine], lease_s=0)
    (others,) = outbox.take({"shop": 1}, lease_s=5)
    outbox.renew([mine], lease_s=0)

    assert outbox.take({"shop": 1}, lease_s=5) == []
    assert outbox.record([], [outbox.Failure(mine, "stale", 0)], tries_max=1) == outbox.Recorded()
    assert outbox.record([], [outbox.Failure(others, "HTTP 500", 0)], tries_max=9) == outbox.Recorded(failed=1)


def test_slow_receiver_is_sent_to_once(
    shop: Settings, enqueue: Enqueue, receiver: Receiver, close_connections: None
) -> None:
    """Slower than a lease: it is renewed, and another relay finds nothing to take."""
    shop.PAYMENTS_OUTBOX_TIMEOUT_MS = 10_000
    receiver.behave = lambda request: Reply(after_s=relay.LEASE_S + 1.0)
    enqueue()
    counts: list[relay.Counts] = []

    def send() -> None:
        counts.append(relay.Relay(destinations.configured()).run_once())
        connection.close()

    first = threading.Thread(target=send)
    first.start()
    time.sleep(relay.LEASE_S + 0.5)
    assert relay_once()[1]["sent"] == 0
    first.join(timeout=10)

    assert counts[0].sent == 1
    assert receiver.ids() == {"shop:app:1": 1}


def test_stale_failure_changes_nothing(enqueue: Enqueue) -> None:
    """A relay that was frozen says that it failed, when another has the message: it may be arriving right now."""
    row = enqueue()
    (stale,) = outbox.take({"shop": 1}, lease_s=0)
    (fresh,) = outbox.take({"shop": 1}, lease_s=5)

    recorded = outbox.record([], [outbox.Failure(stale, "frozen", 100)], tries_max=1)
    assert recorded == outbox.Recorded()
    outbox.record([fresh], [], tries_max=1)

    row.refresh_from_db()
    assert (row.state, row.attempts) == ("sent", 1)


def test_late_success_counts(enqueue: Enqueue) -> None:
    """Also when another relay gave the message up meanwhile: it did arrive. Its finding is closed."""
    row = enqueue()
    (slow,) = outbox.take({"shop": 1}, lease_s=0)
    (other,) = outbox.take({"shop": 1}, lease_s=5)
    outbox.record([], [outbox.Failure(other, "HTTP 500", 1)], tries_max=1)
    assert models.Finding.objects.filter(kind="outbox_dead", closed_at=None).exists()

    outbox.record([slow], [], tries_max=1)
    assert outbox.record([slow], [], tries_max=1) == outbox.Recorded()  # said twice, counted once

    row.refresh_from_db()
    assert row.state == "sent"
    assert not models.Finding.objects.filter(closed_at=None).exists()


@nothing_waits
def test_take_gives_each_destination_its_room(shop: Settings, enqueue: Enqueue) -> None:
    """The longest due first; a destination with many leaves the others theirs."""
    shop.PAYMENTS_OUTBOX["other"] = shop.PAYMENTS_OUTBOX["shop"]
    for number in range(50):
        enqueue(str(number))
    enqueue("last", "other")

    taken = outbox.take({"shop": 3, "other": 3}, lease_s=5)

    assert {message.key for message in taken} == {"shop:app:0", "shop:app:1", "shop:app:2", "other:app:last"}


# The command ----------------------------------------------------------------------------------------------------------


@nothing_waits
@pytest.mark.parametrize(
    ("url", "secrets", "named"),
    [
        ("ftp://example.com/", (receivers.SECRET,), "PAYMENTS_OUTBOX_URL_SHOP"),
        ("http:///path", (receivers.SECRET,), "PAYMENTS_OUTBOX_URL_SHOP"),
        ("http://example.com:0/", (receivers.SECRET,), "PAYMENTS_OUTBOX_URL_SHOP"),
        ("http://example.com:99999/", (receivers.SECRET,), "PAYMENTS_OUTBOX_URL_SHOP"),
        ("http://exa mple.com/", (receivers.SECRET,), "PAYMENTS_OUTBOX_URL_SHOP"),
        ("http://[::1/", (receivers.SECRET,), "PAYMENTS_OUTBOX_URL_SHOP"),
        ("http://user:word@example.com/", (receivers.SECRET,), "PAYMENTS_OUTBOX_URL_SHOP"),
        ("http://example.com/\r\nX: y", (receivers.SECRET,), "PAYMENTS_OUTBOX_URL_SHOP"),
        ("mailto:nobody", (), "PAYMENTS_OUTBOX_URL_SHOP"),
        ("mailto:a@example.com,b@example.com%0ABcc:c@example.com", (), "PAYMENTS_OUTBOX_URL_SHOP"),
        ("http://example.com/", (), "PAYMENTS_OUTBOX_SECRETS_SHOP"),
        ("http://example.com/", ("whsec_",), "PAYMENTS_OUTBOX_SECRETS_SHOP"),
        ("http://example.com/", ("whsec_!",), "PAYMENTS_OUTBOX_SECRETS_SHOP"),
    ],
)
def test_misconfigured_destination_is_named(shop: Settings, url: str, secrets: tuple[str, ...], named: str) -> None:
    shop.PAYMENTS_OUTBOX = {"shop": {"url": url, "secrets": secrets}}

    status, said = relay_once()

    assert status == 2
    assert named in said["error"]


@nothing_waits
def test_nobody_to_tell(settings: Settings) -> None:
    """Once: nothing is due. For ever: that would be waiting for nothing."""
    settings.PAYMENTS_OUTBOX = {}

    assert relay_once()[0] == 0
    status, said = relay_outbox()
    assert status == 2
    assert "PAYMENTS_OUTBOX_DESTINATIONS" in said["error"]


def test_what_is_owed_to_a_destination_no_longer_configured_is_shown(shop: Settings, enqueue: Enqueue) -> None:
    enqueue()
    shop.PAYMENTS_OUTBOX = {}

    assert relay_once()[1]["owed"] == {"shop": {"waiting": 1, "dead": 0}}


@nothing_waits
def test_each_destination_has_a_place(shop: Settings) -> None:
    """More destinations than tries at once can't be kept apart, and so are refused."""
    shop.PAYMENTS_OUTBOX = {f"shop-{number}": shop.PAYMENTS_OUTBOX["shop"] for number in range(65)}

    assert relay_once()[0] == 2


def test_relay_outlives_an_outage_of_the_database(
    enqueue: Enqueue, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was under way is recorded afterwards; nothing is sent twice."""
    enqueue("1")
    record, failures = outbox.record, iter([OperationalError("away")] * 2)

    def sometimes_away(*args: Any, **options: Any) -> outbox.Recorded:
        for failure in failures:
            raise failure
        return record(*args, **options)

    monkeypatch.setattr(outbox, "record", sometimes_away)
    monkeypatch.setattr(relay, "OUTAGE_PAUSE_S", 0.01)

    def until_sent(counts: relay.Counts) -> None:
        if counts.sent == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        relay.Relay(destinations.configured(), on_progress=until_sent).run()
    assert receiver.ids() == {"shop:app:1": 1}
    assert models.OutboxMessage.objects.get().state == "sent"


def test_outcome_of_the_delivery_does_not_depend_on_the_outbox(shop: Settings, deliver: Deliver) -> None:
    """Nobody waits for a receiver: one that hangs is met by the relay, not by the gateway."""
    shop.PAYMENTS_OUTBOX["shop"]["url"] = "http://192.0.2.1/"

    assert outcome(deliver("payment.captured", payment="p", amount=1)) == "applied"
