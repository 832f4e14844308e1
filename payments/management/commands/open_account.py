from typing import Any

from django.core.management.base import CommandParser

from payments import ledger, models, money, payees
from payments.gateways.base import Unusable, identifier
from payments.management import base


class Command(base.Command):
    help = "Opens an account, once. What waited in suspense for it moves there."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("code")
        parser.add_argument("currency")
        parser.add_argument("--kind", choices=models.Account.Kind.values, default=models.Account.Kind.LIABILITY)

    def run(self, options: dict[str, Any]) -> base.Result:
        try:
            code, currency = identifier(options["code"], "CODE"), money.currency_code(options["currency"])
            opened = payees.open_accounts([(code, currency, options["kind"])])
        except (Unusable, money.UnusableAmount) as unusable:
            raise base.CouldNotRun(str(unusable)) from unusable
        except ledger.AccountDiffers as differs:
            why = "is reserved for an endpoint" if differs.is_reserved else f"is open as {differs.kind}"
            raise base.CouldNotRun(f"{differs.code} {differs.currency} {why}") from differs
        return base.Result(
            {"account": code, "currency": currency, "kind": options["kind"], "opened": bool(opened)},
            [f"{code} {currency} {'opened' if opened else 'was open'}"],
        )
