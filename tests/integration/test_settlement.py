"""One transaction for a whole batch: what it costs, and what becomes of its members when one of them fails."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test.utils import CaptureQueriesContext

from payments import booking, claims, conf, database, intake, models, outbox, payees
from payments.registrations import Registered
from payments.replies import Answer
from tests.deliveries import Deliver, outcome
from tests.races import Session, session
from tests.settling import capture, job, outcomes, settle
from tests.steps import Said

Books = Callable[[], dict[str, int]]
with_commits = pytest.mark.django_db(transaction=True)


@pytest.fixture
def other() -> Iterator[Session]:
    """Another session, for what happens beside ours."""
    with session() as opened:
        yield opened


# What it costs --------------------------------------------------------------------------------------------------------


def mixed(number: int) -> list[intake.Job]:
    """Return eight deliveries of all kinds about payments of that number; half of their accounts are new to them."""
    payment = f"pay_{number}"
    return [
        capture(payment, 10_000, account=f"merchant-{number % 10 + 1}", reference=f"order-{number}"),
        job("refund.succeeded", payment=payment, refund=f"re_{number}", amount=4_000),
        job("refund.failed", payment=payment, refund=f"re_{number}", amount=4_000),
        job("refund.succeeded", payment=payment, refund=f"re_{number}", amount=4_000),
        job("dispute.lost", payment=payment, dispute=f"dp_{number}", amount=500),
        job("fee.assessed", payment=payment, fee=f"fee_{number}", amount=100),
        job("payout.paid", payout=f"po_{number}", amount=9_000),
        job("customer.created"),
    ]


@pytest.mark.django_db
@pytest.mark.parametrize("make", [lambda n: [capture(f"pay_{n}")], mixed], ids=["captures", "mixed"])
def test_statements_do_not_grow_with_the_batch(small_demo: None, make: Callable[[int], list[intake.Job]]) -> None:
    """1, 16 or 64 members: the same number of statements, each for all of them."""
    settle(*make(0))  # opens the endpoint's own accounts
    counts, numbers = [], iter(range(1, 1000))
    for times in (1, 16, 64 // len(make(0))):
        for number in range(times):
            payees.register(conf.endpoint("demo"), f"order-{number}-{times}", Registered("merchant-1", 1, "IDR"))
        jobs = [one for _ in range(times) for one in make(next(numbers))]
        with CaptureQueriesContext(connection) as queries:
            answers = settle(*jobs)
        assert "SettlementFailed" not in outcomes(answers)
        counts.append(len(queries))

    assert len(set(counts)) == 1, counts


@with_commits
def test_redelivery_is_one_read_outside_of_any_transaction(small_demo: None) -> None:
    """However many at once: one statement, no BEGIN, no write."""
    jobs = [capture(f"pay_{n}") for n in range(64)]
    first = settle(*jobs)

    with CaptureQueriesContext(connection) as queries:
        again = settle(*jobs)

    assert [query["sql"].split()[0] for query in queries.captured_queries] == ["SELECT"]
    assert [a.reply for a in again if isinstance(a, Answer)] == [a.reply for a in first if isinstance(a, Answer)]
    assert all(isinstance(answer, Answer) and answer.is_replay for answer in again)


@with_commits
def test_new_and_known_events_share_a_batch(small_demo: None, books: Books) -> None:
    """What is known is answered from the read; only the new ones are in the transaction."""
    known = [capture(f"pay_{n}") for n in range(5)]
    settle(*known)
    fresh = [capture(f"pay_{n}") for n in range(5, 8)]
    twin = capture("pay_5", event_id=fresh[0].event_id)

    answers = settle(*known, *fresh, twin)

    assert [isinstance(one, Answer) and one.is_replay for one in answers] == [True] * 5 + [False] * 3 + [True]
    assert books()["merchant-1 IDR"] == 80_000


# One bad member -------------------------------------------------------------------------------------------------------


@pytest.fixture
def poison(transactional_db: None) -> Iterator[Callable[..., None]]:
    """Make the database raise for transfers whose key holds "poison": with an SQLSTATE, the first n times."""

    def arm(sqlstate: str = "P0001", *, times: int = 1_000_000) -> None:
        disarm()
        run(
            "CREATE SEQUENCE poison_count;"
            "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            "  IF NEW.key LIKE '%%poison%%' AND nextval('poison_count') <= " + str(times) + " THEN"
            "    RAISE EXCEPTION 'poison' USING ERRCODE = '" + sqlstate + "';"
            "  END IF; RETURN NEW; END $$;"
            "CREATE TRIGGER poison BEFORE INSERT ON payments_transfer FOR EACH ROW EXECUTE FUNCTION poison()"
        )

    def disarm() -> None:
        run("DROP FUNCTION IF EXISTS poison CASCADE; DROP SEQUENCE IF EXISTS poison_count")

    yield arm
    disarm()


def run(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def batch_with(bad: intake.Job) -> list[intake.Job]:
    """Return eight deliveries, the bad one among them."""
    good = [capture(f"pay_{n}") for n in range(7)]
    return [*good[:4], bad, *good[4:]]


@with_commits
def test_bad_member_does_not_hurt_its_neighbours(small_demo: None, books: Books, poison: Callable[..., None]) -> None:
    """Seven of eight are booked and answered; the eighth is kept as evidence, unclaimed, and tried again later."""
    poison()
    bad = capture("poison")

    answers = settle(*batch_with(bad))

    assert outcomes(answers) == ["applied"] * 4 + ["SettlementFailed"] + ["applied"] * 3
    assert books()["merchant-1 IDR"] == 70_000
    evidence = models.Event.objects.get(claim=None)
    assert (evidence.event_id, evidence.failures, evidence.role) == (bad.event_id, 1, "failure")
    assert bytes(evidence.body or b"") == bad.candidates[0].verified.body
    assert not models.Claim.objects.filter(event_id=bad.event_id).exists()


@with_commits
def test_bug_in_our_own_code_does_not_hurt_the_neighbours(
    small_demo: None, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where it isn't the database that refuses."""
    original = booking.set_legs

    def buggy(booked: list[Any], accounts: Any) -> None:
        if any("poison" in posting.key for posting in booked):
            raise KeyError("a bug")
        original(booked, accounts)

    monkeypatch.setattr(booking, "set_legs", buggy)
    answers = settle(*batch_with(capture("poison")))

    assert outcomes(answers) == ["applied"] * 4 + ["SettlementFailed"] + ["applied"] * 3
    assert books()["merchant-1 IDR"] == 70_000
    assert models.Event.objects.get(claim=None).note == "settling failed: KeyError"


