"""A run of the simulated gateway: deliveries over many connections, retries, and a check of every answer.

One thread, one event loop, one connection for each delivery that is under way.

Must not: touch the database. After a crash: nothing is kept; the same seed tells the same events again.
"""

import asyncio
import heapq
import json
import random
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from payments.simulation import wire
from payments.simulation.dialects import Dialect
from payments.simulation.stories import Happening

ANSWER_S_MAX: Final = 10.0  # the patience of the tightest gateway; then a delivery has failed
RETRY_BASE_S: Final = 0.1  # a real gateway waits minutes; the shape is the same
RETRY_MAX_S: Final = 5.0  # also the most that Retry-After is obeyed for
GIVE_UP_S: Final = 60.0  # how long after its first try a delivery is tried again: longer than any restart may take
UNREACHABLE_PAUSE_S: Final = (
    0.1  # while nothing listens, trying faster would only take the machine from who restarts it
)
EXAMPLES_MAX: Final = 5


class ServerUnreachable(Exception):
    """Nothing listens there, and nothing was sent: start the server, or give its --url."""


@dataclass(slots=True)
class Report:
    """What a run saw.

    sent, acked        events delivered at least once; those of them answered with 2xx
    deliveries         requests: first ones, re-deliveries and `retries`
    replays            answers to events that had been acknowledged before
    replay_mismatches  those that differ from the first, and first ones that speak of another event
    refused            answers to others that end it without an acknowledgement: 3xx and 4xx
    conflicts          422, to whatever event
    failed             deliveries without an answer: no connection, closed, or too late
    examples           the first few that went wrong, and how
    """

    sent: int = 0
    acked: int = 0
    deliveries: int = 0
    retries: int = 0
    replays: int = 0
    replay_mismatches: int = 0
    refused: int = 0
    conflicts: int = 0
    failed: int = 0
    seconds: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    latencies_ms: "array[float]" = field(default_factory=lambda: array("f"))

    @property
    def is_clean(self) -> bool:
        return self.acked == self.sent and not self.replay_mismatches and not self.refused

    def as_dict(self) -> dict[str, Any]:
        """Return the report in plain values. rate: acknowledged events a second."""
        ordered, seconds = sorted(self.latencies_ms), max(self.seconds, 1e-9)
        return {
            "sent": self.sent,
            "acked": self.acked,
            "unacked": self.sent - self.acked,
            "deliveries": self.deliveries,
            "retries": self.retries,
            "replays": self.replays,
            "replay_mismatches": self.replay_mismatches,
            "refused": self.refused,
            "conflicts": self.conflicts,
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
            "rate": round(self.acked / seconds, 1),
            "deliveries_rate": round(self.deliveries / seconds, 1),
            "p50_ms": _quantile(ordered, 0.50),
            "p99_ms": _quantile(ordered, 0.99),
            "max_ms": _quantile(ordered, 1.0),
            "answers": dict(sorted(self.answers.items())),
            "outcomes": dict(sorted(self.outcomes.items())),
            "examples": self.examples,
        }


@dataclass(order=True, slots=True)
class _Delivery:
    due_at: float
    number: int
    happening: Happening = field(compare=False)
    give_up_at: float = field(compare=False)
    tries: int = field(default=0, compare=False)


