"""Endpoints as deliveries need them: the row, its gateway's adapter and its secrets, in one frozen value.

A delivery must be verified before the database is touched, so each process keeps a copy of the rows, and of whether
the newest verification lets money be served. It is read again by a settlement that finds it older than COPY_AGE_MAX_S,
and for an unknown slug, or while money isn't served, at most once per RETRY_PAUSE_S.
"""

import time
from dataclasses import dataclass
from typing import Final

from django.conf import settings

from payments import gateways, models, verification
from payments.gateways import base

COPY_AGE_MAX_S: Final = 10.0  # how late a change of an endpoint's row is seen
RETRY_PAUSE_S: Final = 1.0  # a flood to unknown addresses must not become a flood of queries


@dataclass(frozen=True, slots=True)
class Books:
    """Whose keys, payments and accounts an endpoint writes: its own, or those of the endpoint it points to."""

    id: int
    slug: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    id: int
    slug: str
    books: Books
    gateway: base.Gateway
    config: base.EndpointConfig
    default_payee: str | None
    refuses_conflicts: bool
    has_one_payment_per_reference: bool
    secrets: tuple[str, ...]


_copy: dict[str, Endpoint] = {}
_closed: str | None = None
_read_at = float("-inf")


def secrets_name(slug: str) -> str:
    """Return the environment variable that holds an endpoint's secrets."""
    return f"PAYMENTS_SECRETS_{_suffix(slug)}"


def secrets_of(slug: str) -> tuple[str, ...]:
    """Return an endpoint's secrets, every one of them valid."""
    return tuple(settings.PAYMENTS_SECRETS.get(_suffix(slug), ()))


def known_endpoint(slug: str) -> Endpoint | None:
    """Return the endpoint from this process's copy; asks no database."""
    return _copy.get(slug)


def known_endpoints() -> list[Endpoint]:
    """Return all endpoints of this process's copy, by slug."""
    return [_copy[slug] for slug in sorted(_copy)]


def is_copy_fresh(age_max_s: float) -> bool:
    """Say whether the copy was read within the last age_max_s seconds."""
    return time.monotonic() - _read_at < age_max_s


def why_closed() -> str | None:
    """Return why this process serves no money, or None; asks no database."""
    return _closed


def read_copy() -> None:
    """Read the copy anew: two queries."""
    global _copy, _closed, _read_at
    rows = models.Endpoint.objects.select_related("books")
    _copy = {row.slug: _endpoint(row) for row in rows if row.gateway in gateways.REGISTRY}
    _closed = _read_closed()
    _read_at = time.monotonic()


def _read_closed() -> str | None:
    newest = verification.newest()
    if newest is None:
        return "not recovered: run manage.py recover"
    if newest.broken:
        return "broken invariant: " + ", ".join(sorted({one["kind"] for one in newest.broken}))
    return None


def endpoint(slug: str) -> Endpoint:
    """Return an endpoint for a command, read now. Raises LookupError when there is none of that slug."""
    read_copy()
    return _copy[slug]


def forget_copy() -> None:
    """Drop the copy, as in a process that has just started."""
    global _copy, _closed, _read_at
    _copy, _closed, _read_at = {}, None, float("-inf")


def _suffix(slug: str) -> str:
    return slug.upper().replace("-", "_")


def _endpoint(row: models.Endpoint) -> Endpoint:
    gateway = gateways.REGISTRY[row.gateway]
    books = row.books or row
    confirms = row.confirms and bool(gateway.confirm_urls)
    return Endpoint(
        id=row.id,
        slug=row.slug,
        books=Books(books.id, books.slug),
        gateway=gateway,
        config=base.EndpointConfig(
            slug=row.slug,
            live=row.mode == models.Endpoint.Mode.LIVE,
            external_account=row.external_account,
            auto_capture=row.auto_capture,
            confirms=confirms,
        ),
        default_payee=row.default_payee,
        has_one_payment_per_reference=not gateway.proves_payment and not confirms,
        refuses_conflicts=gateway.refuses_conflicts if not row.conflicts else row.conflicts == "refuse",
        secrets=secrets_of(row.slug),
    )
