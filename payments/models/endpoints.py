"""Where gateways post to."""

from django.db import models
from django.db.models.functions import Now

from payments.models import fields


class Endpoint(models.Model):
    """A URL that a gateway posts to. Its secrets are not here: they come from the environment.

    Rows are never deleted (a trigger refuses), so other tables point here without a foreign key constraint: checking
    one row that every delivery names would cost a row lock each time.
    """

    class Mode(models.TextChoices):
        LIVE = "live", "Live"
        TEST = "test", "Test"

    class Conflicts(models.TextChoices):
        GATEWAY = "", "As the gateway needs"
        REFUSE = "refuse", "Refuse with 422"
        ACKNOWLEDGE = "acknowledge", "Acknowledge and quarantine"

    slug = models.SlugField(max_length=64, db_index=False)
    gateway = models.CharField(max_length=32)
    mode = models.CharField(max_length=4, choices=Mode, default=Mode.LIVE)
    external_account = models.CharField(
        max_length=255, blank=True, default="", help_text="The gateway's own name for the account"
    )
    default_payee = fields.IdentifierField(
        null=True, blank=True, help_text="Whose payments these are, when nothing names a payee; empty: suspense"
    )
    books = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        help_text="The endpoint whose keys, payments and accounts this one shares; empty: its own",
    )
    conflicts = models.CharField(max_length=12, choices=Conflicts, blank=True, default=Conflicts.GATEWAY)
    auto_capture = models.BooleanField(default=True, help_text="An authorisation is also the capture (Adyen)")
    confirms = models.BooleanField(
        default=False, help_text="Re-read each event from the gateway's API before it is believed"
    )
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["slug"], name="payments_endpoint_slug_once"),
            models.CheckConstraint(condition=models.Q(mode__in=["live", "test"]), name="payments_endpoint_mode"),
            models.CheckConstraint(
                condition=models.Q(books__isnull=True) | ~models.Q(books=models.F("id")),
                name="payments_endpoint_own_books_null",
            ),
        ]

    def __str__(self) -> str:
        return self.slug
