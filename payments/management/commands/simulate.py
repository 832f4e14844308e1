"""A gateway with retries, that checks what it gets back."""

import json
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection

from payments import conf
from payments.simulation import dialects, gateway, stories, wire


class Command(BaseCommand):
    help = (
        "Deliver made-up payments to an endpoint as its gateway would: signed, some twice, some out of order,"
        " with retries. Exits 1 when an event wasn't acknowledged, was refused, or got another answer later."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("endpoint", help="slug of the endpoint")
        parser.add_argument("--events", type=_at_least_one, required=True, help="how many events happen")
        parser.add_argument("--concurrency", type=_at_least_one, default=16, help="connections (default 16)")
        parser.add_argument(
            "--duplicates", type=_part, default=0.1, help="part delivered again (default 0.1)"
        )
        parser.add_argument(
            "--reorder", type=_part, default=0.05, help="part that later ones overtake (default 0.05)"
        )
        parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default %(default)s)")
        parser.add_argument(
            "--accounts",
            type=_at_least_one,
            default=1000,
            help="payees: merchant-1 … merchant-N (default 1000)",
        )
        parser.add_argument("--seed", type=int, help="tell the same events as another run with this seed")
        parser.add_argument(
            "--give-up",
            type=float,
            default=gateway.GIVE_UP_S,
            metavar="SECONDS",
            help="stop retrying (default %(default)s)",
        )
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        seed = time.time_ns() // 1_000_000 if options["seed"] is None else options["seed"]
        try:
            run = _run(options, seed, progress=self._progress if self.stderr.isatty() else lambda _: None)
            report = run.execute()
        except (_CouldNotRun, gateway.ServerUnreachable, DatabaseError) as error:
            raise CommandError(f"could not run: {error}", returncode=2) from error
        if self.stderr.isatty():
            self.stderr.write("")
        result = report.as_dict() | {"seed": seed}
        self.stdout.write(json.dumps(result) if options["json"] else _text(result))
        if not report.is_clean:
            sys.exit(1)

    def _progress(self, report: gateway.Report) -> None:
        line = f"{report.acked:,} events acknowledged, {report.retries:,} retries, {report.seconds:.0f} s"
        self.stderr.write(f"\r{line}\x1b[K", ending="")
        self.stderr.flush()


class _CouldNotRun(Exception):
    """The run can't begin; the text says what to do."""


def _run(options: dict[str, Any], seed: int, progress: Callable[[gateway.Report], None]) -> gateway.Run:
    slug = options["endpoint"]
    try:
        endpoint = conf.endpoint(slug)
    except LookupError as error:
        raise _CouldNotRun(f"there is no endpoint {slug}") from error
    connection.close()  # a run takes long and needs the database no more
    dialect = dialects.TABLE.get(endpoint.gateway.name)
    if dialect is None:
        raise _CouldNotRun(f"{endpoint.gateway.name} can't be simulated")
    if not endpoint.secrets:
        raise _CouldNotRun(f"{conf.secrets_name(slug)} is not set")
    try:
        target = wire.Target.of(options["url"], slug)
    except ValueError as error:
        raise _CouldNotRun(str(error)) from error
    happenings = stories.happenings(
        events=options["events"], seed=seed, accounts=options["accounts"], kinds=dialect.kinds
    )
    return gateway.Run(
        told=stories.deliveries(
            happenings, duplicates=options["duplicates"], reorder=options["reorder"], seed=seed
        ),
        dialect=dialect,
        secret=endpoint.secrets[0],
        target=target,
        concurrency=options["concurrency"],
        give_up_s=options["give_up"],
        on_progress=progress,
    )


def _text(result: dict[str, Any]) -> str:
    lines = [f"{name:<18} {value}" for name, value in result.items() if name != "examples"]
    return "\n".join([*lines, *result["examples"]])


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def _part(text: str) -> float:
    try:
        part = float(text)
    except ValueError:
        part = -1.0
    if not 0 <= part <= 1:
        raise ArgumentTypeError(f"{text} is not a number from 0 to 1")
    return part
