"""The plain statement of the `demo` endpoint: a CSV that tells facts in the words of its events.

    type,payment,id,account,amount,currency,occurred_at

id is the refund's, fee's, dispute's or payout's, or empty; amount is in minor units; occurred_at has its zone.
"""

from payments.facts import FactKind
from payments.gateways import base, standard_webhooks
from payments.statements.base import CsvStatement, Row, StatementLine, moment


class Plain(CsvStatement):
    name = "plain"
    required = ("type", "payment", "id", "account", "amount", "currency", "occurred_at")

    def line(self, row: Row, number: int, endpoint: base.EndpointConfig) -> StatementLine:
        """Translate a line as the adapter translates the event that says the same."""
        kind = standard_webhooks.KINDS.get(row["type"])
        if kind is None:
            raise base.Unusable("type is none of the demo's events")
        noun, occurred_at = standard_webhooks.NOUNS[kind], moment(row["occurred_at"], "occurred_at")
        data: dict[str, object] = {
            "payment": row["payment"],
            "account": row["account"],
            "amount": _integer(row["amount"]),
            "currency": row["currency"],
        }
        if noun != "payment":
            data[noun] = row["id"]
        elif row["id"] != row["payment"]:
            data["capture"] = row["id"]
        fact = standard_webhooks.fact_of(kind, data, occurred_at)
        is_summed = kind is FactKind.PAYMENT_CAPTURED and fact.part is None
        return StatementLine(number=number, principal=fact, is_summed=is_summed)


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else None
