"""What needs a person's eye: the only writer of Finding.

A finding is known by its kind and subject, so that what is seen again is not told again. Findings that describe a state
are closed by the system when the state heals, and opened again when it comes back; what staff closed stays closed
unless its detail changes.

After a crash: a finding is committed with what caused it.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import connection, transaction
from django.db.models.functions import Now

from payments import database, models, staff


@dataclass(frozen=True, slots=True)
class Found:
    kind: str
    subject: str
    detail: dict[str, Any] = field(default_factory=dict, compare=False)
    endpoint_id: int | None = field(default=None, compare=False)


_OPEN: Final = """
    INSERT INTO payments_finding (kind, subject, endpoint_id, detail)
    SELECT kind, subject, endpoint_id, detail::jsonb
    FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::text[]) WITH ORDINALITY
        AS t (kind, subject, endpoint_id, detail, n)
    ORDER BY n
    ON CONFLICT (kind, subject) DO UPDATE
    SET detail = EXCLUDED.detail, closed_at = NULL, closed_by = '', close_reason = '',
        opened_at = CASE WHEN payments_finding.closed_at IS NULL THEN payments_finding.opened_at ELSE now() END
    WHERE payments_finding.detail <> EXCLUDED.detail OR payments_finding.closed_by = 'system'
"""

_CLOSE: Final = """
    UPDATE payments_finding f SET closed_at = now(), closed_by = 'system', close_reason = 'healed'
    FROM unnest(%s::text[], %s::text[]) AS t (kind, subject)
    WHERE f.kind = t.kind AND f.subject = t.subject AND f.closed_at IS NULL
"""


def open_findings(found: Collection[Found]) -> None:
    """Open the findings, or leave those as they are that say nothing new."""
    unique = sorted({(one.kind, one.subject): one for one in found}.items())
    if not unique:
        return
    rows = [(one.kind, one.subject, one.endpoint_id, json.dumps(one.detail, sort_keys=True)) for _, one in unique]
    with connection.cursor() as cursor:
        cursor.execute(_OPEN, database.arrays(rows))


def close_healed(healed: Collection[tuple[str, str]]) -> None:
    """Close the open findings of these (kind, subject): what they describe is no longer so."""
    if not healed:
        return
    with connection.cursor() as cursor:
        cursor.execute(_CLOSE, database.arrays(sorted(healed)))


def close(finding_ids: Collection[int], *, why: staff.Why) -> int:
    """Close findings as staff decided, with a StaffAction for each; return how many were open."""
    wanted = models.Finding.objects.filter(id__in=finding_ids, closed_at=None)
    with transaction.atomic():
        still_open = list(wanted.order_by("kind", "subject").select_for_update())
        why.record_each("close", [(one.subject, {"finding": one.pk, "kind": one.kind}) for one in still_open])
        models.Finding.objects.filter(id__in=[finding.pk for finding in still_open]).update(
            closed_at=Now(), closed_by=why.actor, close_reason=why.reason.strip()
        )
    return len(still_open)
