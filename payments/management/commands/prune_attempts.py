from typing import Any

from django.core.management.base import CommandParser

from payments import database, retention
from payments.management import base, moments
from payments.management.progress import Progress


class Command(base.Command):
    help = (
        "Deletes the old rows of the attempt log, in chunks: which delivery came when, how it was answered, and the"
        " gaps. Nothing else needs them. Safe beside deliveries, and to be killed: run it again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--older-than", type=moments.days_ago, required=True, metavar="DAYS", help="0: all until now"
        )
        parser.add_argument("--dry-run", action="store_true", help="only count")

    def run(self, options: dict[str, Any]) -> base.Result:
        before, progress = options["older_than"], Progress(self.stderr)
        try:
            pruned = retention.prune_attempts(before=before, is_dry_run=options["dry_run"], progress=progress.show)
        except database.TransactionFailed as error:
            raise base.CouldNotRun("The database was lost. Run it again: it goes on where it was") from error
        finally:
            progress.end()
        lines = [f"{pruned:,} attempts {'would be deleted' if options['dry_run'] else 'deleted'}"]
        return base.Result({"pruned": pruned, "before": before.isoformat(), "dry_run": options["dry_run"]}, lines)
