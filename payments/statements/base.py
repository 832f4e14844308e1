"""What every statement format is: a pure reading of a gateway's file, one line after the other, into facts.

A format touches no database and holds no more of the file than a line. A line that can't be used is told as such, with
the reason; a file that can't be read at all raises StatementUnreadable. Amounts are exact; no number passes through a
float. Times keep the zone that the statement counts its days in.
"""

import abc
import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import BinaryIO, ClassVar, Final

from payments import money
from payments.facts import Fact, FactKind
from payments.gateways import base

Row = Mapping[str, str]  # a line's fields by the names of their columns

_ZERO: Final = re.compile(r"(0+(\.0*)?)?")
_OFFSET: Final = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?")
# As statements abbreviate them; an hour's summer time has a name of its own.
_ZONE_HOURS: Final[dict[str, float]] = {
    **dict.fromkeys(("UTC", "GMT", "Z", "WET"), 0),
    **dict.fromkeys(("CET", "BST", "WEST"), 1),
    **dict.fromkeys(("EET", "CEST"), 2),
    **dict.fromkeys(("WIB",), 7),
    **dict.fromkeys(("SGT", "HKT", "PHT", "WITA", "AWST"), 8),
    **dict.fromkeys(("JST", "WIT"), 9),
    "EEST": 3,
    "IST": 5.5,
    "AEST": 10,
    "AEDT": 11,
    "NZST": 12,
    "NZDT": 13,
    "BRT": -3,
    "EDT": -4,
    "EST": -5,
    "CDT": -5,
    "CST": -6,
    "MDT": -6,
    "MST": -7,
    "PDT": -7,
    "PST": -8,
}


class StatementUnreadable(Exception):
    """The file is no statement of this format; its text says why. Nothing of it was used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementLine:
    """One line of a gateway's statement.

    number      of the line in its file, as an editor counts; of the item, where the file isn't made of lines
    principal   the fact whose verdict is the line's
    beside      its fees, and what a conversion made of its gross: booked beside, never the line's verdict
    is_summed   it names no capture: all such lines of one payment are one amount, their sum within the file
    sign        -1 for a summed line that takes back a part of what others captured
    known_as    the fact as a webhook may have told it under another key
    payout      id of the payout that the line only names as the one it is part of
    ignored     why the line tells of no money; unusable: why it can't be used. Else there is a principal.
    """

    number: int
    principal: Fact | None = None
    beside: tuple[Fact, ...] = ()
    is_summed: bool = False
    sign: int = 1
    known_as: Fact | None = None
    payout: str | None = None
    ignored: str | None = None
    unusable: str | None = None


class Statement(abc.ABC):
    """One format. Subclasses hold no state; one instance serves everybody."""

    name: ClassVar[str]
    # Of the days that such a statement is made for, where that is not written on its lines.
    days_zone: ClassVar[tzinfo] = UTC
    # What such a statement lists one by one. Another kind's absence from it means nothing.
    lists: ClassVar[frozenset[FactKind]] = frozenset(
        {
            *(FactKind.PAYMENT_CAPTURED, FactKind.PAYMENT_CAPTURED_TOTAL, FactKind.PAYMENT_REVERSED),
            *(FactKind.REFUND_SUCCEEDED, FactKind.REFUNDED_TOTAL, FactKind.REFUND_FAILED),
            *(FactKind.DISPUTE_FUNDS_WITHDRAWN, FactKind.DISPUTE_FUNDS_RETURNED),
            *(FactKind.FEE_ASSESSED, FactKind.FEE_RETURNED, FactKind.FUNDS_CONVERTED),
            *(FactKind.PAYOUT_PAID, FactKind.PAYOUT_COLLECTED),
            *(FactKind.PAYOUT_FAILED, FactKind.PAYOUT_COLLECTION_FAILED),
        }
    )

    @abc.abstractmethod
    def lines(
        self, file: BinaryIO, endpoint: base.EndpointConfig, columns: Mapping[str, str]
    ) -> Iterator[StatementLine]:
        """Yield the lines of the file in their order; columns: {this format's name of a column: the file's}.

        Raises StatementUnreadable.
        """


class CsvStatement(Statement):
    """A format of comma-separated values with a header line, whose columns may stand in any order."""

    required: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def line(self, row: Row, number: int, endpoint: base.EndpointConfig) -> StatementLine:
        """Translate one line. Raises base.Unusable, base.Ignorable or money.UnusableAmount."""

    def lines(
        self, file: BinaryIO, endpoint: base.EndpointConfig, columns: Mapping[str, str]
    ) -> Iterator[StatementLine]:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        rows = csv.reader(text, strict=True)
        try:
            names = self._names(next(rows, []), columns)
            for fields in rows:
                if fields:
                    yield self._line(
                        dict(zip(names, fields, strict=False)), len(fields) == len(names), rows.line_num, endpoint
                    )
        except UnicodeDecodeError as error:
            raise StatementUnreadable(f"after line {rows.line_num} the file is not UTF-8") from error
        except csv.Error as error:
            raise StatementUnreadable(f"line {rows.line_num}: {error}") from error
        finally:
            text.detach()  # the file is its owner's to close

    def column(self, title: str) -> str:
        """Return this format's name of the column with a title."""
        return title

    def _names(self, titles: list[str], columns: Mapping[str, str]) -> list[str]:
        given, titles = {title.strip(): name for name, title in columns.items()}, [title.strip() for title in titles]
        known = (*self.required, *self.optional)
        if unknown := [name for name in columns if name not in known]:
            raise StatementUnreadable(f"no column of {self.name} is named {', '.join(unknown)}: {', '.join(known)} are")
        if missing := [title for title in given if title not in titles]:
            raise StatementUnreadable(f"the header has no column {', '.join(missing)}")
        # What is mapped by hand stands in the mapped column alone, also where another one has the usual title.
        usual = {title: self.column(title) for title in titles}
        names = [given.get(title) or ("" if usual[title] in columns else usual[title]) for title in titles]
        if missing := [name for name in self.required if name not in names]:
            raise StatementUnreadable(f"the header has no column {', '.join(missing)}")
        twice = [name for name in self.required if names.count(name) > 1]
        if twice:
            raise StatementUnreadable(f"the header has two columns {', '.join(twice)}")
        return names

    def _line(self, row: Row, is_whole: bool, number: int, endpoint: base.EndpointConfig) -> StatementLine:
        if not is_whole:
            return StatementLine(number=number, unusable="the line has more or fewer fields than the header")
        try:
            return self.line(row, number, endpoint)
        except base.Ignorable as reason:
            return StatementLine(number=number, ignored=str(reason))
        except (base.Unusable, money.UnusableAmount) as reason:
            return StatementLine(number=number, unusable=str(reason))


