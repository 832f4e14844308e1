"""A gateway of one's own, as the README says: one file, one line, one folder of payloads, one test class.

`Toy` is what would be payments/gateways/toy.py, or a module of an application, which calls gateways.register() in its
AppConfig.ready(); tests/payloads/toy is its folder. Nothing else of the product knows it.
"""

import hmac
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256

import pytest
from django.test import Client
from pytest_django import Settings

from payments import conf, gateways, models, money
from payments.facts import Fact, FactKind
from payments.gateways import base
from tests import books
from tests.deliveries import outcome
from tests.unit.gateways import cases
from tests.unit.gateways.signing import NOW

# The file -------------------------------------------------------------------------------------------------------------


class Toy(base.Gateway):
    name = "toy"

    def authenticate(self, delivery: base.Delivery, secrets: Sequence[str]) -> base.Verified:
        """Verify the hex HMAC-SHA256 of the body."""
        given = delivery.headers.get("x-toy-signature", "").encode("latin-1", "replace")
        for secret in filter(None, secrets):
            if hmac.compare_digest(base.hmac_sha256(secret.encode(), delivery.body).hex().encode(), given):
                return base.Verified.of(delivery)
        raise base.VerificationFailed

    def translate(self, verified: base.Verified, endpoint: base.EndpointConfig) -> list[base.Notice]:
        """Return the one notice of an event."""
        told = verified.document
        try:
            event_id = base.composed_event_id(base.identifier(told["id"], "id"))
        except (base.Unusable, KeyError, TypeError):
            return [base.unreadable(verified)]
        facts: tuple[Fact, ...] = ()
        ignored = unusable = None
        try:
            facts = _facts(told)
        except base.Ignorable as reason:
            ignored = str(reason)
        except (base.Unusable, money.UnusableAmount) as reason:
            unusable = str(reason)
        return [
            base.Notice(
                event_id=event_id,
                event_type=base.type_name(told.get("what")),
                occurred_at=facts[0].occurred_at if facts else verified.received_at,
                fingerprint=base.fingerprint(told),
                facts=facts,
                ignored=ignored,
                unusable=unusable,
            )
        ]


def _facts(told: dict[str, object]) -> tuple[Fact, ...]:
    what = told.get("what")
    if what not in ("captured", "refunded"):
        raise base.Ignorable("no money in this type of event")
    payment, is_refund = base.identifier(told.get("payment"), "payment"), what == "refunded"
    currency = money.currency_code(told.get("currency"))
    amount = base.decimal_text(told.get("amount"), "amount")
    order = base.optional_identifier(told.get("order"), "order")
    return (
        Fact(
            kind=FactKind.REFUND_SUCCEEDED if is_refund else FactKind.PAYMENT_CAPTURED,
            occurred_at=base.moment(told.get("at"), "at"),
            object_id=base.identifier(told.get("refund"), "refund") if is_refund else payment,
            payment=payment,
            amount_minor=money.minor_from_major(amount, exponent=money.exponent(currency)),
            currency=currency,
            reference=order,
            reference_rank=2 if order else 0,
        ),
    )


# The line -------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "REGISTRY", dict(gateways.REGISTRY))
    gateways.register(Toy)


# The test class -------------------------------------------------------------------------------------------------------


class TestToy(cases.GatewayCases):
    gateway = Toy()
    secret = "toy-secret"
    other_secret = "toy-secret-of-somebody-else"
    good_body = cases.payload("toy", "captured__typical")
    proof_header = "x-toy-signature"
    has_age = False
    has_several = False

    def deliver(self, body: bytes, *, secret: str | None = None, at: datetime = NOW) -> base.Delivery:
        key = self.secret if secret is None else secret
        proof = hmac.new(key.encode(), body, sha256).hexdigest()
        return base.Delivery({"x-toy-signature": proof}, body, at)


# What it is good for --------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_its_story_is_booked(small_demo: None, client: Client, settings: Settings) -> None:
    """An endpoint's row and its secrets in the environment, and the events are served like anybody's."""
    settings.PAYMENTS_SECRETS = {**settings.PAYMENTS_SECRETS, "TOY": (TestToy.secret,)}
    models.Endpoint.objects.create(slug="toy", gateway="toy", default_payee="merchant-1")
    conf.read_copy()
    story = cases.story("toy")

    def post(name: str) -> str:
        delivery = TestToy().deliver(cases.payload("toy", name))
        headers = dict(delivery.headers)
        return outcome(client.post("/webhooks/toy/", delivery.body, "application/json", headers=headers))

    outcomes = [post(name) for name in [*reversed(story["events"]), *story["events"]]]

    assert outcomes == ["ignored", "applied", "applied", "applied", "applied", "ignored"]
    payment = models.Payment.objects.get()
    assert {name: getattr(payment, name) for name in story["payment"]} == story["payment"]
    assert books.read().balances == {(code, "EUR"): amount for code, amount in story["balances"]["EUR"].items()}


def test_a_name_is_registered_once() -> None:
    """Registering again changes nothing; another gateway can't take the name of one that has endpoints."""
    gateways.register(Toy)

    with pytest.raises(ValueError, match="already"):
        gateways.register(type("OtherToy", (Toy,), {}))
