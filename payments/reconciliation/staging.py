"""A statement's lines in temporary tables, where the database compares them with the ledger as whole sets.

A session of its own holds the tables and the lock that lets one reconciliation run at a time. It writes nothing else:
booking is intake.book's, on the ordinary connection. Memory here is one chunk of rows, however long the statement.

After a crash: the server drops the session, and with it the tables and the lock. Nothing of it was to be kept.

Raw SQL: COPY, temporary tables, and joins of a million lines with the ledger are not to be had from the ORM.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import psycopg
from django.db import connection

from payments import database, postings
from payments.facts import FactKind
from payments.reconciliation.verdicts import REVERSED, TWICE, History, Judgement, Known, Row

_SINGLE_FLIGHT: Final = 7_236_403  # advisory lock: one reconciliation at a time
_LOCK_WAIT_S: Final = 2.0  # as long as a server may need to see that the one before was killed
CHUNK: Final = 500  # rows that are judged and booked together, in one transaction
SEEN_CHUNK: Final = 5_000  # transfers whose sightings are written together
_CAPTURES: Final = (FactKind.PAYMENT_CAPTURED, FactKind.PAYMENT_CAPTURED_TOTAL, postings.CAPTURE_NAMED)


class AlreadyRunning(Exception):
    """Another reconciliation runs; nothing was done. Wait for it, or look for what became of it."""


@dataclass(frozen=True, slots=True)
class Window:
    """The days that a statement is about, half-open; due: what is older should be in it by then."""

    begin: datetime
    end: datetime
    due: datetime


class Difference(NamedTuple):
    """What a person should look at; is_first: of those with the same verdict and key."""

    number: int | None
    is_beside: bool
    verdict: str
    key: str
    kind: str
    amount: int | None
    currency: str | None
    booked_amount: int | None
    booked_currency: str | None
    occurred_at: datetime | None
    why: str
    is_first: bool = True


_TABLES: Final = """
    CREATE TEMP TABLE statement_line (
        position integer, number integer, is_beside boolean, unit text COLLATE "C", kind text, object_id text,
        part text, payment text COLLATE "C", amount bigint, currency text COLLATE "C", account text COLLATE "C",
        reference text, reference_rank smallint, occurred_at timestamptz, into_minor bigint,
        into_currency text COLLATE "C", is_summed boolean, alias text COLLATE "C", names text COLLATE "C",
        effect smallint, why text);
    CREATE TEMP TABLE statement_verdict (position integer, verdict text, transfer_id bigint);
    CREATE TEMP TABLE statement_seen (transfer_id bigint PRIMARY KEY, verdict text);
    CREATE TEMP TABLE statement_difference (
        id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, number integer, is_beside boolean, verdict text,
        key text COLLATE "C", kind text, amount bigint, currency text, booked_amount bigint, booked_currency text,
        occurred_at timestamptz, why text);
    CREATE INDEX ON statement_difference (key);
"""

_COPY: Final = "COPY statement_line FROM STDIN"

_REPEATS: Final = """
    CREATE TEMP TABLE statement_repeat AS
        SELECT unit, min(position) AS first FROM statement_line WHERE unit IS NOT NULL
        GROUP BY unit HAVING count(*) > 1;
    ANALYZE statement_line; ANALYZE statement_repeat;
"""

# The lines that say just what is booked under their key: nearly all, and so never seen by Python.
_MATCH: Final = """
    INSERT INTO statement_verdict (position, verdict, transfer_id)
    SELECT l.position, CASE WHEN b.key IS NULL THEN 'matched' ELSE 'booked' END, t.id
    FROM statement_line l
    JOIN payments_transfer t ON t.key = l.unit
    LEFT JOIN payments_payment p ON p.id = t.payment_id
    LEFT JOIN statement_repeat r ON r.unit = l.unit
    LEFT JOIN (SELECT DISTINCT key FROM payments_reconciliationline
               WHERE reconciliation_id = %(run)s AND verdict = 'booked') b ON b.key = l.unit
    WHERE t.amount = l.amount AND t.currency = l.currency
      AND (l.payment IS NULL OR l.payment = p.reference)
      AND (l.account IS NULL OR t.account_hint IS NULL OR l.account = t.account_hint)
      AND (r.unit IS NULL OR (r.first = l.position AND NOT l.is_summed))
      AND (l.into_minor IS NULL OR EXISTS (
          SELECT FROM payments_entry e
          WHERE e.transfer_id = t.id AND e.currency = l.into_currency AND e.amount = l.into_minor))
