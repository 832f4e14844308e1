"""An index by which a day's transfers are found without reading all: for comparisons with statements."""

from typing import Final

from django.contrib.postgres.indexes import BrinIndex
from django.db import migrations

BY_DAY: Final = BrinIndex(fields=["occurred_at"], autosummarize=True, name="payments_transfer_by_day")
CREATE: Final = (
    'CREATE INDEX CONCURRENTLY IF NOT EXISTS "payments_transfer_by_day" ON "payments_transfer"'
    ' USING brin ("occurred_at") WITH (autosummarize = on);'
)
DROP: Final = 'DROP INDEX CONCURRENTLY IF EXISTS "payments_transfer_by_day";'


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("payments", "0006_staff_see_reconciliations")]

    operations = [
        migrations.SeparateDatabaseAndState(
            # Built beside the deliveries of a running service. One that was interrupted is invalid, and goes.
            database_operations=[migrations.RunSQL([DROP, CREATE], DROP)],
            state_operations=[migrations.AddIndex("transfer", BY_DAY)],
        )
    ]
