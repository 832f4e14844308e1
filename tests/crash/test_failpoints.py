"""SIGKILL at every step of the spine while deliveries are under way: none lost, none booked twice, all answered alike.

CRASH_ROUNDS: how often each step is killed at, 1 unless set.
"""

import os
import random
import signal
from dataclasses import dataclass, field
from typing import Final

import pytest

from tests.crash import figures, gateway, invariants, processes
from tests.crash.gateway import Event, Gateway
from tests.crash.servers import App, Postgres

pytestmark = pytest.mark.crash

ROUNDS: Final = int(os.environ.get("CRASH_ROUNDS", "1"))
BEFORE_COMMIT: Final = (
    "before_claims",
    "after_claims",
    "after_events",
    "after_payments",
    "after_transfers",
    "after_outbox",
    "before_commit",
)
AFTER_COMMIT: Final = ("after_commit", "before_answer")
# One process, or it couldn't be told which one dies, and after how many transactions.
ONE_WORKER: Final = {"WEB_CONCURRENCY": "1"}


@dataclass
class Story:
    """What is delivered before the crash, what is under way when it comes, and what the ledger must show in the end."""

    earlier: Event = field(init=False)
    refund: Event = field(init=False)
    new: list[Event] = field(init=False)
    rivals: list[Event] = field(init=False)  # two contents of one event id, neither of them known before
    lie: Event = field(init=False)  # another content of the earlier event's id

    def __post_init__(self) -> None:
        payment = gateway.new_name("pay")
        self.earlier = gateway.capture(amount=10_000, account="merchant-1", payment=payment)
        self.lie = gateway.capture(amount=99_000, account="merchant-1", payment=payment, event_id=self.earlier.event_id)
        self.refund = gateway.event("refund.succeeded", payment=payment, refund=gateway.new_name("ref"), amount=3_000)
        self.new = [gateway.capture(amount=100 * n, account=f"merchant-{2 + n % 2}") for n in range(1, 7)]
        contested, event_id = gateway.new_name("pay"), gateway.new_name("evt")
        self.rivals = [
            gateway.capture(amount=amount, account="merchant-4", payment=contested, event_id=event_id)
            for amount in (7, 70_000)
        ]

    @property
    def under_way(self) -> list[Event]:
        return [self.refund, *self.new, self.new[0], *self.rivals]

    @property
    def aside(self) -> list[Event]:
        """Deliveries that claim nothing: a duplicate of what was answered before, and the lie."""
        return [self.earlier, self.lie]

    def expected(self, winner: Event) -> dict[str, int]:
        contested = {self.rivals[0]: 7, self.rivals[1]: 70_000}[winner]
        odd, even = 100 * (1 + 3 + 5), 100 * (2 + 4 + 6)
        return {
            "merchant-1 IDR": 7_000,
            "merchant-2 IDR": even,
            "merchant-3 IDR": odd,
            "merchant-4 IDR": contested,
            "receivable:demo IDR": 7_000 + even + odd + contested,
        }


def read_claims(postgres: Postgres, events: list[Event]) -> dict[str, tuple[int, bytes]]:
    """Return {event id: (claim's id, reply's body)} of those that are committed."""
    rows = postgres.query(
        "SELECT event_id, id, reply_body FROM payments_claim WHERE event_id = ANY(%(ids)s)",
        {"ids": [told.event_id for told in events]},
    )
    return {event_id: (claim_id, bytes(body)) for event_id, claim_id, body in rows}


def read_balances(postgres: Postgres) -> dict[tuple[str, str], int]:
    with postgres.connect() as connection, invariants.snapshot(connection) as cursor:
        return invariants.read_balances(cursor)


@pytest.mark.timeout(60 * ROUNDS + 60)
@pytest.mark.parametrize("step", [*BEFORE_COMMIT, *AFTER_COMMIT])
def test_killed_at_any_step(step: str, app: App, postgres: Postgres) -> None:
    """The worker dies there the first time, or the second; the retries find or book everything, once."""
    dice = random.Random(step)
    committed_unanswered = rolled_back = 0
    for _ in range(ROUNDS):
        found, missing = kill_at(step, hit=dice.choice((1, 2)), app=app, postgres=postgres)
        committed_unanswered += found
        rolled_back += missing
    figures.tell(
        f"{step}: {ROUNDS} kills",
        f"{committed_unanswered} events committed but unanswered, {rolled_back} rolled back or never begun",
    )


def kill_at(step: str, *, hit: int, app: App, postgres: Postgres) -> tuple[int, int]:
    story, sender = Story(), Gateway(app)
    before = read_balances(postgres)
    # The earlier delivery passes every step once.
    app.serve(**ONE_WORKER, PAYMENTS_FAILPOINT=f"{step}:{1 + hit}")
    assert sender.deliver(story.earlier) is not None

    # What claims nothing must not be what reaches a step after COMMIT first.
    first_wave = story.under_way if step in AFTER_COMMIT else [*story.under_way, *story.aside]
    (worker,) = app.list_workers()
    app.kill(signal.SIGSTOP, [app.master])  # or it would start another one, which serves before it dies too
    with gateway.in_background(lambda: sender.deliver_at_once(first_wave)):
        processes.wait_until("the worker dies there", lambda: processes.is_gone(worker), within_s=20)
        app.kill_all()
    processes.wait_until("PostgreSQL rolls back", lambda: not postgres.list_backends(), within_s=10)
    claims = read_claims(postgres, story.under_way)
    unanswered = {told.event_id for told in sender.unanswered if told != story.lie}
    committed_unanswered = unanswered & claims.keys()
    if hit == 1 and step in AFTER_COMMIT:
        assert committed_unanswered, "the failpoint was reached by nothing that was committed"
    if hit == 1 and step in BEFORE_COMMIT:
        assert not claims, "something was committed before the first COMMIT"
    assert sender.acknowledged().keys() <= claims.keys() | {story.earlier.event_id}, "acknowledged before COMMIT"

    app.start()
    for told in [*story.under_way, *story.aside]:  # what nobody got to send is sent now
        if told not in sender.told:
            sender.deliver(told)
    sender.retry()

    for told in story.under_way:
        if told.event_id in committed_unanswered and sender.answered[told].status == 200:
            assert sender.answered[told].body == claims[told.event_id][1], "not the stored reply"
    after = read_claims(postgres, story.under_way)
    assert {event_id: after[event_id] for event_id in claims} == claims
    assert len(after) == gateway.total_of(story.under_way)
    sender.deliver_all_again()
    assert sender.answered[story.lie].status == 422
    winners = [rival for rival in story.rivals if sender.answered[rival].status == 200]
    assert len(winners) == 1
    assert sorted(sender.answered[rival].status for rival in story.rivals) == [200, 422]
    assert invariants.changes(before, read_balances(postgres)) == story.expected(winners[0])
    app.manage("verify_ledger", expect=0)
    app.kill_all()
    return len(committed_unanswered), len(unanswered - claims.keys())
