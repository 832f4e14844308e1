"""A gateway of the crash tests: delivers events it can tell apart, remembers first answers, retries until it has one.

It is small on purpose, so that a test can say exactly which deliveries were under way when something died. What it
expects of the ledger it adds up by itself.
"""

import http.client
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tests import deliveries
from tests.crash.servers import App

PATIENCE_S: Final = 10.0  # of the tightest gateway
_numbers = itertools.count(1)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Event:
    """One event, or another content under its id."""

    event_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What a gateway can tell of an answer, but for how long it took."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[str, ...]  # names, sorted
    retry_after: str | None = field(default=None, compare=False)
    seconds: float = field(default=0.0, compare=False)

    @property
    def is_final(self) -> bool:
        return self.status < 500


def new_name(prefix: str) -> str:
    """Return a name that no other test of this run uses."""
    return f"{prefix}-{time.time_ns():x}-{next(_numbers)}"


def event(event_type: str, *, event_id: str | None = None, **data: str | int) -> Event:
    body = deliveries.demo_body(event_type, {"currency": "IDR", **data})
    return Event(event_id or new_name("evt"), body)


def capture(
    *, amount: int, account: str = "merchant-1", payment: str | None = None, event_id: str | None = None
) -> Event:
    """Return a capture of a payment, a new one unless named."""
    name = payment or new_name("pay")
    return event("payment.captured", event_id=event_id, payment=name, account=account, amount=amount)


def captures(count: int, *, amount: int = 100, account: str = "merchant-1") -> list[Event]:
    return [capture(amount=amount, account=account) for _ in range(count)]


def send(app: App, told: Event, *, patience_s: float = PATIENCE_S) -> Answer | None:
    """Deliver once, signed now, on a connection of its own; None: no answer came."""
    signed = deliveries.demo(told.body, event_id=told.event_id)
    connection = http.client.HTTPConnection("127.0.0.1", app.port, timeout=patience_s)
    began_at = time.monotonic()
    try:
        connection.request(
            "POST", "/webhooks/demo/", signed.body, {"Content-Type": "application/json", **signed.headers}
        )
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return Answer(
        status=answer.status,
        content_type=answer.headers.get("Content-Type", ""),
        body=body,
        headers=tuple(sorted(name.lower() for name in answer.headers)),
        retry_after=answer.headers.get("Retry-After"),
        seconds=time.monotonic() - began_at,
    )


class Gateway:
    """Delivers to one app and remembers: `answered` holds every event's first final answer."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.told: list[Event] = []
        self.answered: dict[Event, Answer] = {}
        self.tries: Counter[str] = Counter()  # status, or "none" for no answer
        self.slowest_s = 0.0
        self._lock = threading.Lock()

    def deliver(self, told: Event) -> Answer | None:
        """Deliver once; an answer that differs from the event's first one fails."""
        answer = send(self.app, told)
        with self._lock:
            self.told.append(told)
            self.tries["none" if answer is None else str(answer.status)] += 1
            self.slowest_s = max(self.slowest_s, answer.seconds if answer else PATIENCE_S)
            if answer is None or not answer.is_final:
                return answer
            first = self.answered.setdefault(told, answer)
        assert answer == first, f"{told.event_id} was first answered {first}, then {answer}"
        return answer

    def deliver_at_once(self, told: Sequence[Event]) -> list[Answer | None]:
        """Deliver all at the same instant, each on its own connection; return when each is answered or cut off."""
        barrier = threading.Barrier(len(told))

        def deliver(one: Event) -> Answer | None:
            barrier.wait(timeout=10)
            return self.deliver(one)

        with ThreadPoolExecutor(len(told)) as pool:
            return list(pool.map(deliver, told))

    @property
    def unanswered(self) -> list[Event]:
        return sorted(set(self.told) - self.answered.keys(), key=lambda one: (one.event_id, one.body))

    def retry(self, *, within_s: float = 30.0) -> None:
        """Deliver again what has no final answer, as gateways do, until all have one."""
        deadline = time.monotonic() + within_s
        while left := self.unanswered:
            assert time.monotonic() < deadline, f"not acknowledged within {within_s} s: {left}; {self.tries}"
            for told in left:
                if (answer := self.deliver(told)) is None or not answer.is_final:
                    time.sleep(0.1)

    def deliver_all_again(self) -> None:
        """Deliver everything once more, at once; each answer must be the first one, byte for byte."""
        everything = list(dict.fromkeys(self.told))
        for begin in range(0, len(everything), 16):
            self.deliver_at_once(everything[begin : begin + 16])
        assert not self.unanswered

    def acknowledged(self) -> dict[str, bytes]:
        """Return {event id: body} of what was answered with 2xx until now."""
        with self._lock:
            return {told.event_id: answer.body for told, answer in self.answered.items() if answer.status < 300}


@contextmanager
def in_background(work: Callable[[], Result]) -> Iterator[Future[Result]]:
    """Do something on another thread while the block runs; it is waited for."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


class Load:
    """Deliveries of new captures, one after the other on each of some threads, until the end of the `with`.

    Each acknowledgement's time is kept, to see from outside when service was interrupted.
    """

    def __init__(self, app: App, *, threads: int = 4, account: str = "merchant-2", pause_s: float = 0.01) -> None:
        self.gateway = Gateway(app)
        self.acknowledged: list[tuple[float, float]] = []  # when each of those began and ended, monotonic
        self.account, self._pause_s = account, pause_s
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        self.failures: list[BaseException] = []

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.failures, self.failures

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began_at = time.monotonic()
                answer = self.gateway.deliver(capture(amount=100, account=self.account))
                is_fine = answer is not None and answer.status == 200
                if is_fine:
                    self.acknowledged.append((began_at, time.monotonic()))
                self._stop.wait(self._pause_s if is_fine else 0.05)
        except BaseException as failure:  # noqa: BLE001 (shown at the end of the `with`)
            self.failures.append(failure)

    def longest_pause_s(self, begin: float, end: float) -> float:
        """Return the longest time between two acknowledgements, from and to these moments (monotonic)."""
        moments = [begin, *sorted(at for _, at in list(self.acknowledged) if begin < at < end), end]
        return max(later - earlier for earlier, later in itertools.pairwise(moments))

    def first_acknowledged_after(self, moment: float, *, within_s: float) -> float:
        """Wait until a delivery begun after the moment (monotonic) is acknowledged; return the seconds from it."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if later := [ended_at for began_at, ended_at in list(self.acknowledged) if began_at > moment]:
                return min(later) - moment
            time.sleep(0.01)
        raise AssertionError(f"no 2xx within {within_s} s; {self.gateway.tries}; {self.gateway.app.read_log()[-2000:]}")


def total_of(told: Iterable[Event]) -> int:
    """Return how many events there are among these, contents of one id counted once."""
    return len({one.event_id for one in told})