"""

# All others, those of one sum beside each other.
_OPEN: Final = """
    CREATE TEMP TABLE statement_open AS
        SELECT l.position, l.number, l.is_beside, l.unit, l.kind, l.object_id, l.part, l.payment, l.amount, l.currency,
               l.account, l.reference, l.reference_rank, l.occurred_at, l.into_minor, l.into_currency, l.is_summed,
               l.alias, l.why, COALESCE(r.first, l.position) AS first,
               CASE WHEN l.is_summed THEN COALESCE(r.first, l.position) ELSE l.position END AS at
        FROM statement_line l
        LEFT JOIN statement_verdict v ON v.position = l.position
        LEFT JOIN statement_repeat r ON r.unit = l.unit
        WHERE v.position IS NULL;
    CREATE INDEX ON statement_open (at, position);
    ANALYZE statement_verdict; ANALYZE statement_open;
"""

# Only a conversion has entries in another currency than its transfer's: what was bought.
_TRANSFERS: Final = """
    SELECT t.key, t.id, t.kind, t.amount, t.currency, p.reference, t.account_hint, into_.amount, into_.currency
    FROM payments_transfer t
    LEFT JOIN payments_payment p ON p.id = t.payment_id
    LEFT JOIN LATERAL (SELECT e.amount, e.currency FROM payments_entry e
                       WHERE e.transfer_id = t.id AND e.currency <> t.currency
                       ORDER BY e.line LIMIT 1) into_ ON true
    WHERE t.key = ANY(%s::text[])
"""
_CAPTURED: Final = """
    SELECT p.reference, t.id, t.kind, t.amount, t.currency, p.reference, t.account_hint
    FROM payments_payment p JOIN payments_transfer t ON t.payment_id = p.id
    WHERE p.endpoint_id = %s AND p.reference = ANY(%s::text[]) AND t.kind = ANY(%s::text[])
    ORDER BY t.id
"""

# Transfers that the statement's lines are about, and what was said of those lines. The first to say it counts.
_SEE: Final = """
    INSERT INTO statement_seen
        SELECT transfer_id, verdict FROM statement_verdict WHERE transfer_id IS NOT NULL ON CONFLICT DO NOTHING;
    INSERT INTO statement_seen
        SELECT t.id, v.verdict
        FROM (SELECT position, unit AS key FROM statement_open UNION ALL
              SELECT position, alias FROM statement_open WHERE alias IS NOT NULL) o
        JOIN statement_verdict v ON v.position = o.position AND v.verdict <> 'missing_here'
        JOIN payments_transfer t ON t.key = o.key
        ORDER BY o.position
        ON CONFLICT DO NOTHING;
    INSERT INTO statement_seen
        SELECT t.id, 'named' FROM (SELECT DISTINCT names AS key FROM statement_line WHERE names IS NOT NULL) n
        JOIN payments_transfer t ON t.key = n.key
        ON CONFLICT DO NOTHING;
    ANALYZE statement_seen;
"""

# Of these, whom a webhook told of first and no statement yet.
_UNSIGHTED: Final = """
    CREATE TEMP TABLE statement_unsighted AS
        SELECT s.transfer_id FROM statement_seen s
        JOIN payments_transfer t ON t.id = s.transfer_id
        WHERE s.verdict <> 'named' AND t.source <> 'statement'
          AND NOT EXISTS (SELECT FROM payments_sighting g
                          WHERE g.transfer_id = s.transfer_id AND g.source = 'statement' AND g.claim_id IS NULL);
    CREATE INDEX ON statement_unsighted (transfer_id);
    ANALYZE statement_unsighted;
