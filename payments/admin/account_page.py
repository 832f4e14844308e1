"""An account's page: why its balance is what it is."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from payments.admin import amounts, cells, codes, plots, rows
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
    """The newest entries of an account, walked back: (time, balance after it), and what moved it by kind."""

    points: list[tuple[datetime, int]] = field(default_factory=list)
    moved: dict[str, Moved] = field(default_factory=lambda: defaultdict(Moved))
    is_whole: bool = True


def sections(account: Account) -> list[Section]:
    """Return the parts of the page: the balance, its curve, what moved it, the entries."""
    history = _history(account)
    return [
        Section(title=_("Why the balance is what it is"), text=_sum(account), **_curve(account, history)),
        _moved(account, history),
        _entries(account),
    ]


def _entries(account: Account) -> Section:
    related = ("account", "transfer__payment", "transfer__claim")
    newest = Entry.objects.filter(account=account).select_related(*related).defer("transfer__claim__reply_body")
    entries = list(newest.order_by("-pk")[: ROWS_MAX + 1])
    after: dict[int, str] = {}
    balance = entries[0].account.balance if entries else 0
    for entry in entries:
        after[entry.pk] = cells.amount(balance, account.currency)
        balance -= _change(account, entry.direction, entry.amount)
    columns = [*rows.ACCOUNT_ENTRIES]
    columns.insert(4, (_("Balance after"), lambda entry: after[entry.pk]))
    return table(
        _("Entries, the newest first"),
        entries,
        columns,
        more_url=cells.list_url(Entry, account__id__exact=account.pk),
        empty=_("Nothing was ever booked here."),
    )


def _sum(account: Account) -> str:
    debits, credits, balance = (
        amounts.shown(amount, account.currency) for amount in (account.debits, account.credits, account.balance)
    )
    names = {"debits": debits, "credits": credits, "balance": balance}
    if _is_debit_sided(account):
        return gettext("debits %(debits)s − credits %(credits)s = %(balance)s") % names  # noqa: RUF001
    return gettext("credits %(credits)s − debits %(debits)s = %(balance)s") % names  # noqa: RUF001


def _history(account: Account) -> History:
    """Walk back from the balance of now. Balance and entries are read by one statement: of one moment."""
    newest = Entry.objects.filter(account=account).order_by("-pk")
    names = ("direction", "amount", "transfer__recorded_at", "transfer__kind", "account__balance")
    found = list(newest.values_list(*names)[: ENTRIES_MAX + 1])
    history = History(is_whole=len(found) <= ENTRIES_MAX)
    balance = int(found[0][4]) if found else 0
    for direction, amount, recorded_at, kind, _now in found[:ENTRIES_MAX]:
        history.points.append((recorded_at, balance))
        balance -= _change(account, direction, amount)
        moved = history.moved[kind]
        moved.count += 1
        moved.debits += amount if direction == Entry.Direction.DEBIT else 0
        moved.credits += amount if direction == Entry.Direction.CREDIT else 0
    if history.points:
        history.points.append((history.points[-1][0], balance))
    return history


def _change(account: Account, direction: str, amount: int) -> int:
    """Return what an entry adds to the balance in the normal sense of the account's kind."""
    return amount if (direction == Entry.Direction.DEBIT) == _is_debit_sided(account) else -amount


def _is_debit_sided(account: Account) -> bool:
    return account.kind in (Account.Kind.ASSET, Account.Kind.EXPENSE)


def _curve(account: Account, history: History) -> dict[str, Any]:
    if not history.points:
        return {}
    points = history.points[::-1]
    points.sort(key=lambda point: point[0])  # of one time, they stay in their order
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
            [codes.shown(kind), moved.count, amount(moved.debits), amount(moved.credits)]
            for kind, moved in sorted(history.moved.items())
        ],
        note="" if history.is_whole else gettext("Over its newest %(count)d entries.") % {"count": ENTRIES_MAX},
    )
