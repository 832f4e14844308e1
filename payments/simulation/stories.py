"""Made-up payments: what happened, in which order it is delivered, and what the ledger must show in the end.

Pure: no clock, no network, no database. The same seed gives the same events, byte for byte.
"""

import dataclasses
import heapq
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from payments.facts import FactKind

# A seed that could be a time in milliseconds is taken for one: its events happened then, any other's here.
BEGINNING: Final = datetime(2026, 1, 1, tzinfo=UTC)
# Close enough that the events of a fast run don't lie in the future.
BETWEEN_EVENTS: Final = timedelta(microseconds=100)
# How many deliveries overtake one that is held back, and come before a late re-delivery.
OVERTAKEN_BY_MAX: Final = 50
REDELIVERED_AFTER_MAX: Final = 1000
# The demo's merchants that have accounts in other currencies than IDR, and the currencies.
FOREIGN_ACCOUNTS: Final = 10
FOREIGN_PART: Final = 0.05  # of all payments
FOREIGN_CURRENCIES: Final = ("USD", "JPY", "KWD")
# What all wires can tell exactly: one has no minor unit for IDR, some round KWD to ten.
AMOUNT_STEP: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One event of a gateway: one fact about one payment.

    object_id       what the fact is about: the payment, the refund, the fee
    payee           whose payment it is
    names_payee     this very event says so, where the gateway has a member for it; else it is known from another
    captured_minor  the payment's amount; amount_minor the fact's
    """

    event_id: str
    kind: FactKind
    payment: str
    object_id: str
    payee: str
    names_payee: bool
    amount_minor: int
    captured_minor: int
    currency: str
    occurred_at: datetime


def started_at(seed: int) -> datetime:
    """Return when a run's payments begin to happen; a function of the seed alone."""
    if 1_500_000_000_000 <= seed < 4_000_000_000_000:
        return datetime.fromtimestamp(seed / 1000, UTC)
    return BEGINNING


def happenings(
    *,
    events: int,
    seed: int,
    accounts: int,
    kinds: Collection[FactKind],
    foreign: float = FOREIGN_PART,
) -> Iterator[Happening]:
    """Yield a run's events in the order in which they happen: captures, and later refunds and fees of some.

    accounts  payees are merchant-1 … merchant-<accounts>
    kinds     what the gateway has events for; captures are always told
    foreign   how many of the payments are in another currency, at merchants that have accounts in it
    """
    rng = random.Random(seed)
    run, begins_at = f"{seed:x}", started_at(seed)
    waiting: list[Happening] = []
    for number in range(1, events + 1):
        if waiting and rng.random() < 0.5:
            happening = waiting.pop(rng.randrange(len(waiting)))
        else:
            happening = _capture(rng, f"{run}_{number}", accounts, foreign)
            waiting += [later for later in _follow_ups(rng, happening) if later.kind in kinds]
        yield dataclasses.replace(
            happening, event_id=f"evt_{run}_{number}", occurred_at=begins_at + number * BETWEEN_EVENTS
        )


def _capture(rng: random.Random, name: str, accounts: int, foreign: float) -> Happening:
    abroad = rng.random() < foreign
    amount_minor = rng.randint(1, 10_000) * AMOUNT_STEP
    return Happening(
        event_id="",
        kind=FactKind.PAYMENT_CAPTURED,
        payment=f"pay_{name}",
        object_id=f"pay_{name}",
        payee=f"merchant-{rng.randint(1, min(accounts, FOREIGN_ACCOUNTS) if abroad else accounts)}",
        names_payee=True,
        amount_minor=amount_minor,
        captured_minor=amount_minor,
        currency=rng.choice(FOREIGN_CURRENCIES) if abroad else "IDR",
        occurred_at=BEGINNING,
    )


def _follow_ups(rng: random.Random, capture: Happening) -> Iterator[Happening]:
    name = capture.payment.removeprefix("pay_")
    if rng.random() < 0.3:
        yield dataclasses.replace(
            capture,
            kind=FactKind.FEE_ASSESSED,
            object_id=f"fee_{name}",
            names_payee=False,
            amount_minor=_part(capture.amount_minor, 50),
        )
    if rng.random() < 0.15:
        yield dataclasses.replace(
            capture,
            kind=FactKind.REFUND_SUCCEEDED,
            object_id=f"ref_{name}",
            names_payee=rng.random() < 0.5,
            amount_minor=rng.choice((capture.amount_minor, _part(capture.amount_minor, 4))),
        )


def _part(amount_minor: int, divisor: int) -> int:
    return max(AMOUNT_STEP, amount_minor // divisor // AMOUNT_STEP * AMOUNT_STEP)


def deliveries(told: Iterable[Happening], *, duplicates: float, reorder: float, seed: int) -> Iterator[Happening]:
    """Yield the events in the order of their deliveries, some again and some late.

    duplicates  how many of the events come again: half of these right behind the first, to be sent beside
                it on another connection, the others later
    reorder     how many of the events are overtaken by later ones
    """
    rng = random.Random(seed)
    held: list[tuple[int, int, Happening]] = []  # position from which it goes out, a tie-break, what
    for position, happening in enumerate(told):
        while held and held[0][0] <= position:
            yield heapq.heappop(held)[2]
        overtaken_by = rng.randint(1, OVERTAKEN_BY_MAX) if rng.random() < reorder else 0
        copies = 2 if rng.random() < duplicates else 1
        at_once = rng.random() < 0.5
        for copy in range(copies):
            later = 0 if copy == 0 or at_once else rng.randint(1, REDELIVERED_AFTER_MAX)
            if overtaken_by + later:
                heapq.heappush(held, (position + overtaken_by + later, 2 * position + copy, happening))
            else:
                yield happening
    while held:
        yield heapq.heappop(held)[2]


class Expected:
    """What the ledger must show of the events added to it: each once, whatever was delivered how often.

    Holds for payees that have an account in the currency; for others the money is in suspense.

    events     how many claims and transfers of facts there are
    balances   (account code, currency) -> minor units in its normal sense, as `payments_account.balance`
    payments   reference -> sums named as the columns of `payments_payment`: captured, refunded, fees
    """

    def __init__(self, *, books: str, everybodys_payee: str | None = None) -> None:
        """everybodys_payee: whose all payments are, where the gateway's events name none."""
        self.events = 0
        self.balances: Counter[tuple[str, str]] = Counter()
        self.payments: dict[str, Counter[str]] = {}
        self._books, self._everybodys_payee = books, everybodys_payee

    def add(self, happening: Happening) -> None:
        """Count one event; the caller doesn't add one twice."""
        payee = self._everybodys_payee or happening.payee
        amount, currency = happening.amount_minor, happening.currency
        totals = self.payments.setdefault(happening.payment, Counter())
        self.events += 1
        if happening.kind is FactKind.PAYMENT_CAPTURED:
            column, legs = "captured", ((f"receivable:{self._books}", amount), (payee, amount))
        elif happening.kind is FactKind.REFUND_SUCCEEDED:
            column, legs = "refunded", ((f"receivable:{self._books}", -amount), (payee, -amount))
        elif happening.kind is FactKind.FEE_ASSESSED:
            column, legs = "fees", ((f"receivable:{self._books}", -amount), (f"fees:{self._books}", amount))
        else:
            raise AssertionError(f"Bug: no story tells {happening.kind}")
        totals[column] += amount
        for code, change in legs:
            self.balances[code, currency] += change
