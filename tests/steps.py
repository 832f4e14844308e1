"""What can happen to payments, as plain steps, and how to let it happen in any order and any batches."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from django.db import OperationalError, transaction

from payments import conf, database, intake, models, payees
from payments.facts import TYPE_NAMES, Fact, FactKind
from payments.registrations import Registered
from tests.settling import job, outcomes, settle

OCCURRED_AT: Final = datetime(2026, 11, 30, 10, tzinfo=UTC)
# Totals are told by no event of the demo's vocabulary.
KINDS: Final = {
    **{name: FactKind(kind) for kind, name in TYPE_NAMES.items() if not kind.endswith("Total")},
    "captured.total": FactKind.PAYMENT_CAPTURED_TOTAL,
    "refunded.total": FactKind.REFUNDED_TOTAL,
}
_LEGS: Final = ("dispute.funds_withdrawn", "dispute.funds_returned", "dispute.lost")
_numbers = itertools.count(1)
TRIES: Final = 10


@dataclass(frozen=True)
class Said:
    """One fact: an event type of the demo's vocabulary, or a total."""

    type: str
    payment: str | None = None
    id: str | None = None  # the refund's, fee's, dispute's or payout's
    part: str | None = None  # capture or movement
    amount: int | None = None
    currency: str | None = None
    account: str | None = None
    reference: str | None = None

    @property
    def data(self) -> dict[str, Any]:
        """Its members in the demo's vocabulary."""
        noun, part = self.type.split(".")[0], "capture" if self.type.startswith("payment") else "movement"
        named = {"payment": self.payment, noun: self.id or self.payment, part: self.part, "amount": self.amount}
        named |= {"currency": self.currency, "account": self.account, "reference": self.reference}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def fact(self) -> Fact:
        """What an adapter would make of it."""
        return Fact(
            kind=KINDS[self.type],
            occurred_at=OCCURRED_AT,
            object_id=self.id or self.payment or "",
            payment=self.payment,
            part=self.part or ("1" if self.type in _LEGS else None),
            amount_minor=self.amount,
            currency=self.currency,
            account=self.account,
            reference=self.reference or self.payment,
            reference_rank=2 if self.reference else 1,
        )


@dataclass(frozen=True)
class Register:
    reference: str
    wanted: Registered


@dataclass(frozen=True)
class Open:
    code: str
    currency: str


@dataclass(frozen=True)
class OnStatement:
    """The same fact once more, as a line of a statement."""

    said: Said


Step = Said | Register | Open | OnStatement


def play(steps: Iterable[Step], batch_sizes: Iterator[int] | None = None, *, slug: str = "demo") -> None:
    """Let the steps happen in this order; deliveries that follow each other share transactions as told.

    Events of the demo's vocabulary are delivered to the demo endpoint; all else is booked as from a statement.
    """
    waiting: list[Said] = []
    for step in [*steps, None]:
        if isinstance(step, Said) and slug == "demo" and not step.type.endswith(".total"):
            waiting.append(step)
            continue
        while waiting:
            size = next(batch_sizes) if batch_sizes else 1
            deliver(waiting[:size])
            waiting = waiting[size:]
        if isinstance(step, Said):
            book([step], slug=slug)
        elif isinstance(step, OnStatement):
            book([step.said], slug=slug)
        elif isinstance(step, Register):
            patiently(partial(payees.register, conf.endpoint(slug), step.reference, step.wanted))
        elif isinstance(step, Open):
            patiently(partial(payees.open_accounts, [(step.code, step.currency, "liability")]))


def patiently(work: Callable[[], object]) -> None:
    """Do it, again where a lock was not to be had: on a busy machine a COMMIT may take longer than others wait."""
    for _ in range(TRIES - 1):
        try:
            work()
            return
        except OperationalError:
            continue
    work()


def deliver(batch: Sequence[Said]) -> None:
    """Settle one batch. A fact told again is a re-delivery, the same event id, and each third time another event."""
    jobs = [job(one.type, event_id=f"{hash(one)}:{next(_numbers) % 3 // 2}", **one.data) for one in batch]
    for _ in range(TRIES):  # on a busy machine a deadline may pass: a gateway tries again
        answers = outcomes(settle(*jobs))
        if "SettlementFailed" not in answers:
            break
    assert set(answers) <= {"applied", "duplicate"}, answers
    assert not models.Event.objects.filter(failures__gt=0).exists()


def book(said: Sequence[Said], *, slug: str = "demo") -> None:
    """Book the facts as a statement tells them, in one transaction."""
    with transaction.atomic():
        database.set_lock_timeout(10_000)
        intake.book(intake.tell(conf.endpoint(slug), [one.fact for one in said], claim_id=None, source="statement"))
