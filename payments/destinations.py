"""Where messages go, and one try to send one: a signed HTTP POST, or a mail.

A try ends by its deadline whatever the receiver does (wire.py). Whoever holds one of a destination's secrets can tell
that a message is ours.

Touches no database. After a crash: a try that was cut off may or may not have arrived; the next one has the same id.
"""

import abc
import base64
import email.utils
import hashlib
import http.client
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage, get_connection
from django.core.validators import validate_email

from payments import addresses, wire
from payments.gateways import base
from payments.gateways.standard_webhooks import secret_key
from payments.outbox import Message

SAID_CHARS_MAX: Final = 200  # of a refusal's body, for whoever looks for its reason
LINGER_S: Final = 1.0  # for the rest of an answer whose verdict is known, before we hang up

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
# What says "not now", rather than "not this".
_BUSY: Final = (429, 503)


@dataclass(frozen=True, slots=True)
class Tried:
    """How a try ended.

    error            why it failed, in our words; "" where it didn't
    said             how the receiver explained it
    retry_after_s    when the receiver wants to be tried again
    is_unavailable   it failed because of the destination, not of this message: nothing got through, or it is busy
    """

    error: str = ""
    said: str = ""
    retry_after_s: float | None = None
    is_unavailable: bool = False

    @property
    def is_sent(self) -> bool:
        return not self.error

    @property
    def explanation(self) -> str:
        return f"{self.error}: {self.said}" if self.said else self.error


class Misconfigured(Exception):
    """A destination can't be used as it is configured; the text names the variable and says what it must be."""


class Destination(abc.ABC):
    name: str

    @abc.abstractmethod
    def send(self, message: Message, *, deadline: float) -> Tried:
        """Try once, by the deadline (monotonic seconds)."""


def configured() -> dict[str, Destination]:
    """Return the destinations of the settings, by name. Raises Misconfigured."""
    return {name: _destination(name, **given) for name, given in sorted(settings.PAYMENTS_OUTBOX.items())}


def _destination(name: str, *, url: str, secrets: Sequence[str]) -> Destination:
    if not _NAME.fullmatch(name):
        raise Misconfigured(f"PAYMENTS_OUTBOX_DESTINATIONS: {name!r} is not 1 to 64 letters, digits, - and _")
    suffix = name.upper().replace("-", "_")
    if url.startswith("mailto:"):
        return Mailbox(name, _recipients(url, f"PAYMENTS_OUTBOX_URL_{suffix}"))
    return Receiver(
        name, _web_address(url, f"PAYMENTS_OUTBOX_URL_{suffix}"), _keys(secrets, f"PAYMENTS_OUTBOX_SECRETS_{suffix}")
    )


def _web_address(url: str, variable: str) -> SplitResult:
    is_plain = url.isascii() and url.isprintable() and " " not in url
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not (is_plain and is_usable):
        raise Misconfigured(
            f"{variable} must be an http, https or mailto URL; other characters as %XX, a host as xn--…"
        )
    if parts.username is not None:
        raise Misconfigured(f"{variable} must hold no user name: the signature says who we are")
    return parts


def _keys(secrets: Sequence[str], variable: str) -> tuple[bytes, ...]:
    try:
        keys = tuple(secret_key(secret) for secret in secrets)
    except ValueError as error:
        raise Misconfigured(f"{variable}: {error}") from error
    if not keys or not all(keys):
        raise Misconfigured(f"{variable} must hold at least one secret, and none that is empty")
    return keys


def _recipients(url: str, variable: str) -> tuple[str, ...]:
    recipients = tuple(unquote(urlsplit(url).path).split(","))
    try:
        for recipient in recipients:
            validate_email(recipient)
    except ValidationError as error:
        raise Misconfigured(f"{variable} must be mailto: and mail addresses, comma-separated") from error
    return recipients


# HTTP -----------------------------------------------------------------------------------------------------------------


