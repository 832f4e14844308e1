"""The second wall: what must never be is refused by the database itself. Raw SQL, around all of Python."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from django.db import IntegrityError, connection, transaction

from payments import models, recovery
from tests.deliveries import Deliver

pytestmark = pytest.mark.django_db


@pytest.fixture
def history(deliver: Deliver) -> None:
    """One row at least in every table: a refund told twice and failed, a capture that differs, a dispute."""
    deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=10_000)
    deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=10_001)
    deliver("refund.succeeded", event_id="evt_2", payment="pay_1", refund="re_1", amount=4_000)
    deliver("refund.succeeded", event_id="evt_3", payment="pay_1", refund="re_1", amount=4_000)
    deliver("refund.failed", event_id="evt_4", payment="pay_1", refund="re_1", amount=4_000)
    deliver("dispute.opened", event_id="evt_5", payment="pay_1", dispute="dp_1")
    endpoint = models.Endpoint.objects.get(slug="demo")
    models.Registration.objects.create(
        endpoint=endpoint, merchant_reference="order-1", account="merchant-1", amount=10_000, currency="IDR"
    )
    models.Sighting.objects.create(transfer=models.Transfer.objects.earliest("id"), source="statement")
    models.OutboxMessage.objects.create(key="msg_1", destination="shop", topic="payment.captured", body="{}")
    models.StaffAction.objects.create(actor="admin", action="close", subject="finding 1", reason="seen")
    run("SET CONSTRAINTS ALL IMMEDIATE")


def run(sql: str, *params: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall()) if cursor.description else []


@contextmanager
def refused(constraint: str) -> Iterator[None]:
    """Expect a violation of this very constraint or guard, and undo what led to it."""
    with pytest.raises(IntegrityError) as caught, transaction.atomic(), constraints_checked():
        yield
    cause: Any = caught.value.__cause__
    assert cause.diag.constraint_name == constraint


@contextmanager
def constraints_checked() -> Iterator[None]:
    """At the end, check also what is else checked at COMMIT."""
    yield
    run("SET CONSTRAINTS ALL IMMEDIATE")


def copy(table: str, *, where: str = "true", times: int = 1, **changed: str) -> None:
    """Insert a copy of the table's first row, with SQL expressions in place of some columns."""
    names = run(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        " AND attgenerated = '' AND attidentity = '' ORDER BY attnum",
        table,
    )
    columns = [name for (name,) in names if name != "claimed_xid"]
    values = ", ".join(changed.get(name, name) for name in columns)
    run(
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values}"
        f" FROM (SELECT * FROM {table} WHERE {where} ORDER BY id LIMIT 1) AS one, generate_series(1, %s)",
        times,
    )


# Each constraint by its name ------------------------------------------------------------------------------------------

# Constraint -> the table, and how a copy of one of its rows is changed so that nothing else is wrong with it.
VIOLATIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "payments_account_currency_code": ("payments_account", {"debits": "0", "credits": "0", "currency": "'idr'"}),
    "payments_account_kind": ("payments_account", {"debits": "0", "credits": "0", "code": "'x'", "kind": "'payee'"}),
    "payments_account_once": ("payments_account", {"debits": "0", "credits": "0"}),
    "payments_claim_once": ("payments_claim", {}),
    "payments_claim_outcome": ("payments_claim", {"event_id": "'other'", "outcome": "'processing'"}),
    "payments_claim_reply_status": ("payments_claim", {"event_id": "'other'", "reply_status": "0"}),
    "payments_correction_amount": ("payments_correction", {"key": "'other'", "amount": "0"}),
    "payments_correction_once": ("payments_correction", {}),
    "payments_dispute_once": ("payments_dispute", {}),
    "payments_endpoint_mode": ("payments_endpoint", {"slug": "'other'", "mode": "'both'"}),
    "payments_endpoint_slug_once": ("payments_endpoint", {}),
    "payments_entry_amount": ("payments_entry", {"line": "3", "amount": "0"}),
    "payments_entry_direction": ("payments_entry", {"line": "3", "direction": "'both'"}),
    "payments_entry_line": ("payments_entry", {"line": "0"}),
    "payments_entry_line_once": ("payments_entry", {}),
    "payments_event_content_once": ("payments_event", {}),
    "payments_event_failing_once": ("payments_event", {"claim_id": "NULL", "role": "'failure'", "times": 2}),
    "payments_event_role": ("payments_event", {"content": "'other'", "role": "'second'"}),
    "payments_finding_once": ("payments_finding", {}),
    "payments_outboxmessage_once": ("payments_outboxmessage", {}),
    "payments_outboxmessage_state": ("payments_outboxmessage", {"key": "'other'", "state": "'lost'"}),
    "payments_payment_once": ("payments_payment", {}),
    "payments_payment_rank": ("payments_payment", {"reference": "'other'", "rank": "6"}),
    "payments_registration_amount": ("payments_registration", {"merchant_reference": "'other'", "amount": "0"}),
    "payments_registration_once": ("payments_registration", {}),
    "payments_sighting_event_once": ("payments_sighting", {"where": "claim_id IS NOT NULL"}),
    "payments_sighting_source_once": ("payments_sighting", {"where": "claim_id IS NULL"}),
    "payments_transfer_amount": ("payments_transfer", {"key": "'other'", "amount": "-1"}),
    "payments_transfer_once": ("payments_transfer", {}),
    "payments_transfer_reversed_once": ("payments_transfer", {"key": "'other'", "where": "reverses_id IS NOT NULL"}),
}
# Met by tests of their own, further down.
MET_ELSEWHERE: Final = {"payments_account_sums", "payments_endpoint_own_books_null", "payments_entry_account_currency"}
# (id, currency) is there to be pointed to; the primary key alone makes it unique.
NEVER_MET: Final = {"payments_account_currency"}


