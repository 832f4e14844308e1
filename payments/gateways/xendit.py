"""Xendit: payments, invoices, refunds, payouts and disputes, in three shapes of body.

https://docs.xendit.co/docs/set-up-webhooks

A static token in a header proves the sender and nothing of the body; TLS does the rest. Most products send
{event, business_id, created, data}, disputes are flat, invoices flat and without a name. Amounts are in major
units, as number or text; only payouts count minor units, and the rupiah has none there.
"""

import hmac
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from payments import money
from payments.facts import Fact, FactKind
from payments.gateways import base

_TOKEN_HEADER: Final = "x-callback-token"  # noqa: S105, a header's name
_ID_HEADER: Final = "webhook-id"
# What makes two deliveries the same content. The envelope's `created` doesn't: it is the attempt's time.
_TOLD: Final = (
    *("id", "payment_id", "payment_request_id", "invoice_id", "payout_id", "external_id", "reference_id"),
    *("status", "currency", "amount", "request_amount", "paid_amount", "captures"),
    *("source_amount", "source_currency"),
)
# Money that is not translated here; named, so that it isn't taken for an event without money.
_UNTRANSLATED: Final = frozenset(
    {
        *("capture.succeeded", "ewallet.capture", "ewallet.void", "ewallet.refund", "qr.payment"),
        *("qr.refund", "payout.succeeded", "payout.failed", "payout.reversed", "payout.refunded"),
        *("direct_debit.payment", "bill_payment.succeeded", "split.payment"),
    }
)


class Xendit(base.Gateway):
    name = "xendit"
    assurance = base.Assurance.TOKEN_ONLY
    evidence_headers = (_ID_HEADER,)
    settling_days = 3

    def authenticate(self, delivery: base.Delivery, secrets: Sequence[str]) -> base.Verified:
        """Verify the token, the same for all events; the event id beside it, if any, must be one.

        https://docs.xendit.co/apidocs/payment-webhook-notification
        """
        token = delivery.headers.get(_TOKEN_HEADER, "")
        event_id = delivery.headers.get(_ID_HEADER)
        if not base.is_printable_ascii(token):
            raise base.VerificationFailed
        if event_id is not None and not base.is_printable_ascii(event_id):
            raise base.VerificationFailed
        if not any(hmac.compare_digest(token.encode(), secret.encode()) for secret in secrets):
            raise base.VerificationFailed
        return base.Verified.of(delivery)

    def translate(self, verified: base.Verified, endpoint: base.EndpointConfig) -> list[base.Notice]:
        """Return the one notice of a delivery; its id is the header's, else composed of what is told."""
        header_id, document = verified.headers.get(_ID_HEADER), verified.document
        data = document.get("data", document) if isinstance(document, dict) else None
        if not isinstance(data, dict):
            return [base.unreadable(verified, event_id=header_id)]
        event_type = _event_type(document)
        facts, ignored, unusable = base.understand(lambda: _facts(event_type, data, verified.received_at))
        told = {name: data[name] for name in _TOLD if name in data}
        return [
            base.Notice(
                event_id=header_id or base.composed_event_id(event_type, *map(data.get, _TOLD)),
                event_type=base.type_name(event_type),
                occurred_at=facts[0].occurred_at if facts else verified.received_at,
                fingerprint=base.fingerprint({"event": event_type, **told}),
                facts=facts,
                ignored=ignored,
                unusable=unusable,
            )
        ]

    def exponent(self, currency: str) -> int:
        """Return that of payouts, whose amounts alone are in minor units."""
        return _payout_exponent(currency)


def _event_type(document: Mapping[str, Any]) -> str:
    """Return the event's name, or "" for a body of no known shape. An invoice's status makes its name.

    https://docs.xendit.co/docs/invoice-webhooks
    """
    event_type, status = document.get("event"), document.get("status")
    if isinstance(event_type, str):
        return event_type
    if "event" not in document and "external_id" in document and isinstance(status, str):
        name = f"invoice.{status.lower()}"
        return name if name in _TRANSLATIONS else ""
    return ""


