"""What staff did and why: the only writer of StaffAction. Append-only, in the transaction of what was done."""

from typing import Any

from payments import models


def record(*, actor: str, action: str, subject: str, reason: str, detail: dict[str, Any] | None = None) -> int:
    """Record an action and return its id. Needs the transaction of what was done; reason must say something."""
    if not reason.strip():
        raise ValueError("a reason is required")
    row = models.StaffAction.objects.create(
        actor=actor, action=action, subject=subject, reason=reason.strip(), detail=detail or {}
    )
    return int(row.pk)
