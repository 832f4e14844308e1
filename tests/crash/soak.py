"""Hours of bad luck in minutes: a simulated gateway delivers while processes are SIGKILLed at random.

The gateway is the product's own simulator: concurrent, with duplicates, same-instant duplicates, reordering, retries
and a journal of every first answer. What the ledger must show is its model's word, and the invariants are read from
snapshots during the run. A run that never hit what it is about proves nothing, and says so: `Void`.

Repeatable as far as a machine is: the seed gives the events, the kills and their moments.
"""

import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psycopg

from payments.simulation import dialects, gateway, stories, wire
from tests import deliveries
from tests.crash import invariants, processes
from tests.crash.servers import App, Postgres

CONCURRENCY: Final = 24
PAYEES: Final = 30  # few, so that their accounts are contended
CHECK_EVERY_S: Final = 3.0
QUIET_S_MAX: Final = 60.0  # with nothing acknowledged for so long, service hasn't come back
# The demo's endpoints that it speaks to: one names payees and tells fees, the other's payments are all one merchant's.
SPOKEN: Final[Mapping[str, tuple[dialects.Dialect, str | None]]] = {
    "demo": (dialects.TABLE["standard_webhooks"], None),
    "stripe": (dialects.TABLE["stripe"], "merchant-1"),
}


class Violation(AssertionError):
    """A promise is broken: what this is for."""


class Void(AssertionError):
    """Nothing was found, but the run didn't hit often enough what it should have."""


# What is killed, and how often in relation to the others.
KILLS: Final[Mapping[str, int]] = {
    "worker": 40,
    "all workers": 10,
    "master": 8,
    "master and workers": 10,
    "start path": 4,
    "PostgreSQL backend": 14,
    "postmaster": 8,
    "all of PostgreSQL": 6,
}


