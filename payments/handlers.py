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
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from django.db import OperationalError, connection, transaction

from payments import booked, database, findings, metrics, models
from payments.booked import Booked
from payments.findings import Found
from payments.ledger import Posting

logger = logging.getLogger(__name__)

FAILED: Final = "handler_failed"  # the kind of finding that a failed run opens
SLOW_S: Final = 0.25  # every delivery of a batch waits for its handlers: a slower run is logged
ERROR_CHARS_MAX: Final = 300  # of an exception's text in a finding
COST_MAX: Final = 2  # a lost transaction costs this much, a deadlock half of it; then the run counts as failed
REMEMBERED_MAX: Final = 1000  # runs that cost a transaction; far more than there ever are
AGAIN_S: Final = 3.0  # for one run that is repeated: its transaction, retries included

# Our tables are written by their own modules only, and locked in one order. enqueue() has its own.
_FOREIGN: Final = re.compile(
    r"\b(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM|MERGE\s+INTO|LOCK\s+TABLE|TRUNCATE)\s+\"?payments_(?!outboxmessage)"
    r"|\bpayments_.*\bFOR\s+(?:NO\s+KEY\s+UPDATE|UPDATE|SHARE|KEY\s+SHARE)\b",
    re.IGNORECASE | re.DOTALL,
)

Function = TypeVar("Function", bound=Callable[[Booked], object])


@dataclass(frozen=True, slots=True)
class Handler:
    name: str
    function: Callable[[Booked], object]


class NotAllowed(Exception):
    """A handler did what it must not do; the text says what, and what to do instead."""


_Run = tuple[str, str, bool]  # the handler's name, the transfer's key, whether it is run again because somebody asked

_handlers: dict[str, list[Handler]] = {}  # what happened -> who is told, in the order of registration
_costs: dict[_Run, int] = {}  # what runs have cost in this process so far


