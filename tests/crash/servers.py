"""Real servers to kill: a PostgreSQL of the tests' own, and the project's gunicorn on it.

Both are started as an operator starts them, and each of their processes can be killed or frozen by its id. fsync is on.
Nothing here knows what a delivery is.
"""

import atexit
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import psycopg

from payments import runtime_folder
from tests import deliveries
from tests.crash import other_versions, processes

CHECKOUT: Final = Path(__file__).parents[2]
START_S_MAX: Final = 30.0  # on a busy machine; a start takes some three seconds
APPLICATION_NAME: Final = "sekali"

Row = tuple[Any, ...]


class Postgres:
    """A PostgreSQL server on a data folder of its own, killed and started as often as a test likes."""

    def __init__(self, folder: Path, name: str = "postgres") -> None:
        self.folder = folder
        self.server = other_versions.locate(data_dir=folder, name=name)

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def whole_url(self) -> str:
        """The URL for an app that starts PostgreSQL too, where the project can: "" is for its own."""
        return self.url if other_versions.PROGRAMS else ""

    @property
    def socket_folder(self) -> Path:
        return self.server.home.socket_folder

    def start(self) -> None:
        """Return when it accepts connections; after a crash it replays its log first."""
        self.server.start()

    def remove(self) -> None:
        """End it and delete its data."""
        self.server.remove()

    # Looking into it

    def connect(self, *, user: str = "postgres") -> psycopg.Connection[Row]:
        """Return a new session, autocommit; postgres is the superuser, sekali the application's role."""
        return psycopg.connect(
            host=str(self.socket_folder), port=5432, user=user, dbname="sekali", autocommit=True, connect_timeout=5
        )

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Return the rows of one statement; [] where it returns none."""
        with self.connect() as connection:
            cursor = connection.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    def is_accepting(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    # Its processes

    @property
    def postmaster(self) -> int:
        return int((self.server.home.data / "postmaster.pid").read_text().split("\n", 1)[0])

    def list_backends(self) -> list[int]:
        """Return the processes of the application's sessions."""
        sql = "SELECT pid FROM pg_stat_activity WHERE application_name = %(name)s ORDER BY pid"
        return [row[0] for row in self.query(sql, {"name": APPLICATION_NAME})]

    def count_waiters(self) -> int:
        """Return how many of the application's sessions wait for a lock."""
        sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %(name)s AND wait_event_type = 'Lock'"
        return int(self.query(sql, {"name": APPLICATION_NAME})[0][0])

    def kill_backend(self, pid: int) -> None:
        """SIGKILL one session's process: PostgreSQL ends all others and recovers by itself."""
        processes.send(signal.SIGKILL, [pid])

    def kill_postmaster(self) -> None:
        """SIGKILL the postmaster alone; its children see it, some later than others."""
        processes.send(signal.SIGKILL, [self.postmaster])

    def kill_all(self) -> None:
        """SIGKILL the postmaster and each of its processes."""
        self._signal_all(signal.SIGKILL)

    def stop_immediately(self) -> None:
        """`pg_ctl stop -m immediate`: no checkpoint, no end of transactions; the next start recovers."""
        said = self.server.home.run("pg_ctl", "stop", "--pgdata", "data", "--mode", "immediate", "--timeout", "30")
        assert said.returncode == 0, said.stdout

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP everything: connections are accepted by the kernel, and nothing answers. SIGCONT at the end."""
        stopped = self._signal_all(signal.SIGSTOP)
        try:
            yield
        finally:
            processes.send(signal.SIGCONT, stopped)

    def _signal_all(self, number: signal.Signals) -> list[int]:
        postmaster = self.postmaster
        processes.send(signal.SIGSTOP, [postmaster])  # first, or it would start others meanwhile
        children = processes.list_children(postmaster)
        processes.send(number, [postmaster, *children])
        return [postmaster, *children]

    def copy(self, folder: Path, name: str) -> "Postgres":
        """Return a server that was never started, on a copy of the data folder as it is at one instant."""
        copied = Postgres(folder, name)
        copied.server.home.make()
        with self.frozen():
            subprocess.run(["cp", "-a", str(self.server.home.data), str(copied.server.home.data)], check=True)
        return copied


class App:
    """The project on a database: gunicorn in a process group of its own, and the commands."""

    def __init__(self, *, folder: Path, database_url: str, **settings: str) -> None:
        """database_url: "" names the embedded PostgreSQL in the folder, which `start` then starts too."""
        self.port = _free_port()
        self.log = folder / f"gunicorn-{self.port}.log"
        self.gunicorn: subprocess.Popen[bytes] | None = None
        self._started: list[int] = []  # process groups, killed at the end
        # What servers keep in memory would stay there until the machine's next boot.
        atexit.register(shutil.rmtree, runtime_folder.locate(folder), ignore_errors=True)
        secrets = {f"PAYMENTS_SECRETS_{name}": secret for name, secret in deliveries.SECRETS.items()}
        self.environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": os.environ.get("HOME", "/"),
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "ENV_FILE": os.devnull,
            "DEBUG": "1",
            "SECRET_KEY": "for-crash-tests-only-" * 3,
            "ADMIN_PASSWORD": "staff-of-the-tests",
            "DATA_DIR": str(folder),
            "DATABASE_URL": database_url,
            "PORT": str(self.port),
            "PYTHONWARNINGS": "ignore",
            **secrets,
            **settings,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    # Starting

    def start(self, **settings: str) -> None:
        """The ordinary start path, of a first start as of one after a crash: `make run` without its installing."""
        self._launch("-m", "project.start", path="/readyz", **settings)

    def serve(self, *, path: str = "/readyz", wsgi: str = "", **settings: str) -> None:
        """Gunicorn alone, without what comes before it; return when it answers 200 at the path.

        wsgi: another application than the project's.
        """
        self._launch("-m", "gunicorn", *([wsgi] if wsgi else []), path=path, **settings)

    def _launch(self, *arguments: str, path: str, **settings: str) -> None:
        started = self._spawn(*arguments, **settings)
        self.gunicorn = started
        processes.wait_until(
            f"{path} answers 200",
            # Workers that outlived another master answer too; this one's own must be there.
            lambda: (self.get(path)[0] == 200 and self.list_workers()) or not self.is_running,
            within_s=START_S_MAX,
            explain=lambda: f"{self.get(path)}; the log ends {self.read_log()[-3000:]}",
        )
        assert self.is_running, self.read_log()[-3000:]

    def _spawn(self, *arguments: str, **settings: str) -> subprocess.Popen[bytes]:
        self._started = [group for group in self._started if _has_members(group)]
        with self.log.open("ab") as log:
            started = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=CHECKOUT,
                env=self.environment | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(started.pid)
        return started

    def start_and_die(self, *, after_s: float) -> None:
        """Begin the start path, and SIGKILL it with all that it has started, wherever it stands by then."""
        started = self._spawn("-m", "project.start")
        time.sleep(after_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()

    def manage(self, *arguments: str, expect: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command of manage.py to its end."""
        with self.running(*arguments) as command:
            stdout, stderr = command.communicate(timeout=120)
        assert expect is None or command.returncode == expect, f"{arguments}: {stdout}{stderr}"
        return subprocess.CompletedProcess(arguments, command.returncode, stdout, stderr)

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A command of manage.py while the block runs; what is left of it then is killed."""
        with subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            cwd=CHECKOUT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as command:
            try:
                yield command
            finally:
                command.kill()

    def manage_json(self, *arguments: str, expect: int) -> dict[str, Any]:
        """Run a command with --json; return what it printed."""
        document: dict[str, Any] = json.loads(self.manage(*arguments, "--json", expect=expect).stdout)
        return document

    # Its processes

    @property
    def master(self) -> int:
        assert self.gunicorn is not None
        return self.gunicorn.pid

    @property
    def is_running(self) -> bool:
        return self.gunicorn is not None and self.gunicorn.poll() is None

    def list_workers(self) -> list[int]:
        return processes.list_children(self.master)

    def kill(self, number: signal.Signals, pids: list[int]) -> None:
        processes.send(number, pids)

    def kill_master(self) -> None:
        """SIGKILL the master alone: its workers see it within some seconds, and serve until then."""
        assert self.gunicorn is not None
        self.gunicorn.kill()
        self.gunicorn.wait()

    def kill_all(self) -> None:
        """SIGKILL the master and all workers, also those that outlived another master."""
        for group in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self._started.clear()
        if self.gunicorn is not None:
            self.gunicorn.wait()

    def count_killed_workers(self) -> int:
        """Return how many workers died of SIGKILL so far, as their masters saw it."""
        return self.read_log().count("was sent SIGKILL")

    def read_log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    # Asking it

    def get(self, path: str, *, timeout: float = 10.0) -> tuple[int, str]:
        """Return status and body, (0, "") where nothing answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
