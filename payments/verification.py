"""The invariants of the ledger: checks that yield what does not hold.

Commands print it, /readyz and the admin show it, tests assert that there is nothing. Nothing is repaired here. A
verification goes on from where the last one was: it reads what transactions wrote since, and compares every account
with the sums of its entries. Transaction ids, not row ids, say what "since" is, because a low row id may commit late.

After a crash: a verification that was killed left nothing; the next one begins at the same checkpoint.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from django.db import connection, transaction

from payments import models
from payments.precedence import TOTALS_CHANGED

BROKEN_MAX: Final = 1000  # findings of one check: enough to know, and a run that finds millions still ends
IDLE_S_MAX: Final = 10  # between two of its statements; this takes milliseconds


@dataclass(frozen=True, slots=True)
class Broken:
    """An invariant that does not hold."""

    kind: str
    subject: str
    detail: dict[str, Any]


@dataclass(slots=True)
class Report:
    """What a verification looked at, and what does not hold."""

    checked: dict[str, int] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)
    is_full: bool = False
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "checked": self.checked,
            "findings": [asdict(one) for one in self.broken],
            "full": self.is_full,
            "seconds": round(self.seconds, 3),
        }


def verify(*, full: bool) -> Report:
    """Verify the ledger in one snapshot, safe beside live deliveries; record the run and move the checkpoint.

    full: from the beginning, else what transactions wrote since the last run's horizon, unless that found something.
    """
    started_at, clock = datetime.now(UTC), time.monotonic()
    report = Report()
    with _snapshot() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        horizon = cursor.fetchone()[0]
        since = 0 if full else _last_horizon(horizon)
        scope = _scope(since, horizon)
        report.is_full = scope["full"]
        report.broken = find_broken(cursor, scope, report.checked)
        if not report.broken:
            cursor.execute(_MOVE_CHECKPOINT, scope)
        models.Verification.objects.create(
            is_full=report.is_full,
            horizon=horizon if not report.broken else since,
            checked=report.checked,
            broken=[asdict(one) for one in report.broken],
            started_at=started_at,
        )
    report.seconds = time.monotonic() - clock
    return report


def find_broken(
    cursor: Any, scope: Mapping[str, Any] | None = None, checked: dict[str, int] | None = None
) -> list[Broken]:
    """Return the invariants that don't hold, in the scope, else everywhere; count into `checked` what was looked at."""
    counts: dict[str, int] = {} if checked is None else checked
    scope = scope or _scope(0, 0)
    # Whole tables are joined whole: a plan for the few rows that stale statistics promise would never end.
    cursor.execute(f"SET LOCAL enable_nestloop = {'off' if scope['full'] else 'on'}")
    broken = [one for check in CHECKS for one in check(cursor, scope, counts)]
    cursor.execute("SET LOCAL enable_nestloop = DEFAULT")
    return broken


def _scope(since: int, horizon: int) -> dict[str, Any]:
    return {"since": str(since), "horizon": str(horizon), "full": since == 0}


def _last_horizon(now: int) -> int:
    latest = models.Verification.objects.order_by("-finished_at", "-id").first()
    # What was broken in the part already verified would not be seen again by looking only at what is new. And a cluster
    # restored from a dump counts its transactions anew.
    if latest is None or latest.broken or latest.horizon > now:
        return 0
    return latest.horizon


@contextmanager
def _snapshot() -> Iterator[Any]:
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        # This may take as long as the ledger is large, and holds no lock that a delivery wants.
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute("SET LOCAL lock_timeout = 0")
        # But one whose process is frozen must not keep every start waiting for its lock.
        cursor.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_S_MAX}s'")
        cursor.execute("SET LOCAL work_mem = '64MB'")
        # One at a time. Neither SET nor LOCK takes the snapshot: who had to wait sees what the other one left.
        cursor.execute("LOCK TABLE payments_verification IN SHARE UPDATE EXCLUSIVE MODE")
        yield cursor


Scope = Mapping[str, Any]

_IN_SCOPE: Final = "(%(full)s OR t.recorded_xid >= %(since)s::text::xid8)"


def _rows(cursor: Any, sql: str, scope: Scope) -> list[tuple[Any, ...]]:
    cursor.execute(f"{sql} LIMIT {BROKEN_MAX}", scope)
    return list(cursor.fetchall())


_ACCOUNTS: Final = f"""
    WITH new AS (
        SELECT e.account_id,
               sum(e.amount) FILTER (WHERE e.direction = 'debit') AS debits,
               sum(e.amount) FILTER (WHERE e.direction = 'credit') AS credits
        FROM payments_entry e JOIN payments_transfer t ON t.id = e.transfer_id
        WHERE {_IN_SCOPE}
        GROUP BY e.account_id
    )
    SELECT a.code, a.currency, a.debits, a.credits, s.debits, s.credits, a.balance
    FROM payments_account a
    LEFT JOIN new n ON n.account_id = a.id
    LEFT JOIN payments_verifiedbalance v ON v.account_id = a.id AND NOT %(full)s
    CROSS JOIN LATERAL (SELECT COALESCE(v.debits, 0) + COALESCE(n.debits, 0) AS debits,
                               COALESCE(v.credits, 0) + COALESCE(n.credits, 0) AS credits) s
    WHERE (a.debits, a.credits) <> (s.debits, s.credits)
"""

