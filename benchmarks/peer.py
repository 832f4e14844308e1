"""dj-stripe, served as its users serve it, beside the product on the same machine.

What is fair, and how it is done here:
- its webhook view verifies the signature, keeps the raw request (WebhookEventTrigger) and the event (Event), and
  calls a handler in the event's transaction; that credits one balance of 1,000 with one UPDATE
- no call to Stripe's API: its handlers that copy objects are taken out, account and key are known beforehand
- gunicorn with as many processes as ours, pooled connections, no middleware at all
- threads as few as it did best with here (of 4, 8 and 16)
It keeps no double entry, no answers and no conflicts; it does less for each event than the other rows.
"""

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from django.conf import settings

from benchmarks import machine, presigned
from benchmarks.machine import CouldNotRun, Server

REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")
SETTINGS: Final = "benchmarks.peer_site.settings"
THREADS: Final = 8


def prepare(stack: ExitStack, folder: Path, balances: int) -> tuple[Server, str]:
    """Install dj-stripe, make its database, serve it; return the server and the path of its webhook."""
    python = str(_environment() / "bin" / "python")
    name = "sekali_bench_peer"
    machine.make_database(name)
    stack.callback(machine.drop_database, name)
    environment = {"DATABASE_URL": machine.database_url(name), "DJANGO_SETTINGS_MODULE": SETTINGS}
    said = machine.run(
        python,
        "-m",
        "benchmarks.peer_site.prepare",
        presigned.PEER_SECRET,
        str(balances),
        environment=environment,
    )
    server = stack.enter_context(
        machine.served(
            app="django.core.wsgi:get_wsgi_application()",
            environment=environment,
            log=folder / "peer.log",
            python=python,
            options=["-c", "python:benchmarks.peer_site.gunicorn_conf", "--threads", str(THREADS)],
        )
    )
    return server, said.strip().rpartition("\n")[2]


def _environment() -> Path:
    """Return the peer's virtual environment, made if it isn't there, or was made from another list."""
    path = settings.DATA_DIR / "benchmark-peer"
    made = path / "made"
    wanted = REQUIREMENTS.read_text()
    if made.exists() and made.read_text() == wanted:
        return path
    shutil.rmtree(path, ignore_errors=True)
    pip = [str(path / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(path)], [*pip, "-r", str(REQUIREMENTS)]):
        done = subprocess.run(command, env=_plain(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise CouldNotRun(f"dj-stripe can't be installed: {done.stderr[-500:]}")
    made.write_text(wanted)
    return path


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
