"""Why a balance is what it is: balance -> entries -> transfers -> events. Reads only."""

from typing import Any

from payments import models


def explain(*, code: str, currency: str) -> dict[str, Any]:
    """Return an account's balance and all its entries, newest first, each with its transfer, payment and event.

    Raises LookupError for an unknown account.
    """
    account = models.Account.objects.filter(code=code, currency=currency).first()
    if account is None:
        raise LookupError(f"{code} {currency}")
    rows = (
        models.Entry.objects.filter(account=account)
        .order_by("-id")
        .values_list(
            "transfer__key",
            "direction",
            "amount",
            "transfer__payment__reference",
            "transfer__claim__event_id",
            "transfer__occurred_at",
        )
    )
    names = ("transfer", "direction", "amount", "payment", "event", "occurred_at")
    entries = [{**dict(zip(names, row, strict=True)), "occurred_at": row[5].isoformat()} for row in rows.iterator()]
    return {"account": code, "currency": currency, "balance": account.balance, "entries": entries}
