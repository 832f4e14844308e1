"""What the peer's handler books on: one row for each merchant."""

from django.db import models


class Balance(models.Model):
    code = models.CharField(max_length=64, unique=True)
    minor = models.BigIntegerField(default=0)

    class Meta:
        app_label = "peer_site"

    def __str__(self) -> str:
        return self.code
