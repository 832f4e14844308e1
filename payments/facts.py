"""What a gateway can say happened to money: frozen values, and the business keys they are known by.

A fact is not a state. The state of a payment is a function of the set of its facts, whatever their order, and a fact
is booked once because its business key is unique. Nothing here touches the database.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final


class FactKind(StrEnum):
    PAYMENT_PENDING = "PaymentPending"
    PAYMENT_AUTHORIZED = "PaymentAuthorized"
    PAYMENT_CAPTURED = "PaymentCaptured"
    PAYMENT_CAPTURED_TOTAL = "PaymentCapturedTotal"  # only the sum captured so far is told
    PAYMENT_FAILED = "PaymentFailed"
    PAYMENT_EXPIRED = "PaymentExpired"
    PAYMENT_VOIDED = "PaymentVoided"
    PAYMENT_REVERSED = "PaymentReversed"  # corrects a PaymentCaptured
    REFUND_REQUESTED = "RefundRequested"
    REFUND_SUCCEEDED = "RefundSucceeded"
    REFUNDED_TOTAL = "RefundedTotal"  # only the sum refunded so far is told
    REFUND_FAILED = "RefundFailed"  # corrects a RefundSucceeded, also one that never comes
    DISPUTE_OPENED = "DisputeOpened"
    DISPUTE_FUNDS_WITHDRAWN = "DisputeFundsWithdrawn"
    DISPUTE_FUNDS_RETURNED = "DisputeFundsReturned"
    DISPUTE_WON = "DisputeWon"  # DisputeClosed(won): moves nothing
    DISPUTE_LOST = "DisputeLost"  # DisputeClosed(lost): implies the withdrawal
    FEE_ASSESSED = "FeeAssessed"
    FEE_RETURNED = "FeeReturned"
    PAYOUT_PAID = "PayoutPaid"
    PAYOUT_COLLECTED = "PayoutCollected"  # a negative payout
    PAYOUT_FAILED = "PayoutFailed"  # corrects a PayoutPaid, also one that never comes
    PAYOUT_COLLECTION_FAILED = "PayoutCollectionFailed"  # corrects a PayoutCollected likewise
    FUNDS_CONVERTED = "FundsConverted"  # statements only


# How each fact is called in the demo's vocabulary, and so in messages to the outside world.
TYPE_NAMES: Final[dict[str, str]] = {
    FactKind.PAYMENT_PENDING: "payment.pending",
    FactKind.PAYMENT_AUTHORIZED: "payment.authorized",
    FactKind.PAYMENT_CAPTURED: "payment.captured",
    FactKind.PAYMENT_CAPTURED_TOTAL: "payment.captured",
    FactKind.PAYMENT_FAILED: "payment.failed",
    FactKind.PAYMENT_EXPIRED: "payment.expired",
    FactKind.PAYMENT_VOIDED: "payment.voided",
    FactKind.PAYMENT_REVERSED: "payment.reversed",
    FactKind.REFUND_REQUESTED: "refund.requested",
    FactKind.REFUND_SUCCEEDED: "refund.succeeded",
    FactKind.REFUNDED_TOTAL: "refund.succeeded",
    FactKind.REFUND_FAILED: "refund.failed",
    FactKind.DISPUTE_OPENED: "dispute.opened",
    FactKind.DISPUTE_FUNDS_WITHDRAWN: "dispute.funds_withdrawn",
    FactKind.DISPUTE_FUNDS_RETURNED: "dispute.funds_returned",
    FactKind.DISPUTE_WON: "dispute.won",
    FactKind.DISPUTE_LOST: "dispute.lost",
    FactKind.FEE_ASSESSED: "fee.assessed",
    FactKind.FEE_RETURNED: "fee.returned",
    FactKind.PAYOUT_PAID: "payout.paid",
    FactKind.PAYOUT_COLLECTED: "payout.collected",
    FactKind.PAYOUT_FAILED: "payout.failed",
    FactKind.PAYOUT_COLLECTION_FAILED: "payout.collection_failed",
    FactKind.FUNDS_CONVERTED: "funds.converted",
}

# The fact's name inside its business key. A correction has the name of what it corrects: it is known by that key.
_KEY_NAMES: Final[dict[FactKind, str]] = {
    FactKind.PAYMENT_CAPTURED: "captured",
    FactKind.PAYMENT_REVERSED: "captured",
    FactKind.PAYMENT_CAPTURED_TOTAL: "captured-to",
    FactKind.REFUND_SUCCEEDED: "refunded",
    FactKind.REFUND_FAILED: "refunded",
    FactKind.REFUNDED_TOTAL: "refunded-to",
    FactKind.DISPUTE_FUNDS_WITHDRAWN: "withdrawn",
    FactKind.DISPUTE_FUNDS_RETURNED: "returned",
    FactKind.DISPUTE_LOST: "lost",
    FactKind.FEE_ASSESSED: "fee",
    FactKind.FEE_RETURNED: "fee-returned",
    FactKind.PAYOUT_PAID: "paid",
    FactKind.PAYOUT_COLLECTED: "collected",
    FactKind.PAYOUT_FAILED: "paid",
    FactKind.PAYOUT_COLLECTION_FAILED: "collected",
    FactKind.FUNDS_CONVERTED: "converted",
}

# What follows from a fact is known by the fact's key and one of these.
DERIVED_SUFFIXES: Final = frozenset({"reversed", "named"})

CORRECTIONS: Final = frozenset(
    {
        FactKind.PAYMENT_REVERSED,
        FactKind.REFUND_FAILED,
        FactKind.PAYOUT_FAILED,
        FactKind.PAYOUT_COLLECTION_FAILED,
    }
)
TOTALS: Final = frozenset({FactKind.PAYMENT_CAPTURED_TOTAL, FactKind.REFUNDED_TOTAL})
PAYOUTS: Final = frozenset(
    {
        FactKind.PAYOUT_PAID,
        FactKind.PAYOUT_COLLECTED,
        FactKind.PAYOUT_FAILED,
        FactKind.PAYOUT_COLLECTION_FAILED,
    }
)
FEES: Final = frozenset({FactKind.FEE_ASSESSED, FactKind.FEE_RETURNED})
# Facts that say something about money: known by a business key, and "duplicate" is decided by them alone.
MONEY: Final = frozenset(_KEY_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing a gateway said happened.

    payment      the gateway's reference of the payment; None only for payouts and conversions
    object_id    what the business key is about: the payment for captures, else the refund, fee, dispute or payout
    part         the last part of the key, where one object has several (capture id, dispute leg, txn_…); for
                 DisputeLost the leg of the withdrawal that it implies
    amount_minor, currency   minor units in ISO 4217's exponent; None where no money is named
    account      the payee as this very event names it
    reference    the merchant's own reference; reference_rank 2 where named, 1 where another id stands in for it
    into_minor, into_currency   what a conversion made of the amount; None for everything else
    occurred_at  when it happened in the world, aware
    """

    kind: FactKind
    occurred_at: datetime
    object_id: str
    payment: str | None = None
    part: str | None = None
    amount_minor: int | None = None
    currency: str | None = None
    account: str | None = None
    reference: str | None = None
    reference_rank: int = 0
    into_minor: int | None = None
    into_currency: str | None = None


