"""What was compared with gateways' statements, and what came of it."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from payments.models import fields
from payments.models.endpoints import Endpoint


class Reconciliation(models.Model):
    """One run over a gateway's statement. While it is unfinished, a run over the same file goes on with it.

    file_digest     SHA-256 of the file
    asked_from, asked_to   the window that was asked for; null: the days that the lines cover
    window_from, window_to   the window, half-open; null until there is a report, and where no line has a time
    counts          {verdict: how many lines}, of fees and conversions booked beside them, and of lines without a use
    summary         per currency: the gateway's total, ours, the difference and what explains it, in minor units
                    (summary.py)
    finished_at     when its report was told; null: it runs, or was killed
    """

    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, db_constraint=False, db_index=False)
    file_name = models.CharField(max_length=255)
    file_digest = models.CharField(max_length=64)
    format = models.CharField(max_length=32)
    asked_from = models.DateTimeField(null=True)
    asked_to = models.DateTimeField(null=True)
    window_from = models.DateTimeField(null=True)
    window_to = models.DateTimeField(null=True)
    counts = models.JSONField(default=dict)
    summary = models.JSONField(default=list)
    started_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["started_at", "id"], name="payments_reconciliation_time"),
            models.Index(
                fields=["endpoint", "file_digest"],
                condition=Q(finished_at__isnull=True),
                name="payments_reconciliation_open",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.file_name} {self.started_at:%Y-%m-%d %H:%M:%S}"


class ReconciliationLine(models.Model):
    """What of a run a person may want to see: everything but the lines that matched.

    A booked line is written in the transaction that books it, the others with the run's report.

    number     of the line in the file; null: booked here, and no line is there
    is_beside  a fee or a conversion that stands beside the line's own fact
    key        the business key, or how the finding names the line
    amount, currency   what the statement says; null: no line, or it can't be used
    booked_amount, booked_currency   what is booked here; null: nothing
    """

    class Verdict(models.TextChoices):
        BOOKED = "booked", "Booked, no webhook brought it"
        DIFFERS = "differs", "Differs"
        MISSING_HERE = "missing_here", "Missing here"
        MISSING_THERE = "missing_there", "Missing there"
        FEE_DIFFERS = "fee_differs", "A fee differs"

    reconciliation = models.ForeignKey(Reconciliation, on_delete=models.PROTECT, db_index=False)
    number = models.IntegerField(null=True)
    is_beside = models.BooleanField(default=False)
    verdict = models.CharField(max_length=13, choices=Verdict)
    key = models.TextField(db_collation="C")
    kind = models.CharField(max_length=32, blank=True, default="")
    amount = models.BigIntegerField(null=True)
    currency = fields.CurrencyField(null=True)
    booked_amount = models.BigIntegerField(null=True)
    booked_currency = fields.CurrencyField(null=True)
    occurred_at = models.DateTimeField(null=True)
    why = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(verdict__in=["booked", "differs", "missing_here", "missing_there", "fee_differs"]),
                name="payments_reconciled_known_verdict",
            ),
            models.UniqueConstraint(
                fields=["reconciliation", "key", "number"],
                condition=Q(verdict="booked"),
                name="payments_reconciled_booked_once",
            ),
        ]
        indexes = [
            models.Index(fields=["reconciliation", "verdict", "id"], name="payments_reconciled_verdict"),
            models.Index(fields=["occurred_at"], condition=Q(verdict="booked"), name="payments_reconciled_at"),
        ]

    def __str__(self) -> str:
        return f"{self.verdict} {self.key}"
