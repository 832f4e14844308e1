"""The invariants of the ledger: checks that yield what does not hold.

Commands print it, /readyz and the admin show it, tests assert that there is nothing. Nothing is repaired here. A
verification goes on from where the last one was: it reads what transactions wrote since, and compares every account
with the sums of its entries. Transaction ids, not row ids, say what "since" is, because a low row id may commit late.
It goes in chunks, each a transaction with a snapshot of its own: who starts beside one waits for a chunk, not for all.

After a crash: the next one goes on behind the last chunk that was verified whole.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import connection, transaction

from payments import failpoints, models
from payments.precedence import TOTALS_CHANGED

BROKEN_MAX: Final = 1000  # findings of one check: enough to know, and a run that finds millions still ends
IDLE_S_MAX: Final = 10  # between two of its statements; this takes milliseconds
CHUNK: Final = 50_000  # transfers, and claims, of one transaction: about a second
ID_MAX: Final = 2**63 - 1
PAUSE_MAX: Final = timedelta(hours=1)  # a verification from the beginning that was killed longer ago begins anew


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


def verify(*, full: bool, progress: Callable[[str, int], None] = lambda what, done: None) -> Report:
    """Verify the ledger, safe beside live deliveries; record the run and move the checkpoint.

    full: from the beginning, else what transactions wrote since the last run's horizon, unless that found something.
    """
    clock, run = time.monotonic(), _Run(full)
    while not run.verify_chunk():
        progress("transfers verified", run.report.checked["transfers"])
    run.report.seconds = time.monotonic() - clock
    return run.report


def newest() -> models.Verification | None:
    """Return the latest verification that is over; None before the first start."""
    return models.Verification.objects.order_by("-finished_at", "-id").first()


def find_broken(cursor: Any) -> list[Broken]:
    """Return the invariants that don't hold, looking at everything in the caller's snapshot."""
    scope = Scope(since=0, until=0, is_last=True, claims=(0, ID_MAX))
    # Whole tables are joined whole: a plan for the few rows that stale statistics promise would never end.
    with _without(cursor, "nestloop"):
        return [one for check in (*CHECKS_OF_ALL, *CHECKS) for one in check(cursor, scope, {})]


@dataclass(frozen=True, slots=True)
class Scope:
    """What one chunk looks at: transfers written by the transactions from `since` to before `until`.

    is_last  all from `since` on, and what is only true of the whole
    sums     the table that holds each account's sums before `since`; None: there is nothing before
    claims   ids, behind the first and up to the second; None: the latest, at the end
    """

    since: int
    until: int
    is_last: bool
    sums: str | None = None
    claims: tuple[int, int] | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        after, to = self.claims or (0, 0)
        bounds = {"since": str(self.since), "until": str(self.until), "claims_after": after, "claims_to": to}
        return bounds | {"is_last": self.is_last}


@dataclass(slots=True)
class _Run:
    """One verification under way, by this process."""

    full: bool
    report: Report = field(default_factory=Report)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    pass_id: int | None = None

    def verify_chunk(self) -> bool:
        """Verify what comes next, in one transaction; return whether that was all, and the run is recorded."""
        with _snapshot() as cursor:
            cursor.execute(_ENDED_BELOW)
            (now,) = cursor.fetchone()
            latest = newest()
            # What was broken in the part already verified would not be seen again by looking only at what is new. And a
            # cluster restored from a dump counts its transactions anew.
            if self.full or latest is None or latest.broken or latest.horizon > now:
                is_done = self._verify_from_the_beginning(cursor, now)
            else:
                is_done = self._verify_since(cursor, latest, now)
            failpoints.hit("verify_moved")
        failpoints.hit("verify_chunk")
        return is_done

    def _verify_since(self, cursor: Any, latest: models.Verification, now: int) -> bool:
        end = _end_of_chunk(cursor, latest.horizon, now)
        scope = Scope(latest.horizon, end or now, is_last=end is None, sums="payments_verifiedbalance")
        self.report.broken = _check(cursor, scope, self.report.checked)
        if not self.report.broken:
            _move(cursor, scope)
        if self.report.broken or scope.is_last:
            self._record(scope.until)
            return True
        latest.horizon = scope.until
        latest.save(update_fields=["horizon"])
        return False

    def _verify_from_the_beginning(self, cursor: Any, now: int) -> bool:
        one = self._begin_or_go_on(cursor, now)
        end, claims_end = _end_of_chunk(cursor, one.horizon, now), _end_of_claims(one.claim_id)
        is_last = end is None and claims_end is None
        claims = (one.claim_id, claims_end or (ID_MAX if is_last else one.claim_id))
        scope = Scope(one.horizon, end or now, is_last=is_last, sums="payments_passbalance", claims=claims)
        self.report.checked = one.checked
        self.report.broken += _check(cursor, scope, one.checked)
        _move(cursor, scope)
        if not is_last:
            one.horizon, one.claim_id, one.moved_at = scope.until, claims[1], datetime.now(UTC)
            one.is_clean = not self.report.broken
            one.save()
            return False
        if not self.report.broken:
            cursor.execute(_TAKE_OVER)
        cursor.execute(_FORGET)
        self.started_at, self.report.is_full = one.started_at, True
        self._record(scope.until)
        return True

    def _begin_or_go_on(self, cursor: Any, now: int) -> models.VerificationPass:
        one = models.VerificationPass.objects.first()
        if one is not None and one.pk == self.pass_id:
            return one
        # What another process found and didn't live to record must be found again.
        if one is None or not one.is_clean or one.horizon > now or one.moved_at < datetime.now(UTC) - PAUSE_MAX:
            cursor.execute(_FORGET)
            one = models.VerificationPass.objects.create(started_at=self.started_at, moved_at=self.started_at)
        self.pass_id, self.report.broken = one.pk, []
        return one

    def _record(self, horizon: int) -> None:
        models.Verification.objects.create(
            is_full=self.report.is_full,
            horizon=horizon,
            checked=self.report.checked,
            broken=[asdict(one) for one in self.report.broken],
            started_at=self.started_at,
        )


@contextmanager
def _snapshot() -> Iterator[Any]:
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        # What one transaction wrote is never cut in two, so this may take long; no delivery waits for it.
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute("SET LOCAL lock_timeout = 0")
        # But one whose process is frozen must not keep every start waiting for its lock.
        cursor.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_S_MAX}s'")
        cursor.execute("SET LOCAL work_mem = '64MB'")
        # One at a time. Neither SET nor LOCK takes the snapshot: who had to wait sees what the other one left.
        cursor.execute("LOCK TABLE payments_verification IN SHARE UPDATE EXCLUSIVE MODE")
        yield cursor


# All transactions below this id have ended, in whichever database of the server.
_ENDED_BELOW: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"

_BEFORE_UNTIL: Final = "t.recorded_xid < %(until)s::text::xid8"
_IN_SCOPE: Final = f"t.recorded_xid >= %(since)s::text::xid8 AND ({_BEFORE_UNTIL} OR %(is_last)s)"

_END_OF_CHUNK: Final = f"""
    SELECT GREATEST(t.recorded_xid::text::bigint, %(since)s::text::bigint + 1) FROM payments_transfer t
    WHERE t.recorded_xid >= %(since)s::text::xid8 AND {_BEFORE_UNTIL}
    ORDER BY t.recorded_xid OFFSET %(chunk)s LIMIT 1
