"""Adyen's standard webhooks: a batch of items, each signed in eight of its fields.

https://docs.adyen.com/development-resources/webhooks/webhook-types

What isn't among the signed fields (additionalData, reason) decides nothing about money. One delivery that
fails holds back an endpoint's whole queue, so everything that verifies is acknowledged, usable or not.
"""

import base64
import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from payments import money, replies
from payments.facts import Fact, FactKind
from payments.gateways import base

# Adyen's own, 2 where absent; CVE, IDR, CLP and ISK differ from ISO 4217's.
# https://docs.adyen.com/development-resources/currency-codes
_EXPONENTS: Final[dict[str, int]] = {
    **dict.fromkeys(["CVE", "DJF", "GNF", "IDR", "JPY", "KMF", "KRW", "PYG"], 0),
    **dict.fromkeys(["RWF", "UGX", "VND", "VUV", "XAF", "XOF", "XPF"], 0),
    **dict.fromkeys(["BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"], 3),
}
# Steps of a dispute, and the leg that each moves: the money can go out, come back and go out again.
# https://docs.adyen.com/risk-management/disputes-api/dispute-notifications
_DISPUTES: Final[dict[str, tuple[FactKind, str | None]]] = {
    "NOTIFICATION_OF_CHARGEBACK": (FactKind.DISPUTE_OPENED, None),
    "CHARGEBACK": (FactKind.DISPUTE_FUNDS_WITHDRAWN, "1"),
    "CHARGEBACK_REVERSED": (FactKind.DISPUTE_FUNDS_RETURNED, "1"),
    "SECOND_CHARGEBACK": (FactKind.DISPUTE_FUNDS_WITHDRAWN, "2"),
    "PREARBITRATION_WON": (FactKind.DISPUTE_WON, None),
    "PREARBITRATION_LOST": (FactKind.DISPUTE_LOST, "2"),
}
_CANCELLATIONS: Final = ("CANCELLATION", "TECHNICAL_CANCEL")
_REFUNDS: Final = ("REFUND", "REFUND_FAILED", "REFUNDED_REVERSED")
# Money that is not translated: CANCEL_OR_REFUND doesn't sign which of the two it was.
_UNTRANSLATED: Final = frozenset(
    {
        *("CANCEL_OR_REFUND", "REFUND_WITH_DATA", "VOID_PENDING_REFUND", "POSTPONED_REFUND"),
        *("DISPUTE_DEFENSE_PERIOD_ENDED", "SCHEME_ARBITRATION_WON", "SCHEME_ARBITRATION_LOST"),
        *("PAYOUT_THIRDPARTY", "PAYOUT_DECLINE", "PAYOUT_EXPIRE", "PAIDOUT_REVERSED"),
    }
)
_TRANSLATED: Final = ("AUTHORISATION", "CAPTURE", "CAPTURE_FAILED", "EXPIRE")
_MONEY: Final = frozenset({*_TRANSLATED, *_CANCELLATIONS, *_REFUNDS, *_DISPUTES, *_UNTRANSLATED})


class Adyen(base.Gateway):
    name = "adyen"
    assurance = base.Assurance.FIELDS_SIGNED
    settling_days = 7

    def authenticate(self, delivery: base.Delivery, secrets: Sequence[str]) -> base.Verified:
        """Verify every item, under any one of the secrets; one bad item refuses the whole delivery.

        https://docs.adyen.com/development-resources/webhooks/secure-webhooks/verify-hmac-signatures
        """
        verified, keys = base.Verified.of(delivery), list(_keys(secrets))
        try:
            items = _items(verified)
        except base.Unusable as unusable:
            raise base.VerificationFailed from unusable
        if not all(_is_signed(item, keys) for item in items):
            raise base.VerificationFailed
        return verified

    def translate(self, verified: base.Verified, endpoint: base.EndpointConfig) -> list[base.Notice]:
        """Return one notice for each item, in their order."""
        try:
            items = _items(verified)
        except base.Unusable as reason:
            return [base.unreadable(verified, str(reason))]
        return [_notice(item, endpoint, is_alone=len(items) == 1) for item in items]

    def acknowledge(self, event_id: str, outcome: str) -> replies.Reply:
        """Return the answer that Adyen expects to everything that verifies.

        https://docs.adyen.com/development-resources/webhooks/configure-and-manage
        """
        return replies.Reply(200, b"[accepted]", "text/plain")

    def exponent(self, currency: str) -> int:
        """Return Adyen's own: IDR and CVE are 0, CLP and ISK are 2."""
        return _EXPONENTS.get(currency, 2)


