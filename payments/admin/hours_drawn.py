"""The last hours as stacked bars: each part a link to the rows that it counts."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from payments.admin import cells, period, plots
from payments.admin.cells import Label
from payments.admin.figures import Hours
from payments.admin.plots import Bar
from payments.admin.tables import Section
from payments.models import Attempt, Claim

# Class of the colour, and what it stands for; in the order in which the parts of a bar stand upon each other.
OUTCOMES: Final = (
    ("applied", gettext_lazy("applied")),
    ("duplicate", gettext_lazy("duplicate")),
    ("ignored", gettext_lazy("ignored")),
    ("quarantined", gettext_lazy("quarantined")),
)
ANSWERS: Final = (
    ("first", gettext_lazy("answered")),
    ("replayed", gettext_lazy("replayed")),
    ("refused", gettext_lazy("refused (4xx)")),
    ("failed", gettext_lazy("failed (5xx)")),
)


def of_claims(hours: Hours) -> Section:
    return _drawn(_("Events per hour, by outcome"), hours, OUTCOMES, _claims_url)


def of_attempts(hours: Hours) -> Section:
    return _drawn(_("Deliveries per hour, by answer"), hours, ANSWERS, _attempts_url)


def _claims_url(name: str, begin: datetime) -> str:
    return cells.list_url(Claim, outcome__exact=name, **_hour(begin))


def _attempts_url(name: str, begin: datetime) -> str:
    return cells.list_url(Attempt, answer=name, **_hour(begin))


def _hour(begin: datetime) -> dict[str, str]:
    return {period.FROM: begin.isoformat(), period.UNTIL: (begin + timedelta(hours=1)).isoformat()}


def _drawn(
    title: str, hours: Hours, parts: Sequence[tuple[str, Label]], url_of: Callable[[str, datetime], str]
) -> Section:
    drawn = []
    for begin in hours.begins:
        label = timezone.localtime(begin).strftime("%H:%M")
        counted = [
            (name, count, f"{label} {words}: {cells.number(count)}", url_of(name, begin))
            for name, words in parts
            if (count := hours.counts[begin, name])
        ]
        drawn.append(Bar(label, counted))
    highest = max((bar.total for bar in drawn), default=0)
    top = _("most in an hour: %(count)s") % {"count": cells.number(highest)}
    note = "" if hours.step == 1 else _("Estimated from one row in %(step)d; the rare ones are exact.")
    return Section(
        title=title,
        drawing=plots.bars(drawn, label=title, legend=[(name, str(words)) for name, words in parts], top=top),
        note=note % {"step": hours.step} if note else "",
    )
