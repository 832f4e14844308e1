"""Which facts a statement told first: webhooks that were lost, or are late. Reads only."""

from datetime import datetime
from typing import Any, Final

from django.db import connection

# A fee beside a line has no webhook that could be lost.
_LOST: Final = """
    SELECT e.slug, (l.occurred_at AT TIME ZONE 'UTC')::date AS day, count(DISTINCT l.key),
           count(DISTINCT l.key) FILTER (WHERE EXISTS (
               SELECT FROM payments_transfer t JOIN payments_sighting s ON s.transfer_id = t.id
               WHERE t.key = l.key AND s.source = 'webhook'))
    FROM payments_reconciliationline l
    JOIN payments_reconciliation r ON r.id = l.reconciliation_id
    JOIN payments_endpoint e ON e.id = r.endpoint_id
    WHERE l.verdict = 'booked' AND NOT l.is_beside
      AND (%(run)s::bigint IS NULL OR r.id = %(run)s)
      AND (%(endpoint)s::bigint IS NULL OR e.id = %(endpoint)s)
      AND (%(begin)s::timestamptz IS NULL OR l.occurred_at >= %(begin)s)
      AND (%(end)s::timestamptz IS NULL OR l.occurred_at < %(end)s)
    GROUP BY 1, 2
    ORDER BY 1, 2
"""


def find_lost_webhooks(
    *,
    reconciliation_id: int | None = None,
    endpoint_id: int | None = None,
    begin: datetime | None = None,
    end: datetime | None = None,
) -> list[dict[str, Any]]:
    """Return per endpoint and day (UTC) how many facts a statement told first, and how many a webhook told since."""
    with connection.cursor() as cursor:
        cursor.execute(_LOST, {"run": reconciliation_id, "endpoint": endpoint_id, "begin": begin, "end": end})
        return [
            {"endpoint": slug, "day": day.isoformat(), "facts": told_first, "told_since": told_since}
            for slug, day, told_first, told_since in cursor.fetchall()
        ]
