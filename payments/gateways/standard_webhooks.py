"""Standard Webhooks, and the plain vocabulary of events that the `demo` endpoint speaks.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
import hmac
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from payments import money
from payments.facts import Fact, FactKind
from payments.gateways import base

KINDS: Final = {
    "payment.pending": FactKind.PAYMENT_PENDING,
    "payment.authorized": FactKind.PAYMENT_AUTHORIZED,
    "payment.captured": FactKind.PAYMENT_CAPTURED,
    "payment.failed": FactKind.PAYMENT_FAILED,
    "payment.expired": FactKind.PAYMENT_EXPIRED,
    "payment.voided": FactKind.PAYMENT_VOIDED,
    "payment.reversed": FactKind.PAYMENT_REVERSED,
    "fee.assessed": FactKind.FEE_ASSESSED,
    "refund.requested": FactKind.REFUND_REQUESTED,
    "refund.succeeded": FactKind.REFUND_SUCCEEDED,
    "refund.failed": FactKind.REFUND_FAILED,
    "dispute.opened": FactKind.DISPUTE_OPENED,
    "dispute.funds_withdrawn": FactKind.DISPUTE_FUNDS_WITHDRAWN,
    "dispute.funds_returned": FactKind.DISPUTE_FUNDS_RETURNED,
    "dispute.won": FactKind.DISPUTE_WON,
    "dispute.lost": FactKind.DISPUTE_LOST,
    "payout.paid": FactKind.PAYOUT_PAID,
    "payout.failed": FactKind.PAYOUT_FAILED,
}
_WITHOUT_MONEY: Final = frozenset(
    {
        FactKind.PAYMENT_PENDING,
        FactKind.PAYMENT_FAILED,
        FactKind.PAYMENT_EXPIRED,
        FactKind.PAYMENT_VOIDED,
        FactKind.DISPUTE_OPENED,
        FactKind.DISPUTE_WON,
    }
)
_LEGS: Final = frozenset({FactKind.DISPUTE_FUNDS_WITHDRAWN, FactKind.DISPUTE_FUNDS_RETURNED, FactKind.DISPUTE_LOST})
_MEMBERS_NAMED_MAX: Final = 64
NOUNS: Final[Mapping[FactKind, str]] = {kind: event_type.split(".")[0] for event_type, kind in KINDS.items()}


class StandardWebhooks(base.Gateway):
    name = "standard_webhooks"
    assurance = base.Assurance.BODY_SIGNED
    refuses_conflicts = True
    evidence_headers = ("webhook-id", "webhook-timestamp")

    def authenticate(self, delivery: base.Delivery, secrets: Sequence[str]) -> base.Verified:
        """Verify `v1,<base64 HMAC-SHA256 of id.timestamp.body>`; any one of several signatures is enough.

        https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md#signature-scheme
        """
        event_id = delivery.headers.get("webhook-id", "")
        timestamp = delivery.headers.get("webhook-timestamp", "")
        if not base.is_printable_ascii(event_id):
            raise base.VerificationFailed
        base.assert_fresh(timestamp, delivery.received_at)
        # More than a rotation's few signatures is nobody's honest header; the split is bounded.
        given = delivery.headers.get("webhook-signature", "").split(" ", 16)[:16]
        message = f"{event_id}.{timestamp}.".encode() + delivery.body
        for key in _keys(secrets):
            expected = b"v1," + base64.b64encode(base.hmac_sha256(key, message))
            if any(hmac.compare_digest(expected, candidate.encode("latin-1", "replace")) for candidate in given):
                return base.Verified.of(delivery)
        raise base.VerificationFailed

    def translate(self, verified: base.Verified, endpoint: base.EndpointConfig) -> list[base.Notice]:
        """Return the one notice of a delivery. The event id is the header's, which is signed."""
        event_id = verified.headers["webhook-id"]
        sent_at = base.moment_from_unix(int(verified.headers["webhook-timestamp"]), "webhook-timestamp")
        document = verified.document
        if not isinstance(document, dict):
            return [
                base.Notice(
                    event_id=event_id,
                    event_type="",
                    occurred_at=sent_at,
                    fingerprint=base.body_fingerprint(verified.body),
                    unusable=verified.problem or "the body is not a JSON object",
                )
            ]
        event_type, data = document.get("type"), document.get("data")
        kind = KINDS.get(event_type) if isinstance(event_type, str) else None
        facts: tuple[Fact, ...] = ()
        ignored = unusable = None
        occurred_at = sent_at
        if kind is not None:
            try:
                if document.get("timestamp") is not None:
                    occurred_at = base.moment(document["timestamp"], "timestamp")
                facts = (fact_of(kind, data, occurred_at),)
            except (base.Unusable, money.UnusableAmount) as error:
                unusable = str(error)
        elif isinstance(event_type, str):
            ignored = "no money in this type of event"
        else:
            unusable = "type is not a text"
        return [
            base.Notice(
                event_id=event_id,
                event_type=base.type_name(event_type),
                occurred_at=occurred_at,
                fingerprint=_fingerprint(event_type, data),
                facts=facts,
                ignored=ignored,
                unusable=unusable,
            )
        ]


