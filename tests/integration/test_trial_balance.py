"""`trial_balance`: every account's sums, now and as of a moment, by when we heard and by when it happened."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from django.db import connection

from payments import models
from payments.trial_balance import By, TooYoung, trial_balance
from tests.deliveries import Deliver
from tests.integration.statements import run

pytestmark = pytest.mark.django_db

Tell = Callable[[str, str, int], None]
CAPTURE: Final = '{"type": "payment.captured", "timestamp": "%s", "data": %s}'


@pytest.fixture
def tell(deliver: Deliver) -> Tell:
    """Deliver a capture of merchant-1 that happened at a time."""

    def tell(payment: str, at: str, amount: int) -> None:
        data = f'{{"payment": "{payment}", "account": "merchant-1", "amount": {amount}, "currency": "IDR"}}'
        deliver.raw((CAPTURE % (at, data)).encode())

    return tell


def test_all_accounts_are_listed_and_balanced(tell: Tell, deliver: Deliver) -> None:
    """Debits equal credits per currency: exit 0. A balance is in the sense of its account's kind."""
    tell("pay_1", "2026-11-29T10:00:00Z", 10_000)
    deliver("refund.succeeded", payment="pay_1", refund="ref_1", amount=4_000)
    deliver("payment.captured", payment="pay_2", account="merchant-2", amount=500, currency="JPY")

    ran = run("trial_balance")

    assert ran.status == 0
    assert ran.data["currencies"] == {"IDR": 0, "JPY": 0}
    sums = {(a["code"], a["currency"]): (a["debits"], a["credits"], a["balance"]) for a in ran.data["accounts"]}
    assert sums == {
        ("merchant-1", "IDR"): (4_000, 10_000, 6_000),
        ("receivable:demo", "IDR"): (10_000, 4_000, 6_000),
        ("merchant-2", "JPY"): (0, 500, 500),
        ("receivable:demo", "JPY"): (500, 0, 500),
    }


def test_books_that_are_not_balanced_exit_1(tell: Tell) -> None:
    """What the database's guards would never let happen, done past them."""
    tell("pay_1", "2026-11-29T10:00:00Z", 10_000)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE payments_account DISABLE TRIGGER USER")
        cursor.execute("UPDATE payments_account SET debits = debits + 1 WHERE code = 'merchant-1' AND currency = 'IDR'")
        cursor.execute("ALTER TABLE payments_account ENABLE TRIGGER USER")

    ran = run("trial_balance")

    assert (ran.status, ran.data["currencies"]) == (1, {"IDR": 1})


def test_as_of_counts_what_occurred_before(tell: Tell) -> None:
    """The moment itself belongs to what comes after."""
    tell("pay_1", "2026-11-29T23:59:59Z", 1)
    tell("pay_2", "2026-11-30T00:00:00Z", 20)

    ran = [run("trial_balance", "--by", "occurred", "--as-of", day) for day in ("2026-11-30", "2026-11-30T00:00:01Z")]

    assert [one.data["accounts"][0]["credits"] for one in ran] == [1, 21]
    assert [one.status for one in ran] == [0, 0]


def test_as_of_counts_what_was_recorded_before(tell: Tell) -> None:
    """What the books said then: whenever it occurred, it counts from when we heard of it."""
    tell("pay_1", "2020-01-01T00:00:00Z", 1)
    recorded_at = models.Transfer.objects.get().recorded_at
    later = recorded_at + timedelta(hours=1)

    before = trial_balance(as_of=recorded_at, by=By.RECORDED, now=later)
    after = trial_balance(as_of=recorded_at + timedelta(microseconds=1), by=By.RECORDED, now=later)

    assert before.accounts == []
    assert [sums.credits for sums in after.accounts] == [1, 0]


@pytest.mark.parametrize("age_s", [59, 0, -1])
def test_young_moment_is_refused_by_recorded(age_s: int) -> None:
    """A transaction that began before it may not be committed yet."""
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)

    with pytest.raises(TooYoung):
        trial_balance(as_of=now - timedelta(seconds=age_s), by=By.RECORDED, now=now)
    assert trial_balance(as_of=now - timedelta(seconds=age_s), by=By.OCCURRED, now=now).is_balanced
    assert trial_balance(as_of=now - timedelta(seconds=60), by=By.RECORDED, now=now).is_balanced


@pytest.mark.parametrize("as_of", ["2999-01-01", "soon"])
def test_moment_that_can_not_be_exits_2(as_of: str) -> None:
    ran = run("trial_balance", "--as-of", as_of)

    assert ran.status == 2
    assert as_of in ran.data["error"] or "younger than 60 s" in ran.data["error"]
