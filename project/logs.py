"""One line for each event: a constant name, then its fields as key=value.

Must not be given bodies, secrets or signatures.

logger.info("batch_settled", extra={"events": 12, "seconds": 0.004})
2026-11-30T10:00:00.123Z INFO payments.intake batch_settled events=12 seconds=0.004
"""

import copy
import json
import logging
import re
import time

# What every record has, and what Django adds for its own handlers (the request object, not a field).
_NOT_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "request",
    "server_time",
}
_PLAIN = re.compile(r"[^\s\"=]+")


class EventFormatter(logging.Formatter):
    """Formats a record as one line; a traceback becomes one more field, so that a line stays an event."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _NOT_FIELDS}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        line = f"{self.formatTime(record)} {record.levelname} {record.name} {_one_line(record.getMessage())}"
        return " ".join([line, *(f"{name}={_value(value)}" for name, value in fields.items())])


class CallersFault(EventFormatter):
    """Formats what a caller was refused for: worth a line, but neither an alarm nor a traceback of ours."""

    def format(self, record: logging.LogRecord) -> str:
        quiet = copy.copy(record)
        quiet.levelname, quiet.exc_info = "INFO", None
        return super().format(quiet)


class OnlyCrashes(logging.Filter):
    """Lets a record pass only if it carries an exception."""

    def filter(self, record: logging.LogRecord) -> bool:
        return bool(record.exc_info)


def _value(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")
