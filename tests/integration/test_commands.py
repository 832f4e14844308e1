"""Commands: arguments to one domain call, exit status 0 clean, 1 findings, 2 could not run, and one JSON object."""

import json
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from typing import Any, NamedTuple

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction
from pytest_django import Settings

from payments import conf, database, demo, models, recovery
from tests.deliveries import Deliver

Books = Callable[[], dict[str, int]]


class Ran(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout; fails if there is anything else."""
        return json.loads(self.out)


def run(*arguments: str) -> Ran:
    out, err = StringIO(), StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command(*arguments, stdout=out, stderr=err)
    return Ran(int(ended.value.code or 0), out.getvalue(), err.getvalue())


# open_account ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_open_account_is_idempotent(small_demo: None) -> None:
    """Opened once; asked again it was open, and both are well."""
    first = run("open_account", "merchant-77", "IDR", "--json")
    again = run("open_account", "merchant-77", "IDR", "--json")

    assert (first.status, again.status) == (0, 0)
    assert first.json == {"account": "merchant-77", "currency": "IDR", "kind": "liability", "opened": True}
    assert again.json["opened"] is False
    assert models.Account.objects.get(code="merchant-77").kind == "liability"


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments",
    [
        ("", "IDR"),
        ("x" * 256, "IDR"),
        ("merchant-77", "idr"),
        ("merchant-77", "RUPIAH"),
        ("receivable:demo", "IDR"),
        ("suspense:nobody", "IDR"),
        ("merchant-1", "IDR", "--kind", "asset"),
    ],
)
def test_open_account_that_cannot_be(small_demo: None, arguments: tuple[str, ...]) -> None:
    """A code or currency that is none, one that is reserved, one that is open as another kind: exit 2, and why."""
    ran = run("open_account", *arguments, "--json")

    assert ran.status == 2
    assert ran.json["error"]
    assert ran.err.strip()
    assert not models.Account.objects.filter(code__in=[arguments[0]], kind="asset").exists()


# register_payment -----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_register_payment_tells_what_is_not_as_expected(deliver: Deliver, books: Books) -> None:
    """Clean is 0; money that isn't what was expected is 1, and named; the same again is the same."""
    deliver("payment.captured", payment="pay_1", reference="order-1", amount=9_000)
    clean = run("register_payment", "demo", "order-2", "merchant-6", "10000", "IDR", "--json")
    found = run("register_payment", "demo", "order-1", "merchant-6", "10000", "IDR", "--json")
    again = run("register_payment", "demo", "order-1", "merchant-6", "10000", "IDR", "--json")

    assert (clean.status, clean.json["findings"]) == (0, [])
    assert (found.status, [one["kind"] for one in found.json["findings"]]) == (1, ["underpaid"])
    assert again == found
    assert books()["merchant-6 IDR"] == 9_000


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments",
    [
        ("nowhere", "order-1", "merchant-6", "10000", "IDR"),
        ("demo", "", "merchant-6", "10000", "IDR"),
        ("demo", "order-1", "", "10000", "IDR"),
        ("demo", "order-1", "merchant-6", "0", "IDR"),
        ("demo", "order-1", "merchant-6", "1.5", "IDR"),
        ("demo", "order-1", "merchant-6", "1e3", "IDR"),
        ("demo", "order-1", "merchant-6", "\N{SUPERSCRIPT TWO}", "IDR"),
        ("demo", "order-1", "merchant-6", "\N{ARABIC-INDIC DIGIT THREE}", "IDR"),
        ("demo", "order-1", "merchant-6", "9007199254740992", "IDR"),
        ("demo", "order-1", "merchant-6", "9" * 5000, "IDR"),
        ("demo", "order-1", "merchant-6", "10000", "Rp"),
        ("demo", "known", "merchant-7", "10000", "IDR"),
    ],
)
def test_register_payment_that_cannot_be(small_demo: None, arguments: tuple[str, ...]) -> None:
    """Arguments that can't be used, or others than a known reference was registered with: exit 2, nothing written."""
    run("register_payment", "demo", "known", "merchant-6", "10000", "IDR")

    ran = run("register_payment", *arguments, "--json")

    assert ran.status == 2
    assert ran.json["error"]
    assert list(models.Registration.objects.values_list("merchant_reference", "account")) == [("known", "merchant-6")]


