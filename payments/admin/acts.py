"""What staff may do: a few acts, each with a permission of its own, a reason, and a record in its own transaction.

Each calls the function that the command calls. Nothing else in the admin writes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from django.db.models import Model
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from payments import findings, outbox, staff
from payments.admin import allocations, retries
from payments.admin.act import Act, AllocationForm
from payments.admin.tables import Button
from payments.models import Claim, Event, Finding, OutboxMessage, Payment

AT_ONCE_MAX: Final = 200  # of what is chosen; it has to end within one request


def buttons(request: HttpRequest, *instances: Model | None, without: Collection[str] = ()) -> list[Button]:
    """Return what the reader may do about these. without: names of acts that make no sense now."""
    return [
        Button(act.label, act.url([instance.pk]))
        for instance in instances
        for act in ALL.values()
        if instance is not None and act.name not in without and act.is_offered(instance) and act.is_allowed(request)
    ]


def links(request: HttpRequest, instance: Model, *, without: Collection[str] = ()) -> str:
    """Return the same for a row of a table."""
    offered = buttons(request, instance, without=without)
    return format_html_join(" ", '<a class="button" href="{}">{}</a>', ((one.url, one.label) for one in offered))


def of_list(request: HttpRequest, model: type[Model]) -> dict[str, Act]:
    """Return the acts that can be done to rows of a list."""
    return {act.name: act for act in ALL.values() if act.model is model and act.is_allowed(request)}


def _close(chosen: Sequence[Finding], given: Mapping[str, Any], why: staff.Why) -> str:
    closed = findings.close([finding.pk for finding in chosen], why=why)
    return _now("Findings closed: %(closed)d.") % {"closed": closed}


def _requeue(messages: Sequence[OutboxMessage], given: Mapping[str, Any], why: staff.Why) -> str:
    requeued = outbox.requeue([message.pk for message in messages], why=why)
    return _now("Messages that will be sent again: %(requeued)d.") % {"requeued": requeued}


def _record(name: str) -> Callable[[Sequence[Event], Mapping[str, Any], staff.Why], str]:
    def record(events: Sequence[Event], given: Mapping[str, Any], why: staff.Why) -> str:
        for event in events:
            why.record(name, f"{event.endpoint.slug}:{event.event_id}", event=event.pk)
        return _now("Recorded, with your name and reason.")

    return record


_RETRIED: Final = _(
    "The kept bytes are read again by today's adapter, and what they say is booked under its business keys: nothing is"
    " booked twice. The answer that the gateway got stays as it is. For thousands, run `manage.py retry`."
)
_UNBOOKED: Final = (Claim.Outcome.QUARANTINED, Claim.Outcome.IGNORED)

ALL: Final[dict[str, Act]] = {
    act.name: act
    for act in (
        Act(
            name="retry",
            model=Claim,
            permission="payments.retry_claim",
            label=_("Retry"),
            explained=_RETRIED,
            applies=lambda claim: True,
            offers=lambda claim: claim.outcome in _UNBOOKED,
            do=retries.retry,
            foresee=retries.foresee,
        ),
        Act(
            name="retry-found",
            model=Finding,
            permission="payments.retry_claim",
            label=_("Retry event"),
            explained=_RETRIED,
            applies=retries.is_quarantined,
            do=retries.retry_found,
            foresee=retries.foresee_found,
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
            applies=allocations.is_waiting,
            offers=lambda payment: payment.payee_account_id is None and payment.currency is not None,
            do=allocations.allocate,
            form=AllocationForm,
            foresee=allocations.foresee,
        ),
        Act(
            name="approve",
            model=Finding,
            permission="payments.allocate_payment",
            label=_("Approve allocation"),
            explained=_("Another person asked for it. To decline, close the finding."),
            applies=allocations.is_asked,
            do=allocations.approve,
            foresee=allocations.foresee_approval,
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
