"""Razorpay's settlement recon: JSON, {"items": [...]} as its API answers, or a list of items; read item by item.

https://razorpay.com/docs/api/settlements/fetch-recon/
Amounts are integers of minor units. An item's fee has its tax in it: a payment's credit is its amount less the fee.
"""

import codecs
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, BinaryIO, Final

from payments import money
from payments.facts import Fact, FactKind
from payments.gateways import base
from payments.statements.base import Statement, StatementLine, StatementUnreadable, fee

_Item = Mapping[str, Any]
_READ_BYTES: Final = 256 * 1024
_ITEM_CHARS_MAX: Final = 1024 * 1024  # an item is a few hundred; what isn't JSON must not be gathered without end
# Statements are made for days in India.
_ZONE: Final = timezone(timedelta(hours=5, minutes=30))


class Razorpay(Statement):
    name = "razorpay"
    days_zone = _ZONE

    def lines(
        self, file: BinaryIO, endpoint: base.EndpointConfig, columns: Mapping[str, str]
    ) -> Iterator[StatementLine]:
        for number, item in enumerate(items(file), start=1):
            try:
                yield _line(item, number)
            except base.Ignorable as reason:
                yield StatementLine(number=number, ignored=str(reason))
            except (base.Unusable, money.UnusableAmount) as reason:
                yield StatementLine(number=number, unusable=str(reason))


def items(file: BinaryIO) -> Iterator[Any]:
    """Yield the values of the file's list one by one. Raises StatementUnreadable."""
    text = _Text(file)
    if not text.skip_to("["):
        raise StatementUnreadable("the file holds no list of items")
    while (mark := text.next_mark()) != "]":
        if mark == "":
            raise StatementUnreadable("the file ends within its list of items")
        if mark == ",":
            text.drop(1)
        else:
            yield text.value()


class _Text:
    """The file's text from where it is read to; no more of it than is looked at."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._is_whole = "", 0, False

    def skip_to(self, mark: str) -> bool:
        while (found := self._text.find(mark, self._at)) < 0:
            self._at = len(self._text)
            if not self._read():
                return False
        self._at = found + 1
        return True

    def next_mark(self) -> str:
        """Return the next character that isn't white, and stay before it; "" at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in " \t\r\n":
                    return self._text[self._at]
                self._at += 1
            if not self._read():
                return ""

    def drop(self, count: int) -> None:
        self._at += count

    def value(self) -> Any:
        while True:
            try:
                value, end = base.JSON_DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # Cut off in its middle, perhaps: a longer text may be one.
                if len(self._text) - self._at > _ITEM_CHARS_MAX or not self._read():
                    raise StatementUnreadable("an item is not JSON") from error
            except (ValueError, RecursionError) as error:
                raise StatementUnreadable("an item is not JSON, or names a member twice") from error
            else:
                self._at = end
                return value

    def _read(self) -> bool:
        if self._is_whole:
            return False
        chunk = self._file.read(_READ_BYTES)
        self._is_whole = not chunk
        try:
            self._text = self._text[self._at :] + self._decode.decode(chunk, final=self._is_whole)
        except UnicodeDecodeError as error:
            raise StatementUnreadable("the file is not UTF-8") from error
        self._at = 0
        return True


def _line(item: Any, number: int) -> StatementLine:
    if not isinstance(item, dict):
        raise base.Unusable("the item is not an object")
    principal = _principal(item)
    kept = item.get("fee")
    if kept is not None and type(kept) is not int:
        raise base.Unusable("fee is not an integer")
    beside = fee(
        (kept or 0, money.currency_code(item.get("currency"))),
        occurred_at=principal.occurred_at,
        object_id=principal.object_id,
        payment=principal.payment,
    )
    payout = base.optional_identifier(item.get("settlement_id"), "settlement_id")
    return StatementLine(number=number, principal=principal, beside=beside, payout=payout)


def _principal(item: _Item) -> Fact:
    kind, entity_id = item.get("type"), base.identifier(item.get("entity_id"), "entity_id")
    if kind == "payment":
        return _fact(FactKind.PAYMENT_CAPTURED, item, entity_id, entity_id)
    payment = base.optional_identifier(item.get("payment_id"), "payment_id")
    if kind == "refund":
        return _fact(FactKind.REFUND_SUCCEEDED, item, entity_id, payment)
    dispute = base.optional_identifier(item.get("dispute_id"), "dispute_id")
    if kind == "adjustment" and dispute is not None:
        is_out = item.get("debit") not in (None, 0)
        leg = FactKind.DISPUTE_FUNDS_WITHDRAWN if is_out else FactKind.DISPUTE_FUNDS_RETURNED
        return _fact(leg, item, dispute, payment, part="1")
    raise base.Unusable("money of this type is not translated")


def _fact(kind: FactKind, item: _Item, object_id: str, payment: str | None, *, part: str | None = None) -> Fact:
    created_at: datetime = base.moment_from_unix(item.get("created_at"), "created_at")
    notes = item.get("notes")
    named = base.optional_identifier(notes.get("order_id") if isinstance(notes, dict) else None, "notes.order_id")
    reference = named or base.optional_identifier(item.get("order_id"), "order_id")
    is_capture = kind is FactKind.PAYMENT_CAPTURED
    return Fact(
        kind=kind,
        occurred_at=created_at.replace(tzinfo=UTC).astimezone(_ZONE),
        object_id=object_id,
        payment=payment,
        part=part,
        amount_minor=money.amount_minor(item.get("amount")),
        currency=money.currency_code(item.get("currency")),
        reference=reference if is_capture else None,
        reference_rank=0 if not is_capture or reference is None else 2 if named else 1,
    )
