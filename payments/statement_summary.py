"""A reconciliation for whoever keeps the books: per currency the gateway's total, ours, and what explains the rest.

Both totals are what the gateway owes us by them. The gateway's is the sum of its statement's lines; ours is what is
entered in the endpoint's receivable account for the same days. All that lies between them has a name; what has none is
`unexplained`, and must be zero.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from payments import money
from payments.staging import Staging, Window
from payments.verdicts import BOOKED, DIFFERS, FEE_DIFFERS, MATCHED, MISSING_HERE, MISSING_THERE

# What may lie between the two totals, in the order in which a person reads it.
REASONS: Final = {
    DIFFERS: "lines that differ from what is booked",
    MISSING_HERE: "lines that are not booked here",
    MISSING_THERE: "booked here, and no line says so",
    "in_settlement": "booked here, not due in a statement yet",
    "other_days": "lines of what happened on other days here",
    "only_named": "payouts that the lines are part of, without a line of their own",
    "nothing_to_correct": "corrections of what isn't booked",
    "other_entries": "other entries here: reversed before it was settled, told only in sums, adjusted by staff",
}
_NAMED: Final = "named"


@dataclass(slots=True)
class CurrencySummary:
    """Minor units; explained: {reason: its part of the difference}, without those that are zero."""

    currency: str
    gateway: int = 0
    ours: int = 0
    explained: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def difference(self) -> int:
        return self.gateway - self.ours

    @property
    def unexplained(self) -> int:
        return self.difference - sum(self.explained.values())

    def as_json(self) -> dict[str, Any]:
        explained = {reason: self.explained[reason] for reason in REASONS if self.explained.get(reason)}
        return {
            "currency": self.currency,
            "gateway": self.gateway,
            "ours": self.ours,
            "difference": self.difference,
            "explained": explained,
            "unexplained": self.unexplained,
        }


def summarize(stage: Staging, *, books_id: int, books: str, window: Window) -> list[dict[str, Any]]:
    """Return the summary of each currency. Needs the staging's snapshot, with what is missing there found."""
    summaries: dict[str, CurrencySummary] = {}

    def of(currency: str) -> CurrencySummary:
        return summaries.setdefault(currency, CurrencySummary(currency))

    missing_there = _by_currency(stage.missing_there_total())
    unmet = _by_currency(stage.unmet_total())
    for currency, verdict, amount in stage.lines_total():
        summary = of(currency)
        summary.gateway += int(amount)
        if verdict not in (MATCHED, BOOKED):
            summary.explained[DIFFERS if verdict == FEE_DIFFERS else verdict] += int(amount)
    for currency, verdict, is_inside, is_due, amount in stage.ours_total(books_id=books_id, books=books, window=window):
        summary = of(currency)
        if is_inside:
            summary.ours += int(amount)
        else:
            summary.explained["other_days"] += int(amount)
        if verdict in (DIFFERS, FEE_DIFFERS):
            summary.explained[DIFFERS] -= int(amount)
        elif verdict == _NAMED:
            summary.explained["only_named"] -= int(amount)
        elif verdict == "":
            summary.explained["other_entries" if is_due else "in_settlement"] -= int(amount)
    for currency, amount in missing_there.items():
        of(currency).explained[MISSING_THERE] -= amount
        of(currency).explained["other_entries"] += amount
    for currency, amount in unmet.items():
        of(currency).explained["nothing_to_correct"] += amount
    return [summaries[currency].as_json() for currency in sorted(summaries)]


def _by_currency(totals: Iterable[tuple[Any, ...]]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for currency, amount in totals:
        sums[currency] += int(amount)
    return sums


def describe(summary: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the summary as lines for a person."""
    lines = []
    for one in summary:
        currency = one["currency"]
        amounts = [
            ("gateway's statement", one["gateway"]),
            ("our books", one["ours"]),
            ("difference", one["difference"]),
        ]
        amounts += [(f"  {REASONS[reason]}", amount) for reason, amount in one["explained"].items()]
        amounts.append(("unexplained", one["unexplained"]))
        lines += [f"{currency}  {what:<82} {money.format_major(amount, currency):>20}" for what, amount in amounts]
    return lines
