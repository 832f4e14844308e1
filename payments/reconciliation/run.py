"""A gateway's statement against the ledger: what agrees, what no webhook brought, what differs, what is missing where.

The file is read whole before anything is booked, line by line into the staging's tables, and compared there. What is
missing here is booked through intake.book, the same way as a webhook's facts, CHUNK facts a transaction, safe beside
live deliveries.

After a crash: what was booked is known by its key, and each booked line is noted in the transaction that books it. The
next run over the same file goes on with the unfinished one and reports what that would have reported. A run is finished
when somebody was told its report: the next one after that compares anew, and what this one booked has matched by then.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from django.db import transaction

from payments import conf, database, facts, failpoints, findings, ledger, statements
from payments.findings import Found
from payments.reconciliation import lost_webhooks, rows, runs, staging, summary, telling, verdicts
from payments.reconciliation.staging import Difference, Staging, Window
from payments.reconciliation.verdicts import BOOKED, DIFFERS, FEE_DIFFERS, MATCHED, MISSING_HERE, Judgement
from payments.statements.base import StatementLine

TRANSACTION_S: Final = 30.0  # how long one is tried again, when its connection is lost before COMMIT
FINISH_CHUNK: Final = 1_000  # findings and lines of one transaction
FINDINGS_LISTED_MAX: Final = 10_000  # in the report; all are in the run's lines
DIGEST_SHOWN: Final = 12  # characters: enough to tell statements apart in a finding's subject
FINDING_KINDS: Final = (DIFFERS, MISSING_HERE, verdicts.MISSING_THERE, FEE_DIFFERS)

Progress = Callable[[str, int, int | None], None]  # what is done, how many, of how many


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to reconcile. begin, end: the window, half-open; None: the days that the lines cover.

    columns   {the format's name of a column: the file's title}
    """

    endpoint: conf.Endpoint
    path: Path
    format: str
    columns: Mapping[str, str] = field(default_factory=dict)
    begin: datetime | None = None
    end: datetime | None = None
    is_dry_run: bool = False


@dataclass(slots=True)
class Report:
    """What came of it. Amounts in minor units; begin and end are None where nothing says what days it is about.

    run_id   the row of Reconciliation; None: a dry run
    """

    run_id: int | None = None
    is_resumed: bool = False
    begin: datetime | None = None
    end: datetime | None = None
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    findings_total: int = 0
    summary: list[dict[str, Any]] = field(default_factory=list)
    lost_webhooks: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            **self.counts,
            "findings": self.findings,
            "findings_total": self.findings_total,
            "from": None if self.begin is None else self.begin.isoformat(),
            "to": None if self.end is None else self.end.isoformat(),
            "summary": self.summary,
            "lost_webhooks": self.lost_webhooks,
        }


def reconcile(request: Request, *, now: datetime, progress: Progress = lambda what, done, whole: None) -> Report:
    """Compare a statement with the ledger, book what is missing here, and say what else is not so.

    Call finish() when the report is told. Raises staging.AlreadyRunning, statements.base.StatementUnreadable, OSError,
    and database.TransactionFailed when the database could not be used: run it again.
    """
    digest = _digest(request.path)
    with staging.opened() as stage:
        run = _Run(request, stage, digest, now, progress)
        run.read()
        run.compare()
        return run.conclude()


