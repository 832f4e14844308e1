"""Write pgbench scripts of what the product does to settle one batch of new events.

DATABASE_URL=… python -m benchmarks.pgbench_scripts FOLDER BATCH SCRIPTS

The product settles a batch here, and every statement it sends is written down. What would be the same in each
transaction is then told apart: ids of events and payments get a random part, ids given out by the database are
taken from what the script's own INSERTs return. So the scripts can't differ from what the product does.
"""

import dataclasses
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import django

from benchmarks import presigned
from payments.gateways import base

# Stands in every id from outside and becomes pgbench's variable `u`, a random number.
MARK: Final = "0xMARK"
# Ids are given out from here on, so that no other number in a statement can be mistaken for one.
FIRST_IDS: Final = {
    "payments_claim": 7_000_000_000_000,
    "payments_payment": 8_000_000_000_000,
    "payments_transfer": 9_000_000_000_000,
}
ID: Final = re.compile(r"\b[789]\d{12}\b")


def main() -> None:
    folder, batch, scripts = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    django.setup()
    for number in range(scripts):
        (folder / f"{number:03}.sql").write_text(_script(batch, number))


def _script(batch: int, number: int) -> str:
    from django.db import connection

    from payments import conf, intake

    begins_at = {table: first + number * batch for table, first in FIRST_IDS.items()}
    with connection.cursor() as cursor:
        for table, first in begins_at.items():
            cursor.execute(f"ALTER TABLE {table} ALTER COLUMN id RESTART WITH {first}")
    endpoint = conf.endpoint("demo")
    jobs = [intake.receive(endpoint, delivery) for delivery in _deliveries(batch, number)]
    with _recorded() as statements:
        answers = intake.settle(jobs, time.monotonic() + 60)
    if failed := [answer for answer in answers if isinstance(answer, Exception)]:
        raise failed[0]
    lines = [r"\set u random(1, 1000000000000000)"]
    is_begun = False
    for statement, is_inside in statements:
        if is_inside and not is_begun:
            lines.append("BEGIN;")
            is_begun = True
        lines.append(_line(statement, begins_at, batch))
    return "\n".join([*lines, "COMMIT;"]).replace(MARK, ":u") + "\n"


def _deliveries(batch: int, number: int) -> Iterator[base.Delivery]:
    for happening in presigned.captures(batch, accounts=1000, seed=number):
        # `:u` must be followed by what can't be part of a variable's name.
        payment = happening.payment.replace("_", f"-{MARK}-", 1)
        event_id = happening.event_id.replace("_", f"-{MARK}-", 1)
        told = dataclasses.replace(happening, event_id=event_id, payment=payment, object_id=payment)
        headers, body = presigned.DIALECT.tell(told, presigned.SECRET, int(time.time()))
        yield base.Delivery(dict(headers), body, datetime.now(UTC))


@contextmanager
def _recorded() -> Iterator[list[tuple[str, bool]]]:
    """Collect (statement with its parameters, is it in a transaction) of all that the block executes."""
    from django.db import connection

    statements: list[tuple[str, bool]] = []

    def record(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
        text = context["cursor"].mogrify(statement, params)
        statements.append((text.strip(), connection.in_atomic_block))
        return execute(statement, params, many, context)

    with connection.execute_wrapper(record):
        yield statements


def _line(statement: str, begins_at: dict[str, int], batch: int) -> str:
    """Return a statement for a script; an INSERT that gives out ids keeps them in variables."""
    if "pg_advisory_xact_lock" in statement:  # keys are hashes of ids: as many, as random, in order
        keys = f"ARRAY(SELECT (random() * 9e18)::bigint FROM generate_series(1, {batch}) ORDER BY 1)"
        return re.sub(r"'\{[-0-9,]*\}'(::[a-z0-9]+\[\])?", keys, statement) + ";"
    known = ID.sub(lambda match: _variable(int(match[0]), begins_at), statement)
    table = re.match(r"INSERT INTO (\w+)", statement)
    if table is None or table[1] not in begins_at or "RETURNING" not in statement:
        return known + ";"
    first = begins_at[table[1]]
    columns = [f"ids[{n + 1}] AS {_variable(first + n, begins_at)[1:]}" for n in range(batch)]
    return (
        f"WITH inserted AS ({known}) SELECT {', '.join(columns)}"
        " FROM (SELECT array_agg(id) AS ids FROM inserted) AS all_ids \\gset"
    )


def _variable(number: int, begins_at: dict[str, int]) -> str:
    for table, first in begins_at.items():
        if number // 1_000_000_000_000 == first // 1_000_000_000_000:
            return f":{table}_{number - first}"
    raise AssertionError(f"Bug: {number} is nobody's id")


if __name__ == "__main__":
    main()
