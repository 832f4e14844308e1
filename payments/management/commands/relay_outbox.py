from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandParser

from payments import destinations, inspection, outbox, relay
from payments.management import base
from payments.management.progress import Progress


class Command(base.Command):
    help = (
        "Sends outbox messages until it is killed; any number of it may run. With --once: all that is due, each once,"
        " then ends: 0, or 1 when a message was given up (it is dead, and a finding says so). A try that failed and"
        " will be repeated is no finding."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--once", action="store_true", help="send all that is due, then end")

    def run(self, options: dict[str, Any]) -> base.Result:
        progress = Progress(self.stderr)
        sender = _relay(is_once=options["once"], on_progress=lambda counts: progress.show("sent", counts.sent))
        if not options["once"]:
            inspection.start("relay")
        try:
            counts = sender.run_once() if options["once"] else sender.run()
        except KeyboardInterrupt:  # Ctrl-C: what is under way is due again when its lease ends
            counts = sender.counts
        finally:
            progress.end()
        return _result(counts)


def _relay(*, is_once: bool, on_progress: Callable[[relay.Counts], None]) -> relay.Relay:
    try:
        configured = destinations.configured()
        if not configured and not is_once:
            raise base.CouldNotRun("PAYMENTS_OUTBOX_DESTINATIONS is empty: there is nobody to send to")
        return relay.Relay(configured, on_progress=on_progress)
    except (destinations.Misconfigured, relay.TooManyDestinations) as problem:
        raise base.CouldNotRun(str(problem)) from problem


def _result(counts: relay.Counts) -> base.Result:
    owed = [backlog for backlog in outbox.backlogs() if backlog.waiting or backlog.dead]
    data = {
        "sent": counts.sent,
        "failed": counts.failed,
        "dead": counts.dead,
        "left": counts.left,
        "owed": {backlog.destination: {"waiting": backlog.waiting, "dead": backlog.dead} for backlog in owed},
    }
    lines = [
        f"{counts.sent} sent, {counts.failed} failed and tried again later, {counts.dead} dead,"
        f" {counts.left} left because the receiver asked for time"
    ]
    more_than = outbox.WAITING_COUNTED_MAX
    lines += [
        f"owed to {one.destination}: {'more than ' if one.waiting > more_than else ''}{min(one.waiting, more_than)}"
        f" waiting, {one.dead} dead"
        for one in owed
    ]
    return base.Result(data, lines, has_findings=counts.dead > 0)