@with_commits
def test_third_failure_is_quarantined(deliver: Deliver, books: Books, poison: Callable[..., None]) -> None:
    """Twice the gateway is asked to come again; the third time it is told 2xx, or its queue would be stuck."""
    poison()
    answers = [
        deliver("payment.captured", event_id="evt_1", payment="poison", account="merchant-1", amount=1)
        for _ in range(4)
    ]

    assert [outcome(answer) for answer in answers] == ["503", "503", "quarantined", "quarantined"]
    assert all(answer["Retry-After"].isdecimal() for answer in answers[:2])
    assert answers[3].content == answers[2].content
    assert books() == {}
    event = models.Event.objects.get()
    assert (event.role, event.failures, event.claim and event.claim.outcome) == ("first", 3, "quarantined")
    assert models.Finding.objects.get(closed_at=None).kind == "quarantined"


@with_commits
def test_bug_that_goes_away_in_time_costs_nothing(deliver: Deliver, books: Books, poison: Callable[..., None]) -> None:
    """Two failures, a deploy, the next delivery books it once; the evidence of the failures becomes its claim's."""
    poison(times=2)
    answers = [
        deliver("payment.captured", event_id="evt_1", payment="poison", account="merchant-1", amount=1)
        for _ in range(4)
    ]

    assert [outcome(answer) for answer in answers] == ["503", "503", "applied", "applied"]
    assert books()["merchant-1 IDR"] == 1
    event = models.Event.objects.get()
    assert (event.role, event.failures, event.claim and event.claim.outcome) == ("first", 2, "applied")
    assert not models.Finding.objects.filter(closed_at=None).exists()


@pytest.mark.django_db
def test_copy_that_fails_after_another_succeeded_leaves_nothing(small_demo: None) -> None:
    """A transient bug that hits the second of two copies: the event is claimed, so it has not failed."""
    event = capture("pay_1")
    settle(event)

    assert claims.record_failure(event.candidates[0], note="too late") == 0
    assert not models.Event.objects.filter(claim=None).exists()


