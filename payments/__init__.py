"""Sekali: gateway webhooks become money in a ledger, exactly once.

What applications use is here: payments.handler and payments.Booked (handlers.py, booked.py). It is loaded when asked
for, because settings import a part of this package before there are any.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from payments.booked import Booked as Booked
    from payments.handlers import handler as handler


def __getattr__(name: str) -> Any:
    if name not in ("Booked", "handler"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from payments import handlers

    return getattr(handlers, name)