_MOVE_CHECKPOINT: Final = f"""
    INSERT INTO payments_verifiedbalance AS v (account_id, debits, credits)
    SELECT e.account_id,
           COALESCE(sum(e.amount) FILTER (WHERE e.direction = 'debit'), 0),
           COALESCE(sum(e.amount) FILTER (WHERE e.direction = 'credit'), 0)
    FROM payments_entry e JOIN payments_transfer t ON t.id = e.transfer_id
    WHERE {_IN_SCOPE} AND t.recorded_xid < %(horizon)s::text::xid8
    GROUP BY e.account_id
    ON CONFLICT (account_id) DO UPDATE
    SET debits = EXCLUDED.debits + CASE WHEN %(full)s THEN 0 ELSE v.debits END,
        credits = EXCLUDED.credits + CASE WHEN %(full)s THEN 0 ELSE v.credits END
"""


def _check_accounts(cursor: Any, scope: Scope, checked: dict[str, int]) -> Iterator[Broken]:
    """Every balance equals its entries."""
    checked["accounts"] = models.Account.objects.count()
    for code, currency, debits, credits, entry_debits, entry_credits, _ in _rows(cursor, _ACCOUNTS, scope):
        detail = {"account": [int(debits), int(credits)], "entries": [int(entry_debits), int(entry_credits)]}
        yield Broken("balance_differs_from_entries", f"{code} {currency}", detail)


def _check_trial_balance(cursor: Any, scope: Scope, checked: dict[str, int]) -> Iterator[Broken]:
    """All debits equal all credits, per currency."""
    sql = "SELECT currency, sum(debits), sum(credits) FROM payments_account GROUP BY currency"
    rows = _rows(cursor, sql, scope)
    checked["currencies"] = len(rows)
    for currency, debits, credits in rows:
        if debits != credits:
            yield Broken("currency_not_balanced", currency, {"debits": int(debits), "credits": int(credits)})


_TRANSFERS: Final = f"""
    SELECT t.key, t.id, count(e.id), COALESCE(min(e.line), 0), COALESCE(max(e.line), 0)
    FROM payments_transfer t LEFT JOIN payments_entry e ON e.transfer_id = t.id
    WHERE {_IN_SCOPE}
    GROUP BY t.id
    HAVING count(e.id) < 2 OR min(e.line) <> 1 OR max(e.line) <> count(e.id)
"""
_UNBALANCED: Final = f"""
    SELECT t.key, e.currency, sum(CASE e.direction WHEN 'debit' THEN e.amount ELSE -e.amount END)
    FROM payments_transfer t JOIN payments_entry e ON e.transfer_id = t.id
    WHERE {_IN_SCOPE}
    GROUP BY t.id, e.currency
    HAVING sum(CASE e.direction WHEN 'debit' THEN e.amount ELSE -e.amount END) <> 0
"""


def _check_transfers(cursor: Any, scope: Scope, checked: dict[str, int]) -> Iterator[Broken]:
    """Every transfer has its entries, numbered from 1, that sum to zero per currency."""
    sql = f"SELECT count(*), count(DISTINCT t.payment_id) FROM payments_transfer t WHERE {_IN_SCOPE}"
    checked["transfers"], checked["payments"] = _rows(cursor, sql, scope)[0]
    for key, _, entries, first, last in _rows(cursor, _TRANSFERS, scope):
        yield Broken("transfer_incomplete", key, {"entries": entries, "first_line": first, "last_line": last})
    for key, currency, difference in _rows(cursor, _UNBALANCED, scope):
        yield Broken("transfer_not_balanced", key, {"currency": currency, "difference": int(difference)})


_REVERSALS: Final = f"""
    SELECT t.key, o.key FROM payments_transfer t JOIN payments_transfer o ON o.id = t.reverses_id
    WHERE {_IN_SCOPE}
      AND (t.amount, t.currency, t.payment_id) IS DISTINCT FROM (o.amount, o.currency, o.payment_id)
"""
_UNMET: Final = """
    SELECT c.key FROM payments_correction c JOIN payments_transfer t ON t.key = c.key
    LEFT JOIN payments_transfer r ON r.reverses_id = t.id
    WHERE r.id IS NULL
      AND (t.amount, t.currency, t.payment_id) IS NOT DISTINCT FROM (c.amount, c.currency, c.payment_id)
"""


