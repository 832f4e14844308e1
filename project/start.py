"""The start path of `make run`: database, tables, recovery, the demo, then the server in this process's place.

Where messages are to be sent, a relay runs beside it (relay_keeper.py).

The first start and one after a crash are the same. All of it is one process, because after a crash it is seconds
that count, and loading Django again for each step would take most of them.

After a crash: every step can be done again, and the next start does.
"""

import os
import subprocess
import sys

import django
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import DatabaseError

from project import pools
from project.embedded_home import StartFailed


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    try:
        _prepare()
    except (ImproperlyConfigured, StartFailed, DatabaseError) as failure:
        sys.exit(str(failure).strip())
    finally:
        pools.close()
        sys.stdout.flush()
    if settings.PAYMENTS_OUTBOX:
        subprocess.Popen([sys.executable, "-m", "project.relay_keeper", str(os.getpid())])
    os.execv(sys.executable, [sys.executable, "-m", "gunicorn"])  # noqa: S606


def _prepare() -> None:
    if settings.EMBEDDED_POSTGRESQL:
        settings.EMBEDDED_POSTGRESQL.start(tell=_tell)
    django.setup()
    from payments import destinations, recovery

    try:
        destinations.configured()
    except destinations.Misconfigured as problem:
        raise ImproperlyConfigured(str(problem)) from problem
    recovery.wait_for_database(recovery.DATABASE_WAIT_S)
    if _run("migrate", "--check", "--verbosity", "0") and _migrate():
        sys.exit(2)
    # 1: an invariant is broken. The service starts, deliveries are answered 503, staff can look.
    if _run("recover") > 1:
        sys.exit(2)
    if settings.DEBUG and _run("seed_demo"):
        sys.exit(2)


def _migrate() -> int:
    # In a process of its own, whose statements may take as long as a migration does.
    return subprocess.run([sys.executable, "manage.py", "migrate", "--verbosity", "0"], check=False).returncode


def _run(*command: str) -> int:
    """Run a management command; return its exit status."""
    try:
        call_command(*command)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
