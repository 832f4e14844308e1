"""What the shop keeps of its own."""

from typing import ClassVar

from django.db import models


class Order(models.Model):
    """An order; `number` is what payments know as the merchant's reference.

    paid_at    null: not paid in full yet
    """

    number = models.CharField(max_length=32, unique=True)
    price = models.BigIntegerField(help_text="In minor units of the currency")
    currency = models.CharField(max_length=3)
    received = models.BigIntegerField(default=0)
    paid_at = models.DateTimeField(null=True)

    objects: ClassVar[models.Manager["Order"]] = models.Manager()

    class Meta:
        app_label = "example_shop"

    def __str__(self) -> str:
        return self.number
