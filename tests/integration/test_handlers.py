"""Applications' handlers: what they write is there with the money, once; what they break is only their own."""

import importlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client import REGISTRY
from pytest_django import Settings

import payments
from payments import booked, conf, handlers, models, outbox, payees
from payments.registrations import Registered
from tests import receiver as receivers
from tests import settling
from tests.deliveries import Deliver, outcome
from tests.example_shop.models import Order

pytestmark = pytest.mark.django_db
# A transaction that is lost, or waited for, must not be inside the test's own.
real_commits = pytest.mark.django_db(transaction=True)

Books = Callable[[], dict[str, int]]


@pytest.fixture(autouse=True)
def nobody_else_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test registers its own."""
    monkeypatch.setattr(handlers, "_handlers", {})
    monkeypatch.setattr(handlers, "_costs", {})


@pytest.fixture
def orders(db: None) -> Iterator[None]:
    """The shop's table, for tests that have handlers of their own write to it."""
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    yield
    with connection.schema_editor() as editor:
        editor.delete_model(Order)


@pytest.fixture
def shop(orders: None, settings: Settings) -> None:
    """The example shop, installed and found as any application is, with a warehouse to tell."""
    settings.PAYMENTS_OUTBOX = {
        "warehouse": {"url": "https://warehouse.example.com/hook", "secrets": (receivers.SECRET,)}
    }
    sys.modules.pop("tests.example_shop.handlers", None)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.example_shop"]


def order(number: str = "order-7", price: int = 10_000) -> Order:
    return Order.objects.create(number=number, price=price, currency="IDR")


def told_by_the_shop() -> list[dict[str, Any]]:
    rows = models.OutboxMessage.objects.filter(topic="order.paid").order_by("id")
    return [json.loads(row.body)["data"] for row in rows]


def capture(deliver: Deliver, payment: str = "p", **data: Any) -> str:
    """Deliver a capture for order-7; return the outcome."""
    said = {"payment": payment, "account": "merchant-1", "amount": 10_000, "reference": "order-7", **data}
    return outcome(deliver("payment.captured", **said))


def failed() -> list[models.Finding]:
    return list(models.Finding.objects.filter(kind="handler_failed", closed_at=None).order_by("id"))


# The example ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shop")
def test_order_is_paid_and_warehouse_told_once(deliver: Deliver, books: Books) -> None:
    """However often the capture is delivered, and under whichever event id."""
    number = order()

    outcomes = [capture(deliver, event_id=event_id) for event_id in ("evt_1", "evt_1", "evt_2")]

    assert outcomes == ["applied", "applied", "duplicate"]
    number.refresh_from_db()
    assert (number.received, number.paid_at) == (10_000, datetime(2026, 11, 30, 10, tzinfo=UTC))
    assert told_by_the_shop() == [{"order": "order-7", "amount": 10_000, "currency": "IDR"}]
    assert models.OutboxMessage.objects.get(topic="order.paid").key == "warehouse:app:order-order-7-paid"
    assert books() == {"merchant-1 IDR": 10_000, "receivable:demo IDR": 10_000}


@pytest.mark.usefixtures("shop")
def test_order_paid_in_parts_is_paid_with_the_last(deliver: Deliver) -> None:
    order()

    capture(deliver, "p", amount=4_000)
    told_before = told_by_the_shop()
    capture(deliver, "q", amount=6_000)

    assert told_before == []
    assert Order.objects.get().paid_at is not None
    assert len(told_by_the_shop()) == 1


@pytest.mark.usefixtures("shop")
def test_example_that_fails_is_run_again(deliver: Deliver, settings: Settings) -> None:
    """The warehouse's name is misspelt in the settings: the money stands, and so does what is owed to the order."""
    configured, settings.PAYMENTS_OUTBOX = settings.PAYMENTS_OUTBOX, {}
    number = order()
    assert capture(deliver) == "applied"
    number.refresh_from_db()
    assert number.received == 0
    settings.PAYMENTS_OUTBOX = configured

    assert handlers.run_again() == handlers.Again(done=1)
    assert handlers.run_again() == handlers.Again()

    number.refresh_from_db()
    assert number.received == 10_000
    assert len(told_by_the_shop()) == 1
    assert failed() == []