@with_commits
@pytest.mark.parametrize("sqlstate", ["40P01", "40001"])
def test_deadlock_is_tried_again_whole(
    small_demo: None, books: Books, poison: Callable[..., None], sqlstate: str
) -> None:
    """A transaction that lost a deadlock, or a serialization, is run again; nobody hears of it."""
    poison(sqlstate, times=3)
    answers = settle(*batch_with(capture("poison")))

    assert outcomes(answers) == ["applied"] * 8
    assert books()["merchant-1 IDR"] == 80_000
    assert models.Event.objects.filter(claim=None).count() == 0


@with_commits
def test_endless_deadlocks_are_no_bug_of_the_events(
    small_demo: None, books: Books, poison: Callable[..., None]
) -> None:
    """Who loses every time is told to come again, however often, and is never quarantined for it."""
    poison("40P01")
    bad = capture("poison")
    for _ in range(4):
        assert outcomes(settle(bad)) == ["SettlementFailed"]

    assert models.Event.objects.count() == 0
    poison(times=0)
    assert outcomes(settle(bad)) == ["applied"]
    assert books()["merchant-1 IDR"] == 10_000


@with_commits
def test_connection_serves_on_after_every_failure(deliver: Deliver, books: Books, poison: Callable[..., None]) -> None:
    """Good and bad deliveries in turn, on the same few connections: every good one is booked."""
    poison()
    for number in range(20):
        deliver("payment.captured", payment=f"poison_{number}", amount=1)
        deliver.raw(b"{", event_id=f"evt_{number}")
        good = deliver("payment.captured", payment=f"pay_{number}", account="merchant-1", amount=1)
        assert outcome(good) == "applied"

    assert books()["merchant-1 IDR"] == 20


def order_capture(payment: str) -> intake.Job:
    """Return a capture at a gateway that proves which order is paid, but not by which payment."""
    endpoint = conf.known_endpoint("midtrans")
    assert endpoint is not None
    fact = Said("payment.captured", payment, amount=10_000, currency="IDR", reference="order-1").fact
    (told,) = capture(payment).candidates
    notice = replace(told.notice, facts=(fact,))
    return intake.Job(endpoint, (claims.Candidate(endpoint, notice, told.verified),))


@with_commits
def test_rival_that_fails_is_no_rival(small_demo: None, books: Books, poison: Callable[..., None]) -> None:
    """Two payments of one order where only one can be believed: when the first fails, the second is the only one."""
    poison()

    assert outcomes(settle(order_capture("poison"), order_capture("pay_1"))) == ["SettlementFailed", "applied"]
    assert books() == {"merchant-1 IDR": 10_000, "receivable:midtrans IDR": 10_000}


@pytest.mark.django_db
def test_rival_that_is_quarantined_is_no_rival(small_demo: None, books: Books) -> None:
    """One order, two payments, three events in one batch: the first payment's second event is a duplicate."""
    answers = settle(order_capture("pay_1"), order_capture("pay_2"), order_capture("pay_1"))

    assert outcomes(answers) == ["applied", "quarantined", "duplicate"]
    assert books() == {"merchant-1 IDR": 10_000, "receivable:midtrans IDR": 10_000}


# Locks held by others -------------------------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a batch wait for a lock no longer than 0.3 s, whatever the tests' sessions do."""
    original = claims.take

    def take(candidates: Sequence[claims.Candidate]) -> Any:
        if len(candidates) > 1:
            database.set_lock_timeout(300)
        return original(candidates)

    monkeypatch.setattr(claims, "take", take)


def hold_claim(other: Session, event_id: str) -> None:
    """Claim an event in an open transaction of another session."""
    endpoint = conf.known_endpoint("demo")
    assert endpoint is not None
    other.execute("BEGIN")
    other.execute(
        "INSERT INTO payments_claim (endpoint_id, event_id, event_type, fingerprint, fingerprint_version, outcome,"
        " reply_status, reply_content_type, reply_body) VALUES (%s, %s, '', '{}', 1, 'applied', 200, '', '')",
        [endpoint.id, event_id],
    )


