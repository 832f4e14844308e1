"""Sends the outbox: takes what is due, sends it from threads, records how it went. Any number of relays may run.

One thread has the database and talks to it in short statements; a thread for each try under way has only its message.
Each destination has a lane of its own: so many tries at once and not more, so that a slow or broken receiver keeps
nobody waiting but itself. A lane whose receiver can't be reached, or asks for time, rests.

After a crash: nothing here was worth keeping. What was under way is due again when its lease ends, and goes out with
the same id (outbox.py, Note [Leases]). A message that failed tries_max times is dead, and a finding says so; being
killed doesn't count as a failure.
"""

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NoReturn

from django.conf import settings
from django.db import InterfaceError, OperationalError

from payments import database, failpoints, limits, outbox
from payments.destinations import Destination, Tried
from payments.outbox import Failure, Message, Recorded

logger = logging.getLogger(__name__)

LANE_ROOM_MAX: Final = 8  # tries of one destination under way in one relay: a receiver is somebody's server
POLL_S: Final = 0.5  # how late a new message is seen by an idle relay
LEASE_S: Final = 3.0  # how long a message of a killed relay waits for another one
RENEW_AFTER_S: Final = 1.0  # a lease's age, at which the next round renews it
DATABASE_S: Final = 5.0  # for the statements of one round
REST_MAX_S: Final = 30.0  # of a lane; then one message is tried, to see whether its receiver is back
OUTAGE_PAUSE_S: Final = 1.0  # between two looks for a database that is away


class TooManyDestinations(Exception):
    """There are more destinations than tries that may be under way at once."""


@dataclass(slots=True)
class Lane:
    """One destination, as this relay sees it."""

    destination: Destination
    room_max: int
    rests_when_unreachable: bool = True
    under_way: int = 0
    rests: int = 0  # in a row: how often it turned out to be unavailable
    rests_until: float = 0.0  # monotonic

    def room(self, now: float) -> int:
        """How many further messages may be taken for it. After a rest, one has to get through first."""
        if now < self.rests_until:
            return 0
        return max(0, (1 if self.rests else self.room_max) - self.under_way)

    def note(self, tried: Tried, now: float) -> None:
        """Learn from a try. A receiver's refusal of one message says nothing about the others."""
        has_asked = tried.retry_after_s is not None
        if not tried.is_unavailable:
            self.rests, self.rests_until = 0, 0.0
        elif now >= self.rests_until and (has_asked or self.rests_when_unreachable):
            # Others that were under way at the same time tell nothing new, and change nothing.
            self.rests += 1
            asked_s = tried.retry_after_s or 0.0
            self.rests_until = now + min(REST_MAX_S, max(asked_s, backoff_s(self.rests)))


@dataclass(slots=True)
class Counts:
    """What a relay did. left: due, and not tried because its receiver had asked for time."""

    sent: int = 0
    failed: int = 0
    dead: int = 0
    left: int = 0

    def add(self, recorded: Recorded) -> None:
        self.sent += recorded.sent
        self.failed += recorded.failed
        self.dead += recorded.dead


@dataclass(slots=True)
class _Ended:
    """Tries that ended and aren't recorded yet."""

    sent: list[Message] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)


