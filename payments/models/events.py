"""What was delivered, what was decided about it, and how each delivery went."""

from django.db import models
from django.db.models.functions import Now

from payments.models import fields
from payments.models.endpoints import Endpoint


class Claim(models.Model):
    """The decision about one event id at one endpoint, with the reply that every re-delivery gets.

    Immutable once committed: a trigger compares a database-only column, `claimed_xid`, with the current transaction.
    Never pruned and never partitioned by time, or its uniqueness would be worth nothing.
    """

    class Outcome(models.TextChoices):
        APPLIED = "applied", "Applied"
        DUPLICATE = "duplicate", "Duplicate"
        IGNORED = "ignored", "Ignored"
        QUARANTINED = "quarantined", "Quarantined"

    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, db_constraint=False, db_index=False)
    event_id = fields.IdentifierField()
    event_type = models.CharField(max_length=255, blank=True)
    fingerprint = models.JSONField(help_text="{field: short hash} of what makes two deliveries the same content")
    fingerprint_version = models.SmallIntegerField(db_default=1)
    outcome = models.CharField(max_length=11, choices=Outcome)
    reply_status = models.SmallIntegerField()
    reply_content_type = models.CharField(max_length=64)
    reply_body = models.BinaryField()
    claimed_at = models.DateTimeField(db_default=Now())

    class Meta:
        permissions = [("retry_claim", "Can tell kept events again")]
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "event_id"], name="payments_claim_once"),
            models.CheckConstraint(
                condition=models.Q(outcome__in=["applied", "duplicate", "ignored", "quarantined"]),
                name="payments_claim_outcome",
            ),
            models.CheckConstraint(
                condition=models.Q(reply_status__gte=200, reply_status__lt=600), name="payments_claim_reply_status"
            ),
        ]
        indexes = [
            models.Index(fields=["claimed_at", "id"], name="payments_claim_by_time"),
            # What staff look for is rare, and so costs the common claim nothing.
            models.Index(
                fields=["outcome", "id"], condition=~models.Q(outcome="applied"), name="payments_claim_unusual"
            ),
        ]

    def __str__(self) -> str:
        return str(self.event_id)


class Event(models.Model):
    """Evidence: the raw bytes of the first delivery of an event, of every conflicting one, and of one we failed on.

    claim      null until the event is claimed: a bug of ours made it fail, `failures` times so far
    content    digest of the fingerprint; one row per claim and content
    body       null once pruned
    """

    class Role(models.TextChoices):
        FIRST = "first", "First delivery"
        CONFLICT = "conflict", "Other content under the same id"
        FAILURE = "failure", "Failed on our side"

    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, db_constraint=False, db_index=False)
    claim = models.ForeignKey(Claim, on_delete=models.PROTECT, null=True, db_index=False)
    event_id = fields.IdentifierField()
    event_type = models.CharField(max_length=255, blank=True)
    role = models.CharField(max_length=8, choices=Role, default=Role.FIRST)
    content = models.CharField(max_length=32)
    headers = models.JSONField()
    body = models.BinaryField(null=True)
    note = models.TextField(blank=True, default="", help_text="Why it is ignored, unusable, or failed")
    failures = models.SmallIntegerField(db_default=0)
    occurred_at = models.DateTimeField(null=True)
    received_at = models.DateTimeField()

    class Meta:
        permissions = [("reveal_event", "Can see personal data in bodies, and download them")]
        constraints = [
            models.UniqueConstraint(fields=["claim", "content"], name="payments_event_content_once"),
            models.UniqueConstraint(
                fields=["endpoint", "event_id"],
                condition=models.Q(claim__isnull=True),
                name="payments_event_failing_once",
            ),
            models.CheckConstraint(
                condition=models.Q(role__in=["first", "conflict", "failure"]), name="payments_event_role"
            ),
        ]
        indexes = [models.Index(fields=["id"], condition=~models.Q(role="first"), name="payments_event_unusual")]

    def __str__(self) -> str:
        return str(self.event_id)


class Attempt(models.Model):
    """One HTTP delivery. Written fire-and-forget: what was lost is a row too, with `lost` > 0 and its time span."""

    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, db_constraint=False, db_index=False, null=True)
    event_id = fields.IdentifierField(blank=True, default="")
    status = models.SmallIntegerField(null=True, help_text="null: this row is a gap")
    replayed = models.BooleanField(default=False)
    duration_ms = models.FloatField(null=True)
    received_at = models.DateTimeField()
    lost = models.IntegerField(
        default=0, help_text="How many attempts were not recorded from received_at to lost_until"
    )
    lost_until = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["endpoint", "event_id", "id"], name="payments_attempt_by_event"),
            models.Index(fields=["received_at", "id"], name="payments_attempt_by_time"),
            # What staff look for is rare, and so costs the common delivery nothing.
            models.Index(
                fields=["id"],
                condition=models.Q(status__gte=400) | models.Q(status__isnull=True),
                name="payments_attempt_failed",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.lost} attempts not recorded" if self.lost else f"{self.event_id} {self.status}"
