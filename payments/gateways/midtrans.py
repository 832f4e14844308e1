"""Midtrans: one notification for each change of a transaction, signed in three of its fields.

https://docs.midtrans.com/docs/https-notification-webhooks

The signature covers order, status code and amount, joined without a separator, but not the status: one and
the same stands on a capture and on its settlement. What it doesn't cover is bounded here, and an endpoint
can have notifications confirmed by the status API, whose answer has the same shape and then decides. One
notification can't show that a second transaction was captured for one order; whoever knows the order's
payments decides that.
"""

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import sha512
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import quote

from payments import money
from payments.facts import Fact, FactKind
from payments.gateways import base

# https://docs.midtrans.com/docs/transaction-status-cycle
_WITHOUT_MONEY: Final = {
    "pending": FactKind.PAYMENT_PENDING,
    "expire": FactKind.PAYMENT_EXPIRED,
    "failure": FactKind.PAYMENT_FAILED,
}
# Both can come after the money did, deny even minutes after a settlement; without money they reverse nothing.
_REVERSING: Final = {"deny": FactKind.PAYMENT_FAILED, "cancel": FactKind.PAYMENT_VOIDED}
# Only a captured transaction can come to these.
_AFTER_CAPTURE: Final = ("refund", "partial_refund", "chargeback", "partial_chargeback")
_STATUSES: Final = frozenset({*_WITHOUT_MONEY, *_REVERSING, "authorize", "capture", "settlement", *_AFTER_CAPTURE})
# The signed status code of success.  https://docs.midtrans.com/reference/code-statuses
_SUCCESS: Final = "200"
_CURRENCY: Final = "IDR"
# Times are texts without a zone, in that of Jakarta.
_ZONE: Final = "+07:00"
_SIGNED: Final = ("order_id", "status_code", "gross_amount")
# What makes two notifications the same content, beside the refunds: what the event id is composed of, and the
# payment type, which decides when a refund has succeeded.
_CONTENT: Final = (
    *_SIGNED,
    *("transaction_id", "transaction_status", "fraud_status", "currency", "payment_type"),
)
# What is kept of the status API's answer: what decides about money, and no signature.
_ANSWERED: Final = (*_CONTENT, "transaction_time", "settlement_time", "refunds")
# What a fact told in a notification may have become by the time that the API is asked.
_LATER: Final[Mapping[FactKind, frozenset[FactKind]]] = {
    FactKind.PAYMENT_PENDING: frozenset(FactKind),
    FactKind.PAYMENT_AUTHORIZED: frozenset(
        {
            FactKind.PAYMENT_CAPTURED,
            FactKind.PAYMENT_REVERSED,
            FactKind.PAYMENT_FAILED,
            FactKind.PAYMENT_EXPIRED,
        }
    ),
    FactKind.PAYMENT_CAPTURED: frozenset({FactKind.PAYMENT_REVERSED}),
    FactKind.REFUND_REQUESTED: frozenset({FactKind.REFUND_SUCCEEDED}),
}


class Midtrans(base.Gateway):
    name = "midtrans"
    assurance = base.Assurance.FIELDS_SIGNED
    proves_payment = False
    evidence_headers = (base.CONFIRMED,)
    settling_days = 3
    # https://docs.midtrans.com/reference/sandbox-environment-endpoints
    confirm_urls: ClassVar[Mapping[bool, str]] = {
        True: "https://api.midtrans.com",
        False: "https://api.sandbox.midtrans.com",
    }

    def authenticate(self, delivery: base.Delivery, secrets: Sequence[str]) -> base.Verified:
        """Verify the SHA-512 of order_id, status_code, gross_amount and server key, each exactly as received.

        A notification without signature_key (those of subscriptions) is refused.
        https://docs.midtrans.com/docs/https-notification-webhooks#verifying-notification-authenticity
        """
        verified = base.Verified.of(delivery)
        if not _is_signed(verified.document, secrets) or base.CONFIRMED in delivery.headers:
            raise base.VerificationFailed
        return verified

    def translate(self, verified: base.Verified, endpoint: base.EndpointConfig) -> list[base.Notice]:
        """Return the one notice of a notification. Midtrans gives no event id: it is composed."""
        document = verified.document
        if not isinstance(document, dict):
            return [base.unreadable(verified)]
        refunds = _told_refunds(document)
        facts, ignored, unusable = base.understand(lambda: _believed_facts(verified))
        return [
            base.Notice(
                event_id=_event_id(document, refunds),
                event_type=base.type_name(_lower(document.get("transaction_status"))),
                occurred_at=facts[0].occurred_at if facts else verified.received_at,
                fingerprint=_fingerprint(document, refunds),
                facts=facts,
                ignored=ignored,
                unusable=unusable,
            )
        ]

    def confirm_path(self, verified: base.Verified) -> str:
        """Return that of the transaction's status.  https://docs.midtrans.com/reference/get-transaction-status"""
        transaction_id = base.identifier(verified.document["transaction_id"], "transaction_id")
        return f"/v2/{quote(transaction_id, safe='')}/status"

    def confirmed(self, verified: base.Verified, answer: bytes, secrets: Sequence[str]) -> base.Verified:
        """Return the notification with the transaction as it is now, which may be further than was notified.

        An answer of another transaction, order or amount, or that is behind the notification, is no confirmation: the
        event must not be claimed for it, or the true notification of that status would find its id taken.
        """
        try:
            document = base.parse_json(answer)
        except base.Unusable as error:
            raise base.NotConfirmed(str(error)) from error
        if not isinstance(document, dict):
            raise base.NotConfirmed("the answer is not an object")
        if "signature_key" in document and not _is_signed(document, secrets):
            raise base.NotConfirmed("the answer is not signed with our key")
        told = verified.document
        if any(document.get(name) != told[name] for name in ("transaction_id", "order_id")):
            raise base.NotConfirmed("the answer is about another transaction")
        if not _is_same_amount(document, told):
            raise base.NotConfirmed("the answer tells another amount")
        kept = {name: document[name] for name in _ANSWERED if name in document}
        text = json.dumps(kept, default=lambda number: number.lexeme)
        answered = replace(verified, headers={**verified.headers, base.CONFIRMED: text})
        try:
            now = _believed_facts(answered)
        except (base.Unusable, base.Ignorable, money.UnusableAmount):
            return answered  # about the transaction, and nothing that can be used: for staff to look at
        if not all(_is_borne_out(fact, now) for fact in _facts(told, verified.received_at)):
            raise base.NotConfirmed("the answer doesn't bear it out")
        return answered