@pytest.mark.parametrize("constraint", VIOLATIONS)
def test_constraint_refuses_by_its_name(history: None, constraint: str) -> None:
    """One row that differs from an honest one in a single thing is refused for just that."""
    table, changes = VIOLATIONS[constraint]

    with refused(constraint):
        copy(table, **changes)


def test_every_named_constraint_has_its_test() -> None:
    """A constraint that nothing here violates could be missing without notice."""
    named = run(
        "SELECT conname FROM pg_constraint WHERE conrelid::regclass::text LIKE 'payments%%'"
        " AND contype IN ('u', 'c', 'f') AND conname NOT LIKE '%%\\_fk\\_%%'"
        " UNION SELECT indexrelid::regclass::text FROM pg_index"
        " WHERE indisunique AND indpred IS NOT NULL AND indrelid::regclass::text LIKE 'payments%%'"
    )
    names = {name for (name,) in named if not name.startswith("payments_reconcil")}  # working notes, tested with it

    assert names == VIOLATIONS.keys() | MET_ELSEWHERE | NEVER_MET


@pytest.mark.parametrize("column", ["outcome", "reply_status", "reply_content_type", "reply_body", "fingerprint"])
def test_claim_needs_outcome_and_reply(history: None, column: str) -> None:
    """A claim without what every re-delivery is answered can't be there."""
    changes: dict[str, Any] = {column: "NULL"}
    with pytest.raises(IntegrityError, match="null value"), transaction.atomic():
        copy("payments_claim", event_id="'other'", **changes)


def test_endpoint_cannot_point_to_itself(history: None) -> None:
    """An endpoint's own books are told by null; also behind the guard there is a plain constraint."""
    run("ALTER TABLE payments_endpoint DISABLE TRIGGER payments_endpoint_keys_kept")

    with refused("payments_endpoint_own_books_null"):
        run("UPDATE payments_endpoint SET books_id = id WHERE slug = 'stripe'")


# What is never changed or removed -------------------------------------------------------------------------------------

APPEND_ONLY: Final = {
    "payments_transfer": "amount = amount + 1",
    "payments_entry": "amount = amount + 1",
    "payments_sighting": "source = 'staff'",
    "payments_correction": "amount = amount + 1",
    "payments_staffaction": "reason = ''",
}


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_history_cannot_be_changed(history: None, table: str) -> None:
    """Rows of money's history are neither changed nor removed, not even where no row would be touched."""
    change = f"UPDATE {table} SET {APPEND_ONLY[table]}"
    for statement in (change, f"{change} WHERE id < 0", f"DELETE FROM {table}", f"TRUNCATE {table} CASCADE"):
        with refused(f"{table}_append_only"):
            run(statement)


def test_endpoint_cannot_be_removed(history: None) -> None:
    """What other tables point to without a foreign key stays."""
    for statement in ("DELETE FROM {}", "DELETE FROM {} WHERE id < 0", "TRUNCATE {} CASCADE"):
        with refused("payments_endpoint_kept"):
            run(statement.format("payments_endpoint"))


@pytest.mark.parametrize(
    "change",
    ["slug = 'stripe2'", "books_id = 1", "id = id + 1000", "books_id = 1, mode = 'test'", "slug = upper(slug)"],
)
def test_endpoint_keeps_what_its_keys_are_made_of(history: None, change: str) -> None:
    """Under another slug, or in other books, all that was booked would be booked again."""
    with refused("payments_endpoint_keys_kept"):
        run(f"UPDATE payments_endpoint SET {change} WHERE slug = 'stripe'")