def handler(*facts: str) -> Callable[[Function], Function]:
    """Register a function to be called with each new transfer of these facts, as a Booked.

    It is called inside the transaction that books the transfer, after payments and before balances, so all it writes is
    committed with the money or not at all, and once. It may read everything, write rows of its own application, and
    call outbox.enqueue() to tell others. It must be quick: the batch's other deliveries wait for it.

    It must not call other services, send mail or use transaction.on_commit (a crash would lose it: enqueue instead),
    write or lock rows of this app, or swallow a database error outside of a savepoint of its own. What of it can be
    seen is refused. If it raises, its own work is rolled back, the money stands, and a finding handler_failed is
    opened; `retry --handlers` runs it again.

    Raises ValueError for an unknown fact or a function registered twice, TypeError for an async one.
    """
    if not facts or (unknown := set(facts) - booked.NAMES):
        raise ValueError(
            f"not a fact with a transfer: {sorted(unknown) if facts else 'none named'}. Known: {sorted(booked.NAMES)}"
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


def run(transfers: Sequence[Posting], *, event_ids: Mapping[int, str]) -> None:
    """Run the handlers of the new transfers; open a finding for each that fails. Needs the transaction that books them.

    event_ids: claim id -> event id. Raises what has to undo the whole transaction: Note [Handlers and money].
    """
    if not _handlers or not transfers:
        return
    # In key order: two batches that touch the same rows of an application do so in the same order.
    in_order = sorted(transfers, key=lambda posting: posting.key)
    failed = [
        found
        for posting in in_order
        for one in _handlers.get(booked.fact_of_posting(posting), ())
        if (found := _run_one(one, booked.of_posting(posting, event_ids), posting.claim_id)) is not None
    ]
    findings.open_findings(failed)


# One run, in a savepoint ----------------------------------------------------------------------------------------------


def _run_one(one: Handler, told: Booked, claim_id: int | None, *, is_again: bool = False) -> Found | None:
    """Return the finding of a run that failed, None if it went well."""
    run_ = (one.name, told.key, is_again)
    if _costs.get(run_, 0) >= COST_MAX:
        error = "the transaction was lost while it ran, so it was not tried again"
        if is_again:
            del _costs[run_]  # whoever asks once more has a reason to
    else:
        error = _attempt(one, told, run_)
    if not error:
        return None
    detail = {
        "handler": one.name,
        "transfer": told.key,
        "transfer_id": told.transfer_id,
        "claim": claim_id,
        "event": told.event,
        "error": error,
    }
    return Found(FAILED, f"{one.name} {told.key}", detail)


def _attempt(one: Handler, told: Booked, run_: _Run) -> str:
    """Run it; return what failed, or "". Raises what the whole transaction has to be tried again for."""
    began_at = time.perf_counter()
    try:
        with connection.execute_wrapper(_refuse_foreign), transaction.atomic():
            _call(one, told)
        return ""
    except (Exception, SystemExit) as error:  # a handler must not be able to end the server either
        if _is_transaction_lost():
            _remember_cost(run_, COST_MAX)
            # Else the outer block, on its way out, would open another connection, and nobody would know of the loss.
            connection.close()
            raise OperationalError(f"the transaction was lost while {one.name} ran") from error
        if database.sqlstate(error) in database.TRY_AGAIN:
            _remember_cost(run_, COST_MAX // 2)
            raise
        logger.exception("handler_failed", extra={"handler": one.name, "transfer": told.key})
        return _shown(error)
    finally:
        _observe(one, told, time.perf_counter() - began_at)


def _call(one: Handler, told: Booked) -> None:
    hooks = len(connection.run_on_commit)
    one.function(told)
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


def _remember_cost(run_: _Run, cost: int) -> None:
    if len(_costs) >= REMEMBERED_MAX:
        _costs.clear()
    _costs[run_] = _costs.get(run_, 0) + cost


def _observe(one: Handler, told: Booked, seconds: float) -> None:
    metrics.handler_seconds.labels(one.name).observe(seconds)
    if seconds > SLOW_S:
        logger.warning("handler_slow", extra={"handler": one.name, "transfer": told.key, "seconds": round(seconds, 3)})


def _shown(error: BaseException) -> str:
    # Not str(): that may fail in its turn.
    text = "".join(traceback.format_exception_only(error)).strip()[:ERROR_CHARS_MAX]
    return text if text.isprintable() else ascii(text)[1:-1]  # PostgreSQL's text can't hold everything


# Again ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Again:
    """What running failed handlers again came to."""

    done: int = 0
    failed: int = 0

    def __add__(self, other: "Again") -> "Again":
        return Again(self.done + other.done, self.failed + other.failed)


def run_again(
    *,
    claim_ids: Collection[int] | None = None,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda tried: None,
) -> Again:
    """Run what open findings say failed, for these claims or all; close the findings of what goes well now.

    dry_run: each is run, and undone. Each in a transaction of its own, so not to be called inside one. A handler that
    is no longer registered stays failed. Raises the database's errors.
    """
    opened = models.Finding.objects.filter(kind=FAILED, closed_at=None)
    if claim_ids is not None:
        opened = opened.filter(detail__claim__in=list(claim_ids))
    total = Again()
    for tried, finding_id in enumerate(opened.order_by("id").values_list("id", flat=True), start=1):
        total += _run_finding(finding_id, dry_run)
        progress(tried)
    return total


def _run_finding(finding_id: int, dry_run: bool) -> Again:
    return database.in_transaction(lambda: _run_found(finding_id, dry_run), time.monotonic() + AGAIN_S)


def _run_found(finding_id: int, dry_run: bool) -> Again:
    opened = models.Finding.objects.filter(id=finding_id, closed_at=None)
    finding = opened.select_for_update(no_key=True).first()
    if finding is None:  # somebody else's run went well meanwhile
        return Again()
    transfer = models.Transfer.objects.select_related("endpoint", "payment", "claim", "reverses").get(
        pk=finding.detail["transfer_id"]
    )
    found = _run_registered(finding, booked.of_row(transfer), transfer.claim_id)
    if dry_run:
        transaction.set_rollback(True)
        return Again(done=int(found is None), failed=int(found is not None))
    if found is None:
        findings.close_healed([(FAILED, finding.subject)])
        return Again(done=1)
    findings.open_findings([found])
    return Again(failed=1)


def _run_registered(finding: models.Finding, told: Booked, claim_id: int | None) -> Found | None:
    name = finding.detail["handler"]
    for one in _handlers.get(told.fact, ()):
        if one.name == name:
            return _run_one(one, told, claim_id, is_again=True)
    return Found(FAILED, finding.subject, {**finding.detail, "error": "the handler is not registered"})
