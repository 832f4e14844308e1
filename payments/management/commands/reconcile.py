from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from payments import conf, database, money, reconciliation, statements
from payments.management import base
from payments.management.moments import optional_moment
from payments.management.progress import Progress
from payments.reconciliation import Report, Request, summary
from payments.statements.base import StatementUnreadable

_LINES_SHOWN = 50  # findings on a terminal; all are in the run's lines, in the admin, and with --json


class Command(base.Command):
    help = (
        "Compares a gateway's statement with the ledger, and books what no webhook brought. Safe beside live"
        " deliveries, and to be killed: run it again. Exits 1 when line and ledger differ or one is missing somewhere."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("endpoint", help="its slug")
        parser.add_argument("file", help="the statement")
        parser.add_argument("--format", choices=sorted(statements.REGISTRY), help="default: the endpoint's gateway's")
        parser.add_argument(
            "--from",
            dest="begin",
            metavar="T",
            help="what happened from then on should be in it, ISO 8601; default: the first line's day. Days are counted"
            " as the gateway does: xendit's and midtrans' in Jakarta's zone, razorpay's in India's, others in UTC;"
            " another zone: 2026-11-30T00:00+01:00",
        )
        parser.add_argument("--to", dest="end", metavar="T", help="until before then; default: the end of the last day")
        parser.add_argument(
            "--column",
            action="append",
            default=[],
            metavar="NAME=TITLE",
            help="the title that a column has in this file, e.g. amount='Gross Amount'; may be repeated",
        )
        parser.add_argument("--dry-run", action="store_true", help="book nothing and note nothing, only compare")

    def run(self, options: dict[str, Any]) -> base.Result:
        request, progress = _request(options), Progress(self.stderr)
        try:
            report = reconciliation.reconcile(request, now=datetime.now(UTC), progress=progress.show)
        except reconciliation.AlreadyRunning as error:
            raise base.CouldNotRun("Another reconciliation is running. Try again when it has ended") from error
        except StatementUnreadable as error:
            raise base.CouldNotRun(f"{request.path} is no statement of the format {request.format}: {error}") from error
        except OSError as error:
            raise base.CouldNotRun(f"{request.path} can't be read: {error.strerror}") from error
        except database.TransactionFailed as error:
            raise base.CouldNotRun("The database was lost. Run it again: it goes on where it was") from error
        finally:
            progress.end()
        return base.Result(
            report.as_json(),
            _lines(report),
            has_findings=bool(report.findings_total),
            when_told=lambda: reconciliation.finish(report),
        )


def _request(options: dict[str, Any]) -> Request:
    try:
        with database.connected():
            endpoint = conf.endpoint(options["endpoint"])
    except LookupError as unknown:
        raise base.CouldNotRun(f"There is no endpoint {options['endpoint']}") from unknown
    columns = [column.partition("=") for column in options["column"]]
    if not all(name and title for name, _, title in columns):
        raise base.CouldNotRun("--column takes NAME=TITLE")
    statement = statements.REGISTRY[options["format"] or statements.OF_GATEWAY[endpoint.gateway.name]]
    begin, end = (optional_moment(options[name], statement.days_zone) for name in ("begin", "end"))
    if begin is not None and end is not None and begin >= end:
        raise base.CouldNotRun("--from is not before --to")
    return Request(
        endpoint=endpoint,
        path=Path(options["file"]),
        format=statement.name,
        columns={name: title for name, _, title in columns},
        begin=begin,
        end=end,
        is_dry_run=options["dry_run"],
    )


def _lines(report: Report) -> list[str]:
    counts = report.counts
    lines = [f"{name.replace('_', ' '):<20} {count:>12,}" for name, count in counts.items()]
    if report.begin and report.end:
        lines.insert(0, f"from {report.begin.isoformat()} to before {report.end.isoformat()}")
    else:
        lines.insert(0, "no line says of which days this is, so nothing was looked for: --from and --to do")
    if report.is_resumed:
        lines.insert(0, "goes on with a run over this file that was killed")
    lines += [_finding(one["kind"], one["subject"], one["detail"]) for one in report.findings[:_LINES_SHOWN]]
    if report.findings_total > _LINES_SHOWN:
        lines.append(f"… and {report.findings_total - _LINES_SHOWN:,} more findings")
    lines += [
        f"no webhook brought {one['facts']:,} facts of {one['endpoint']} on {one['day']} (UTC)"
        for one in report.lost_webhooks
    ]
    lines += summary.describe(report.summary)
    if counts["unusable"]:  # which whoever adds the file up will miss here
        lines.append(f"{counts['unusable']:,} lines can't be used: what they move is in none of these amounts")
    return lines


def _finding(kind: str, subject: str, detail: dict[str, Any]) -> str:
    told = [f"line {detail['line']}"] if detail["line"] else []
    for who in ("statement", "booked"):
        if amount := detail.get(who):
            told.append(f"{who} {money.format_major(amount['amount'], amount['currency'])} {amount['currency']}")
    told += [detail[name] for name in ("why", "occurred_at") if detail.get(name)]
    return f"{kind.replace('_', ' ')}: {subject} ({', '.join(told)})"
