"""Another content under an id that is taken: in which fields it differs from what was claimed."""

from collections.abc import Sequence

from payments import claims
from payments.admin import reread
from payments.models import Claim, Event, Finding

# A claim with more contents than this is an attack or a broken sender; the first ones tell what is going on.
CONTENTS_MAX = 20


def contents_of(claim: Claim) -> list[Event]:
    """Return the stored contents of a claim, the first one first."""
    contents = Event.objects.filter(claim=claim).select_related("endpoint", "claim")
    return list(contents.order_by("pk")[:CONTENTS_MAX])


def differing_fields(claim: Claim, event: Event) -> list[str]:
    """Return the names of the fields in which a conflicting content differs from the claim's.

    Read again from the bytes; where they are pruned, from the finding that was opened when it came.
    """
    fingerprint = reread.fingerprint_of(event)
    if fingerprint is not None:
        return claims.differing_fields(claim.fingerprint, fingerprint)
    details = [finding.detail for finding in findings_of(claim)]
    return sorted({name for detail in details for name in detail.get("differing_fields", [])})


def findings_of(claim: Claim) -> Sequence[Finding]:
    """Return the findings that tell of a claim's conflicts."""
    subject = f"{claim.endpoint.slug}:{claim.event_id}"
    findings = Finding.objects.filter(kind="conflict", subject=subject)
    return list(findings.order_by("pk")[:CONTENTS_MAX])