class Receiver(Destination):
    """Somebody's URL, told by Standard Webhooks.

    https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
    """

    def __init__(self, name: str, url: SplitResult, keys: tuple[bytes, ...]) -> None:
        self.name = name
        self._keys = keys
        self._host = (url.hostname or "").rstrip(".")
        self._is_tls = url.scheme == "https"
        self._port = url.port or (443 if self._is_tls else 80)
        self._host_header = url.netloc
        self._target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._may_be_private = self._host in {host.lower().strip("[]") for host in settings.PAYMENTS_OUTBOX_ALLOW_HOSTS}

    def send(self, message: Message, *, deadline: float) -> Tried:
        body = message.body.encode()
        headers = {
            "Host": self._host_header,
            "Content-Type": "application/json",
            "User-Agent": "sekali",
            "Connection": "close",
            **signed_headers(message.key, body, self._keys, now=datetime.now(UTC)),
        }
        try:
            line = wire.dial(
                self._host,
                self._port,
                is_tls=self._is_tls,
                deadline=deadline,
                may_be_private=self._may_be_private,
            )
        except addresses.Unreachable as error:
            return Tried(str(error), is_unavailable=True)
        try:
            return self._post(line, body, headers)
        except TimeoutError:
            return Tried("no answer in time")
        except (OSError, http.client.HTTPException) as error:
            return Tried(f"no usable answer ({type(error).__name__})")
        finally:
            line.hang_up()

    def _post(self, line: wire.Wire, body: bytes, headers: dict[str, str]) -> Tried:
        answer = line.exchange("POST", self._target, headers, body)
        line.hurry(LINGER_S)
        if 200 <= answer.status < 300:
            _read(answer, wire.RESPONSE_BYTES_MAX)  # to its end, or the receiver would see us hang up on its answer
            return Tried()
        said = "a redirect, not followed" if 300 <= answer.status < 400 else _shown(_read(answer, SAID_CHARS_MAX))
        retry_after_s = seconds_until(answer.headers.get("Retry-After"), now=datetime.now(UTC))
        is_busy = answer.status in _BUSY and retry_after_s is not None
        return Tried(f"HTTP {answer.status}", said, retry_after_s, is_busy)


def signed_headers(key: str, body: bytes, keys: Sequence[bytes], *, now: datetime) -> dict[str, str]:
    """Return the three headers of Standard Webhooks; one signature for each key, so that a secret can be changed."""
    timestamp = str(int(now.timestamp()))
    content = f"{key}.{timestamp}.".encode() + body
    signatures = (base64.b64encode(base.hmac_sha256(secret, content)).decode() for secret in keys)
    return {
        "webhook-id": key,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def seconds_until(retry_after: str | None, *, now: datetime) -> float | None:
    """Return what a Retry-After header asks for, as seconds or a date; None where it says nothing usable.

    https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
    """
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds())


def _read(answer: http.client.HTTPResponse, bytes_max: int) -> bytes:
    """Return the beginning of an answer's body; the verdict is known, so no failure to read it matters."""
    try:
        return answer.read(bytes_max)
    except (OSError, http.client.HTTPException, ValueError):
        return b""


def _shown(body: bytes) -> str:
    text = body.decode("utf-8", "replace")[:SAID_CHARS_MAX]
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


# Mail -----------------------------------------------------------------------------------------------------------------


class Mailbox(Destination):
    """Mail addresses, told by Django's own mail; its Message-ID is the same on every try."""

    def __init__(self, name: str, recipients: tuple[str, ...]) -> None:
        self.name = name
        self._recipients = recipients

    def send(self, message: Message, *, deadline: float) -> Tried:
        number = hashlib.blake2b(message.key.encode(), digest_size=16).hexdigest()
        mail = EmailMessage(
            subject=message.topic,
            body=json.dumps(json.loads(message.body), indent=2, ensure_ascii=False),
            to=list(self._recipients),
            headers={"Message-ID": f"<{number}@sekali.invalid>", "webhook-id": message.key},
        )
        try:
            # The time is for each of its waits: a mail server that drips holds only its own destination up.
            mail.connection = get_connection(timeout=wire.remaining_s(deadline))
            mail.send()
        except OSError as error:  # of which smtplib's errors are
            return Tried(f"the mail server: {type(error).__name__}", is_unavailable=True)
        return Tried()
