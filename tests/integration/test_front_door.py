"""The front door: every method, form, framing and header that HTTP allows, and some that it doesn't."""

import json
from collections.abc import Iterator
from itertools import product

import pytest
from django.test import Client
from pytest_django import Settings

from payments import models
from tests import deliveries, serving
from tests.deliveries import Deliver
from tests.serving import Served, WireAnswer

BODY_BYTES_MAX = 1024 * 1024
FORMS = ("/webhooks/demo", "/webhooks/demo/")
METHODS = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "BREW")
PROBLEM = "application/problem+json"
HEADERS = {
    "Content-Type",
    "X-Frame-Options",
    "Content-Length",
    "X-Content-Type-Options",
    "Referrer-Policy",
    "Cross-Origin-Opener-Policy",
}


def assert_problem(response: deliveries.Answer, status: int) -> None:
    """The status, and a document that names the same one."""
    assert response.status_code == status
    assert response["Content-Type"] == PROBLEM
    document = json.loads(response.content)
    assert document["status"] == status
    assert document["title"]


# The application ------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(("method", "form"), [*product(METHODS, FORMS)])
def test_only_post_is_answered(client: Client, small_demo: None, method: str, form: str) -> None:
    """405 and Allow: POST, for an endpoint that exists as for one that doesn't."""
    for path in (form, form.replace("demo", "nobody")):
        response = client.generic(method, path, b"{}")

        assert response.status_code == 405
        assert response["Allow"] == "POST"
        assert response["Content-Type"] == PROBLEM
        if method == "HEAD":
            assert response.content == b""


@pytest.mark.django_db
@pytest.mark.parametrize("form", FORMS)
def test_both_forms_are_one_address(deliver: Deliver, form: str) -> None:
    """With the slash or without: the same event, the same answer, no redirect."""
    signed = deliveries.demo(deliveries.demo_body("order.created", {}), event_id="evt_1")
    first = deliver.client.post("/webhooks/demo", signed.body, "application/json", headers=signed.headers)
    again = deliver.client.post(form, signed.body, "application/json", headers=signed.headers)

    assert (again.status_code, again.content) == (200, first.content)
    assert models.Claim.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/webhooks",
        "/webhooks/",
        "/webhooks//",
        "/webhooks/demo//",
        "/webhooks/demo/more",
        "/webhooks/Demo",
        "/webhooks/demo%20",
        "/webhooks/%64emo%00",
        "/webhooks/%ff%fe",
        "/webhooks/é",
        "/webhooks/..",
        "/webhooks/demo;x=1",
        "/webhooks/demo%2f..%2fstripe",
        "/webhooks/" + "a" * 4000,
        "/webhooks/' OR 1=1 --",
        "//webhooks/demo",
        "/livez/",
    ],
)
def test_what_is_nowhere_is_a_problem(client: Client, small_demo: None, path: str) -> None:
    assert_problem(client.generic("POST", path, b"{}", "application/json"), 404)


@pytest.mark.django_db
def test_a_lost_page_of_staff_is_a_page(client: Client) -> None:
    response = client.get("/admin/nowhere/", secure=True)

    assert response.status_code in (302, 404)
    assert response["Content-Type"].startswith("text/html")


@pytest.mark.django_db
@pytest.mark.parametrize("host", ["evil.example", "", "a b", "testserver:x", "x" * 300, "testserver.evil.example"])
def test_another_host_is_a_problem(client: Client, small_demo: None, host: str) -> None:
    """Not a page with a traceback, and not an ERROR in the log for whoever sends it."""
    response = client.post("/webhooks/demo", b"{}", "application/json", HTTP_HOST=host)

    assert_problem(response, 400)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path", ["/webhooks/demo", "/webhooks/demo/", "/webhooks/nobody", "/livez", "/readyz", "/metrics"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_machines_are_never_redirected(small_demo: None, settings: Settings, path: str, method: str) -> None:
    """With SECURE_SSL_REDIRECT=1, which sends staff to https."""
    settings.SECURE_SSL_REDIRECT = True
    client = Client()
    assert client.get("/admin/").status_code == 301

    response = client.generic(method, path, b"{}")

    assert response.status_code not in range(300, 400)
    assert "Location" not in response.headers


