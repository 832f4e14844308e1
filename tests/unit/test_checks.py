"""Every system check speaks up for what it is about, says what to type, and is silent otherwise."""

from typing import Any, Final

import pytest
from django.contrib import admin
from django.core.checks import CheckMessage, run_checks
from django.db import connection
from django.http import HttpRequest
from pytest_django import Settings

from payments import checks, models
from tests import deliveries
from tests import receiver as receivers

ENDPOINTS: Final = {
    "demo": "standard_webhooks",
    **{name: name for name in ("adyen", "midtrans", "razorpay", "stripe", "xendit")},
}


def of_settings() -> list[CheckMessage]:
    return run_checks(tags=[checks.TAG])


def of_endpoints() -> list[CheckMessage]:
    return [found for found in run_checks(tags=[checks.TAG], databases=["default"]) if found not in of_settings()]


def assert_only(found: list[CheckMessage], check_id: str, *said: str) -> None:
    """One finding of this id, whose hint names what to set or type."""
    (message,) = found
    assert message.id == check_id
    assert message.hint is not None
    for text in said:
        assert text in message.hint or text in message.msg


@pytest.fixture
def sound(settings: Settings, db: None) -> None:
    """One endpoint of each gateway, of test mode, with the demo's secrets."""
    settings.DEBUG = True
    settings.PAYMENTS_SECRETS = {name: (secret,) for name, secret in deliveries.SECRETS.items()}
    for slug, gateway in ENDPOINTS.items():
        models.Endpoint.objects.create(slug=slug, gateway=gateway, mode="test")


def change(slug: str, **values: Any) -> None:
    models.Endpoint.objects.filter(slug=slug).update(**values)


# Settings -------------------------------------------------------------------------------------------------------------


def test_sound_settings_say_nothing(settings: Settings) -> None:
    assert of_settings() == []


@pytest.mark.parametrize("permits", [72, 100])
def test_e001_intake_takes_every_thread(settings: Settings, permits: int) -> None:
    settings.WEB_THREADS, settings.PAYMENTS_INTAKE_PERMITS = 72, permits

    assert_only(of_settings(), "payments.E001", "PAYMENTS_INTAKE_PERMITS", f"WEB_THREADS to {permits + 8}")


def test_e002_deadline_is_shorter_than_its_parts(settings: Settings) -> None:
    settings.PAYMENTS_DEADLINE_MS = 4999
    assert_only(of_settings(), "payments.E002", "PAYMENTS_DEADLINE_MS to 5000")

    settings.PAYMENTS_DEADLINE_MS = 5000
    assert of_settings() == []


def test_e003_statement_ends_before_its_lock(settings: Settings) -> None:
    settings.PAYMENTS_LOCK_TIMEOUT_MS, settings.PAYMENTS_STATEMENT_TIMEOUT_MS = 3000, 3000
    assert_only(of_settings(), "payments.E003", "PAYMENTS_LOCK_TIMEOUT_MS to 1000")

    settings.PAYMENTS_STATEMENT_TIMEOUT_MS = 0  # without limit, as for commands
    assert of_settings() == []


def test_e004_demo_secret_in_production(settings: Settings) -> None:
    settings.PAYMENTS_SECRETS = {"SHOP": ("good", "whsec_demo_stripe")}
    settings.DEBUG = False
    assert_only(of_settings(), "payments.E004", "PAYMENTS_SECRETS_SHOP")

    settings.DEBUG = True
    assert of_settings() == []


@pytest.mark.parametrize(
    "url",
    ["api.midtrans.com", "http://api.midtrans.com", "ftp://api.midtrans.com", "https://", "https://h:port", "//h"],
)
def test_e005_confirm_url_is_no_confidential_address(settings: Settings, url: str) -> None:
    """A server key goes there: over TLS, unless it stays on this machine."""
    settings.PAYMENTS_CONFIRM_URL = url

    assert_only(of_settings(), "payments.E005", "PAYMENTS_CONFIRM_URL to https://")


@pytest.mark.parametrize("url", ["", "https://api.example.com/base", "http://127.0.0.1:8099", "http://localhost:80"])
def test_usable_confirm_urls_say_nothing(settings: Settings, url: str) -> None:
    settings.PAYMENTS_CONFIRM_URL = url

    assert of_settings() == []


def test_e006_destination_that_cannot_be_used(settings: Settings) -> None:
    settings.PAYMENTS_OUTBOX = {"shop": {"url": "ftp://example.com/", "secrets": (receivers.SECRET,)}}
    assert_only(of_settings(), "payments.E006", "PAYMENTS_OUTBOX_URL_SHOP")

    settings.PAYMENTS_OUTBOX = {"shop": {"url": "https://example.com/", "secrets": (receivers.SECRET,)}}
    assert of_settings() == []


