"""Databases, servers and load, each of which ends with the run.

After a crash: databases named sekali_bench_… may be left, which the next run replaces, and servers on ports that
nobody else knows.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from payments.simulation import wire

ROOT: Final = Path(__file__).resolve().parent.parent
START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 10.0


class CouldNotRun(Exception):
    """The benchmark, or one row of it, can't be measured here; the text says why."""


# Databases --------------------------------------------------------------------------------------------------


def database_url(name: str) -> str:
    """Return the URL of a database beside the one that DATABASE_URL names."""
    return urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))


def connect(name: str) -> psycopg.Connection[Any]:
    return psycopg.connect(database_url(name), autocommit=True)


def make_database(name: str) -> None:
    """Make an empty database, in place of an old one of that name."""
    drop_database(name)
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def drop_database(name: str) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def durability() -> dict[str, str]:
    """Return the settings that make a COMMIT mean something. Raises CouldNotRun if one of them is off."""
    names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        values = {name: connection.execute(f"SHOW {name}").fetchall()[0][0] for name in names}
    for name in names[1:4]:
        if values[name] == "off":
            raise CouldNotRun(f"{name} is off: what is measured would not survive a crash")
    return values


def settle_disk() -> None:
    """Write to disk what earlier rows left to be written: it is not the next one's work."""
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        try:
            connection.execute("CHECKPOINT")
        except psycopg.errors.InsufficientPrivilege:
            time.sleep(1.0)


# Servers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """A gunicorn of this benchmark."""

    port: int
    log: Path

    def target(self, path: str) -> wire.Target:
        host = f"127.0.0.1:{self.port}"
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        return wire.Target("127.0.0.1", self.port, False, head)

    def log_end(self) -> str:
        return f"its log ends: {self.log.read_text(errors='replace')[-2000:].strip()}"


@contextmanager
def served(
    *,
    app: str | None,
    environment: Mapping[str, str],
    log: Path,
    python: str = sys.executable,
    options: Sequence[str] = (),
) -> Iterator[Server]:
    """Serve with gunicorn while the block runs. app: None for the product itself."""
    port = _free_port()
    command = [python, "-m", "gunicorn", *options, *([app] if app else [])]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment, "PORT": str(port)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, port, log)
        yield Server(port, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise CouldNotRun(f"a server did not get ready; {Server(port, log).log_end()}")


def run(*command: str, environment: Mapping[str, str]) -> str:
    """Run a command in the checkout and return what it wrote. Raises CouldNotRun if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CouldNotRun(f"{' '.join(command)}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


# Load -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """What a row did in one round. requests were answered; failed ones were not, or not with 2xx."""

    rate: float
    requests: int = 0
    failed: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None


def load(
    server: Server, requests: Sequence[bytes], *, connections: int, seconds: int, again: bool, folder: Path
) -> Measured:
    """Send the requests, which were signed beforehand, for some seconds or until there are no more.

    again: begin anew after the last one. With wrk where the machine has it, else with our own client.
    """
    if (program := shutil.which("wrk")) is None:
        return asyncio.run(_load(server, requests, connections=connections, seconds=seconds, again=again))
    pool = folder / "requests"
    pool.write_bytes(b"\0".join(requests))
    script = str(Path(__file__).with_name("wrk.lua"))
    # One thread of wrk: the other core is not free for a second one.
    command = [program, "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", script]
    command += [f"http://127.0.0.1:{server.port}", "--", str(pool), "again" if again else "once"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last_line = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not last_line.startswith("{"):
        raise CouldNotRun(f"{done.stdout[-500:]}{done.stderr[-500:]}\n{server.log_end()}")
    return _whole(Measured(**json.loads(last_line)), server)


def _whole(measured: Measured, server: Server) -> Measured:
    if measured.rate == 0:
        raise CouldNotRun(f"nothing was answered with 2xx; {server.log_end()}")
    return measured


async def _load(server: Server, requests: Sequence[bytes], *, connections: int, seconds: int, again: bool) -> Measured:
    pending = iter(requests)
    latencies_ms: list[float] = []
    failed = 0
    began_at = time.perf_counter()

    async def work() -> None:
        nonlocal pending, failed
        connection = await wire.Connection.open(server.target("/"))
        while time.perf_counter() - began_at < seconds:
            if (request := next(pending, None)) is None:
                if not again:
                    break
                pending = iter(requests)
                continue
            sent_at = time.perf_counter()
            answer = await connection.exchange(request)
            latencies_ms.append((time.perf_counter() - sent_at) * 1000)
            failed += answer.status >= 300
        connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(work())
    elapsed = time.perf_counter() - began_at
    ordered = sorted(latencies_ms)
    measured = Measured(
        rate=(len(ordered) - failed) / elapsed,
        requests=len(ordered),
        failed=failed,
        p50_ms=ordered[len(ordered) // 2],
        p99_ms=ordered[len(ordered) * 99 // 100],
    )
    return _whole(measured, server)


def progress(line: str) -> None:
    """Show on a terminal what is being done."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()
