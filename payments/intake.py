"""The spine: from one delivery's bytes to its answer. No SQL and no HTTP here.

receive()   verifies and translates one delivery, without the database, and has it settled
settle()    claims, books and answers a batch of deliveries in ONE transaction, one SQL statement per step
book()      the part of it that every source shares: webhook, statement, replay, registration. There is no second way

After a crash: a delivery is committed with all its money and its answer, or nothing of it is there. Nothing that
matters is in memory; who was not answered delivers again and learns from the claim what happened.

# Note [Neighbours]
One bad delivery must not hurt those it shares a transaction with: when a batch fails, each member is settled alone,
once. A member that fails alone by a bug of ours is kept as evidence; at its third failure it is quarantined, for one
poison event would block its gateway's queue for weeks.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from django.db import DatabaseError, InterfaceError, OperationalError, transaction

from payments import (
    booking,
    claims,
    conf,
    database,
    disputes,
    facts,
    failpoints,
    findings,
    handlers,
    ledger,
    outbox,
    payment_states,
    registrations,
    replies,
)
from payments.facts import Fact, Told
from payments.findings import Found
from payments.gateways import base
from payments.precedence import Ref
from payments.registrations import Registered
from payments.replies import Answer

logger = logging.getLogger(__name__)

FAILURES_MAX: Final = 3  # of one event alone, then it is quarantined
TRANSACTION_S: Final = 3.0  # how long one transaction may take, retries included
ALONE_LOCK_TIMEOUT_MS: Final = 100  # for a member of a failed batch: its neighbours wait behind it

LOCK_NOT_AVAILABLE: Final = "55P03"


class SettlementFailed(Exception):
    """Our side could not settle the delivery now; nothing of it is committed, or nobody knows. Answer 503.

    Likely cause: the database is down, slow or locked. The gateway's retry is the repair.
    """


class Unconfirmed(Exception):
    """A delivery that isn't claimed yet must be borne out by its gateway's API first: see confirmation.py."""


@dataclass(frozen=True, slots=True)
class Job:
    """One verified delivery: all its events are settled in one transaction, or none.

    is_unconfirmed   it tells facts that its endpoint doesn't believe before the gateway's API bears them out
    bug              what its adapter raised, so that nothing is known of it but its bytes
    """

    endpoint: conf.Endpoint
    candidates: tuple[claims.Candidate, ...]
    is_unconfirmed: bool = False
    bug: Exception | None = None

    @property
    def event_id(self) -> str:
        """Which event the delivery is known by in logs: its only one, or the first."""
        return self.candidates[0].notice.event_id


@dataclass(frozen=True, slots=True)
class Assignment:
    """A payee chosen by staff, and the action that records who and why."""

    account: str
    staff_action_id: int


Known = Mapping[claims.Key, claims.Decision]


def receive(endpoint: conf.Endpoint, delivery: base.Delivery) -> Job:
    """Verify and translate one delivery. Touches no database. Raises base.VerificationFailed."""
    return translate(endpoint, endpoint.gateway.authenticate(delivery, endpoint.secrets))


def translate(endpoint: conf.Endpoint, verified: base.Verified) -> Job:
    """Translate a verified delivery, or evidence that was one. Touches no database."""
    try:
        notices, bug = endpoint.gateway.translate(verified, endpoint.config), None
    except Exception as error:  # noqa: BLE001  it is answered for when it is settled: Note [Neighbours]
        notices, bug = [base.unreadable(verified, "its adapter failed")], error
    tells_facts = any(notice.facts for notice in notices)
    return Job(
        endpoint,
        tuple(claims.Candidate(endpoint, notice, verified) for notice in notices),
        is_unconfirmed=endpoint.config.confirms and tells_facts and base.CONFIRMED not in verified.headers,
        bug=bug,
    )


def settle(jobs: Sequence[Job], deadline: float) -> list[Answer | Exception]:
    """Settle a batch; return each job's reply, or what failed for it alone. deadline: monotonic seconds.

    What is claimed already is answered by one read, outside of any transaction.
    """
    deadline = min(deadline, time.monotonic() + TRANSACTION_S)
    try:
        with database.connected(deadline):
            return _settle_connected(jobs, deadline)
    except (OperationalError, InterfaceError) as error:
        return [SettlementFailed(repr(error)) for _ in jobs]


def _settle_connected(jobs: Sequence[Job], deadline: float) -> list[Answer | Exception]:
    if not conf.is_copy_fresh(conf.COPY_AGE_MAX_S):
        conf.read_copy()
    known = _find({candidate.key for job in jobs for candidate in job.candidates}, deadline)
    answers: list[Answer | Exception | None] = [_replay(job, known) or _hold_back(job, known, deadline) for job in jobs]
    unsettled = [n for n, answer in enumerate(answers) if answer is None]
    if unsettled:
        settled = _settle_new([jobs[n] for n in unsettled], known, deadline)
        for n, answer in zip(unsettled, settled, strict=True):
            answers[n] = answer
    return [answer for answer in answers if answer is not None]


def _find(keys: Collection[claims.Key], deadline: float) -> Known:
    """Read what is known of the events. The pool may hand out connections that a restart of the server has cut."""
    for _ in range(database.TRIES_MAX):
        try:
            return claims.find(keys)
        except (DatabaseError, InterfaceError):
            if not database.drop_if_lost() or time.monotonic() > deadline:
                raise
    return claims.find(keys)


def _replay(job: Job, known: Known) -> Answer | None:
    """Return the stored answer if every event of the delivery is claimed with this very content, else None."""
    stored: list[Answer] = []
    for candidate in job.candidates:
        decision = known.get(candidate.key)
        if decision is None or decision.reply is None:
            return None
        if claims.differing_fields(decision.fingerprint, candidate.notice.fingerprint):
            return None
        stored.append(Answer(decision.reply, decision.outcome, is_replay=True))
    return _worst(stored)


def _hold_back(job: Job, known: Known, deadline: float) -> Exception | Answer | None:
    """Return what becomes of a new delivery that can't be claimed as it is; None of any other."""
    if job.bug is not None:
        return _failed_alone(job, known, job.bug, deadline)
    return Unconfirmed() if job.is_unconfirmed else None


