"""Midtrans with `confirms` on: nothing is believed before the status API bears it out, and no answer hurts."""

import base64
import json
import logging
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from io import StringIO
from typing import Any, Final

import pytest
from django.core.management import call_command
from django.test import Client
from pytest_django import Settings

from payments import addresses, conf, confirmation, intake, limits, models, wire
from payments.gateways import base
from tests import books, deliveries
from tests.deliveries import Answer, outcome
from tests.unit.gateways import cases, signing

pytestmark = pytest.mark.django_db

SECRET: Final = deliveries.SECRETS["MIDTRANS"]
CARD: Final = "6f1f7c0e-3a52-4f0a-9d0e-51a1c2d3e4f5"
CARD_MINOR: Final = 25_000_000
Respond = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class StatusApi:
    """A small server in the place of Midtrans's. `respond` decides what it answers."""

    url: str
    respond: Respond
    asked: list[tuple[str, str]] = field(default_factory=list)  # path, Authorization


def says(body: bytes, status: int = 200, **headers: str) -> Respond:
    def respond(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    return respond


def status_of(name: str, **changes: Any) -> bytes:
    """Return the status API's answer in the shape of a notification."""
    return signing.SIGN["midtrans"](cases.variant(cases.payload("midtrans", name), **changes), SECRET).body


@pytest.fixture
def api(settings: Settings, small_demo: None) -> Iterator[StatusApi]:
    """The server, and the midtrans endpoint set to ask it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append((self.path, self.headers["Authorization"]))
            served.respond(self)

        def log_message(self, *arguments: Any) -> None:
            pass

    class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
        daemon_threads = True

        def handle_error(self, *arguments: Any) -> None:
            pass  # whoever asked hung up

    with Server(("127.0.0.1", 0), Handler) as server:
        served = StatusApi(f"http://127.0.0.1:{server.server_address[1]}", says(status_of("settlement__card")))
        settings.PAYMENTS_CONFIRM_URL = served.url
        models.Endpoint.objects.filter(slug="midtrans").update(confirms=True)
        conf.read_copy()
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield served
        server.shutdown()


def notify(client: Client, name: str = "settlement__card", **changes: Any) -> Answer:
    signed = signing.SIGN["midtrans"](cases.variant(cases.payload("midtrans", name), **changes), SECRET)
    return client.post("/webhooks/midtrans/", signed.body, "application/json")


def retry(*options: str) -> dict[str, Any]:
    printed = StringIO()
    with pytest.raises(SystemExit):
        call_command("retry", *options, "--json", stdout=printed, stderr=StringIO())
    told: dict[str, Any] = json.loads(printed.getvalue())
    return told


def assert_nothing_is_claimed() -> None:
    assert models.Claim.objects.count() == models.Event.objects.count() == models.Finding.objects.count() == 0
    assert books.read().balances == {}


# What it says is believed ---------------------------------------------------------------------------------------------


def test_borne_out_notification_is_booked(api: StatusApi, client: Client) -> None:
    """One question, with the server key as user name; the books are as if the notification had been believed."""
    response = notify(client)

    assert outcome(response) == "applied"
    credentials = base64.b64encode(f"{SECRET}:".encode()).decode()
    assert api.asked == [(f"/v2/{CARD}/status", f"Basic {credentials}")]
    assert books.read().balances == {("merchant-1", "IDR"): CARD_MINOR, ("receivable:midtrans", "IDR"): CARD_MINOR}


def test_redelivery_needs_no_api(api: StatusApi, client: Client, settings: Settings) -> None:
    """What is claimed is answered from the claim, also while the API is away."""
    first = notify(client)
    settings.PAYMENTS_CONFIRM_URL = "http://127.0.0.1:1"

    again = [notify(client) for _ in range(3)]

    assert {(one.status_code, one.content) for one in again} == {(200, first.content)}
    assert len(api.asked) == 1


def test_what_the_api_says_takes_the_place_of_the_notification(api: StatusApi, client: Client) -> None:
    """The settlement's notification comes late: the transaction has been refunded in part meanwhile."""
    api.respond = says(status_of("partial_refund__confirmed"))

    assert outcome(notify(client)) == "applied"
    assert books.read().payments[CARD] | {"captured": CARD_MINOR, "refunded": 8_000_000} == books.read().payments[CARD]

    assert outcome(notify(client, "partial_refund__confirmed")) == "duplicate"


def test_forged_status_is_not_believed(api: StatusApi, client: Client) -> None:
    """The signature of an authorisation is good under "settlement" too; the true settlement's id must stay free."""
    api.respond = says(status_of("authorize__card"))
    forged = notify(client)
    assert forged.status_code == 503
    assert_nothing_is_claimed()

    api.respond = says(status_of("settlement__card"))
    assert outcome(notify(client)) == "applied"


def test_answer_that_cant_be_used_is_quarantined(api: StatusApi, client: Client) -> None:
    """It is about this very transaction, and staff must see it."""
    api.respond = says(status_of("settlement__card", currency="USD"))

    assert outcome(notify(client)) == "quarantined"
    assert books.read().balances == {}


def test_events_without_facts_ask_nothing(api: StatusApi, client: Client) -> None:
    """What books nothing needs no confirmation."""
    assert outcome(notify(client, transaction_status="renewed")) == "ignored"
    assert outcome(notify(client, "partial_chargeback__card")) == "quarantined"
    assert api.asked == []


def test_wrong_signature_asks_nothing(api: StatusApi, client: Client) -> None:
    """Nobody who can't sign can make us call anybody."""
    body = cases.variant(cases.payload("midtrans", "settlement__card"), signature_key="0" * 128)

    assert client.post("/webhooks/midtrans/", body, "application/json").status_code == 400
    assert api.asked == []


def test_other_endpoints_ask_nothing(api: StatusApi, client: Client) -> None:
    """`confirms` at a gateway that has nothing to be asked changes nothing."""
    models.Endpoint.objects.filter(slug="xendit").update(confirms=True)
    conf.read_copy()
    body = cases.payload("xendit", "payment.capture__captures")
    signed = signing.SIGN["xendit"](body, deliveries.SECRETS["XENDIT"])

    response = client.post("/webhooks/xendit/", body, "application/json", headers=signed.headers)

    assert outcome(response) == "applied"
    assert api.asked == []


def test_second_payment_of_an_order_is_booked(api: StatusApi, client: Client) -> None:
    """Without confirmation it is quarantined, as it may be forged; here the API vouches for both."""
    another = "7b2c9f10-aaaa-4bbb-8ccc-dddd00000009"
    assert outcome(notify(client)) == "applied"
    api.respond = says(status_of("settlement__card", transaction_id=another))

    assert outcome(notify(client, transaction_id=another)) == "applied"
    assert books.read().balances["merchant-1", "IDR"] == 2 * CARD_MINOR


def test_second_secret_is_tried(api: StatusApi, client: Client, settings: Settings) -> None:
    """While a server key is being changed the API takes one of two."""
    settings.PAYMENTS_SECRETS = {**settings.PAYMENTS_SECRETS, "MIDTRANS": ("Mid-server-new", SECRET)}
    conf.read_copy()
    good = base64.b64encode(f"{SECRET}:".encode()).decode()

    def take_the_old_one(request: BaseHTTPRequestHandler) -> None:
        is_good = request.headers["Authorization"] == f"Basic {good}"
        says(status_of("settlement__card") if is_good else b"{}", 200 if is_good else 401)(request)

    api.respond = take_the_old_one

    assert outcome(notify(client)) == "applied"
    assert len(api.asked) == 2


@pytest.mark.parametrize(("mode", "host"), [("live", "api.midtrans.com"), ("test", "api.sandbox.midtrans.com")])
def test_api_is_that_of_the_mode(
    api: StatusApi, client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch, mode: str, host: str
) -> None:
    """Without the setting the gateway's own address is asked, over TLS, and never at a private address."""
    settings.PAYMENTS_CONFIRM_URL = ""
    models.Endpoint.objects.filter(slug="midtrans").update(mode=mode)
    conf.read_copy()
    dialled: list[tuple[Any, ...]] = []

    def dial(host: str, port: int, *, is_tls: bool, deadline: float, may_be_private: bool) -> wire.Wire:
        dialled.append((host, port, is_tls, may_be_private))
        raise addresses.Unreachable("not in a test")

    monkeypatch.setattr(wire, "dial", dial)

    assert notify(client).status_code == 503
    assert dialled == [(host, 443, True, False)]


# It is away, slow, or somebody else -----------------------------------------------------------------------------------


def drip(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    for _ in range(100):
        request.wfile.write(b" ")
        request.wfile.flush()
        time.sleep(0.1)


def flood(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    for _ in range(1000):
        request.wfile.write(b" " * 100_000)


REFUSED: Final[dict[str, Respond]] = {
    "garbage": says(b"<html>not found</html>"),
    "not json in utf-8": says(b"\xff\xfe"),
    "empty": says(b""),
    "unknown transaction": says(b'{"status_code": "404", "status_message": "Transaction doesn\'t exist."}', 404),
    "server error with a good body": says(status_of("settlement__card"), 500),
    "too many requests": says(status_of("settlement__card"), 429),
    "redirect": says(status_of("settlement__card"), 302, Location="/v2/elsewhere/status"),
    "unauthorized": says(b"{}", 401),
    "another transaction": says(status_of("settlement__gopay")),
    "another amount": says(status_of("settlement__card", gross_amount="1.00")),
    "signed by somebody else": says(
        signing.SIGN["midtrans"](cases.payload("midtrans", "settlement__card"), "Mid-server-other").body
    ),
    "endless": flood,
    "cut off": lambda request: request.connection.close(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_usable_answer_is_503_and_claims_nothing(api: StatusApi, client: Client, name: str) -> None:
    """The gateway delivers again; then a good answer books it."""
    good, api.respond = api.respond, REFUSED[name]

    response = notify(client)

    assert response.status_code == 503
    assert int(response["Retry-After"]) >= 1
    assert len(api.asked) == 1
    assert_nothing_is_claimed()
    api.respond = good
    assert outcome(notify(client)) == "applied"


@pytest.mark.parametrize("respond", [lambda request: time.sleep(10), drip], ids=["silent", "dripping"])
def test_slow_answer_is_bounded(
    api: StatusApi, client: Client, monkeypatch: pytest.MonkeyPatch, respond: Respond
) -> None:
    """All of it shares one deadline, however many bytes come in time."""
    monkeypatch.setattr(confirmation, "CONFIRM_S", 0.4)
    api.respond = respond
    started_at = time.monotonic()

    assert notify(client).status_code == 503
    assert time.monotonic() - started_at < 1.5
    assert_nothing_is_claimed()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://127.0.0.1", "127.0.0.1:80", "http://[", "http://:80"])
def test_unreachable_api_is_503(api: StatusApi, client: Client, settings: Settings, url: str) -> None:
    """Nobody there, or an address that is none."""
    settings.PAYMENTS_CONFIRM_URL = url

    assert notify(client).status_code == 503
    assert_nothing_is_claimed()


def test_no_time_left_asks_nothing(api: StatusApi, client: Client) -> None:
    """What waited too long for its turn has none left to ask and to settle."""
    endpoint = conf.known_endpoint("midtrans")
    assert endpoint is not None
    signed = signing.SIGN["midtrans"](cases.payload("midtrans", "settlement__card"), SECRET)
    job = intake.receive(endpoint, base.Delivery({}, signed.body, datetime.now(UTC)))

    with pytest.raises(intake.SettlementFailed):
        confirmation.confirm(job, deadline=time.monotonic() + 0.5)
    assert api.asked == []


def test_slow_api_takes_its_own_permits_only(api: StatusApi, client: Client) -> None:
    """Past the limit deliveries that must be confirmed hear 503 soon; others are booked meanwhile."""
    limit = limits.get("confirm")
    entered, leave = threading.Semaphore(0), threading.Event()

    def hold() -> None:
        with limit:
            entered.release()
            leave.wait(10)

    holders = [threading.Thread(target=hold) for _ in range(limit.permits)]
    try:
        for holder in holders:
            holder.start()
            assert entered.acquire(timeout=10)
        assert notify(client).status_code == 503
        assert api.asked == []
        deliver = deliveries.Deliver(client)
        assert outcome(deliver("payment.captured", payment="pay_1", amount=100)) == "applied"
    finally:
        leave.set()
        for holder in holders:
            holder.join()
    assert outcome(notify(client)) == "applied"
    assert limit.in_use == 0


def test_secrets_are_never_logged(api: StatusApi, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """What is logged of a failure says which event, and why."""
    caplog.set_level(logging.DEBUG)
    api.respond = REFUSED["another amount"]

    notify(client)

    (record,) = (record for record in caplog.records if record.getMessage() == "not_confirmed")
    assert record.__dict__["reason"] == "the answer tells another amount"
    credentials = base64.b64encode(f"{SECRET}:".encode()).decode()
    assert not any(secret in str(one.__dict__) for one in caplog.records for secret in (SECRET, credentials))


# Evidence and retry ---------------------------------------------------------------------------------------------------


def test_answer_is_kept_as_evidence(api: StatusApi, client: Client, settings: Settings) -> None:
    """A retry tells what was believed then, and asks nobody again."""
    api.respond = says(status_of("partial_refund__confirmed"))
    notify(client)
    event = models.Event.objects.get()
    settings.PAYMENTS_CONFIRM_URL = "http://127.0.0.1:1"

    assert json.loads(event.headers[base.CONFIRMED])["transaction_status"] == "partial_refund"
    assert "signature" not in json.dumps(event.headers)
    assert retry("--event", event.event_id)["duplicate"] == 1


def test_retry_of_what_was_never_confirmed_asks(api: StatusApi, client: Client) -> None:
    """Quarantined while the endpoint didn't ask yet: a retry now believes nothing that the API doesn't bear out."""
    models.Endpoint.objects.filter(slug="midtrans").update(confirms=False)
    conf.read_copy()
    another = "7b2c9f10-aaaa-4bbb-8ccc-dddd00000009"
    assert outcome(notify(client)) == "applied"
    assert outcome(notify(client, transaction_id=another)) == "quarantined"
    models.Endpoint.objects.filter(slug="midtrans").update(confirms=True)
    api.respond = REFUSED["unknown transaction"]

    forged = retry("--quarantined")
    api.respond = says(status_of("settlement__card", transaction_id=another))
    true = retry("--quarantined")

    assert (forged["quarantined"], true["applied"]) == (1, 1)
    assert len(api.asked) == 2
