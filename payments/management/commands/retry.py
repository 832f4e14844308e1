from typing import Any

from django.core.management.base import CommandParser

from payments import conf, database, handlers, replay
from payments.management import base
from payments.management.moments import moment
from payments.management.progress import Progress


class Command(base.Command):
    help = (
        "Tells kept events again, after a fix, or runs applications' failed handlers again. Stored replies stay;"
        " nothing is booked twice."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--event", metavar="ID", help="one event, by its id")
        which.add_argument("--quarantined", action="store_true", help="all that are still quarantined")
        which.add_argument("--ignored", action="store_true", help="all that were ignored")
        which.add_argument("--since", metavar="ISO8601", help="all that were received since")
        which.add_argument(
            "--handlers",
            action="store_true",
            help="no events, only failed handlers: all, also of what a statement, a registration or staff booked",
        )
        parser.add_argument("--dry-run", action="store_true", help="only say what would come of it")

    def run(self, options: dict[str, Any]) -> base.Result:
        conf.read_copy()
        if (reason := conf.why_closed()) is not None:
            raise base.CouldNotRun(f"No money is booked now: {reason}")
        progress = Progress(self.stderr)
        try:
            replayed = _retry(options, progress)
        except database.TransactionFailed as error:
            raise base.CouldNotRun("The database was lost. Run it again: nothing is booked twice") from error
        finally:
            progress.end()
        if options["event"] and not replayed.counts["retried"]:
            raise base.CouldNotRun(f"There is no claimed event {options['event']} whose body is kept")
        data = replayed.as_json()
        lines = [", ".join(f"{count} {what}" for what, count in data.items() if isinstance(count, int))]
        lines += [f"still quarantined: {event_id}" for event_id in replayed.still_quarantined]
        return base.Result(data, lines, has_findings=bool(replayed.still_quarantined or replayed.again.failed))


def _retry(options: dict[str, Any], progress: Progress) -> replay.Replayed:
    is_dry_run = options["dry_run"]
    if options["handlers"]:
        again = handlers.run_again(dry_run=is_dry_run, progress=lambda tried: progress.show("handlers run", tried))
        return replay.Replayed(again=again)
    return replay.retry(
        _selection(options), dry_run=is_dry_run, progress=lambda retried: progress.show("told again", retried)
    )


def _selection(options: dict[str, Any]) -> replay.Selection:
    if options["event"]:
        return replay.known_as(options["event"])
    if options["quarantined"]:
        return replay.quarantined()
    if options["ignored"]:
        return replay.ignored()
    return replay.received_since(moment(options["since"]))
