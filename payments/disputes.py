"""What became of each dispute: the only writer of Dispute.

Rows are locked after their payments and in one order for everybody. A dispute that is closed while its funds are
neither back nor charged to the payee is a finding, which heals when they are.

After a crash: a dispute's row is committed with the transfers that changed it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Final

from django.db import connection

from payments import database
from payments.facts import FactKind, Told, escape
from payments.findings import Found
from payments.ledger import Posting
from payments.payment_states import payment_of
from payments.precedence import Ref, State

_COLUMN: Final = {
    FactKind.DISPUTE_FUNDS_WITHDRAWN: "withdrawn",
    FactKind.DISPUTE_FUNDS_RETURNED: "returned",
    FactKind.DISPUTE_LOST: "lost",
}
_OUTCOMES: Final = {FactKind.DISPUTE_WON: "won", FactKind.DISPUTE_LOST: "lost"}
_KINDS: Final = frozenset({FactKind.DISPUTE_OPENED, *_COLUMN, *_OUTCOMES})


@dataclass(slots=True)
class _Change:
    payment_id: int
    withdrawn: int = 0
    returned: int = 0
    lost: int = 0
    outcome: str = ""


_INSERT: Final = """
    INSERT INTO payments_dispute (endpoint_id, reference, payment_id)
    SELECT endpoint_id, reference, payment_id
    FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) WITH ORDINALITY AS t (endpoint_id, reference, payment_id, n)
    ORDER BY n
    ON CONFLICT (endpoint_id, reference) DO NOTHING
"""

_LOCK: Final = """
    SELECT d.id FROM unnest(%s::bigint[], %s::text[]) WITH ORDINALITY AS k (endpoint_id, reference, n)
    JOIN payments_dispute d ON d.endpoint_id = k.endpoint_id AND d.reference = k.reference
    ORDER BY k.n
    FOR NO KEY UPDATE OF d
"""

# "lost" beats "won": a dispute that was won may be reopened, and what was lost once cost the payee.
_CHANGE: Final = """
    UPDATE payments_dispute d
    SET withdrawn = d.withdrawn + t.withdrawn, returned = d.returned + t.returned, lost = d.lost + t.lost,
        outcome = CASE WHEN 'lost' IN (d.outcome, t.outcome) THEN 'lost' ELSE GREATEST(d.outcome, t.outcome) END
    FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[])
        AS t (endpoint_id, reference, withdrawn, returned, lost, outcome)
    WHERE d.endpoint_id = t.endpoint_id AND d.reference = t.reference
    RETURNING d.endpoint_id, d.reference, d.outcome, d.withdrawn - d.returned - d.lost
"""


def save(
    told: Sequence[Told], booked: Iterable[Posting], states: Mapping[Ref, State]
) -> tuple[list[Found], list[tuple[str, str]]]:
    """Take in what was told of disputes; return findings that are so, and the (kind, subject) of those that aren't."""
    changes = _changes(told, booked, states)
    if not changes:
        return [], []
    refs = sorted(changes)
    rows = [(*ref, *astuple(changes[ref])) for ref in refs]
    endpoint_ids, references, payment_ids, *columns = database.arrays(rows)
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, [endpoint_ids, references, payment_ids])
        cursor.execute(_LOCK, [endpoint_ids, references])
        cursor.execute(_CHANGE, [endpoint_ids, references, *columns])
        changed = cursor.fetchall()
    books = {one.books_id: one.books for one in told}
    found: list[Found] = []
    healed: list[tuple[str, str]] = []
    for endpoint_id, reference, outcome, open_amount in changed:
        subject = f"{books[endpoint_id]}:{escape(reference)}"
        if outcome and open_amount:
            detail = {"outcome": outcome, "open_amount": int(open_amount)}
            found.append(Found("dispute_closed_not_zero", subject, detail, endpoint_id))
        else:
            healed.append(("dispute_closed_not_zero", subject))
    return found, healed


def _changes(told: Sequence[Told], booked: Iterable[Posting], states: Mapping[Ref, State]) -> dict[Ref, _Change]:
    changes: dict[Ref, _Change] = {}
    dispute_of: dict[str, Ref] = {}
    for one in told:
        payment = payment_of(one)
        if one.fact.kind not in _KINDS or payment is None:
            continue
        ref = (one.books_id, one.fact.object_id)
        change = changes.setdefault(ref, _Change(states[payment].id))
        outcome = _OUTCOMES.get(one.fact.kind, "")
        change.outcome = "lost" if "lost" in (change.outcome, outcome) else max(change.outcome, outcome)
        if one.key is not None:
            dispute_of[f"{one.books}:{escape(one.fact.object_id)}"] = ref
    for posting in booked:
        # A dispute leg's key is <books>:<dispute>:<fact>[:<leg>], both parts escaped.
        if posting.kind in _COLUMN and (ref := dispute_of[":".join(posting.key.split(":")[:2])]):
            column = _COLUMN[FactKind(posting.kind)]
            setattr(changes[ref], column, getattr(changes[ref], column) + posting.amount)
    return changes
