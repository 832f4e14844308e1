"""The double-entry ledger. Rows of Transfer, Entry and Sighting are never changed: triggers refuse it."""

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import Case, F, Q, When
from django.db.models.functions import Now

from payments.models import fields
from payments.models.endpoints import Endpoint
from payments.models.events import Claim
from payments.models.payments import Payment


class Account(models.Model):
    """One balance in one currency. `debits` and `credits` only grow; `balance` is theirs in the kind's normal sense.

    endpoint   the endpoint whose own account it is (receivable, fees, …); null: a payee's or the merchant's own
    """

    class Kind(models.TextChoices):
        ASSET = "asset", "Asset"
        LIABILITY = "liability", "Liability"
        INCOME = "income", "Income"
        EXPENSE = "expense", "Expense"
        EQUITY = "equity", "Equity"

    code = fields.IdentifierField()
    currency = fields.CurrencyField()
    kind = models.CharField(max_length=9, choices=Kind)
    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, db_constraint=False, db_index=False, null=True)
    debits = fields.RunningTotalField(db_default=0)
    credits = fields.RunningTotalField(db_default=0)
    balance = models.GeneratedField(
        expression=Case(
            When(kind__in=["asset", "expense"], then=F("debits") - F("credits")), default=F("credits") - F("debits")
        ),
        output_field=fields.RunningTotalField(),
        db_persist=True,
    )
    opened_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["code", "currency"], name="payments_account_once"),
            # What the entries' composite foreign key points to: an entry's currency is its account's.
            models.UniqueConstraint(fields=["id", "currency"], name="payments_account_currency"),
            models.CheckConstraint(
                condition=Q(kind__in=["asset", "liability", "income", "expense", "equity"]),
                name="payments_account_kind",
            ),
            models.CheckConstraint(condition=Q(currency__regex="^[A-Z]{3}$"), name="payments_account_currency_code"),
            models.CheckConstraint(condition=Q(debits__gte=0, credits__gte=0), name="payments_account_sums"),
        ]

    def __str__(self) -> str:
        return f"{self.code} {self.currency}"


class Source(models.TextChoices):
    WEBHOOK = "webhook", "Webhook"
    STATEMENT = "statement", "Statement"
    REGISTRATION = "registration", "Registration"
    STAFF = "staff", "Staff"
    SYSTEM = "system", "System"


class Transfer(models.Model):
    """One fact that moved money, booked once because its business key is unique.

    amount, currency and account_hint are what the fact said; the legs are the entries. A database-only column
    `recorded_xid` holds the transaction that wrote it, for incremental verification.

    payment    null for payouts and adjustments
    claim      the event that told it; null where no webhook did
    reverses   the transfer that this one undoes, at most once
    """

    key = models.TextField(db_collation="C")
    kind = models.CharField(max_length=32)
    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, db_constraint=False, db_index=False)
    payment = models.ForeignKey(Payment, on_delete=models.PROTECT, null=True)
    claim = models.ForeignKey(Claim, on_delete=models.PROTECT, null=True)
    source = models.CharField(max_length=16, choices=Source)
    reverses = models.ForeignKey("self", on_delete=models.PROTECT, null=True, db_index=False)
    amount = models.BigIntegerField()
    currency = fields.CurrencyField()
    account_hint = fields.IdentifierField(null=True)
    occurred_at = models.DateTimeField()
    recorded_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["key"], name="payments_transfer_once"),
            models.UniqueConstraint(
                fields=["reverses"], condition=Q(reverses__isnull=False), name="payments_transfer_reversed_once"
            ),
            models.CheckConstraint(condition=Q(amount__gt=0), name="payments_transfer_amount"),
        ]
        # Transfers come about in the order of their days: which pages hold a window's is all that has to be known.
        indexes = [BrinIndex(fields=["occurred_at"], autosummarize=True, name="payments_transfer_by_day")]

    def __str__(self) -> str:
        return self.key


class Entry(models.Model):
    """One leg of a transfer, in minor units. All legs of a transfer are inserted by one statement, numbered from 1."""

    class Direction(models.TextChoices):
        DEBIT = "debit", "Debit"
        CREDIT = "credit", "Credit"

    transfer = models.ForeignKey(Transfer, on_delete=models.PROTECT, db_index=False)
    line = models.SmallIntegerField()
    # The real foreign key is (account_id, currency), made in the migration.
    account = models.ForeignKey(Account, on_delete=models.PROTECT, db_index=False, db_constraint=False)
    currency = fields.CurrencyField()
    direction = models.CharField(max_length=6, choices=Direction)
    amount = models.BigIntegerField()

    class Meta:
        verbose_name_plural = "entries"
        constraints = [
            models.UniqueConstraint(fields=["transfer", "line"], name="payments_entry_line_once"),
            models.CheckConstraint(condition=Q(amount__gt=0), name="payments_entry_amount"),
            models.CheckConstraint(condition=Q(line__gte=1), name="payments_entry_line"),
            models.CheckConstraint(condition=Q(direction__in=["debit", "credit"]), name="payments_entry_direction"),
        ]
        indexes = [models.Index(fields=["account", "id"], name="payments_entry_by_account")]

    def __str__(self) -> str:
        return f"{self.direction} {self.amount} {self.currency}"


class Sighting(models.Model):
    """A later source that asserted an already booked transfer.

    claim      the event that told it again; null: a statement
    """

    transfer = models.ForeignKey(Transfer, on_delete=models.PROTECT)
    source = models.CharField(max_length=16, choices=Source)
    claim = models.ForeignKey(Claim, on_delete=models.PROTECT, null=True)
    seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["transfer", "claim"], condition=Q(claim__isnull=False), name="payments_sighting_event_once"
            ),
            models.UniqueConstraint(
                fields=["transfer", "source"], condition=Q(claim__isnull=True), name="payments_sighting_source_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.source} {self.transfer_id}"
