"""A finding's page: what it is about, and what the reader may do."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from payments.admin import acts, bodies, cells, codes, finder, rows
from payments.admin.cells import Label
from payments.admin.tables import Section, table
from payments.models import Finding, OutboxMessage, StaffAction

# What each kind means, and what to do about it.
MEANINGS: Final = {
    "quarantined": _(
        "A verified event that could not be used. It was acknowledged and kept, nothing of it is booked. After a fix,"
        " retry it; close this if it never will be booked."
    ),
    "conflict": _(
        "An event id was used again for other content. Both are kept, nothing of the second is booked. Ask the"
        " gateway which one is true; close this with what you learned."
    ),
    "fact_differs": _(
        "Two sources told the same fact with another amount, currency, payment or payee. The first one stands. Ask the"
        " gateway which one is true; close this with what you learned."
    ),
    "correction_differs": _(
        "A correction that names another amount than what it corrects. It undoes nothing. Ask the gateway which one is"
        " true; close this with what you learned."
    ),
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
        "A handler of the application failed; its own work is undone, the money stands. After a fix, run"
        " `retry --handlers`."
    ),
    "differs": _(
        "The gateway's statement and the ledger name different amounts of one fact. Ask the gateway which one is true;"
        " close this with what you learned."
    ),
    "fee_differs": _("The gateway's statement and the ledger name different amounts of one fee."),
    "missing_here": _("A line of the gateway's statement could not be booked; its page says why."),
    "missing_there": _(
        "Booked here, but the gateway's statement has no line of it. Was the file whole? Then ask the gateway where the"
        " money is."
    ),
}

_AMOUNTS: Final = ("amount", "captured", "expected", "refunded")  # of a detail, in minor units


def open_ones(
    request: HttpRequest, title: Label, found: Sequence[Finding], *, without: Collection[str] = ()
) -> Section:
    """Return the open findings of another object as a part of its page, each with what the reader may do about it."""
    columns: rows.Columns = [
        *rows.FINDINGS_OPEN,
        (_("What you may do"), lambda finding: acts.links(request, finding, without=without)),
    ]
    kinds = codes.counted(finding.kind for finding in found)
    warning = gettext("Waits for somebody: %(kinds)s.") % {"kinds": kinds} if found else ""
    return replace(table(title, found, columns, empty=""), warning=warning)


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
        Section(title=_("What was seen"), headings=[_("What"), _("Value")], rows=list(_seen(finding.detail))),
        *finder.find(site, request, subject).sections,
        table(_("What staff did"), done, rows.ACTIONS),
    ]


def _seen(detail: Mapping[str, Any], path: str = "", currency: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield what a finding's detail says, one value each: (`told.amount`, IDR 10.000,00)."""
    currency = detail.get("currency", currency)
    for name, value in detail.items():
        match value:
            case dict():
                yield from _seen(value, f"{path}{name}.", currency)
            case list():
                yield path + name, bodies.visible(", ".join(map(str, value)))
            case int() if currency and name in _AMOUNTS:
                yield path + name, cells.amount(value, currency)
            case _:
                yield path + name, bodies.visible(str(value))