"""

_HAS_STATEMENT: Final = """
    ({0}.source = 'statement' OR EXISTS (SELECT FROM statement_seen s WHERE s.transfer_id = {0}.id)
     OR EXISTS (SELECT FROM payments_sighting g WHERE g.transfer_id = {0}.id AND g.source = 'statement'))
"""
# Booked here and due, and no line says so. An original and what reversed it before any statement told of either need no
# line. Of totals only that part needs one which no single id accounts for; the newest account for it first.
_MISSING_THERE: Final = f"""
    INSERT INTO statement_difference (is_beside, verdict, key, kind, booked_amount, booked_currency, occurred_at, why)
    SELECT false, 'missing_there', key, kind, amount, currency, occurred_at, why
    FROM (
        SELECT t.key, t.kind, t.currency, t.occurred_at,
               CASE WHEN {_HAS_STATEMENT.format("t")} THEN 'an earlier statement told of it' ELSE '' END AS why,
               CASE WHEN n.named_kind IS NULL THEN t.amount ELSE LEAST(t.amount, (
                   SELECT COALESCE(sum(CASE x.kind WHEN t.kind THEN x.amount ELSE -x.amount END), 0)
                          - COALESCE(sum(x.amount) FILTER (WHERE x.kind = t.kind AND x.id > t.id), 0)
                   FROM payments_transfer x
                   WHERE x.payment_id = t.payment_id AND x.currency = t.currency AND x.kind IN (t.kind, n.named_kind)
               )) END AS amount
        FROM payments_transfer t
        LEFT JOIN payments_transfer o ON o.id = t.reverses_id
        LEFT JOIN payments_transfer r ON r.reverses_id = t.id
        LEFT JOIN (VALUES ('{FactKind.PAYMENT_CAPTURED_TOTAL}', '{postings.CAPTURE_NAMED}'),
                          ('{FactKind.REFUNDED_TOTAL}', '{postings.REFUND_NAMED}')) n (kind, named_kind)
            ON n.kind = t.kind
        WHERE t.endpoint_id = %(books)s AND t.occurred_at >= %(begin)s AND t.occurred_at < %(due)s
          AND COALESCE(o.kind, t.kind) = ANY(%(listed)s::text[])
          AND NOT EXISTS (SELECT FROM statement_seen s WHERE s.transfer_id = t.id)
          AND (o.id IS NULL OR {_HAS_STATEMENT.format("o")})
          AND (r.id IS NULL OR {_HAS_STATEMENT.format("r")} OR {_HAS_STATEMENT.format("t")})
        ORDER BY t.occurred_at, t.id
    ) due
    WHERE amount > 0
"""

_COUNT: Final = """
    SELECT v.verdict, l.is_beside, l.kind, count(*)
    FROM statement_verdict v JOIN statement_line l ON l.position = v.position
    GROUP BY 1, 2, 3
"""

# A line that is told twice has its fee twice.
_TIDY: Final = """
    DELETE FROM statement_difference f USING statement_difference d
    WHERE f.verdict = 'fee_differs' AND f.why = %(twice)s AND d.verdict = 'differs' AND d.number = f.number;
"""
_DIFFERENCES: Final = """
    SELECT id, number, is_beside, verdict, key, kind, amount, currency, booked_amount, booked_currency, occurred_at,
           why, NOT EXISTS (SELECT FROM statement_difference e
                            WHERE e.verdict = d.verdict AND e.key = d.key AND e.id < d.id)
    FROM statement_difference d WHERE id > %s ORDER BY id LIMIT %s