@pytest.mark.django_db
def test_replies_carry_no_header_of_their_own(deliver: Deliver) -> None:
    """First, again, refused: the same few headers, whatever the caller asks for; no cookie, no language, no time."""
    signed = deliveries.demo(deliveries.demo_body("order.created", {}))
    asked = {"Accept": "text/html", "Accept-Language": "id", "Accept-Encoding": "gzip", "Cookie": "sessionid=x"}
    answers = [
        deliver.client.post("/webhooks/demo", signed.body, "application/json", headers={**signed.headers, **extra})
        for extra in ({}, asked, {"If-None-Match": "*", "Range": "bytes=0-1"}, {"X-Forwarded-Proto": "https"})
    ]
    refused = deliver.client.post("/webhooks/demo", b"{}", "application/json", headers=asked)

    assert len({(answer.status_code, answer.content, str(answer.headers)) for answer in answers}) == 1
    assert set(answers[0].headers) == HEADERS
    assert set(refused.headers) == HEADERS
    assert not any(answer.cookies for answer in [*answers, refused])


@pytest.mark.django_db
@pytest.mark.parametrize(
    "event_id", ["a", "a b", "~", '"', "\\", "<script>", "' OR 1=1 --", "é".encode().hex(), "x" * 255]
)
def test_an_id_is_kept_exactly(deliver: Deliver, event_id: str) -> None:
    first = deliver.raw(deliveries.demo_body("order.created", {}), event_id=event_id)

    assert json.loads(first.content) == {"event": event_id, "outcome": "ignored"}
    assert models.Claim.objects.get().event_id == event_id


# A real server --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving.served(tmp_path_factory.mktemp("front_door"), WEB_CONCURRENCY="1") as made:
        yield made


class Wire:
    """One signed event, sent in any framing."""

    def __init__(self, server: Served, body: bytes | None = None) -> None:
        self.server = server
        self.signed = deliveries.demo(
            body or deliveries.demo_body("order.created", {"note": "n" * 50}), event_id=new_id()
        )
        self.body = self.signed.body

    def send(
        self,
        *headers: str | bytes,
        body: bytes | None = None,
        method: str = "POST",
        host: str = "localhost",
        is_cut: bool = False,
    ) -> WireAnswer:
        """Send the event's headers, these ones, and this body."""
        own = [f"{name}: {value}" for name, value in self.signed.headers.items()]
        lines = [f"{method} /webhooks/demo HTTP/1.1", f"Host: {host}", "Connection: close", *own, *headers]
        head = b"\r\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
        request = head + b"\r\n\r\n" + (self.body if body is None else body)
        return serving.exchange(self.server.app.port, request, is_cut=is_cut)

    def send_plainly(self) -> WireAnswer:
        return self.send(f"Content-Length: {len(self.body)}")

    @property
    def claims(self) -> int:
        event_id = {"event_id": self.signed.headers["webhook-id"]}
        return int(
            self.server.postgres.query("SELECT count(*) FROM payments_claim WHERE event_id = %(event_id)s", event_id)[
                0
            ][0]
        )


def new_id() -> str:
    return f"door-{next(_ids)}"


_ids = iter(range(10**9))


def chunked(body: bytes, *, size: int, extension: bytes = b"", trailer: bytes = b"") -> bytes:
    pieces = [body[begin : begin + size] for begin in range(0, len(body), size)]
    chunks = [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces]
    return b"".join(chunks) + b"0\r\n" + trailer + b"\r\n"


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(("extension", "trailer"), [(b"", b""), (b";a=b", b""), (b"", b"X-Sum: 1\r\n")])
def test_chunks_are_one_body(server: Served, size: int, extension: bytes, trailer: bytes) -> None:
    """However it is cut, the bytes are what was signed, and its answer is that of the plain framing."""
    wire = Wire(server)

    first = wire.send(
        "Transfer-Encoding: chunked", body=chunked(wire.body, size=size, extension=extension, trailer=trailer)
    )

    assert first.status == 200
    assert wire.send_plainly().lasting == first.lasting
    assert wire.claims == 1


