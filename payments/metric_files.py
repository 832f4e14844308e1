"""The files in which prometheus-client keeps each process's numbers: what is left of the dead, and one reader's view.

A process's files would stay after its death, or its counts would be lost: a worker that dies every second would fill
the disk and make each scrape slower. So a dead process's counters are added to one file of all dead ones, and its own
are deleted. A scrape must see neither both nor none of them: it holds a shared lock, who moves them an exclusive one.
Nobody waits for it long: the master must not, so it moves them at the next death instead.

Must not: import the application. The server's master imports this.
After a crash: the next master begins with an empty folder, and counters begin anew.
"""

import contextlib
import fcntl
import struct
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, Final

from prometheus_client import multiprocess
from prometheus_client.mmap_dict import MmapedDict

KINDS: Final = ("counter", "histogram")  # what adds up; a live gauge of a dead process is of no use
DEAD: Final = "dead"  # stands for the process id in the file of all dead ones
LOCK_TRIES: Final = 50  # of a reader, a millisecond apart; moving the counters takes about one

_unmoved: set[int] = set()


def bury(folder: Path, pid: int, *, living: Collection[int]) -> None:
    """Take a dead process's gauges away; keep its counts, and those of earlier ones that a reader was in the way of.

    living: processes that have files, one of which might have got a dead one's id.
    """
    multiprocess.mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]
    _unmoved.add(pid)
    with (folder / "lock").open("ab") as lock:
        if not _try_lock(lock, fcntl.LOCK_EX):
            return
        for dead in sorted(_unmoved.difference(living)):
            for kind in KINDS:
                _move(folder / f"{kind}_{dead}.db", folder / f"{kind}_{DEAD}.db")
        _unmoved.clear()


def _move(source: Path, target: Path) -> None:
    if not source.exists():
        return
    # Killed before it wrote a first number, or while it wrote one: what can be read counts.
    dead: Any = MmapedDict(str(target))  # type: ignore[no-untyped-call]
    with contextlib.closing(dead), contextlib.suppress(struct.error, RuntimeError):
        for key, value, timestamp, _ in MmapedDict.read_all_values_from_file(str(source)):  # type: ignore[no-untyped-call]
            dead.write_value(key, dead.read_value(key)[0] + value, timestamp)
    source.unlink()


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Keep dead processes' counts where they are while they are read."""
    with (folder / "lock").open("ab") as lock:
        for _ in range(LOCK_TRIES):
            if _try_lock(lock, fcntl.LOCK_SH):
                break
            time.sleep(0.001)
        yield


def _try_lock(lock: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
