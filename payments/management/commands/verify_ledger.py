from typing import Any

from payments import verification
from payments.management import base
from payments.management.commands.recover import verification_result


class Command(base.Command):
    help = "Verifies every invariant of the ledger, from the beginning. Safe beside live deliveries."

    def run(self, options: dict[str, Any]) -> base.Result:
        return verification_result(verification.verify(full=True))