@dataclass
class Tally:
    """What a soak did and saw, over all its rounds."""

    kills: Counter[str] = field(default_factory=Counter)
    events: int = 0
    deliveries: int = 0
    cut_off: int = 0  # deliveries that were sent and got no answer
    unavailable: int = 0  # answered 503
    replays: int = 0
    committed_unanswered: int = 0  # events that were committed when their delivery was cut off
    booked_by_retry: int = 0  # events that were not committed when their delivery was cut off, and are in the end
    rolled_back: int = 0  # transactions that had written and were undone
    snapshots: int = 0  # in which all invariants were checked
    seconds: float = 0.0

    @property
    def kills_total(self) -> int:
        return sum(self.kills.values())

    def require_worth(self) -> None:
        """Raise Void unless both things that can happen to a killed delivery happened often enough."""
        at_least = max(1, self.kills_total // 20)
        for what in ("committed_unanswered", "booked_by_retry", "rolled_back", "snapshots"):
            if getattr(self, what) < at_least:
                raise Void(f"{what}: {getattr(self, what)}, wanted at least {at_least}. {self.lines()}")

    def lines(self) -> list[str]:
        kinds = ", ".join(f"{count} {what}" for what, count in sorted(self.kills.items()))
        return [
            f"{self.kills_total} kills in {self.seconds:.0f} s: {kinds}",
            f"{self.events} events in {self.deliveries} deliveries; {self.cut_off} cut off,"
            f" {self.unavailable} answered 503",
            f"{self.committed_unanswered} events committed but unanswered,"
            f" {self.booked_by_retry} cut off and not committed, {self.rolled_back} transactions rolled back",
            f"{self.replays} replays identical, invariants held in {self.snapshots} snapshots",
        ]


class WatchedRun(gateway.Run):
    """A run that notes which deliveries were sent and got no answer, and when.

    cut_off_at           event id -> when its delivery was cut off last, before it was acknowledged
    acknowledged_try_at  event id -> when the delivery began that was acknowledged first
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.cut_off_at: dict[str, float] = {}
        self.acknowledged_try_at: dict[str, float] = {}
        self.cut_off = 0
        self.is_aborted = False

    async def _next(self) -> gateway._Delivery | None:
        return None if self.is_aborted else await super()._next()

    async def _deliver(self, delivery: gateway._Delivery, connection: wire.Connection) -> None:
        event_id, began_at = delivery.happening.event_id, time.time()
        was_acknowledged, tries_before = event_id in self.journal, delivery.tries
        await super()._deliver(delivery, connection)
        is_cut_off = delivery.tries > tries_before and connection.is_closed
        self.cut_off += is_cut_off
        if is_cut_off and event_id not in self.journal:
            self.cut_off_at[event_id] = time.time()
        elif delivery.tries == tries_before and not was_acknowledged:
            self.acknowledged_try_at.setdefault(event_id, began_at)


class Soak:
    """One round: a cluster, an app and a gateway of its own, and so many kills."""

    def __init__(
        self,
        *,
        folder: Path,
        seed: int,
        kills: int,
        tally: Tally,
        endpoint: str = "demo",
        kinds: Mapping[str, int] = KILLS,
        wsgi: str = "",
        database_options: str = "",
    ) -> None:
        self.seed, self.tally, self.endpoint = seed, tally, endpoint
        self._dialect, self._everybodys_payee = SPOKEN[endpoint]
        self._kills, self._kinds, self._wsgi = kills, kinds, wsgi
        self._dice = random.Random(seed)
        self.postgres = Postgres(folder)
        self.app = App(folder=folder, database_url=self.postgres.url + database_options)
        self._happened: list[stories.Happening] = []
        self._acknowledged: list[str] = []  # event ids, in the order of their first acknowledgements
        self._enough = threading.Event()
        self._failures: list[BaseException] = []
        self._xid_looked_at = 0
        self.run: WatchedRun

    def execute(self) -> None:
        """Raise Violation if a promise was broken."""
        began_at = time.monotonic()
        self.postgres.start()
        try:
            with self.app:
                self.app.start()
                if self._wsgi:
                    self.app.kill_all()
                    self.app.serve(wsgi=self._wsgi)
                self._deliver_under_fire()
                self._check_end()
        finally:
            self.postgres.remove()
            self.tally.seconds += time.monotonic() - began_at

    # The gateway, and the watch over it, in threads

    def _deliver_under_fire(self) -> None:
        self._xid_looked_at = int(
            self.postgres.query("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")[0][0]
        )
        self.run = self._make_run(self._told(), on_acknowledged=lambda one: self._acknowledged.append(one.event_id))
        delivering = threading.Thread(target=self._guarded, args=(self.run.execute,))
        checking = threading.Thread(target=self._guarded, args=(self._check_until_enough,))
        delivering.start()
        checking.start()
        try:
            for _ in range(self._kills):
                self._wait_for_service()
                kind = self._dice.choices(list(self._kinds), list(self._kinds.values()))[0]
                time.sleep(self._dice.uniform(0.0, 0.4))
                self._kill(kind)
                self.tally.kills[kind] += 1
            self._wait_for_service()
        except BaseException:
            self.run.is_aborted = True
            raise
        finally:
            self._enough.set()
            delivering.join()
            checking.join()
        self._raise_failures()

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as failure:  # noqa: BLE001 (raised in the main thread)
            self._failures.append(failure)

    def _raise_failures(self) -> None:
        if self._failures:
            raise self._failures[0]

    def _told(self) -> Iterator[stories.Happening]:
        return stories.deliveries(self._happenings(), duplicates=0.15, reorder=0.1, seed=self.seed)

    def _happenings(self) -> Iterator[stories.Happening]:
        for one in stories.happenings(events=sys.maxsize, seed=self.seed, accounts=PAYEES, kinds=self._dialect.kinds):
            if self._enough.is_set():
                return
            self._happened.append(one)
            yield one

    def _make_run(
        self, told: Iterator[stories.Happening], *, on_acknowledged: Callable[[stories.Happening], None]
    ) -> WatchedRun:
        return WatchedRun(
            told=told,
            dialect=self._dialect,
            secret=deliveries.SECRETS[self.endpoint.upper()],
            target=wire.Target.of(f"http://127.0.0.1:{self.app.port}", self.endpoint),
            concurrency=CONCURRENCY,
            give_up_s=10 * QUIET_S_MAX,
            on_acknowledged=on_acknowledged,
        )

    def _wait_for_service(self) -> None:
        """Wait until something new was acknowledged."""
        known, deadline = len(self._acknowledged), time.monotonic() + QUIET_S_MAX
        while len(self._acknowledged) <= known:
            self._raise_failures()
            if time.monotonic() > deadline:
                log = self.app.read_log()[-3000:]
                raise Violation(f"nothing acknowledged for {QUIET_S_MAX} s; {self.run.report.as_dict()}; {log}")
            time.sleep(0.01)

    # Kills

    def _kill(self, kind: str) -> None:
        dice, app, postgres = self._dice, self.app, self.postgres
        match kind:
            case "worker":
                app.kill(signal.SIGKILL, [dice.choice(self._workers())])
            case "all workers":
                app.kill(signal.SIGKILL, self._workers())
            case "master":
                app.kill_master()
                self._start_again()
            case "master and workers":
                app.kill_all()
                self._start_again()
            case "start path":
                app.kill_all()
                app.start_and_die(after_s=dice.uniform(0.2, 2.5))
                self._start_again()
            case "PostgreSQL backend":
                postgres.kill_backend(dice.choice(self._backends()))
            case "postmaster":
                postgres.kill_postmaster()
                postgres.start()
            case "all of PostgreSQL":
                postgres.kill_all()
                postgres.start()
            case _:
                raise AssertionError(f"Bug: nobody knows how to kill {kind}")

    def _workers(self) -> list[int]:
        return processes.wait_until("a worker to kill", self.app.list_workers, within_s=30)

    def _backends(self) -> list[int]:
        def look() -> list[int]:
            try:
                return self.postgres.list_backends()
            except psycopg.OperationalError:  # it recovers
                return []

        return processes.wait_until("a backend to kill", look, within_s=30)

    def _start_again(self) -> None:
        if not self._wsgi:
            try:
                self.app.start()
            except AssertionError as failure:
                raise Violation(f"seed {self.seed}: the start path: {failure}") from failure
            return
        done = self.app.manage("recover")
        if done.returncode:
            raise Violation(f"seed {self.seed}: recover exits {done.returncode}: {done.stdout}{done.stderr}")
        self.app.serve(wsgi=self._wsgi)

    # Checks

    def _check_until_enough(self) -> None:
        checked = 0
        while not self._enough.wait(CHECK_EVERY_S):
            known = len(self._acknowledged)
            try:
                self._check_snapshot(self._acknowledged[checked:known])
            except psycopg.OperationalError:  # it is dead just now
                continue
            checked = known

    def _check_snapshot(self, acknowledged: list[str]) -> None:
        with self.postgres.connect() as connection, invariants.snapshot(connection) as cursor:
            found = invariants.find_violations(cursor)
            found += invariants.find_lost(cursor, {one: self.run.journal[one].body for one in acknowledged})
            aborted, self._xid_looked_at = _count_aborted(cursor, self._xid_looked_at)
        if found:
            raise Violation(f"seed {self.seed}: {found}")
        self.tally.rolled_back += aborted
        self.tally.snapshots += 1

    def _check_end(self) -> None:
        report, happened = self.run.report, self._happened
        if not report.is_clean or self.run.unacked or report.sent != len(happened):
            raise Violation(f"seed {self.seed}: {len(happened)} happened; {report.as_dict()}")
        self._check_snapshot(self._acknowledged)
        self._check_model()
        self._check_replays()
        verified = self.app.manage("verify_ledger", "--json")
        if verified.returncode:
            raise Violation(f"seed {self.seed}: verify_ledger says {verified.stdout}{verified.stderr}")
        self._count_hits()
        self.tally.events += report.sent
        self.tally.deliveries += report.deliveries
        self.tally.cut_off += self.run.cut_off
        self.tally.unavailable += report.answers["503"]

    def _check_model(self) -> None:
        expected = stories.Expected(books=self.endpoint, everybodys_payee=self._everybodys_payee)
        for one in self._happened:
            expected.add(one)
        with self.postgres.connect() as connection, invariants.snapshot(connection) as cursor:
            balances = invariants.read_balances(cursor)
            payments = invariants.read_payments(cursor)
            counts = cursor.execute(
                "SELECT (SELECT count(*) FROM payments_claim), (SELECT count(claim_id) FROM payments_transfer),"
                " (SELECT count(*) FROM payments_finding WHERE closed_at IS NULL)"
            ).fetchone()
        wanted = {key: amount for key, amount in expected.balances.items() if amount}
        if balances != wanted:
            raise Violation(f"seed {self.seed}: balances differ: {_difference(balances, wanted)}")
        if payments != (told := {name: +totals for name, totals in expected.payments.items()}):
            raise Violation(f"seed {self.seed}: payments differ: {_difference(payments, told)}")
        if counts != (expected.events, expected.events, 0):
            raise Violation(f"seed {self.seed}: claims, transfers, open findings: {counts}; events: {expected.events}")

    def _check_replays(self) -> None:
        """Deliver every event once more: each answer is the first one, byte for byte."""
        again = self._make_run(iter(self._happened), on_acknowledged=lambda _: None)
        again.journal.update(self.run.journal)
        report = again.execute()
        if report.replay_mismatches or report.refused or report.replays != len(self._happened):
            raise Violation(f"seed {self.seed}: replays: {report.as_dict()}")
        self.tally.replays += report.replays + self.run.report.replays

    def _count_hits(self) -> None:
        """Of the events whose delivery was cut off: which were committed then, and which weren't?"""
        run = self.run
        with self.postgres.connect() as connection:
            rows = connection.execute(
                "SELECT event_id, claimed_at FROM payments_claim WHERE event_id = ANY(%s)", [list(run.cut_off_at)]
            ).fetchall()
        for event_id, claimed_at in rows:
            assert isinstance(claimed_at, datetime)
            if claimed_at.timestamp() > run.cut_off_at[event_id]:
                self.tally.booked_by_retry += 1
            elif run.acknowledged_try_at[event_id] > run.cut_off_at[event_id]:
                self.tally.committed_unanswered += 1
            # Else a duplicate of it was under way beside it, and was answered.


def _count_aborted(cursor: psycopg.Cursor[invariants.Row], since: int) -> tuple[int, int]:
    """Return how many transactions from that id on wrote something and were undone, and up to where that is known."""
    row = cursor.execute(
        """
        SELECT (SELECT count(*) FROM generate_series(%(since)s::bigint, now.xmin - 1) AS xid
                WHERE pg_xact_status(xid::text::xid8) = 'aborted'), now.xmin
        FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin) AS now
        """,
        {"since": since},
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def _difference(seen: Mapping[Any, object], wanted: Mapping[Any, object]) -> str:
    keys = [key for key in seen.keys() | wanted.keys() if seen.get(key) != wanted.get(key)]
    return f"{len(keys)}, e.g. {[(key, seen.get(key), wanted.get(key)) for key in keys[:5]]}"
