"""How far a verification from the beginning has come, so that one that was killed goes on there."""

import django.db.models.deletion
from django.db import migrations, models

from payments.models import fields


class Migration(migrations.Migration):
    dependencies = [("payments", "0008_endpoint_keys_kept")]

    operations = [
        migrations.CreateModel(
            name="VerificationPass",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("horizon", models.BigIntegerField(default=0)),
                ("claim_id", models.BigIntegerField(default=0)),
                ("checked", models.JSONField(default=dict)),
                ("is_clean", models.BooleanField(default=True)),
                ("started_at", models.DateTimeField()),
                ("moved_at", models.DateTimeField()),
            ],
            options={"verbose_name_plural": "verification passes"},
        ),
        migrations.CreateModel(
            name="PassBalance",
            fields=[
                (
                    "account",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        serialize=False,
                        to="payments.account",
                    ),
                ),
                ("debits", fields.RunningTotalField()),
                ("credits", fields.RunningTotalField()),
            ],
        ),
    ]
