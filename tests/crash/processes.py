"""Processes as a crash test sees them: who is whose child, and signals that reach exactly those."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Value = TypeVar("Value")

POLL_S = 0.01


def list_children(pid: int) -> list[int]:
    """Return the process ids of a process's children, without those that are dead and not yet reaped."""
    said = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in said.splitlines()]
    return sorted(int(child) for child, parent, state in rows if int(parent) == pid and "Z" not in state)


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    """Send a signal to each process that still is there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def is_gone(pid: int) -> bool:
    """Say whether a process is dead, reaped or not."""
    said = subprocess.run(["ps", "-p", str(pid), "-o", "stat="], capture_output=True, text=True, check=False).stdout
    return not said.strip() or said.strip().startswith("Z")


@contextlib.contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Yield a list that has the seconds the block took, once it has ended."""
    seconds: list[float] = []
    began_at = time.monotonic()
    yield seconds
    seconds.append(time.monotonic() - began_at)


def wait_until(
    what: str, condition: Callable[[], Value], *, within_s: float, explain: Callable[[], str] = str
) -> Value:
    """Return what the condition returns as soon as that is true; fail, saying what was waited for, when it is late."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}. {explain()}")
        time.sleep(POLL_S)
    return value
