"""What is measured: a function for each row of the table prepares, and returns what measures one round."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import grown as grown_ledger
from benchmarks import machine, peer, pgbench, presigned
from benchmarks.machine import CouldNotRun, Measured, Server

MERCHANTS: Final = 1000
# More than any row can take, so that a round of new events doesn't run out of them.
RATE_MAX: Final = 4500
REPLAYED: Final = 5000

Measure = Callable[[int], Measured]  # seconds -> one round


@dataclass(eq=False)
class Bench:
    """What rows share: a folder, the load's size, and servers, each started when a row first asks for it."""

    folder: Path
    connections: int
    stack: ExitStack = field(default_factory=ExitStack)
    servers: dict[str, Server] = field(default_factory=dict)

    def environment(self, database: str) -> dict[str, str]:
        """Return what a server of ours runs with: production's settings, and secrets of its own."""
        return {
            "DATABASE_URL": machine.database_url(database),
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "DATA_DIR": str(self.folder / database),
            "ENV_FILE": os.devnull,
            "DEBUG": "0",
            "SECRET_KEY": "for-benchmarks-only-" * 3,
            "PAYMENTS_SECRETS_DEMO": presigned.SECRET,
        }

    def database(self, name: str) -> str:
        """Make a database with the product's tables, an endpoint and merchants; return its name."""
        full_name = f"sekali_bench_{name}"
        machine.make_database(full_name)
        self.stack.callback(machine.drop_database, full_name)
        environment = self.environment(full_name)
        machine.run(sys.executable, "manage.py", "migrate", "--verbosity", "0", environment=environment)
        machine.run(sys.executable, "-m", "benchmarks.prepare", str(MERCHANTS), environment=environment)
        return full_name

    def product(self, name: str = "product") -> Server:
        """Return the product's server on a database of that name."""
        if name not in self.servers:
            self.servers[name] = self._serve_product(self.database(name), name)
        return self.servers[name]

    def _serve_product(self, database: str, name: str) -> Server:
        environment = self.environment(database)
        machine.run(sys.executable, "manage.py", "recover", environment=environment)
        return self.serve(name, environment)

    def stand_in(self, urls: str, database: str) -> Server:
        """Return a server of the project whose webhook is another view."""
        environment = self.environment(database)
        environment |= {"DJANGO_SETTINGS_MODULE": "benchmarks.settings", "BENCHMARK_URLS": urls}
        return self.serve(urls, environment)

    def serve(self, name: str, environment: dict[str, str]) -> Server:
        log = self.folder / f"{name}.log"
        return self.stack.enter_context(machine.served(app=None, environment=environment, log=log))

    def load(self, server: Server, requests: list[bytes], seconds: int, *, again: bool = False) -> Measured:
        return machine.load(
            server, requests, connections=self.connections, seconds=seconds, again=again, folder=self.folder
        )


def _new_events(bench: Bench, server: Server, *, accounts: int, rate_max: int = RATE_MAX) -> Measure:
    def measure(seconds: int) -> Measured:
        told = presigned.captures(rate_max * seconds, accounts=accounts)
        return bench.load(server, presigned.signed(told, server), seconds)

    return measure


def floor(bench: Bench) -> Measure:
    """The same server, verification and parsing; no database."""
    server = bench.stand_in("benchmarks.floor", "sekali_bench_none")

    def measure(seconds: int) -> Measured:
        told = presigned.captures(REPLAYED, accounts=MERCHANTS)
        return bench.load(server, presigned.signed(told, server), seconds, again=True)

    return measure


def fresh(bench: Bench) -> Measure:
    """New events, 1,000 accounts."""
    return _new_events(bench, bench.product(), accounts=MERCHANTS)


def hot(bench: Bench) -> Measure:
    """New events, one account."""
    return _new_events(bench, bench.product(), accounts=1)


def replay(bench: Bench) -> Measure:
    """Re-deliveries of committed events."""
    server = bench.product()
    told = presigned.captures(REPLAYED, accounts=MERCHANTS)
    first = bench.load(server, presigned.signed(told, server), 60)
    if first.failed:
        raise CouldNotRun(f"{first.failed} of the events to re-deliver were not acknowledged")

    def measure(seconds: int) -> Measured:
        return bench.load(server, presigned.signed(told, server), seconds, again=True)

    return measure


def orm(bench: Bench) -> Measure:
    """The obvious Django transaction for each event, same tables, 1,000 accounts."""
    server = bench.stand_in("benchmarks.orm", bench.database("orm"))
    return _new_events(bench, server, accounts=MERCHANTS, rate_max=1500)


def pgbench_(bench: Bench) -> Measure:
    """The product's statements, in batches as it made them, from pgbench: no Python."""
    bench.product()
    with machine.connect("sekali_bench_product") as connection:
        # Under this load, as the rows before have shown.
        [(batch,)] = connection.execute(
            "SELECT count(*)::float / NULLIF(count(DISTINCT claimed_xid::text), 0) FROM payments_claim"
        ).fetchall()
    batch = round(batch or 16)
    return pgbench.prepare(bench.folder, bench.environment(bench.database("pgbench")), batch=batch)


def djstripe(bench: Bench) -> Measure:
    """dj-stripe 2.11: one event, one credit, no API call, 1,000 balances."""
    server, path = peer.prepare(bench.stack, bench.folder, MERCHANTS)

    def measure(seconds: int) -> Measured:
        told = presigned.captures(1000 * seconds, accounts=MERCHANTS)
        return bench.load(server, presigned.signed_for_peer(told, server, path), seconds)

    return measure


def grown(bench: Bench) -> Measure:
    """New events, 1,000 accounts, on a ledger of 5 million entries."""
    database = bench.database("grown")
    grown_ledger.fill(database)
    server = bench._serve_product(database, "grown")
    return _new_events(bench, server, accounts=MERCHANTS)


# By the row's name, in the order of the table; pgbench needs what fresh has shown.
TABLE: Final[dict[str, Callable[[Bench], Measure]]] = {
    "floor": floor,
    "fresh": fresh,
    "hot": hot,
    "replay": replay,
    "orm": orm,
    "pgbench": pgbench_,
    "grown": grown,
    "dj-stripe": djstripe,
}
SLOW: Final = frozenset({"grown"})
