"""Deliveries at the edge: bytes posted to the URL, the reply, and the rows."""

import json
from collections.abc import Callable

import pytest
from django.test import RequestFactory

from payments import models, views
from tests.deliveries import Answer, Deliver, outcome

pytestmark = pytest.mark.django_db

Books = Callable[[], dict[str, int]]


def test_capture_is_booked_to_its_payee(deliver: Deliver, books: Books) -> None:
    """A capture moves money from what the gateway owes us to what we owe the merchant."""
    response = deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=10_000)

    assert response.status_code == 200
    assert response.content == b'{"event": "evt_1", "outcome": "applied"}'
    assert books() == {"merchant-1 IDR": 10_000, "receivable:demo IDR": 10_000}
    payment = models.Payment.objects.get()
    assert (payment.reference, payment.captured, payment.status) == ("pay_1", 10_000, "captured")


def test_redelivery_gets_the_stored_reply(deliver: Deliver, books: Books) -> None:
    """The same event again: the same status, headers and bytes, and no second booking."""
    first = deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=10_000)
    again = [
        deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=10_000)
        for _ in range(5)
    ]

    assert {(r.status_code, r.content, str(sorted(r.headers.items()))) for r in again} == {
        (first.status_code, first.content, str(sorted(first.headers.items())))
    }
    assert books()["merchant-1 IDR"] == 10_000


def test_second_event_of_a_known_fact_is_a_duplicate(deliver: Deliver, books: Books) -> None:
    """Another event that tells the same capture books nothing and is noted as a sighting."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    second = deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)

    assert outcome(second) == "duplicate"
    assert books()["merchant-1 IDR"] == 10_000
    assert models.Sighting.objects.count() == 1


def test_same_fact_with_another_amount_is_a_finding(deliver: Deliver, books: Books) -> None:
    """The same business key with another amount: the first stands, a finding opens, no money moves."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    second = deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_001)

    assert outcome(second) == "duplicate"
    assert books()["merchant-1 IDR"] == 10_000
    assert models.Finding.objects.get().kind == "fact_differs"


def test_reused_id_with_other_content_is_refused(deliver: Deliver, books: Books) -> None:
    """The differing fields are named, both contents are kept, nothing of the second is booked."""
    deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=10_000)
    second = deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-2", amount=20_000)
    third = deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-2", amount=20_000)

    assert second.status_code == 422
    assert json.loads(second.content)["differing_fields"] == ["data.account", "data.amount"]
    assert third.content == second.content
    assert books() == {"merchant-1 IDR": 10_000, "receivable:demo IDR": 10_000}
    assert [event.role for event in models.Event.objects.order_by("id")] == ["first", "conflict"]
    assert models.Finding.objects.get().kind == "conflict"


def _quarantined(response: Answer) -> bool:
    return outcome(response) == "quarantined"


@pytest.mark.parametrize(
    "amount",
    ["true", "1.5", "1e400", "1e3", "-1", "0", '"100"', "null", "9" * 5000, "9007199254740992", "[1]", "{}"],
)
def test_unusable_amount_is_quarantined(deliver: Deliver, books: Books, amount: str) -> None:
    """An amount that isn't a positive integer of minor units: acknowledged, kept, not booked, the same twice."""
    body = f'{{"type": "payment.captured", "data": {{"payment": "p", "amount": {amount}, "currency": "IDR"}}}}'.encode()
    first, second = deliver.raw(body, event_id="evt_1"), deliver.raw(body, event_id="evt_1")

    assert _quarantined(first)
    assert second.content == first.content
    assert books() == {}
    event = models.Event.objects.get()
    assert bytes(event.body or b"") == body
    assert models.Finding.objects.get().kind == "quarantined"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'"text"',
        b"not json",
        b'{"type": "payment.captured", "type": "payment.captured"}',
        b'{"type": "payment.captured", "data": {"payment": "p", "amount": 1, "amount": 2, "currency": "IDR"}}',
        b'{"type": "payment.captured", "data": {"payment": "p", "amount": NaN, "currency": "IDR"}}',
        b'{"type": "payment.captured", "data": {"payment": "p", "amount": Infinity, "currency": "IDR"}}',
        b'{"type": "payment.captured", "data": {"payment": "p\\u0000", "amount": 1, "currency": "IDR"}}',
        b'{"type": "payment.captured", "data": {"payment": "p\\ud800", "amount": 1, "currency": "IDR"}}',
        b'{"type": "payment.captured", "data": {"payment": "p", "amount": 1, "currency": "idr"}}',
        b'{"type": "payment.captured", "data": {"payment": 7, "amount": 1, "currency": "IDR", "a\\u0000": 1}}',
        b'{"type": "payment.captured", "data": []}',
        b'{"type": "payment.captured"}',
        b'{"type": 7}',
        b'{"type": "payment.captured", "data": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"type": "payment.captured", "data": {"payment": "' + b"p" * 256 + b'", "amount": 1, "currency": "IDR"}}',
    ],
)
def test_unusable_body_is_quarantined(deliver: Deliver, books: Books, body: bytes) -> None:
    """What is signed and can't be used is kept as it came and answered the same way twice."""
    first, second = deliver.raw(body, event_id="evt_1"), deliver.raw(body, event_id="evt_1")

    assert _quarantined(first)
    assert second.content == first.content
    assert books() == {}
    assert bytes(models.Event.objects.get().body or b"") == body


def test_unknown_type_is_ignored(deliver: Deliver, books: Books) -> None:
    """A type that tells of no money is acknowledged and kept, however odd its name."""
    for number, event_type in enumerate(("customer.created", "", "x" * 10_000, "\x00", "\ud800")):
        body = json.dumps({"type": event_type, "data": {}}).encode()
        assert outcome(deliver.raw(body, event_id=f"evt_{number}")) == "ignored"

    assert books() == {}
    assert models.Event.objects.count() == 5


@pytest.mark.parametrize("error", [OSError("bad chunk"), ValueError("bad trailer"), RuntimeError("bad framing")])
def test_body_that_can_not_be_read_is_refused(small_demo: None, error: Exception) -> None:
    """Whatever the server finds wrong with a body's framing is the sender's mistake: 400, never a 500."""

    class Broken:
        def read(self, size: int) -> bytes:
            raise error

    request = RequestFactory().post("/webhooks/demo/", HTTP_TRANSFER_ENCODING="chunked")
    request.META["wsgi.input"] = Broken()

    assert views.webhook(request, "demo").status_code == 400
    assert not models.Event.objects.exists()
