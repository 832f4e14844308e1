from typing import Any

from django.conf import settings

from payments import demo
from payments.management import base


class Command(base.Command):
    help = "Makes the demo's endpoints, accounts and staff user, where they are missing. Refused when DEBUG=0."

    def run(self, options: dict[str, Any]) -> base.Result:
        if not settings.DEBUG:
            raise base.CouldNotRun("seed_demo makes a well-known staff user: only with DEBUG=1")
        made = demo.seed()
        return base.Result(made, [f"demo: {made['endpoints']} endpoints and {made['accounts']} accounts made"])
