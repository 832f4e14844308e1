from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandParser

from payments import replay
from payments.management import base


class Command(base.Command):
    help = "Tells kept events again, after a fix. Stored replies stay; nothing is booked twice."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--event", metavar="ID", help="one event, by its id")
        which.add_argument("--quarantined", action="store_true", help="all that are still quarantined")
        which.add_argument("--ignored", action="store_true", help="all that were ignored")
        which.add_argument("--since", metavar="ISO8601", help="all that were received since")
        parser.add_argument("--dry-run", action="store_true", help="only say what would come of it")

    def run(self, options: dict[str, Any]) -> base.Result:
        replayed = replay.retry(_selection(options), dry_run=options["dry_run"])
        if options["event"] and not replayed.counts["retried"]:
            raise base.CouldNotRun(f"There is no kept event {options['event']}")
        data = replayed.as_json()
        lines = [", ".join(f"{count} {what}" for what, count in data.items() if isinstance(count, int))]
        lines += [f"still quarantined: {event_id}" for event_id in replayed.still_quarantined]
        return base.Result(data, lines, has_findings=bool(replayed.still_quarantined))


def _selection(options: dict[str, Any]) -> Any:
    if options["event"]:
        return replay.known_as(options["event"])
    if options["quarantined"]:
        return replay.quarantined()
    if options["ignored"]:
        return replay.ignored()
    try:
        moment = datetime.fromisoformat(options["since"])
    except ValueError as error:
        raise base.CouldNotRun(f"{options['since']} is not an ISO 8601 time") from error
    return replay.received_since(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
