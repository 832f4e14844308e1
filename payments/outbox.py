"""What we owe the outside world: the only writer of OutboxMessage.

A message is a row written in the transaction of its cause, never a call from inside it. Its key is the webhook-id,
unique and the same on every try; its body is fixed when it is written. relay.py sends what is due.

After a crash: a message is there exactly if its cause is; it is sent at least once. One that was under way when its
relay was killed is due again when its lease ends.

# Note [Leases]
A message is taken by one short statement that moves its due_at to the end of a lease, and kept by renewing the lease
while it is under way: no lock, no transaction and no connection is held while it is sent. A lease is short, so that a
killed relay's messages are soon due again; whoever finds one due takes it over and sends it with the same key. The
lease also tells a taker's word from a stale one: a failure counts only while the message still has its taker's lease, a
success always counts. Messages are found by being due, never by an id greater than the last one seen: a low id that
commits late is simply due.

Raw SQL: SKIP LOCKED per destination, and updates that depend on what is there, one statement each.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

from django.conf import settings
from django.db import connection, transaction

from payments import booked, database, findings, models, postings, staff
from payments.facts import TYPE_NAMES
from payments.findings import Found
from payments.ledger import Posting

BODY_BYTES_MAX: Final = 256 * 1024  # a receiver should be told of things, not be sent them
DEAD: Final = "outbox_dead"  # the kind of finding that a dead message opens

# A dot would make what is signed, `id.timestamp.body`, ambiguous. With the destination it fits into 255.
_KEY: Final = re.compile(r"[!-\-/-~]{1,180}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# The transfers that no gateway tells as such.
_DERIVED_NAMES: Final = {
    postings.ALLOCATION: "payment.allocated",
    postings.CAPTURE_NAMED: "payment.capture_named",
    postings.REFUND_NAMED: "refund.named",
    postings.ADJUSTMENT: "adjustment.made",
}


# Enqueueing -----------------------------------------------------------------------------------------------------------

_ENQUEUE: Final = """
    INSERT INTO payments_outboxmessage (key, destination, topic, body, transfer_id)
    SELECT key, destination, topic, body, transfer_id
    FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[]) WITH ORDINALITY
        AS t (key, destination, topic, body, transfer_id, n)
    ORDER BY n
"""


def enqueue_transfers(transfers: Sequence[Posting], *, event_ids: Mapping[int, str]) -> None:
    """Enqueue one message about each new transfer for each destination. Needs the transaction that books them.

    event_ids: claim id -> event id, for the claims of this batch.
    """
    destinations = sorted(settings.PAYMENTS_OUTBOX)
    if not destinations or not transfers:
        return
    rows = sorted(
        (key_of(destination, posting.key), destination, topic(posting), _body(posting, event_ids), posting.id)
        for destination in destinations
        for posting in transfers
    )
    with connection.cursor() as cursor:
        cursor.execute(_ENQUEUE, database.arrays(rows))


def key_of(destination: str, transfer_key: str) -> str:
    """Return the key of a transfer's message to a destination."""
    # Of the fact, not of the row: after a restore from a backup, rows' ids are given again to other facts, and a
    # receiver that knows one of them would take a new message for an old one.
    return f"{destination}:{blake2b(transfer_key.encode(), digest_size=16).hexdigest()}"