def _believed_facts(verified: base.Verified) -> tuple[Fact, ...]:
    """Return the facts that the status API's answer tells, where it was asked, else the notification's.

    The answer is the transaction as it is now, so a refunded or charged back one was captured too.
    """
    if base.CONFIRMED not in verified.headers:
        return _facts(verified.document, verified.received_at)
    document = base.parse_json(verified.headers[base.CONFIRMED].encode())
    facts = _facts(document, verified.received_at)
    status = _lower(document["transaction_status"])
    if status not in _AFTER_CAPTURE:
        return facts
    transaction = _Transaction.of(document, verified.received_at)
    if status == "chargeback" and document.get("refunds"):
        facts = (*_refunds(document, transaction), *facts)
    return (transaction.fact(FactKind.PAYMENT_CAPTURED, transaction.gross_minor), *facts)


def _is_borne_out(told: Fact, now: Sequence[Fact]) -> bool:
    kinds = {fact.kind for fact in now if fact.object_id == told.object_id}
    return told.kind in kinds or not kinds.isdisjoint(_LATER.get(told.kind, ()))


def _is_same_amount(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    try:
        return _amount(one, "gross_amount") == _amount(other, "gross_amount")
    except (base.Unusable, money.UnusableAmount):
        return False


class _Transaction(NamedTuple):
    """What every notification says of its transaction, checked."""

    payment: str
    order: str
    gross_minor: int
    occurred_at: datetime

    @classmethod
    def of(cls, document: Mapping[str, Any], received_at: datetime) -> "_Transaction":
        # Midtrans sells in rupiah only, and the currency isn't signed: another one would change the amount.
        if document.get("currency") not in (None, "", _CURRENCY):
            raise base.Unusable("currency is not IDR")
        return cls(
            payment=base.identifier(document.get("transaction_id"), "transaction_id"),
            order=base.identifier(document.get("order_id"), "order_id"),
            gross_minor=_amount(document, "gross_amount"),
            occurred_at=_moment(document, "settlement_time", "transaction_time") or received_at,
        )

    def fact(
        self,
        kind: FactKind,
        amount_minor: int | None = None,
        *,
        object_id: str | None = None,
        part: str | None = None,
        occurred_at: datetime | None = None,
    ) -> Fact:
        return Fact(
            kind=kind,
            occurred_at=occurred_at or self.occurred_at,
            object_id=object_id or self.payment,
            payment=self.payment,
            part=part,
            amount_minor=amount_minor,
            currency=None if amount_minor is None else _CURRENCY,
            reference=self.order,
            reference_rank=2,
        )


def _facts(document: Mapping[str, Any], received_at: datetime) -> tuple[Fact, ...]:
    """Translate a status, whatever its case.  https://docs.midtrans.com/docs/transaction-status-cycle"""
    status, fraud = _lower(document.get("transaction_status")), _lower(document.get("fraud_status"))
    if status == "":
        raise base.Unusable("transaction_status is not a text")
    if status not in _STATUSES:
        raise base.Ignorable("no money in this transaction_status")
    transaction = _Transaction.of(document, received_at)
    fact, gross = transaction.fact, transaction.gross_minor
    if status in _WITHOUT_MONEY:
        return (fact(_WITHOUT_MONEY[status]),)
    if status in _REVERSING:
        return (fact(_REVERSING[status]), fact(FactKind.PAYMENT_REVERSED, gross))
    # A challenged capture waits for the merchant's review: it is not paid.
    if status == "authorize" or (status == "capture" and fraud == "challenge"):
        return (fact(FactKind.PAYMENT_AUTHORIZED, gross),)
    # A settlement is paid whatever fraud_status says; a store's payments have none.
    if status == "settlement" or (status == "capture" and fraud in ("", "accept")):
        _require_success(document)
        return (fact(FactKind.PAYMENT_CAPTURED, gross),)
    if status == "capture":
        raise base.Unusable("fraud_status of a capture is neither accept nor challenge")
    if status in ("refund", "partial_refund"):
        return _refunds(document, transaction)
    if status == "chargeback":
        _require_success(document)
        withdrawn = fact(FactKind.DISPUTE_FUNDS_WITHDRAWN, gross, part="chargeback")
        return (fact(FactKind.DISPUTE_OPENED), withdrawn)
    raise base.Unusable("a partial chargeback names no amount")


def _require_success(document: Mapping[str, Any]) -> None:
    # A pending transaction's notification has another code: nobody can make a settlement of it.
    if document.get("status_code") != _SUCCESS:
        raise base.Unusable("status_code is not that of success")


def _refunds(document: Mapping[str, Any], transaction: _Transaction) -> tuple[Fact, ...]:
    """Translate all refunds of a transaction so far, which each notification lists beside their sum.

    https://docs.midtrans.com/reference/refund-transaction
    """
    _require_success(document)
    refunds = document.get("refunds")
    if not isinstance(refunds, list) or not refunds:
        raise base.Unusable("refunds are not listed")
    is_card = _lower(document.get("payment_type")) == "credit_card"
    facts = tuple(_refund(refund, transaction, is_card=is_card) for refund in refunds)
    # The refunds aren't signed, the gross amount is.
    if sum(fact.amount_minor or 0 for fact in facts) > transaction.gross_minor:
        raise base.Unusable("refunds are more than the gross amount")
    return facts


def _refund(refund: object, transaction: _Transaction, *, is_card: bool) -> Fact:
    if not isinstance(refund, dict):
        raise base.Unusable("a refund is not an object")
    number = base.decimal_text(refund.get("refund_chargeback_id"), "refund_chargeback_id")
    # Refunds are numbered within their transaction.
    refund_id = f"{transaction.payment}/{base.identifier(number, 'refund_chargeback_id')}"
    # Every refund is notified twice, without and with the bank's confirmation; only a card's waits for that.
    confirmed_at = _moment(refund, "bank_confirmed_at")
    is_requested = is_card and confirmed_at is None
    return transaction.fact(
        FactKind.REFUND_REQUESTED if is_requested else FactKind.REFUND_SUCCEEDED,
        _amount(refund, "refund_amount"),
        object_id=base.identifier(refund_id, "transaction_id with refund_chargeback_id"),
        occurred_at=confirmed_at or _moment(refund, "created_at"),
    )


def _event_id(document: Mapping[str, Any], refunds: str) -> str:
    # Order, status and code are not enough: two partial refunds look alike in them, and so do a refund's two
    # notifications.
    names = ("order_id", "transaction_id", "status_code", "gross_amount", "currency")
    told = (document.get(name) for name in names)
    status, fraud = _lower(document.get("transaction_status")), _lower(document.get("fraud_status"))
    return base.composed_event_id(*told, status, fraud, refunds)


def _fingerprint(document: Mapping[str, Any], refunds: str) -> dict[str, str]:
    told = {name: document[name] for name in _CONTENT if name in document}
    return base.fingerprint({**told, "refunds": refunds})


def _told_refunds(document: Mapping[str, Any]) -> str:
    """Return what is told of the refunds, as one text in an order of its own."""
    refunds, names = document.get("refunds"), ("refund_chargeback_id", "refund_amount", "bank_confirmed_at")
    if refunds is None:
        return ""
    if not isinstance(refunds, list) or not all(isinstance(refund, dict) for refund in refunds):
        return base.canonical_json(refunds)
    return ",".join(sorted(base.canonical_json([refund.get(name) for name in names]) for refund in refunds))


def _amount(members: Mapping[str, Any], name: str) -> int:
    text = base.decimal_text(members.get(name), name)
    return money.minor_from_major(text, exponent=money.exponent(_CURRENCY))


def _moment(members: Mapping[str, Any], *names: str) -> datetime | None:
    for name in names:
        value = members.get(name)
        if value is not None and value != "":
            return base.moment(value + _ZONE if isinstance(value, str) else value, name)
    return None


def _is_signed(document: object, secrets: Sequence[str]) -> bool:
    if not isinstance(document, dict):
        return False
    *signed, given = (document.get(name) for name in (*_SIGNED, "signature_key"))
    texts = [text for text in signed if isinstance(text, str)]
    if not isinstance(given, str) or len(texts) < len(signed):
        return False
    message = "".join(texts).encode("utf-8", "surrogatepass")
    proof = given.encode("ascii", "replace")
    return any(
        hmac.compare_digest(sha512(message + secret.encode()).hexdigest().encode(), proof)
        for secret in filter(None, secrets)  # everybody knows the empty key
    )


def _lower(value: object) -> str:
    return value.lower() if isinstance(value, str) else ""