def test_broken_handlers_module_stops_the_start(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than a shop that isn't told."""

    def find(name: str, *args: Any) -> Any:
        if name == "tests.example_shop.handlers":
            raise ZeroDivisionError
        return original(name, *args)

    original = importlib.import_module
    sys.modules.pop("tests.example_shop.handlers", None)
    monkeypatch.setattr("django.utils.module_loading.import_module", find)

    with pytest.raises(ZeroDivisionError):
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.example_shop"]


# What a handler is told -----------------------------------------------------------------------------------------------


def listen(*facts: str) -> list[payments.Booked]:
    """Register a handler of these facts; return the list of what it is told."""
    told: list[payments.Booked] = []

    @payments.handler(*facts)
    def note(booked: payments.Booked) -> None:
        told.append(booked)

    return told


def test_what_is_told_of_a_capture(deliver: Deliver) -> None:
    told = listen("PaymentCaptured")

    capture(deliver, event_id="evt_1")

    (booked,) = told
    transfer = models.Transfer.objects.get()
    assert booked == payments.Booked(
        fact="PaymentCaptured",
        key="demo:p:captured",
        transfer_id=transfer.pk,
        books="demo",
        payment="p",
        payment_id=transfer.payment_id,
        reference="order-7",
        account="merchant-1",
        amount_minor=10_000,
        currency="IDR",
        occurred_at=datetime(2026, 11, 30, 10, tzinfo=UTC),
        source="webhook",
        event="evt_1",
    )


def test_each_transfer_is_told_as_its_fact(deliver: Deliver) -> None:
    """What undoes a transfer has the name of the fact that undid it; what follows from others is told too."""
    told = listen(*booked.NAMES)

    capture(deliver, account=None)
    deliver("refund.succeeded", payment="p", refund="r", amount=300)
    deliver("refund.failed", payment="p", refund="r", amount=300)
    deliver("fee.assessed", payment="p", fee="f", amount=20)
    deliver("dispute.lost", payment="p", dispute="d", amount=50)
    deliver("payout.paid", payout="o", amount=70)
    deliver("payout.failed", payout="o", amount=70)
    deliver("payment.reversed", payment="p", amount=10_000)
    payees.register(conf.endpoint("demo"), "order-7", Registered("merchant-2", 10_000, "IDR"))

    assert [(booked.fact, booked.amount_minor) for booked in told] == [
        ("PaymentCaptured", 10_000),
        ("RefundSucceeded", 300),
        ("RefundFailed", 300),
        ("FeeAssessed", 20),
        ("DisputeLost", 50),
        ("DisputeFundsWithdrawn", 50),
        ("PayoutPaid", 70),
        ("PayoutFailed", 70),
        ("PaymentReversed", 10_000),
        ("Allocation", 50),
    ]
    assert (told[-1].source, told[-1].event, told[-1].account) == ("system", None, "merchant-2")


def test_total_is_told_as_a_capture() -> None:
    assert booked.fact_of("PaymentCapturedTotal", None) == "PaymentCaptured"
    assert booked.fact_of("RefundedTotal", None) == "RefundSucceeded"


@pytest.mark.parametrize("facts", [(), ("PaymentCapture",), ("payment.captured",), ("PaymentPending",)])
def test_unknown_fact_is_refused(facts: tuple[str, ...]) -> None:
    """A fact without a transfer too: only a transfer happens once."""
    with pytest.raises(ValueError, match="Known: "):
        payments.handler(*facts)


def test_handler_is_registered_once() -> None:
    def note(booked: payments.Booked) -> None: ...

    payments.handler("PaymentCaptured", "RefundSucceeded")(note)

    with pytest.raises(ValueError, match="already"):
        payments.handler("RefundSucceeded")(note)


def test_async_handler_is_refused() -> None:
    async def note(booked: payments.Booked) -> None: ...

    with pytest.raises(TypeError, match="async"):
        payments.handler("PaymentCaptured")(note)


@real_commits
def test_without_handlers_nothing_is_done(small_demo: None) -> None:
    """Not a statement more than before."""
    settling.settle(settling.capture("p"))
    with CaptureQueriesContext(connection) as before:
        settling.settle(settling.capture("q"))

    listen("PaymentCaptured")
    with CaptureQueriesContext(connection) as after:
        settling.settle(settling.capture("r"))

    assert len(after) - len(before) == 2
    assert sum("SAVEPOINT" in query["sql"] for query in before) == 0
    assert sum("SAVEPOINT" in query["sql"] for query in after) == 2


def test_time_of_a_handler_is_in_a_metric(deliver: Deliver, caplog: pytest.LogCaptureFixture) -> None:
    @payments.handler("PaymentCaptured")
    def dawdle(booked: payments.Booked) -> None:
        time.sleep(handlers.SLOW_S + 0.05)

    capture(deliver)

    labels = {"handler": f"{__name__}.test_time_of_a_handler_is_in_a_metric.<locals>.dawdle"}
    assert REGISTRY.get_sample_value("payments_handler_seconds_count", labels) == 1
    assert (REGISTRY.get_sample_value("payments_handler_seconds_sum", labels) or 0) > handlers.SLOW_S
    assert "handler_slow" in caplog.messages


# What fails -----------------------------------------------------------------------------------------------------------


def divide_by_zero() -> None:
    print(1 / 0)  # noqa: T201


def violate_a_constraint() -> None:
    order("taken")
    order("taken")


def swallow_a_database_error() -> None:
    try:
        violate_a_constraint()
    except DatabaseError:
        return


def swallow_a_database_error_of_sql() -> None:
    try:
        connection.cursor().execute("SELECT 1/0")
    except DatabaseError:
        return


def swallow_an_error_of_a_nested_block() -> None:
    try:
        with transaction.atomic(savepoint=False):
            raise KeyError
    except KeyError:
        return


def raise_the_unprintable() -> None:
    raise ValueError("\x00\ud800" + "x" * 10_000)


class Untellable(Exception):
    def __str__(self) -> str:
        raise KeyError


def raise_the_untellable() -> None:
    raise Untellable


def use_on_commit() -> None:
    transaction.on_commit(lambda: pytest.fail("ran"))


def lock_a_payment() -> None:
    list(models.Payment.objects.select_for_update().order_by("id"))


def write_an_account() -> None:
    models.Account.objects.create(code="mine", currency="IDR", kind="liability")


def begin_a_durable_transaction() -> None:
    with transaction.atomic(durable=True):
        pass


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("breaks", "error"),
    [
        (divide_by_zero, "ZeroDivisionError: division by zero"),
        (violate_a_constraint, "django.db.utils.IntegrityError: duplicate key"),
        (swallow_a_database_error, "payments.handlers.NotAllowed: it caught an error"),
        (swallow_a_database_error_of_sql, "django.db.utils.InternalError: current transaction is aborted"),
        (swallow_an_error_of_a_nested_block, "payments.handlers.NotAllowed: it caught an error"),
        (raise_the_unprintable, r"ValueError: \x00\ud800xxx"),
        (use_on_commit, "payments.handlers.NotAllowed: transaction.on_commit"),
        (lock_a_payment, "payments.handlers.NotAllowed: it writes or locks rows of payments"),
        (write_an_account, "payments.handlers.NotAllowed: it writes or locks rows of payments"),
        (raise_the_untellable, "tests.integration.test_handlers.Untellable: <exception str() failed>"),
        (sys.exit, "SystemExit"),
        (begin_a_durable_transaction, "RuntimeError: A durable atomic block cannot be nested"),
    ],
)
def test_failure_loses_the_handlers_own_work_only(
    deliver: Deliver, books: Books, breaks: Callable[[], None], error: str
) -> None:
    """Money and reply stand, and others' work; the reply is the same again; a finding names handler and error."""
    told_before = listen("PaymentCaptured")

    @payments.handler("PaymentCaptured")
    def write_and_break(booked: payments.Booked) -> None:
        order("own-work")
        outbox.enqueue(topic="order.paid", data={}, key="own-work")
        breaks()

    @payments.handler("PaymentCaptured")
    def write(booked: payments.Booked) -> None:
        order("others-work")

    first = deliver("payment.captured", event_id="evt_1", payment="p", account="merchant-1", amount=10_000)
    second = deliver("payment.captured", event_id="evt_1", payment="p", account="merchant-1", amount=10_000)

    assert outcome(first) == "applied"
    assert first.content == second.content
    assert books() == {"merchant-1 IDR": 10_000, "receivable:demo IDR": 10_000}
    assert [row.number for row in Order.objects.all()] == ["others-work"]
    assert len(told_before) == 1
    assert told_by_the_shop() == []
    (finding,) = failed()
    assert finding.detail.pop("error").startswith(error)
    name = f"{__name__}.{write_and_break.__qualname__}"
    assert finding.subject == f"{name} demo:p:captured"
    assert finding.detail == {
        "handler": name,
        "transfer": "demo:p:captured",
        "transfer_id": models.Transfer.objects.get().pk,
        "claim": models.Claim.objects.get().pk,
        "event": "evt_1",
    }