class _Item(NamedTuple):
    """One NotificationRequestItem and its envelope's mode. `signed` are the signed fields, as texts."""

    members: Mapping[str, Any]
    signed: Mapping[str, str]
    live: object
    received_at: datetime

    @property
    def code(self) -> str:
        return self.signed["eventCode"]

    @property
    def succeeded(self) -> bool:
        return self.signed["success"] == "true"

    def amount(self) -> tuple[int, str]:
        """Return the amount in ISO 4217's minor units, with its currency."""
        currency, amount = money.currency_code(self.signed["currency"]), self.members.get("amount")
        value = amount.get("value") if isinstance(amount, dict) else None
        if type(value) is not int:
            raise base.Unusable("value is not an integer")
        wire, ours = _EXPONENTS.get(currency, 2), money.exponent(currency)
        return money.rescale(value, from_exponent=wire, to_exponent=ours), currency


class _Subject(NamedTuple):
    """What an item speaks of, checked."""

    psp: str
    original: str | None
    payment: str
    account: str
    reference: str | None
    occurred_at: datetime

    @classmethod
    def of(cls, item: _Item) -> "_Subject":
        signed, told_at = item.signed, item.members.get("eventDate")
        psp = base.identifier(signed["pspReference"], "pspReference")
        original = base.optional_identifier(signed["originalReference"], "originalReference")
        return cls(
            psp=psp,
            original=original,
            # Some steps of a dispute name no original.
            payment=psp if item.code == "AUTHORISATION" else original or psp,
            account=base.identifier(signed["merchantAccountCode"], "merchantAccountCode"),
            reference=base.optional_identifier(signed["merchantReference"], "merchantReference"),
            occurred_at=item.received_at if told_at is None else base.moment(told_at, "eventDate"),
        )

    def keyed(self, reference: str) -> str:
        """Return the id of a payment or modification: its reference within the merchant account."""
        return base.identifier(f"{self.account}/{reference}", "merchantAccountCode with a reference")

    def fact(
        self,
        kind: FactKind,
        object_id: str,
        amount: tuple[int, str] | None = None,
        *,
        part: str | None = None,
    ) -> Fact:
        return Fact(
            kind=kind,
            occurred_at=self.occurred_at,
            object_id=object_id,
            payment=self.payment,
            part=part,
            amount_minor=amount[0] if amount else None,
            currency=amount[1] if amount else None,
            reference=self.reference,
            reference_rank=2 if self.reference else 0,
        )


def _notice(item: _Item, endpoint: base.EndpointConfig, *, is_alone: bool) -> base.Notice:
    facts, ignored, unusable = base.understand(lambda: _facts(item, endpoint))
    names = ("eventCode", "pspReference", "success", "merchantAccountCode")
    return base.Notice(
        event_id=base.composed_event_id(*(item.signed[name] for name in names)),
        event_type=base.type_name(item.code),
        occurred_at=facts[0].occurred_at if facts else item.received_at,
        # Later copies of an event can carry newer additionalData.
        fingerprint=base.fingerprint(item.signed),
        facts=facts,
        ignored=ignored,
        unusable=unusable,
        evidence=None if is_alone else _evidence(item),
    )


def _assert_of_interest(item: _Item, endpoint: base.EndpointConfig) -> None:
    if item.code not in _MONEY:
        raise base.Ignorable("no money in this type of event")
    if item.live not in ("true", "false"):
        raise base.Unusable("live is neither true nor false")
    if (item.live == "true") is not endpoint.live:
        raise base.Ignorable("the event's mode is not the endpoint's")
    if item.code in _UNTRANSLATED:
        raise base.Unusable("money of this type of event is not translated")
    if item.signed["success"] not in ("true", "false"):
        raise base.Unusable("success is neither true nor false")
    if not item.succeeded and item.code not in ("AUTHORISATION", "REFUND"):
        raise base.Ignorable("what was asked for did not happen")
    if item.code == "AUTHORISATION" and item.signed["value"] == "0":
        raise base.Ignorable("an authorisation of nothing checks a card")


def _facts(item: _Item, endpoint: base.EndpointConfig) -> tuple[Fact, ...]:
    """Translate what happened.  https://docs.adyen.com/development-resources/webhooks/webhook-types"""
    _assert_of_interest(item, endpoint)
    subject = _Subject.of(item)
    if item.code == "AUTHORISATION":
        return _authorisation(item, subject, endpoint)
    if item.code == "EXPIRE":
        return (subject.fact(FactKind.PAYMENT_EXPIRED, subject.payment),)
    if item.code in _DISPUTES:
        kind, leg = _DISPUTES[item.code]
        return (subject.fact(kind, subject.psp, item.amount() if leg else None, part=leg),)
    if subject.original is None:
        raise base.Unusable("originalReference is missing")
    return _modification(item, subject, subject.original, endpoint)