def signed_minor(text: str, currency: str) -> int:
    """Return a decimal text of major units, with its sign, as minor units; an empty one is 0."""
    digits = text.strip()
    unsigned = digits.removeprefix("-")
    if _ZERO.fullmatch(unsigned):
        return 0
    minor = money.minor_from_major(unsigned, exponent=money.exponent(currency))
    return minor if unsigned is digits else -minor


def currency_code(text: str) -> str:
    """Return a currency in whatever case it is written."""
    return money.currency_code(text.strip().upper())


def moment(text: str, name: str, zone: tzinfo | None = None) -> datetime:
    """Return an ISO 8601 time, in its own zone or else in this one; raises base.Unusable."""
    try:
        parsed = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise base.Unusable(f"{name} is not an ISO 8601 time") from error
    if parsed.tzinfo is None:
        if zone is None:
            raise base.Unusable(f"{name} has no time zone")
        parsed = parsed.replace(tzinfo=zone)
    if not 2000 <= parsed.year <= 2100:
        raise base.Unusable(f"{name} is not between 2000 and 2100")
    return parsed


def zone(text: str, name: str) -> tzinfo:
    """Return the zone that an abbreviation (CET) or an offset (+07:00) names; raises base.Unusable."""
    code = text.strip().upper()
    hours = _ZONE_HOURS.get(code)
    if hours is not None:
        return timezone(timedelta(hours=hours))
    match = _OFFSET.fullmatch(code)
    if match is None or int(match[2]) > 14:
        raise base.Unusable(f"{name} is not a time zone that is known here")
    offset = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
    return timezone(offset if match[1] == "+" else -offset)


def fee(amount: tuple[int, str], *, occurred_at: datetime, object_id: str, payment: str | None) -> tuple[Fact, ...]:
    """Return the fee of a line, none where it is 0; less than 0 is one that came back."""
    minor, currency = amount
    if minor == 0:
        return ()
    return (
        Fact(
            kind=FactKind.FEE_ASSESSED if minor > 0 else FactKind.FEE_RETURNED,
            occurred_at=occurred_at,
            object_id=base.identifier(object_id, "fee"),
            payment=payment,
            amount_minor=abs(minor),
            currency=currency,
        ),
    )


def conversion(
    *, sold: tuple[int, str], bought: tuple[int, str], occurred_at: datetime, object_id: str
) -> tuple[Fact, ...]:
    """Return what became of an amount in another currency; none where it is the same one."""
    if sold[1] == bought[1]:
        return ()
    return (
        Fact(
            kind=FactKind.FUNDS_CONVERTED,
            occurred_at=occurred_at,
            object_id=base.identifier(object_id, "conversion"),
            amount_minor=money.amount_minor(sold[0]),
            currency=sold[1],
            into_minor=money.amount_minor(bought[0]),
            into_currency=bought[1],
        ),
    )
