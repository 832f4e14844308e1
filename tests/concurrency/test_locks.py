"""One order of locks for everybody: batches that want the same rows in opposite orders wait, and never deadlock."""

import logging
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
from django.db import connections

from payments import conf, intake, models, payees, verification
from payments.registrations import Registered
from tests.races import (
    SECONDS,
    Pause,
    Session,
    Thread,
    at_once,
    session,
    wait_until_blocked,
)
from tests.settling import capture, job, outcomes, settle

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]

Books = Callable[[], dict[str, int]]
ROUNDS = 120
KEYS = 6  # payments, references, payouts, disputes, accounts: few, so that everybody wants the same


@pytest.fixture
def other() -> Iterator[Session]:
    """A session that looks on."""
    with session() as opened:
        yield opened


def deadlocks(other: Session) -> int:
    other.execute("SELECT pg_stat_force_next_flush()")
    (count,) = other.execute(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone() or (0,)
    return int(count)


def everything(number: int, dice: random.Random) -> list[Callable[[], intake.Job]]:
    """Return makers of deliveries of all kinds about the number's payment, its order, its payout and its dispute."""
    payment, order, account = f"pay_{number}", f"order-{number}", f"merchant-{number % 3 + 1}"
    return [
        lambda: capture(payment, 10, capture=str(dice.random()), account=account, reference=order),
        lambda: capture(payment, 10, capture=str(dice.random()), account=None),
        lambda: capture(payment, 10, capture=str(dice.random()), account="late", currency="JPY"),
        lambda: job("payment.authorized", payment=payment, reference=order, amount=10),
        lambda: job("refund.succeeded", payment=payment, refund=f"re_{dice.randrange(50)}_{number}", amount=3),
        lambda: job("refund.failed", payment=payment, refund=f"re_{dice.randrange(50)}_{number}", amount=3),
        lambda: job("dispute.lost", payment=payment, dispute=f"dp_{number}", amount=5),
        lambda: job("dispute.won", payment=payment, dispute=f"dp_{number}"),
        lambda: job("fee.assessed", payment=payment, fee=str(dice.random()), amount=1, currency="USD"),
        lambda: job("payout.paid", payout=f"po_{number}", amount=7),
        lambda: job("payout.failed", payout=f"po_{number}", amount=7),
        lambda: capture(payment, 10, event_id=f"evt_{number}", capture="same", account=account),
    ]


def test_batches_in_opposite_orders_never_deadlock(
    small_demo: None, books: Books, other: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """Hundreds of pairs of batches over the same few rows, forwards and backwards: nothing dropped, nothing retried."""
    caplog.set_level(logging.INFO, logger="payments")
    before = deadlocks(other)
    dice = random.Random(1)
    for number in range(KEYS):
        payees.register(conf.endpoint("demo"), f"order-{number}", Registered("merchant-6", 1_000, "IDR"))
    makers = [maker for number in range(KEYS) for maker in everything(number, dice)]

    for _ in range(ROUNDS):
        chosen = dice.sample(makers, 12)
        forwards, backwards = [maker() for maker in chosen], [maker() for maker in reversed(chosen)]
        one, two = at_once([partial(settle, *forwards), partial(settle, *backwards)])
        assert set(outcomes(one) + outcomes(two)) <= {"applied", "duplicate"}

    assert deadlocks(other) == before
    assert not [record.message for record in caplog.records if record.message == "transaction_retried"]
    books()


def test_people_and_deliveries_never_deadlock(
    small_demo: None, books: Books, other: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """Registrations and accounts opened while the same references and accounts are delivered to."""
    caplog.set_level(logging.INFO, logger="payments")
    before = deadlocks(other)

    for turn in range(30):
        references = [f"order-{turn}-{number}" for number in range(KEYS)]
        jobs = [capture(f"pay_{r}", account=f"late-{turn}", reference=r) for r in references]
        more = [capture(f"pay_{r}", capture="2", account=f"late-{turn}") for r in reversed(references)]
        works: list[Callable[[], object]] = [
            partial(settle, *jobs),
            partial(settle, *more),
            partial(payees.open_accounts, [(f"late-{turn}", "IDR", "liability")]),
            partial(register_all, references[::2]),
        ]
        at_once(works)

    assert deadlocks(other) == before
    assert not [record.message for record in caplog.records if record.message == "transaction_retried"]
    balances = books()
    assert balances["merchant-6 IDR"] == 30 * 3 * 20_000
    assert {balances[f"late-{turn} IDR"] for turn in range(30)} == {3 * 20_000}
    assert "suspense:demo IDR" not in balances


def register_all(references: Sequence[str]) -> None:
    for reference in references:
        payees.register(conf.endpoint("demo"), reference, Registered("merchant-6", 20_000, "IDR"))


def test_verification_waits_for_another_and_sees_what_it_left(
    small_demo: None, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two verifications at once, as two processes that start together: one after the other, and both clean."""
    settle(capture("pay_1"))
    verification.verify(full=False)
    settle(capture("pay_2"))
    connections.close_all()
    pause = Pause(monkeypatch, verification, "_check")
    first = Thread(lambda: verification.verify(full=False))
    pause.wait_reached()
    second = Thread(lambda: verification.verify(full=False))
    wait_until_blocked(other, or_ended=second)
    pause.go_on()

    assert first.result().broken == []
    assert second.result().broken == []
    assert verification.verify(full=False).broken == []
    # What other databases of the server are doing holds the checkpoint back, so it may not have moved.
    verified = models.VerifiedBalance.objects.filter(account__code="merchant-1").values_list("credits", flat=True)
    assert set(verified) <= {10_000, 20_000}


def test_start_waits_for_a_chunk_of_a_long_verification_alone(
    small_demo: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator verifies from the beginning; a service that is started meanwhile serves before that ends."""
    for number in range(4):
        settle(capture(f"pay_{number}"))
    verification.verify(full=True)
    connections.close_all()
    monkeypatch.setattr(verification, "CHUNK", 1)
    # What runs in the server's other databases would hold the horizon back.
    ended_below = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    monkeypatch.setattr(verification, "_ENDED_BELOW", ended_below)
    between_chunks, go_on = threading.Event(), threading.Event()

    def stand_still(what: str, done: int) -> None:
        between_chunks.set()
        assert go_on.wait(SECONDS)

    long = Thread(lambda: verification.verify(full=True, progress=stand_still))
    assert between_chunks.wait(SECONDS)
    start = Thread(lambda: verification.verify(full=False)).result()

    assert (start.is_full, start.broken) == (False, [])
    assert long.is_alive()
    go_on.set()
    ended = long.result()
    assert (ended.is_full, ended.broken, ended.checked["transfers"]) == (True, [], 4)


def test_verification_beside_deliveries_is_clean(small_demo: None, books: Books) -> None:
    """While deliveries commit, incremental and full verifications never see half of one."""
    stop = False

    def deliver() -> None:
        number = 0
        while not stop:
            number += 1
            settle(*(capture(f"pay_{number}_{n}", account=f"merchant-{n + 1}") for n in range(4)))

    threads = [Thread(deliver) for _ in range(2)]
    reports = [verification.verify(full=turn % 4 == 0) for turn in range(12)]
    stop = True
    for thread in threads:
        thread.result()

    assert [report.broken for report in reports] == [[]] * 12
    assert verification.verify(full=False).broken == []
    books()
