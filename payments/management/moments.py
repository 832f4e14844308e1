"""Points in time as people type them: a day or a time of ISO 8601, in a zone that they need not name; or days ago."""

from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from payments.management import base

_DAYS_MAX: Final = 36_500


def moment(text: str, zone: tzinfo = UTC) -> datetime:
    """Return the moment; a day is its beginning. zone: where the text names none. Raises CouldNotRun."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise base.CouldNotRun(
            f"{text} is not a day or a time of ISO 8601: 2026-11-30 or 2026-11-30T10:00:00Z"
        ) from error
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)


def optional_moment(text: str | None, zone: tzinfo = UTC) -> datetime | None:
    return None if text is None else moment(text, zone)


def days_ago(text: str) -> datetime:
    """Return the moment so many whole days ago, 0: now. The type of a parser's argument; raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) > _DAYS_MAX:
        raise ArgumentTypeError(f"{text} is not a whole number of days from 0 to {_DAYS_MAX}")
    return datetime.now(UTC) - timedelta(days=int(text))