@pytest.mark.usefixtures("orders", "small_demo")
def test_neighbours_of_a_failure_are_booked(books: Books) -> None:
    """In one batch: every delivery is applied, every other order is written."""

    @payments.handler("PaymentCaptured")
    def write_but_not_q(booked: payments.Booked) -> None:
        order(str(booked.payment))
        if booked.payment == "q":
            divide_by_zero()

    answers = settling.settle(*(settling.capture(payment) for payment in "pqr"))

    assert settling.outcomes(answers) == ["applied"] * 3
    assert {row.number for row in Order.objects.all()} == {"p", "r"}
    assert books()["merchant-1 IDR"] == 30_000
    assert len(failed()) == 1


@pytest.mark.usefixtures("orders")
def test_run_again_until_it_goes_well(deliver: Deliver) -> None:
    """A finding stays open and tells the newest error; once closed, nothing is run a second time."""
    errors: list[Exception] = [KeyError("first"), ValueError("second")]

    @payments.handler("PaymentCaptured")
    def write(booked: payments.Booked) -> None:
        order(str(booked.reference))
        if errors:
            raise errors.pop(0)

    capture(deliver, event_id="evt_1")
    assert failed()[0].detail["error"] == "KeyError: 'first'"

    assert handlers.run_again() == handlers.Again(failed=1)
    assert failed()[0].detail["error"] == "ValueError: second"
    assert handlers.run_again() == handlers.Again(done=1)
    assert handlers.run_again() == handlers.Again()

    assert failed() == []
    assert Order.objects.get().number == "order-7"