def _worst(answers: Iterable[Answer]) -> Answer:
    """A delivery of several events is answered by the one that the gateway must hear of."""
    return max(answers, key=lambda answer: answer.reply.status)


# One transaction, and what becomes of those who fail in it ------------------------------------------------------------


def _settle_new(jobs: Sequence[Job], known: Known, deadline: float) -> list[Answer | Exception]:
    try:
        return list(_commit(jobs, known, deadline))
    except database.TransactionFailed as error:
        return [SettlementFailed(repr(error)) for _ in jobs]
    except Exception as error:  # noqa: BLE001  of one member, perhaps: see Note [Neighbours]
        if len(jobs) == 1:
            return [_failed_alone(jobs[0], known, error, deadline)]
        logger.warning("batch_failed", extra={"size": len(jobs), "error": repr(error)})
    answers: list[Answer | Exception] = []
    lock_timeouts = 0
    for job in jobs:
        # A second lock timeout in a row is a row that all share: the rest would only wait for it too.
        if lock_timeouts >= 2 or time.monotonic() > deadline:
            answers.append(SettlementFailed("not tried alone"))
            continue
        try:
            answers.extend(_commit([job], known, deadline, lock_timeout_ms=ALONE_LOCK_TIMEOUT_MS))
            lock_timeouts = 0
        except Exception as error:  # noqa: BLE001  it is answered for, one way or another
            lock_timeouts = lock_timeouts + 1 if database.sqlstate(error) == LOCK_NOT_AVAILABLE else 0
            answers.append(_failed_alone(job, known, error, deadline))
    return answers


def _commit(jobs: Sequence[Job], known: Known, deadline: float, *, lock_timeout_ms: int | None = None) -> list[Answer]:
    def settle_all() -> list[Answer]:
        if lock_timeout_ms is not None:
            database.set_lock_timeout(lock_timeout_ms)
        return _settle_in_transaction(jobs, known)

    answers = database.in_transaction(settle_all, deadline)
    failpoints.hit("after_commit")
    return answers