def enqueue(
    *,
    topic: str,
    data: Mapping[str, Any],
    key: str,
    destinations: Collection[str] | None = None,
    occurred_at: datetime | None = None,
) -> int:
    """Enqueue a message of an application's own, in the transaction of its cause; return how many rows are new.

    topic          what happened, `order.paid`; 1 to 64 of A-Z a-z 0-9 _ . -
    data           what JSON can say; with its envelope at most BODY_BYTES_MAX
    key            what it is known by, for ever: the same key again is the same message and enqueues nothing. 1 to 180
                   printable ASCII characters without space and dot. webhook-id is `<destination>:app:<key>`
    destinations   names in PAYMENTS_OUTBOX_DESTINATIONS; None: all that are configured, which may be none
    occurred_at    the message's timestamp, aware; None: now

    Raises TransactionManagementError outside of a transaction, LookupError for a destination that is not configured,
    ValueError or TypeError for the rest.
    """
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("enqueue() belongs into the transaction of its cause")
    if not _KEY.fullmatch(key):
        raise ValueError(f"a key is 1 to 180 printable ASCII characters without space and dot, not {key!r}")
    if not _TOPIC.fullmatch(topic):
        raise ValueError(f"a topic is 1 to 64 letters, digits, _ . and -, not {topic!r}")
    if unknown := set(destinations or ()) - settings.PAYMENTS_OUTBOX.keys():
        raise LookupError(f"not in PAYMENTS_OUTBOX_DESTINATIONS: {', '.join(sorted(unknown))}")
    moment = (occurred_at or datetime.now(UTC)).isoformat()
    body = json.dumps({"type": topic, "timestamp": moment, "data": dict(data)}, allow_nan=False)
    if len(body) > BODY_BYTES_MAX:
        raise ValueError(f"a message is at most {BODY_BYTES_MAX} bytes, not {len(body)}")
    named = settings.PAYMENTS_OUTBOX if destinations is None else destinations
    rows = [(f"{name}:app:{key}", name, topic, body, None) for name in sorted(named)]
    if not rows:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(f"{_ENQUEUE} ON CONFLICT (key) DO NOTHING", database.arrays(rows))
        return int(cursor.rowcount)


def topic(posting: Posting) -> str:
    """Return what a transfer is called outside: the demo's event types, and four names of our own."""
    fact = booked.fact_of_posting(posting)
    return _DERIVED_NAMES.get(fact) or TYPE_NAMES[fact]


def _body(posting: Posting, event_ids: Mapping[int, str]) -> str:
    state = posting.state
    data = {
        "transfer": posting.key,
        "payment": None if state is None else state.reference,
        "reference": None if state is None else state.merchant_reference,
        "account": None if state is None else state.payee,
        "amount": posting.amount,
        "currency": posting.currency,
        "event": None if posting.claim_id is None else event_ids.get(posting.claim_id),
    }
    return json.dumps({"type": topic(posting), "timestamp": posting.occurred_at.isoformat(), "data": data})


# Sending: Note [Leases] -----------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Message:
    """A message taken to be sent. leased_until moves with each renewal; the rest stays.

    attempts    the tries before this one, as far as their outcome is known
    """

    id: int
    key: str
    destination: str
    topic: str
    body: str
    attempts: int
    leased_until: datetime


@dataclass(frozen=True, slots=True)
class Failure:
    """A try that failed: why, and after how many seconds the next one is due."""

    message: Message
    error: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Recorded:
    """How many tries were recorded as what. Stale failures are in none of them."""

    sent: int = 0
    failed: int = 0  # and tried again later
    dead: int = 0


# MATERIALIZED, so that the lanes' LIMITs are applied once, whatever plan the UPDATE gets.
_TAKE: Final = """
    WITH due AS MATERIALIZED (
        SELECT found.id
        FROM unnest(%s::text[], %s::integer[]) AS lane (destination, room)
        CROSS JOIN LATERAL (
            SELECT id FROM payments_outboxmessage
            WHERE state = 'ready' AND destination = lane.destination AND due_at <= COALESCE(%s, statement_timestamp())
            ORDER BY due_at, id
            LIMIT lane.room
            FOR UPDATE SKIP LOCKED
        ) AS found
    )
    UPDATE payments_outboxmessage m SET due_at = clock_timestamp() + %s * interval '1 second'
    FROM due WHERE m.id = due.id
    RETURNING m.id, m.key, m.destination, m.topic, m.body, m.attempts, m.due_at
"""


def take(rooms: Mapping[str, int], *, lease_s: float, due_by: datetime | None = None) -> list[Message]:
    """Take due messages, of each destination the longest due ones, at most so many; they are ours for lease_s seconds.

    rooms: destination -> how many. due_by: leave out what became due later; None: now.
    """
    if not any(rooms.values()):
        return []
    with connection.cursor() as cursor:
        cursor.execute(_TAKE, [*database.arrays(sorted(rooms.items())), due_by, lease_s])
        return [Message(*row) for row in cursor.fetchall()]


