"""Indexes for what staff look up on a page: failed deliveries, and what was found and done about one subject."""

from typing import Final

from django.db import migrations, models

FAILED: Final = models.Index(
    fields=["id"],
    condition=models.Q(status__gte=400) | models.Q(status__isnull=True),
    name="payments_attempt_failed",
)
FOUND: Final = models.Index(fields=["subject"], name="payments_finding_by_subject")
DONE: Final = models.Index(fields=["subject", "id"], name="payments_staffaction_subject")


def _add(model: str, index: models.Index, definition: str) -> migrations.SeparateDatabaseAndState:
    # Built beside the deliveries of a running service, not before them. One that was interrupted is invalid, and goes.
    create = f'CREATE INDEX CONCURRENTLY IF NOT EXISTS "{index.name}" ON "payments_{model}" {definition};'
    drop = f'DROP INDEX CONCURRENTLY IF EXISTS "{index.name}";'
    return migrations.SeparateDatabaseAndState(
        database_operations=[migrations.RunSQL([drop, create], drop)],
        state_operations=[migrations.AddIndex(model, index)],
    )


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("payments", "0003_staff_groups")]

    operations = [
        _add("attempt", FAILED, '("id") WHERE "status" >= 400 OR "status" IS NULL'),
        _add("finding", FOUND, '("subject")'),
        _add("staffaction", DONE, '("subject", "id")'),
    ]