"""


def _end_of_chunk(cursor: Any, since: int, now: int) -> int | None:
    """Return up to which transaction id there is a chunk of transfers; None: what is left is less than one."""
    cursor.execute(_END_OF_CHUNK, {"since": str(since), "until": str(now), "chunk": CHUNK})
    row = cursor.fetchone()
    return None if row is None else int(row[0])


def _end_of_claims(after_id: int) -> int | None:
    """Return up to which id there is a chunk of claims; None: what is left is less than one."""
    ids = models.Claim.objects.filter(id__gt=after_id).order_by("id").values_list("id", flat=True)
    return next(iter(ids[CHUNK - 1 : CHUNK]), None)


@contextmanager
def _without(cursor: Any, *methods: str) -> Iterator[None]:
    for method in methods:
        cursor.execute(f"SET LOCAL enable_{method} = off")
    yield
    for method in methods:
        cursor.execute(f"SET LOCAL enable_{method} = DEFAULT")


def _check(cursor: Any, scope: Scope, checked: dict[str, int]) -> list[Broken]:
    of_all = CHECKS_OF_ALL if scope.is_last else ()
    broken = [one for check in of_all for one in check(cursor, scope, checked)]
    # By index, row for row, also where statistics promise that to read all of the ledger is as quick: it grows.
    with _without(cursor, "hashjoin", "mergejoin"):
        broken += [one for check in CHECKS for one in check(cursor, scope, checked)]
    return broken


def _rows(cursor: Any, sql: str, scope: Scope) -> list[tuple[Any, ...]]:
    # Nearly always there are none. Planned for the first few, it would read the tables from their beginning in order.
    cursor.execute(f"WITH found AS MATERIALIZED ({sql}) SELECT * FROM found LIMIT {BROKEN_MAX}", scope.parameters)
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
    LEFT JOIN {{sums}} v ON v.account_id = a.id
    CROSS JOIN LATERAL (SELECT COALESCE(v.debits, 0) + COALESCE(n.debits, 0) AS debits,
                               COALESCE(v.credits, 0) + COALESCE(n.credits, 0) AS credits) s
    WHERE (a.debits, a.credits) <> (s.debits, s.credits)
"""

_NO_SUMS: Final = "(SELECT NULL::bigint AS account_id, 0 AS debits, 0 AS credits)"