def _failed_alone(job: Job, known: Known, error: Exception, deadline: float) -> Answer | Exception:
    """Answer for a delivery that failed without neighbours: try later, or, at a bug's third time, quarantined."""
    if isinstance(error, database.TransactionFailed | OperationalError | InterfaceError):
        return SettlementFailed(repr(error))
    logger.error("settlement_failed", exc_info=error, extra={"endpoint": job.endpoint.slug})
    why = f"settling failed: {type(error).__name__}"
    try:
        with transaction.atomic(durable=True):
            failures = max(claims.record_failure(candidate, note=why) for candidate in job.candidates)
        if failures < FAILURES_MAX:
            return SettlementFailed(why)
        unusable = tuple(
            replace(c, notice=replace(c.notice, facts=(), ignored=None, unusable=why)) for c in job.candidates
        )
        failed = {candidate.key: claims.Decision({}) for candidate in unusable}
        return _commit([Job(job.endpoint, unusable)], {**known, **failed}, deadline)[0]
    except Exception as second:
        logger.error("evidence_failed", exc_info=second, extra={"endpoint": job.endpoint.slug})
        return SettlementFailed(why)


def _settle_in_transaction(jobs: Sequence[Job], known: Known) -> list[Answer]:
    # Copies: what this transaction finds out of a candidate is rolled back with it.
    deliveries = [[replace(candidate) for candidate in job.candidates] for job in jobs]
    candidates = [candidate for delivery in deliveries for candidate in delivery]
    failpoints.hit("before_claims")
    decisions = claims.take(candidates)
    failpoints.hit("after_claims")
    claims.keep_evidence(candidates, decisions, failed_before=known)
    failpoints.hit("after_events")

    owners = [candidate for candidate in candidates if candidate.is_owner]
    quarantine_rivals(owners, decisions)
    told, spans = tell_all(owners, decisions)
    booked = book(
        told,
        found=[finding for candidate in candidates for finding in _findings_of(candidate)],
        event_ids={claim_id: key[1] for key, d in decisions.items() if (claim_id := d.claim_id) is not None},
    )
    for owner, span in zip(owners, spans, strict=True):
        if is_known(booked, span):
            reply = owner.endpoint.gateway.acknowledge(owner.notice.event_id, "duplicate")
            decisions[owner.key].amend(outcome="duplicate", reply=reply)
    claims.amend(decisions.values())
    failpoints.hit("before_commit")
    return [_worst(_answer(candidate, decisions[candidate.key]) for candidate in delivery) for delivery in deliveries]


def tell_all(owners: Iterable[claims.Candidate], decisions: Known) -> tuple[list[Told], list[range]]:
    """Return the facts of claimed events as told, and for each event where among them its own stand."""
    told: list[Told] = []
    spans: list[range] = []
    for owner in owners:
        own = _tell(owner, decisions)
        spans.append(range(len(told), len(told) + len(own)))
        told += own
    return told, spans


def _tell(owner: claims.Candidate, decisions: Known) -> list[Told]:
    return tell(owner.endpoint, owner.notice.facts, claim_id=decisions[owner.key].claim_id)


def quarantine_rivals(owners: Sequence[claims.Candidate], decisions: Known) -> None:
    """Quarantine captures of a second payment of one order, at gateways whose signature doesn't cover the payment.

    Whoever saw one such delivery could send it again under other payments' ids. Staff who name the event can still book
    it with `retry`.
    """
    if not any(owner.endpoint.has_one_payment_per_reference for owner in owners):
        return
    told = [(owner, one) for owner in owners for one in _tell(owner, decisions)]
    captures = [
        (owner, one)
        for owner, one in told
        if owner.endpoint.has_one_payment_per_reference and one.fact.kind is facts.FactKind.PAYMENT_CAPTURED
    ]
    if not captures:
        return
    payment_states.lock_subjects([one for _, one in told])
    captured = payment_states.captured_payments({(one.books_id, one.fact.reference or "") for _, one in captures})
    for owner, one in captures:
        payments = captured.setdefault((one.books_id, one.fact.reference or ""), set())
        if payments - {one.fact.payment}:
            why = "another payment of this order is captured, and what proves this one doesn't cover its id"
            owner.notice = replace(owner.notice, facts=(), unusable=why)
            reply = owner.endpoint.gateway.acknowledge(owner.notice.event_id, "quarantined")
            decisions[owner.key].amend(outcome="quarantined", reply=reply)
        else:
            payments.add(one.fact.payment or "")