def test_run_again_tells_the_same_as_the_first_time(deliver: Deliver) -> None:
    """For a capture, for what undoes one, and for a payout, which has no payment."""
    told: list[payments.Booked] = []

    @payments.handler("PaymentCaptured", "PaymentReversed", "PayoutPaid")
    def note_and_break(booked: payments.Booked) -> None:
        told.append(booked)
        divide_by_zero()

    capture(deliver)
    deliver("payment.reversed", payment="p", amount=10_000)
    deliver("payout.paid", payout="o", amount=70)

    assert handlers.run_again() == handlers.Again(failed=3)
    assert told[:3] == told[3:]


def test_run_again_for_some_claims(deliver: Deliver) -> None:
    listen("RefundSucceeded")

    @payments.handler("PaymentCaptured")
    def break_it(booked: payments.Booked) -> None:
        divide_by_zero()

    capture(deliver, "p", event_id="evt_1")
    capture(deliver, "q", event_id="evt_2")
    claim = models.Claim.objects.get(event_id="evt_2")

    assert handlers.run_again(claim_ids=[claim.pk]) == handlers.Again(failed=1)
    assert handlers.run_again(claim_ids=[]) == handlers.Again()


def test_handler_that_is_gone_stays_failed(deliver: Deliver, monkeypatch: pytest.MonkeyPatch) -> None:
    @payments.handler("PaymentCaptured")
    def break_it(booked: payments.Booked) -> None:
        divide_by_zero()

    capture(deliver)
    monkeypatch.setattr(handlers, "_handlers", {})

    assert handlers.run_again() == handlers.Again(failed=1)
    assert failed()[0].detail["error"] == "the handler is not registered"


# What costs the transaction -------------------------------------------------------------------------------------------


def lose_the_connection() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def lose_the_connection_unnoticed() -> None:
    pid = connection.connection.info.backend_pid
    with psycopg.connect(**other_session(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 1000)", [pid])


def lose_the_connection_and_raise() -> None:
    lose_the_connection_unnoticed()
    raise KeyError


def sleep_for_too_long() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 200")  # tests have none, production has
    time.sleep(0.6)


def other_session() -> dict[str, Any]:
    given = connection.settings_dict
    return {
        "host": given["HOST"],
        "port": given["PORT"] or 5432,
        "user": given["USER"],
        "password": given["PASSWORD"] or None,
        "dbname": given["NAME"],
    }


@real_commits
@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    "loses",
    [lose_the_connection, lose_the_connection_unnoticed, lose_the_connection_and_raise, sleep_for_too_long],
)
def test_handler_that_loses_the_transaction_costs_it_once(
    deliver: Deliver, books: Books, loses: Callable[[], None]
) -> None:
    """The transaction is tried again without it: the money is booked, and a finding names who was in the way."""
    runs = []

    @payments.handler("PaymentCaptured")
    def write_and_lose(booked: payments.Booked) -> None:
        runs.append(booked.key)
        order("own-work")
        loses()

    assert capture(deliver) == "applied"

    assert runs == ["demo:p:captured"]
    assert books() == {"merchant-1 IDR": 10_000, "receivable:demo IDR": 10_000}
    assert not Order.objects.exists()
    (finding,) = failed()
    assert finding.detail["error"] == "the transaction was lost while it ran, so it was not tried again"