def _facts(event_type: str, data: Mapping[str, Any], received_at: datetime) -> tuple[Fact, ...]:
    if event_type == "":
        raise base.Unusable("no event of a known shape")
    if event_type in _UNTRANSLATED:
        raise base.Unusable("money of this type of event is not translated")
    if event_type not in _TRANSLATIONS:
        raise base.Ignorable("no money in this type of event")
    translate, kind = _TRANSLATIONS[event_type]
    occurred_at = _moment(data, "paid_at", "updated", "updated_at", "created", "created_at")
    return translate(kind, data, occurred_at or received_at)


def _payment(kind: FactKind, data: Mapping[str, Any], occurred_at: datetime) -> tuple[Fact, ...]:
    """Translate a payment: its captures one by one where they are listed, else only their total is told.

    https://docs.xendit.co/apidocs/payment-webhook-notification
    """
    # Payment requests of version 2 call it `id`, and the amount `amount`.
    payment = base.identifier(_first(data, "payment_id", "id"), "payment_id")
    currency, reference = data.get("currency"), data.get("reference_id")
    if kind in (FactKind.PAYMENT_FAILED, FactKind.PAYMENT_EXPIRED, FactKind.PAYMENT_PENDING):
        return (_fact(kind, occurred_at, payment, payment, reference),)
    captures = data.get("captures")
    if kind is FactKind.PAYMENT_AUTHORIZED or not captures:
        told = FactKind.PAYMENT_CAPTURED_TOTAL if kind is FactKind.PAYMENT_CAPTURED else kind
        amount = _first(data, "request_amount", "amount")
        return (_fact(told, occurred_at, payment, payment, reference, _major(amount, currency)),)
    if not isinstance(captures, list) or not all(isinstance(capture, dict) for capture in captures):
        raise base.Unusable("captures is not a list of objects")
    return tuple(
        _fact(
            kind,
            _moment(capture, "capture_timestamp") or occurred_at,
            base.identifier(capture.get("capture_id"), "capture_id"),
            payment,
            reference,
            _major(capture.get("capture_amount"), currency),
        )
        for capture in captures
    )


def _invoice(kind: FactKind, data: Mapping[str, Any], occurred_at: datetime) -> tuple[Fact, ...]:
    """Translate an invoice; PAID and then SETTLED is one payment.

    https://docs.xendit.co/docs/invoice-webhooks
    """
    invoice, is_paid = base.identifier(data.get("id"), "id"), kind is FactKind.PAYMENT_CAPTURED
    paid = _major(data.get("paid_amount"), data.get("currency")) if is_paid else None
    return (_fact(kind, occurred_at, invoice, invoice, data.get("external_id"), paid),)


def _refund(kind: FactKind, data: Mapping[str, Any], occurred_at: datetime) -> tuple[Fact, ...]:
    """Translate a refund, of an invoice where it names one. Its reference_id is the refund's own.

    https://docs.xendit.co/apidocs/refund-webhook-notification
    """
    refund = base.identifier(data.get("id"), "id")
    payment = base.identifier(_first(data, "invoice_id", "payment_id"), "payment_id")
    refunded = _major(data.get("amount"), data.get("currency"))
    return (_fact(kind, occurred_at, refund, payment, None, refunded),)


def _dispute(kind: FactKind, data: Mapping[str, Any], occurred_at: datetime) -> tuple[Fact, ...]:
    """Translate a dispute. No event of its own tells of the money: lost means withdrawn and closed.

    https://docs.xendit.co/apidocs/dispute-webhook-notifications
    """
    dispute = base.identifier(data.get("id"), "id")
    payment = base.identifier(data.get("payment_id"), "payment_id")
    if kind is not FactKind.DISPUTE_LOST:
        return (_fact(kind, occurred_at, dispute, payment, data.get("reference_id")),)
    told = data.get("amount")
    if not isinstance(told, dict):
        raise base.Unusable("amount is not an object")
    # What it ended with can be less than what it began with.
    lost = _major(_first(told, "terminal", "initial"), data.get("currency"))
    return (_fact(kind, occurred_at, dispute, payment, data.get("reference_id"), lost, part="1"),)