def test_endpoint_that_shares_books_keeps_them(history: None) -> None:
    """Neither its own nor another's."""
    copy("payments_endpoint", where="slug = 'stripe'", slug="'twin'", books_id="id")

    for books in ("NULL", "(SELECT id FROM payments_endpoint WHERE slug = 'demo')"):
        with refused("payments_endpoint_keys_kept"):
            run(f"UPDATE payments_endpoint SET books_id = {books} WHERE slug = 'twin'")


def test_endpoint_can_be_set_up_otherwise(history: None) -> None:
    """What no key is made of may change, and saying the same again changes nothing."""
    run("UPDATE payments_endpoint SET mode = 'test', default_payee = 'merchant-2', slug = slug, books_id = books_id")

    assert set(models.Endpoint.objects.values_list("mode", "default_payee")) == {("test", "merchant-2")}


def test_guards_are_all_there_and_enabled(history: None) -> None:
    """The start path looks for every trigger that the migrations made, and misses one that is disabled."""
    made = run("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgrelid::regclass::text LIKE 'payments%%'")
    assert {name for (name,) in made} == set(recovery.GUARDS)
    assert recovery._missing_guards() == []

    run("ALTER TABLE payments_entry DISABLE TRIGGER payments_entry_balanced")

    assert ["payments_entry_balanced" in problem for problem in recovery._missing_guards()] == [True]


# Settled claims -------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_settled_claim_cannot_be_changed(deliver: Deliver) -> None:
    """Once committed, a claim is what it is; no statement of any other transaction changes or removes it."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)

    for change in (
        "outcome = 'ignored'",
        "reply_body = 'other'",
        "fingerprint = '{}'",
        "claimed_xid = pg_current_xact_id()",
        "event_type = event_type",
    ):
        with refused("payments_claim_settled"):
            run(f"UPDATE payments_claim SET {change}")
    with refused("payments_claim_settled"):
        run("DELETE FROM payments_claim")
    with refused("payments_claim_kept"):
        run("TRUNCATE payments_claim CASCADE")


@pytest.mark.django_db(transaction=True)
def test_claim_can_be_amended_by_its_own_transaction(deliver: Deliver) -> None:
    """Until COMMIT its transaction may say otherwise, also from within a savepoint; then nobody may."""
    deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=10_000)

    with transaction.atomic():
        copy("payments_claim", event_id="'evt_2'")
        with transaction.atomic():
            run("UPDATE payments_claim SET outcome = 'duplicate' WHERE event_id = 'evt_2'")
        with refused("payments_claim_settled"):
            run("UPDATE payments_claim SET outcome = 'duplicate' WHERE event_id = 'evt_1'")

    assert run("SELECT outcome FROM payments_claim ORDER BY event_id") == [("applied",), ("duplicate",)]
    with refused("payments_claim_settled"):
        run("UPDATE payments_claim SET outcome = 'applied' WHERE event_id = 'evt_2'")


@pytest.mark.parametrize(
    "change", ["event_id = 'evt_9'", "endpoint_id = endpoint_id + 1", "id = id + 1000", "claimed_xid = '3'"]
)
def test_claim_keeps_its_identity_even_in_its_own_transaction(history: None, change: str) -> None:
    """Outcome and reply may be amended, never whose claim it is."""
    with refused("payments_claim_settled"):
        run(f"UPDATE payments_claim SET {change} WHERE event_id = 'evt_1'")


# Transfers balance ----------------------------------------------------------------------------------------------------


def insert_entries(*entries: tuple[int, str, str, int, str], transfer: str = "new") -> None:
    """Insert (line, account, direction, amount, currency) of one transfer in one statement, as a rogue would."""
    if transfer == "new":
        copy("payments_transfer", key="'new'", reverses_id="NULL")
    rows = ", ".join(
        f"((SELECT id FROM payments_transfer WHERE key = '{transfer}'), {line},"
        f" (SELECT id FROM payments_account WHERE code = '{code}' AND currency = '{account_currency}'),"
        f" '{direction}', {amount}, '{account_currency}')"
        for line, code, direction, amount, account_currency in entries
    )
    run(f"INSERT INTO payments_entry (transfer_id, line, account_id, direction, amount, currency) VALUES {rows}")


UNBALANCED: Final[dict[str, list[tuple[int, str, str, int, str]]]] = {
    "one leg": [(1, "merchant-1", "credit", 100, "IDR")],
    "two that differ": [(1, "merchant-1", "debit", 100, "IDR"), (2, "merchant-2", "credit", 99, "IDR")],
    "both credits": [(1, "merchant-1", "credit", 100, "IDR"), (2, "merchant-2", "credit", 100, "IDR")],
    "two currencies": [(1, "merchant-1", "debit", 100, "IDR"), (2, "merchant-1", "credit", 100, "USD")],
    "line 1 is missing": [(2, "merchant-1", "debit", 100, "IDR"), (3, "merchant-2", "credit", 100, "IDR")],
    "a gap": [(1, "merchant-1", "debit", 100, "IDR"), (3, "merchant-2", "credit", 100, "IDR")],
}


@pytest.mark.parametrize("case", UNBALANCED)
def test_entries_must_balance_and_be_numbered(history: None, case: str) -> None:
    """Entries that don't sum to zero per currency, or aren't numbered from 1 without a gap, are refused whole."""
    with refused("payments_entry_balanced"):
        insert_entries(*UNBALANCED[case])


def test_entries_in_several_currencies_balance_in_each(history: None) -> None:
    """What sums to zero in each of its currencies is a transfer."""
    insert_entries(
        (1, "merchant-1", "debit", 100, "IDR"),
        (2, "merchant-2", "credit", 100, "IDR"),
        (3, "merchant-2", "debit", 7, "USD"),
        (4, "merchant-1", "credit", 7, "USD"),
    )

    assert models.Entry.objects.filter(transfer__key="new").count() == 4


def test_booked_transfer_gets_no_more_entries(history: None) -> None:
    """Two more legs that balance: as lines 1 and 2 they are there already, as 3 and 4 they don't begin at 1."""
    legs = [("merchant-1", "debit", 100, "IDR"), ("merchant-2", "credit", 100, "IDR")]

    with refused("payments_entry_line_once"):
        insert_entries((1, *legs[0]), (2, *legs[1]), transfer="demo:pay_1:captured")
    with refused("payments_entry_balanced"):
        insert_entries((3, *legs[0]), (4, *legs[1]), transfer="demo:pay_1:captured")


