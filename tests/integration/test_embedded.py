"""The embedded PostgreSQL starts, whatever was killed before, and keeps its data."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from project import embedded
from project.embedded_home import Home, StartFailed

CHECKOUT = Path(__file__).parents[2]
START = "import sys, pathlib; from project import embedded; embedded.locate(data_dir=pathlib.Path(sys.argv[1])).start()"

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's cluster is apart from its DATA_DIR")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[embedded.Server]:
    """A server that isn't made yet; what is left of it at the end is removed."""
    server = embedded.locate(data_dir=tmp_path / "data")
    yield server
    server.remove()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.Server]:
    """One server for the tests that leave its data as it was."""
    server = embedded.locate(data_dir=tmp_path_factory.mktemp("shared") / "data")
    start_with_a_row(server)
    yield server
    server.remove()


@pytest.fixture
def running(shared: embedded.Server) -> embedded.Server:
    """A server that runs, with one row in the table `kept`."""
    shared.start()
    return shared


def start_with_a_row(server: embedded.Server) -> None:
    server.start()
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS row")


def assert_kept(server: embedded.Server) -> None:
    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT row FROM kept").fetchall() == [(1,)]


@contextlib.contextmanager
def changed(path: Path, text: str) -> Iterator[None]:
    """Give a file another content, for a while."""
    before = path.read_text()
    path.write_text(text)
    yield
    path.write_text(before)


def get_pid(server: embedded.Server) -> int:
    return int((server.home.data / "postmaster.pid").read_text().split("\n")[0])


def kill(server: embedded.Server) -> None:
    os.kill(get_pid(server), signal.SIGKILL)


def wait_for_end(server: embedded.Server) -> None:
    deadline = time.monotonic() + 10
    while server.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_server_is_durable_and_only_ours(running: embedded.Server) -> None:
    """It acknowledges what is on disk, nobody else can connect, and the application is no superuser."""
    with psycopg.connect(running.url) as connection:
        shown = {
            name: connection.execute(f"SHOW {name}").fetchone()
            for name in ("fsync", "full_page_writes", "synchronous_commit", "listen_addresses", "is_superuser")
        }

    assert shown == {
        "fsync": ("on",),
        "full_page_writes": ("on",),
        "synchronous_commit": ("on",),
        "listen_addresses": ("",),
        "is_superuser": ("off",),
    }
    assert running.home.socket_folder.stat().st_mode & 0o077 == 0


def test_second_start_changes_nothing(running: embedded.Server) -> None:
    pid = get_pid(running)

    running.start()

    assert get_pid(running) == pid


def test_starts_at_once_make_one_server(server: embedded.Server) -> None:
    """Of several processes that find nothing there, one makes it and the others use it."""
    data_dir = str(server.home.link.parent)
    starts = [subprocess.Popen([sys.executable, "-c", START, data_dir], cwd=CHECKOUT) for _ in range(3)]

    assert [start.wait(timeout=60) for start in starts] == [0, 0, 0]
    psycopg.connect(server.url).close()


@pytest.mark.parametrize("pause", [True, False], ids=["later", "at_once"])
def test_killed_server_starts_again(running: embedded.Server, pause: bool) -> None:
    """With its data; also while processes of the dead one are still about to go."""
    with psycopg.connect(running.url):
        kill(running)
        if pause:
            wait_for_end(running)

        running.start()

    assert_kept(running)


def test_pid_file_that_names_another_process(running: embedded.Server) -> None:
    """After a crash, or a restart of the machine, the number may be anybody's, who must not be hurt."""
    kill(running)
    wait_for_end(running)
    owner = running.home.folder.stat()
    is_root = os.geteuid() == 0
    with subprocess.Popen(
        ["sleep", "60"], user=owner.st_uid if is_root else None, group=owner.st_gid if is_root else None
    ) as other:
        pid_file = running.home.data / "postmaster.pid"
        pid_file.write_text("\n".join([str(other.pid), *pid_file.read_text().split("\n")[1:]]))

        running.start()

        assert other.poll() is None
        other.kill()
    assert_kept(running)


def test_processes_that_outlive_their_server(running: embedded.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is stopped can't notice that its server is dead, and would keep the next one out for ever."""
    monkeypatch.setattr(embedded, "ORPHAN_SECONDS_MAX", 0.3)
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(running.url) as connection:
        os.kill(connection.info.backend_pid, signal.SIGSTOP)
        kill(running)

        running.start()

    assert_kept(running)


def test_cluster_that_was_half_made(server: embedded.Server) -> None:
    """What a killed initdb left is no cluster."""
    server.home.make()
    (server.home.folder / "data.draft" / "base").mkdir(parents=True)

    server.start()

    psycopg.connect(server.url).close()


def test_deleted_data_dir_begins_anew(server: embedded.Server) -> None:
    """Although the old server still ran. Root's data is apart, and kept: deleting may have been a mistake."""
    start_with_a_row(server)
    told: list[str] = []
    shutil.rmtree(server.home.link.parent)

    server.start(tell=told.append)

    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT to_regclass('kept')").fetchone() == (None,)
    kept = re.search(r"kept in (\S+);", "\n".join(told))
    assert bool(kept) == (os.geteuid() == 0)
    if kept:
        assert (Path(kept[1]) / "data" / "PG_VERSION").exists()
        shutil.rmtree(kept[1])


def test_data_dir_may_be_moved(server: embedded.Server) -> None:
    """With the data, and while the server runs."""
    start_with_a_row(server)
    moved_to = server.home.link.parent.with_name("moved")
    server.home.link.parent.rename(moved_to)
    moved = embedded.locate(data_dir=moved_to)

    moved.start()

    assert_kept(moved)
    moved.remove()


@only_root
def test_copy_of_data_dir_is_refused(running: embedded.Server) -> None:
    """Two checkouts must not share one cluster without knowing."""
    copy = running.home.link.parent.with_name("copy")
    shutil.copytree(running.home.link.parent, copy, symlinks=True)

    with pytest.raises(StartFailed, match="is a copy"):
        embedded.locate(data_dir=copy).start()


def test_data_of_another_version_is_refused(running: embedded.Server) -> None:
    running.stop()
    with changed(running.home.data / "PG_VERSION", "12\n"), pytest.raises(StartFailed, match="by PostgreSQL 12"):
        running.start()


def test_failed_start_shows_the_end_of_the_log(running: embedded.Server) -> None:
    running.stop()
    with (
        changed(running.home.data / "postgresql.conf", "no_such_setting = 1\n"),
        pytest.raises(StartFailed, match="no_such_setting"),
    ):
        running.start()


def test_last_borrower_removes_the_server(server: embedded.Server) -> None:
    """Tests that run side by side share one."""
    with server.borrowed():
        with server.borrowed():
            pass
        psycopg.connect(server.url).close()

    assert not server.is_alive()
    assert not os.path.lexists(server.home.link)
    assert not server.home.folder.exists()


def test_stopped_server_keeps_its_data(running: embedded.Server) -> None:
    running.stop()
    assert not running.is_alive()

    running.start()

    assert_kept(running)


def test_socket_of_a_long_path_lies_in_a_folder_that_is_only_ours(tmp_path: Path) -> None:
    """And a folder that others can write to is refused: whoever made it could answer in our server's place."""
    home = Home(link=tmp_path / ("long" * 30) / "postgres")
    home.link.mkdir(parents=True)
    home.make()
    assert home.socket_folder.stat().st_mode & 0o777 == 0o700

    home.socket_folder.chmod(0o755)
    with pytest.raises(StartFailed, match="not ours alone"):
        home.make()
    home.remove()
