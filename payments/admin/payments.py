"""Payments, and what is known about them: registrations, corrections, disputes."""

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from payments.admin import cells, payment_page, suspense
from payments.admin.readonly import ReadOnlyAdmin
from payments.admin.search import Column
from payments.admin.tables import Section
from payments.models import Correction, Dispute, Payment, Registration


@admin.register(Payment)
class PaymentAdmin(ReadOnlyAdmin):
    related = ("endpoint", "payee_account")
    list_filter = [suspense.Waiting]
    searched = (
        Column("reference", endpoint="endpoint_id"),
        Column("merchant_reference", endpoint="endpoint_id"),
    )
    search_help_text = _("The gateway's or the merchant's reference, or how it begins")
    list_display = [
        "reference",
        "merchant_reference",
        cells.code_column("status", _("status")),
        cells.column(_("in suspense"), suspense.in_suspense),
        cells.amount_column("captured", _("captured")),
        cells.amount_column("refunded", _("refunded")),
        cells.amount_column("disputed", _("disputed")),
        "payee",
        cells.link_column("endpoint", _("endpoint")),
        cells.moment_column("first_seen_at", _("first seen")),
    ]
    fields = [
        "reference",
        "endpoint",
        "merchant_reference",
        cells.code_column("status", _("status")),
        "payee",
        cells.column(_("payee's account"), payment_page.where_its_money_is),
        *(
            cells.amount_column(name, label)
            for name, label in (
                ("authorized", _("authorized")),
                ("captured", _("captured")),
                ("refunded", _("refunded")),
                ("disputed", _("disputed")),
                ("fees", _("fees")),
            )
        ),
        cells.yes_or_no_column("other_currencies", _("other currencies")),
        cells.moment_column("first_seen_at", _("first seen")),
    ]

    def sections(self, request: HttpRequest, instance: Payment) -> list[Section]:
        return payment_page.sections(request, instance)

    def complete(self, instances: Sequence[Any]) -> None:
        suspense.read_nets(instances)


@admin.register(Registration)
class RegistrationAdmin(ReadOnlyAdmin):
    related = ("endpoint",)
    searched = (Column("merchant_reference", endpoint="endpoint_id"),)
    search_help_text = _("The merchant's reference, or how it begins")
    list_display = [
        "merchant_reference",
        cells.link_column("endpoint", _("endpoint")),
        "account",
        cells.amount_column("amount", _("expected")),
        cells.moment_column("registered_at", _("registered")),
    ]
    fields = [
        "merchant_reference",
        "endpoint",
        "account",
        cells.amount_column("amount", _("expected")),
        cells.moment_column("registered_at", _("registered")),
    ]

    def sections(self, request: HttpRequest, instance: Registration) -> list[Section]:
        return payment_page.of_registration(instance)


@admin.register(Correction)
class CorrectionAdmin(ReadOnlyAdmin):
    related = ("payment", "claim")
    left_out = ("claim__reply_body",)
    narrowed_by = ("payment__id__exact",)
    searched = (Column("key"),)
    search_help_text = _("The business key that it corrects, or how it begins")
    list_display = [
        "key",
        cells.code_column("kind", _("kind")),
        cells.amount_column("amount", _("amount")),
        cells.link_column("payment", _("payment")),
        cells.link_column("claim", _("event")),
        cells.code_column("source", _("source")),
        cells.moment_column("occurred_at", _("occurred")),
    ]
    fields = [
        "key",
        cells.code_column("kind", _("kind")),
        cells.amount_column("amount", _("amount")),
        "payment",
        "claim",
        cells.code_column("source", _("source")),
        cells.moment_column("occurred_at", _("occurred")),
        cells.moment_column("recorded_at", _("recorded")),
    ]

    def sections(self, request: HttpRequest, instance: Correction) -> list[Section]:
        return payment_page.of_correction(instance)


@admin.register(Dispute)
class DisputeAdmin(ReadOnlyAdmin):
    related = ("endpoint", "payment")
    narrowed_by = ("payment__id__exact",)
    searched = (Column("reference", endpoint="endpoint_id"),)
    search_help_text = _("The gateway's reference of the dispute, or how it begins")
    list_display = [
        "reference",
        cells.link_column("endpoint", _("endpoint")),
        cells.link_column("payment", _("payment")),
        "outcome",
        cells.amount_column("withdrawn", _("withdrawn"), currency="payment.currency"),
        cells.amount_column("returned", _("returned"), currency="payment.currency"),
        cells.amount_column("lost", _("lost"), currency="payment.currency"),
        cells.moment_column("opened_at", _("opened")),
    ]
    fields = [
        "reference",
        "endpoint",
        "payment",
        "outcome",
        cells.amount_column("withdrawn", _("withdrawn"), currency="payment.currency"),
        cells.amount_column("returned", _("returned"), currency="payment.currency"),
        cells.amount_column("lost", _("lost"), currency="payment.currency"),
        cells.moment_column("opened_at", _("opened")),
    ]
