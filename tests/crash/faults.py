"""Faults planted on purpose, to show that the soak would find them: WSGI applications that tests alone serve.

Each is what a plausible mistake in the spine would do. The settings know nothing of them.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final
from unittest import mock

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
_application = get_wsgi_application()

from django.db import connection  # noqa: E402

from payments import claims, ledger, models  # noqa: E402

# What gunicorn is told to serve.
CLAIM_FIRST: Final = "tests.crash.faults:claim_first"
LOST_UPDATE: Final = "tests.crash.faults:lost_update"

_take = claims.take


def _take_and_commit(candidates: Sequence[claims.Candidate]) -> dict[claims.Key, claims.Decision]:
    decisions = _take(candidates)
    connection.connection.commit()
    return decisions


def _read_then_write(entries: Iterable[tuple[int, str, int]]) -> None:
    sums: dict[int, list[int]] = {}
    for account_id, direction, amount in entries:
        sums.setdefault(account_id, [0, 0])[direction == "credit"] += amount
    for row in models.Account.objects.filter(id__in=sums).order_by("id"):
        row.debits, row.credits = row.debits + sums[row.id][0], row.credits + sums[row.id][1]
        row.save(update_fields=["debits", "credits"])


def claim_first(environ: dict[str, Any], start_response: Any) -> Any:
    """The claim is committed before the work: a crash between them loses the money, and the retry hears `applied`."""
    if claims.take is not _take_and_commit:
        mock.patch.object(claims, "take", _take_and_commit).start()
    return _application(environ, start_response)


def lost_update(environ: dict[str, Any], start_response: Any) -> Any:
    """Balances are read and written without a lock: of two at once, one is lost."""
    if ledger._add_to_balances is not _read_then_write:
        mock.patch.object(ledger, "_add_to_balances", _read_then_write).start()
    return _application(environ, start_response)
