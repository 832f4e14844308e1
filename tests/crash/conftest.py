"""One PostgreSQL for all crash tests, with the demo in it, and an app on it for whoever wants to kill one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import figures, invariants
from tests.crash.servers import App, Postgres


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A server that any test may kill, and leaves running. The demo is seeded."""
    folder = tmp_path_factory.mktemp("crash")
    server = Postgres(folder)
    try:
        server.start()
        with App(folder=folder, database_url=server.whole_url) as first:
            first.start()
        figures.tell("PostgreSQL", server.query("SHOW server_version")[0][0])
        yield server
    finally:
        server.remove()


@pytest.fixture
def app(postgres: Postgres, tmp_path: Path) -> Iterator[App]:
    """An app on it that isn't started yet. When the test is over, the ledger must be sound."""
    postgres.start()
    with App(folder=tmp_path, database_url=postgres.url) as made:
        yield made
    assert_sound(postgres)


def assert_sound(postgres: Postgres) -> None:
    with postgres.connect() as connection, invariants.snapshot(connection) as cursor:
        assert invariants.find_violations(cursor) == []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was measured, also where all went well."""
    if figures.lines:
        terminalreporter.section("crash figures")
        for line in sorted(figures.lines):
            terminalreporter.write_line(line)