def finish(report: Report) -> None:
    """Note that a report was told. Until then, a run over the same file goes on with this one and reports the same."""
    if report.run_id is not None:
        with database.connected(_soon()):
            runs.finish(report.run_id)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Run:
    """One reconciliation under way: read, compare, conclude."""

    def __init__(self, request: Request, stage: Staging, digest: str, now: datetime, progress: Progress) -> None:
        self._request = request
        self._endpoint = request.endpoint
        self._stage = stage
        self._digest = digest
        self._now = now
        self._progress = progress
        self._books = request.endpoint.books
        self._unusable = f"{self._books.slug}:statement-{digest[:DIGEST_SHOWN]}:"
        self._ignored = 0
        self._first_at: datetime | None = None
        self._last_at: datetime | None = None
        self._report = Report()

    # Reading ---------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Stage the whole file, so that a broken one is refused before anything of it is booked."""
        with self._request.path.open("rb") as file:
            self._stage.load(self._rows(file))
        self._set_window()
        if not self._request.is_dry_run:
            self._begin_or_go_on()
        failpoints.hit("reconcile_read")

    def _rows(self, file: Any) -> Iterator[tuple[object, ...]]:
        statement = statements.REGISTRY[self._request.format]
        position = 0
        for line in statement.lines(file, self._endpoint.config, self._request.columns):
            if line.ignored is not None:
                self._ignored += 1
                continue
            self._cover(line)
            staged = rows.rows_of(line, position=position, books=self._books.slug, unusable=self._unusable)
            position += len(staged)
            if position % 4096 < len(staged):
                self._progress("read", line.number, None)
            yield from staged

    def _cover(self, line: StatementLine) -> None:
        if line.principal is None:
            return
        at = line.principal.occurred_at
        if self._first_at is None or at < self._first_at:
            self._first_at = at
        if self._last_at is None or at > self._last_at:
            self._last_at = at

    def _set_window(self) -> None:
        # Days begin and end at midnight in the zone that the statement itself counts them in.
        first, last = self._first_at, self._last_at
        begin = None if first is None else first.replace(hour=0, minute=0, second=0, microsecond=0)
        end = None if last is None else last.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        self._report.begin = self._request.begin or begin
        self._report.end = self._request.end or end

    @property
    def _window(self) -> Window:
        end = self._report.end or self._now
        return Window(self._report.begin or end, end, end - timedelta(days=self._endpoint.gateway.settling_days))

    def _begin_or_go_on(self) -> None:
        request = self._request
        with transaction.atomic(durable=True):
            self._report.run_id, self._report.is_resumed = runs.begin_or_go_on(
                file_name=request.path.name,
                endpoint_id=self._endpoint.id,
                file_digest=self._digest,
                format=request.format,
                asked_from=request.begin,
                asked_to=request.end,
            )

    # Comparing -------------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Give every line its verdict; book what is missing here."""
        self._progress("compare", 0, None)
        self._stage.match(self._report.run_id)
        failpoints.hit("reconcile_matched")
        whole, done = self._stage.count_open(), 0
        for chunk in self._stage.chunks():
            history = self._stage.history(chunk, books_id=self._books.id, run_id=self._report.run_id)
            judged = list(verdicts.judge(chunk, history))
            if self._request.is_dry_run:
                _leave(judged)
            else:
                telling.tell(
                    [one for one in judged if one.fact is not None], endpoint=self._endpoint, run_id=self._started_id
                )
                failpoints.hit("reconcile_booked")
            self._stage.settle(judged)
            self._stage.note([difference for one in judged for difference in self._differences(one)])
            done += len(chunk)
            self._progress("book", done, whole)
        self._stage.see()
        if not self._request.is_dry_run:
            self._note_sightings()
            failpoints.hit("reconcile_sighted")

    def _differences(self, one: Judgement) -> Iterator[Difference]:
        if one.verdict in (MATCHED, BOOKED):
            return
        booked_amount, booked_currency = one.booked or (None, None)
        for row in one.rows:
            if row.is_beside and one.verdict == MISSING_HERE:
                continue  # its line says so
            yield Difference(
                number=row.number,
                is_beside=row.is_beside,
                verdict=str(one.verdict),
                key=row.unit or f"{self._unusable}{row.number}",
                kind=row.kind,
                amount=row.amount,
                currency=row.currency,
                booked_amount=booked_amount,
                booked_currency=booked_currency,
                occurred_at=row.occurred_at,
                why=one.why,
            )

    def _note_sightings(self) -> None:
        done = 0
        for ids in self._stage.unsighted():
            with database.connected():
                database.in_transaction(partial(_see, ids), _soon())
            done += len(ids)
            self._progress("note sightings", done, None)

    # Concluding ------------------------------------------------------------------------------------------------------

    def conclude(self) -> Report:
        """Find what is missing there, sum up, open the findings, keep the report."""
        self._progress("conclude", 0, None)
        listed = statements.REGISTRY[self._request.format].lists
        with self._stage.snapshot():
            self._stage.find_missing_there(books_id=self._books.id, window=self._window, listed=listed)
            self._report.summary = summary.summarize(
                self._stage, books_id=self._books.id, books=self._books.slug, window=self._window
            )
        self._stage.tidy()
        self._count()
        with database.connected():
            self._list_findings()
            if not self._request.is_dry_run:
                self._keep()
                failpoints.hit("reconcile_kept")
                self._report.lost_webhooks = database.in_transaction(self._find_lost_webhooks, _soon())
        return self._report

    def _count(self) -> None:
        lines: Counter[str] = Counter()
        fees = conversions = unusable = 0
        for verdict, is_beside, kind, count in self._stage.counts():
            if not is_beside:
                lines[verdict] += count
                unusable += 0 if kind else count
            elif verdict == BOOKED:
                fees += count if kind in facts.FEES else 0
                conversions += count if kind not in facts.FEES else 0
        noted = self._stage.count_differences()
        self._report.counts = {
            "lines": sum(lines[verdict] for verdict in verdicts.OF_LINES),
            **{verdict: lines[verdict] for verdict in verdicts.OF_LINES},
            verdicts.MISSING_THERE: noted.get(verdicts.MISSING_THERE, 0),
            "fees_booked": fees,
            "conversions_booked": conversions,
            "fees_differing": noted.get(FEE_DIFFERS, 0),
            "ignored": self._ignored,
            "unusable": unusable,
        }

    def _list_findings(self) -> None:
        for chunk in self._stage.differences(FINISH_CHUNK):
            first = [one for one in chunk if one.is_first]
            self._report.findings_total += len(first)
            room = FINDINGS_LISTED_MAX - len(self._report.findings)
            self._report.findings += [_finding_as_json(one) for one in first[:room]]

    def _keep(self) -> None:
        """Write what was seen in chunks, each whole, and the report with the last; killed before, it begins again."""
        database.in_transaction(self._forget_differences, _soon())
        for chunk in self._stage.differences(FINISH_CHUNK):
            database.in_transaction(partial(self._note_differences, chunk), _soon())
            failpoints.hit("reconcile_found")
        healed = self._stage.healed(books_id=self._books.id, kinds=FINDING_KINDS, unusable=self._unusable)
        database.in_transaction(partial(self._keep_report, healed), _soon())

    def _forget_differences(self) -> None:
        database.lift_statement_timeout()
        runs.forget_differences(self._started_id)

    def _note_differences(self, chunk: Sequence[Difference]) -> None:
        findings.open_findings([_finding(one, self._books.id) for one in chunk if one.is_first])
        runs.note_differences(self._started_id, chunk)

    def _keep_report(self, healed: Sequence[tuple[str, str]]) -> None:
        findings.close_healed(healed)
        runs.keep_report(
            self._started_id,
            begin=self._report.begin,
            end=self._report.end,
            counts=self._report.counts,
            summary=self._report.summary,
        )
        failpoints.hit("reconcile_finished")

    def _find_lost_webhooks(self) -> list[dict[str, Any]]:
        database.lift_statement_timeout()
        return lost_webhooks.find_lost_webhooks(reconciliation_id=self._report.run_id)

    @property
    def _started_id(self) -> int:
        if self._report.run_id is None:
            raise AssertionError("Bug: a dry run books and writes nothing")
        return self._report.run_id


def _leave(judged: Sequence[Judgement]) -> None:
    for one in judged:
        if one.verdict is None:
            one.verdict, one.why = MISSING_HERE, "not booked: a dry run"


def _soon() -> float:
    return time.monotonic() + TRANSACTION_S


def _see(transfer_ids: Sequence[int]) -> None:
    ledger.see_again([(transfer_id, None, "statement") for transfer_id in transfer_ids])


def _finding(one: Difference, books_id: int) -> Found:
    return Found(one.verdict, one.key, _detail(one), books_id)


def _finding_as_json(one: Difference) -> dict[str, Any]:
    return {"kind": one.verdict, "subject": one.key, "detail": {"line": one.number, **_detail(one)}}


def _detail(one: Difference) -> dict[str, Any]:
    # Without the line's number: another file that says the same is nothing new.
    said = {
        "why": one.why,
        "fact": one.kind,
        "statement": None if one.amount is None else {"amount": one.amount, "currency": one.currency},
        "booked": None if one.booked_amount is None else {"amount": one.booked_amount, "currency": one.booked_currency},
        "occurred_at": None if one.occurred_at is None else one.occurred_at.isoformat(),
    }
    return {name: value for name, value in said.items() if value}
