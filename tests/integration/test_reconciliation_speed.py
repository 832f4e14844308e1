"""A million lines against a ledger that holds them: how fast, in how much memory, and nothing but what was planted."""

import csv
import resource
import time
from pathlib import Path
from typing import Final

import pytest
from django.db import connection, transaction

from payments import models
from tests.integration.statements import HEADER, line, run_apart

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.django_db(transaction=True)]

LINES: Final = 1_000_000
LINES_PER_S_MIN: Final = 10_000
MEMORY_MB_MAX: Final = 300
FAULTS: Final = 50  # of each kind
CHUNK: Final = 100_000  # transfers of one transaction while the ledger is filled

# Captures of 1000 for one merchant, as webhooks would have booked them on the 30th.
FILL: Final = (
    """
    INSERT INTO payments_payment (endpoint_id, reference, merchant_reference, reference_rank, currency, currency_rank,
                                  payee, payee_rank, payee_by_capture, payee_account_id, captured, named_captured, rank,
                                  ever_captured)
    SELECT %(books)s, 'pay_' || g, 'pay_' || g, 1, 'IDR', 2, 'merchant-1', 2, 'merchant-1', %(payee)s, 1000, 1000, 5,
           true
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) g
    """,
    """
    INSERT INTO payments_transfer (key, kind, endpoint_id, payment_id, source, amount, currency, account_hint,
                                   occurred_at)
    SELECT 'demo:pay_' || g || ':captured', 'PaymentCaptured', %(books)s, p.id, 'webhook', 1000, 'IDR', 'merchant-1',
           '2026-11-30T10:00:00Z'
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) g
    JOIN payments_payment p ON p.endpoint_id = %(books)s AND p.reference = 'pay_' || g
    """,
    """
    INSERT INTO payments_entry (transfer_id, line, account_id, currency, direction, amount)
    SELECT t.id, leg.line, leg.account_id, 'IDR', leg.direction, 1000
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) g
    JOIN payments_transfer t ON t.key = 'demo:pay_' || g || ':captured'
    CROSS JOIN (VALUES (1, 'debit', %(receivable)s), (2, 'credit', %(payee)s)) leg (line, direction, account_id)
    """,
    """
    UPDATE payments_account SET debits = debits + CASE WHEN id = %(receivable)s THEN sum ELSE 0 END,
                                credits = credits + CASE WHEN id = %(payee)s THEN sum ELSE 0 END
    FROM (SELECT 1000 * (%(last)s::bigint - %(first)s::bigint + 1) AS sum) s
    WHERE id IN (%(receivable)s, %(payee)s)
    """,
)


def fill() -> None:
    demo = models.Endpoint.objects.get(slug="demo")
    receivable = models.Account.objects.create(code="receivable:demo", currency="IDR", kind="asset", endpoint=demo)
    payee = models.Account.objects.get(code="merchant-1", currency="IDR")
    with connection.cursor() as cursor:
        for first in range(0, LINES, CHUNK):
            with transaction.atomic():
                cursor.execute("SET LOCAL statement_timeout = 0")
                for statement in FILL:
                    values = {"books": demo.pk, "receivable": receivable.pk, "payee": payee.pk}
                    cursor.execute(statement, values | {"first": first, "last": first + CHUNK - 1})
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("VACUUM (ANALYZE) payments_transfer, payments_entry, payments_payment")
        cursor.execute("RESET statement_timeout")


def write(path: Path) -> set[tuple[str, str]]:
    """Write the statement, with faults of every kind; return the findings they must make."""
    expected: set[tuple[str, str]] = set()
    last: dict[str, str] = {}
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{HEADER}\n")
        for n in range(LINES):
            written = [line(payment=f"pay_{n}", account="merchant-1", amount=1000)]
            kind, subject = n % (LINES // FAULTS), f"demo:pay_{n}:captured"
            if kind == 1:
                written, last = [], {"missing_there": subject}
            elif kind == 2:
                written, last = [line(payment=f"pay_{n}", amount=1001)], {"differs": subject}
            elif kind == 3:
                written, last = [line(payment=f"pay_{n}", amount=1000, currency="USD")], {"differs": subject}
            elif kind == 4:
                written, last = written * 2, {"differs": subject}
            elif kind == 5:
                written.append(line(payment=f"new_{n}", account="merchant-1", amount=7))
            expected |= set(last.items())
            file.writelines(f"{one}\n" for one in written)
    return expected


def test_million_lines(small_demo: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At 10,000 lines a second or more, under 300 MB; the planted faults are exactly the findings."""
    fill()
    path = tmp_path / "million.csv"
    expected = write(path)
    started = time.monotonic()
    with path.open(encoding="utf-8", newline="") as file:
        lines = sum(1 for _ in csv.reader(file)) - 1
    reading_s = time.monotonic() - started

    figures = []
    for what in ("first run", "second run"):
        started = time.monotonic()
        ran = run_apart("reconcile", "demo", path)
        seconds = time.monotonic() - started
        figures.append((what, seconds))
        assert ran.findings == expected
        assert ran.data["lines"] == lines
        assert ran.data["booked"] == (FAULTS if what == "first run" else 0)
        assert [one["unexplained"] for one in ran.data["summary"]] == [0, 0]

    memory_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    with capsys.disabled():
        for what, seconds in figures:
            print(  # noqa: T201
                f"\n{what}: {lines:,} lines in {seconds:.1f} s, {lines / seconds:,.0f} lines/s, "
                f"{seconds / reading_s:.0f} times reading them with csv alone; {memory_mb:.0f} MB at most"
            )
    assert memory_mb < MEMORY_MB_MAX
    assert lines / figures[0][1] > LINES_PER_S_MIN