_MOVE: Final = f"""
    INSERT INTO {{sums}} AS v (account_id, debits, credits)
    SELECT e.account_id,
           COALESCE(sum(e.amount) FILTER (WHERE e.direction = 'debit'), 0),
           COALESCE(sum(e.amount) FILTER (WHERE e.direction = 'credit'), 0)
    FROM payments_entry e JOIN payments_transfer t ON t.id = e.transfer_id
    WHERE {_IN_SCOPE} AND {_BEFORE_UNTIL}
    GROUP BY e.account_id
    ON CONFLICT (account_id) DO UPDATE SET debits = v.debits + EXCLUDED.debits, credits = v.credits + EXCLUDED.credits
"""

_TAKE_OVER: Final = """
    DELETE FROM payments_verifiedbalance;
    INSERT INTO payments_verifiedbalance (account_id, debits, credits)
    SELECT account_id, debits, credits FROM payments_passbalance;
"""
_FORGET: Final = "DELETE FROM payments_passbalance; DELETE FROM payments_verificationpass;"


def _move(cursor: Any, scope: Scope) -> None:
    """Add what the chunk's entries sum up to, so that the next one need not read them."""
    with _without(cursor, "hashjoin", "mergejoin"):
        cursor.execute(_MOVE.format(sums=scope.sums), scope.parameters)


def _check_accounts(cursor: Any, scope: Scope, checked: dict[str, int]) -> Iterator[Broken]:
    """Every balance equals its entries."""
    checked["accounts"] = models.Account.objects.count()
    sql = _ACCOUNTS.format(sums=scope.sums or _NO_SUMS)
    for code, currency, debits, credits, entry_debits, entry_credits, _ in _rows(cursor, sql, scope):
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
    transfers, payments = _rows(cursor, sql, scope)[0]
    checked["transfers"] = checked.get("transfers", 0) + transfers
    checked["payments"] = checked.get("payments", 0) + payments  # one of several chunks counts in each
    for key, _, entries, first, last in _rows(cursor, _TRANSFERS, scope):
        yield Broken("transfer_incomplete", key, {"entries": entries, "first_line": first, "last_line": last})
    for key, currency, difference in _rows(cursor, _UNBALANCED, scope):
        yield Broken("transfer_not_balanced", key, {"currency": currency, "difference": int(difference)})


_REVERSALS: Final = f"""
    SELECT t.key, o.key FROM payments_transfer t JOIN payments_transfer o ON o.id = t.reverses_id
    WHERE {_IN_SCOPE}
      AND (t.amount, t.currency, t.payment_id) IS DISTINCT FROM (o.amount, o.currency, o.payment_id)
"""


def _check_reversals(cursor: Any, scope: Scope, checked: dict[str, int]) -> Iterator[Broken]:
    """A reversal undoes its original whole."""
    for key, original in _rows(cursor, _REVERSALS, scope):
        yield Broken("reversal_differs", key, {"original": original})


_UNMET: Final = """
    SELECT c.key FROM payments_correction c JOIN payments_transfer t ON t.key = c.key
    LEFT JOIN payments_transfer r ON r.reverses_id = t.id
    WHERE r.id IS NULL
      AND (t.amount, t.currency, t.payment_id) IS NOT DISTINCT FROM (c.amount, c.currency, c.payment_id)
"""


def _check_corrections(cursor: Any, scope: Scope, checked: dict[str, int]) -> Iterator[Broken]:
    """An original whose correction is known is reversed."""
    checked["corrections"] = models.Correction.objects.count()
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


# Also those whose transactions were under way when the last run began. They take seconds; the rest is for clocks that
# differ.
_LATEST: Final = """
    c.claimed_at >= (SELECT v.started_at FROM payments_verification v ORDER BY v.finished_at DESC, v.id DESC LIMIT 1)
                    - interval '2 minutes'
"""
_BY_ID: Final = "c.id > %(claims_after)s AND c.id <= %(claims_to)s"
_CLAIMS: Final = """
    SELECT b.slug, c.event_id FROM payments_claim c JOIN payments_endpoint b ON b.id = c.endpoint_id
    WHERE {which} AND NOT EXISTS (SELECT FROM payments_event e WHERE e.claim_id = c.id)
"""


def _check_claims(cursor: Any, scope: Scope, checked: dict[str, int]) -> Iterator[Broken]:
    """Every claim has the evidence it was made from."""
    if scope.claims is None and not scope.is_last:
        return
    sql = _CLAIMS.format(which=_LATEST if scope.claims is None else _BY_ID)
    for slug, event_id in _rows(cursor, sql, scope):
        yield Broken("claim_without_evidence", f"{slug}:{event_id}", {})


CHECKS: Final = (_check_transfers, _check_reversals, _check_payments, _check_claims)
CHECKS_OF_ALL: Final = (_check_accounts, _check_trial_balance, _check_corrections)
