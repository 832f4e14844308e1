"""Columns that other models share."""

from decimal import Decimal
from typing import Any

from django.db import models


class IdentifierField(models.CharField):  # type: ignore[type-arg]  # generic only in the stubs
    """An id from outside, kept exactly: byte order, so that Python's sort and the database's are one order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("max_length", 255)
        kwargs.setdefault("db_collation", "C")
        super().__init__(*args, **kwargs)


class CurrencyField(models.CharField):  # type: ignore[type-arg]
    """An ISO 4217 code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("max_length", 3)
        kwargs.setdefault("db_collation", "C")
        super().__init__(*args, **kwargs)


class RunningTotalField(models.DecimalField):  # type: ignore[type-arg]
    """A sum in minor units that no number of amounts can overflow: numeric in the database, int in Python.

    A thousand amounts of 2^53-1 are more than a bigint holds, and an account must never refuse what a gateway proved.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("max_digits", 40)
        kwargs.setdefault("decimal_places", 0)
        super().__init__(*args, **kwargs)

    def from_db_value(self, value: Decimal | None, expression: object, connection: object) -> int | None:
        return None if value is None else int(value)
