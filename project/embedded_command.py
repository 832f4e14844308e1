"""The command line of the embedded PostgreSQL: arguments -> one call -> exit status."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from project.embedded import Server
from project.embedded_home import StartFailed

USAGE = """\
usage: python -m project.embedded COMMAND     (does nothing where DATABASE_URL is set)
  start         start the server and wait until it answers
  stop          end the server, keep its data
  status        tell whether it runs (exit status 0) or not (1)
  url           print its DATABASE_URL
  remove        end the server and delete its data
  run PROGRAM   start it for a program, and remove it when the last such program has ended
"""


def main(arguments: Sequence[str]) -> int:
    """Serve the command line, for the server that the settings name. Returns the exit status."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    try:
        return _serve(arguments, settings.EMBEDDED_POSTGRESQL)
    except (StartFailed, ImproperlyConfigured) as failure:
        _tell(str(failure))
        return 2


def _serve(arguments: Sequence[str], server: Server | None) -> int:
    match arguments:
        case ["run", *program] if program:
            with server.borrowed(tell=_tell) if server else contextlib.nullcontext():
                return _run_to_its_end(program)
        case ["start" | "stop" | "status" | "url" | "remove" as command]:
            return _obey(command, server) if server else 0
        case _:
            _tell(USAGE)
            return 2


def _obey(command: str, server: Server) -> int:
    match command:
        case "start":
            server.start(tell=_tell)
        case "stop":
            server.stop()
        case "remove":
            server.remove()
        case "url":
            sys.stdout.write(f"{server.url}\n")
        case "status" if not server.is_alive():
            return 1
    return 0


def _run_to_its_end(program: Sequence[str]) -> int:
    child = subprocess.Popen(program)
    signal.signal(signal.SIGINT, lambda *_: None)  # a Ctrl-C reaches the child as well, whose end we wait for
    return child.wait()


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
