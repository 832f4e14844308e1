"""What every gateway adapter is: a pure translation of (headers, body, secrets, now) into notices.

An adapter touches no database, no clock and no network. Bytes become trusted only as `Verified`, which only
`authenticate` makes of a delivery; nothing else in the product accepts what is not verified. Bodies are parsed once,
strictly: duplicate members, NaN and Infinity are not JSON here, and no number ever passes through a float.
"""

import abc
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import blake2b, sha256
from typing import Any, ClassVar, Final, NamedTuple, Never

from payments import money, replies
from payments.facts import Fact, escape

# Both directions: an old delivery may be a replay by a thief, one from the future is one kept for later.
# https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md#verifying-webhook-authenticity
TOLERANCE: Final = timedelta(seconds=300)
ID_LENGTH_MAX: Final = 255
# Deeper than any gateway's event, and far from where Python's own recursion ends while hashing or printing one.
DEPTH_MAX: Final = 64
# Under this name a verified delivery holds what its gateway's API answered about it; no HTTP header can be named so.
CONFIRMED: Final = ":confirmed"


class VerificationFailed(Exception):
    """The delivery isn't proved to come from the gateway: answer 400 and don't say which part failed."""


class Unusable(Exception):
    """A verified event that can't be translated; its text is the reason, without any value from the event."""


class Ignorable(Exception):
    """A verified event of a known type that says nothing of this endpoint's money; its text is why."""


class NotConfirmed(Exception):
    """What a gateway's API answered is no usable answer, or doesn't bear a delivery out, or doesn't yet.

    Its text says which, without any value from the answer.
    """


class Assurance(StrEnum):
    BODY_SIGNED = "body_signed"
    FIELDS_SIGNED = "fields_signed"  # some fields only: the rest could be anybody's
    TOKEN_ONLY = "token_only"  # noqa: S105  nothing of the body is proved, only the sender


@dataclass(frozen=True, slots=True)
class Delivery:
    """One HTTP request as it came, unproved. Header names are in lower case; values are latin-1 text as received."""

    headers: Mapping[str, str]
    body: bytes
    received_at: datetime