class Run:
    """One run. `report` counts while it goes on; `journal` holds the first acknowledgement of each event.

    told             events in the order of their deliveries; one that comes again is a re-delivery
    concurrency      connections
    on_acknowledged  called once for each event, with its first acknowledgement
    on_progress      called a few times a second
    """

    def __init__(
        self,
        *,
        told: Iterable[Happening],
        dialect: Dialect,
        secret: str,
        target: wire.Target,
        concurrency: int,
        give_up_s: float = GIVE_UP_S,
        on_acknowledged: Callable[[Happening], None] = lambda _: None,
        on_progress: Callable[[Report], None] = lambda _: None,
    ) -> None:
        self.report = Report()
        self.journal: dict[str, wire.Answer] = {}
        self._told = iter(told)
        self._dialect, self._secret, self._target = dialect, secret, target
        self._concurrency, self._give_up_s = concurrency, give_up_s
        self._on_acknowledged, self.on_progress = on_acknowledged, on_progress
        self._seen: set[str] = set()
        self._later: list[_Delivery] = []
        self._began_at = 0.0

    @property
    def unacked(self) -> set[str]:
        """The events that were sent and have no acknowledgement: booked or not, the gateway doesn't know."""
        return self._seen - self.journal.keys()

    def execute(self) -> Report:
        """Deliver everything, until it is acknowledged, refused or given up. Raises ServerUnreachable."""
        asyncio.run(self._execute())
        return self.report

    async def _execute(self) -> None:
        try:
            (await self._connect()).close()
        except OSError as error:
            raise ServerUnreachable(f"{self._target.host}:{self._target.port}: {error}") from error
        self._began_at = time.monotonic()
        watcher = asyncio.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._concurrency):
                    group.create_task(self._work())
        finally:
            watcher.cancel()
            self._show()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self._show()

    def _show(self) -> None:
        self.report.seconds = time.monotonic() - self._began_at
        self.on_progress(self.report)

    async def _work(self) -> None:
        """Deliver on one connection, opened anew when it breaks, until nothing is left."""
        connection: wire.Connection | None = None
        while (delivery := await self._next()) is not None:
            self._count(delivery)
            try:
                if connection is None or connection.is_closed:
                    connection = await self._connect()
            except OSError as error:
                self._fail(delivery, error)
                await asyncio.sleep(UNREACHABLE_PAUSE_S)
                continue
            await self._deliver(delivery, connection)
        if connection is not None:
            connection.close()

    async def _connect(self) -> wire.Connection:
        async with asyncio.timeout(ANSWER_S_MAX):
            return await wire.Connection.open(self._target)

    async def _next(self) -> _Delivery | None:
        """Return what is due: a retry, else something new. None: nothing is left for this worker."""
        while True:
            now = time.monotonic()
            if self._later and self._later[0].due_at <= now:
                return heapq.heappop(self._later)
            happening = next(self._told, None)
            if happening is not None:
                return _Delivery(now, self.report.deliveries, happening, give_up_at=now + self._give_up_s)
            if not self._later:
                return None  # what is under way elsewhere is tried again by whoever has it
            await asyncio.sleep(min(0.05, self._later[0].due_at - now))

    async def _deliver(self, delivery: _Delivery, connection: wire.Connection) -> None:
        headers, body = self._dialect.tell(delivery.happening, self._secret, int(time.time()))
        began_at = time.perf_counter()
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                answer = await connection.exchange(self._target.request(headers, body))
        except (OSError, wire.BadAnswer) as error:  # a timeout is an OSError too
            connection.close()
            self._fail(delivery, error)
            return
        self.report.latencies_ms.append((time.perf_counter() - began_at) * 1000)
        self.report.answers[str(answer.status)] += 1
        if answer.status >= 500 or answer.status == 429:
            self._try_later(delivery, answer.retry_after_s, f"answered {answer.status}")
        elif delivery.happening.event_id in self.journal:
            self._check_replay(delivery.happening, answer)
        elif 200 <= answer.status < 300:
            self._acknowledge(delivery.happening, answer)
        else:
            self._refuse(delivery.happening, answer)

    def _count(self, delivery: _Delivery) -> None:
        self.report.deliveries += 1
        self.report.retries += delivery.tries > 0
        self._seen.add(delivery.happening.event_id)
        self.report.sent = len(self._seen)

    def _acknowledge(self, happening: Happening, answer: wire.Answer) -> None:
        self.journal[happening.event_id] = answer
        self.report.acked += 1
        said = _members(answer)
        self.report.outcomes[str(said.get("outcome", "not told"))] += 1
        if self._dialect.names_event and said.get("event") != happening.event_id:
            self.report.replay_mismatches += 1
            self._note(f"{happening.event_id} was answered for another event: {_shown(answer)}")
        self._on_acknowledged(happening)

    def _check_replay(self, happening: Happening, answer: wire.Answer) -> None:
        first = self.journal[happening.event_id]
        self.report.replays += 1
        if answer != first:
            self.report.conflicts += answer.status == 422
            self.report.replay_mismatches += 1
            self._note(f"{happening.event_id} was first answered {_shown(first)}, then {_shown(answer)}")

    def _refuse(self, happening: Happening, answer: wire.Answer) -> None:
        self.report.refused += 1
        self.report.conflicts += answer.status == 422
        self._note(f"{happening.event_id} was refused: {_shown(answer)}")

    def _fail(self, delivery: _Delivery, error: Exception) -> None:
        self.report.failed += 1
        self._try_later(delivery, 0.0, str(error) or "no answer in time")

    def _try_later(self, delivery: _Delivery, asked_for_s: float, reason: str) -> None:
        """Put the delivery back as a gateway does: ever later, with jitter, and as late as was asked."""
        backoff_s = RETRY_BASE_S * 2 ** min(delivery.tries, 10) * random.uniform(0.5, 1.0)
        delivery.tries += 1
        delivery.due_at = time.monotonic() + min(RETRY_MAX_S, max(backoff_s, asked_for_s))
        if delivery.due_at < delivery.give_up_at:
            heapq.heappush(self._later, delivery)
        else:
            self._note(f"{delivery.happening.event_id} was given up after {delivery.tries} tries: {reason}")

    def _note(self, example: str) -> None:
        if len(self.report.examples) < EXAMPLES_MAX:
            self.report.examples.append(example)


def _members(answer: wire.Answer) -> dict[str, Any]:
    try:
        document = json.loads(answer.body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _shown(answer: wire.Answer) -> str:
    return f"{answer.status} {answer.body[:200]!r}"


def _quantile(ordered: list[float], part: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 2) if ordered else 0.0