def _payout(kind: FactKind, data: Mapping[str, Any], occurred_at: datetime) -> tuple[Fact, ...]:
    """Translate a payout by what it took from our balance, in minor units: IDR 10 is 10, PHP 10.00 is 1000.

    https://docs.xendit.co/apidocs/payout-v3-webhook
    """
    payout = base.identifier(data.get("payout_id"), "payout_id")
    currency = money.currency_code(data.get("source_currency"))
    told = base.decimal_text(data.get("source_amount"), "source_amount")
    if "." in told:
        raise base.Unusable("source_amount is not in minor units")
    wire, ours = _payout_exponent(currency), money.exponent(currency)
    amount = money.rescale(money.minor_from_major(told, exponent=0), from_exponent=wire, to_exponent=ours)
    return (_fact(kind, occurred_at, payout, None, None, (amount, currency)),)


def _payout_exponent(currency: str) -> int:
    return 0 if currency == "IDR" else money.exponent(currency)


def _fact(
    kind: FactKind,
    occurred_at: datetime,
    object_id: str,
    payment: str | None,
    reference: object,
    amount: tuple[int, str] | None = None,
    *,
    part: str | None = None,
) -> Fact:
    named = base.optional_identifier(reference, "reference")
    return Fact(
        kind=kind,
        occurred_at=occurred_at,
        object_id=object_id,
        payment=payment,
        part=part,
        amount_minor=amount[0] if amount else None,
        currency=amount[1] if amount else None,
        reference=named,
        reference_rank=2 if named else 0,
    )


def _major(value: object, currency: object) -> tuple[int, str]:
    code = money.currency_code(currency)
    return money.minor_from_major(base.decimal_text(value, "amount"), exponent=money.exponent(code)), code


def _first(members: Mapping[str, Any], *names: str) -> object:
    return next((members[name] for name in names if members.get(name) not in (None, "")), None)


def _moment(members: Mapping[str, Any], *names: str) -> datetime | None:
    told = _first(members, *names)
    return None if told is None else base.moment(told, "time")


_Translate = Callable[[FactKind, Mapping[str, Any], datetime], tuple[Fact, ...]]
_TRANSLATIONS: Final[dict[str, tuple[_Translate, FactKind]]] = {
    "payment.capture": (_payment, FactKind.PAYMENT_CAPTURED),
    "payment.authorization": (_payment, FactKind.PAYMENT_AUTHORIZED),
    "payment.failure": (_payment, FactKind.PAYMENT_FAILED),
    "payment.expiry": (_payment, FactKind.PAYMENT_EXPIRED),
    # Payment requests of version 2.
    "payment.succeeded": (_payment, FactKind.PAYMENT_CAPTURED),
    "payment.awaiting_capture": (_payment, FactKind.PAYMENT_AUTHORIZED),
    "payment.pending": (_payment, FactKind.PAYMENT_PENDING),
    "payment.failed": (_payment, FactKind.PAYMENT_FAILED),
    "invoice.pending": (_invoice, FactKind.PAYMENT_PENDING),
    "invoice.paid": (_invoice, FactKind.PAYMENT_CAPTURED),
    "invoice.settled": (_invoice, FactKind.PAYMENT_CAPTURED),
    "invoice.expired": (_invoice, FactKind.PAYMENT_EXPIRED),
    "refund.succeeded": (_refund, FactKind.REFUND_SUCCEEDED),
    "refund.failed": (_refund, FactKind.REFUND_FAILED),
    "dispute.action_required": (_dispute, FactKind.DISPUTE_OPENED),
    "dispute.won": (_dispute, FactKind.DISPUTE_WON),
    "dispute.lost": (_dispute, FactKind.DISPUTE_LOST),
    "v3_payout.succeeded": (_payout, FactKind.PAYOUT_PAID),
    # After each of these the money is back in our balance.
    "v3_payout.failed": (_payout, FactKind.PAYOUT_FAILED),
    "v3_payout.rejected": (_payout, FactKind.PAYOUT_FAILED),
    "v3_payout.reversed": (_payout, FactKind.PAYOUT_FAILED),
}
