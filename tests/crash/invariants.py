"""What must hold in the ledger at every instant, in SQL of the tests' own: a second road beside the product's.

Reads from one REPEATABLE READ snapshot, safe beside live deliveries.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg

Row = tuple[Any, ...]

# What each query returns is a violation.
QUERIES: Final[Mapping[str, str]] = {
    "a balance differs from its entries": """
        SELECT a.code, a.currency, a.debits, a.credits, a.balance
        FROM payments_account a
        LEFT JOIN (
            SELECT account_id, sum(amount) FILTER (WHERE direction = 'debit') AS debits,
                   sum(amount) FILTER (WHERE direction = 'credit') AS credits
            FROM payments_entry GROUP BY account_id
        ) e ON e.account_id = a.id
        WHERE (a.debits, a.credits) <> (COALESCE(e.debits, 0), COALESCE(e.credits, 0))
           OR a.balance <> CASE WHEN a.kind IN ('asset', 'expense') THEN a.debits - a.credits
                                ELSE a.credits - a.debits END
    """,
    "a transfer is not zero, or has no entries": """
        SELECT t.key, e.currency, sum(CASE e.direction WHEN 'debit' THEN e.amount ELSE -e.amount END), count(e.id)
        FROM payments_transfer t LEFT JOIN payments_entry e ON e.transfer_id = t.id
        GROUP BY t.id, e.currency
        HAVING count(e.id) < 2 OR sum(CASE e.direction WHEN 'debit' THEN e.amount ELSE -e.amount END) <> 0
    """,
    "a claim that says applied has no transfer": """
        SELECT c.event_id FROM payments_claim c
        WHERE c.outcome = 'applied' AND NOT EXISTS (SELECT FROM payments_transfer t WHERE t.claim_id = c.id)
    """,
    "a claim has not one first delivery as evidence": """
        SELECT c.event_id, count(e.id) FROM payments_claim c
        LEFT JOIN payments_event e ON e.claim_id = c.id AND e.role = 'first' AND e.body IS NOT NULL
        GROUP BY c.id HAVING count(e.id) <> 1
    """,
    "an event is claimed twice": """
        SELECT endpoint_id, event_id, count(*) FROM payments_claim GROUP BY endpoint_id, event_id HAVING count(*) > 1
    """,
    "a fact is booked twice": "SELECT key, count(*) FROM payments_transfer GROUP BY key HAVING count(*) > 1",
    "a payment differs from its transfers": """
        SELECT p.reference, p.captured, p.refunded, p.fees FROM payments_payment p
        LEFT JOIN payments_transfer t ON t.payment_id = p.id
        GROUP BY p.id
        HAVING (p.captured, p.refunded, p.fees) <> (
            COALESCE(sum(t.amount) FILTER (WHERE t.kind = 'PaymentCaptured'), 0),
            COALESCE(sum(t.amount) FILTER (WHERE t.kind = 'RefundSucceeded'), 0),
            COALESCE(sum(t.amount) FILTER (WHERE t.kind = 'FeeAssessed'), 0))
    """,
}


@contextmanager
def snapshot(connection: psycopg.Connection[Row]) -> Iterator[psycopg.Cursor[Row]]:
    """Everything read in here is read as of one instant. The connection is in autocommit."""
    with connection.transaction():
        cursor = connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield cursor


def find_violations(cursor: psycopg.Cursor[Row]) -> list[str]:
    """Return what does not hold, a line each with the first few examples; [] is what a test wants."""
    found = []
    for what, sql in QUERIES.items():
        if rows := cursor.execute(sql).fetchall():
            found.append(f"{what}: {len(rows)}, e.g. {rows[:3]}")
    return found


def find_lost(cursor: psycopg.Cursor[Row], replies: Mapping[str, bytes]) -> list[str]:
    """Return which of these acknowledged events {id: the first answer's body} aren't claimed with just that answer."""
    wanted = "SELECT event_id, reply_body FROM payments_claim WHERE event_id = ANY(%(ids)s)"
    stored = {row[0]: bytes(row[1]) for row in cursor.execute(wanted, {"ids": list(replies)}).fetchall()}
    lost = [event_id for event_id, body in replies.items() if stored.get(event_id) != body]
    return [f"acknowledged and not claimed so: {len(lost)}, e.g. {sorted(lost)[:3]}"] if lost else []


def read_balances(cursor: psycopg.Cursor[Row]) -> dict[tuple[str, str], int]:
    """Return the balances that aren't zero, {(code, currency): minor units}."""
    rows = cursor.execute("SELECT code, currency, balance FROM payments_account WHERE balance <> 0").fetchall()
    return {(row[0], row[1]): int(row[2]) for row in rows}


def read_payments(cursor: psycopg.Cursor[Row]) -> dict[str, dict[str, int]]:
    """Return {reference: its sums that aren't zero, by column}."""
    names = ("captured", "refunded", "fees")
    rows = cursor.execute("SELECT reference, captured, refunded, fees FROM payments_payment").fetchall()
    return {row[0]: {name: int(sum_) for name, sum_ in zip(names, row[1:], strict=True) if sum_} for row in rows}


def changes(
    before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int], *, ignored: Collection[str] = ()
) -> dict[str, int]:
    """Return how balances changed, {"code CUR": minor units}, zeros left out."""
    return {
        f"{key[0]} {key[1]}": change
        for key in sorted(before.keys() | after.keys())
        if (change := after.get(key, 0) - before.get(key, 0)) and key[0] not in ignored
    }
