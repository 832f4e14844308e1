"""The only start path: preflight, then verification of the ledger. The first start and one after SIGKILL are the same.

After a crash: run again. No worker holds anything durable, so there is nothing to release: its sessions' locks end by
the server's own timeouts.
"""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor

from payments import conf, database, verification

logger = logging.getLogger(__name__)

DATABASE_WAIT_S: Final = 60.0
SERVER_VERSION_MIN: Final = 150_000
VERIFY_EVERY_S: Final = 60.0
VERIFY_S_MAX: Final = 600.0

GUARDS: Final = (
    "payments_transfer_append_only",
    "payments_entry_append_only",
    "payments_sighting_append_only",
    "payments_correction_append_only",
    "payments_staffaction_append_only",
    "payments_claim_settled",
    "payments_claim_kept",
    "payments_entry_balanced",
    "payments_account_grows",
    "payments_account_kept",
    "payments_endpoint_kept",
    "payments_endpoint_keys_kept",
)


class PreflightFailed(Exception):
    """The service must not start like this; problems says why, a line each, with what to do."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(problems)
        self.problems = problems


def recover(
    *, full: bool = False, progress: Callable[[str, int], None] = lambda what, done: None
) -> tuple[verification.Report, list[str]]:
    """Wait for the database, check that it is safe to serve, and verify the ledger; return what was seen, and warnings.

    Raises PreflightFailed.
    """
    wait_for_database(DATABASE_WAIT_S)
    warnings = preflight()
    return _verify(full=full, progress=progress), warnings


def _verify(*, full: bool, progress: Callable[[str, int], None] = lambda what, done: None) -> verification.Report:
    report = verification.verify(full=full, progress=progress)
    for one in report.broken:
        logger.error("invariant_broken", extra=asdict(one))
    return report


def keep_verified() -> NoReturn:
    """Verify what is new every minute, until the process dies: a start has no more than that to catch up with.

    In a thread of each worker, so that it goes on whichever dies; whoever comes first does it for all.
    """
    while True:
        time.sleep(VERIFY_EVERY_S * random.uniform(0.8, 1.2))
        try:
            verify_if_due()
        except (DatabaseError, InterfaceError) as error:
            logger.warning("verification_failed", extra={"error": repr(error)})
        except Exception:
            logger.exception("verification_failed")


def verify_if_due() -> verification.Report | None:
    """Verify what is new, unless somebody did within VERIFY_EVERY_S. What is broken closes the money lane, as ever.

    None: not due; or it needs a start first, or somebody who looks at what was broken.
    """
    with database.connected(time.monotonic() + VERIFY_S_MAX):
        newest = verification.newest()
        last_due = datetime.now(UTC) - timedelta(seconds=VERIFY_EVERY_S)
        if newest is None or newest.broken or newest.finished_at > last_due:
            return None
        return _verify(full=False)


def wait_for_database(seconds: float) -> None:
    """Return once the database answers; raise its error when it doesn't within so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection.ensure_connection()
            return
        except DatabaseError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


# Preflight ------------------------------------------------------------------------------------------------------------


def preflight() -> list[str]:
    """Return warnings; raise PreflightFailed with all that forbids to start."""
    problems = _unapplied_migrations()
    warnings: list[str] = []
    unsafe = _unsafe_durability()
    # The demo and tests may run fast and unsafe; nobody's money may.
    (warnings if settings.DEBUG else problems).extend(unsafe)
    if not problems:
        problems += _server_problems() + _missing_guards() + _connection_sum()
        warnings += _missing_secrets()
    if problems:
        raise PreflightFailed(problems)
    return warnings


def _setting(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting(%s)", [name])
        return str(cursor.fetchone()[0])


def _unsafe_durability() -> list[str]:
    return [
        f"PostgreSQL's {name} is off: an acknowledged payment could be lost. Set it to on"
        for name in ("fsync", "full_page_writes", "synchronous_commit")
        if _setting(name) == "off"
    ]


def _server_problems() -> list[str]:
    problems = []
    if connection.connection.info.server_version < SERVER_VERSION_MIN:
        problems.append("PostgreSQL is older than 15. Use 15 to 18")
    if _setting("default_transaction_isolation") != "read committed":
        problems.append("The isolation level is not read committed. Remove what sets it in DATABASE_URL")
    return problems


def _unapplied_migrations() -> list[str]:
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [f"Migration {migration} is not applied. Run manage.py migrate" for migration, _ in plan]


def _missing_guards() -> list[str]:
    with connection.cursor() as cursor:
        # "O" fires in ordinary sessions; "D" is disabled, "R" fires only in replicas.
        cursor.execute(
            "SELECT tgname FROM pg_trigger WHERE tgenabled IN ('O', 'A') AND tgname = ANY(%s)", [list(GUARDS)]
        )
        present = {row[0] for row in cursor.fetchall()}
    return [f"The guard {name} is missing or disabled. Enable the trigger" for name in GUARDS if name not in present]


def _connection_sum() -> list[str]:
    per_process = sum(settings.PAYMENTS_CONNECTION_PERMITS.values())
    wanted = settings.WEB_CONCURRENCY * per_process
    room = int(_setting("max_connections")) - int(_setting("superuser_reserved_connections"))
    if wanted < room:
        return []
    return [
        f"{settings.WEB_CONCURRENCY} processes of {per_process} connections ({settings.PAYMENTS_CONNECTION_PERMITS})"
        f" are {wanted}, and PostgreSQL has room for {room}, of which one is for commands."
        " Lower WEB_CONCURRENCY or the permits, or raise max_connections"
    ]


def _missing_secrets() -> list[str]:
    conf.read_copy()
    return [
        f"{conf.secrets_name(endpoint.slug)} is not set: every delivery to /webhooks/{endpoint.slug}/ is refused"
        for endpoint in conf.known_endpoints()
        if not endpoint.secrets
    ]