"""

_HEALED: Final = """
    SELECT f.kind, f.subject FROM payments_finding f
    WHERE f.closed_at IS NULL AND f.kind = ANY(%(kinds)s::text[]) AND f.endpoint_id = %(books)s
      AND NOT EXISTS (SELECT FROM statement_difference d WHERE d.verdict = f.kind AND d.key = f.subject)
      AND (starts_with(f.subject, %(unusable)s)
           OR f.subject IN (SELECT l.unit FROM statement_line l JOIN statement_verdict v ON v.position = l.position
                            WHERE v.verdict IN ('matched', 'booked')))
"""


@contextmanager
def opened() -> Iterator["Staging"]:
    """Hold the one session in which a reconciliation may run. Raises AlreadyRunning."""
    with (
        connection.wrap_database_errors,
        psycopg.connect(**connection.get_connection_params(), autocommit=True) as session,
    ):
        # Whole statements are compared at once, which may take as long as they are.
        for name, value in (
            ("statement_timeout", "0"),
            ("lock_timeout", "0"),
            ("idle_in_transaction_session_timeout", "0"),
            ("work_mem", "64MB"),
            ("temp_buffers", "64MB"),
        ):
            session.execute("SELECT set_config(%s, %s, false)", [name, value])
        _take_lock(session)
        session.execute(_TABLES)
        yield Staging(session)


def _take_lock(session: psycopg.Connection[Any]) -> None:
    until = time.monotonic() + _LOCK_WAIT_S
    while True:
        row = session.execute("SELECT pg_try_advisory_lock(%s)", [_SINGLE_FLIGHT]).fetchone()
        if row is not None and row[0]:
            return
        if time.monotonic() > until:
            raise AlreadyRunning
        time.sleep(0.1)


class Staging:
    """The temporary tables, filled and asked in this order: load, match, chunks and settle, see, the rest."""

    def __init__(self, session: psycopg.Connection[Any]) -> None:
        self._session = session

    def load(self, rows: Iterable[Sequence[object]]) -> None:
        """Take in all rows of the statement."""
        with self._session.cursor() as cursor:
            with cursor.copy(_COPY) as copy:
                for row in rows:
                    copy.write_row(row)
            cursor.execute(_REPEATS)

    def match(self, run_id: int | None) -> None:
        """Give their verdict to the rows that agree with the ledger; the others are open."""
        self._session.execute(_MATCH, {"run": run_id})
        self._session.execute(_OPEN)

    def count_open(self) -> int:
        return int(self.rows("SELECT count(*) FROM statement_open")[0][0])

    def chunks(self) -> Iterator[list[Row]]:
        """Yield the open rows, about CHUNK at a time; those of one sum are together."""
        at = -1
        columns = ", ".join(Row._fields)
        while True:
            chosen = f"SELECT {columns} FROM statement_open WHERE at > %s ORDER BY at, position LIMIT %s"
            rows = [Row(*row) for row in self.rows(chosen, [at, CHUNK])]
            if not rows:
                return
            at = rows[-1].at
            if rows[-1].is_summed:
                rest = f"SELECT {columns} FROM statement_open WHERE at = %s AND position > %s ORDER BY position"
                rows += [Row(*row) for row in self.rows(rest, [at, rows[-1].position])]
            yield rows

    def history(self, rows: Sequence[Row], *, books_id: int, run_id: int | None) -> History:
        """Return what is booked of the rows now."""
        keys = {key for row in rows for key in (row.unit, row.alias) if key is not None}
        corrected = {key.removesuffix(REVERSED) for key in keys if key.endswith(REVERSED)}
        keys |= corrected
        payments = {row.payment for row in rows if row.is_summed and row.payment is not None}
        captures: dict[str, list[Known]] = {}
        for reference, *known in self.rows(
            _CAPTURED, [books_id, database.array(payments), database.array(map(str, _CAPTURES))]
        ):
            captures.setdefault(reference, []).append(Known(*known))
        corrections = self.rows(
            "SELECT key, amount, currency FROM payments_correction WHERE key = ANY(%s::text[])",
            [database.array(corrected)],
        )
        booked = self.rows(
            "SELECT DISTINCT key FROM payments_reconciliationline"
            " WHERE reconciliation_id = %s AND verdict = 'booked' AND key = ANY(%s::text[])",
            [run_id, database.array(keys)],
        )
        return History(
            transfers={row[0]: Known(*row[1:]) for row in self.rows(_TRANSFERS, [database.array(keys)])},
            corrections={row[0]: (row[1], row[2]) for row in corrections},
            captures=captures,
            booked_now={row[0] for row in booked},
        )

    def settle(self, judged: Sequence[Judgement]) -> None:
        """Note what is said of rows, and what a person should look at."""
        verdicts = [(row.position, one.verdict) for one in judged for row in one.rows]
        self._insert("statement_verdict (position, verdict)", "int[], text[]", verdicts)
        seen = [(transfer_id, one.verdict) for one in judged for transfer_id in one.transfer_ids]
        self._insert("statement_seen (transfer_id, verdict)", "bigint[], text[]", seen)

    def note(self, differences: Sequence[Difference]) -> None:
        """Keep lines that differ, or are missing here, for the report."""
        self._insert(
            "statement_difference (number, is_beside, verdict, key, kind, amount, currency, booked_amount,"
            " booked_currency, occurred_at, why)",
            "int[], boolean[], text[], text[], text[], bigint[], text[], bigint[], text[], timestamptz[], text[]",
            [difference[:-1] for difference in differences],
        )

    def see(self) -> None:
        """Find the transfers that the lines are about, once all lines have their verdict."""
        self._session.execute("ANALYZE statement_verdict")
        self._session.execute(_SEE)

    def unsighted(self) -> Iterator[list[int]]:
        """Yield ids of transfers that the statement tells of, and that no statement did before."""
        self._session.execute(_UNSIGHTED)
        chosen = "SELECT transfer_id FROM statement_unsighted WHERE transfer_id > %s ORDER BY transfer_id LIMIT %s"
        last = 0
        while ids := [row[0] for row in self.rows(chosen, [last, SEEN_CHUNK])]:
            yield ids
            last = ids[-1]

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Ask the rest of the ledger as it is at one moment."""
        with self._session.transaction():
            self._session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield

    def find_missing_there(self, *, books_id: int, window: Window, listed: Iterable[FactKind]) -> None:
        self._session.execute(
            _MISSING_THERE,
            {
                "books": books_id,
                "begin": window.begin,
                "due": min(window.due, window.end),
                "listed": database.array(map(str, listed)),
            },
        )

    def counts(self) -> list[tuple[Any, ...]]:
        """Return (verdict, is beside, kind, how many rows)."""
        return self.rows(_COUNT)

    def count_differences(self) -> dict[str, int]:
        """Return {verdict: how many were noted}."""
        return dict(self.rows("SELECT verdict, count(*) FROM statement_difference GROUP BY verdict"))

    def tidy(self) -> None:
        """Drop what goes without saying, once all is noted."""
        self._session.execute(_TIDY, {"twice": TWICE})

    def differences(self, chunk: int) -> Iterator[list[Difference]]:
        """Yield what was noted, in the order of the file; what is missing there comes last."""
        last = 0
        while rows := self.rows(_DIFFERENCES, [last, chunk]):
            yield [Difference(*row[1:]) for row in rows]
            last = rows[-1][0]

    def healed(self, *, books_id: int, kinds: Sequence[str], unusable: str) -> list[tuple[str, str]]:
        """Return (kind, subject) of open findings that this statement no longer bears out."""
        return self.rows(_HEALED, {"kinds": database.array(kinds), "books": books_id, "unusable": unusable})

    def rows(self, sql: str, values: Any = None) -> list[Any]:
        """Ask the tables, and the ledger, anything."""
        return list(self._session.execute(sql, values).fetchall())

    def _insert(self, target: str, types: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            unnested = ", ".join(f"%s::{one}" for one in types.split(", "))
            self._session.execute(
                f"INSERT INTO {target} SELECT * FROM unnest({unnested}) ON CONFLICT DO NOTHING", database.arrays(rows)
            )
