"""Stripe's payout reconciliation report, itemized: one line for each balance transaction.

https://docs.stripe.com/reports/payout-reconciliation  https://docs.stripe.com/reports/reporting-categories
Amounts are decimals of the settlement currency, signed as they change the balance; customer_facing_amount is what the
customer paid or got back, where that was another currency.
"""

from datetime import UTC, datetime
from typing import Final, NamedTuple

from payments.facts import Fact, FactKind
from payments.gateways import base
from payments.statements.base import (
    CsvStatement,
    Row,
    StatementLine,
    conversion,
    currency_code,
    fee,
    moment,
    signed_minor,
)

_CAPTURES: Final = {"charge": 1, "partial_capture_reversal": -1}
_FEES: Final = ("fee", "network_cost", "tax")
_PAYMENT_KINDS: Final = {
    "refund": FactKind.REFUND_SUCCEEDED,
    "refund_failure": FactKind.REFUND_FAILED,
    "charge_failure": FactKind.PAYMENT_REVERSED,
    "dispute": FactKind.DISPUTE_FUNDS_WITHDRAWN,
    "dispute_reversal": FactKind.DISPUTE_FUNDS_RETURNED,
}
_LEGS: Final = (FactKind.DISPUTE_FUNDS_WITHDRAWN, FactKind.DISPUTE_FUNDS_RETURNED)


class Stripe(CsvStatement):
    name = "stripe"
    required = (
        *("balance_transaction_id", "created_utc", "currency", "gross", "fee", "net", "reporting_category"),
        *("source_id", "charge_id", "payment_intent_id"),
    )
    optional = (
        *("automatic_payout_id", "customer_facing_currency", "customer_facing_amount"),
        "payment_metadata[order_id]",
    )

    def line(self, row: Row, number: int, endpoint: base.EndpointConfig) -> StatementLine:
        category = row["reporting_category"]
        transaction = _Transaction.of(row)
        if category in _FEES:
            charged = transaction.assessed(-transaction.gross + transaction.fee)
            if not charged:
                raise base.Ignorable("the line moves no money")
            return StatementLine(number=number, principal=charged[0], payout=transaction.payout)
        principal = _principal(category, transaction, row)
        return StatementLine(
            number=number,
            principal=principal,
            beside=transaction.beside(),
            is_summed=category in _CAPTURES,
            sign=_CAPTURES.get(category, 1),
            known_as=_first_leg(principal),
            payout=transaction.payout if principal.object_id != transaction.payout else None,
        )


class _Transaction(NamedTuple):
    """A line's balance transaction. gross and fee: signed, in the settlement currency; told: what customers saw."""

    id: str
    at: datetime
    gross: int
    fee: int
    currency: str
    told: tuple[int, str]
    payment: str | None
    source: str
    payout: str | None

    @classmethod
    def of(cls, row: Row) -> "_Transaction":
        currency = currency_code(row["currency"])
        gross = signed_minor(row["gross"], currency)
        if signed_minor(row["net"], currency) != gross - signed_minor(row["fee"], currency):
            raise base.Unusable("net is not gross less fee")
        return cls(
            id=base.identifier(row["balance_transaction_id"], "balance_transaction_id"),
            at=moment(row["created_utc"], "created_utc", UTC),
            gross=gross,
            fee=signed_minor(row["fee"], currency),
            currency=currency,
            told=_told(row, gross, currency),
            payment=base.optional_identifier(row["payment_intent_id"] or row["charge_id"], "payment_intent_id"),
            source=row["source_id"],
            payout=base.optional_identifier(row.get("automatic_payout_id"), "automatic_payout_id"),
        )

    def assessed(self, minor: int) -> tuple[Fact, ...]:
        return fee((minor, self.currency), occurred_at=self.at, object_id=self.id, payment=self.payment)

    def beside(self) -> tuple[Fact, ...]:
        # Money in was sold for the settlement currency, money out was bought with it.
        settled = abs(self.gross), self.currency
        sold, bought = (self.told, settled) if self.gross > 0 else (settled, self.told)
        return (
            *self.assessed(self.fee),
            *conversion(sold=sold, bought=bought, occurred_at=self.at, object_id=self.id),
        )


def _told(row: Row, gross: int, currency: str) -> tuple[int, str]:
    # In one currency the line's own amount is exact, also where a charge was captured in parts.
    code = row.get("customer_facing_currency") or ""
    if not code or currency_code(code) == currency:
        return abs(gross), currency
    return abs(signed_minor(row.get("customer_facing_amount") or "", currency_code(code))), currency_code(code)


def _principal(category: str, transaction: _Transaction, row: Row) -> Fact:
    if category in ("payout", "payout_reversal"):
        return _payout(category, transaction)
    order = row.get("payment_metadata[order_id]") or ""
    if category in _CAPTURES:
        kind, object_id = FactKind.PAYMENT_CAPTURED, transaction.payment
    elif category in _PAYMENT_KINDS:
        kind = _PAYMENT_KINDS[category]
        object_id = transaction.payment if kind is FactKind.PAYMENT_REVERSED else transaction.source
    else:
        raise base.Unusable("money of this reporting_category is not translated")
    return Fact(
        kind=kind,
        occurred_at=transaction.at,
        object_id=base.identifier(object_id, "payment_intent_id or source_id"),
        payment=transaction.payment,
        part=transaction.id if kind in _LEGS else None,
        amount_minor=_positive(transaction.told[0]),
        currency=transaction.told[1],
        reference=base.optional_identifier(order, "payment_metadata[order_id]"),
        reference_rank=2 if order else 0,
    )


# A payout takes from the balance; one that adds to it collects from the bank what the balance owed.
def _payout(category: str, transaction: _Transaction) -> Fact:
    kind = FactKind.PAYOUT_PAID if transaction.gross < 0 else FactKind.PAYOUT_COLLECTED
    if category == "payout_reversal":
        kind = FactKind.PAYOUT_COLLECTION_FAILED if transaction.gross < 0 else FactKind.PAYOUT_FAILED
    return Fact(
        kind=kind,
        occurred_at=transaction.at,
        object_id=base.identifier(transaction.source, "source_id"),
        amount_minor=_positive(abs(transaction.gross)),
        currency=transaction.currency,
    )


def _positive(minor: int) -> int:
    if minor == 0:
        raise base.Ignorable("the line moves no money")
    return minor


def _first_leg(principal: Fact) -> Fact | None:
    # An event that lists no balance transactions tells its dispute's leg as the first.
    if principal.kind not in _LEGS:
        return None
    return Fact(kind=principal.kind, occurred_at=principal.occurred_at, object_id=principal.object_id, part="1")
