"""Log lines: an event is one line, whatever is in it."""

import logging
import sys

from project.logs import CallersFault, EventFormatter, OnlyCrashes


def make_record(event: str, **fields: object) -> logging.LogRecord:
    return logging.getLogger("payments.intake").makeRecord(
        "payments.intake", logging.WARNING, "intake.py", 1, event, (), None, extra=fields
    )


def make_crash() -> logging.LogRecord:
    record = make_record("batch_failed")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record.exc_info = sys.exc_info()
    return record


def test_event_and_its_fields_are_one_line() -> None:
    record = make_record("batch_settled", events=12, seconds=0.004, endpoint="a b", note='x="1"\ny')
    record.created = 0.0
    record.msecs = 0.0

    assert EventFormatter().format(record) == (
        "1970-01-01T00:00:00.000Z WARNING payments.intake batch_settled"
        r' events=12 seconds=0.004 endpoint="a b" note="x=\"1\"\ny"'
    )


def test_traceback_is_a_field() -> None:
    line = EventFormatter().format(make_crash())

    assert "\n" not in line
    assert 'traceback="Traceback (most recent call last):' in line


def test_callers_fault_is_a_quiet_line() -> None:
    """Neither an alarm nor a traceback; and the record is as it was, for other handlers."""
    record = make_crash()

    line = CallersFault().format(record)

    assert " INFO payments.intake batch_failed" in line
    assert "Traceback" not in line
    assert record.exc_info is not None


def test_refusals_are_no_lines_of_the_log() -> None:
    """Of what Django reports of requests, only what nobody anticipated passes."""
    assert not OnlyCrashes().filter(make_record("Service Unavailable: /webhooks/demo"))
    assert OnlyCrashes().filter(make_crash())
