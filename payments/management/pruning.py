"""What the commands that prune have in common: of what age, only counted or really, and what is said of it."""

import abc
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser

from payments import database, retention
from payments.management import base, moments
from payments.management.progress import Progress


class Prune(base.Command):
    """Safe beside all else that runs, and to be killed."""

    @abc.abstractmethod
    def prune(self, *, before: datetime, is_dry_run: bool, progress: retention.Progress) -> tuple[dict[str, Any], str]:
        """Prune; return data for --json, and a line for a person."""

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--older-than", type=moments.days_ago, required=True, metavar="DAYS", help="0: all until now"
        )
        parser.add_argument("--dry-run", action="store_true", help="only count")

    def run(self, options: dict[str, Any]) -> base.Result:
        before, is_dry_run, progress = options["older_than"], options["dry_run"], Progress(self.stderr)
        try:
            data, line = self.prune(before=before, is_dry_run=is_dry_run, progress=progress.show)
        except database.TransactionFailed as error:
            raise base.CouldNotRun("The database was lost. Run it again: it goes on where it was") from error
        finally:
            progress.end()
        if is_dry_run:
            line = f"would be: {line}"
        return base.Result(data | {"before": before.isoformat(), "dry_run": is_dry_run}, [line])
