"""A payment's page: where its money is, and everything that was told and booked about it."""

from django.db.models import Q
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from payments.admin import cells, rows
from payments.admin.tables import Section, table
from payments.models import Claim, Correction, Dispute, Entry, Payment, Registration, Transfer


def where_its_money_is(payment: Payment) -> str:
    """Return the payee's account, or say that the money waits for an owner."""
    if payment.payee_account is not None:
        return cells.link(payment.payee_account)
    if payment.payee is None:
        return gettext("In suspense: nobody named a payee.")
    return gettext("In suspense: the payee has no account in this currency.")


def sections(payment: Payment) -> list[Section]:
    """Return the tables of a payment, the money first."""
    transfers = Transfer.objects.filter(payment=payment).order_by("pk")
    entries = Entry.objects.filter(transfer__payment=payment).select_related("transfer", "account")
    corrections = Correction.objects.filter(payment=payment).select_related("claim").order_by("pk")
    told_by = Q(pk__in=transfers.values("claim_id")) | Q(pk__in=corrections.values("claim_id"))
    claims = Claim.objects.filter(told_by)
    disputes = Dispute.objects.filter(payment=payment).select_related("payment").order_by("pk")
    registrations = Registration.objects.filter(
        endpoint=payment.endpoint_id, merchant_reference=payment.merchant_reference
    ).order_by("pk")
    return [
        table(
            _("Transfers"),
            transfers.select_related("claim"),
            rows.TRANSFERS,
            more_url=cells.list_url(Transfer, payment__id__exact=payment.pk),
        ),
        table(_("Entries"), entries.order_by("pk"), rows.ENTRIES),
        table(_("Events that booked or corrected"), claims.order_by("pk"), rows.CLAIMS),
        table(_("Disputes"), disputes, rows.DISPUTES),
        table(_("Corrections"), corrections, rows.CORRECTIONS),
        table(
            _("Registration"),
            registrations,
            rows.REGISTRATIONS,
            empty=_("The application has not registered this merchant's reference."),
        ),
    ]


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
