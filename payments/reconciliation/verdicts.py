"""What to say of a statement's lines, given what is booked: pure functions, no database.

matched       line and ledger agree
booked        no webhook brought it, booked now
differs       the same fact with another amount, currency, payment or payee; or told twice in the file
missing_here  it could not be booked
missing_there booked here, and no line says so (decided elsewhere: it is about all lines)
fee_differs   as differs, of a fee beside the line; no verdict of the line
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from payments import facts, money
from payments.facts import Fact, FactKind

MATCHED: Final = "matched"
BOOKED: Final = "booked"
DIFFERS: Final = "differs"
MISSING_HERE: Final = "missing_here"
MISSING_THERE: Final = "missing_there"
FEE_DIFFERS: Final = "fee_differs"
OF_LINES: Final = (MATCHED, BOOKED, DIFFERS, MISSING_HERE)

TWICE: Final = "the file tells it twice"
REVERSED: Final = ":reversed"  # after the key that a correction is known by: how its transfer is called
# Facts that can be booked without knowing their payment.
_WITHOUT_PAYMENT: Final = facts.PAYOUTS | facts.FEES | {FactKind.FUNDS_CONVERTED}

Money = tuple[int, str]  # minor units, currency


class Row(NamedTuple):
    """One fact of one line that isn't simply matched.

    unit       the business key; for summed lines that of the payment's capture. None: the fact tells of no money
    amount     minor units; negative where a summed line takes back
    alias      another business key under which a webhook may have told it
    why        why the line can't be used, or ""
    first      position of the first row of the same unit
    at         position of the unit: rows of one sum share it
    """

    position: int
    number: int
    is_beside: bool
    unit: str | None
    kind: str
    object_id: str
    part: str | None
    payment: str | None
    amount: int | None
    currency: str | None
    account: str | None
    reference: str | None
    reference_rank: int
    occurred_at: datetime | None
    into_minor: int | None
    into_currency: str | None
    is_summed: bool
    alias: str | None
    why: str
    first: int
    at: int

    @property
    def money(self) -> Money | None:
        return None if self.amount is None or self.currency is None else (self.amount, self.currency)

    def fact(self) -> Fact:
        if self.occurred_at is None:
            raise AssertionError(f"Bug: line {self.number} tells a fact without its time")
        return Fact(
            kind=FactKind(self.kind),
            occurred_at=self.occurred_at,
            object_id=self.object_id,
            payment=self.payment,
            part=self.part,
            amount_minor=self.amount,
            currency=self.currency,
            account=self.account,
            reference=self.reference,
            reference_rank=self.reference_rank,
            into_minor=self.into_minor,
            into_currency=self.into_currency,
        )


class Known(NamedTuple):
    """A booked transfer, as far as a line can differ from it."""

    id: int
    kind: str
    amount: int
    currency: str
    payment: str | None
    account: str | None
    into_minor: int | None = None  # of a conversion, as in Row
    into_currency: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What is booked of some rows: transfers and corrections by their keys, captures by the gateway's payment.

    booked_now   units that this very reconciliation booked, in an earlier life that was killed
    """

    transfers: Mapping[str, Known]
    corrections: Mapping[str, Money]
    captures: Mapping[str, Sequence[Known]]
    booked_now: Collection[str]


@dataclass(slots=True)
class Judgement:
    """What is said of rows that share a fact.

    verdict      None: the fact is to be told first, and what comes of it decides
    fact         to be told
    booked       what is booked here instead, where they differ
    transfer_ids the transfers that the rows are about, where their keys don't say so
    """

    rows: Sequence[Row]
    verdict: str | None
    fact: Fact | None = None
    why: str = ""
    booked: Money | None = None
    transfer_ids: Sequence[int] = field(default_factory=tuple)


def judge(rows: Sequence[Row], history: History) -> Iterator[Judgement]:
    """Say what can be said of the rows without telling them. All rows of one sum must be among them."""
    for _, group in groupby(rows, key=attrgetter("at")):
        of_unit = list(group)
        yield from _judge_sum(of_unit, history) if of_unit[0].is_summed else map(_judge, of_unit, [history])


def _judge(row: Row, history: History) -> Judgement:
    if row.why:
        return Judgement([row], MISSING_HERE, why=row.why)
    if row.unit is None:
        return Judgement([row], MATCHED, row.fact()) if row.payment else _without_payment(row)
    if row.first != row.position:
        return _differs(row, TWICE)
    known = history.transfers.get(row.unit) or history.transfers.get(row.alias or "")
    if known is not None:
        why = differences(row, known)
        return _differs(row, why, (known.amount, known.currency)) if why else _agrees([row], history)
    if row.unit.endswith(REVERSED) and (other := _corrected(row, row.unit.removesuffix(REVERSED), history)):
        return _agrees([row], history) if other == row.money else _differs(row, "amount", other)
    if row.payment is None and row.kind not in _WITHOUT_PAYMENT:
        return _without_payment(row)
    return Judgement([row], None, row.fact())