# explain --------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_explain_goes_from_the_balance_to_the_events(deliver: Deliver) -> None:
    """Every entry, newest first, with its transfer, payment and event; they add up to the balance."""
    deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=10_000)
    deliver("refund.succeeded", event_id="evt_2", payment="pay_1", refund="re_1", amount=4_000)

    ran = run("explain", "merchant-1", "IDR", "--json")

    assert ran.status == 0
    assert (ran.json["account"], ran.json["currency"], ran.json["balance"]) == ("merchant-1", "IDR", 6_000)
    assert ran.json["entries"] == [
        {
            "transfer": "demo:re_1:refunded",
            "direction": "debit",
            "amount": 4_000,
            "payment": "pay_1",
            "event": "evt_2",
            "occurred_at": "2026-11-30T10:00:00+00:00",
        },
        {
            "transfer": "demo:pay_1:captured",
            "direction": "credit",
            "amount": 10_000,
            "payment": "pay_1",
            "event": "evt_1",
            "occurred_at": "2026-11-30T10:00:00+00:00",
        },
    ]


@pytest.mark.django_db
def test_explain_shows_a_currency_in_its_own_units(deliver: Deliver) -> None:
    """500 yen are 500, not 5.00, wherever a person reads it."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=500, currency="JPY")

    assert run("explain", "merchant-1", "JPY").out.splitlines()[0] == "merchant-1 JPY 500"


@pytest.mark.django_db
@pytest.mark.parametrize("account", [("nobody", "IDR"), ("merchant-1", "XAU"), ("", "")])
def test_explain_of_an_unknown_account(small_demo: None, account: tuple[str, str]) -> None:
    """There is no such account: exit 2."""
    ran = run("explain", *account, "--json")

    assert ran.status == 2
    assert "no account" in ran.json["error"]


# verify_ledger and recover --------------------------------------------------------------------------------------------

with_commits = pytest.mark.django_db(transaction=True)


@with_commits
@pytest.mark.parametrize("command", [["verify_ledger"], ["recover"], ["recover", "--full"]])
def test_verification_says_what_is_broken(deliver: Deliver, command: list[str]) -> None:
    """Clean is 0 with counts. A balance changed behind the guards: 1, and it is named. Repaired: 0 again."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    clean = run(*command, "--json")
    with past_the_guards("payments_account"):
        sql("UPDATE payments_account SET credits = credits + 1 WHERE code = 'merchant-1' AND currency = 'IDR'")
    broken = run(*command, "--json")
    conf.read_copy()
    closed = conf.why_closed()
    with past_the_guards("payments_account"):
        sql("UPDATE payments_account SET credits = credits - 1 WHERE code = 'merchant-1' AND currency = 'IDR'")
    repaired = run(*command, "--json")

    assert (clean.status, clean.json["findings"]) == (0, [])
    assert clean.json["checked"]["transfers"] == 1
    assert broken.status == 1
    assert {(one["kind"], one["subject"]) for one in broken.json["findings"]} == {
        ("balance_differs_from_entries", "merchant-1 IDR"),
        ("currency_not_balanced", "IDR"),
    }
    assert closed is not None
    assert "balance_differs_from_entries" in closed
    conf.read_copy()
    assert (repaired.status, conf.why_closed()) == (0, None)


