"""Applications' own code, run once for each new transfer, inside the transaction that books it.

An installed application has a module `handlers.py`, which is found at the start:

    import payments
    from payments import outbox

    @payments.handler("PaymentCaptured")
    def mark_order_paid(booked: payments.Booked) -> None:
        order = Order.objects.get(number=booked.reference)
        order.pay(booked.amount_minor)
        outbox.enqueue(topic="order.paid", data={"order": order.number}, key=f"order-{order.number}-paid")

After a crash: what a handler wrote is there exactly if the transfer is; or, if the handler failed, a finding is there
that names both.

# Note [Handlers and money]
Each run has a savepoint of its own: one that fails loses its own work, while the money and the answer to the gateway
stand. That is so only while the transaction lives. When it is lost (the connection broke, or the server ended a
transaction that a slow handler kept idle), everything is rolled back and tried again, and so it is at a deadlock, which
may be nobody's fault. That must not go on for ever, or one handler would hold up money: this process remembers which
run cost a transaction, and counts it as failed the next time without trying it (after two, for a deadlock).
"""

import inspect
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from django.db import OperationalError, connection, transaction

from payments import database, findings, metrics, models, postings
from payments.facts import FactKind
from payments.findings import Found
from payments.ledger import Posting

logger = logging.getLogger(__name__)

FAILED: Final = "handler_failed"  # the kind of finding that a failed run opens
SLOW_S: Final = 0.25  # every delivery of a batch waits for its handlers: a slower run is logged
ERROR_CHARS_MAX: Final = 300  # of an exception's text in a finding
COST_MAX: Final = 2  # a lost transaction costs this much, a deadlock half of it; then the run counts as failed
REMEMBERED_MAX: Final = 1000  # runs that cost a transaction; far more than there ever are
_TRY_AGAIN: Final = ("40001", "40P01")  # serialization failure, deadlock

# What a transfer is to handlers, where that isn't its kind: a total's rise is money like any other.
_NAMES: Final[dict[str, str]] = {
    FactKind.PAYMENT_CAPTURED_TOTAL: FactKind.PAYMENT_CAPTURED,
    FactKind.REFUNDED_TOTAL: FactKind.REFUND_SUCCEEDED,
}
_REVERSAL_NAMES: Final[dict[str, str]] = {
    FactKind.PAYMENT_CAPTURED: FactKind.PAYMENT_REVERSED,
    FactKind.REFUND_SUCCEEDED: FactKind.REFUND_FAILED,
    FactKind.PAYOUT_PAID: FactKind.PAYOUT_FAILED,
}
NAMES: Final = frozenset(
    {
        *(str(kind) for kind in postings.TABLE if kind not in _NAMES),
        *map(str, _REVERSAL_NAMES.values()),
        postings.ALLOCATION,
        postings.ADJUSTMENT,
        str(FactKind.FUNDS_CONVERTED),
    }
)

