"""Measure all rows side by side, several rounds in turn, and print the table."""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import django
import psycopg

from benchmarks import machine, rows
from benchmarks.machine import CouldNotRun, Measured

RESULTS: Final = Path(__file__).with_name("results")
WARM_UP_S: Final = 2


def main() -> int:
    arguments = _arguments()
    # So that servers and databases go with us, however we are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    django.setup()  # the settings name the database
    names = [name for name in rows.TABLE if name in arguments.rows]
    try:
        durability = machine.durability()
        with tempfile.TemporaryDirectory(prefix="sekali-bench-") as folder:
            bench = rows.Bench(Path(folder), arguments.connections)
            with bench.stack:
                rounds, unavailable = _measure(bench, names, arguments.rounds, arguments.seconds)
                findings = _verify(bench)
    except (CouldNotRun, psycopg.OperationalError) as error:
        sys.stderr.write(f"could not run: {error}\n")
        return 2
    result = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": _machine() | durability,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "connections": arguments.connections,
        "rows": _table(names, rounds, unavailable),
        "ledger": findings,
    }
    if arguments.json:
        path = RESULTS / arguments.json if arguments.json.parent == Path() else arguments.json
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")
    print(_text(result))
    is_whole = all(not row["failed"] for row in result["rows"] if "rate" in row)
    return 0 if is_whole and findings == "clean" else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    fast = [name for name in rows.TABLE if name not in rows.SLOW]
    parser.add_argument("--rounds", type=int, default=3, help="of each row, in turn (default 3)")
    parser.add_argument("--seconds", type=int, default=5, help="of each round (default 5)")
    parser.add_argument("--connections", type=int, default=64, help="of the load (default 64)")
    parser.add_argument("--rows", nargs="+", choices=list(rows.TABLE), default=fast, metavar="ROW", help="only these")
    parser.add_argument("--grown", action="store_true", help="also on a ledger of 5 million entries (takes minutes)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all figures; a bare name: into benchmarks/results/"
    )
    arguments = parser.parse_args()
    if arguments.grown:
        arguments.rows = [*arguments.rows, *rows.SLOW]
    return arguments


def _measure(
    bench: rows.Bench, names: list[str], count: int, seconds: int
) -> tuple[dict[str, list[Measured]], dict[str, str]]:
    """Return the rounds of each row, and why some rows could not be measured."""
    measures: dict[str, rows.Measure] = {}
    rounds: dict[str, list[Measured]] = {name: [] for name in names}
    unavailable: dict[str, str] = {}
    for name in names:
        machine.progress(f"{name}: preparing")
        try:
            measures[name] = rows.TABLE[name](bench)
            measures[name](WARM_UP_S)
        except CouldNotRun as error:
            measures.pop(name, None)
            unavailable[name] = str(error)
    for number in range(1, count + 1):
        for name in list(measures):
            machine.progress(f"{name}: round {number} of {count}")
            machine.settle_disk()
            try:
                rounds[name].append(measures[name](seconds))
            except CouldNotRun as error:
                del measures[name]
                unavailable[name] = str(error)
    machine.progress("")
    return rounds, unavailable


def _verify(bench: rows.Bench) -> str:
    """Say whether the ledger that was measured is right."""
    if "product" not in bench.servers:
        return "not measured"
    try:
        environment = bench.environment("sekali_bench_product")
        machine.run(sys.executable, "manage.py", "verify_ledger", environment=environment)
    except CouldNotRun as error:
        return str(error)
    return "clean"


def _table(names: list[str], rounds: dict[str, list[Measured]], unavailable: dict[str, str]) -> list[dict[str, Any]]:
    measured = [name for name in names if name not in unavailable]
    table: list[dict[str, Any]] = []
    for name in names:
        row: dict[str, Any] = {"row": name, "what": (rows.TABLE[name].__doc__ or "").strip()}
        if name in measured:
            # Round by round, since what else the machine does changes from one to the next.
            ratios = [each.rate / first.rate for each, first in zip(rounds[name], rounds[measured[0]], strict=True)]
            row |= {
                "rate": round(statistics.median(each.rate for each in rounds[name]), 1),
                "ratio": round(statistics.median(ratios), 3),
                "p50_ms": _median([each.p50_ms for each in rounds[name]]),
                "p99_ms": _median([each.p99_ms for each in rounds[name]]),
                "failed": sum(each.failed for each in rounds[name]),
                "rounds": [round(each.rate, 1) for each in rounds[name]],
            }
        else:
            row["unavailable"] = unavailable[name]
        table.append(row)
    return table


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 2) if known else None


def _text(result: dict[str, Any]) -> str:
    about = result["machine"]
    lines = [
        f"{about['cores']} cores, {about['processor']}; Python {about['python']},"
        f" PostgreSQL {about['server_version']}, fsync {about['fsync']}; {result['connections']} connections,"
        f" median of {result['rounds']} rounds of {result['seconds']} s",
        "",
        f"{'row':<10}{'per s':>9}{'ratio':>8}{'p50 ms':>9}{'p99 ms':>9}  what",
    ]
    for row in result["rows"]:
        if "rate" not in row:
            lines.append(f"{row['row']:<10}{'-':>9}{'':>26}  {row['unavailable'].strip().splitlines()[-1]}")
            continue
        quantiles = "".join(f"{'' if row[name] is None else row[name]:>9}" for name in ("p50_ms", "p99_ms"))
        failed = f" ({row['failed']} FAILED)" if row["failed"] else ""
        lines.append(f"{row['row']:<10}{row['rate']:>9,.0f}{row['ratio']:>8.3f}{quantiles}  {row['what']}{failed}")
    return "\n".join([*lines, "", f"ledger afterwards: {result['ledger']}"])


def _machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    models = [line for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    return {
        "cores": os.cpu_count(),
        "processor": models[0].partition(":")[2].strip() if models else platform.processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=machine.ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
