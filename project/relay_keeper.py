"""Keeps a relay of the outbox beside the server of `make run`: another when it dies, none when the server is gone.

In production a process manager does that for `manage.py relay_outbox`. Here all ends with the server, whose process was
start.py's; so keeper and relay each look whether their parent still lives.

After a crash: whichever of server, keeper and relay is killed, in POLL_S seconds no relay is left without a keeper, and
no keeper without a server. A relay's own death costs nothing (relay.py).
"""

import os
import signal
import sys
import threading
import time
from typing import Final, NoReturn

from django.core.management import execute_from_command_line

POLL_S: Final = 0.5
PAUSE_S: Final = 1.0  # before another relay: one that can't run must not keep a core busy


def main(server: int) -> None:
    """Keep a relay for the server, our parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a Ctrl-C is for all of us, and there is nothing to say
    keeper = os.getpid()
    while os.getppid() == server:
        relay = os.fork()
        if relay == 0:
            _run_relay(keeper)
        if (status := _wait(relay, server)) is not None:
            sys.stderr.write(f"the relay ended ({status}), another one starts\n")
            time.sleep(PAUSE_S)


def _run_relay(keeper: int) -> NoReturn:
    threading.Thread(target=_end_without, args=(keeper,), daemon=True).start()
    execute_from_command_line(["manage.py", "relay_outbox"])
    raise AssertionError("Bug: a command ends with its status")


def _wait(relay: int, server: int) -> int | None:
    """Return what the relay ended with, negative for a signal; None when the server is gone."""
    while os.getppid() == server:
        pid, status = os.waitpid(relay, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_S)
    return None


def _end_without(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
