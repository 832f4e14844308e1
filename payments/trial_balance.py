"""All accounts with what was debited and credited, now or as of a moment; per currency both sums are equal. Reads only.

As of a moment counts transfers before it, by when we recorded them (what the books said then) or by when they occurred
in the world (what they say of then today).
"""

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from django.db import connection, transaction

from payments import database

# A transfer has the time of its transaction's beginning, and is seen at its end: longer than any transaction lasts.
UNSETTLED: Final = timedelta(seconds=60)


class By(StrEnum):
    RECORDED = "recorded"
    OCCURRED = "occurred"


class TooYoung(Exception):
    """What was recorded until then may not be all there yet. Wait until it is UNSETTLED old."""


@dataclass(frozen=True, slots=True)
class AccountSums:
    """Minor units; balance is in the normal sense of the account's kind."""

    code: str
    currency: str
    kind: str
    debits: int
    credits: int
    balance: int


@dataclass(frozen=True, slots=True)
class TrialBalance:
    accounts: list[AccountSums]

    @property
    def differences(self) -> dict[str, int]:
        """Debits less credits per currency; zero where the books are balanced."""
        currencies: dict[str, int] = {}
        for sums in self.accounts:
            currencies[sums.currency] = currencies.get(sums.currency, 0) + sums.debits - sums.credits
        return currencies

    @property
    def is_balanced(self) -> bool:
        return not any(self.differences.values())

    def as_json(self) -> dict[str, Any]:
        return {"accounts": [asdict(sums) for sums in self.accounts], "currencies": self.differences}


_NOW: Final = """
    SELECT code, currency, kind, debits, credits FROM payments_account
    WHERE debits <> 0 OR credits <> 0
    ORDER BY currency, code
"""
_AS_OF: Final = """
    SELECT a.code, a.currency, a.kind,
           COALESCE(sum(e.amount) FILTER (WHERE e.direction = 'debit'), 0),
           COALESCE(sum(e.amount) FILTER (WHERE e.direction = 'credit'), 0)
    FROM payments_transfer t
    JOIN payments_entry e ON e.transfer_id = t.id
    JOIN payments_account a ON a.id = e.account_id
    WHERE t.{column} < %s
    GROUP BY a.id
    ORDER BY a.currency, a.code
"""
_COLUMNS: Final = {By.RECORDED: "recorded_at", By.OCCURRED: "occurred_at"}
_DEBIT_KINDS: Final = ("asset", "expense")


def trial_balance(*, as_of: datetime | None, by: By, now: datetime) -> TrialBalance:
    """Return the sums of all accounts that were ever entered in, by currency and code.

    Raises TooYoung for a moment, by recorded, of which not everything may be committed yet.
    """
    if as_of is not None and by is By.RECORDED and as_of > now - UNSETTLED:
        raise TooYoung
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        # One statement is one snapshot. It may take as long as the ledger is large, and holds no lock.
        database.lift_statement_timeout()
        if as_of is None:
            cursor.execute(_NOW)
        else:
            cursor.execute(_AS_OF.format(column=_COLUMNS[by]), [as_of])
        return TrialBalance([_sums(*row) for row in cursor.fetchall()])


def _sums(code: str, currency: str, kind: str, debits: Any, credits: Any) -> AccountSums:
    difference = int(debits) - int(credits)
    balance = difference if kind in _DEBIT_KINDS else -difference
    return AccountSums(code, currency, kind, int(debits), int(credits), balance)
