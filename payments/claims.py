"""Who is first: the only writer of Claim and Event.

A claim is one INSERT … ON CONFLICT DO NOTHING: whoever gets the row back decides what is answered, for ever. The loser
waits for the winner's transaction and reads the stored reply with its next statement (which is why READ COMMITTED is
required). A claim is inserted with the reply it will give if nothing unexpected comes, and amended before COMMIT else.

After a crash: a claim is committed together with its money, or not there at all. No half-done state exists.

Raw SQL: the ORM's bulk_create(ignore_conflicts=True) doesn't tell which rows it inserted.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

from django.db import connection

from payments import conf, database
from payments.gateways import base
from payments.replies import Reply

FINGERPRINT_VERSION: Final = 1
_SORTED: Final = json.JSONEncoder(sort_keys=True)

Key = tuple[int, str]  # endpoint id, event id: how a claim is known


@dataclass(slots=True)
class Candidate:
    """One event that asks to be claimed."""

    endpoint: conf.Endpoint
    notice: base.Notice
    verified: base.Verified
    is_owner: bool = False  # its claim was won by it, in this transaction
    differing: list[str] = field(default_factory=list)  # fields in which it differs from its claim

    @property
    def key(self) -> Key:
        return self.endpoint.id, self.notice.event_id

    @property
    def expected_outcome(self) -> str:
        if self.notice.facts:
            return "applied"
        return "ignored" if self.notice.unusable is None else "quarantined"


@dataclass(slots=True)
class Decision:
    """A claim, just won or found. reply is None while the event only failed before and nobody owns it."""

    fingerprint: Mapping[str, str]
    claim_id: int | None = None
    outcome: str = ""
    reply: Reply | None = None
    is_won: bool = False
    is_amended: bool = False

    def amend(self, *, outcome: str, reply: Reply) -> None:
        """Change what a claim of this very transaction will say; `amend` below writes it."""
        self.outcome, self.reply, self.is_amended = outcome, reply, True


def differing_fields(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the sorted names of the fields in which two fingerprints differ; empty: the same content."""
    if one == other:
        return []
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def content_digest(fingerprint: Mapping[str, str]) -> str:
    """Return what evidence of one content is known by, beside its claim."""
    return blake2b(_SORTED.encode(fingerprint).encode(), digest_size=16).hexdigest()


_FIND = """
    SELECT k.endpoint_id, k.event_id, c.id, c.fingerprint, c.outcome, c.reply_status, c.reply_body,
           c.reply_content_type
    FROM unnest(%s::bigint[], %s::text[]) AS k (endpoint_id, event_id)
    LEFT JOIN payments_claim c ON c.endpoint_id = k.endpoint_id AND c.event_id = k.event_id
    LEFT JOIN payments_event e ON e.endpoint_id = k.endpoint_id AND e.event_id = k.event_id AND e.claim_id IS NULL
    WHERE c.id IS NOT NULL OR e.id IS NOT NULL
"""


def find(keys: Iterable[Key]) -> dict[Key, Decision]:
    """Return what is known of the events: one read, of committed claims and of deliveries we failed on."""
    with connection.cursor() as cursor:
        cursor.execute(_FIND, database.arrays(keys))
        return {(row[0], row[1]): _decision(row) for row in cursor.fetchall()}


def _decision(row: Sequence[Any]) -> Decision:
    if row[2] is None:
        return Decision(fingerprint={})
    return Decision(json.loads(row[3]), row[2], row[4], Reply(row[5], bytes(row[6]), row[7]))


_TAKE = """
    INSERT INTO payments_claim (endpoint_id, event_id, event_type, fingerprint, fingerprint_version, outcome,
                                reply_status, reply_content_type, reply_body)
    SELECT endpoint_id, event_id, event_type, fingerprint::jsonb, %s, outcome, status, content_type, body
    FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::smallint[], %s::text[], %s::bytea[])
        WITH ORDINALITY AS t (endpoint_id, event_id, event_type, fingerprint, outcome, status, content_type, body, n)
    ORDER BY n
    ON CONFLICT (endpoint_id, event_id) DO NOTHING
    RETURNING endpoint_id, event_id, id
"""


