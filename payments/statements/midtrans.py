"""Midtrans: an export whose columns its user chose, so each is named here, and can be renamed by a mapping.

    transaction_id order_id status amount occurred_at        must be there
    fee net currency refund_id line_id                       where there are such

https://docs.midtrans.com/docs/midtrans-dashboard-usage
Amounts are rupiah in major units, times without a zone are Jakarta's. A refund needs its refund_id: without it two
refunds of one transaction could not be told apart.
"""

import re
from datetime import timedelta, timezone
from typing import Final

from payments.facts import Fact, FactKind
from payments.gateways import base
from payments.statements.base import CsvStatement, Row, StatementLine, currency_code, fee, moment, signed_minor

_ZONE: Final = timezone(timedelta(hours=7))
_CURRENCY: Final = "IDR"
_KINDS: Final = {
    **dict.fromkeys(("capture", "settlement"), FactKind.PAYMENT_CAPTURED),
    **dict.fromkeys(("refund", "partial_refund"), FactKind.REFUND_SUCCEEDED),
    **dict.fromkeys(("chargeback", "partial_chargeback"), FactKind.DISPUTE_FUNDS_WITHDRAWN),
}
_WITHOUT_MONEY: Final = frozenset({"pending", "authorize", "expire", "failure", "deny", "cancel"})
# Usual titles, as they read with "_" for every space.
_TITLES: Final = {
    "transaction_status": "status",
    "gross_amount": "amount",
    "net_amount": "net",
    "settlement_time": "occurred_at",
    "refund_chargeback_id": "refund_id",
}


class Midtrans(CsvStatement):
    name = "midtrans"
    days_zone = _ZONE
    required = ("transaction_id", "order_id", "status", "amount", "occurred_at")
    optional = ("currency", "fee", "net", "refund_id", "line_id")

    def column(self, title: str) -> str:
        name = re.sub(r"\W+", "_", title.lower()).strip("_")
        return _TITLES.get(name, name)

    def line(self, row: Row, number: int, endpoint: base.EndpointConfig) -> StatementLine:
        status = row["status"].strip().lower().replace(" ", "_")
        if status in _WITHOUT_MONEY:
            raise base.Ignorable("no money in this status")
        if status not in _KINDS:
            raise base.Unusable("money of this status is not translated")
        if currency_code(row.get("currency") or _CURRENCY) != _CURRENCY:
            raise base.Unusable("currency is not IDR")
        principal = _principal(_KINDS[status], row)
        beside = fee(
            (_fee(row, principal), _CURRENCY),
            occurred_at=principal.occurred_at,
            object_id=base.optional_identifier(row.get("line_id"), "line_id") or principal.object_id,
            payment=principal.payment,
        )
        return StatementLine(number=number, principal=principal, beside=beside)


def _principal(kind: FactKind, row: Row) -> Fact:
    payment = base.identifier(row["transaction_id"].strip(), "transaction_id")
    object_id, part = payment, None
    if kind is FactKind.REFUND_SUCCEEDED:
        # Refunds are numbered within their transaction.
        refund_id = base.identifier((row.get("refund_id") or "").strip(), "refund_id")
        object_id = base.identifier(f"{payment}/{refund_id}", "transaction_id with refund_id")
    elif kind is FactKind.DISPUTE_FUNDS_WITHDRAWN:
        part = "chargeback"
    amount = abs(signed_minor(row["amount"], _CURRENCY))
    if amount == 0:
        raise base.Ignorable("the line moves no money")
    return Fact(
        kind=kind,
        occurred_at=moment(row["occurred_at"], "occurred_at", _ZONE),
        object_id=object_id,
        payment=payment,
        part=part,
        amount_minor=amount,
        currency=_CURRENCY,
        reference=base.identifier(row["order_id"].strip(), "order_id"),
        reference_rank=2,
    )


def _fee(row: Row, principal: Fact) -> int:
    told = (row.get("fee") or "").strip()
    if told:
        return abs(signed_minor(told, _CURRENCY))
    net = (row.get("net") or "").strip()
    if not net or principal.amount_minor is None:
        return 0
    kept = principal.amount_minor - abs(signed_minor(net, _CURRENCY))
    return kept if principal.kind is FactKind.PAYMENT_CAPTURED else -kept
