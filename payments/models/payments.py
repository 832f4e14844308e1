"""What is known of one payment: a pure function of the facts told about it."""

from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Now

from payments.models import fields
from payments.models.endpoints import Endpoint


class Payment(models.Model):
    """One payment at one gateway account (`endpoint` is the books: the endpoint whose keys and accounts it is in).

    Totals are in minor units of `currency`, net of reversals; they may be negative for a while, when a refund arrives
    before its capture. `told_…` is the greatest total a gateway told, `named_…` the sum of all single ids known.

    currency          null until a fact names money; while currency_rank is 1 only a fee did
    merchant_reference  the merchant's own; reference_rank 2 where named, 1 where another id stands in for it
    payee             whose money it is; null: nobody named one
    payee_rank        who named it: 3 registration, 2 capture, 1 other fact, 0 the endpoint's default
    payee_by_capture, payee_by_fact   the first account that a capture, or any other fact, named
    payee_account     where the payee's money of this payment is; null: in suspense
    """

    class Rank(models.IntegerChoices):
        PENDING = 0
        FAILED = 1
        AUTHORIZED = 2
        EXPIRED = 3
        VOIDED = 4
        CAPTURED = 5

    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, db_constraint=False, db_index=False)
    reference = fields.IdentifierField()
    merchant_reference = fields.IdentifierField(null=True)
    reference_rank = models.SmallIntegerField(db_default=0)
    currency = fields.CurrencyField(null=True)
    currency_rank = models.SmallIntegerField(db_default=0)
    other_currencies = models.BooleanField(
        db_default=False, help_text="Money in another currency was told; it is not in the totals"
    )
    payee = fields.IdentifierField(null=True)
    payee_rank = models.SmallIntegerField(null=True)
    payee_by_capture = fields.IdentifierField(null=True)
    payee_by_fact = fields.IdentifierField(null=True)
    payee_account = models.ForeignKey(
        "Account", on_delete=models.PROTECT, null=True, db_index=False, db_constraint=False
    )
    authorized = models.BigIntegerField(db_default=0)
    captured = models.BigIntegerField(db_default=0)
    refunded = models.BigIntegerField(db_default=0)
    disputed = models.BigIntegerField(db_default=0)
    fees = models.BigIntegerField(db_default=0)
    told_captured = models.BigIntegerField(db_default=0)
    named_captured = models.BigIntegerField(db_default=0)
    told_refunded = models.BigIntegerField(db_default=0)
    named_refunded = models.BigIntegerField(db_default=0)
    rank = models.SmallIntegerField(choices=Rank, db_default=0)
    ever_captured = models.BooleanField(db_default=False)
    status = models.GeneratedField(
        expression=Case(
            When(ever_captured=True, captured=0, then=Value("reversed")),
            When(captured__gt=0, refunded__gte=F("captured"), then=Value("refunded")),
            When(captured__gt=0, refunded__gt=0, then=Value("partially_refunded")),
            When(captured__gt=0, then=Value("captured")),
            When(rank=5, then=Value("captured")),
            When(rank=4, then=Value("voided")),
            When(rank=3, then=Value("expired")),
            When(rank=2, then=Value("authorized")),
            When(rank=1, then=Value("failed")),
            default=Value("pending"),
        ),
        output_field=models.CharField(max_length=18),
        db_persist=True,
    )
    first_seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        permissions = [("allocate_payment", "Can allocate payments that wait for an owner")]
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "reference"], name="payments_payment_once"),
            models.CheckConstraint(condition=Q(rank__gte=0, rank__lte=5), name="payments_payment_rank"),
        ]
        indexes = [
            models.Index(fields=["endpoint", "merchant_reference"], name="payments_payment_by_merchant"),
            models.Index(
                fields=["payee", "id"],
                condition=Q(payee_account__isnull=True) | Q(other_currencies=True),
                name="payments_payment_waiting",
            ),
        ]

    def __str__(self) -> str:
        return str(self.reference)


class Registration(models.Model):
    """What the application told us of a merchant's reference, before or after the gateway did."""

    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, db_constraint=False, db_index=False)
    merchant_reference = fields.IdentifierField()
    account = fields.IdentifierField()
    amount = models.BigIntegerField(help_text="Expected, in minor units")
    currency = fields.CurrencyField()
    registered_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "merchant_reference"], name="payments_registration_once"),
            models.CheckConstraint(condition=Q(amount__gt=0), name="payments_registration_amount"),
        ]

    def __str__(self) -> str:
        return str(self.merchant_reference)


class Correction(models.Model):
    """A fact that undoes another: known by the business key it corrects. Append-only; alone it books nothing."""

    key = models.TextField(db_collation="C")
    kind = models.CharField(max_length=32)
    payment = models.ForeignKey(Payment, on_delete=models.PROTECT, null=True)
    claim = models.ForeignKey("Claim", on_delete=models.PROTECT, null=True, db_index=False)
    source = models.CharField(max_length=16)
    amount = models.BigIntegerField()
    currency = fields.CurrencyField()
    occurred_at = models.DateTimeField()
    recorded_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["key"], name="payments_correction_once"),
            models.CheckConstraint(condition=Q(amount__gt=0), name="payments_correction_amount"),
        ]

    def __str__(self) -> str:
        return self.key


class Dispute(models.Model):
    """One dispute of a payment: what was withdrawn, returned and lost (charged to the payee), in minor units."""

    class Outcome(models.TextChoices):
        OPEN = "", "Open"
        WON = "won", "Won"
        LOST = "lost", "Lost"

    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, db_constraint=False, db_index=False)
    reference = fields.IdentifierField()
    payment = models.ForeignKey(Payment, on_delete=models.PROTECT)
    withdrawn = models.BigIntegerField(db_default=0)
    returned = models.BigIntegerField(db_default=0)
    lost = models.BigIntegerField(db_default=0)
    outcome = models.CharField(max_length=4, choices=Outcome, blank=True, db_default="")
    opened_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["endpoint", "reference"], name="payments_dispute_once")]

    def __str__(self) -> str:
        return str(self.reference)
