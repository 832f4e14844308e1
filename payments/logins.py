"""A brake on guessed passwords: some tries in a while for one name from one address. The only writer of LoginBrake.

A try is counted before the password is looked at, so that simultaneous guesses don't pass; and in the database: for all
processes, and past a restart. One name from one address: whoever guesses locks out nobody elsewhere. Rows of the past
are deleted as new ones come, so there are about as many as a while brings.

What was typed as a name may be a password, so it isn't stored: only a keyed hash.

After a crash: a try was counted, or never looked at.
"""

import hashlib
import hmac
import logging
import uuid
from dataclasses import dataclass
from typing import Final

from django.conf import settings
from django.contrib.auth.forms import UsernameField
from django.db import connection
from django.http import HttpRequest

from payments import callers, models

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 10  # a tired person's; and fewer than a thousand guesses a day
SECONDS: Final = 900
DELETED_MAX: Final = 100  # of the past, for each new one

# One statement that counts and tells, or two simultaneous guesses would both read the count of before.
_COUNT: Final = """
    INSERT INTO payments_loginbrake AS b (who, tries, began_at) VALUES (%(who)s, 1, now())
    ON CONFLICT (who) DO UPDATE
    SET tries = CASE WHEN b.began_at < now() - %(seconds)s * interval '1 second' THEN 1 ELSE b.tries + 1 END,
        began_at = CASE WHEN b.began_at < now() - %(seconds)s * interval '1 second' THEN now() ELSE b.began_at END
    RETURNING tries, %(seconds)s - extract(epoch FROM now() - began_at)
"""
_FORGET_PAST: Final = """
    DELETE FROM payments_loginbrake WHERE who IN (
        SELECT who FROM payments_loginbrake WHERE began_at < now() - %s * interval '1 second'
        ORDER BY began_at LIMIT %s FOR UPDATE SKIP LOCKED
    )
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Somebody who tries to log in: under which name, from where."""

    username: str
    address: str

    @classmethod
    def of(cls, request: HttpRequest) -> "Attempt":
        """Return who a form says they are, read as Django's form does: a variant has no tries of its own."""
        name = UsernameField().to_python(request.POST.get("username")) or ""
        return cls(name, callers.address_of(request))

    @property
    def who(self) -> uuid.UUID:
        told = f"{self.address} {self.username.casefold()}".encode()
        return uuid.UUID(bytes=hmac.digest(settings.SECRET_KEY.encode(), told, hashlib.sha256)[:16])

    def wait_s(self) -> int:
        """Count the try; return for how many seconds this name gets no more of them from there. 0: look at it."""
        with connection.cursor() as cursor:
            cursor.execute(_COUNT, {"who": self.who, "seconds": SECONDS})
            tries, left_s = cursor.fetchone()
            if tries == 1:
                cursor.execute(_FORGET_PAST, [SECONDS, DELETED_MAX])
        if tries <= TRIES_MAX:
            return 0
        wait_s = max(1, int(left_s))
        if tries == TRIES_MAX + 1:  # once: whoever goes on guessing doesn't fill the log
            logger.warning(
                "login_braked", extra={"username": self.username[:150], "address": self.address, "seconds": wait_s}
            )
        return wait_s

    def forget(self) -> None:
        """Forget the tries of who has logged in."""
        models.LoginBrake.objects.filter(who=self.who).delete()