def take(candidates: Sequence[Candidate]) -> dict[Key, Decision]:
    """Claim the events, in key order; of several candidates of one key the first one asks. Needs a transaction.

    Waits for whoever is claiming one of them at this moment. Returns a decision for every key: won, or found.
    """
    asking: dict[Key, Candidate] = {}
    for candidate in candidates:
        asking.setdefault(candidate.key, candidate)
    # One order of keys for everybody, or two batches would wait for each other.
    decisions = {key: _expected(asking[key]) for key in sorted(asking)}
    rows = [
        (
            *key,
            _storable(asking[key].notice.event_type),
            json.dumps(decision.fingerprint),
            decision.outcome,
            *_reply_columns(decision.reply),
        )
        for key, decision in decisions.items()
    ]
    with connection.cursor() as cursor:
        cursor.execute(_TAKE, [FINGERPRINT_VERSION, *database.arrays(rows)])
        won = {(row[0], row[1]): row[2] for row in cursor.fetchall()}
    for key, claim_id in won.items():
        decisions[key].claim_id, decisions[key].is_won = claim_id, True
    if lost := [key for key in decisions if key not in won]:
        decisions |= find(lost)
    for candidate in candidates:
        decision = decisions[candidate.key]
        candidate.is_owner = decision.is_won and asking[candidate.key] is candidate
        candidate.differing = differing_fields(decision.fingerprint, candidate.notice.fingerprint)
    return decisions


def _expected(candidate: Candidate) -> Decision:
    outcome = candidate.expected_outcome
    reply = candidate.endpoint.gateway.acknowledge(candidate.notice.event_id, outcome)
    return Decision(candidate.notice.fingerprint, outcome=outcome, reply=reply)


def _reply_columns(reply: Reply | None) -> tuple[int, str, bytes]:
    if reply is None:
        raise AssertionError("Bug: a claim without a reply")
    return reply.status, reply.content_type, reply.body


_AMEND = """
    UPDATE payments_claim c
    SET outcome = t.outcome, reply_status = t.status, reply_content_type = t.content_type, reply_body = t.body
    FROM unnest(%s::bigint[], %s::text[], %s::smallint[], %s::text[], %s::bytea[])
        AS t (id, outcome, status, content_type, body)
    WHERE c.id = t.id
"""


def amend(decisions: Iterable[Decision]) -> None:
    """Write the outcomes and replies that came out otherwise than expected. Only for claims of this transaction."""
    rows = [(d.claim_id, d.outcome, *_reply_columns(d.reply)) for d in decisions if d.is_amended]
    if rows:
        with connection.cursor() as cursor:
            cursor.execute(_AMEND, database.arrays(rows))


_ADOPT = """
    UPDATE payments_event e
    SET claim_id = t.claim_id, role = CASE WHEN e.content = t.content THEN 'first' ELSE e.role END
    FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::text[]) AS t (endpoint_id, event_id, claim_id, content)
    WHERE e.endpoint_id = t.endpoint_id AND e.event_id = t.event_id AND e.claim_id IS NULL
"""

_KEEP = """
    INSERT INTO payments_event (endpoint_id, claim_id, event_id, event_type, role, content, headers, body, note,
                                occurred_at, received_at)
    SELECT endpoint_id, claim_id, event_id, event_type, role, content, headers::jsonb, body, note, occurred_at,
           received_at
    FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bytea[],
                %s::text[], %s::timestamptz[], %s::timestamptz[])
        AS t (endpoint_id, claim_id, event_id, event_type, role, content, headers, body, note, occurred_at, received_at)
    ON CONFLICT (claim_id, content) DO NOTHING
"""


def keep_evidence(
    candidates: Iterable[Candidate], decisions: Mapping[Key, Decision], *, failed_before: Collection[Key]
) -> None:
    """Keep the raw bytes of each new claim's delivery, and of each content that conflicts with its claim, once."""
    kept = [candidate for candidate in candidates if candidate.is_owner or candidate.differing]
    if not kept:
        return
    adopted = [
        (*c.key, decisions[c.key].claim_id, content_digest(c.notice.fingerprint))
        for c in kept
        if c.is_owner and c.key in failed_before
    ]
    with connection.cursor() as cursor:
        if adopted:
            cursor.execute(_ADOPT, database.arrays(adopted))
        cursor.execute(_KEEP, database.arrays(_evidence_row(c, decisions[c.key].claim_id) for c in kept))


