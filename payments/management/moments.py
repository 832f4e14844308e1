"""Points in time as people type them: a day or a time of ISO 8601, in UTC unless they name a zone."""

from datetime import UTC, datetime

from payments.management import base


def moment(text: str) -> datetime:
    """Return the moment; a day is its beginning. Raises CouldNotRun."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise base.CouldNotRun(
            f"{text} is not a day or a time of ISO 8601: 2026-11-30 or 2026-11-30T10:00:00Z"
        ) from error
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def optional_moment(text: str | None) -> datetime | None:
    return None if text is None else moment(text)
