"""What we owe the outside world: the only writer of OutboxMessage.

A message is a row written in the transaction of its cause, never a call from inside it. Its key is the webhook-id,
unique and the same on every try; its body is fixed when it is written.

After a crash: a message is there exactly if its cause is; it is sent at least once.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from django.conf import settings
from django.db import connection

from payments import database, postings
from payments.facts import TYPE_NAMES, FactKind
from payments.ledger import Posting

# What a reversal says, by what it reverses; and the transfers that no gateway tells as such.
_REVERSAL_NAMES: Final[dict[str, str]] = {
    FactKind.PAYMENT_CAPTURED: TYPE_NAMES[FactKind.PAYMENT_REVERSED],
    FactKind.REFUND_SUCCEEDED: TYPE_NAMES[FactKind.REFUND_FAILED],
    FactKind.PAYOUT_PAID: TYPE_NAMES[FactKind.PAYOUT_FAILED],
}
_DERIVED_NAMES: Final = {
    postings.ALLOCATION: "payment.allocated",
    postings.CAPTURE_NAMED: "payment.capture_named",
    postings.REFUND_NAMED: "refund.named",
    postings.ADJUSTMENT: "adjustment.made",
}

_ENQUEUE: Final = """
    INSERT INTO payments_outboxmessage (key, destination, topic, body, transfer_id)
    SELECT key, destination, topic, body, transfer_id
    FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[]) WITH ORDINALITY
        AS t (key, destination, topic, body, transfer_id, n)
    ORDER BY n
"""


def enqueue_transfers(booked: Sequence[Posting], *, event_ids: Mapping[int, str]) -> None:
    """Enqueue one message about each new transfer for each destination. Needs the transaction that books them.

    event_ids: claim id -> event id, for the claims of this batch.
    """
    destinations = sorted(settings.PAYMENTS_OUTBOX)
    if not destinations or not booked:
        return
    rows = sorted(
        (f"{destination}:{posting.id}", destination, topic(posting), _body(posting, event_ids), posting.id)
        for destination in destinations
        for posting in booked
    )
    with connection.cursor() as cursor:
        cursor.execute(_ENQUEUE, database.arrays(rows))


def topic(posting: Posting) -> str:
    """Return what a transfer is called outside: the demo's event types, and four names of our own."""
    if posting.reverses is not None:
        return _REVERSAL_NAMES[posting.reverses.kind]
    return _DERIVED_NAMES.get(posting.kind) or TYPE_NAMES[posting.kind]


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
