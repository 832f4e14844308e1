"""An index by which staff read the open findings of one kind."""

from typing import Final

from django.db import migrations, models

BY_KIND: Final = models.Index(
    fields=["kind", "id"], condition=models.Q(closed_at__isnull=True), name="payments_finding_open_kind"
)
CREATE: Final = (
    'CREATE INDEX CONCURRENTLY IF NOT EXISTS "payments_finding_open_kind" ON "payments_finding" ("kind", "id")'
    ' WHERE "closed_at" IS NULL;'
)
DROP: Final = 'DROP INDEX CONCURRENTLY IF EXISTS "payments_finding_open_kind";'


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("payments", "0010_login_brake")]

    operations = [
        migrations.SeparateDatabaseAndState(
            # Built beside the deliveries of a running service. One that was interrupted is invalid, and goes.
            database_operations=[migrations.RunSQL([DROP, CREATE], DROP)],
            state_operations=[migrations.AddIndex("finding", BY_KIND)],
        )
    ]
