"""The answer to a delivery: frozen, stored on the claim, and sent again byte for byte."""

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, body bytes and content type of one HTTP answer. Holds nothing that differs between two runs."""

    status: int
    body: bytes
    content_type: str = "application/json"


def acknowledged(event_id: str, outcome: str) -> Reply:
    """Return the 200 that says what became of an event."""
    return Reply(200, json.dumps({"event": event_id, "outcome": outcome}).encode())


def problem(status: int, title: str, **members: object) -> Reply:
    """Return an RFC 9457 problem document: https://www.rfc-editor.org/rfc/rfc9457"""
    document = {"type": "about:blank", "title": title, "status": status, **members}
    return Reply(status, json.dumps(document).encode(), "application/problem+json")


def conflicting(event_id: str, differing_fields: list[str]) -> Reply:
    """Return the 422 for an event id that was used again for other content; it names the fields, never their values."""
    return problem(422, "Event id re-used with different content", event=event_id, differing_fields=differing_fields)


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply to one delivery, with what the metrics and the attempt log say of it."""

    reply: Reply
    outcome: str
    is_replay: bool = False
    retry_after_s: int | None = None
