import time
from argparse import ArgumentTypeError
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from payments import conf, database
from payments.management import base
from payments.simulation import dialects, gateway, stories, wire


class Command(base.Command):
    help = (
        "A gateway with retries, that checks what it gets back: delivers made-up payments, signed,"
        " some twice, some late. Exits 1 when one wasn't acknowledged, or was answered differently again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("endpoint", help="its slug")
        parser.add_argument("--events", type=_at_least_one, required=True, help="how many events happen")
        parser.add_argument("--concurrency", type=_at_least_one, default=16, help="connections (%(default)s)")
        parser.add_argument("--duplicates", type=_part, default=0.1, help="part that comes twice (%(default)s)")
        parser.add_argument("--reorder", type=_part, default=0.05, help="part that comes late (%(default)s)")
        parser.add_argument(
            "--url", default=f"http://127.0.0.1:{settings.PORT}", help="the server, or the endpoint (%(default)s)"
        )
        parser.add_argument(
            "--accounts",
            type=_at_least_one,
            default=1000,
            metavar="N",
            help="payees: merchant-1 to N (%(default)s)",
        )
        parser.add_argument("--seed", type=int, help="tell what another run with this seed told, byte for byte")
        parser.add_argument(
            "--give-up",
            type=float,
            default=gateway.GIVE_UP_S,
            metavar="SECONDS",
            help="how long a delivery is tried again (%(default)s)",
        )

    def run(self, options: dict[str, Any]) -> base.Result:
        seed = time.time_ns() // 1_000_000 if options["seed"] is None else options["seed"]
        is_watched = bool(self.stderr.isatty())
        run = _run(_endpoint(options["endpoint"]), options, seed)
        if is_watched:
            run.on_progress = self._show
        try:
            report = run.execute()
        except gateway.ServerUnreachable as error:
            raise base.CouldNotRun(f"nothing answers at {options['url']}: {error}") from error
        finally:
            if is_watched:
                self.stderr.write("")
        data = report.as_dict() | {"seed": seed}
        lines = [f"{name:<18} {value}" for name, value in data.items() if name != "examples"]
        return base.Result(data, [*lines, *report.examples], has_findings=not report.is_clean)

    def _show(self, report: gateway.Report) -> None:
        line = f"{report.acked:,} acknowledged, {report.retries:,} retries, {report.seconds:.0f} s"
        self.stderr.write(f"\r{line}\x1b[K", ending="")
        self.stderr.flush()


def _endpoint(slug: str) -> conf.Endpoint:
    try:
        with database.connected():  # and given back at once: a run takes long and needs it no more
            endpoint = conf.endpoint(slug)
    except LookupError as unknown:
        raise base.CouldNotRun(f"There is no endpoint {slug}") from unknown
    if endpoint.gateway.name not in dialects.TABLE:
        raise base.CouldNotRun(f"{endpoint.gateway.name} can't be simulated")
    if not endpoint.secrets:
        raise base.CouldNotRun(f"{conf.secrets_name(slug)} is not set")
    return endpoint


def _run(endpoint: conf.Endpoint, options: dict[str, Any], seed: int) -> gateway.Run:
    try:
        target = wire.Target.of(options["url"], endpoint.slug)
    except ValueError as error:
        raise base.CouldNotRun(str(error)) from error
    dialect = dialects.TABLE[endpoint.gateway.name]
    happenings = stories.happenings(
        events=options["events"],
        seed=seed,
        accounts=options["accounts"],
        kinds=dialect.kinds,
        foreign=0.0 if dialect.only_idr else stories.FOREIGN_PART,
    )
    return gateway.Run(
        told=stories.deliveries(happenings, duplicates=options["duplicates"], reorder=options["reorder"], seed=seed),
        dialect=dialect,
        secret=endpoint.secrets[0],
        target=target,
        concurrency=options["concurrency"],
        give_up_s=options["give_up"],
    )


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
