"""What staff did and why: the only writer of StaffAction. Append-only, in the transaction of what was done."""

from dataclasses import dataclass
from typing import Any

from payments import models


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Who does something, and the reason that they gave; raises ValueError where it says nothing."""

    actor: str
    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError("a reason is required")

    def record(self, action: str, subject: str, **detail: Any) -> int:
        """Record that this was done to a subject; needs the transaction of what was done."""
        row = models.StaffAction.objects.create(
            actor=self.actor, action=action, subject=subject, reason=self.reason.strip(), detail=detail
        )
        return int(row.pk)