@pytest.mark.parametrize(
    ("headers", "statuses"),
    [
        (["Content-Length: {size}", "Transfer-Encoding: chunked"], {400}),
        (["Content-Length: {size}", "Content-Length: 5"], {400}),
        (["Content-Length: {size}", "Content-Length: {size}"], {400}),
        (["Content-Length: +{size}"], {400}),
        (["Content-Length: -1"], {400}),
        (["Content-Length: 0x10"], {400}),
        (["Content-Length: 1e2"], {400}),
        (["Content-Length: \u0661"], {400}),
        (["Content-Length:"], {400}),
        (["Content-Length: " + "9" * 19], {400, 413}),
        (["Content-Length: " + "9" * 5000], {400, 413}),
        (["Content-Length: 5"], {400}),
        ([], {400}),
        (["Transfer-Encoding: identity", "Content-Length: {size}"], {400}),
        (["Transfer-Encoding: chunked, chunked"], {400}),
        (["Transfer-Encoding: x\tchunked"], {400, 501}),
        (["X-Odd: a\x00b", "Content-Length: {size}"], {400}),
        (["X Odd: a", "Content-Length: {size}"], {400}),
        ([" X-Odd: folded", "Content-Length: {size}"], {400}),
        (["X-Big: " + "a" * 60_000, "Content-Length: {size}"], {431}),
        ([*(f"X-{n}: 1" for n in range(65)), "Content-Length: {size}"], {431}),
        (["webhook-id: another", "Content-Length: {size}"], {400}),
    ],
)
def test_what_is_not_http_is_refused(server: Served, headers: list[str], statuses: set[int]) -> None:
    """A framing that two servers might read differently, an oversized head: refused, nothing of it is claimed."""
    wire = Wire(server)

    is_chunked = any("chunked" in header for header in headers)
    body = chunked(wire.body, size=50) if is_chunked else wire.body

    answer = wire.send(*(header.replace("{size}", str(len(body))) for header in headers), body=body)

    assert answer.status in statuses
    assert wire.claims == 0


@pytest.mark.parametrize(
    "header",
    ["X-Odd: hé", b"X-Odd: \xff\xfe", "X-Big: " + "a" * 8000, "X-Empty:", "webhook_id: other", "Expect: 100-continue"],
)
def test_odd_headers_of_others_do_not_matter(server: Served, header: str | bytes) -> None:
    """What a proxy adds, in any bytes, within the limits."""
    wire = Wire(server)

    assert wire.send(header, f"Content-Length: {len(wire.body)}").status in (100, 200)
    assert wire.claims == 1


def test_a_name_with_an_underscore_is_nobodys(server: Served) -> None:
    """`Webhook_Id` must not pass for `Webhook-Id`."""
    wire = Wire(server)
    wire.signed.headers["webhook_id"] = wire.signed.headers["webhook-id"]
    del wire.signed.headers["webhook-id"]

    assert wire.send_plainly().status == 400


@pytest.mark.parametrize("framing", ["length", "chunked", "many chunks"])
@pytest.mark.parametrize(
    ("size", "status"), [(BODY_BYTES_MAX, 200), (BODY_BYTES_MAX + 1, 413), (3 * BODY_BYTES_MAX, 413)]
)
def test_the_size_limit_holds_for_every_framing(server: Served, framing: str, size: int, status: int) -> None:
    wire = Wire(server, b"{" + b" " * (size - 2) + b"}")

    if framing == "length":
        answer = wire.send_plainly()
    else:
        pieces = chunked(wire.body, size=size if framing == "chunked" else 50_000)
        answer = wire.send("Transfer-Encoding: chunked", body=pieces)

    assert answer.status == status
    assert answer.header("content-type") == ("application/json" if status == 200 else PROBLEM)
    assert wire.claims == (1 if status == 200 else 0)


def test_a_length_that_lies(server: Served) -> None:
    """Too short: other bytes than were signed. Too long: never whole, so never a delivery."""
    wire = Wire(server)

    assert wire.send(f"Content-Length: {len(wire.body) - 1}").status == 400
    assert wire.send(f"Content-Length: {len(wire.body) + 1}", is_cut=True).status in (0, 400)
    assert wire.send("Transfer-Encoding: chunked", body=chunked(wire.body, size=7)[:-9], is_cut=True).status in (0, 400)
    assert wire.claims == 0
    assert wire.send_plainly().status == 200


@pytest.mark.parametrize("method", ["HEAD", "GET", "TRACE", "BREW"])
def test_other_methods_on_the_wire(server: Served, method: str) -> None:
    """HEAD has no body, and leaves no line in the log either."""
    answer = Wire(server).send("Content-Length: 0", body=b"", method=method)

    assert (answer.status, answer.header("allow")) == (405, "POST")
    assert (answer.body == b"") == (method == "HEAD")
    assert "no-body response" not in server.app.read_log()
