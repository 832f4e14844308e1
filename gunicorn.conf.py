"""gunicorn: a few processes of many threads each.

Must not open a connection or import the application before the fork: two workers would share one session.

After a crash: nothing here is needed again. The metrics' files of a dead worker are struck out by the master,
those of a dead master by the next one, once it holds the port.
"""

import contextlib
import errno
import http.client
import mmap
import os
import resource
import shutil
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

try:
    from project import settings
except ImproperlyConfigured as failure:
    sys.exit(str(failure))

wsgi_app = "project.wsgi:application"

# Only the machine itself can call; a proxy in front speaks TLS. In a container: gunicorn --bind 0.0.0.0:8000
bind = f"127.0.0.1:{settings.PORT}"

# Processes use the cores, threads wait: for the commit of the batch that their delivery is in.
workers = settings.WEB_CONCURRENCY
worker_class = "project.worker.Worker"
threads = settings.WEB_THREADS
# Connections of one process, idle ones too; twice as many files, for those that are about to be closed. More
# wait unaccepted, in the backlog.
_files_soft, _files_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
_files = max(_files_soft, min(_files_hard, 4096))  # macOS has 256 unless asked
resource.setrlimit(resource.RLIMIT_NOFILE, (_files, _files_hard))
worker_connections = min(1000, (_files - 100) // 2)
backlog = 2048

# A worker whose main thread says nothing for so many seconds is killed. No request keeps that thread busy, so
# this ends only one that is frozen; the longest answer takes 6.5 s.
timeout = 10
# Nothing that correctness needs happens at the end, so it's short: a longer drain is the load balancer's job.
graceful_timeout = 2
# Longer than load balancers keep an idle connection (60 s): who closes first must be them, or a delivery that
# they send at that moment is lost on the way.
keepalive = 65
# A worker lives until it dies: a restart every so many requests would only hide a leak.
max_requests = 0
preload_app = False

# Room for a long filter in the admin, and for what gateways and proxies send (some twenty headers) thrice
# over.
limit_request_line = 4094
limit_request_fields = 64
limit_request_field_size = 8190
# Whose X-Forwarded-Proto says that the caller came by https.
forwarded_allow_ips = settings.FORWARDED_ALLOW_IPS
# `Webhook_Id` must not pass for `Webhook-Id`: what has an underscore never reaches the application.
header_map = "drop"

# The attempt log has every delivery.
accesslog = None
control_socket_disable = True
# A worker's sign of life is a file's time. On a disk, that could wait for the disk.
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108

# prometheus-client looks for this when it is imported: every process keeps its numbers in files of its own
# here.
_metrics = settings.RUNTIME_DIR / "metrics" / str(settings.PORT)
os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(_metrics)

# One byte that all workers share: whether the line `ready` has been printed.
_announced = mmap.mmap(-1, 1)


def on_starting(server: Any) -> None:
    """Wait for the port: workers that outlived a killed master have it for some seconds more."""
    address = server.address[0]
    deadline = time.monotonic() + 10
    while isinstance(address, tuple) and not _is_free(address):
        if time.monotonic() > deadline:
            sys.exit(f"Port {address[1]} is taken by another server. Stop that one, or set PORT")
        time.sleep(0.1)


def when_ready(server: Any) -> None:
    """Begin with empty metrics. The port is ours by now, so these aren't the files of a server that runs."""
    from payments import runtime_folder

    try:
        runtime_folder.make(settings.RUNTIME_DIR)
    except PermissionError as problem:
        sys.exit(str(problem))
    shutil.rmtree(_metrics, ignore_errors=True)
    _metrics.mkdir(parents=True)
    for listener in server.LISTENERS:
        # An answer must fit in here, so that no thread waits for a slow reader. Connections inherit it.
        listener.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 512 * 1024)


def pre_fork(server: Any, worker: Any) -> None:
    """Choose a core of its own for each process, where there are no more cores than processes.

    Threads of one process run one at a time in Python; on two cores they only take the lock for it from each other
    (measured: a core each gives a quarter more deliveries a second). Of more cores, the kernel makes better use.
    """
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    taken = [other.core for other in server.WORKERS.values()]
    worker.core = min(sorted(cores), key=taken.count) if 1 < len(cores) <= server.num_workers else None


def post_fork(server: Any, worker: Any) -> None:
    """Keep to that core."""
    if worker.core is not None:
        os.sched_setaffinity(0, {worker.core})


def post_worker_init(worker: Any) -> None:
    """Read what deliveries need, and let the last of the first workers say when the service is ready."""
    from django.db import DatabaseError, InterfaceError
    from django.db.backends.base.base import BaseDatabaseWrapper

    from payments import conf, database, inspection, recovery

    inspection.start("worker")
    threading.Thread(target=recovery.keep_verified, name="verification", daemon=True).start()
    # With DEBUG=1, Django formats the text of every statement and keeps it, bodies and all.
    BaseDatabaseWrapper.queries_logged = False  # type: ignore[assignment, method-assign]
    # Or the first burst would all wait for one thread that does. A worker boots without the database too.
    with contextlib.suppress(DatabaseError, InterfaceError), database.connected(time.monotonic() + 1.0):
        conf.read_copy()
    address = worker.cfg.address[0]
    if isinstance(address, tuple) and worker.age >= workers and not _announced[0]:
        threading.Thread(target=_announce, args=(address,), daemon=True).start()


def child_exit(server: Any, worker: Any) -> None:
    """Take what a dead worker had in use out of the gauges, and keep its counts in one file of all dead ones."""
    from payments import metric_files

    metric_files.bury(_metrics, worker.pid, living=server.WORKERS)


def worker_exit(server: Any, worker: Any) -> None:
    """End at once: Python would first wait for every thread, also for one that a slow client holds."""
    if worker.booted:  # else the exit status tells the master not to try again
        os._exit(0)


def _is_free(address: tuple[str, int]) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as failure:
            return failure.errno != errno.EADDRINUSE  # whatever else it is, gunicorn will say it
        return True


def _announce(address: tuple[str, int]) -> None:
    deadline = time.monotonic() + 60
    while (answer := _ask(address)) != "200 OK":
        if time.monotonic() > deadline:
            sys.stderr.write(f"not ready after 60 s: /readyz answers {answer}\n")
            return
        time.sleep(0.1)
    _announced[0] = 1
    login = f"log in at /admin/ as admin, password {settings.ADMIN_PASSWORD}" if settings.DEBUG else "staff at /admin/"
    sys.stdout.write(f"ready http://{address[0]}:{address[1]} {login}\n")
    sys.stdout.flush()


def _ask(address: tuple[str, int]) -> str:
    connection = http.client.HTTPConnection(address[0], address[1], timeout=5)
    try:
        connection.request("GET", "/readyz", headers={"Host": settings.ALLOWED_HOSTS[0].lstrip(".*") or "localhost"})
        answer = connection.getresponse()
    except OSError as failure:
        return type(failure).__name__
    else:
        return f"{answer.status} {answer.reason}"
    finally:
        connection.close()
