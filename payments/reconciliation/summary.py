"""A reconciliation for whoever keeps the books: per currency the gateway's total, ours, and what explains the rest.

Both totals are what the gateway owes us by them. The gateway's is the sum of its statement's lines; ours is what is
entered in the endpoint's receivable account for the same days. All that lies between them has a name; what has none is
`unexplained`, and must be zero. What no finding names is told item by item, the first ITEMS_MAX of each reason.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from payments import money, postings
from payments.reconciliation.rows import EFFECTS
from payments.reconciliation.staging import Staging, Window
from payments.reconciliation.verdicts import (
    BOOKED,
    DIFFERS,
    FEE_DIFFERS,
    MATCHED,
    MISSING_HERE,
    MISSING_THERE,
    REVERSED,
)

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
_FOUND: Final = (DIFFERS, MISSING_HERE, MISSING_THERE)  # reasons whose items are findings
ITEMS_MAX: Final = 10  # of one reason in one currency: a person who needs more needs another tool

# A statement's total, per currency and verdict: what its lines do to what the gateway owes us.
_LINES_TOTAL: Final = """
    SELECT currency, verdict, sum(amount) FROM (
        SELECT l.currency, v.verdict, l.effect * l.amount AS amount
        FROM statement_line l JOIN statement_verdict v ON v.position = l.position
        UNION ALL
        SELECT l.into_currency, v.verdict, l.into_minor
        FROM statement_line l JOIN statement_verdict v ON v.position = l.position WHERE l.into_minor IS NOT NULL
    ) moved
    WHERE currency IS NOT NULL
    GROUP BY currency, verdict
"""
# Ours: what is entered in the endpoint's receivable account, and what the statement says of it.
_OURS: Final = """
    FROM (SELECT t.id, t.key, t.occurred_at, s.verdict, true AS is_inside
          FROM payments_transfer t LEFT JOIN statement_seen s ON s.transfer_id = t.id
          WHERE t.endpoint_id = %(books)s AND t.occurred_at >= %(begin)s AND t.occurred_at < %(end)s
          UNION ALL
          SELECT t.id, t.key, t.occurred_at, s.verdict, false
          FROM statement_seen s JOIN payments_transfer t ON t.id = s.transfer_id
          WHERE t.occurred_at < %(begin)s OR t.occurred_at >= %(end)s) u
    JOIN payments_entry e ON e.transfer_id = u.id
    JOIN payments_account a ON a.id = e.account_id AND a.code = %(receivable)s
"""
_MOVED: Final = "sum(CASE e.direction WHEN 'debit' THEN e.amount ELSE -e.amount END)"
_OURS_TOTAL: Final = f"""
    SELECT e.currency, COALESCE(u.verdict, ''), u.is_inside, u.occurred_at < %(due)s, {_MOVED}
    {_OURS}
    GROUP BY 1, 2, 3, 4
"""
# Corrections of what isn't booked: known, and nothing to reverse.
_UNMET: Final = f"""
    FROM statement_open o
    JOIN statement_verdict v ON v.position = o.position AND v.verdict IN ('matched', 'booked')
    JOIN statement_line l ON l.position = o.position
    WHERE o.unit LIKE '%%{REVERSED}' AND NOT EXISTS (SELECT FROM payments_transfer t WHERE t.key = o.unit)
"""
_UNMET_TOTAL: Final = f"SELECT o.currency, sum(l.effect * o.amount) {_UNMET} GROUP BY o.currency"
_MISSING_THERE_TOTAL: Final = """
    SELECT d.booked_currency, COALESCE(o.kind, d.kind), t.reverses_id IS NOT NULL, sum(d.booked_amount)
    FROM statement_difference d
    JOIN payments_transfer t ON t.key = d.key
    LEFT JOIN payments_transfer o ON o.id = t.reverses_id
    WHERE d.verdict = 'missing_there'
    GROUP BY 1, 2, 3
"""
# Each with its part of the difference. Of a total that is missing there in part, the rest is an item.
_ITEMS: Final = f"""
    WITH moved AS (
        SELECT u.key, u.occurred_at, u.verdict, u.is_inside, e.currency, {_MOVED} AS amount
        {_OURS}
        WHERE NOT u.is_inside OR u.verdict IS NULL OR u.verdict = '{_NAMED}'
        GROUP BY 1, 2, 3, 4, 5
    ), items AS (
        SELECT currency, 'other_days' AS reason, key, occurred_at, amount FROM moved WHERE NOT is_inside
        UNION ALL
        SELECT currency, 'only_named', key, occurred_at, -amount FROM moved WHERE verdict = '{_NAMED}'
        UNION ALL
        SELECT m.currency, CASE WHEN m.occurred_at < %(due)s THEN 'other_entries' ELSE 'in_settlement' END, m.key,
               m.occurred_at, sign(m.amount) * COALESCE(d.booked_amount, 0) - m.amount
        FROM moved m LEFT JOIN statement_difference d ON d.key = m.key AND d.verdict = 'missing_there'
        WHERE m.verdict IS NULL
        UNION ALL
        SELECT o.currency, 'nothing_to_correct', o.unit, o.occurred_at, l.effect * o.amount {_UNMET}
    )
    SELECT currency, reason, key, occurred_at, amount
    FROM (SELECT *, row_number() OVER (PARTITION BY currency, reason ORDER BY occurred_at, key) AS n
          FROM items WHERE amount <> 0) numbered
    WHERE n <= {ITEMS_MAX}
    ORDER BY currency, reason, n
