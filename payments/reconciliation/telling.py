"""Facts that lines tell, booked beside live webhooks: one transaction for a chunk of them, in the one order of locks.

After a crash: a chunk is booked and noted as booked by its run, or nothing of it is there.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from django.db import InterfaceError, OperationalError

from payments import booking, conf, database, facts, intake
from payments.reconciliation import runs
from payments.reconciliation.verdicts import BOOKED, DIFFERS, FEE_DIFFERS, MATCHED, MISSING_HERE, Judgement

logger = logging.getLogger(__name__)

TRANSACTION_S: Final = 30.0  # for one chunk, retries included
TRIES_MAX: Final = 5  # of one chunk, when others hold its locks
LOCK_TIMEOUT_MS: Final = 2_500  # under the session's limit of a statement; nobody waits for this answer
BUSY: Final = ("55P03", "57014")  # lock not available, statement timeout
_CONTRADICTED: Final = ("fact_differs", "correction_differs")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of telling a fact."""

    verdict: str
    why: str = ""
    transfer_ids: tuple[int, ...] = ()


def tell(judged: Sequence[Judgement], *, endpoint: conf.Endpoint, run_id: int) -> None:
    """Tell the facts of what was judged, and let what comes of it be the verdict.

    Raises database.TransactionFailed and the database's errors when it could not be used.
    """
    if not judged:
        return
    try:
        outcomes = _commit(judged, endpoint, run_id)
    except (OperationalError, InterfaceError, database.TransactionFailed):
        raise
    except Exception as error:
        if len(judged) > 1:  # one line's failure must not end the others' booking
            for one in judged:
                tell([one], endpoint=endpoint, run_id=run_id)
            return
        logger.error("reconcile_failed", exc_info=error, extra={"line": judged[0].rows[0].number})
        outcomes = [Outcome(MISSING_HERE, f"booking failed: {type(error).__name__}")]
    for one, outcome in zip(judged, outcomes, strict=True):
        one.verdict, one.why, one.transfer_ids = outcome.verdict, outcome.why, outcome.transfer_ids


def _commit(judged: Sequence[Judgement], endpoint: conf.Endpoint, run_id: int) -> list[Outcome]:
    for attempt in range(1, TRIES_MAX + 1):
        deadline = time.monotonic() + TRANSACTION_S
        try:
            with database.connected(deadline):
                return database.in_transaction(partial(_book, judged, endpoint, run_id), deadline)
        except OperationalError as error:
            if database.sqlstate(error) not in BUSY or attempt == TRIES_MAX:
                raise
            logger.info("reconcile_waits", extra={"attempt": attempt, "error": repr(error)})
            time.sleep(0.1 * attempt)
    raise AssertionError("Bug: the last try neither returned nor raised")


def _book(judged: Sequence[Judgement], endpoint: conf.Endpoint, run_id: int) -> list[Outcome]:
    database.set_lock_timeout(LOCK_TIMEOUT_MS)
    said = [one.fact for one in judged if one.fact is not None]
    booked = intake.book(intake.tell(endpoint, said, claim_id=None, source="statement"))
    outcomes = _outcomes(judged, booked)
    told = zip(judged, outcomes, strict=True)
    # The accounts' rows are locked by now: what is written here is one statement.
    runs.note_booked(run_id, [row for one, outcome in told for row in one.rows if outcome.verdict == BOOKED])
    return outcomes


def _outcomes(judged: Sequence[Judgement], booked: booking.Booking) -> list[Outcome]:
    contradicted = {found.subject for found in booked.found if found.kind in _CONTRADICTED}
    new = {posting.key: posting.id for posting in booked.transfers}
    outcomes = []
    for position, (one, told) in enumerate(zip(judged, booked.told, strict=True)):
        if one.verdict is not None:  # it tells of no money: there is nothing that could be booked
            outcomes.append(Outcome(one.verdict))
            continue
        differs = FEE_DIFFERS if one.rows[0].is_beside else DIFFERS
        if told.key in contradicted:
            outcomes.append(Outcome(differs, "another content was booked meanwhile"))
        elif position in booked.known or (told.fact.kind in facts.TOTALS and told.key not in new):
            outcomes.append(Outcome(MATCHED))
        else:
            transfer_id = new.get(told.key or "")
            outcomes.append(Outcome(BOOKED, transfer_ids=() if transfer_id is None else (transfer_id,)))
    return outcomes
