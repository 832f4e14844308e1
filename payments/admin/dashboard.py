"""The first page: how it goes, what is stuck, and where to look. Each figure leads to the list behind it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _

from payments import conf, verification
from payments.admin import amounts, cells, codes, figures, finding_page, gauges, hours_drawn, period, rows
from payments.admin.figures import Count, Hours
from payments.admin.tables import Section, table
from payments.models import Attempt, Claim, Finding, OutboxMessage, Payment, StaffAction, Verification

FINDINGS_SHOWN: Final = 10
OUTBOX_LATE_S: Final = 300  # a message that waits longer is worth a look


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure, and the list behind it."""

    label: str
    value: str
    url: str
    note: str = ""
    is_bad: bool = False


@dataclass(slots=True)
class Dashboard:
    closed: str | None
    tiles: list[Tile] = field(default_factory=list)
    drawings: list[Section] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)


def read(request: HttpRequest) -> Dashboard:
    """Return what the reader may see of it."""

    def may_see(*models: Any) -> bool:
        return request.user.has_perms([f"payments.view_{model._meta.model_name}" for model in models])

    now = timezone.now()
    conf.read_copy()
    closed = conf.why_closed()
    board = Dashboard(None if closed is None else codes.listed(closed))
    if may_see(Claim):
        claims = figures.claims_by_hour(now)
        board.drawings.append(hours_drawn.of_claims(claims))
    if may_see(Attempt):
        attempts = figures.attempts_by_hour(now)
        board.tiles += _of_attempts(attempts)
        board.drawings.append(hours_drawn.of_attempts(attempts))
    if may_see(Finding):
        kinds = figures.open_findings()
        board.tiles.append(_of_findings(kinds))
        board.sections.append(_by_kind(kinds))
        newest = Finding.objects.filter(closed_at=None).order_by("-opened_at", "-pk")[:FINDINGS_SHOWN]
        board.sections.append(
            table(
                _("Open findings, the newest first"), newest, rows.FINDINGS_OPEN, empty=_("Nothing waits for anybody.")
            )
        )
    if may_see(Payment):
        board.tiles += _of_suspense()
    if may_see(OutboxMessage):
        board.tiles += _of_outbox(now)
    if may_see(Verification):
        board.tiles.append(_of_verification())
    board.sections.append(_limits())
    if may_see(StaffAction):
        done = StaffAction.objects.order_by("-pk")[:FINDINGS_SHOWN]
        board.sections.append(table(_("What staff did last"), done, rows.ACTIONS, empty=_("Nothing yet.")))
    return board


def _of_attempts(attempts: Hours) -> list[Tile]:
    about = "" if attempts.step == 1 else "≈ "
    day = {period.FROM: attempts.begins[0].isoformat()}
    failed, replayed = attempts.total("failed"), attempts.total("replayed")
    return [
        Tile(
            _("Failures, last 24 hours"),
            cells.number(failed),
            cells.list_url(Attempt, answer="failed", **day),
            _("Answered 503: the gateway tries again."),
            is_bad=failed > 0,
        ),
        Tile(
            _("Replays, last 24 hours"),
            f"{about}{cells.number(replayed)}",
            cells.list_url(Attempt, answer="replayed", **day),
        ),
    ]


def _of_findings(kinds: Sequence[tuple[str, Count]]) -> Tile:
    number = sum(count.number for _kind, count in kinds)
    return Tile(_("Open findings"), cells.number(number), cells.list_url(Finding), is_bad=number > 0)


def _by_kind(kinds: Sequence[tuple[str, Count]]) -> Section:
    """Return what waits, so that many of one kind don't hide one of another."""
    return Section(
        title=_("Open findings by kind"),
        headings=[_("Kind"), _("How many"), _("What it means")],
        rows=[
            [
                format_html('<a href="{}">{}</a>', cells.list_url(Finding, kind=kind), codes.shown(kind)),
                str(count),
                finding_page.MEANINGS.get(kind, ""),
            ]
            for kind, count in kinds
        ],
        empty=_("Nothing waits for anybody."),
    )


def _of_suspense() -> list[Tile]:
    url = cells.list_url(Payment, owner="waiting")
    waiting = figures.suspense()
    if not waiting:
        return [Tile(_("In suspense"), _("Nothing"), url)]
    note = _("Waits for an owner.")
    return [
        Tile(_("In suspense, %(currency)s") % {"currency": currency}, amounts.shown(total, currency), url, note, True)
        for currency, total in waiting
    ]


def _of_outbox(now: datetime) -> list[Tile]:
    owed = figures.outbox()
    age = None if owed.oldest_at is None else now - owed.oldest_at
    is_late = age is not None and age.total_seconds() > OUTBOX_LATE_S
    note = "" if age is None else _("%(count)s waiting") % {"count": owed.waiting}
    return [
        Tile(
            _("Oldest outbox message"),
            _("None") if age is None else _age(age),
            cells.list_url(OutboxMessage, state__exact="ready"),
            note,
            is_late,
        ),
        Tile(
            _("Dead outbox messages"),
            str(owed.dead),
            cells.list_url(OutboxMessage, state__exact="dead"),
            is_bad=owed.dead.number > 0,
        ),
    ]


def _age(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    for size, name in ((86_400, _("%(n)d d")), (3600, _("%(n)d h")), (60, _("%(n)d min"))):
        if seconds >= size:
            return name % {"n": seconds // size}
    return _("%(n)d s") % {"n": max(0, seconds)}


def _of_verification() -> Tile:
    newest = verification.newest()
    url = cells.list_url(Verification, period="all")
    if newest is None:
        return Tile(_("Ledger verified"), _("Never"), url, is_bad=True)
    verdict = _("Broken") if newest.broken else _("Clean")
    return Tile(_("Ledger verified"), verdict, url, cells.moment(newest.finished_at), bool(newest.broken))


def _limits() -> Section:
    found, refused = gauges.read()
    return Section(
        title=_("Limits now"),
        headings=[_("Limit"), _("In use"), _("Permits of a process"), _("Waiting"), _("Refused since the start")],
        rows=[[one.name, one.in_use, one.permits, one.waiting, cells.number(one.refused)] for one in found],
        note=_("Deliveries that were not believed (400) since the server's start: %(count)s.")
        % {"count": cells.number(refused)},
    )
