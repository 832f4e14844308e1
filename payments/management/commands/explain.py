from typing import Any

from django.core.management.base import CommandParser

from payments import explanations, money
from payments.management import base


class Command(base.Command):
    help = "Says why an account's balance is what it is: its entries, their transfers, the events that told them."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("account")
        parser.add_argument("currency")

    def run(self, options: dict[str, Any]) -> base.Result:
        try:
            explained = explanations.explain(code=options["account"], currency=options["currency"])
        except LookupError as unknown:
            raise base.CouldNotRun(f"There is no account {options['account']} {options['currency']}") from unknown
        currency = explained["currency"]
        lines = [f"{explained['account']} {currency} {money.format_major(explained['balance'], currency)}"]
        lines += [
            f"  {entry['occurred_at']}  {entry['direction']:6}  {money.format_major(entry['amount'], currency):>18}"
            f"  {entry['transfer']}  event {entry['event'] or '-'}"
            for entry in explained["entries"]
        ]
        return base.Result(explained, lines)
