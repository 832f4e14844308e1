"""What we owe the outside world, what checks saw, and what staff did."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from payments.models import fields
from payments.models.endpoints import Endpoint
from payments.models.ledger import Account, Transfer


class OutboxMessage(models.Model):
    """Something to tell the outside world, written in the same transaction as its cause.

    key        the webhook-id: unique, the same on every try
    body       the exact text that is sent and signed
    """

    class State(models.TextChoices):
        READY = "ready", "Ready"
        SENT = "sent", "Sent"
        DEAD = "dead", "Dead letter"

    key = models.CharField(max_length=255, db_collation="C")
    destination = models.CharField(max_length=64)
    topic = models.CharField(max_length=64)
    body = models.TextField()
    transfer = models.ForeignKey(Transfer, on_delete=models.PROTECT, null=True, db_index=False)
    state = models.CharField(max_length=5, choices=State, db_default=State.READY)
    attempts = models.IntegerField(db_default=0)
    last_error = models.TextField(blank=True, db_default="")
    due_at = models.DateTimeField(db_default=Now())
    created_at = models.DateTimeField(db_default=Now())
    sent_at = models.DateTimeField(null=True)

    class Meta:
        permissions = [("requeue_outboxmessage", "Can give dead messages their tries again")]
        constraints = [
            models.UniqueConstraint(fields=["key"], name="payments_outboxmessage_once"),
            models.CheckConstraint(
                condition=Q(state__in=["ready", "sent", "dead"]), name="payments_outboxmessage_state"
            ),
        ]
        indexes = [
            models.Index(
                fields=["destination", "due_at", "id"], condition=Q(state="ready"), name="payments_outboxmessage_due"
            ),
            models.Index(fields=["state", "id"], condition=~Q(state="sent"), name="payments_outboxmessage_unsent"),
        ]

    def __str__(self) -> str:
        return self.key


class Finding(models.Model):
    """What a check, a delivery or a reconciliation saw. One row per kind and subject; opened again when it comes back.

    closed_at  null: open. closed_by is "system" where the state healed by itself
    """

    kind = models.CharField(max_length=64)
    subject = models.TextField(db_collation="C")
    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, db_constraint=False, db_index=False, null=True)
    detail = models.JSONField(default=dict)
    opened_at = models.DateTimeField(db_default=Now())
    closed_at = models.DateTimeField(null=True)
    closed_by = models.CharField(max_length=150, blank=True, db_default="")
    close_reason = models.TextField(blank=True, db_default="")

    class Meta:
        permissions = [("close_finding", "Can close findings")]
        constraints = [models.UniqueConstraint(fields=["kind", "subject"], name="payments_finding_once")]
        indexes = [
            models.Index(fields=["opened_at", "id"], condition=Q(closed_at__isnull=True), name="payments_finding_open"),
            models.Index(fields=["kind", "id"], condition=Q(closed_at__isnull=True), name="payments_finding_open_kind"),
            models.Index(fields=["subject"], name="payments_finding_by_subject"),
        ]

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}"


class StaffAction(models.Model):
    """Who did what, and why. Append-only."""

    actor = models.CharField(max_length=150)
    action = models.CharField(max_length=64)
    subject = models.TextField()
    reason = models.TextField()
    detail = models.JSONField(default=dict)
    done_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [
            models.Index(fields=["done_at", "id"], name="payments_staffaction_by_time"),
            models.Index(fields=["subject", "id"], name="payments_staffaction_subject"),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.subject}"


class LoginBrake(models.Model):
    """How often somebody tried to log in with one name from one address since began_at.

    who    a keyed hash of both
    """

    who = models.UUIDField(primary_key=True)
    tries = models.IntegerField()
    began_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        indexes = [models.Index(fields=["began_at"], name="payments_loginbrake_by_time")]

    def __str__(self) -> str:
        return f"{self.tries} since {self.began_at:%Y-%m-%d %H:%M:%S}"


class Verification(models.Model):
    """One run of the ledger's verification. Deliveries are served while the newest one found nothing broken.

    horizon    transactions below this id are in the verified balances, unless something is broken; later ones are
               looked at by the next run, which moves this as it goes
    broken     the findings: [{"kind", "subject", "detail"}]
    """

    is_full = models.BooleanField()
    horizon = models.BigIntegerField()
    checked = models.JSONField(help_text="{what: how many}")
    broken = models.JSONField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [models.Index(fields=["finished_at", "id"], name="payments_verification_time")]

    def __str__(self) -> str:
        return f"{self.finished_at:%Y-%m-%d %H:%M:%S} {len(self.broken)} broken"


class VerifiedBalance(models.Model):
    """The sums of an account's entries below the newest verification's horizon."""

    account = models.OneToOneField(Account, on_delete=models.PROTECT, primary_key=True)
    debits = fields.RunningTotalField()
    credits = fields.RunningTotalField()

    def __str__(self) -> str:
        return f"{self.account_id}: {self.debits} {self.credits}"


class VerificationPass(models.Model):
    """A verification from the beginning that is under way, at most one: how far it has come.

    horizon    transactions below this id have been looked at
    claim_id   claims up to this id have been looked at
    is_clean   nothing was found so far; else the process that runs it knows what
    """

    horizon = models.BigIntegerField(default=0)
    claim_id = models.BigIntegerField(default=0)
    checked = models.JSONField(default=dict)
    is_clean = models.BooleanField(default=True)
    started_at = models.DateTimeField()
    moved_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "verification passes"

    def __str__(self) -> str:
        return f"below {self.horizon}"


class PassBalance(models.Model):
    """The sums of an account's entries below that pass's horizon."""

    # Accounts are never deleted (a trigger refuses), so no constraint is needed that would lock their table when made.
    account = models.OneToOneField(Account, on_delete=models.PROTECT, primary_key=True, db_constraint=False)
    debits = fields.RunningTotalField()
    credits = fields.RunningTotalField()

    def __str__(self) -> str:
        return f"{self.account_id}: {self.debits} {self.credits}"