_RENEW: Final = """
    UPDATE payments_outboxmessage m SET due_at = clock_timestamp() + %s * interval '1 second'
    FROM unnest(%s::bigint[], %s::timestamptz[]) AS t (id, leased_until)
    WHERE m.id = t.id AND m.due_at = t.leased_until AND m.state = 'ready'
    RETURNING m.id, m.due_at
"""


def renew(messages: Collection[Message], *, lease_s: float) -> None:
    """Let messages under way be ours for lease_s seconds from now; those that another relay took stay its own."""
    rows = [(message.id, message.leased_until) for message in messages]
    if not rows:
        return
    with connection.cursor() as cursor:
        cursor.execute(_RENEW, [lease_s, *database.arrays(rows)])
        renewed = dict(cursor.fetchall())
    for message in messages:
        message.leased_until = renewed.get(message.id, message.leased_until)


_SENT: Final = """
    WITH told AS (
        SELECT id, state FROM payments_outboxmessage WHERE id = ANY(%s::bigint[]) AND state <> 'sent'
        ORDER BY id FOR UPDATE
    )
    UPDATE payments_outboxmessage m
    SET state = 'sent', sent_at = clock_timestamp(), attempts = m.attempts + 1, last_error = ''
    FROM told WHERE m.id = told.id
    RETURNING m.key, told.state
"""
_FAILED: Final = """
    WITH told AS (
        SELECT m.id, t.error, t.delay_s
        FROM unnest(%s::bigint[], %s::timestamptz[], %s::text[], %s::double precision[])
            AS t (id, leased_until, error, delay_s)
        JOIN payments_outboxmessage m ON m.id = t.id AND m.due_at = t.leased_until AND m.state = 'ready'
        ORDER BY m.id FOR UPDATE OF m
    )
    UPDATE payments_outboxmessage m
    SET attempts = m.attempts + 1, last_error = told.error,
        due_at = clock_timestamp() + told.delay_s * interval '1 second',
        state = CASE WHEN m.attempts + 1 >= %s THEN 'dead' ELSE 'ready' END
    FROM told WHERE m.id = told.id
    RETURNING m.key, m.destination, m.topic, m.attempts, m.last_error, m.state = 'dead'
"""


def record(sent: Sequence[Message], failed: Sequence[Failure], *, tries_max: int) -> Recorded:
    """Record how tries ended. A message whose tries_max-th one failed is dead, and a finding says so."""
    with transaction.atomic():
        newly_sent = _record_sent(sent) if sent else 0
        outcomes = _record_failed(failed, tries_max) if failed else []
    dead = sum(outcomes)
    return Recorded(newly_sent, len(outcomes) - dead, dead)


def _record_sent(sent: Sequence[Message]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_SENT, [database.array(message.id for message in sent)])
        rows = cursor.fetchall()
    # Given up by another relay meanwhile, whose try failed: it did arrive.
    findings.close_healed([(DEAD, key) for key, state in rows if state == models.OutboxMessage.State.DEAD])
    return len(rows)


def _record_failed(failed: Sequence[Failure], tries_max: int) -> list[bool]:
    rows = [(one.message.id, one.message.leased_until, one.error, one.delay_s) for one in failed]
    with connection.cursor() as cursor:
        cursor.execute(_FAILED, [*database.arrays(rows), tries_max])
        told = cursor.fetchall()
    findings.open_findings(
        [
            Found(DEAD, key, {"destination": name, "topic": topic, "attempts": attempts, "error": error})
            for key, name, topic, attempts, error, is_dead in told
            if is_dead
        ]
    )
    return [row[-1] for row in told]


# Forgetting -----------------------------------------------------------------------------------------------------------

_FORGET_BODIES: Final = """
    UPDATE payments_outboxmessage SET body = ''
    WHERE id IN (
        SELECT id FROM payments_outboxmessage
        WHERE id > %s AND state = 'sent' AND sent_at < %s AND body <> ''
        ORDER BY id LIMIT %s
        FOR NO KEY UPDATE)
    RETURNING id
"""


