"""Personal data is hidden until somebody says why they must see it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from payments.admin import bodies, masks
from payments.models import Event, StaffAction
from tests import staff

pytestmark = pytest.mark.django_db

Deliver = Callable[..., Any]
PERSON = {"email": "budi@example.com", "name": "Budi Santoso", "phone": "+62 812-3456-7890"}
CARD = "4111 1111 1111 1111"


@pytest.fixture
def about_a_person(deliver: Deliver) -> Event:
    """A capture that names its payer, and another content that differs in them alone."""
    data: dict[str, Any] = {"payment": "pay_1", "account": "merchant-1", "amount": 5, "currency": "IDR"}
    deliver("evt_1", **data, customer=PERSON, note=f"paid with {CARD} by siti@example.com")
    deliver("evt_1", **data, customer={**PERSON, "name": "Siti"})
    return Event.objects.get(role="first")


def test_personal_data_is_hidden_on_every_page(about_a_person: Event, viewer: Client) -> None:
    """In the body, and where two are compared."""
    for event in Event.objects.all():
        text = staff.text(viewer, staff.page(event))

        assert "Personal data is hidden." in text
        for value in (*PERSON.values(), "Siti", "siti@example.com", CARD):
            assert value not in text
        assert "pay_1" in text


def test_revealing_shows_all_and_is_recorded(about_a_person: Event, operator: Client) -> None:
    """Once, and nowhere in a cache."""
    answer = operator.post(staff.act("reveal", about_a_person), {"reason": "the customer called"})

    for value in (*PERSON.values(), CARD):
        assert value in answer.content.decode()
    assert answer["Cache-Control"] == "no-store"
    done = StaffAction.objects.get()
    assert (done.actor, done.action, done.subject) == ("operator", "reveal", "demo:evt_1")
    assert "Personal data is hidden." in staff.text(operator, staff.page(about_a_person))


def test_download_is_the_exact_bytes_and_is_recorded(about_a_person: Event, operator: Client) -> None:
    """A browser saves it and never shows it as a page."""
    answer = operator.post(staff.act("download", about_a_person), {"reason": "for the gateway's support"})

    assert about_a_person.body is not None
    assert answer.content == bytes(about_a_person.body)
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["Content-Disposition"].startswith("attachment")
    assert StaffAction.objects.get().action == "download"


NAMES = """email customer_email shopperEmail phone billing_phone first-name cardholderName name_on_card address line1
    postal_code date_of_birth nik maskedCard cvc va_numbers vpa ip_address"""


@pytest.mark.parametrize("name", NAMES.split())
def test_fields_about_people_are_known_by_name(name: str) -> None:
    """As gateways spell them."""
    assert "Budi 17" not in bodies.shown(json.dumps({name: "Budi 17", "id": 1}).encode()).text


OTHER_NAMES = """id amount currency status event_name merchant_name payment created order_id type reference
    transaction_id description card_id payment_method pspReference"""


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_what_staff_work_with_stays_readable(name: str) -> None:
    """Ids, amounts, statuses, times."""
    assert "Budi 17" in bodies.shown(json.dumps({name: "Budi 17"}).encode()).text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("write to budi.s+x@mail.example.co.id now", "write to ••• now"),
        ("+6281234567890", "•••"),
        ("call 081234567890", "call •••"),
        ("4111-1111-1111-1111 or 5555555555554444", "••• or •••"),
        ("4111111111111112", "4111111111111112"),  # no card: the check digit
        ("evt_1796075167194 2026-11-30T10:00:00+07:00 IDR 10.000,00", None),
        ("1796075167194", None),
        ("a@b", None),
    ],
)
def test_what_looks_personal_is_hidden_anywhere(text: str, shown: str | None) -> None:
    """Addresses, telephones and cards; not ids, times and amounts."""
    assert masks.hide(text) == (text if shown is None else shown)


def test_whole_objects_about_people_are_hidden() -> None:
    """With their members' names, so that one sees what there is; a text there is an id."""
    body = b'{"customer": {"id": "cus_1", "tags": ["a", {"b": 7}], "none": null}, "other": {"customer": "cus_1"}}'

    shown = json.loads(bodies.shown(body).text.replace("•••", '"•••"').replace('""', '"'))

    assert shown == {
        "customer": {"id": "•••", "tags": ["•••", {"b": "•••"}], "none": None},
        "other": {"customer": "cus_1"},
    }


@pytest.mark.parametrize(
    "body",
    [
        b'{"email": "a',
        b'{"email": a}',
        b'{"email": "a" "b"}',
        b'[{"email"',
        b'{"email": ["a"',
        b'{"email": {"x": "a@b.example"',
    ],
)
def test_broken_json_hides_no_less(body: bytes) -> None:
    """Whatever can be read of it."""
    assert '"a' not in bodies.shown(body).text.replace('"email"', "")


@pytest.mark.parametrize("piece", ["[", '\\"', '"', "4 ", "a@", "+1 ", '{"email":', "08", '{"a":"'])
def test_hostile_bodies_cost_little(piece: str) -> None:
    """A megabyte of anything is shown in a moment (a fraction of a second; the test's own limit is far above)."""
    shown = bodies.shown(b"[" + piece.encode() * (1_000_000 // len(piece)))

    assert shown.is_cut
    assert len(shown.text) <= bodies.SHOWN_CHARS_MAX
