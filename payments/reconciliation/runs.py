"""Reconciliations and what of their lines a person may want to see: the only writer of both tables.

After a crash: a run that isn't finished was killed, for only one runs at a time. Lines that it booked are noted in the
transactions that booked them, and stay; all else is written with its report, and written again by who goes on.

Raw SQL: lines are inserted beside bookings, while accounts are locked, and the ORM takes twice as long.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import connection
from django.db.models.functions import Now

from payments import database, models
from payments.reconciliation.staging import Difference
from payments.reconciliation.verdicts import BOOKED, Row


def begin_or_go_on(*, file_name: str, **asked: Any) -> tuple[int, bool]:
    """Return the id of the unfinished run that was asked the same, else of a new one; and whether it goes on.

    asked: the endpoint, file, format and window, as the columns of Reconciliation.
    """
    unfinished = models.Reconciliation.objects.filter(**asked, finished_at=None).order_by("-id").first()
    if unfinished is not None:
        return unfinished.pk, True
    return models.Reconciliation.objects.create(**asked, file_name=file_name[:255]).pk, False


def note_booked(run_id: int, rows: Iterable[Row]) -> None:
    """Note lines as booked by the run. Needs the transaction that books them."""
    _insert(
        run_id,
        [
            (
                *(row.number, row.is_beside, BOOKED, row.unit, row.kind, row.amount, row.currency, None, None),
                *(row.occurred_at, ""),
            )
            for row in rows
        ],
    )


def note_differences(run_id: int, differences: Sequence[Difference]) -> None:
    _insert(run_id, [difference[:-1] for difference in differences])


def forget_differences(run_id: int) -> None:
    """Forget what a run noted while its report was being kept, and killed."""
    models.ReconciliationLine.objects.filter(reconciliation_id=run_id).exclude(verdict=BOOKED).delete()


def keep_report(
    run_id: int,
    *,
    begin: datetime | None,
    end: datetime | None,
    counts: dict[str, int],
    summary: list[dict[str, Any]],
) -> None:
    models.Reconciliation.objects.filter(pk=run_id).update(
        window_from=begin, window_to=end, counts=counts, summary=summary
    )


def finish(run_id: int) -> None:
    models.Reconciliation.objects.filter(pk=run_id).update(finished_at=Now())


_INSERT_LINES: Final = """
    INSERT INTO payments_reconciliationline (reconciliation_id, number, is_beside, verdict, key, kind, amount, currency,
                                             booked_amount, booked_currency, occurred_at, why)
    SELECT %s, t.* FROM unnest(%s::int[], %s::boolean[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[],
                               %s::bigint[], %s::text[], %s::timestamptz[], %s::text[]) AS t
"""


def _insert(run_id: int, lines: Sequence[Sequence[object]]) -> None:
    if lines:
        with connection.cursor() as cursor:
            cursor.execute(_INSERT_LINES, [run_id, *database.arrays(lines)])
