from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandParser

from payments import money
from payments.management import base
from payments.management.moments import optional_moment
from payments.trial_balance import UNSETTLED, By, TooYoung, TrialBalance, trial_balance


class Command(base.Command):
    help = "Lists what every account was debited and credited, now or as of a time. Exits 1 unless all is balanced."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--as-of", metavar="T", help="count what was before T, ISO 8601, UTC unless said")
        parser.add_argument(
            "--by",
            choices=[by.value for by in By],
            default=By.RECORDED.value,
            help="before T in our books (recorded) or in the world (occurred); default: %(default)s",
        )

    def run(self, options: dict[str, Any]) -> base.Result:
        as_of, by = optional_moment(options["as_of"]), By(options["by"])
        try:
            balance = trial_balance(as_of=as_of, by=by, now=datetime.now(UTC))
        except TooYoung as error:
            raise base.CouldNotRun(
                f"--as-of is younger than {UNSETTLED.seconds} s: what was recorded by then may not be all there yet"
            ) from error
        data = balance.as_json() | {"as_of": None if as_of is None else as_of.isoformat(), "by": by.value}
        return base.Result(data, _lines(balance), has_findings=not balance.is_balanced)


def _lines(balance: TrialBalance) -> list[str]:
    def line(name: str, currency: str, *amounts: int) -> str:
        return f"{name:<32} {currency} " + " ".join(f"{money.format_major(amount, currency):>20}" for amount in amounts)

    lines = [f"{'account':<32} {'':3} {'debits':>20} {'credits':>20} {'balance':>20}"]
    lines += [line(sums.code, sums.currency, sums.debits, sums.credits, sums.balance) for sums in balance.accounts]
    for currency, difference in balance.differences.items():
        of_currency = [sums for sums in balance.accounts if sums.currency == currency]
        debits, credits = sum(sums.debits for sums in of_currency), sum(sums.credits for sums in of_currency)
        lines.append(line("all accounts" if not difference else "NOT BALANCED", currency, debits, credits, difference))
    return lines