def tell(endpoint: conf.Endpoint, said: Iterable[Fact], *, claim_id: int | None, source: str = "webhook") -> list[Told]:
    """Return facts as told by a source about an endpoint's books, each with its business key."""
    return [
        Told(
            fact=fact,
            books_id=endpoint.books.id,
            books=endpoint.books.slug,
            source=source,
            key=facts.business_key(endpoint.books.slug, fact) if fact.kind in facts.MONEY else None,
            claim_id=claim_id,
            default_payee=endpoint.default_payee,
        )
        for fact in said
    ]


def is_known(booked: booking.Booking, span: range) -> bool:
    """Say whether every fact of money among these was known before, and there is one."""
    money = [position for position in span if booked.told[position].key is not None]
    return bool(money) and booked.known.issuperset(money)


def _findings_of(candidate: claims.Candidate) -> list[Found]:
    endpoint, notice = candidate.endpoint, candidate.notice
    subject = f"{endpoint.slug}:{notice.event_id}"
    if candidate.differing:
        return [Found("conflict", subject, {"differing_fields": candidate.differing}, endpoint.id)]
    if candidate.is_owner and notice.unusable is not None:
        return [Found("quarantined", subject, {"why": notice.unusable}, endpoint.id)]
    return []


def _answer(candidate: claims.Candidate, decision: claims.Decision) -> Answer:
    """Return what a claim says, or what other content under its id hears; the same each time."""
    if candidate.differing:
        if candidate.endpoint.refuses_conflicts:
            refusal = replies.conflicting(candidate.notice.event_id, candidate.differing)
        else:
            refusal = candidate.endpoint.gateway.acknowledge(candidate.notice.event_id, "quarantined")
        return Answer(refusal, "conflict")
    if decision.reply is None:
        raise AssertionError("Bug: a claim without a reply")
    return Answer(decision.reply, decision.outcome, is_replay=not candidate.is_owner)


# What every source shares ---------------------------------------------------------------------------------------------


def book(
    told: Sequence[Told],
    *,
    found: Sequence[Found] = (),
    event_ids: Mapping[int, str] | None = None,
    registering: Mapping[Ref, Registered] | None = None,
    reassessing: Collection[Ref] = (),
    assigning: Assignment | None = None,
) -> booking.Booking:
    """Book facts: payments, transfers, findings, messages, balances, in the one order of locks. Needs a transaction.

    registering   {(books id, merchant reference): what the application expects of it}, new or known
    reassessing   (books id, reference) of payments to be looked at again though nothing is told of them
    assigning     the payee that staff chose for the reassessed ones
    """
    if not (told or found or registering or reassessing):
        return booking.Booking(told)
    states = payment_states.lock(told, registered=registering or {}, payments=reassessing)
    failpoints.hit("after_payments")
    for ref, wanted in sorted((registering or {}).items()):
        registrations.insert(ref, wanted)
    booked = booking.record_facts(told, states)
    defaults = {payment_states.payment_of(one): one.default_payee for one in told}
    expected = registrations.read({ref for state in states.values() for ref in state.merchant_refs})
    for state in states.values():
        registered = expected.get(state.merchant_ref)
        state.choose_payee(registered.account if registered else None, default=defaults.get(state.ref))
        if assigning is not None:
            state.assign(assigning.account, staff_action_id=assigning.staff_action_id)
    accounts = ledger.read_accounts(booking.accounts_needed(states.values(), booked.transfers))
    booked.transfers += ledger.record_derived(booking.settle_payees(states.values(), accounts, now=datetime.now(UTC)))
    booking.set_legs(booked.transfers, accounts)
    failpoints.hit("after_transfers")
    payment_states.save(states.values())
    seen = [
        payment_states.find_contradictions(states.values()),
        disputes.save(told, booked.transfers, states),
        registrations.compare(expected),
    ]
    findings.open_findings([*found, *booked.found, *(one for opened, _ in seen for one in opened)])
    findings.close_healed([one for _, healed in seen for one in healed])
    ledger.see_again(booked.sightings)
    outbox.enqueue_transfers(booked.transfers, event_ids=event_ids or {})
    failpoints.hit("after_outbox")
    handlers.run(booked.transfers, event_ids=event_ids or {})
    ledger.enter(booked.transfers, accounts)  # accounts come last: see ledger.py
    return booked