@real_commits
@pytest.mark.usefixtures("small_demo")
def test_neighbours_of_who_loses_the_transaction_keep_their_handlers() -> None:
    """Only the run that was under way is left out the next time."""
    told: list[str] = []

    @payments.handler("PaymentCaptured")
    def lose_at_q(booked: payments.Booked) -> None:
        told.append(str(booked.payment))
        if booked.payment == "q":
            lose_the_connection()

    answers = settling.settle(*(settling.capture(payment) for payment in "pqr"))

    assert settling.outcomes(answers) == ["applied"] * 3
    assert told == ["p", "q", "p", "r"]
    assert len(failed()) == 1


def deadlock() -> None:
    raise OperationalError("deadlock detected") from psycopg.errors.DeadlockDetected()


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(("deadlocks", "is_written"), [(1, True), (9, False)])
def test_deadlock_is_tried_again_with_the_transaction(deliver: Deliver, deadlocks: int, is_written: bool) -> None:
    """Once: it may be nobody's fault. A handler that always meets one holds up no money."""
    left = [deadlock] * deadlocks

    @payments.handler("PaymentCaptured")
    def write(booked: payments.Booked) -> None:
        order("own-work")
        if left:
            left.pop()()

    assert capture(deliver) == "applied"

    assert Order.objects.exists() == is_written
    assert len(failed()) == (0 if is_written else 1)
    assert models.Transfer.objects.count() == 1


@real_commits
@pytest.mark.usefixtures("orders")
def test_lock_that_is_not_to_be_had_is_a_failure(deliver: Deliver, books: Books) -> None:
    """Somebody holds the order's row: the money doesn't wait for longer than a lock's time, and the run is repeated."""
    number = order()

    @payments.handler("PaymentCaptured")
    def update(booked: payments.Booked) -> None:
        Order.objects.filter(number=booked.reference).update(received=booked.amount_minor)

    with psycopg.connect(**other_session()) as other:
        other.execute("SELECT FROM example_shop_order FOR UPDATE")
        assert capture(deliver) == "applied"
        other.rollback()

    assert (
        failed()[0]
        .detail["error"]
        .startswith("django.db.utils.OperationalError: canceling statement due to lock timeout")
    )
    assert handlers.run_again() == handlers.Again(done=1)
    number.refresh_from_db()
    assert number.received == 10_000
    assert books()["merchant-1 IDR"] == 10_000


@real_commits
@pytest.mark.usefixtures("orders")
def test_two_who_run_again_at_once_run_once(deliver: Deliver, close_connections: None) -> None:
    """The second one waits, and finds nothing left to do."""
    runs: list[str] = []
    fails = [True]

    @payments.handler("PaymentCaptured")
    def write(booked: payments.Booked) -> None:
        if fails.pop() if fails else False:
            raise KeyError
        runs.append(booked.key)
        time.sleep(0.2)

    capture(deliver)
    results: list[handlers.Again] = []

    def again() -> None:
        results.append(handlers.run_again())
        connection.close()

    threads = [threading.Thread(target=again) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)

    assert runs == ["demo:p:captured"]
    assert sorted(result.done for result in results) == [0, 1]


@real_commits
def test_run_again_that_loses_the_transaction_is_given_up(deliver: Deliver) -> None:
    """And tried when somebody asks once more."""
    runs: list[str] = []

    @payments.handler("PaymentCaptured")
    def lose(booked: payments.Booked) -> None:
        runs.append(booked.key)
        if len(runs) < 3:
            lose_the_connection()

    capture(deliver)

    assert handlers.run_again() == handlers.Again(failed=1)
    assert len(runs) == 2
    assert handlers.run_again() == handlers.Again(done=1)
    assert failed() == []


def test_reading_payments_is_allowed(client: Client, deliver: Deliver) -> None:
    """The payment's totals are those with this transfer; balances are still those before it."""
    seen: list[Any] = []

    @payments.handler("PaymentCaptured")
    def read(booked: payments.Booked) -> None:
        payment = models.Payment.objects.get(reference=booked.payment)
        account = models.Account.objects.get(code="merchant-1", currency="IDR")
        seen.append((payment.captured, payment.status, account.balance))

    capture(deliver)

    assert seen == [(10_000, "captured", 0)]
    assert failed() == []
