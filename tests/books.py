"""What the database holds, in plain values, for tests that compare one road to it with another."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction

from payments import models
from tests.conftest import assert_sound

# What isn't told by any gateway, but follows from the order in which totals, single ids and payees were told.
_ORDER_DEPENDENT = ["Allocation", "CaptureNamed", "RefundNamed", "PaymentCapturedTotal", "RefundedTotal"]


@dataclass
class Books:
    """Payments' rows, balances that aren't zero, open findings and core transfers."""

    payments: dict[str, dict[str, Any]] = field(default_factory=dict)
    balances: dict[tuple[str, str], int] = field(default_factory=dict)
    findings: set[tuple[str, str]] = field(default_factory=set)
    transfers: dict[str, int] = field(default_factory=dict)


def read() -> Books:
    """Return what the database holds; the ledger must be sound."""
    assert_sound()
    codes = dict(models.Account.objects.values_list("id", "code"))
    columns = ("merchant_reference", "currency", "authorized", "captured", "refunded", "disputed", "fees", "status")
    payments = {
        row.reference: {
            **{name: getattr(row, name) for name in columns},
            "payee": row.payee,
            "payee_rank": row.payee_rank,
            "home": codes.get(row.payee_account_id or 0),
        }
        for row in models.Payment.objects.order_by("id")
    }
    accounts = models.Account.objects.exclude(balance=0).order_by("id")
    findings = models.Finding.objects.filter(closed_at=None)
    transfers = models.Transfer.objects.exclude(kind__in=_ORDER_DEPENDENT)
    return Books(
        payments,
        {(row.code, row.currency): int(row.balance) for row in accounts},
        set(findings.values_list("kind", "subject")),
        dict(transfers.values_list("key", "amount")),
    )


@contextmanager
def undone() -> Iterator[None]:
    """Leave the database as it was. (Not by atomic(): what runs inside opens outermost transactions.)"""
    with connection.cursor() as cursor:  # whoever searches for an example may take long between two statements
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
    savepoint = transaction.savepoint()
    try:
        yield
    finally:
        transaction.savepoint_rollback(savepoint)
