"""Giving money in suspense an owner, as staff do it: by one person, or by two where that is configured."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from payments import approvals, ledger, payees, postings, staff
from payments.admin import amounts
from payments.admin.act import Refused
from payments.admin.retries import assert_money_is_served
from payments.models import Account, Finding, Payment
from payments.precedence import STAFF_RANK


def is_waiting(payment: Payment) -> bool:
    """Say whether a payment is staff's to allocate: what they decided once they may decide again.

    What a fact or a registration says of the payee is not theirs to change.
    """
    return payment.currency is not None and (payment.payee_account_id is None or payment.payee_rank == STAFF_RANK)


def allocate(payments: Sequence[Payment], given: Mapping[str, Any], why: staff.Why) -> str:
    """Allocate the payments, or ask for it."""
    assert_money_is_served()
    account: str = given["account"]
    _require_payee(account, {payment.currency for payment in payments if payment.currency})
    told = {"account": account, "count": len(payments)}
    if approvals.are_required():
        approvals.ask(payments, account=account, why=why)
        return _("Asked for: %(count)d to %(account)s. Another person has to approve it.") % told
    for payment in payments:
        payees.allocate([(payment.endpoint_id, payment.reference)], account=account, why=why)
    return _("Payments that now belong to %(account)s: %(count)d.") % told


def foresee(payments: Sequence[Payment]) -> str:
    """Return how much money would move, in each currency."""
    sums: Counter[str] = Counter()
    owners: set[str] = set()
    for _payment_id, (code, currency), net in ledger.payee_nets([payment.pk for payment in payments]):
        sums[currency] += net
        owners |= set() if postings.is_own_code(code) else {code}
    moved = ", ".join(amounts.shown(net, currency) for currency, net in sorted(sums.items())) or "0"
    if approvals.are_required():
        said = _("%(amounts)s will move once another person has approved it.") % {"amounts": moved}
    else:
        said = _("%(amounts)s will move.") % {"amounts": moved}
    if owners:  # staff gave it to somebody before
        said += " " + _("It is taken from %(owners)s.") % {"owners": ", ".join(sorted(owners))}
    return said


def _require_payee(account: str, currencies: Iterable[str]) -> None:
    wanted = set(currencies)
    opened = Account.objects.filter(code=account, endpoint=None, kind=Account.Kind.LIABILITY, currency__in=wanted)
    if missing := wanted - set(opened.values_list("currency", flat=True)):
        told = {"account": account, "currencies": ", ".join(sorted(missing))}
        raise Refused(_("No payee has an account %(account)s in %(currencies)s. Open it first.") % told)


def is_asked(finding: Finding) -> bool:
    """Say whether a finding is an allocation that waits for a second person."""
    return finding.kind == approvals.KIND and finding.closed_at is None


def approve(asked: Sequence[Finding], given: Mapping[str, Any], why: staff.Why) -> str:
    """Allocate what other people asked for."""
    assert_money_is_served()
    if any(finding.detail["asked_by"] == why.actor for finding in asked):
        raise Refused(_("You asked for it yourself; another person has to approve it."))
    for finding in asked:
        approvals.approve(finding, why=why)
    return _("Allocations approved: %(count)d.") % {"count": len(asked)}


def foresee_approval(asked: Sequence[Finding]) -> str:
    """Return what was asked for, by whom and why."""
    return " ".join(_("To %(account)s, asked for by %(asked_by)s: %(reason)s") % finding.detail for finding in asked)
