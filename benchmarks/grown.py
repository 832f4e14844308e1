"""Fill a database with a ledger of millions of entries: set-based SQL that obeys every guard."""

from typing import Final

from benchmarks import machine

ENTRIES: Final = 5_000_000
CHUNK: Final = 100_000  # transfers of one transaction; the balance trigger holds as many twice in memory

# Each event captures 1000 of one payment, for one merchant in turn.
STATEMENTS: Final = (
    """
    INSERT INTO payments_claim (id, endpoint_id, event_id, event_type, fingerprint, outcome, reply_status,
                                reply_content_type, reply_body)
    OVERRIDING SYSTEM VALUE
    SELECT g, 1, 'old_evt_' || g, 'payment.captured', '{"type": "0123456789abcdef"}', 'applied', 200,
           'application/json', convert_to('{"event": "old_evt_' || g || '", "outcome": "applied"}', 'UTF8')
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) g
    """,
    """
    INSERT INTO payments_event (endpoint_id, claim_id, event_id, event_type, role, content, headers, body,
                                note, occurred_at, received_at)
    SELECT 1, g, 'old_evt_' || g, 'payment.captured', 'first', md5(g::text), '{}',
           convert_to(repeat('x', 200), 'UTF8'), '', now(), now()
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) g
    """,
    """
    INSERT INTO payments_payment (id, endpoint_id, reference, merchant_reference, reference_rank, currency,
                                  currency_rank, payee, payee_rank, payee_by_capture, payee_account_id,
                                  captured, named_captured, rank, ever_captured)
    OVERRIDING SYSTEM VALUE
    SELECT g, 1, 'old_pay_' || g, 'old_pay_' || g, 1, 'IDR', 2, a.code, 2, a.code, a.id, 1000, 1000, 5, true
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) g
    JOIN payments_account a ON a.code = 'merchant-' || 1 + g %% 1000 AND a.currency = 'IDR'
    """,
    """
    INSERT INTO payments_transfer (id, key, kind, endpoint_id, payment_id, claim_id, source, amount, currency,
                                   account_hint, occurred_at)
    OVERRIDING SYSTEM VALUE
    SELECT g, 'demo:old_pay_' || g || ':captured', 'PaymentCaptured', 1, g, g, 'webhook', 1000, 'IDR',
           'merchant-' || 1 + g %% 1000, now()
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) g
    """,
    """
    INSERT INTO payments_entry (transfer_id, line, account_id, currency, direction, amount)
    SELECT g, leg.line, a.id, 'IDR', leg.direction, 1000
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) g
    CROSS JOIN (VALUES (1, 'debit'), (2, 'credit')) leg (line, direction)
    JOIN payments_account a ON a.currency = 'IDR'
        AND a.code = CASE leg.line WHEN 1 THEN 'receivable:demo' ELSE 'merchant-' || 1 + g %% 1000 END
    """,
    """
    UPDATE payments_account a SET debits = a.debits + t.debits, credits = a.credits + t.credits
    FROM (SELECT account_id, sum(amount) FILTER (WHERE direction = 'debit') AS debits,
                 sum(amount) FILTER (WHERE direction = 'credit') AS credits
          FROM (SELECT account_id, direction, amount FROM payments_entry
                WHERE transfer_id BETWEEN %(first)s AND %(last)s) e
          GROUP BY account_id) s
    CROSS JOIN LATERAL (SELECT COALESCE(s.debits, 0) AS debits, COALESCE(s.credits, 0) AS credits) t
    WHERE a.id = s.account_id
    """,
)
NUMBERED: Final = ("payments_claim", "payments_payment", "payments_transfer")


def fill(database: str, entries: int = ENTRIES) -> None:
    """Book that many entries in an empty ledger, two for each transfer."""
    transfers = entries // 2
    with machine.connect(database) as connection:
        for first in range(1, transfers + 1, CHUNK):
            with connection.transaction():
                for statement in STATEMENTS:
                    connection.execute(statement, {"first": first, "last": min(first + CHUNK - 1, transfers)})
            machine.progress(f"grown: {min(first + CHUNK - 1, transfers) * 2:,} entries")
        for table in NUMBERED:
            connection.execute(f"ALTER TABLE {table} ALTER COLUMN id RESTART WITH {transfers + 1}")
        connection.execute("VACUUM (ANALYZE)")
