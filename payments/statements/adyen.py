"""Adyen's settlement details report: one line for each journal of a batch that was paid out.

https://docs.adyen.com/reporting/settlement-reconciliation/transaction-level/settlement-details-report
Gross (GC) is in the currency of the payment, net and costs (NC) in that of the payout; all are decimals, in columns for
debit and credit. What a line is says in which direction it moves, because not all reports agree on the sides.
"""

from datetime import datetime
from typing import Final, NamedTuple

from payments import money
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
    zone,
)

# Journal type -> fact, dispute's leg, whether money comes in.
_JOURNALS: Final[dict[str, tuple[FactKind, str | None, bool]]] = {
    "Settled": (FactKind.PAYMENT_CAPTURED, None, True),
    "Refunded": (FactKind.REFUND_SUCCEEDED, None, False),
    "RefundedReversed": (FactKind.REFUND_FAILED, None, True),
    "Chargeback": (FactKind.DISPUTE_FUNDS_WITHDRAWN, "1", False),
    "ChargebackReversed": (FactKind.DISPUTE_FUNDS_RETURNED, "1", True),
    "SecondChargeback": (FactKind.DISPUTE_FUNDS_WITHDRAWN, "2", False),
}
_FEES: Final = frozenset({"Fee", "MiscCosts", "PaymentCost", "InvoiceDeduction"})
_PAYOUT: Final = "MerchantPayout"
# What is carried over from one batch to the next stays where it is: it is still owed to us.
_CARRIED: Final = "Balancetransfer"
_COSTS: Final = ("Commission (NC)", "Markup (NC)", "Scheme Fees (NC)", "Interchange (NC)")


class Adyen(CsvStatement):
    name = "adyen"
    required = (
        *("Merchant Account", "Psp Reference", "Merchant Reference", "Creation Date", "TimeZone", "Type"),
        *("Modification Reference", "Gross Currency", "Gross Debit (GC)", "Gross Credit (GC)"),
        *("Net Currency", "Net Debit (NC)", "Net Credit (NC)", *_COSTS, "Batch Number"),
    )

    def line(self, row: Row, number: int, endpoint: base.EndpointConfig) -> StatementLine:
        journal = row["Type"].strip()
        if journal == _CARRIED:
            raise base.Ignorable("the balance is carried over to another batch")
        subject = _Subject.of(row, journal)
        if journal == _PAYOUT:
            return StatementLine(number=number, principal=_payout(subject, row))
        if journal in _FEES:
            return StatementLine(number=number, principal=_fee(subject, row))
        if journal not in _JOURNALS:
            raise base.Unusable("money of this Type is not translated")
        return _payment_line(subject, row, number, endpoint)


class _Subject(NamedTuple):
    account: str
    psp: str | None
    modification: str | None
    journal: str
    at: datetime

    @classmethod
    def of(cls, row: Row, journal: str) -> "_Subject":
        return cls(
            account=base.identifier(row["Merchant Account"].strip(), "Merchant Account"),
            psp=base.optional_identifier(row["Psp Reference"].strip(), "Psp Reference"),
            modification=base.optional_identifier(row["Modification Reference"].strip(), "Modification Reference"),
            journal=journal,
            at=moment(row["Creation Date"], "Creation Date", zone(row["TimeZone"], "TimeZone")),
        )

    def keyed(self, *parts: str | None) -> str:
        """Return an id within the merchant account."""
        return base.identifier("/".join(filter(None, (self.account, *parts))), "Psp Reference")


def _payment_line(subject: _Subject, row: Row, number: int, endpoint: base.EndpointConfig) -> StatementLine:
    kind, leg, is_money_in = _JOURNALS[subject.journal]
    payment = base.identifier(subject.psp, "Psp Reference")
    modification = subject.modification or payment
    # Under auto-capture the capture is the one that its authorisation booked, else there can be several.
    own = payment if kind is FactKind.PAYMENT_CAPTURED and endpoint.auto_capture else modification
    told = _either(row, "Gross Debit (GC)", "Gross Credit (GC)", row["Gross Currency"])
    reference = base.optional_identifier(row["Merchant Reference"].strip(), "Merchant Reference")
    principal = Fact(
        kind=kind,
        occurred_at=subject.at,
        object_id=own if leg else subject.keyed(own),
        payment=payment,
        part=leg,
        amount_minor=told[0],
        currency=told[1],
        reference=reference,
        reference_rank=2 if reference else 0,
    )
    line_id = subject.keyed(modification, subject.journal)
    net = _either(row, "Net Debit (NC)", "Net Credit (NC)", row["Net Currency"])
    cost = _cost(row, told, net, is_money_in=is_money_in)
    settled = net[0] + cost if is_money_in else net[0] - cost, net[1]
    sold, bought = (told, settled) if is_money_in else (settled, told)
    beside = (
        *fee((cost, net[1]), occurred_at=subject.at, object_id=line_id, payment=payment),
        *conversion(sold=sold, bought=bought, occurred_at=subject.at, object_id=line_id),
    )
    return StatementLine(number=number, principal=principal, beside=beside)


def _cost(row: Row, told: tuple[int, str], net: tuple[int, str], *, is_money_in: bool) -> int:
    # In one currency the cost is what is missing; there are more columns of costs than are named here.
    if told[1] == net[1]:
        return told[0] - net[0] if is_money_in else net[0] - told[0]
    return sum(signed_minor(row[name], net[1]) for name in _COSTS)


def _either(row: Row, debit: str, credit: str, currency: str) -> tuple[int, str]:
    """Return the amount that stands in one of two columns."""
    code = currency_code(currency)
    minor = abs(signed_minor(row[credit], code) - signed_minor(row[debit], code))
    if minor == 0:
        raise base.Ignorable("the line moves no money")
    return money.amount_minor(minor), code


def _net(row: Row) -> tuple[int, str]:
    """Return what a line adds to our balance."""
    code = currency_code(row["Net Currency"])
    minor = signed_minor(row["Net Credit (NC)"], code) - signed_minor(row["Net Debit (NC)"], code)
    if minor == 0:
        raise base.Ignorable("the line moves no money")
    return minor, code


# A batch is paid out once in each currency.
def _payout(subject: _Subject, row: Row) -> Fact:
    minor, currency = _net(row)
    return Fact(
        kind=FactKind.PAYOUT_PAID if minor < 0 else FactKind.PAYOUT_COLLECTED,
        occurred_at=subject.at,
        object_id=subject.keyed(base.identifier(row["Batch Number"].strip(), "Batch Number"), currency),
        amount_minor=money.amount_minor(abs(minor)),
        currency=currency,
    )


def _fee(subject: _Subject, row: Row) -> Fact:
    minor, currency = _net(row)
    line_id = subject.keyed(subject.psp, subject.modification, row["Batch Number"].strip(), subject.journal)
    (fact,) = fee((-minor, currency), occurred_at=subject.at, object_id=line_id, payment=None)
    return fact
