"""Tables of what was compared with gateways' statements."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import payments.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("payments", "0004_staff_lookups"),
    ]

    operations = [
        migrations.CreateModel(
            name="Reconciliation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("file_name", models.CharField(max_length=255)),
                ("file_digest", models.CharField(max_length=64)),
                ("format", models.CharField(max_length=32)),
                ("asked_from", models.DateTimeField(null=True)),
                ("asked_to", models.DateTimeField(null=True)),
                ("window_from", models.DateTimeField(null=True)),
                ("window_to", models.DateTimeField(null=True)),
                ("counts", models.JSONField(default=dict)),
                ("summary", models.JSONField(default=list)),
                ("started_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "endpoint",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        to="payments.endpoint",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ReconciliationLine",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.IntegerField(null=True)),
                ("is_beside", models.BooleanField(default=False)),
                (
                    "verdict",
                    models.CharField(
                        choices=[
                            ("booked", "Booked, no webhook brought it"),
                            ("differs", "Differs"),
                            ("missing_here", "Missing here"),
                            ("missing_there", "Missing there"),
                            ("fee_differs", "A fee differs"),
                        ],
                        max_length=13,
                    ),
                ),
                ("key", models.TextField(db_collation="C")),
                ("kind", models.CharField(blank=True, default="", max_length=32)),
                ("amount", models.BigIntegerField(null=True)),
                ("currency", payments.models.fields.CurrencyField(db_collation="C", max_length=3, null=True)),
                ("booked_amount", models.BigIntegerField(null=True)),
                ("booked_currency", payments.models.fields.CurrencyField(db_collation="C", max_length=3, null=True)),
                ("occurred_at", models.DateTimeField(null=True)),
                ("why", models.TextField(blank=True, default="")),
                (
                    "reconciliation",
                    models.ForeignKey(
                        db_index=False, on_delete=django.db.models.deletion.PROTECT, to="payments.reconciliation"
                    ),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="reconciliation",
            index=models.Index(fields=["started_at", "id"], name="payments_reconciliation_time"),
        ),
        migrations.AddIndex(
            model_name="reconciliation",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", True)),
                fields=["endpoint", "file_digest"],
                name="payments_reconciliation_open",
            ),
        ),
        migrations.AddIndex(
            model_name="reconciliationline",
            index=models.Index(fields=["reconciliation", "verdict", "id"], name="payments_reconciled_verdict"),
        ),
        migrations.AddIndex(
            model_name="reconciliationline",
            index=models.Index(
                condition=models.Q(("verdict", "booked")), fields=["occurred_at"], name="payments_reconciled_at"
            ),
        ),
        migrations.AddConstraint(
            model_name="reconciliationline",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("verdict__in", ["booked", "differs", "missing_here", "missing_there", "fee_differs"])
                ),
                name="payments_reconciled_known_verdict",
            ),
        ),
        migrations.AddConstraint(
            model_name="reconciliationline",
            constraint=models.UniqueConstraint(
                condition=models.Q(("verdict", "booked")),
                fields=("reconciliation", "key", "number"),
                name="payments_reconciled_booked_once",
            ),
        ),
    ]
