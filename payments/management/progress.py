"""How far a long command is: one line on a terminal, written over and over; nothing where nobody watches."""

import time
from typing import Final

from django.core.management.base import OutputWrapper

PAUSE_S: Final = 0.2  # between two lines: nobody reads faster, and a terminal may be slow


class Progress:
    def __init__(self, stderr: OutputWrapper) -> None:
        self._stderr = stderr
        self._is_watched = bool(stderr.isatty())
        self._shown_at = 0.0
        self._what = ""

    def show(self, what: str, done: int, whole: int | None = None) -> None:
        """Say what is done, how many, of how many."""
        now = time.monotonic()
        if not self._is_watched or (what == self._what and now - self._shown_at < PAUSE_S):
            return
        self._what, self._shown_at = what, now
        count = f"{done:,}" if whole is None else f"{done:,} of {whole:,}"
        self._write(what if not done and whole is None else f"{what}: {count}")

    def end(self) -> None:
        """Clear the line, for what is printed next."""
        if self._is_watched:
            self._write("")

    def _write(self, text: str) -> None:
        self._stderr.write(f"\r{text}\x1b[K", ending="")
        self._stderr.flush()