def secret_key(secret: str) -> bytes:
    """Return the key bytes of a `whsec_<base64>` secret; raises ValueError if it isn't one."""
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error as error:
        raise ValueError("a Standard Webhooks secret is whsec_ and base64") from error


def is_usable(secret: str) -> bool:
    """Say whether a secret is `whsec_` and base64 of at least one byte."""
    return secret.startswith("whsec_") and any(_keys([secret]))


def _keys(secrets: Sequence[str]) -> Iterator[bytes]:
    for secret in secrets:
        try:
            key = secret_key(secret)
        except ValueError:  # a mistyped secret must not take the good ones with it
            continue
        if key:  # everybody knows the empty one
            yield key


def _fingerprint(event_type: object, data: object) -> dict[str, str]:
    if not isinstance(data, dict):
        return base.fingerprint({"type": event_type, "data": data})
    # Every member counts, by its name where the name can be shown and there are not absurdly many, else together.
    if len(data) <= _MEMBERS_NAMED_MAX and all(len(name) <= 64 and name.isprintable() for name in data):
        return base.fingerprint({"type": event_type, **{f"data.{name}": value for name, value in data.items()}})
    return base.fingerprint({"type": event_type, "data": data})


def fact_of(kind: FactKind, data: object, occurred_at: datetime) -> Fact:
    """Return the fact that an event's data tells. Raises base.Unusable or money.UnusableAmount."""
    if not isinstance(data, dict):
        raise base.Unusable("data is not an object")
    payment = base.optional_identifier(data.get("payment"), "payment")
    noun = NOUNS[kind]  # the member that names what the fact is about
    object_id = base.identifier(data.get(noun), noun)
    if payment is None and noun != "payout":
        raise base.Unusable("payment is missing")
    amount = currency = None
    if kind not in _WITHOUT_MONEY:
        amount, currency = money.amount_minor(data.get("amount")), money.currency_code(data.get("currency"))
    reference = base.optional_identifier(data.get("reference"), "reference")
    return Fact(
        kind=kind,
        occurred_at=occurred_at,
        object_id=object_id,
        payment=payment if noun != "payout" else None,
        part=_part(kind, data),
        amount_minor=amount,
        currency=currency,
        account=base.optional_identifier(data.get("account"), "account"),
        # Without a reference of its own a payment is known to the merchant by the gateway's.
        reference=reference or payment,
        reference_rank=2 if reference else 1,
    )


def _part(kind: FactKind, data: Mapping[str, Any]) -> str | None:
    if kind in (FactKind.PAYMENT_CAPTURED, FactKind.PAYMENT_REVERSED):
        return base.optional_identifier(data.get("capture"), "capture")
    if kind in _LEGS:
        return _movement(data.get("movement"))
    return None


def _movement(value: object) -> str:
    # Several legs of one dispute are told apart by a text or a number; the first needs none.
    if type(value) is int:
        return str(value)
    return base.optional_identifier(value, "movement") or "1"