def count_bodies(*, before: datetime) -> tuple[int, int]:
    """Return how many bodies of messages sent before then could be forgotten, and how many older ones aren't sent."""
    sent, messages = models.OutboxMessage.State.SENT, models.OutboxMessage.objects
    could = messages.filter(state=sent, sent_at__lt=before).exclude(body="")
    return could.count(), messages.filter(created_at__lt=before).exclude(state=sent).count()


def forget_bodies(*, before: datetime, after_id: int, limit: int) -> list[int]:
    """Empty the bodies of messages sent before then; return their ids. Needs a transaction."""
    with connection.cursor() as cursor:
        cursor.execute(_FORGET_BODIES, [after_id, before, limit])
        return [row[0] for row in cursor.fetchall()]


# What staff do and see ------------------------------------------------------------------------------------------------


def requeue(message_ids: Collection[int], *, why: staff.Why) -> int:
    """Give dead messages all their tries again, due now; close their findings; return how many were dead."""
    dead = models.OutboxMessage.objects.filter(id__in=message_ids, state=models.OutboxMessage.State.DEAD)
    with transaction.atomic():
        keys = list(dead.order_by("id").select_for_update().values_list("key", flat=True))
        models.OutboxMessage.objects.filter(key__in=keys).update(
            state=models.OutboxMessage.State.READY, attempts=0, due_at=database_now()
        )
        findings.close_healed([(DEAD, key) for key in keys])
        why.record_each("requeue", [(key, {}) for key in keys])
    return len(keys)


WAITING_COUNTED_MAX: Final = 10_000  # of one destination; an index alone tells
ROWS_READ_MAX: Final = 1_000  # for what only the rows tell

# Each part reads a bounded number of rows by an index, however much is owed: an outage of a receiver is when it counts.
_BACKLOGS: Final = f"""
    WITH RECURSIVE known (destination) AS (
        SELECT min(destination) FROM payments_outboxmessage WHERE state = 'ready'
        UNION ALL
        SELECT (SELECT min(m.destination) FROM payments_outboxmessage m
                WHERE m.state = 'ready' AND m.destination > known.destination)
        FROM known WHERE known.destination IS NOT NULL
    ), ready AS (
        SELECT destination,
               (SELECT count(*) FROM (
                   SELECT FROM payments_outboxmessage m WHERE m.state = 'ready' AND m.destination = known.destination
                   ORDER BY m.due_at, m.id LIMIT {WAITING_COUNTED_MAX} + 1
               ) counted) AS waiting,
               (SELECT min(created_at) FROM (
                   SELECT m.created_at FROM payments_outboxmessage m
                   WHERE m.state = 'ready' AND m.destination = known.destination
                   ORDER BY m.due_at, m.id LIMIT {ROWS_READ_MAX}
               ) next) AS oldest_at
        FROM known WHERE destination IS NOT NULL
    ), dead AS (
        SELECT destination, count(*) AS dead FROM (
            SELECT destination FROM payments_outboxmessage WHERE state = 'dead' ORDER BY id DESC LIMIT {ROWS_READ_MAX}
        ) newest GROUP BY destination
    )
    SELECT destination, COALESCE(waiting, 0), COALESCE(dead, 0), oldest_at
    FROM ready FULL JOIN dead USING (destination) ORDER BY destination
"""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is owed to one destination.

    waiting     messages not sent yet; WAITING_COUNTED_MAX + 1: more than WAITING_COUNTED_MAX
    dead        messages given up, among the ROWS_READ_MAX newest ones of all destinations
    oldest_at   since when the oldest waits, among the ROWS_READ_MAX that are due first
    """

    destination: str
    waiting: int
    dead: int
    oldest_at: datetime | None


def backlogs() -> list[Backlog]:
    """Return what is owed, by destination, also to those that are no longer configured."""
    with connection.cursor() as cursor:
        cursor.execute(_BACKLOGS)
        return [Backlog(*row) for row in cursor.fetchall()]


def count_due(names: Collection[str], *, due_by: datetime) -> int:
    """Return how many messages for these destinations were due by then and nobody has taken."""
    waiting = models.OutboxMessage.objects.filter(destination__in=names, due_at__lte=due_by)
    return waiting.filter(state=models.OutboxMessage.State.READY).count()


def database_now() -> datetime:
    """Return the database's clock, the only one that due_at is compared with."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment
