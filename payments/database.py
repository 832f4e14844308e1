"""The database connection whose waits end.

A thread holds a connection only inside `connected()`, and only while it holds a permit that stands for one. Server-side
timeouts can't help against a server that answers nothing at all, so every wait for it also ends at the client's
deadline. Importing this opens nothing: connections must not exist before the web server forks.

# Note [Unknown commits]
A transaction is tried again only while no COMMIT was sent. If the connection is lost at COMMIT, nobody knows whether it
happened: give up, and let whoever asks again learn the truth from what is stored.

After a crash: the server ends our sessions by itself (client_connection_check_interval, idle_in_transaction…).
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeVar

import psycopg
from django.db import DatabaseError, InterfaceError, connection, transaction

logger = logging.getLogger(__name__)


class DeadlinePassed(psycopg.OperationalError):
    """The database did not answer before the deadline. Whether the statement had an effect is not known."""


TRIES_MAX: Final = 4  # of one transaction, when it lost a deadlock or its connection before COMMIT
TRY_AGAIN: Final = ("40001", "40P01")  # serialization failure, deadlock

Result = TypeVar("Result")

REASONS: Final = {
    "40001": "serialization",
    "40P01": "deadlock",
    "55P03": "lock_timeout",
    "57014": "statement_timeout",
}  # SQLSTATE -> how a failed transaction is counted

_observe_failure: Callable[[str, bool], None] | None = None
_local = threading.local()  # deadline: monotonic seconds, for this thread's waits


class TransactionFailed(Exception):
    """The transaction is not committed, or nobody knows, and it is useless or unsafe to try again."""


class BoundedConnection(psycopg.Connection[Any]):
    """A psycopg connection whose every wait ends at the deadline of the thread that waits, if it has one."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        deadline = getattr(_local, "deadline", None)
        if deadline is None:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(_until(gen, deadline), *args, **kwargs)
        except DeadlinePassed:
            # What the server sends later must not be taken for the answer to something else.
            self.pgconn.finish()
            raise


def _until(gen: Generator[Any, Any, Any], deadline: float) -> Generator[Any, Any, Any]:
    # psycopg wakes up every 0.1 s without anything ready; that is when there is time to look at the clock.
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > deadline:
                raise DeadlinePassed("the database did not answer in time")
            state = gen.send(ready)
    except StopIteration as done:
        return done.value


@contextmanager
def connected(deadline: float | None = None) -> Iterator[None]:
    """Hold a connection of the pool, every wait ending at the deadline (monotonic); give it back on leaving."""
    _local.deadline = deadline
    try:
        connection.ensure_connection()
        yield
    finally:
        _local.deadline = None
        release()


def release() -> None:
    """Give this thread's connection back to the pool, else it would be held until the request's end."""
    if not connection.in_atomic_block:
        connection.close()


def drop_if_lost() -> bool:
    """Say whether this thread's connection is broken; if so, drop it, so that the next statement gets a new one."""
    raw = connection.connection
    if raw is not None and not raw.closed:
        return False
    connection.close()
    return True


def arrays(rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the rows' columns as array literals, for `FROM unnest(%s::bigint[], %s::text[], …)`.

    psycopg's own dumper of lists is Python that looks at each element with regular expressions: 40 % of a settlement's
    time in this process, where this takes 8 %. Elements: None, str, bytes, int, bool and aware datetime.
    https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
    """
    return [array(column) for column in zip(*rows, strict=True)]


def array(values: Iterable[object]) -> str:
    """Return the values as one array literal."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return '"\\\\x' + value.hex() + '"'
    if isinstance(value, datetime):
        return f'"{value.isoformat()}"'
    return str(value)


def set_lock_timeout(milliseconds: int) -> None:
    """Wait less for locks than the session does, until the end of this transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [str(milliseconds)])


def lift_statement_timeout() -> None:
    """Let statements take as long as they need until the end of this transaction, where no delivery waits for it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', '0', true)")


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE behind an error: https://www.postgresql.org/docs/current/errcodes-appendix.html"""
    cause = error.__cause__ if error.__cause__ is not None else error
    state: str | None = getattr(cause, "sqlstate", None)
    return state


def set_failure_observer(observe: Callable[[str, bool], None] | None) -> None:
    """Call `observe(reason, is it tried again)` after every failed try of a transaction."""
    global _observe_failure
    _observe_failure = observe


def _tell_failure(error: BaseException, *, is_lost: bool, is_retried: bool) -> None:
    if _observe_failure is not None:
        reason = REASONS.get(sqlstate(error) or "", "other")
        _observe_failure("connection_lost" if is_lost else reason, is_retried)


def _unless_lost(work: Callable[[], Result], raw: Any) -> Result:
    try:
        return work()
    except (DatabaseError, InterfaceError):
        if raw.closed:
            connection.close()  # or Django would connect anew only to roll back
        raise


def in_transaction(work: Callable[[], Result], deadline: float) -> Result:
    """Run the work in one transaction, again where that is safe; return its result after COMMIT.

    Raises TransactionFailed where it is useless or unsafe to go on, or what made the transaction fail.
    """
    for attempt in range(1, TRIES_MAX + 1):
        is_committing = False
        try:
            connection.ensure_connection()
        except (DatabaseError, InterfaceError) as error:
            raise TransactionFailed from error
        raw = connection.connection
        try:
            with transaction.atomic(durable=True):
                result = _unless_lost(work, raw)
                is_committing = True  # Note [Unknown commits]
            return result
        except (DatabaseError, InterfaceError) as error:
            is_lost = raw.closed
            is_last = attempt == TRIES_MAX or time.monotonic() > deadline
            is_again = (is_lost or sqlstate(error) in TRY_AGAIN) and not is_committing and not is_last
            _tell_failure(error, is_lost=is_lost, is_retried=is_again)
            if is_lost and not is_again:
                raise TransactionFailed from error
            if not is_again:
                raise
            logger.info("transaction_retried", extra={"attempt": attempt, "error": repr(error)})
            time.sleep(random.uniform(0, 0.01 * attempt))
    raise AssertionError("Bug: the last try neither returned nor raised")
