"""What staff did and why: the only writer of StaffAction. Append-only, in the transaction of what was done."""

from collections.abc import Iterable
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
        row = self._row(action, subject, detail)
        row.save(force_insert=True)
        return int(row.pk)

    def record_each(self, action: str, done: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Record that this was done to many: (subject, detail) of each; one statement."""
        models.StaffAction.objects.bulk_create([self._row(action, subject, detail) for subject, detail in done])

    def _row(self, action: str, subject: str, detail: dict[str, Any]) -> models.StaffAction:
        return models.StaffAction(
            actor=self.actor, action=action, subject=subject, reason=self.reason.strip(), detail=detail
        )
