"""Who holds what, asked from outside: `manage.py limits`."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from pytest_django import Settings

from payments import inspection, runtime_folder

# Holds a permit, as one that got stuck does, and says so.
HOLD = """
import django, sys, time
django.setup()
from django.conf import settings
from pathlib import Path
from payments import inspection, limits
settings.RUNTIME_DIR = Path(sys.argv[1])
settings.PAYMENTS_DEADLINE_MS = int(sys.argv[2])
def stand_still():
    with limits.get("intake"):
        limits.get("intake")._holders[limits.threading.get_ident()] -= 5
        inspection.start("worker")
        print("ready", flush=True)
        sys.stdin.read()
stand_still()
"""


@pytest.fixture
def folder(settings: Settings, tmp_path: Path) -> Path:
    """A RUNTIME_DIR whose path is longer than a socket's may be."""
    settings.RUNTIME_DIR = tmp_path / ("long" * 40)
    return Path(settings.RUNTIME_DIR)


@pytest.fixture(params=[60_000])
def process(folder: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process that has held a permit for 5 s; the parameter is its deadline in ms."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(request.param)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
        child.kill()


def run(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("limits", *arguments, stdout=out, stderr=StringIO())
    return int(ended.value.code or 0), out.getvalue()


def run_json() -> tuple[int, Any]:
    status, said = run("--json")
    return status, json.loads(said)


def test_a_process_tells_who_holds_what(process: subprocess.Popen[str]) -> None:
    """Each limit, each holder with its age and where it stands; and all is well while it is within its time."""
    status, said = run_json()

    (one,) = said["processes"]
    held = {limit["limit"]: limit["holders"] for limit in one["limits"]}
    (holder,) = held.pop("intake")
    assert (status, said["findings"]) == (0, [])
    assert (one["pid"], one["role"]) == (process.pid, "worker")
    assert 5 <= holder["held_s"] < 60
    assert holder["thread"] == "MainThread"
    assert any(frame.endswith("stand_still") for frame in holder["stack"])
    assert {"staff", "health", "attempts"} <= held.keys()
    assert not any(held.values())


@pytest.mark.parametrize("process", [4000], indirect=True)
def test_a_permit_that_is_held_too_long_is_a_finding(process: subprocess.Popen[str]) -> None:
    status, said = run_json()
    lines = run()[1].splitlines()

    assert status == 1
    assert [(one["kind"], one["subject"]) for one in said["findings"]] == [
        ("held_too_long", f"worker {process.pid} intake")
    ]
    assert [line for line in lines if "longer than 4.5 s: MainThread" in line]
    assert [line for line in lines if line.strip().startswith("intake") and "1 of" in line]


def test_a_frozen_process_is_a_finding(process: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It can't say what it holds; that is said, and nobody waits for it."""
    monkeypatch.setattr(inspection, "ANSWER_S", 0.2)
    process.send_signal(signal.SIGSTOP)

    status, said = run_json()

    assert (status, said["processes"]) == (1, [])
    assert [(one["kind"], one["subject"]) for one in said["findings"]] == [("does_not_answer", str(process.pid))]


def test_nobody_to_ask(folder: Path) -> None:
    assert run_json()[0] == 2


def test_the_dead_are_not_asked_and_leave_nothing(process: subprocess.Popen[str], folder: Path) -> None:
    """Killed, it leaves its socket to the next who asks. A number that another program has by now is let be."""
    process.kill()
    process.wait()
    (folder / "limits" / str(os.getpid())).touch()

    assert run_json()[0] == 2
    assert [path.name for path in (folder / "limits").iterdir()] == [str(os.getpid())]


def test_only_who_runs_the_process_may_ask(process: subprocess.Popen[str], folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_others_could_have_made_is_refused(tmp_path: Path) -> None:
    """Where everybody may write, a folder of the right name proves nothing; nor does a link."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")

    for name in ("open", "link"):
        with pytest.raises(PermissionError):
            runtime_folder.make(tmp_path / name)


def test_without_a_socket_a_process_works(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk, a folder that isn't ours: one line in the log."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runtime_folder, "make", fail)

    inspection.start("worker")

    assert [record.message for record in caplog.records] == ["inspection_unavailable"]
