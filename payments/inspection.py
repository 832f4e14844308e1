"""Who holds what now, told to whoever asks from outside: `manage.py limits`.

One thread of a process that has limits waits at a Unix socket named after the process's id; who connects is sent what
limits.describe() says, as JSON. That takes no permit, no connection and no other thread, so it is told while all of
them are stuck, and costs nothing while nobody asks. Only the user that the process runs as can connect.

After a crash: the socket's file stays, until another process starts or somebody asks.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from django.conf import settings

from payments import limits, runtime_folder

logger = logging.getLogger(__name__)

ANSWER_S: Final = 2.0  # for one answer, on either side; it takes some milliseconds
WAKE_S: Final = 0.5  # how late a thread may notice that its time is up
PAUSE_S: Final = 1.0  # after a failure


@dataclass(slots=True)
class Asked:
    """What the living processes said, and the ids of those that said nothing in time: frozen, or out of memory."""

    processes: list[dict[str, Any]] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)


def start(role: str) -> None:
    """Let this process be asked. Once, from its main thread and before it works: the working directory changes briefly.

    A socket's path is at most 108 bytes long, 104 on macOS, and a folder's may be longer: hence a name alone.
    """
    name = str(os.getpid())
    try:
        folder = _folder()
        runtime_folder.make(settings.RUNTIME_DIR)
        folder.mkdir(exist_ok=True)
        _remove_dead(folder)
        listener = socket.socket(socket.AF_UNIX)
        with contextlib.chdir(folder):
            Path(name).unlink(missing_ok=True)  # of a dead process that had the same id
            listener.bind(name)
        listener.listen()
        threading.Thread(target=_answer_forever, args=(listener, role), name="inspection", daemon=True).start()
    except (OSError, RuntimeError):  # no room, no thread: nothing that a delivery needs
        logger.exception("inspection_unavailable")


def ask_all() -> Asked:
    """Ask all living processes of this DATA_DIR that can be asked."""
    asked, folder = Asked(), _folder()
    for pid in _remove_dead(folder):
        try:
            asked.processes.append(_ask(folder, pid))
        except (ConnectionRefusedError, FileNotFoundError):
            continue  # it died this moment, or another program has its id by now
        except (OSError, ValueError):
            asked.silent.append(pid)
    return asked


def describe(role: str) -> dict[str, Any]:
    """Return what this process says when it is asked."""
    told = [one | {"held_s_max": _held_s_max(one["limit"])} for one in limits.describe()]
    return {"pid": os.getpid(), "role": role, "limits": told}


def _held_s_max(limit: str) -> float:
    # Whatever the database does, deliveries and pages end by their deadline. A message's try has one of its own.
    name = "PAYMENTS_OUTBOX_TIMEOUT_MS" if limit == "relay" else "PAYMENTS_DEADLINE_MS"
    return float(getattr(settings, name)) / 1000 + WAKE_S


def _folder() -> Path:
    return Path(settings.RUNTIME_DIR) / "limits"


def _remove_dead(folder: Path) -> list[int]:
    """Remove what dead processes left; return the ids of the others, sorted."""
    living = []
    for path in folder.glob("[0-9]*"):
        try:
            os.kill(int(path.name), 0)
        except (ProcessLookupError, PermissionError):  # another user's process has its id by now
            path.unlink(missing_ok=True)
        else:
            living.append(int(path.name))
    return sorted(living)


def _ask(folder: Path, pid: int) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(ANSWER_S)
        with contextlib.chdir(folder):
            caller.connect(str(pid))
        said = b""
        while data := caller.recv(65536):
            said += data
    answer: dict[str, Any] = json.loads(said)
    return answer


def _answer_forever(listener: socket.socket, role: str) -> None:
    while True:
        try:
            caller, _ = listener.accept()
            with caller:
                caller.settimeout(ANSWER_S)
                caller.sendall(json.dumps(describe(role)).encode())
        except Exception:
            logger.exception("inspection_failed")
            time.sleep(PAUSE_S)