def _check_reversals(cursor: Any, scope: Scope, checked: dict[str, int]) -> Iterator[Broken]:
    """A reversal undoes its original whole; an original whose correction is known is reversed."""
    checked["corrections"] = models.Correction.objects.count()
    for key, original in _rows(cursor, _REVERSALS, scope):
        yield Broken("reversal_differs", key, {"original": original})
    for (key,) in _rows(cursor, _UNMET, scope):
        yield Broken("correction_not_booked", key, {})


# Payments with a transfer in scope, whole.
_TOUCHED: Final = f"""
    touched AS (
        SELECT DISTINCT t.payment_id AS id FROM payments_transfer t WHERE t.payment_id IS NOT NULL AND {_IN_SCOPE}
    )
"""


def _changes_sql(total: str) -> str:
    kinds = [(kind, sense) for kind, (name, sense) in TOTALS_CHANGED.items() if name == total]
    cases = " ".join(f"WHEN '{kind}' THEN {sense}" for kind, sense in kinds)
    return f"COALESCE(sum(amount * direction * CASE kind {cases} ELSE 0 END), 0)"


_PAYMENTS: Final = f"""
    WITH {_TOUCHED},
    moved AS (
        SELECT t.payment_id, t.currency, t.amount, COALESCE(o.kind, t.kind) AS kind,
               CASE WHEN t.reverses_id IS NULL THEN 1 ELSE -1 END AS direction
        FROM touched JOIN payments_transfer t ON t.payment_id = touched.id
        LEFT JOIN payments_transfer o ON o.id = t.reverses_id
    )
    SELECT b.slug, p.reference, p.captured, p.refunded, p.disputed, p.fees,
           {", ".join(_changes_sql(total) for total in ("captured", "refunded", "disputed", "fees"))}
    FROM moved m JOIN payments_payment p ON p.id = m.payment_id AND p.currency = m.currency
    JOIN payments_endpoint b ON b.id = p.endpoint_id
    GROUP BY p.id, b.slug
    HAVING (p.captured, p.refunded, p.disputed, p.fees) <>
           ({", ".join(_changes_sql(total) for total in ("captured", "refunded", "disputed", "fees"))})
"""

# A payment has money on no payee's account but its own payee's, and in suspense only while that has no account.
_PAYEES: Final = f"""
    WITH {_TOUCHED}
    SELECT b.slug, p.reference, a.code, a.currency,
           sum(CASE e.direction WHEN 'credit' THEN e.amount ELSE -e.amount END)
    FROM touched
    JOIN payments_payment p ON p.id = touched.id
    JOIN payments_endpoint b ON b.id = p.endpoint_id
    JOIN payments_transfer t ON t.payment_id = p.id
    JOIN payments_entry e ON e.transfer_id = t.id
    JOIN payments_account a ON a.id = e.account_id AND a.kind = 'liability'
    WHERE CASE WHEN a.currency = p.currency
               THEN a.code <> CASE WHEN p.payee_account_id IS NULL THEN 'suspense:' || b.slug ELSE p.payee END
               ELSE a.code NOT IN (COALESCE(p.payee, ''), 'suspense:' || b.slug) END
    GROUP BY p.id, b.slug, a.id
    HAVING sum(CASE e.direction WHEN 'credit' THEN e.amount ELSE -e.amount END) <> 0
"""


def _check_payments(cursor: Any, scope: Scope, checked: dict[str, int]) -> Iterator[Broken]:
    """Every payment's totals equal its transfers, and its money is where its payee's is."""
    names = ("captured", "refunded", "disputed", "fees")
    for slug, reference, *sums in _rows(cursor, _PAYMENTS, scope):
        detail = {
            "payment": dict(zip(names, sums[:4], strict=True)),
            "transfers": dict(zip(names, map(int, sums[4:]), strict=True)),
        }
        yield Broken("payment_differs_from_transfers", f"{slug}:{reference}", detail)
    for slug, reference, code, currency, net in _rows(cursor, _PAYEES, scope):
        there = {"account": code, "currency": currency, "net": int(net)}
        yield Broken("money_at_wrong_payee", f"{slug}:{reference}", there)


_CLAIMS: Final = """
    SELECT b.slug, c.event_id FROM payments_claim c JOIN payments_endpoint b ON b.id = c.endpoint_id
    WHERE (%(full)s OR c.claimed_at >= (SELECT max(started_at) FROM payments_verification) - interval '1 hour')
      AND NOT EXISTS (SELECT FROM payments_event e WHERE e.claim_id = c.id)
"""


def _check_claims(cursor: Any, scope: Scope, checked: dict[str, int]) -> Iterator[Broken]:
    """Every claim has the evidence it was made from."""
    for slug, event_id in _rows(cursor, _CLAIMS, scope):
        yield Broken("claim_without_evidence", f"{slug}:{event_id}", {})


CHECKS: Final = (
    _check_accounts,
    _check_trial_balance,
    _check_transfers,
    _check_reversals,
    _check_payments,
    _check_claims,
)