"""


@dataclass(slots=True)
class CurrencySummary:
    """Minor units; explained: {reason: its part of the difference}, without those that are zero.

    items   the first of what no finding names, each with its reason and its part
    """

    currency: str
    gateway: int = 0
    ours: int = 0
    explained: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    items: list[dict[str, Any]] = field(default_factory=list)

    @property
    def difference(self) -> int:
        return self.gateway - self.ours

    @property
    def unexplained(self) -> int:
        return self.difference - sum(self.explained.values())

    @property
    def itemized(self) -> dict[str, int]:
        """What is explained by things that no finding names."""
        return {reason: amount for reason, amount in self.explained.items() if reason not in _FOUND}

    def as_json(self) -> dict[str, Any]:
        explained = {reason: self.explained[reason] for reason in REASONS if self.explained.get(reason)}
        return {
            "currency": self.currency,
            "gateway": self.gateway,
            "ours": self.ours,
            "difference": self.difference,
            "explained": explained,
            "unexplained": self.unexplained,
            "items": self.items,
        }


def summarize(stage: Staging, *, books_id: int, books: str, window: Window) -> list[dict[str, Any]]:
    """Return the summary of each currency. Needs the staging's snapshot, with what is missing there found."""
    summaries: dict[str, CurrencySummary] = {}

    def of(currency: str) -> CurrencySummary:
        return summaries.setdefault(currency, CurrencySummary(currency))

    for currency, verdict, amount in stage.rows(_LINES_TOTAL):
        summary = of(currency)
        summary.gateway += int(amount)
        if verdict not in (MATCHED, BOOKED):
            summary.explained[DIFFERS if verdict == FEE_DIFFERS else verdict] += int(amount)
    ours = {
        "books": books_id,
        "receivable": postings.own_code(postings.Role.RECEIVABLE, books),
        "begin": window.begin,
        "end": window.end,
        "due": window.due,
    }
    for currency, verdict, is_inside, is_due, amount in stage.rows(_OURS_TOTAL, ours):
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
    for currency, kind, is_reversal, amount in stage.rows(_MISSING_THERE_TOTAL):
        moved = (-1 if is_reversal else 1) * EFFECTS[kind] * int(amount)
        of(currency).explained[MISSING_THERE] -= moved
        of(currency).explained["other_entries"] += moved
    for currency, amount in stage.rows(_UNMET_TOTAL, {}):
        of(currency).explained["nothing_to_correct"] += int(amount)
    # Not asked where all agrees: it takes as long as the totals.
    if any(any(summary.itemized.values()) for summary in summaries.values()):
        for currency, reason, key, occurred_at, amount in stage.rows(_ITEMS, ours):
            item = {"reason": reason, "subject": key, "occurred_at": occurred_at.isoformat(), "amount": int(amount)}
            of(currency).items.append(item)
    return [summaries[currency].as_json() for currency in sorted(summaries)]


def describe(summary: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the summary as lines for a person, whose amounts add up from line to line."""
    lines = []
    for one in summary:
        currency = one["currency"]
        amounts = [
            ("gateway's statement", one["gateway"]),
            ("our books", one["ours"]),
            ("difference", one["difference"]),
        ]
        for reason, amount in one["explained"].items():
            amounts += [(f"  {REASONS[reason]}", amount), *_itemized(reason, amount, one["items"])]
        amounts.append(("unexplained", one["unexplained"]))
        lines += [f"{currency}  {what:<82} {_shown(amount, currency):>20}" for what, amount in amounts]
    return lines


def _itemized(reason: str, amount: int, items: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    shown = [one for one in items if one["reason"] == reason]
    yield from ((f"    {one['subject']}, {one['occurred_at']}", one["amount"]) for one in shown)
    rest = amount - sum(one["amount"] for one in shown)
    if shown and rest:
        yield "    and others", rest


def _shown(amount: int, currency: str) -> str:
    return f"{Decimal(money.format_major(amount, currency)):,}"
