"""What all commands share: arguments -> one domain call -> findings -> exit status.

0: clean, 1: findings, 2: could not run. With --json, stdout is one JSON object; everything else goes to stderr.
"""

import abc
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError


class CouldNotRun(Exception):
    """The command can't do what was asked; its text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a command did: data for --json, lines for a person, and whether there is something to look at.

    when_told   called once the result is written
    """

    data: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    has_findings: bool = False
    when_told: Callable[[], object] = lambda: None


class Command(BaseCommand, abc.ABC):
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON object on stdout")

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        usage_error = parser.error

        def error(message: str) -> Any:
            if "--json" in sys.argv:
                sys.stdout.write(json.dumps({"error": message}) + "\n")
            usage_error(message)

        parser.error = error  # type: ignore[method-assign]
        return parser

    @abc.abstractmethod
    def run(self, options: dict[str, Any]) -> Result:
        """Do it. Raises CouldNotRun."""

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            result = self.run(options)
        except CouldNotRun as problem:
            self._fail(str(problem), as_json=options["as_json"])
        except (DatabaseError, InterfaceError) as problem:
            self._fail(f"the database: {str(problem).strip()}", as_json=options["as_json"])
        lines = [json.dumps(result.data)] if options["as_json"] else result.lines
        try:
            for line in lines:
                self.stdout.write(line)
            self.stdout.flush()
        except OSError:  # a full disk, or a pipe that nobody reads: whoever asked has not got the answer
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(2) from None
        try:
            result.when_told()
        except (DatabaseError, InterfaceError) as problem:
            self._fail(f"the database: {str(problem).strip()}", as_json=False)  # there is one object on stdout already
        raise SystemExit(1 if result.has_findings else 0)

    def _fail(self, problem: str, *, as_json: bool) -> None:
        self.stderr.write(problem)
        if as_json:
            self.stdout.write(json.dumps({"error": problem}))
        raise SystemExit(2)
