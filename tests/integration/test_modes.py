"""Events of test mode at a live endpoint, and of live mode at a test endpoint, where a gateway tells the mode."""

from datetime import UTC, datetime
from typing import Any, Final

import pytest
from django.test import Client

from payments import conf, models
from tests import books, deliveries
from tests.deliveries import Answer
from tests.unit.gateways import cases, signing

pytestmark = pytest.mark.django_db

# gateway -> the member that tells the mode, and its values when live and in test. The others have a secret per mode.
MODES: Final[dict[str, tuple[str, Any, Any]]] = {
    "stripe": ("livemode", True, False),
    "adyen": ("live", "true", "false"),
}


def post(client: Client, gateway: str, name: str, mode: object) -> Answer:
    body = cases.variant(cases.payload(gateway, name), **{MODES[gateway][0]: mode})
    signed = signing.SIGN[gateway](body, deliveries.SECRETS[gateway.upper()], at=datetime.now(UTC))
    return client.post(f"/webhooks/{gateway}/", signed.body, "application/json", headers=signed.headers)


def set_mode(gateway: str, mode: str) -> None:
    models.Endpoint.objects.filter(slug=gateway).update(mode=mode)
    conf.read_copy()


@pytest.mark.parametrize("endpoint_mode", ["live", "test"])
@pytest.mark.parametrize("gateway", MODES)
def test_events_of_the_other_mode_book_nothing(
    small_demo: None, client: Client, gateway: str, endpoint_mode: str
) -> None:
    """The whole story told in the other mode: acknowledged, kept, and not a row of the books."""
    set_mode(gateway, endpoint_mode)
    _, live, test = MODES[gateway]
    events = cases.story(gateway)["events"]

    statuses = {post(client, gateway, name, test if endpoint_mode == "live" else live).status_code for name in events}

    assert statuses == {200}
    assert set(models.Claim.objects.values_list("outcome", flat=True)) == {"ignored"}
    assert models.Event.objects.count() == len(events)
    assert models.Transfer.objects.count() == models.Correction.objects.count() == 0
    assert books.read() == books.Books()


@pytest.mark.parametrize("endpoint_mode", ["live", "test"])
@pytest.mark.parametrize("gateway", MODES)
def test_events_of_its_own_mode_are_booked(small_demo: None, client: Client, gateway: str, endpoint_mode: str) -> None:
    """At an endpoint of test mode the test events are what is booked."""
    set_mode(gateway, endpoint_mode)
    story = cases.story(gateway)
    _, live, test = MODES[gateway]

    for name in story["events"]:
        post(client, gateway, name, live if endpoint_mode == "live" else test)

    assert models.Payment.objects.get().captured == story["payment"]["captured"]


@pytest.mark.parametrize("mode", [None, "", "True", "live", 1, 0, [], ...])
@pytest.mark.parametrize("gateway", MODES)
def test_event_of_no_known_mode_is_quarantined(small_demo: None, client: Client, gateway: str, mode: object) -> None:
    """A mode that can't be read is not taken for the endpoint's."""
    names = {"stripe": "payment_intent.succeeded__typical", "adyen": "AUTHORISATION__success"}

    post(client, gateway, names[gateway], mode)

    assert models.Claim.objects.get().outcome == "quarantined"
    assert models.Transfer.objects.count() == 0