@with_commits
def test_claim_held_by_another_delays_nobody_else(small_demo: None, hasty: None, books: Books, other: Session) -> None:
    """One event is being claimed elsewhere and that session stands still: seven are settled, one comes again."""
    blocked = capture("pay_blocked")
    hold_claim(other, blocked.event_id)
    began_at = time.monotonic()

    answers = settle(*batch_with(blocked))

    assert outcomes(answers) == ["applied"] * 4 + ["SettlementFailed"] + ["applied"] * 3
    # The lock timeout once for all together, 0.1 s for the blocked one alone, and little for the seven others.
    assert time.monotonic() - began_at < 2.0
    assert models.Event.objects.filter(claim=None).count() == 0
    other.execute("ROLLBACK")
    assert outcomes(settle(blocked)) == ["applied"]
    assert books()["merchant-1 IDR"] == 80_000


@with_commits
def test_row_that_all_share_is_not_waited_for_by_each(
    small_demo: None, hasty: None, books: Books, other: Session
) -> None:
    """The endpoint's own account is locked elsewhere: after the second wait in a row nobody else is tried."""
    settle(capture("pay_0"))
    other.execute("BEGIN")
    other.execute("SELECT id FROM payments_account WHERE code = 'receivable:demo' FOR UPDATE")
    jobs = [capture(f"pay_{n}") for n in range(1, 17)]
    began_at = time.monotonic()

    answers = settle(*jobs)

    assert outcomes(answers) == ["SettlementFailed"] * 16
    assert time.monotonic() - began_at < 2.0  # 0.3 s, and twice 0.1 s
    other.execute("ROLLBACK")
    assert outcomes(settle(*jobs)) == ["applied"] * 16
    assert books()["merchant-1 IDR"] == 170_000


# Connections lost -----------------------------------------------------------------------------------------------------


def kill_session(other: Session) -> None:
    """End this thread's session from another one, and wait until it is gone."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    assert other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid]).fetchone() == (True,)


@with_commits
def test_connection_lost_before_commit_is_tried_again(
    small_demo: None, books: Books, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is ended in the middle of the transaction: run again on a new one, booked once."""
    original, calls = outbox.enqueue_transfers, []

    def lose(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            kill_session(other)
        original(*args, **kwargs)

    monkeypatch.setattr(outbox, "enqueue_transfers", lose)
    answers = settle(capture("pay_1"), capture("pay_2"))

    assert outcomes(answers) == ["applied"] * 2
    assert len(calls) == 2
    assert books()["merchant-1 IDR"] == 20_000


@with_commits
def test_connection_lost_at_commit_is_not_tried_again(
    small_demo: None, books: Books, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether the COMMIT happened: all hear "later", and the next delivery learns the truth."""
    original, calls = claims.amend, []

    def lose(*args: Any) -> None:
        calls.append(1)
        original(*args)
        if len(calls) == 1:
            kill_session(other)  # the next that it is asked for is COMMIT

    monkeypatch.setattr(claims, "amend", lose)
    jobs = [capture("pay_1"), capture("pay_2")]
    lost = settle(*jobs)
    again = settle(*jobs)

    assert outcomes(lost) == ["SettlementFailed"] * 2
    assert len(calls) == 2  # the second is the next delivery's
    assert outcomes(again) == ["applied"] * 2
    assert books()["merchant-1 IDR"] == 20_000


@with_commits
def test_connection_lost_each_time_is_no_members_fault(
    small_demo: None, books: Books, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that ends every session: after the last try all hear "later"; nobody is then tried alone."""
    original, calls = outbox.enqueue_transfers, []

    def lose(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        kill_session(other)
        original(*args, **kwargs)

    jobs = [capture("pay_1"), capture("pay_2")]
    with monkeypatch.context() as outage:
        outage.setattr(outbox, "enqueue_transfers", lose)
        answers = settle(*jobs)

    assert outcomes(answers) == ["SettlementFailed"] * 2
    assert len(calls) == database.TRIES_MAX
    assert outcomes(settle(*jobs)) == ["applied"] * 2
    assert books()["merchant-1 IDR"] == 20_000


@with_commits
def test_no_connection_for_a_further_try_is_no_members_fault(
    small_demo: None, other: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is lost and the pool has no other: all hear "later"."""

    def no_other(self: Any) -> None:
        if self.connection is None:
            raise OperationalError("couldn't get a connection")

    def lose(candidates: Sequence[claims.Candidate]) -> dict[claims.Key, claims.Decision]:
        monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", no_other)
        kill_session(other)
        return take(candidates)

    take = claims.take
    monkeypatch.setattr(claims, "take", lose)
    answers = settle(capture("pay_1"), capture("pay_2"))

    assert outcomes(answers) == ["SettlementFailed"] * 2
    assert "batch_failed" not in caplog.messages
