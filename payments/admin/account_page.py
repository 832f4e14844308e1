"""An account's page: why its balance is what it is."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import QuerySet
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from payments.admin import amounts, cells, plots, rows
from payments.admin.tables import ROWS_MAX, Section, table
from payments.models import Account, Entry

ENTRIES_MAX: Final = 2_000  # that the curve goes back; read in some milliseconds along their index


@dataclass(slots=True)
class Moved:
    """What transfers of one kind did to an account, in minor units."""

    count: int = 0
    debits: int = 0
    credits: int = 0


@dataclass(slots=True)
class History:
    """The newest entries of an account, each with the balance after it, and what moved it by kind."""

    entries: list[Entry] = field(default_factory=list)
    balances: list[int] = field(default_factory=list)
    moved: dict[str, Moved] = field(default_factory=lambda: defaultdict(Moved))
    is_whole: bool = True
    begins_with: int = 0


def sections(account: Account) -> list[Section]:
    """Return the parts of the page: the balance, its curve, what moved it, the entries."""
    history = _history(account)
    shown = list(zip(history.entries, history.balances, strict=True))[:ROWS_MAX]
    after = {entry.pk: cells.amount(balance, account.currency) for entry, balance in shown}
    columns = [*rows.ACCOUNT_ENTRIES]
    columns.insert(4, (_("Balance after"), lambda entry: after[entry.pk]))
    return [
        Section(title=_("Why the balance is what it is"), text=_sum(account), **_curve(account, history)),
        _moved(account, history),
        table(
            _("Entries, the newest first"),
            history.entries,
            columns,
            more_url=cells.list_url(Entry, account__id__exact=account.pk),
            empty=_("Nothing was ever booked here."),
        ),
    ]


def _sum(account: Account) -> str:
    debits, credits, balance = (
        amounts.shown(amount, account.currency) for amount in (account.debits, account.credits, account.balance)
    )
    is_debit_sided = account.kind in (Account.Kind.ASSET, Account.Kind.EXPENSE)
    names = {"debits": debits, "credits": credits, "balance": balance}
    if is_debit_sided:
        return gettext("debits %(debits)s − credits %(credits)s = %(balance)s") % names  # noqa: RUF001
    return gettext("credits %(credits)s − debits %(debits)s = %(balance)s") % names  # noqa: RUF001


def _history(account: Account) -> History:
    """Walk back from the balance of now. Balance and entries are read by one statement: of one moment."""
    entries: QuerySet[Any] = Entry.objects.filter(account=account).select_related(
        "account", "transfer__payment", "transfer__claim"
    )
    newest = list(entries.defer("transfer__claim__reply_body").order_by("-pk")[: ENTRIES_MAX + 1])
    history = History(is_whole=len(newest) <= ENTRIES_MAX)
    balance = newest[0].account.balance if newest else account.balance
    for entry in newest[:ENTRIES_MAX]:
        history.entries.append(entry)
        history.balances.append(balance)
        balance -= _change(entry)
        moved = history.moved[entry.transfer.kind]
        moved.count += 1
        moved.debits += entry.amount if entry.direction == Entry.Direction.DEBIT else 0
        moved.credits += entry.amount if entry.direction == Entry.Direction.CREDIT else 0
    history.begins_with = balance
    return history


def _change(entry: Entry) -> int:
    grows = (
        Entry.Direction.DEBIT
        if entry.account.kind in (Account.Kind.ASSET, Account.Kind.EXPENSE)
        else Entry.Direction.CREDIT
    )
    return entry.amount if entry.direction == grows else -entry.amount


def _curve(account: Account, history: History) -> dict[str, Any]:
    if not history.entries:
        return {}
    begun = (history.entries[-1].transfer.recorded_at, history.begins_with)
    later = [(e.transfer.recorded_at, b) for e, b in zip(history.entries, history.balances, strict=True)]
    points = sorted([begun, *later[::-1]], key=lambda point: point[0])
    low, high = min(value for _at, value in points), max(value for _at, value in points)
    note = (
        gettext("Since the account was opened.")
        if history.is_whole
        else gettext("Over its newest %(count)d entries.") % {"count": ENTRIES_MAX}
    )
    drawing = plots.curve(
        points,
        label=gettext("The balance over time"),
        top=gettext("highest %(amount)s") % {"amount": amounts.shown(high, account.currency)},
        bottom=gettext("lowest %(amount)s") % {"amount": amounts.shown(low, account.currency)},
    )
    return {"note": note, "drawing": drawing}


def _moved(account: Account, history: History) -> Section:
    def amount(value: int) -> str:
        return cells.amount(value, account.currency) if value else ""

    return Section(
        title=_("What moved it"),
        headings=[_("Kind"), _("Entries"), _("Debits"), _("Credits")],
        rows=[
            [kind, moved.count, amount(moved.debits), amount(moved.credits)]
            for kind, moved in sorted(history.moved.items())
        ],
        note="" if history.is_whole else gettext("Over its newest %(count)d entries.") % {"count": ENTRIES_MAX},
    )