@with_commits
def test_what_was_broken_before_the_checkpoint_stays_broken(deliver: Deliver) -> None:
    """An incremental run doesn't forget what the last one found in a part that it would not look at again."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    assert run("recover").status == 0
    with past_the_guards("payments_entry"):
        sql("UPDATE payments_entry SET amount = amount + 1 WHERE direction = 'credit'")

    assert run("verify_ledger", "--json").status == 1
    assert [run("recover").status for _ in range(2)] == [1, 1]


CORRUPTIONS = {
    "transfer_not_balanced": "UPDATE payments_entry SET amount = amount + 1 WHERE direction = 'credit'",
    "transfer_incomplete": "DELETE FROM payments_entry WHERE transfer_id = (SELECT min(id) FROM payments_transfer)",
    "correction_not_booked": "DELETE FROM payments_entry WHERE transfer_id = (SELECT id FROM payments_transfer WHERE"
    " reverses_id IS NOT NULL); DELETE FROM payments_transfer WHERE reverses_id IS NOT NULL",
    "reversal_differs": "UPDATE payments_transfer SET amount = amount + 1 WHERE reverses_id IS NOT NULL",
    "payment_differs_from_transfers": "UPDATE payments_payment SET captured = captured + 1",
    "money_at_wrong_payee": "UPDATE payments_payment SET payee = 'merchant-2'",
    "claim_without_evidence": "DELETE FROM payments_event",
}


@with_commits
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_each_invariant_is_looked_at(deliver: Deliver, kind: str) -> None:
    """Whatever is wrong, with all guards off, is found by its name."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    deliver("refund.succeeded", payment="pay_1", refund="re_1", amount=4_000)
    deliver("refund.failed", payment="pay_1", refund="re_1", amount=4_000)
    assert run("verify_ledger").status == 0

    with past_the_guards("payments_entry", "payments_transfer"):
        sql(CORRUPTIONS[kind])
    ran = run("verify_ledger", "--json")

    assert ran.status == 1
    assert kind in {one["kind"] for one in ran.json["findings"]}


class past_the_guards:
    """Do what only a superuser with bad intentions can."""

    def __init__(self, *tables: str) -> None:
        self.tables = tables
        self.atomic = transaction.atomic()

    def __enter__(self) -> None:
        self.atomic.__enter__()
        for table in self.tables:
            sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")

    def __exit__(self, *error: Any) -> None:
        if error == (None, None, None):
            sql("SET CONSTRAINTS ALL IMMEDIATE")
            for table in self.tables:
                sql(f"ALTER TABLE {table} ENABLE TRIGGER USER")
        self.atomic.__exit__(*error)


def sql(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@with_commits
def test_recover_refuses_to_start_without_its_guards(small_demo: None) -> None:
    """A disabled trigger is a preflight problem: exit 2, and its name."""
    sql("ALTER TABLE payments_entry DISABLE TRIGGER payments_entry_balanced")
    ran = run("recover", "--json")
    sql("ALTER TABLE payments_entry ENABLE TRIGGER payments_entry_balanced")

    assert ran.status == 2
    assert "payments_entry_balanced" in ran.json["error"]
    assert run("recover").status == 0


@with_commits
def test_recover_without_a_database(small_demo: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No database within the time: exit 2 and one JSON object, no traceback."""

    def refused(*_: object) -> None:
        raise database.DeadlinePassed("nobody there")

    monkeypatch.setattr(recovery, "DATABASE_WAIT_S", 0.0)
    monkeypatch.setattr(connection, "connect", refused)
    connection.close()
    ran = run("recover", "--json")
    monkeypatch.undo()

    assert ran.status == 2
    assert "nobody there" in ran.json["error"]


# seed_demo ------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_seed_demo_is_idempotent(small_demo: None, settings: Settings) -> None:
    """The second time nothing is missing."""
    settings.DEBUG = True
    ran = run("seed_demo", "--json")

    assert (ran.status, ran.json) == (0, {"endpoints": 0, "accounts": 0})
    assert set(models.Endpoint.objects.values_list("slug", flat=True)) == demo.ENDPOINTS.keys()
    assert not models.Endpoint.objects.exclude(mode="live").exists()


@pytest.mark.django_db
def test_seed_demo_is_for_demos(small_demo: None, settings: Settings) -> None:
    """With DEBUG=0 there is no well-known staff user."""
    settings.DEBUG = False
    ran = run("seed_demo", "--json")

    assert ran.status == 2
    assert "DEBUG" in ran.json["error"]


def test_wrong_arguments_are_told_as_json_too() -> None:
    """With --json, also what argparse refuses is one JSON object on stdout, and status 2."""
    done = subprocess.run(
        [sys.executable, "manage.py", "explain", "merchant-1", "--json"],
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert set(json.loads(done.stdout)) == {"error"}