def _corrected(row: Row, key: str, history: History) -> Money | None:
    """Return the amount that a correction differs from, or that of the known one; None: nothing speaks against it."""
    original = history.transfers.get(key)
    if original is not None and (original.amount, original.currency) != row.money:
        return original.amount, original.currency
    return history.corrections.get(key)


def differences(row: Row, known: Known) -> str:
    """Return in what a line differs from the transfer of its key; "" where it agrees."""
    differing = {
        "amount": row.amount != known.amount,
        "currency": row.currency != known.currency,
        "payment": row.payment is not None and row.payment != known.payment,
        "account": None not in (row.account, known.account) and row.account != known.account,
        f"bought {_shown(row)}, here {_shown(known)}": _bought(row) != _bought(known),
    }
    return ", ".join(name for name, is_so in differing.items() if is_so)


def _bought(one: Row | Known) -> tuple[int | None, str | None]:
    return one.into_minor, one.into_currency


def _shown(one: Row | Known) -> str:
    if one.into_minor is None or one.into_currency is None:
        return "nothing"
    return f"{money.format_major(one.into_minor, one.into_currency)} {one.into_currency}"


def _without_payment(row: Row) -> Judgement:
    return Judgement([row], MISSING_HERE, why="the line names no payment, and it isn't booked yet")


def _agrees(rows: Sequence[Row], history: History, transfer_ids: Sequence[int] = ()) -> Judgement:
    return Judgement(rows, BOOKED if rows[0].unit in history.booked_now else MATCHED, transfer_ids=transfer_ids)


def _differs(row: Row, why: str, booked: Money | None = None, transfer_ids: Sequence[int] = ()) -> Judgement:
    verdict = FEE_DIFFERS if row.is_beside else DIFFERS
    return Judgement([row], verdict, why=why, booked=booked, transfer_ids=transfer_ids)


# Lines that name no capture -------------------------------------------------------------------------------------------


def _judge_sum(rows: Sequence[Row], history: History) -> Iterator[Judgement]:
    payment = rows[0].payment
    captures = history.captures.get(payment or "", ())
    if not captures:
        yield from _judge_uncaptured(rows)
        return
    gross: dict[str, int] = {}
    for known in captures:
        sense = -1 if known.kind not in (FactKind.PAYMENT_CAPTURED, FactKind.PAYMENT_CAPTURED_TOTAL) else 1
        gross[known.currency] = gross.get(known.currency, 0) + sense * known.amount
    accounts = {known.account for known in captures if known.account is not None}
    ids = [known.id for known in captures]
    for currency, group in groupby(sorted(rows, key=attrgetter("currency")), key=attrgetter("currency")):
        lines = list(group)
        if currency not in gross:
            other = next(iter(gross))
            yield from _all_differ(lines, "currency", (gross[other], other), ids)
        elif accounts and any(row.account not in (None, *accounts) for row in lines):
            yield from _all_differ(lines, "account", (gross[currency], currency), ids)
        else:
            yield from _compare_sum(lines, (gross[currency], currency), ids, history)


def _compare_sum(lines: Sequence[Row], booked: Money, ids: Sequence[int], history: History) -> Iterator[Judgement]:
    """The first lines that add up to what is booked agree with it; lines beyond are too many, as told twice."""
    total, agreeing = 0, 0
    for count, row in enumerate(lines, start=1):
        total += row.amount or 0
        if total == booked[0]:
            agreeing = count
    if not agreeing:
        yield from _all_differ(lines, "amount", booked, ids)
        return
    yield _agrees(lines[:agreeing], history, ids)
    for row in lines[agreeing:]:
        yield _differs(row, "more than is captured here")


def _all_differ(lines: Sequence[Row], why: str, booked: Money, ids: Sequence[int]) -> Iterator[Judgement]:
    # What is booked stands once beside the lines that it differs from.
    yield _differs(lines[0], why, booked, ids)
    for row in lines[1:]:
        yield _differs(row, why)


def _judge_uncaptured(rows: Sequence[Row]) -> Iterator[Judgement]:
    lines = [row for row in rows if row.currency == rows[0].currency]
    total = sum(row.amount or 0 for row in lines)
    if total <= 0:
        yield Judgement(lines, MISSING_HERE, why="what the payment's lines capture sums to nothing")
    elif len(lines) == 1:
        yield Judgement(lines, None, lines[0].fact())
    else:
        # Several captures without an id each: only their sum is known.
        fact = replace(lines[-1].fact(), kind=FactKind.PAYMENT_CAPTURED_TOTAL, amount_minor=total)
        yield Judgement(lines, None, fact)
    for row in rows:
        if row.currency != rows[0].currency:
            yield _differs(row, "currency")
