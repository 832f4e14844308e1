"""A payment's page: whose its money is, its life in order, and everything that was told and booked about it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from payments.admin import acts, cells, finding_page, rows, stories, timeline
from payments.admin.stories import Story
from payments.admin.tables import Section, table
from payments.admin.timeline import Moment
from payments.models import Account, Claim, Correction, Dispute, Entry, Payment, Registration, Transfer

EVENTS_MAX: Final = 50


def where_its_money_is(payment: Payment) -> str:
    """Return the payee's account, or say that the money waits for an owner."""
    if payment.payee_account is not None:
        return cells.link(payment.payee_account)
    if payment.currency is None:
        return gettext("No money yet.")
    if payment.payee is None:
        return gettext("In suspense: nobody named a payee.")
    return gettext("In suspense: the payee has no account in this currency.")


def sections(request: HttpRequest, payment: Payment) -> list[Section]:
    """Return the parts of the page, what needs a person first."""
    story = stories.of_payment(payment)
    events = stories.events_of([payment], events_max=EVENTS_MAX)
    disputes = Dispute.objects.filter(payment=payment).select_related("payment").order_by("pk")
    registrations = Registration.objects.filter(
        endpoint=payment.endpoint_id, merchant_reference=payment.merchant_reference
    ).order_by("pk")
    more_url = cells.list_url(Transfer, payment__id__exact=payment.pk)
    return [
        *_trouble(request, payment, story),
        _where(story.entries),
        Section(title=_("Its life"), lines=timeline.lines(_moments(payment, events, story))),
        table(_("Transfers"), story.transfers, rows.TRANSFERS, more_url=more_url),
        table(_("Entries"), story.entries, rows.ENTRIES),
        table(_("Events that booked, corrected or told again"), events, rows.CLAIMS),
        *_if_any(table(_("Disputes"), disputes, rows.DISPUTES)),
        *_if_any(table(_("Corrections"), story.corrections, rows.CORRECTIONS)),
        *_if_any(table(_("Messages to the outside"), story.messages, rows.MESSAGES)),
        table(
            _("Registration"),
            registrations,
            rows.REGISTRATIONS,
            empty=_("The application has not registered this merchant's reference."),
        ),
    ]


def _if_any(section: Section) -> list[Section]:
    return [section] if section.rows else []


def _trouble(request: HttpRequest, payment: Payment, story: Story) -> list[Section]:
    """Return what is open about a payment, and what the reader may do about it."""
    is_waiting = payment.payee_account_id is None and payment.currency is not None
    if not story.open_findings and not is_waiting:
        return []
    shown = finding_page.open_ones(request, _("Waits for somebody"), story.open_findings)
    said = [where_its_money_is(payment)] if is_waiting else []
    warning = " ".join([*said, str(shown.warning)]).strip()
    return [replace(shown, warning=warning, buttons=acts.buttons(request, payment))]


def _where(entries: Sequence[Entry]) -> Section:
    """Return what each account holds of this payment: all its legs, added up."""
    sums: dict[int, int] = {}
    accounts: dict[int, Account] = {}
    for entry in entries:
        accounts[entry.account_id] = entry.account
        is_debit = entry.direction == Entry.Direction.DEBIT
        sums[entry.account_id] = sums.get(entry.account_id, 0) + (entry.amount if is_debit else -entry.amount)
    return Section(
        title=_("Where its money is now"),
        headings=[_("Account"), _("Debit"), _("Credit")],
        rows=[
            [
                cells.link(account, account.code),
                cells.amount(sums[pk], account.currency) if sums[pk] > 0 else "",
                cells.amount(-sums[pk], account.currency) if sums[pk] < 0 else "",
            ]
            for pk, account in sorted(accounts.items())
            if sums[pk]
        ],
        empty=_("Nowhere: nothing is booked, or all of it is back.") if len(entries) < stories.ROWS_MAX else "",
    )


def _moments(payment: Payment, events: Sequence[Claim], story: Story) -> list[Moment]:
    first = Moment(payment.first_seen_at, gettext("First heard of"), rank=0, mood=timeline.QUIET)
    told = [
        Moment(claim.claimed_at, claim.event_type or gettext("Event"), cells.link(claim), 2, timeline.QUIET)
        for claim in events
    ]
    return [first, *told, *story.moments()]


def of_registration(registration: Registration) -> list[Section]:
    """Return the payments of a registered merchant's reference."""
    payments = Payment.objects.filter(
        endpoint=registration.endpoint_id, merchant_reference=registration.merchant_reference
    ).order_by("pk")
    return [table(_("Payments"), payments, rows.PAYMENTS, empty=_("No gateway has told of one yet."))]


def of_correction(correction: Correction) -> list[Section]:
    """Return what a correction corrects: the transfer with its business key, and the reversal."""
    related = Q(key=correction.key) | Q(reverses__key=correction.key)
    transfers = Transfer.objects.filter(related).select_related("claim").order_by("pk")
    empty = _("Not told yet; nothing is booked.")
    return [table(_("What it corrects"), transfers, rows.TRANSFERS, empty=empty)]