class Relay:
    """Call run() or run_once(), in one thread. on_progress is called after each round that recorded something."""

    def __init__(
        self, destinations: Mapping[str, Destination], *, on_progress: Callable[[Counts], None] = lambda counts: None
    ) -> None:
        permits = limits.get("relay").permits
        if len(destinations) > permits:
            raise TooManyDestinations(f"{len(destinations)} destinations, and at most {permits} tries at once")
        room_max = min(LANE_ROOM_MAX, permits // max(1, len(destinations)))
        self._lanes = {name: Lane(one, room_max) for name, one in destinations.items()}
        self._timeout_s = settings.PAYMENTS_OUTBOX_TIMEOUT_MS / 1000
        self._on_progress = on_progress
        self._ended: queue.SimpleQueue[tuple[Lane, Message, Tried]] = queue.SimpleQueue()
        self._unrecorded = _Ended()
        self._under_way: dict[Message, float] = {}  # -> when its lease was given, monotonic
        self.counts = Counts()

    def run(self) -> NoReturn:
        """Send what is due, for ever; also through outages of the database."""
        while True:
            try:
                self._round()
            except (OperationalError, InterfaceError) as error:
                logger.warning("relay_has_no_database", extra={"error": repr(error)})
                time.sleep(OUTAGE_PAUSE_S)
                continue
            self._collect(wait_s=POLL_S)

    def run_once(self) -> Counts:
        """Try all that is due now, each message once, and return how it went.

        Only a receiver that asks for time is left alone. Raises the database's errors.
        """
        for lane in self._lanes.values():
            lane.rests_when_unreachable = False
        with database.connected(time.monotonic() + DATABASE_S):
            due_by = outbox.database_now()
        while self._round(due_by=due_by) or self._under_way:
            self._collect(wait_s=POLL_S)
        with database.connected(time.monotonic() + DATABASE_S):
            self.counts.left = outbox.count_due(self._lanes.keys(), due_by=due_by)
        return self.counts

    # One round of the thread that has the database

    def _round(self, *, due_by: datetime | None = None) -> int:
        """Record what ended, take what is due and start sending it; return how many were taken."""
        began_at = time.monotonic()
        with database.connected(began_at + DATABASE_S):
            self._record()
            self._renew(began_at)  # before taking: after an outage, what is still under way is to stay ours
            rooms = {name: lane.room(began_at) for name, lane in self._lanes.items()}
            taken = outbox.take(rooms, lease_s=LEASE_S, due_by=due_by)
        self._under_way |= dict.fromkeys(taken, began_at)
        failpoints.hit("relay_taken")
        for message in taken:
            self._start(message, deadline=began_at + self._timeout_s)
        return len(taken)

    def _record(self) -> None:
        ended = self._unrecorded
        if not (ended.sent or ended.failed):
            return
        recorded = outbox.record(ended.sent, ended.failed, tries_max=settings.PAYMENTS_OUTBOX_TRIES_MAX)
        self._unrecorded = _Ended()
        failpoints.hit("relay_recorded")
        self.counts.add(recorded)
        self._on_progress(self.counts)

    def _renew(self, now: float) -> None:
        aging = [message for message, leased_at in self._under_way.items() if now - leased_at > RENEW_AFTER_S]
        outbox.renew(aging, lease_s=LEASE_S)
        self._under_way |= dict.fromkeys(aging, now)

    def _collect(self, *, wait_s: float) -> None:
        """Wait for a try to end; take in all that have."""
        try:
            self._take_in(*self._ended.get(timeout=wait_s))
            while True:
                self._take_in(*self._ended.get_nowait())
        except queue.Empty:
            return

    def _take_in(self, lane: Lane, message: Message, tried: Tried) -> None:
        lane.under_way -= 1
        del self._under_way[message]
        lane.note(tried, time.monotonic())
        if tried.is_sent:
            self._unrecorded.sent.append(message)
            return
        delay_s = max(backoff_s(message.attempts + 1), min(tried.retry_after_s or 0.0, _backoff_max_s()))
        self._unrecorded.failed.append(Failure(message, tried.explanation, delay_s))
        if message.attempts + 1 >= settings.PAYMENTS_OUTBOX_TRIES_MAX:
            logger.error("message_given_up", extra={"key": message.key, "error": tried.error})
        else:
            logger.warning(
                "message_not_sent", extra={"key": message.key, "error": tried.error, "again_in_s": round(delay_s)}
            )

    # One try, in a thread of its own

    def _start(self, message: Message, *, deadline: float) -> None:
        lane = self._lanes[message.destination]
        lane.under_way += 1
        # A daemon: nothing waits for it when the process ends, its lease will.
        thread = threading.Thread(
            target=self._send, args=(lane, message, deadline), daemon=True, name=f"relay {message.destination}"
        )
        thread.start()

    def _send(self, lane: Lane, message: Message, deadline: float) -> None:
        try:
            with limits.get("relay"):
                tried = lane.destination.send(message, deadline=deadline)
            failpoints.hit("relay_sent")
        except Exception as error:  # a bug of ours must cost a try, not the lane's place
            logger.exception("relay_failed", extra={"key": message.key})
            tried = Tried(f"a failure of ours: {type(error).__name__}")
        self._ended.put((lane, message, tried))


def backoff_s(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row: doubled each time, capped, up to half off by luck."""
    first_s = settings.PAYMENTS_OUTBOX_BACKOFF_MS / 1000
    return random.uniform(0.5, 1.0) * min(_backoff_max_s(), first_s * 2.0 ** min(failures - 1, 32))


def _backoff_max_s() -> float:
    return float(settings.PAYMENTS_OUTBOX_BACKOFF_MAX_MS) / 1000
