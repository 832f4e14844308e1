"""Indexes for what staff look up on a page: failed deliveries, and what was found and done about one subject."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # built beside the deliveries of a running service, not before them

    dependencies = [("payments", "0003_staff_groups")]

    operations = [
        AddIndexConcurrently(
            "attempt",
            models.Index(fields=["id"], condition=models.Q(status__gte=400), name="payments_attempt_failed"),
        ),
        AddIndexConcurrently("finding", models.Index(fields=["subject"], name="payments_finding_by_subject")),
        AddIndexConcurrently(
            "staffaction", models.Index(fields=["subject", "id"], name="payments_staffaction_subject")
        ),
    ]