# Our tables are written by their own modules only, and locked in one order. enqueue() has its own.
_FOREIGN: Final = re.compile(
    r"\b(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM|MERGE\s+INTO|LOCK\s+TABLE|TRUNCATE)\s+\"?payments_(?!outboxmessage)"
    r"|\bpayments_.*\bFOR\s+(?:NO\s+KEY\s+UPDATE|UPDATE|SHARE|KEY\s+SHARE)\b",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """One new transfer, as handlers are told of it.

    fact          what happened, a name in NAMES
    key           its business key, unique for ever; transfer_id its row
    books         slug of the endpoint whose payments and accounts it is in
    payment       the gateway's reference of the payment, payment_id its row; None for payouts
    reference     the merchant's own reference: an order number
    account       code of the payee's account, None while nobody is named
    amount_minor  minor units of currency, always positive
    occurred_at   when it happened in the world
    source        webhook, statement, registration, staff or system
    event         id of the gateway's event that told it; None where none did
    """

    fact: str
    key: str
    transfer_id: int
    books: str
    payment: str | None
    payment_id: int | None
    reference: str | None
    account: str | None
    amount_minor: int
    currency: str
    occurred_at: datetime
    source: str
    event: str | None


Function = TypeVar("Function", bound=Callable[[Booked], object])


@dataclass(frozen=True, slots=True)
class Handler:
    name: str
    function: Callable[[Booked], object]


class NotAllowed(Exception):
    """A handler did what it must not do; the text says what, and what to do instead."""


_handlers: dict[str, list[Handler]] = {}  # what happened -> who is told, in the order of registration
_costs: dict[tuple[str, str], int] = {}  # (handler, transfer key) -> what its runs in this process cost so far


def handler(*facts: str) -> Callable[[Function], Function]:
    """Register a function to be called with each new transfer of these facts, as a Booked.

    It is called inside the transaction that books the transfer, after payments and before balances, so all it writes is
    committed with the money or not at all, and once. It may read everything, write rows of its own application, and
    call outbox.enqueue() to tell others. It must be quick: the batch's other deliveries wait for it.

    It must not call other services, send mail or use transaction.on_commit (a crash would lose it: enqueue instead),
    write or lock rows of this app, or swallow a database error outside of a savepoint of its own. What of it can be
    seen is refused. If it raises, its own work is rolled back, the money stands, and a finding handler_failed is
    opened; `retry` runs it again.

    Raises ValueError for an unknown fact or a function registered twice, TypeError for an async one.
    """
    if not facts or (unknown := set(facts) - NAMES):
        raise ValueError(
            f"not a fact with a transfer: {sorted(unknown) if facts else 'none named'}. Known: {sorted(NAMES)}"
        )

    def register(function: Function) -> Function:
        if inspect.iscoroutinefunction(function):
            raise TypeError("a handler can't be async: it is part of a transaction")
        made = Handler(f"{function.__module__}.{function.__qualname__}", function)
        for fact in facts:
            told = _handlers.setdefault(fact, [])
            if made.name in (other.name for other in told):
                raise ValueError(f"{made.name} is registered for {fact} already")
            told.append(made)
        return function

    return register


def run(booked: Sequence[Posting], *, event_ids: Mapping[int, str]) -> None:
    """Run the handlers of the new transfers; open a finding for each that fails. Needs the transaction that books them.

    event_ids: claim id -> event id. Raises what has to undo the whole transaction: Note [Handlers and money].
    """
    if not _handlers or not booked:
        return
    # In key order: two batches that touch the same rows of an application do so in the same order.
    in_order = sorted(booked, key=lambda posting: posting.key)
    failed = [
        found
        for posting in in_order
        for one in _handlers.get(fact_of(posting.kind, posting.reverses.kind if posting.reverses else None), ())
        if (found := _run_one(one, _told(posting, event_ids), posting.claim_id)) is not None
    ]
    findings.open_findings(failed)


def fact_of(kind: str, reversed_kind: str | None) -> str:
    """Return what a transfer is to handlers."""
    if reversed_kind is not None:
        return _REVERSAL_NAMES[reversed_kind]
    return _NAMES.get(kind, kind)


def _told(posting: Posting, event_ids: Mapping[int, str]) -> Booked:
    if posting.id is None:
        raise AssertionError(f"Bug: {posting.key} is not new")
    state = posting.state
    return Booked(
        fact=fact_of(posting.kind, posting.reverses.kind if posting.reverses else None),
        key=posting.key,
        transfer_id=posting.id,
        books=posting.books,
        payment=state.reference if state else None,
        payment_id=state.id if state else None,
        reference=state.merchant_reference if state else None,
        account=state.payee if state else None,
        amount_minor=posting.amount,
        currency=posting.currency,
        occurred_at=posting.occurred_at,
        source=posting.source,
        event=event_ids.get(posting.claim_id) if posting.claim_id is not None else None,
    )


# One run, in a savepoint ----------------------------------------------------------------------------------------------


def _run_one(one: Handler, booked: Booked, claim_id: int | None) -> Found | None:
    """Return the finding of a run that failed, None if it went well."""
    if _costs.get((one.name, booked.key), 0) >= COST_MAX:
        error = "the transaction was lost while it ran, so it was not tried again"
    else:
        error = _attempt(one, booked)
    if not error:
        return None
    detail = {
        "handler": one.name,
        "transfer": booked.key,
        "transfer_id": booked.transfer_id,
        "claim": claim_id,
        "event": booked.event,
        "error": error,
    }
    return Found(FAILED, f"{one.name} {booked.key}", detail)


def _attempt(one: Handler, booked: Booked) -> str:
    """Run it; return what failed, or "". Raises what the whole transaction has to be tried again for."""
    began_at = time.perf_counter()
    try:
        with connection.execute_wrapper(_refuse_foreign), transaction.atomic():
            _call(one, booked)
        return ""
    except Exception as error:
        if _is_transaction_lost():
            _remember_cost(one, booked, COST_MAX)
            # Else the outer block, on its way out, would open another connection, and nobody would know of the loss.
            connection.close()
            raise OperationalError(f"the transaction was lost while {one.name} ran") from error
        if database.sqlstate(error) in _TRY_AGAIN:
            _remember_cost(one, booked, COST_MAX // 2)
            raise
        logger.exception("handler_failed", extra={"handler": one.name, "transfer": booked.key})
        return _shown(error)
    finally:
        _observe(one, booked, time.perf_counter() - began_at)


def _call(one: Handler, booked: Booked) -> None:
    hooks = len(connection.run_on_commit)
    one.function(booked)
    if len(connection.run_on_commit) > hooks:
        raise NotAllowed("transaction.on_commit: a crash would lose it. Call outbox.enqueue()")
    if transaction.get_rollback():
        raise NotAllowed("it caught an error that its own work is rolled back for. Let it raise")


def _refuse_foreign(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
    if _FOREIGN.search(str(sql)):
        raise NotAllowed("it writes or locks rows of payments. Call that app's functions, outside of a handler")
    return execute(sql, params, many, context)


def _is_transaction_lost() -> bool:
    raw = connection.connection
    return raw is None or bool(raw.closed) or connection.needs_rollback


def _remember_cost(one: Handler, booked: Booked, cost: int) -> None:
    if len(_costs) >= REMEMBERED_MAX:
        _costs.clear()
    _costs[one.name, booked.key] = _costs.get((one.name, booked.key), 0) + cost


def _observe(one: Handler, booked: Booked, seconds: float) -> None:
    metrics.handler_seconds.labels(one.name).observe(seconds)
    if seconds > SLOW_S:
        logger.warning(
            "handler_slow", extra={"handler": one.name, "transfer": booked.key, "seconds": round(seconds, 3)}
        )


def _shown(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
    return text if text.isprintable() else ascii(text)[1:-1]  # PostgreSQL's text can't hold everything


# Again ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Again:
    """What running failed handlers again came to."""

    done: int = 0
    failed: int = 0


def run_again(*, claim_ids: Collection[int] | None = None) -> Again:
    """Run what open findings say failed, for these claims or all; close the findings of what goes well now.

    Needs a transaction. A handler that is no longer registered stays failed.
    """
    opened = models.Finding.objects.filter(kind=FAILED, closed_at=None)
    if claim_ids is not None:
        opened = opened.filter(detail__claim__in=list(claim_ids))
    rows = list(opened.order_by("id").select_for_update(no_key=True))
    if not rows:
        return Again()
    transfers = _read_transfers(row.detail["transfer_id"] for row in rows)
    failed: list[Found] = []
    for row in rows:
        found = _run_found(row, transfers[row.detail["transfer_id"]])
        if found is not None:
            failed.append(found)
    still = {found.subject for found in failed}
    findings.open_findings(failed)
    findings.close_healed([(FAILED, row.subject) for row in rows if row.subject not in still])
    return Again(len(rows) - len(failed), len(failed))


def _read_transfers(ids: Iterable[int]) -> dict[int, models.Transfer]:
    rows = models.Transfer.objects.select_related("endpoint", "payment", "claim", "reverses")
    return {row.pk: row for row in rows.filter(id__in=set(ids))}


def _run_found(finding: models.Finding, transfer: models.Transfer) -> Found | None:
    booked = _told_again(transfer)
    name = finding.detail["handler"]
    one = next((known for known in _handlers.get(booked.fact, ()) if known.name == name), None)
    if one is None:
        return Found(FAILED, finding.subject, {**finding.detail, "error": "the handler is not registered"})
    _costs.pop((name, booked.key), None)  # somebody asked for it
    return _run_one(one, booked, transfer.claim_id)


def _told_again(transfer: models.Transfer) -> Booked:
    payment = transfer.payment
    return Booked(
        fact=fact_of(transfer.kind, transfer.reverses.kind if transfer.reverses else None),
        key=transfer.key,
        transfer_id=transfer.pk,
        books=transfer.endpoint.slug,
        payment=payment.reference if payment else None,
        payment_id=payment.pk if payment else None,
        reference=payment.merchant_reference if payment else None,
        account=payment.payee if payment else None,
        amount_minor=transfer.amount,
        currency=transfer.currency,
        occurred_at=transfer.occurred_at,
        source=transfer.source,
        event=transfer.claim.event_id if transfer.claim else None,
    )
