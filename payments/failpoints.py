"""Named places at which a test makes this process die, as `kill -9` would: no clean-up runs, nothing is flushed.

Armed by PAYMENTS_FAILPOINT=<name>[:<n>] (the n-th time it is reached), which settings read only with DEBUG=1; else
hit() does nothing.
"""

import itertools
import os
import signal

from django.conf import settings

_name, _, _count = settings.PAYMENTS_FAILPOINT.partition(":")
_hits = itertools.count(1)


def _die(name: str) -> None:
    if name == _name and next(_hits) == int(_count or 1):
        os.kill(os.getpid(), signal.SIGKILL)


def _pass_by(name: str) -> None:
    pass


hit = _die if _name else _pass_by
