"""Settings: what the environment says is taken as it is meant, or refused by name."""

import os
import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.core.exceptions import ImproperlyConfigured

CHECKOUT = Path(__file__).parents[2]
SETTINGS = CHECKOUT / "project" / "settings.py"
PRODUCTION = {"SECRET_KEY": "k" * 50, "DATABASE_URL": "postgresql://app:pass%20word@db.example.com:6432/ledger"}


def read(environment: Mapping[str, str], env_file: Path | str = os.devnull) -> dict[str, Any]:
    """Read the settings as a new process with this environment would."""
    with mock.patch.dict(os.environ, {**environment, "ENV_FILE": str(env_file)}, clear=True):
        return runpy.run_path(str(SETTINGS))


def test_production_needs_a_secret_key() -> None:
    """Also where nobody said that this is production."""
    with pytest.raises(ImproperlyConfigured, match="SECRET_KEY"):
        read({})


def test_production_refuses_a_demo_secret() -> None:
    """Also as one of several, and names the variable."""
    with pytest.raises(ImproperlyConfigured, match="PAYMENTS_SECRETS_STRIPE_EU"):
        read(PRODUCTION | {"PAYMENTS_SECRETS_STRIPE_EU": "whsec_real, whsec_demo_stripe"})


def test_production_is_secure_unless_told_otherwise() -> None:
    """An empty value is not otherwise."""
    settings = read(PRODUCTION | {"SECURE_SSL_REDIRECT": "", "DEBUG": ""})
    told = read(PRODUCTION | {"SECURE_SSL_REDIRECT": "0"})

    names = ("SECURE_SSL_REDIRECT", "SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE")
    assert [settings[name] for name in ("DEBUG", *names)] == [False, True, True, True]
    assert [told[name] for name in names] == [False, False, False]


@pytest.mark.parametrize("name", ["DEBUG", "SECURE_SSL_REDIRECT"])
def test_flag_that_is_none_is_refused_by_name(name: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=name):
        read(PRODUCTION | {name: "maybe"})


def test_the_example_is_the_demo(tmp_path: Path) -> None:
    """As `make run` uses it: with the six demo secrets, and secrets of its own that stay the same."""
    example = CHECKOUT / ".env.example"

    first = read({"DATA_DIR": str(tmp_path)}, example)
    second = read({"DATA_DIR": str(tmp_path)}, example)

    secrets = {secret for values in first["PAYMENTS_SECRETS"].values() for secret in values}
    assert secrets == first["PAYMENTS_DEMO_SECRETS"]
    assert first["DEBUG"]
    assert first["EMBEDDED_POSTGRESQL"]
    for name in ("SECRET_KEY", "ADMIN_PASSWORD"):
        assert len(first[name]) >= 16
        assert first[name] == second[name]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_example_documents_every_setting() -> None:
    read_names = set(re.findall(r'(?:_text|_integer|_items|_flag)\("(\w+)"', SETTINGS.read_text()))
    documented = set(re.findall(r"^(\w+)=", (CHECKOUT / ".env.example").read_text(), re.MULTILINE))

    for_tests_only = {"PAYMENTS_FAILPOINT"}
    assert read_names - documented - for_tests_only == set()
    assert {name for name in documented if not name.startswith("PAYMENTS_SECRETS_")} - read_names == set()


def test_environment_beats_the_file(tmp_path: Path) -> None:
    env_file = tmp_path / "env"
    env_file.write_text("PORT=9001\nWEB_THREADS=20\n")

    settings = read(PRODUCTION | {"PORT": "9002"}, env_file)

    assert (settings["PORT"], settings["WEB_THREADS"]) == (9002, 20)


def test_secrets_are_kept_exactly() -> None:
    """A list of them, in which no sign has a meaning but the comma."""
    settings = read(PRODUCTION | {"PAYMENTS_SECRETS_ACME_PAY": r"$first, se=co#nd\n ,"})

    assert settings["PAYMENTS_SECRETS"] == {"ACME_PAY": ("$first", r"se=co#nd\n")}


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_number_that_is_none_is_refused_by_name(value: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="PAYMENTS_SETTLE_PERMITS"):
        read(PRODUCTION | {"PAYMENTS_SETTLE_PERMITS": value})


def test_empty_value_is_the_default() -> None:
    assert read(PRODUCTION | {"PAYMENTS_SETTLE_PERMITS": ""})["PAYMENTS_SETTLE_PERMITS"] == 2


