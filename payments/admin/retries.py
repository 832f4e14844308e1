"""Kept events through the same booking again, as staff ask for it."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from django.db.models import Q
from django.utils.translation import gettext as _

from payments import conf, replay, staff
from payments.admin import codes
from payments.admin.act import Refused
from payments.models import Claim, Finding


def assert_money_is_served() -> None:
    """Raise Refused while an invariant of the ledger is broken."""
    conf.read_copy()
    if (reason := conf.why_closed()) is not None:
        raise Refused(_("No money is booked now: %(reason)s.") % {"reason": codes.listed(reason)})


def retry(claims: Sequence[Claim], given: Mapping[str, Any], why: staff.Why) -> str:
    assert_money_is_served()
    return _came_of_it(replay.retry(_selected(claims), why=why))


def foresee(claims: Sequence[Claim]) -> str:
    """Return what would come of it now."""
    return _came_of_it(replay.retry(_selected(claims), dry_run=True))


def is_quarantined(finding: Finding) -> bool:
    """Say whether a finding is about an event that still waits to be usable."""
    return finding.kind == "quarantined" and finding.closed_at is None


def retry_found(found: Sequence[Finding], given: Mapping[str, Any], why: staff.Why) -> str:
    return retry(_claims_of(found), given, why)


def foresee_found(found: Sequence[Finding]) -> str:
    return foresee(_claims_of(found))


def _claims_of(found: Sequence[Finding]) -> list[Claim]:
    """Return the events that the findings are about: `<endpoint>:<event id>`."""
    names = sorted(finding.subject.partition(":")[::2] for finding in found)
    wanted = Q()
    for slug, group in groupby(names, lambda name: name[0]):
        wanted |= Q(endpoint__slug=slug, event_id__in=[event_id for _slug, event_id in group])
    return list(Claim.objects.filter(wanted).defer("reply_body")) if names else []


def _selected(claims: Sequence[Claim]) -> replay.Selection:
    return replay.claimed_as([claim.pk for claim in claims])


def _came_of_it(replayed: replay.Replayed) -> str:
    names = ("retried", "applied", "duplicate", "ignored", "quarantined")
    return _(
        "Retried: %(retried)d. Applied: %(applied)d, known before: %(duplicate)d, ignored: %(ignored)d, "
        "still unusable: %(quarantined)d."
    ) % {name: replayed.counts[name] for name in names}
