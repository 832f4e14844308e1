from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandParser

from payments import recovery, verification
from payments.management import base
from payments.management.progress import Progress


class Command(base.Command):
    help = "The start path: waits for the database, checks that it is safe to serve, verifies the ledger."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--full", action="store_true", help="verify from the beginning")

    def run(self, options: dict[str, Any]) -> base.Result:
        progress = Progress(self.stderr)
        try:
            report, warnings = recovery.recover(full=options["full"], progress=progress.show)
        except recovery.PreflightFailed as failed:
            raise base.CouldNotRun("\n".join(failed.problems)) from failed
        finally:
            progress.end()
        return verification_result(report, warnings)


def verification_result(report: verification.Report, warnings: Sequence[str] = ()) -> base.Result:
    """Return a verification's report as a command shows it."""
    counts = ", ".join(f"{count} {what}" for what, count in report.checked.items())
    lines = [f"warning: {warning}" for warning in warnings]
    lines += [f"BROKEN {one.kind} {one.subject} {one.detail}" for one in report.broken]
    verdict = f"{len(report.broken)} broken" if report.broken else "clean"
    lines.append(
        f"{'full' if report.is_full else 'incremental'} verification: {verdict} ({counts}; {report.seconds:.2f} s)"
    )
    return base.Result({**report.as_json(), "warnings": list(warnings)}, lines, has_findings=bool(report.broken))
