"""What waits for an owner: payments whose money is in suspense, and how much of it."""

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from payments import ledger, postings
from payments.admin import cells
from payments.models import Payment

# Along the index of those without a payee's account. A payment that never named money has none.
HAS_MONEY = Q(captured__gt=0) | ~Q(refunded=0) | ~Q(disputed=0) | Q(ever_captured=True)


class Waiting(admin.SimpleListFilter):
    """Payments that wait for an owner."""

    title = _("owner")
    parameter_name = "owner"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("waiting", _("Waits for an owner")),
            ("unnamed", _("Nobody named a payee")),
            ("unopened", _("Payee without an account")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in ("waiting", "unnamed", "unopened"):
            return queryset
        waiting = queryset.filter(HAS_MONEY, payee_account__isnull=True, currency__isnull=False)
        return waiting if self.value() == "waiting" else waiting.filter(payee__isnull=self.value() == "unnamed")


def read_nets(payments: Sequence[Payment]) -> None:
    """Note on each payment of a page what it has in suspense: one query."""
    waiting = [payment for payment in payments if payment.payee_account_id is None]
    for payment in payments:
        payment.in_suspense = []  # type: ignore[attr-defined]
    found: dict[int, list[tuple[int, str]]] = {}
    for payment_id, (code, currency), net in ledger.payee_nets([payment.pk for payment in waiting]):
        if postings.is_own_code(code):
            found.setdefault(payment_id, []).append((net, currency))
    for payment in waiting:
        payment.in_suspense = found.get(payment.pk, [])  # type: ignore[attr-defined]


def in_suspense(payment: Any) -> str:
    """Return what a payment has in suspense, as the list shows it."""
    return cells.joined(cells.amount(net, currency) for net, currency in payment.in_suspense)
