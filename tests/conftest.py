"""What all tests share: a database whose guards stay on, a demo to deliver to, and real servers to kill."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, connections
from django.db.backends.postgresql.operations import DatabaseOperations
from django.test import Client
from pytest_django import Settings

from payments import attempts, conf, demo, models, verification
from tests import deliveries


@pytest.fixture(autouse=True, scope="session")
def _flush_past_the_guards() -> Iterator[None]:
    """Let the tests' own clean-up TRUNCATE what the guards protect. Nothing else can."""
    original = DatabaseOperations.sql_flush

    def sql_flush(self: Any, style: Any, tables: Any, **options: Any) -> list[str]:
        guarded = [self.quote_name(table) for table in tables if table.startswith("payments_")]
        disable = [f"ALTER TABLE {table} DISABLE TRIGGER USER;" for table in guarded]
        enable = [f"ALTER TABLE {table} ENABLE TRIGGER USER;" for table in guarded]
        return [*disable, *original(self, style, tables, **options), *enable]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "sql_flush", sql_flush)
        yield


@pytest.fixture(autouse=True)
def _no_endpoints_from_other_tests() -> Iterator[None]:
    conf.forget_copy()
    yield
    conf.forget_copy()


@pytest.fixture(autouse=True)
def attempt_log(monkeypatch: pytest.MonkeyPatch) -> attempts.Log:
    """The attempt log without its thread: a test that wants its rows calls write_once()."""
    monkeypatch.setattr(attempts.Log, "_run", lambda self: None)
    log = attempts.Log()
    monkeypatch.setattr(attempts, "log", log)
    return log


@pytest.fixture
def small_demo(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's endpoints and ten merchants, as `seed_demo` makes them. Combine with db or transactional_db."""
    settings.PAYMENTS_SECRETS = {name: (secret,) for name, secret in deliveries.SECRETS.items()}
    settings.ADMIN_PASSWORD = "staff-of-the-tests"
    settings.SECURE_SSL_REDIRECT = False
    monkeypatch.setattr(demo, "MERCHANTS", 10)
    demo.seed()
    # Inside a test's transaction there can't be a verification's snapshot; this is what one leaves.
    models.Verification.objects.create(is_full=True, horizon=0, checked={}, broken=[], started_at=datetime.now(UTC))
    conf.read_copy()


@pytest.fixture
def deliver(client: Client, small_demo: None) -> deliveries.Deliver:
    """Post one event of the demo's vocabulary, signed, to the demo endpoint; return the response."""
    return deliveries.Deliver(client)


@pytest.fixture
def books() -> Callable[..., dict[str, int]]:
    """Return the balances that aren't zero, {"code CUR": minor units}, and assert that the ledger is sound."""

    def read() -> dict[str, int]:
        assert_sound()
        accounts = models.Account.objects.exclude(balance=0).order_by("code", "currency")
        return {str(account): account.balance for account in accounts}

    return read


def assert_sound() -> None:
    """Every invariant holds."""
    with connection.cursor() as cursor:
        broken = verification.find_broken(cursor)
    assert broken == []


@pytest.fixture
def close_connections() -> Iterator[None]:
    """For tests with threads of their own: give back what this thread holds."""
    yield
    connections.close_all()
