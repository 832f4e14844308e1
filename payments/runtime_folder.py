"""The folder of what lives no longer than our processes: their metric files, the sockets they are asked at.

In memory where the machine has a place for it. A process writes its numbers to mapped files, and whoever does that on a
full disk is killed by the kernel (SIGBUS), with all deliveries under way.

After a crash: what dead processes left is removed by who starts next, or at the latest by the machine's next boot.
"""

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")  # noqa: S108  Linux; others have DATA_DIR for it


def locate(data_dir: Path) -> Path:
    """Return the folder that belongs to a DATA_DIR, made or not."""
    if not os.access(_MEMORY, os.W_OK | os.X_OK):
        return data_dir / "run"
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    return _MEMORY / f"sekali-{os.geteuid()}-{digest}"


def make(folder: Path) -> None:
    """Make the folder where there is none. Raises PermissionError if others could write there, or read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
        raise PermissionError(f"{folder} is not ours alone: delete it")