def _evidence_row(candidate: Candidate, claim_id: int | None) -> tuple[Any, ...]:
    notice, verified = candidate.notice, candidate.verified
    return (
        candidate.endpoint.id,
        claim_id,
        notice.event_id,
        _storable(notice.event_type),
        "conflict" if candidate.differing else "first",
        content_digest(notice.fingerprint),
        json.dumps(_safe_headers(candidate)),
        verified.body if notice.evidence is None else notice.evidence,
        notice.ignored or notice.unusable or "",
        notice.occurred_at,
        verified.received_at,
    )


_FAIL = """
    INSERT INTO payments_event (endpoint_id, event_id, event_type, role, content, headers, body, note, occurred_at,
                                received_at, failures)
    SELECT f.endpoint_id, f.event_id, %s, 'failure', %s, %s::jsonb, %s::bytea, %s, %s, %s, 1
    FROM (VALUES (%s::bigint, %s::text)) AS f (endpoint_id, event_id)
    WHERE NOT EXISTS (
        SELECT FROM payments_claim c WHERE c.endpoint_id = f.endpoint_id AND c.event_id = f.event_id)
    ON CONFLICT (endpoint_id, event_id) WHERE claim_id IS NULL
    DO UPDATE SET failures = payments_event.failures + 1, note = EXCLUDED.note
    RETURNING failures
"""


def record_failure(candidate: Candidate, *, note: str) -> int:
    """Keep a delivery that a bug of ours made fail, and return how often it failed. In a transaction of its own.

    One that is claimed meanwhile, from another copy or as another part of its delivery, has not failed: 0.
    """
    notice = candidate.notice
    with connection.cursor() as cursor:
        cursor.execute(
            _FAIL,
            [
                _storable(notice.event_type),
                content_digest(notice.fingerprint),
                json.dumps(_safe_headers(candidate)),
                candidate.verified.body if notice.evidence is None else notice.evidence,
                note,
                notice.occurred_at,
                candidate.verified.received_at,
                *candidate.key,
            ],
        )
        row = cursor.fetchone()
        return 0 if row is None else int(row[0])


# Bodies that are old and no longer needed: of claimed events, unless somebody still has to look at one.
_IS_NEEDED: Final = """
    (e.claim_id IS NULL OR EXISTS (
        SELECT FROM payments_finding f JOIN payments_endpoint p ON p.id = e.endpoint_id
        WHERE f.kind IN ('quarantined', 'conflict') AND f.closed_at IS NULL
          AND f.subject = p.slug || ':' || e.event_id))
"""
_COUNT_BODIES: Final = f"""
    SELECT count(*) FILTER (WHERE NOT {_IS_NEEDED}), count(*) FILTER (WHERE {_IS_NEEDED})
    FROM payments_event e WHERE e.body IS NOT NULL AND e.received_at < %s
"""
_FORGET_BODIES: Final = f"""
    UPDATE payments_event SET body = NULL
    WHERE id IN (
        SELECT e.id FROM payments_event e
        WHERE e.id > %s AND e.body IS NOT NULL AND e.received_at < %s AND NOT {_IS_NEEDED}
        ORDER BY e.id LIMIT %s
        FOR NO KEY UPDATE OF e)
    RETURNING id
"""


def count_bodies(*, before: datetime) -> tuple[int, int]:
    """Return how many bodies of events received before then could be forgotten, and how many are still needed."""
    with connection.cursor() as cursor:
        cursor.execute(_COUNT_BODIES, [before])
        could, needed = cursor.fetchone()
        return could, needed


def forget_bodies(*, before: datetime, after_id: int, limit: int) -> list[int]:
    """Set the bodies of events received before then to null; return their ids. Needs a transaction."""
    with connection.cursor() as cursor:
        cursor.execute(_FORGET_BODIES, [after_id, before, limit])
        return [row[0] for row in cursor.fetchall()]


def _safe_headers(candidate: Candidate) -> dict[str, str]:
    names = candidate.endpoint.gateway.evidence_headers
    headers = candidate.verified.headers
    return {name: headers[name] for name in names if headers.get(name, "").isprintable() and name in headers}


def _storable(text: str) -> str:
    # What comes from outside may be longer than its column, or hold what PostgreSQL's text can't: NUL, lone surrogates.
    return text[:255] if text.isprintable() else ascii(text)[1:-1][:255]