def test_w010_mail_without_a_server(settings: Settings) -> None:
    settings.PAYMENTS_OUTBOX = {"office": {"url": "mailto:office@example.com", "secrets": ()}}
    assert_only(of_settings(), "payments.W010", "EMAIL_URL", "DEFAULT_FROM_EMAIL", "office")

    settings.EMAIL_HOST = "mail.example.com"
    assert of_settings() == []


class _VerifiedSite(admin.AdminSite):
    def has_permission(self, request: HttpRequest) -> bool:
        return False


def test_w009_password_alone_lets_staff_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before a deployment only; a site that wants more than a password is none of it."""
    found = [one for one in run_checks(tags=[checks.TAG], include_deployment_checks=True) if one not in of_settings()]
    assert_only(found, "payments.W009", "SILENCED_SYSTEM_CHECKS")

    monkeypatch.setattr(admin, "site", _VerifiedSite())

    assert run_checks(tags=[checks.TAG], include_deployment_checks=True) == of_settings()


# Endpoints ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sound")
def test_sound_endpoints_say_nothing() -> None:
    assert of_endpoints() == []


@pytest.mark.usefixtures("sound")
def test_endpoints_are_read_only_when_asked() -> None:
    """A plain `check` needs no database."""
    change("stripe", gateway="strip")

    assert of_settings() == []


@pytest.mark.django_db
def test_missing_tables_say_nothing() -> None:
    """`migrate` runs these checks before it makes the tables; the connection stays usable."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE payments_endpoint RENAME TO payments_endpoint_elsewhere")

    assert of_endpoints() == []
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@pytest.mark.usefixtures("sound")
def test_w001_gateway_without_adapter() -> None:
    change("stripe", gateway="strip")

    assert_only(of_endpoints(), "payments.W001", "filter(slug='stripe').update(gateway=", "xendit")


@pytest.mark.usefixtures("sound")
def test_w002_endpoint_without_secrets(settings: Settings) -> None:
    settings.PAYMENTS_SECRETS = {**settings.PAYMENTS_SECRETS, "STRIPE": ()}

    assert_only(of_endpoints(), "payments.W002", "Set PAYMENTS_SECRETS_STRIPE")


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("secret", ["whsec_", "whsec_not base64!", "whsec_é", "c2VrYWxp", "whsec_c2VrYWx"])
def test_w003_standard_webhooks_secret_is_none(settings: Settings, secret: str) -> None:
    good = settings.PAYMENTS_SECRETS["DEMO"][0]
    settings.PAYMENTS_SECRETS = {**settings.PAYMENTS_SECRETS, "DEMO": (good, secret)}

    assert_only(of_endpoints(), "payments.W003", "Set PAYMENTS_SECRETS_DEMO")


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("secret", ["not hexadecimal", "ABC", "0x44"])
def test_w004_adyen_key_is_not_hexadecimal(settings: Settings, secret: str) -> None:
    settings.PAYMENTS_SECRETS = {**settings.PAYMENTS_SECRETS, "ADYEN": (secret,)}

    assert_only(of_endpoints(), "payments.W004", "Set PAYMENTS_SECRETS_ADYEN")


@pytest.mark.usefixtures("sound")
def test_w005_unsigned_fields_could_be_confirmed() -> None:
    change("midtrans", mode="live")
    assert_only(of_endpoints(), "payments.W005", "filter(slug='midtrans').update(confirms=True)")

    change("midtrans", confirms=True)
    assert of_endpoints() == []


@pytest.mark.usefixtures("sound")
def test_w006_only_a_token_proves_deliveries() -> None:
    change("xendit", mode="live")

    assert_only(of_endpoints(), "payments.W006", "manage.py reconcile xendit")


@pytest.mark.usefixtures("sound")
def test_w007_nothing_to_confirm_with() -> None:
    change("stripe", confirms=True)

    assert_only(of_endpoints(), "payments.W007", "filter(slug='stripe').update(confirms=False)")


@pytest.mark.usefixtures("sound")
def test_w008_secrets_of_no_endpoint(settings: Settings) -> None:
    """A misspelt name; its endpoint goes without."""
    secrets = dict(settings.PAYMENTS_SECRETS)
    settings.PAYMENTS_SECRETS = {**secrets, "STRIPES": secrets["STRIPE"], "EMPTY": ()}

    assert_only(of_endpoints(), "payments.W008", "PAYMENTS_SECRETS_STRIPES")


@pytest.mark.usefixtures("sound")
def test_secrets_are_never_shown(settings: Settings) -> None:
    """Whatever is wrong with them."""
    bad = "not-a-secret-of-any-gateway"
    settings.PAYMENTS_SECRETS = dict.fromkeys(["ADYEN", "DEMO", "NOBODY"], (bad,))

    assert {found.id for found in of_endpoints()} == {f"payments.W00{n}" for n in (2, 3, 4, 8)}
    assert not any(bad in f"{found.msg} {found.hint}" for found in of_endpoints())
