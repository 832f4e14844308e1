"""Statements for tests: plain lines, written to a file, and the command run over it in this process or in another."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final

from django.core.management import call_command

from tests.databases import database_url

CHECKOUT: Final = Path(__file__).parents[2]
HEADER: Final = "type,payment,id,account,amount,currency,occurred_at"
AT: Final = "2026-11-30T10:00:00Z"  # when the tests' events say that they happened


@dataclass(frozen=True)
class Ran:
    """A command's exit status and what it printed as JSON."""

    status: int
    data: dict[str, Any]

    @property
    def verdicts(self) -> dict[str, int]:
        """The counts that aren't zero, without the number of lines."""
        names = ("matched", "booked", "differs", "missing_here", "missing_there", "fees_booked", "fees_differing")
        return {name: self.data[name] for name in names if self.data[name]}

    @property
    def findings(self) -> set[tuple[str, str]]:
        return {(one["kind"], one["subject"]) for one in self.data["findings"]}


def line(
    kind: str = "payment.captured",
    payment: str = "pay_1",
    id: str = "",
    *,
    account: str = "",
    amount: int | str = 10_000,
    currency: str = "IDR",
    at: str = AT,
) -> str:
    """Return a line of a plain statement."""
    return f"{kind},{payment},{id},{account},{amount},{currency},{at}"


def plain(folder: Path, lines: Iterable[str], name: str = "statement.csv") -> Path:
    """Write a plain statement of these lines."""
    path = folder / name
    path.write_text("\n".join([HEADER, *lines, ""]), encoding="utf-8")
    return path


def run(command: str, *arguments: object) -> Ran:
    """Run a management command with --json in this process."""
    out = StringIO()
    try:
        call_command(command, *map(str, arguments), "--json", stdout=out, stderr=StringIO())
    except SystemExit as ended:
        data = json.loads(out.getvalue())
        assert_itemized(data.get("summary", ()))
        return Ran(int(ended.code or 0), data)
    raise AssertionError("a command ends with its status")


def assert_itemized(summary: Iterable[dict[str, Any]]) -> None:
    """Whatever no finding names is told item by item, to the last minor unit."""
    for one in summary:
        for reason, amount in one["explained"].items():
            items = [item["amount"] for item in one["items"] if item["reason"] == reason]
            is_found = reason in ("differs", "missing_here", "missing_there")
            assert is_found or len(items) == 10 or sum(items) == amount, (reason, one)


def run_apart(command: str, *arguments: object, failpoint: str = "", stdout: int = subprocess.PIPE) -> Ran:
    """Run it in a process of its own, which dies at the failpoint (status -9). stdout: where to it prints."""
    environment = os.environ | {
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "DEBUG": "1",
        "PAYMENTS_FAILPOINT": failpoint,
    }
    done = subprocess.run(
        [sys.executable, "manage.py", command, *map(str, arguments), "--json"],
        cwd=CHECKOUT,
        env=environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return Ran(done.returncode, json.loads(done.stdout) if done.stdout else {"stderr": done.stderr})
