"""Allocations that take two people, where PAYMENTS_ALLOCATION_SECOND_PERSON is set: one asks, another one approves.

What was asked for is an open finding, which everybody sees; to close it is to decline. Only approval moves money, and
it goes the same way as an allocation by one person.

After a crash: asked for or not, moved or not. A finding that stayed open behind its allocation can be approved again,
which moves nothing, or closed.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from django.conf import settings
from django.db import transaction

from payments import findings, models, payees, staff
from payments.facts import escape
from payments.findings import Found

KIND: Final = "allocation_asked"


class SamePerson(Exception):
    """Who asked for an allocation can't approve it."""


def are_required() -> bool:
    """Say whether an allocation takes a second person."""
    return bool(settings.PAYMENTS_ALLOCATION_SECOND_PERSON)


def ask(payments: Iterable[models.Payment], *, account: str, why: staff.Why, now: datetime | None = None) -> None:
    """Ask for the payments to be allocated to an account. Recorded as a StaffAction for each."""
    asked_at = (now or datetime.now(UTC)).isoformat()
    with transaction.atomic():
        for payment in payments:
            subject = f"{payment.endpoint.slug}:{escape(payment.reference)}"
            detail = {"account": account, "asked_by": why.actor, "reason": why.reason, "asked_at": asked_at}
            findings.open_findings([Found(KIND, subject, {**detail, "payment": payment.pk}, payment.endpoint_id)])
            why.record("allocation-asked", subject, account=account)


def approve(asked: models.Finding, *, why: staff.Why) -> None:
    """Allocate what another person asked for. Raises SamePerson; LookupError as payees.allocate does."""
    if asked.detail["asked_by"] == why.actor:
        raise SamePerson
    payment = models.Payment.objects.get(pk=asked.detail["payment"])
    told = f"{why.reason.strip()} (asked for by {asked.detail['asked_by']}: {asked.detail['reason'].strip()})"
    approved = staff.Why(actor=why.actor, reason=told)
    payees.allocate([(payment.endpoint_id, payment.reference)], account=asked.detail["account"], why=approved)
    findings.close_healed([(KIND, asked.subject)])