def test_outbox_destination_needs_its_address_and_secrets() -> None:
    names = {"PAYMENTS_OUTBOX_DESTINATIONS": "shop-eu"}
    url = {"PAYMENTS_OUTBOX_URL_SHOP_EU": "https://shop.example.com/hooks"}

    with pytest.raises(ImproperlyConfigured, match="PAYMENTS_OUTBOX_URL_SHOP_EU"):
        read(PRODUCTION | names)
    with pytest.raises(ImproperlyConfigured, match="PAYMENTS_OUTBOX_SECRETS_SHOP_EU"):
        read(PRODUCTION | names | url)
    settings = read(PRODUCTION | names | url | {"PAYMENTS_OUTBOX_SECRETS_SHOP_EU": "whsec_a,whsec_b"})

    assert settings["PAYMENTS_OUTBOX"] == {
        "shop-eu": {"url": "https://shop.example.com/hooks", "secrets": ("whsec_a", "whsec_b")}
    }


def test_mail_needs_no_signing_secrets() -> None:
    names = {"PAYMENTS_OUTBOX_DESTINATIONS": "office", "PAYMENTS_OUTBOX_URL_OFFICE": "mailto:office@example.com"}

    assert read(PRODUCTION | names)["PAYMENTS_OUTBOX"]["office"] == {"url": "mailto:office@example.com", "secrets": ()}


def test_mail_server_is_used_as_told() -> None:
    """Nothing told: Django's own defaults stand."""
    told = {"EMAIL_URL": "smtp+tls://app:pass%20word@mail.example.com:587", "DEFAULT_FROM_EMAIL": "pay@example.com"}
    settings = read(PRODUCTION | told)

    assert {name: settings[name] for name in settings if name.startswith("EMAIL_")} == {
        "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend",
        "EMAIL_FILE_PATH": "",
        "EMAIL_HOST": "mail.example.com",
        "EMAIL_HOST_PASSWORD": "pass word",
        "EMAIL_HOST_USER": "app",
        "EMAIL_PORT": 587,
        "EMAIL_USE_TLS": True,
    }
    assert settings["DEFAULT_FROM_EMAIL"] == "pay@example.com"
    assert not any(name.startswith("EMAIL_") for name in read(PRODUCTION))


@pytest.mark.parametrize("url", ["mail.example.com", "http://mail.example.com", "smtp://mail.example.com:many"])
def test_mail_server_that_is_none_is_refused_by_name(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="EMAIL_URL"):
        read(PRODUCTION | {"EMAIL_URL": url})


def test_message_is_tried_for_about_three_days() -> None:
    """With the defaults, from its first try to its last: the longest and the shortest that luck makes of it."""
    names = ("TRIES_MAX", "BACKOFF_MS", "BACKOFF_MAX_MS")
    tries, first_ms, longest_ms = (read(PRODUCTION)[f"PAYMENTS_OUTBOX_{name}"] for name in names)

    waits_s = [min(longest_ms, first_ms * 2**n) / 1000 for n in range(tries - 1)]

    assert 45 * 3600 < sum(waits_s) / 2 < 72 * 3600 < sum(waits_s) < 96 * 3600
    assert sum(waits_s[:8]) < 300  # what is down for minutes only is told within minutes


def test_database_url_is_used_as_told() -> None:
    settings = read(PRODUCTION | {"DATABASE_URL": PRODUCTION["DATABASE_URL"] + "?sslmode=verify-full"})

    database = settings["DATABASES"]["default"]
    assert [database[name] for name in ("HOST", "PORT", "NAME", "USER", "PASSWORD")] == [
        "db.example.com",
        6432,
        "ledger",
        "app",
        "pass word",
    ]
    assert database["OPTIONS"]["sslmode"] == "verify-full"
    assert settings["EMBEDDED_POSTGRESQL"] is None


def test_other_databases_are_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL"):
        read(PRODUCTION | {"DATABASE_URL": "sqlite:///ledger.db"})


def test_frozen_process_loses_its_locks_before_others_give_up() -> None:
    """Whatever the lock timeout is: a session's idle timeout is shorter."""
    settings = read(PRODUCTION | {"PAYMENTS_LOCK_TIMEOUT_MS": "2000"})

    flags = settings["DATABASES"]["default"]["OPTIONS"]["options"]
    assert "-c lock_timeout=2000ms" in flags
    assert "-c idle_in_transaction_session_timeout=1600ms" in flags


def test_pool_has_a_connection_for_each_permit() -> None:
    settings = read(PRODUCTION | {"PAYMENTS_SETTLE_PERMITS": "5"})

    permits = settings["PAYMENTS_CONNECTION_PERMITS"]
    assert permits["settle"] == 5
    assert settings["DATABASES"]["default"]["OPTIONS"]["pool"]["max_size"] == sum(permits.values())