@dataclass(frozen=True, slots=True)
class Verified:
    """A delivery whose sender is proved, or evidence that was when it was stored.

    document is the parsed body; problem says why there is none.
    """

    headers: Mapping[str, str]
    body: bytes
    received_at: datetime
    document: Any = None
    problem: str | None = None

    @classmethod
    def of(cls, delivery: Delivery) -> "Verified":
        """Return the delivery as proved, parsed if it can be. For `authenticate`, and for stored evidence."""
        try:
            document, problem = parse_json(delivery.body), None
        except Unusable as unusable:
            document, problem = None, str(unusable)
        return cls(delivery.headers, delivery.body, delivery.received_at, document, problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """What an adapter may know of the endpoint that was posted to."""

    slug: str
    live: bool = True
    external_account: str = ""
    auto_capture: bool = True
    confirms: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One event inside a delivery.

    fingerprint is {field: short hash} of the named fields that make two deliveries "the same content". Exactly one of
    these holds: facts is not empty; ignored says why nothing is booked; unusable says why it can't be translated.
    evidence is the part of the body that this event stands in, where a delivery carries several.
    """

    event_id: str
    event_type: str
    occurred_at: datetime
    fingerprint: Mapping[str, str]
    facts: tuple[Fact, ...] = ()
    ignored: str | None = None
    unusable: str | None = None
    evidence: bytes | None = field(default=None, repr=False)


class Gateway(abc.ABC):
    """One gateway's rules. Subclasses hold no state; one instance serves all threads."""

    name: ClassVar[str]
    assurance: ClassVar[Assurance] = Assurance.BODY_SIGNED
    # Whether what proves a delivery also covers which payment it is about.
    proves_payment: ClassVar[bool] = True
    # What to do with an event id re-used for other content: refuse with 422, or acknowledge and quarantine where a
    # 4xx would block the gateway's retry queue.
    refuses_conflicts: ClassVar[bool] = False
    # Headers that are kept beside the body as evidence. Never one that carries a secret or a signature.
    evidence_headers: ClassVar[tuple[str, ...]] = ()
    # How old a booked fact is before its absence from a statement means anything.
    settling_days: ClassVar[int] = 0
    # Where its API is, by mode ("live" is True), for gateways whose deliveries can be confirmed.
    confirm_urls: ClassVar[Mapping[bool, str]] = {}

    @abc.abstractmethod
    def authenticate(self, delivery: Delivery, secrets: Sequence[str]) -> Verified:
        """Return the delivery as verified under any one of the secrets, or raise VerificationFailed."""

    @abc.abstractmethod
    def translate(self, verified: Verified, endpoint: EndpointConfig) -> list[Notice]:
        """Return the notices (one or more) of a verified delivery. Never raises for what the body holds."""

    def acknowledge(self, event_id: str, outcome: str) -> replies.Reply:
        """Return the stored answer for one event."""
        return replies.acknowledged(event_id, outcome)

    def exponent(self, currency: str) -> int:
        """Return how many decimal digits an integer amount has on this gateway's wire."""
        return money.exponent(currency)

    def confirm_path(self, verified: Verified) -> str:
        """Return the path below confirm_urls to be asked about a delivery that tells facts."""
        raise AssertionError(f"Bug: {self.name} has nothing to ask")

    def confirmed(self, verified: Verified, answer: bytes, secrets: Sequence[str]) -> Verified:
        """Return the delivery with what the API answered, for `translate` to believe. Raises NotConfirmed."""
        raise AssertionError(f"Bug: {self.name} has nothing to ask")


class Inexact:
    """A JSON number that isn't a plain integer of sane length; kept as it was written."""

    __slots__ = ("lexeme",)

    def __init__(self, lexeme: str) -> None:
        self.lexeme = lexeme


def parse_json(body: bytes) -> Any:
    """Return the JSON value of the body. Integers of up to 19 digits are int, all other numbers Inexact.

    Raises Unusable when it isn't JSON in UTF-8, or names a member twice (two readers could read two amounts).
    """
    try:
        document = JSON_DECODER.decode(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Unusable("the body is not JSON") from error
    # Counting is cheap and nearly always enough; brackets inside texts only cost the walk.
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX and _is_deeper(document, DEPTH_MAX):
        raise Unusable("the body is nested too deep")
    return document


def _is_deeper(document: Any, depth_max: int) -> bool:
    level = [document]
    for _ in range(depth_max):
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
    return bool(level)


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is named twice")
    return members


def _integer(lexeme: str) -> int | Inexact:
    # int() of thousands of digits is slow or refused, and nobody's money needs them.
    return int(lexeme) if len(lexeme) <= 19 else Inexact(lexeme)


def _not_json(constant: str) -> Never:
    raise ValueError(f"{constant} is not JSON")


_CANONICAL = json.JSONEncoder(sort_keys=True, default=lambda number: {"number": number.lexeme})
JSON_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_members, parse_int=_integer, parse_float=Inexact, parse_constant=_not_json
)


def fingerprint(fields: Mapping[str, object]) -> dict[str, str]:
    """Return {field: 16 hex digits of its value's hash}; absent fields are left out by the caller."""
    return {
        name: blake2b(_canonical(value).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        for name, value in fields.items()
    }


def body_fingerprint(body: bytes) -> dict[str, str]:
    """Return the fingerprint of what can't be read: the hash of the whole body."""
    return {"body": blake2b(body, digest_size=8).hexdigest()}


def body_event_id(body: bytes) -> str:
    """Return the event id of a body that should carry its id inside but can't be read."""
    return f"sha256:{sha256(body).hexdigest()}"


def composed_event_id(*parts: object) -> str:
    """Return the parts joined by ":" as an event id; one too long or not ASCII ends in its hash.

    An absent part is empty, and what isn't text is as in JSON. Among several a ":" inside a part is escaped, so
    that other parts give another id; a single part is kept exactly.
    """
    texts = [part if isinstance(part, str) else "" if part is None else canonical_json(part) for part in parts]
    event_id = texts[0] if len(texts) == 1 else ":".join(map(escape, texts))
    if is_printable_ascii(event_id):
        return event_id
    shown = "".join(c for c in event_id[:128] if c.isascii() and c.isprintable())
    return f"{shown}:sha256:{sha256(event_id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def canonical_json(value: object) -> str:
    """Return a parsed JSON value as text: equal for equal values, whatever the order of their members."""
    return _CANONICAL.encode(value)


class Understood(NamedTuple):
    """What an event says: its facts, or why it has none; as in Notice."""

    facts: tuple[Fact, ...] = ()
    ignored: str | None = None
    unusable: str | None = None


def understand(read: Callable[[], tuple[Fact, ...]]) -> Understood:
    """Return the facts that `read` finds in an event, or the reason that it raises for there being none."""
    try:
        return Understood(facts=read())
    except Ignorable as reason:
        return Understood(ignored=str(reason))
    except (Unusable, money.UnusableAmount) as reason:
        return Understood(unusable=str(reason))


def unreadable(
    verified: Verified,
    why: str = "the body is not an event of this gateway's shape",
    *,
    event_id: str | None = None,
) -> Notice:
    """Return the notice of a verified body that can't be read; event_id is the header's, where there is one."""
    return Notice(
        event_id=event_id or body_event_id(verified.body),
        event_type="",
        occurred_at=verified.received_at,
        fingerprint=body_fingerprint(verified.body),
        unusable=verified.problem or why,
    )


def _canonical(value: object) -> str:
    """Return a parsed JSON value as text that no other value has: the common shapes without the cost of JSON."""
    if isinstance(value, str):
        return "s" + value
    if value is True:
        return "jtrue"
    if value is False:
        return "jfalse"
    return f"i{value}" if isinstance(value, int) else "j" + canonical_json(value)


def is_printable_ascii(value: str) -> bool:
    """Say whether the value can be an event id: 1 to 255 printable ASCII characters."""
    return 0 < len(value) <= ID_LENGTH_MAX and value.isascii() and value.isprintable()


def identifier(value: object, name: str) -> str:
    """Return the value if it can be an object's id: 1 to 255 printable characters; else raise Unusable."""
    # isprintable() refuses NUL and lone surrogates, which PostgreSQL can't store, and all control characters.
    if isinstance(value, str) and 0 < len(value) <= ID_LENGTH_MAX and value.isprintable():
        return value
    raise Unusable(f"{name} is not an id of 1 to {ID_LENGTH_MAX} printable characters")


def type_name(value: object) -> str:
    """Return an event's type as it can be stored and listed: at most 255 characters, all printable."""
    if not isinstance(value, str):
        return ""
    shown = value[:ID_LENGTH_MAX]
    return shown if shown.isprintable() else "".join(c if c.isprintable() else "?" for c in shown)


def optional_identifier(value: object, name: str) -> str | None:
    """Return None for an absent, null or empty value, else as `identifier`."""
    return None if value is None or value == "" else identifier(value, name)


def decimal_text(value: object, name: str) -> str:
    """Return a number or a text of the body as it was written there; whether it is an amount, money decides."""
    if isinstance(value, str):
        return value
    if isinstance(value, Inexact):
        return value.lexeme
    if type(value) is int:
        return str(value)
    raise Unusable(f"{name} is neither a number nor a text")


def moment(value: object, name: str) -> datetime:
    """Return an ISO 8601 text with its zone as an aware UTC datetime, or raise Unusable."""
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) and len(value) <= 64 else None
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None or not 2000 <= parsed.year <= 2100:
        raise Unusable(f"{name} is not an ISO 8601 time with its zone between 2000 and 2100")
    return parsed.astimezone(UTC)


def moment_from_unix(seconds: object, name: str) -> datetime:
    """Return integer seconds since 1970 as an aware UTC datetime, or raise Unusable."""
    if type(seconds) is int and 946_684_800 <= seconds < 4_133_980_800:  # 2000 to 2100
        return datetime.fromtimestamp(seconds, UTC)
    raise Unusable(f"{name} is not a time in seconds between 2000 and 2100")


def moment_from_unix_or(seconds: object, default: datetime) -> datetime:
    """Return integer seconds since 1970 as `moment_from_unix`, the default where they are no usable time."""
    try:
        return moment_from_unix(seconds, "time")
    except Unusable:
        return default


def assert_fresh(timestamp: str, now: datetime) -> None:
    """Raise VerificationFailed unless the text is whole unix seconds within TOLERANCE of now, both directions."""
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise VerificationFailed
    if abs(now.timestamp() - int(timestamp)) > TOLERANCE.total_seconds():
        raise VerificationFailed


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """Return the HMAC-SHA256 of the message."""
    return hmac.digest(key, message, "sha256")
