"""A finding's page: what it is about, and what the reader may do."""

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from payments.admin import acts, finder, rows
from payments.admin.tables import Section, table
from payments.models import Finding, OutboxMessage, StaffAction

# What each kind means, and what to do about it.
MEANINGS = {
    "quarantined": _(
        "A verified event that could not be used. It was acknowledged and kept, nothing of it is booked. After a fix,"
        " retry it; close this if it never will be booked."
    ),
    "conflict": _(
        "An event id was used again for other content. Both are kept, nothing of the second is booked. Ask the"
        " gateway which one is true; close this with what you learned."
    ),
    "fact_differs": _(
        "Two sources told the same fact with another amount, currency, payment or payee. The first one stands."
    ),
    "correction_differs": _("A correction that names another amount than what it corrects. It undoes nothing."),
    "over_refund": _("More was refunded than captured. Closes by itself when it is no longer so."),
    "underpaid": _("Less was paid than was registered. Closes by itself when the rest comes."),
    "overpaid": _("More was paid than was registered. Closes by itself when it is refunded."),
    "paid_in_other_currency": _("Money came in another currency than was registered."),
    "wrong_currency": _(
        "A payment's facts name two currencies. The first one counts; the other's totals are left out."
    ),
    "payee_differs": _("Two facts of equal rank name different payees. The first one stands."),
    "reference_differs": _("Two facts name different merchant's references. The first one stands."),
    "dispute_closed_not_zero": _("A dispute is closed, but its money is neither back nor charged to the payee."),
    "outbox_dead": _("A message could not be delivered in all its tries. Mend the receiver, then send it again."),
    "allocation_asked": _(
        "Somebody asked to allocate a payment. Another person approves it, or declines by closing this."
    ),
    "handler_failed": _(
        "A handler of the application failed; its own work is undone, the money stands. After a fix, run `retry`."
    ),
    "differs": _("The gateway's statement and the ledger name different amounts of one fact."),
    "fee_differs": _("The gateway's statement and the ledger name different amounts of one fee."),
    "missing_here": _("A line of the gateway's statement could not be booked."),
    "missing_there": _("Booked here, but the gateway's statement has no line of it."),
}


def sections(site: AdminSite, request: HttpRequest, finding: Finding) -> list[Section]:
    """Return the parts of the page."""
    about: list[OutboxMessage | None] = []
    if finding.kind == "outbox_dead":
        about.append(OutboxMessage.objects.filter(key=finding.subject).first())
    done = StaffAction.objects.filter(subject=finding.subject).order_by("-pk")
    meaning = MEANINGS.get(finding.kind, "")
    is_open = finding.closed_at is None
    # A failed handler's is `<handler> <business key>`.
    subject = finding.subject.rpartition(" ")[2] if finding.kind == "handler_failed" else finding.subject
    return [
        Section(
            title=_("What to do"),
            warning=meaning if is_open else "",
            note="" if is_open else meaning,
            buttons=acts.buttons(request, finding, *about) if is_open else [],
            empty="",
        ),
        *finder.find(site, request, subject).sections,
        table(_("What staff did"), done, rows.ACTIONS),
    ]
