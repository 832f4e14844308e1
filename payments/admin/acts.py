"""What staff may do: a few acts, each with a permission of its own, a reason, and a record in its own transaction.

Each calls the function that the command calls. Nothing else in the admin writes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from django.db.models import Model
from django.http import HttpRequest
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from payments import conf, findings, outbox, payees, replay, staff
from payments.admin.act import Act, AllocationForm, Refused
from payments.admin.tables import Button
from payments.models import Account, Claim, Event, Finding, OutboxMessage, Payment
from payments.payment_states import STAFF_RANK

AT_ONCE_MAX: Final = 200  # of what is chosen; it has to end within one request


def buttons(request: HttpRequest, *instances: Model | None, without: Collection[str] = ()) -> list[Button]:
    """Return what the reader may do about these. without: names of acts that make no sense now."""
    return [
        Button(act.label, act.url([instance.pk]))
        for instance in instances
        for act in ALL.values()
        if instance is not None and act.name not in without and act.is_offered(instance) and act.is_allowed(request)
    ]


def of_list(request: HttpRequest, model: type[Model]) -> dict[str, Act]:
    """Return the acts that can be done to rows of a list."""
    return {act.name: act for act in ALL.values() if act.model is model and act.is_allowed(request)}


def _assert_money_is_served() -> None:
    conf.read_copy()
    if (reason := conf.why_closed()) is not None:
        raise Refused(_now("No money is booked now: %(reason)s.") % {"reason": reason})


def _retry(claims: Sequence[Claim], given: Mapping[str, Any], why: staff.Why) -> str:
    _assert_money_is_served()
    return _came_of_it(replay.retry(replay.claimed_as([claim.pk for claim in claims]), why=why))


def _foresee_retry(claims: Sequence[Claim]) -> str:
    return _came_of_it(replay.retry(replay.claimed_as([claim.pk for claim in claims]), dry_run=True))


def _came_of_it(replayed: replay.Replayed) -> str:
    counts = replayed.counts
    return _now(
        "Retried: %(retried)d. Applied: %(applied)d, known before: %(duplicate)d, ignored: %(ignored)d, "
        "still unusable: %(quarantined)d."
    ) % {name: counts[name] for name in ("retried", "applied", "duplicate", "ignored", "quarantined")}


def _close(chosen: Sequence[Finding], given: Mapping[str, Any], why: staff.Why) -> str:
    closed = findings.close([finding.pk for finding in chosen], why=why)
    return _now("Findings closed: %(closed)d.") % {"closed": closed}


def _requeue(messages: Sequence[OutboxMessage], given: Mapping[str, Any], why: staff.Why) -> str:
    requeued = outbox.requeue([message.pk for message in messages], actor=why.actor, reason=why.reason)
    return _now("Messages that will be sent again: %(requeued)d.") % {"requeued": requeued}


def _allocate(payments: Sequence[Payment], given: Mapping[str, Any], why: staff.Why) -> str:
    _assert_money_is_served()
    account: str = given["account"]
    currencies = {payment.currency for payment in payments if payment.currency}
    opened = Account.objects.filter(code=account, endpoint=None, kind=Account.Kind.LIABILITY, currency__in=currencies)
    if missing := currencies - set(opened.values_list("currency", flat=True)):
        names = {"account": account, "currencies": ", ".join(sorted(missing))}
        raise Refused(_now("No payee has an account %(account)s in %(currencies)s. Open it first.") % names)
    for payment in payments:
        ref = (payment.endpoint_id, payment.reference)
        payees.allocate([ref], account=account, why=why)
    return _now("Payments that now belong to %(account)s: %(count)d.") % {"account": account, "count": len(payments)}


def _record(name: str) -> Callable[[Sequence[Event], Mapping[str, Any], staff.Why], str]:
    def record(events: Sequence[Event], given: Mapping[str, Any], why: staff.Why) -> str:
        for event in events:
            why.record(name, f"{event.endpoint.slug}:{event.event_id}", event=event.pk)
        return _now("Recorded, with your name and reason.")

    return record


def _is_waiting(payment: Payment) -> bool:
    # What staff decided once they may decide again; what a fact or a registration says is not theirs to change.
    return payment.currency is not None and (payment.payee_account_id is None or payment.payee_rank == STAFF_RANK)


_UNBOOKED: Final = (Claim.Outcome.QUARANTINED, Claim.Outcome.IGNORED)

ALL: Final[dict[str, Act]] = {
    act.name: act
    for act in (
        Act(
            name="retry",
            model=Claim,
            permission="payments.retry_claim",
            label=_("Retry"),
            explained=_(
                "The kept bytes are read again by today's adapter, and what they say is booked under its business"
                " keys: nothing is booked twice. The answer that the gateway got stays as it is."
            ),
            applies=lambda claim: True,
            offers=lambda claim: claim.outcome in _UNBOOKED,
            do=_retry,
            foresee=_foresee_retry,
        ),
        Act(
            name="close",
            model=Finding,
            permission="payments.close_finding",
            label=_("Close finding"),
            explained=_("Nothing is booked or changed by it; it says that a person has looked and decided."),
            applies=lambda finding: finding.closed_at is None,
            do=_close,
        ),
        Act(
            name="requeue",
            model=OutboxMessage,
            permission="payments.requeue_outboxmessage",
            label=_("Send again"),
            explained=_("Dead messages get all their tries again, the first one now, under the same webhook-id."),
            applies=lambda message: message.state == OutboxMessage.State.DEAD,
            do=_requeue,
        ),
        Act(
            name="allocate",
            model=Payment,
            permission="payments.allocate_payment",
            label=_("Allocate"),
            explained=_(
                "All money of the payment moves to the payee's account, by a transfer that names you and the reason;"
                " what comes later follows it."
            ),
            applies=_is_waiting,
            offers=lambda payment: payment.payee_account_id is None and payment.currency is not None,
            do=_allocate,
            form=AllocationForm,
        ),
        Act(
            name="reveal",
            model=Event,
            permission="payments.reveal_event",
            label=_("Show personal data"),
            explained=_("The whole body is shown once, with nothing hidden."),
            applies=lambda event: event.body is not None,
            do=_record("reveal"),
        ),
        Act(
            name="download",
            model=Event,
            permission="payments.reveal_event",
            label=_("Download the raw bytes"),
            explained=_("A file with the exact bytes that came, personal data among them."),
            applies=lambda event: event.body is not None,
            do=_record("download"),
        ),
    )
}
