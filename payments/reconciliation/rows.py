"""A statement's lines as rows of the staging's table, one for each fact. Pure functions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from payments import facts, postings
from payments.facts import Fact, FactKind
from payments.reconciliation.verdicts import REVERSED
from payments.statements.base import StatementLine

# What a fact's amount does to what the gateway owes us. A correction undoes what it corrects.
EFFECTS: Final[Mapping[str, int]] = {
    **{
        kind: 1 if legs[0] is postings.Role.RECEIVABLE else -1 if legs[1] is postings.Role.RECEIVABLE else 0
        for kind, legs in postings.TABLE.items()
    },
    FactKind.PAYMENT_REVERSED: -1,
    FactKind.REFUND_FAILED: 1,
    FactKind.PAYOUT_FAILED: 1,
    FactKind.PAYOUT_COLLECTION_FAILED: -1,
}


def rows_of(line: StatementLine, *, position: int, books: str, unusable: str) -> list[tuple[object, ...]]:
    """Return a line as rows of the table, its principal first; unusable: how lines without a key are named."""
    if line.principal is None:
        name = f"{unusable}{line.number}"
        nothing = (None,) * 9
        return [(position, line.number, False, name, "", "", *nothing, None, False, None, None, 0, line.unusable)]
    rows = [_row(line.principal, line, position, books)]
    for offset, fact in enumerate(line.beside, start=1):
        rows.append(_row(fact, None, position + offset, books, number=line.number))
    return rows


def _row(fact: Fact, line: StatementLine | None, position: int, books: str, *, number: int = 0) -> tuple[object, ...]:
    unit = facts.business_key(books, fact) if fact.kind in facts.MONEY else None
    amount, is_summed, alias, names = fact.amount_minor, False, None, None
    if fact.kind in facts.CORRECTIONS:
        unit = f"{unit}{REVERSED}"
    if line is not None:
        number, is_summed = line.number, line.is_summed
        if is_summed:
            unit = f"{books}:{facts.escape(fact.payment or '')}:captured"
            amount = line.sign * (amount or 0)
        if line.known_as is not None:
            alias = facts.business_key(books, line.known_as)
        if line.payout is not None:
            names = f"{books}:{facts.escape(line.payout)}:paid"
        elif fact.kind is FactKind.DISPUTE_LOST:
            implied = replace(fact, kind=FactKind.DISPUTE_FUNDS_WITHDRAWN, part=fact.part or "1")
            names = facts.business_key(books, implied)
    return (
        *(position, number, line is None, unit, fact.kind.value, fact.object_id, fact.part, fact.payment, amount),
        *(fact.currency, fact.account, fact.reference, fact.reference_rank, fact.occurred_at, fact.into_minor),
        *(fact.into_currency, is_summed, alias, names, EFFECTS.get(fact.kind, 0), ""),
    )