def _authorisation(item: _Item, subject: _Subject, endpoint: base.EndpointConfig) -> tuple[Fact, ...]:
    if not item.succeeded:
        return (subject.fact(FactKind.PAYMENT_FAILED, subject.psp),)
    amount = item.amount()
    authorized = subject.fact(FactKind.PAYMENT_AUTHORIZED, subject.psp, amount)
    if not endpoint.auto_capture:
        return (authorized,)
    return (authorized, subject.fact(FactKind.PAYMENT_CAPTURED, subject.keyed(subject.psp), amount))


def _modification(item: _Item, subject: _Subject, original: str, endpoint: base.EndpointConfig) -> tuple[Fact, ...]:
    if item.code in _CANCELLATIONS:
        voided = subject.fact(FactKind.PAYMENT_VOIDED, original)
        if not endpoint.auto_capture:
            return (voided,)
        return (voided, subject.fact(FactKind.PAYMENT_REVERSED, subject.keyed(original), item.amount()))
    if item.code in _REFUNDS:
        # A failure carries the pspReference of the refund it speaks of, and can follow its success.
        # https://docs.adyen.com/online-payments/refund
        is_done = item.code == "REFUND" and item.succeeded
        kind = FactKind.REFUND_SUCCEEDED if is_done else FactKind.REFUND_FAILED
        return (subject.fact(kind, subject.keyed(subject.psp), item.amount()),)
    # Under auto-capture the capture is the one that its authorisation booked, else there can be several.
    # https://docs.adyen.com/online-payments/capture
    kind = FactKind.PAYMENT_CAPTURED if item.code == "CAPTURE" else FactKind.PAYMENT_REVERSED
    captured = subject.keyed(original if endpoint.auto_capture else subject.psp)
    return (subject.fact(kind, captured, item.amount()),)


def _items(verified: base.Verified) -> list[_Item]:
    """Return the items of a delivery, one or more, or raise Unusable."""
    document = verified.document
    wrappers = document.get("notificationItems") if isinstance(document, dict) else None
    if not isinstance(wrappers, list) or not wrappers:
        raise base.Unusable("notificationItems is not a list of items")
    items = []
    for wrapper in wrappers:
        members = wrapper.get("NotificationRequestItem") if isinstance(wrapper, dict) else None
        if not isinstance(members, dict):
            raise base.Unusable("an item is not an object")
        items.append(_Item(members, _signed(members), document.get("live"), verified.received_at))
    return items


def _signed(members: Mapping[str, Any]) -> dict[str, str]:
    """Return the signed fields in the order of their signing, absent ones empty, or raise Unusable."""
    amount = members.get("amount")
    amount = amount if isinstance(amount, dict) else {}
    told = {
        "pspReference": members.get("pspReference"),
        "originalReference": members.get("originalReference"),
        "merchantAccountCode": members.get("merchantAccountCode"),
        "merchantReference": members.get("merchantReference"),
        "value": amount.get("value"),
        "currency": amount.get("currency"),
        "eventCode": members.get("eventCode"),
        "success": members.get("success"),
    }
    signed = {name: "" if value is None else base.decimal_text(value, name) for name, value in told.items()}
    # They are joined by ":" and not escaped: could several hold one, other fields might give the same text.
    # Only the merchant's own reference may.
    if any(":" in text for name, text in signed.items() if name != "merchantReference"):
        raise base.Unusable("a signed field holds a colon")
    return signed


def _is_signed(item: _Item, keys: Sequence[bytes]) -> bool:
    additional = item.members.get("additionalData")
    signature = additional.get("hmacSignature") if isinstance(additional, dict) else None
    if not isinstance(signature, str):
        return False
    given = signature.encode("ascii", "replace")
    message = ":".join(item.signed.values()).encode("utf-8", "surrogatepass")
    return any(hmac.compare_digest(base64.b64encode(base.hmac_sha256(key, message)), given) for key in keys)


def is_usable(secret: str) -> bool:
    """Say whether a secret is an HMAC key as Adyen generates them: hexadecimal, and not empty."""
    return any(_keys([secret]))


def _keys(secrets: Sequence[str]) -> Iterator[bytes]:
    for secret in secrets:
        try:
            key = bytes.fromhex(secret)
        except ValueError:  # a mistyped secret must not take the good ones with it
            continue
        if key:
            yield key


def _evidence(item: _Item) -> bytes:
    """Return one item of several as a delivery of its own, so that it can be translated again alone."""
    envelope = {"live": item.live, "notificationItems": [{"NotificationRequestItem": item.members}]}
    return json.dumps(envelope, default=lambda number: number.lexeme).encode()