def test_entry_has_its_accounts_currency(history: None) -> None:
    """A leg in dollars on a rupiah account is refused, though the legs sum to zero."""
    copy("payments_transfer", key="'new'", reverses_id="NULL")

    with refused("payments_entry_account_currency"):
        run(
            "INSERT INTO payments_entry (transfer_id, line, account_id, direction, amount, currency)"
            " SELECT t.id, v.line, a.id, v.direction, 100, 'USD' FROM payments_transfer t, payments_account a,"
            " (VALUES (1, 'debit'), (2, 'credit')) AS v (line, direction)"
            " WHERE t.key = 'new' AND a.code = 'merchant-1' AND a.currency = 'IDR'"
        )


# Accounts only grow ---------------------------------------------------------------------------------------------------


def test_account_only_grows(history: None) -> None:
    """Sums never shrink, and an account stays what it is."""
    for change in (
        "debits = debits - 1",
        "credits = credits - 1",
        "debits = 0, credits = credits + 5",
        "code = 'merchant-1x'",
        "currency = 'SGD'",
        "kind = 'asset'",
        "endpoint_id = 1",
        "id = id + 100000",
    ):
        with refused("payments_account_grows"):
            run(f"UPDATE payments_account SET {change} WHERE code = 'merchant-1' AND currency = 'IDR'")


@pytest.mark.parametrize("sums", ["1, 0", "0, 1", "-1, 0"])
def test_account_is_born_empty(history: None, sums: str) -> None:
    """A new account has no history, so it has no balance."""
    with refused("payments_account_grows"):
        run(
            f"INSERT INTO payments_account (code, currency, kind, debits, credits) VALUES ('x', 'IDR', 'asset', {sums})"
        )


@pytest.mark.parametrize(
    ("statement", "guard"),
    [("DELETE FROM {}", "payments_account_grows"), ("TRUNCATE {} CASCADE", "payments_account_kept")],
)
def test_account_cannot_be_removed(history: None, statement: str, guard: str) -> None:
    """An account stays, also one that was never used."""
    with refused(guard):
        run(statement.format("payments_account"))


def test_account_sums_cannot_be_negative(history: None) -> None:
    """Also behind the guard that refuses what shrinks there is a plain constraint."""
    run("ALTER TABLE payments_account DISABLE TRIGGER payments_account_grows")

    with refused("payments_account_sums"):
        run("UPDATE payments_account SET debits = -1 WHERE code = 'merchant-1' AND currency = 'IDR'")


def test_balance_cannot_be_written(history: None) -> None:
    """A balance is computed from its sums, whatever a statement says."""
    with pytest.raises(Exception, match="balance"), transaction.atomic():
        run("UPDATE payments_account SET balance = 0")
