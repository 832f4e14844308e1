from typing import Any

from payments import verification
from payments.management import base
from payments.management.commands.recover import verification_result
from payments.management.progress import Progress


class Command(base.Command):
    help = (
        "Verifies every invariant of the ledger, from the beginning. Safe beside live deliveries, and to be killed: run"
        " within an hour, it goes on where it was."
    )

    def run(self, options: dict[str, Any]) -> base.Result:
        progress = Progress(self.stderr)
        try:
            return verification_result(verification.verify(full=True, progress=progress.show))
        finally:
            progress.end()
