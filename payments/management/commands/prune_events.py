from typing import Any

from django.core.management.base import CommandParser

from payments import database, retention
from payments.management import base, moments
from payments.management.progress import Progress


class Command(base.Command):
    help = (
        "Forgets the bodies of old events, in chunks. Claims, replies and the ledger stay, and so do the bodies of"
        " events that are still quarantined. Safe beside deliveries, and to be killed: run it again."
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
            result = retention.prune_events(before=before, is_dry_run=options["dry_run"], progress=progress.show)
        except database.TransactionFailed as error:
            raise base.CouldNotRun("The database was lost. Run it again: it goes on where it was") from error
        finally:
            progress.end()
        verb = "would be forgotten" if options["dry_run"] else "forgotten"
        lines = [f"{result.pruned:,} bodies {verb}, {result.kept:,} kept because they are still needed"]
        return base.Result(result.as_json() | {"before": before.isoformat(), "dry_run": options["dry_run"]}, lines)
