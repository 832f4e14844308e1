"""The crash tests on another PostgreSQL than the embedded one.

CRASH_POSTGRESQL: the folder of its programs, /usr/lib/postgresql/15/bin for example.
"""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from project import embedded, embedded_home

PROGRAMS: Final = os.environ.get("CRASH_POSTGRESQL", "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Home(embedded_home.Home):
    programs: Path

    def _get_programs(self) -> Path:
        return self.programs


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Server(embedded.Server):
    def _make_cluster(self, tell: Callable[[str], None]) -> None:
        if self.home.data.exists():
            return
        said = self.home.run(
            *("initdb", "--pgdata", "data", "--username", "postgres", "--no-instructions"),
            *("--encoding", "UTF8", "--locale", "C", "--auth-local", "trust", "--auth-host", "reject"),
        )
        assert said.returncode == 0, said.stdout


def locate(*, data_dir: Path, name: str) -> embedded.Server:
    """Return the server of that folder: the embedded one, unless another's programs are named."""
    if not PROGRAMS:
        return embedded.locate(data_dir=data_dir, name=name)
    return _Server(home=_Home(link=data_dir / name, programs=Path(PROGRAMS)))
