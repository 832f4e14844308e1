"""Xendit's transactions report: one line for each movement of money, in major units.

https://docs.xendit.co/docs/detailed-transactions-report
A payment's line names no capture. What the line took from the balance beside its amount (fee, VAT, withholding) is the
difference between Amount and Net Amount.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Final

from payments.facts import Fact, FactKind
from payments.gateways import base
from payments.statements.base import CsvStatement, Row, StatementLine, currency_code, fee, moment, signed_minor

_PAYMENTS: Final = frozenset({"PAYMENT", "IN_PERSON_PAYMENT"})
_PAYOUTS: Final = frozenset({"DISBURSEMENT", "BATCH_DISBURSEMENT", "REMITTANCE_PAYOUT", "PAYOUT", "WITHDRAWAL"})
_CHARGEBACKS: Final = {
    "CHARGEBACK": FactKind.DISPUTE_FUNDS_WITHDRAWN,
    "CHARGEBACK_REVERSAL": FactKind.DISPUTE_FUNDS_RETURNED,
}
# Nothing moved, or not yet.
_WITHOUT_MONEY: Final = frozenset({"FAILED", "PENDING", "VOIDED", "CANCELLED", "EXPIRED"})
# What was refunded later was paid first, and its refund has a line of its own.
_DONE: Final = frozenset({"SUCCESS", "SUCCESSFUL", "SETTLED", "REFUNDED", "PARTIALLY_REFUNDED", "REFUND_PENDING"})
_REVERSED: Final = "REVERSED"
# Times without a zone are Jakarta's.
_ZONE: Final = timezone(timedelta(hours=7))


class Xendit(CsvStatement):
    name = "xendit"
    days_zone = _ZONE
    required = (
        *("Status", "Type", "Currency", "Amount", "Net Amount", "Reference", "Transaction ID", "Invoice ID"),
        *("Product ID", "Timestamp - Created"),
    )
    optional = ("Payment Date",)

    def line(self, row: Row, number: int, endpoint: base.EndpointConfig) -> StatementLine:
        status = row["Status"].strip().upper()
        if status in _WITHOUT_MONEY:
            raise base.Ignorable("nothing moved, or not yet")
        if status not in _DONE and status != _REVERSED:
            raise base.Unusable("Status is none that is known here")
        currency, at = currency_code(row["Currency"]), _occurred_at(row)
        amount = abs(signed_minor(row["Amount"], currency))
        principal, is_summed = _principal(row, status, (amount, currency), at)
        is_money_in = principal.kind in (FactKind.PAYMENT_CAPTURED_TOTAL, FactKind.PAYMENT_CAPTURED)
        net = abs(signed_minor(row["Net Amount"], currency)) if row["Net Amount"].strip() else amount
        beside = fee(
            (amount - net if is_money_in else net - amount, currency),
            occurred_at=at,
            object_id=base.identifier(row["Transaction ID"], "Transaction ID"),
            payment=principal.payment,
        )
        return StatementLine(number=number, principal=principal, beside=beside, is_summed=is_summed)


def _occurred_at(row: Row) -> datetime:
    paid_at = row.get("Payment Date") or ""
    return moment(paid_at or row["Timestamp - Created"], "Payment Date", _ZONE)


def _principal(row: Row, status: str, amount: tuple[int, str], at: datetime) -> tuple[Fact, bool]:
    """Return a line's fact, and whether it is one of several that are summed."""
    kind, product = row["Type"].strip().upper(), row["Product ID"].strip()
    invoice = base.optional_identifier(row["Invoice ID"].strip(), "Invoice ID")
    if kind in _PAYMENTS:
        payment = base.identifier(invoice or product, "Product ID")
        captured = FactKind.PAYMENT_CAPTURED if invoice else FactKind.PAYMENT_CAPTURED_TOTAL
        if status == _REVERSED:
            captured = FactKind.PAYMENT_REVERSED
        return _fact(captured, payment, payment, amount, at, row), status != _REVERSED
    object_id = base.identifier(product, "Product ID")
    if kind in _PAYOUTS:
        paid = FactKind.PAYOUT_FAILED if status == _REVERSED else FactKind.PAYOUT_PAID
        return _fact(paid, object_id, None, amount, at, {}), False
    if kind == "REFUND":
        refunded = FactKind.REFUND_FAILED if status == _REVERSED else FactKind.REFUND_SUCCEEDED
        return _fact(refunded, object_id, invoice, amount, at, {}), False
    if kind in _CHARGEBACKS and status != _REVERSED:
        return _fact(_CHARGEBACKS[kind], object_id, invoice, amount, at, {}, part="1"), False
    raise base.Unusable("money of this Type is not translated")


def _fact(
    kind: FactKind,
    object_id: str,
    payment: str | None,
    amount: tuple[int, str],
    at: datetime,
    row: Mapping[str, str],
    *,
    part: str | None = None,
) -> Fact:
    if amount[0] == 0:
        raise base.Ignorable("the line moves no money")
    reference = base.optional_identifier(row.get("Reference", "").strip(), "Reference")
    return Fact(
        kind=kind,
        occurred_at=at,
        object_id=object_id,
        payment=payment,
        part=part,
        amount_minor=amount[0],
        currency=amount[1],
        reference=reference,
        reference_rank=2 if reference else 0,
    )