def escape(identifier: str) -> str:
    """Return the id with the two characters that business keys are built with percent-escaped."""
    if "%" in identifier or ":" in identifier:
        return identifier.replace("%", "%25").replace(":", "%3A")
    return identifier


def business_key(books: str, fact: Fact) -> str:
    """Return `<books>:<object id>:<fact>[:<part>]`; a correction's is the key that it corrects.

    A total is known by its payment and the sum it tells: `<books>:<payment>:refunded-to:<total>`.
    """
    if fact.kind in TOTALS:
        part: str | None = str(fact.amount_minor)
    else:
        part = None if fact.kind is FactKind.DISPUTE_LOST else fact.part
    key = f"{books}:{escape(fact.object_id)}:{_KEY_NAMES[fact.kind]}"
    return key if part is None else f"{key}:{_escape_part(part)}"


def _escape_part(part: str) -> str:
    # `<key>:reversed` and `<key>:named` are keys of ours: no capture's id may be taken for them.
    return f"%{ord(part[0]):02X}{part[1:]}" if part in DERIVED_SUFFIXES else escape(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A fact as one source tells it now.

    books_id, books   id and slug of the endpoint whose keys, payments and accounts it is about
    key               the business key; None for facts that say nothing about money
    claim_id          the event that tells it; None for a statement
    """

    fact: Fact
    books_id: int
    books: str
    source: str
    key: str | None
    claim_id: int | None = None
    default_payee: str | None = None


def implied_withdrawal(lost: Told) -> Told:
    """Return what a lost dispute implies: that its funds were withdrawn, under that leg's ordinary key."""
    fact = replace(lost.fact, kind=FactKind.DISPUTE_FUNDS_WITHDRAWN, part=lost.fact.part or "1")
    return replace(lost, fact=fact, key=business_key(lost.books, fact))
