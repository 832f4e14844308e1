from typing import Any

from django.core.management.base import CommandParser

from payments import conf, models, money, payees, registrations
from payments.facts import escape
from payments.gateways.base import Unusable, identifier
from payments.management import base


class Command(base.Command):
    help = "Says whose payment a merchant's reference is and what it should be, before or after its webhooks."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("endpoint")
        parser.add_argument("reference", help="the merchant's own, e.g. an order number")
        parser.add_argument("account", help="code of the payee's account")
        parser.add_argument("amount", help="expected, in minor units")
        parser.add_argument("currency")

    def run(self, options: dict[str, Any]) -> base.Result:
        try:
            endpoint = conf.endpoint(options["endpoint"])
            reference = identifier(options["reference"], "REFERENCE")
            wanted = registrations.Registered(
                account=identifier(options["account"], "ACCOUNT"),
                amount=money.amount_minor(_integer(options["amount"])),
                currency=money.currency_code(options["currency"]),
            )
            payees.register(endpoint, reference, wanted)
        except LookupError as unknown:
            raise base.CouldNotRun(f"There is no endpoint {options['endpoint']}") from unknown
        except (Unusable, money.UnusableAmount) as unusable:
            raise base.CouldNotRun(str(unusable)) from unusable
        except registrations.RegistrationDiffers as differs:
            raise base.CouldNotRun(
                f"{options['reference']} is registered otherwise: {_shown(differs.known)}"
            ) from differs
        subject = f"{endpoint.books.slug}:{escape(reference)}"
        findings = models.Finding.objects.filter(kind__in=registrations.KINDS, subject=subject, closed_at=None)
        seen = [{"kind": one.kind, "subject": one.subject, "detail": one.detail} for one in findings.order_by("kind")]
        return base.Result(
            {"endpoint": endpoint.slug, "reference": reference, "account": wanted.account, "findings": seen},
            [
                f"{reference} is {wanted.account}'s",
                *_without_account(wanted),
                *(f"FINDING {one['kind']} {one['detail']}" for one in seen),
            ],
            has_findings=bool(seen),
        )


def _shown(known: registrations.Registered) -> str:
    return f"{known.account}'s, {money.format_major(known.amount, known.currency)} {known.currency}"


def _without_account(wanted: registrations.Registered) -> list[str]:
    if models.Account.objects.filter(code=wanted.account, currency=wanted.currency).exists():
        return []
    return [f"{wanted.account} has no account in {wanted.currency}: until it is opened, its money waits in suspense"]


def _integer(text: str) -> int | None:
    # int() also takes other scripts' digits, and thousands of them.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else None
