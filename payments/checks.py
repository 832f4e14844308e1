"""System checks: what a configuration gets wrong, with what to type.

Those of the settings run with every `manage.py check`; those that read endpoints with `manage.py check --database
default`, and so with `migrate`. What is wrong with one endpoint is a warning, however bad: it must not keep the others
from being served.

    E001  PAYMENTS_INTAKE_PERMITS leaves no thread         W001  an endpoint's gateway has no adapter
    E002  PAYMENTS_DEADLINE_MS is shorter than its parts   W002  an endpoint has no secrets
    E003  a statement ends before its wait for a lock      W003  a Standard Webhooks secret is none
    E004  a demo secret in production                      W004  an Adyen key is not hexadecimal
    E005  PAYMENTS_CONFIRM_URL is no address               W005  unsigned fields are believed, and could be confirmed
    E006  an outbox destination can't be used              W006  only a token proves deliveries
                                                           W007  `confirms` where there is nothing to ask
                                                           W008  secrets that are no endpoint's
                                                           W009  a password alone lets staff in (`--deploy`)
                                                           W010  mail is to be sent, and no server is named
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from django.apps import AppConfig
from django.conf import settings
from django.contrib import admin
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, transaction

from payments import conf, destinations, gateways, intake, models, views
from payments.gateways import adyen, base, standard_webhooks

TAG: Final = "payments"
_LOCAL: Final = ("127.0.0.1", "::1", "localhost")


# Settings -------------------------------------------------------------------------------------------------------------


@register(TAG)
def check_limits(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Permits, deadlines and timeouts that contradict each other."""
    return list(_limits())


def _limits() -> Iterator[CheckMessage]:
    permits, threads = settings.PAYMENTS_INTAKE_PERMITS, settings.WEB_THREADS
    if permits >= threads:
        yield Error(
            f"PAYMENTS_INTAKE_PERMITS is {permits}, and a process has {threads} threads: deliveries could take them"
            " all, so that neither staff nor /readyz nor a refusal is answered.",
            hint=f"Set PAYMENTS_INTAKE_PERMITS to less than {threads}, or WEB_THREADS to {permits + 8} or more.",
            id="payments.E001",
        )
    parts_ms = int((views.QUEUE_S + intake.TRANSACTION_S) * 1000)
    if parts_ms > settings.PAYMENTS_DEADLINE_MS:
        yield Error(
            f"PAYMENTS_DEADLINE_MS is {settings.PAYMENTS_DEADLINE_MS}: a delivery that waits its turn and is then"
            " settled in time may be answered 503 before.",
            hint=f"Set PAYMENTS_DEADLINE_MS to {parts_ms} or more (6500 is the default), and less than your gateways"
            " wait.",
            id="payments.E002",
        )
    lock_ms, statement_ms = settings.PAYMENTS_LOCK_TIMEOUT_MS, settings.PAYMENTS_STATEMENT_TIMEOUT_MS
    if 0 < statement_ms <= lock_ms:
        yield Error(
            f"PAYMENTS_LOCK_TIMEOUT_MS is {lock_ms}, and a statement may take {statement_ms} ms: one that waits for a"
            " lock would end as if it were slow itself.",
            hint=f"Set PAYMENTS_STATEMENT_TIMEOUT_MS to {3 * lock_ms}, or PAYMENTS_LOCK_TIMEOUT_MS to"
            f" {max(100, statement_ms // 3)}.",
            id="payments.E003",
        )


@register(TAG)
def check_demo_secrets(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Secrets that are published with the source."""
    return [
        Error(
            f"PAYMENTS_SECRETS_{suffix} holds a demo secret, which everybody knows.",
            hint=f"Set PAYMENTS_SECRETS_{suffix} to the secret that the gateway shows you.",
            id="payments.E004",
        )
        for suffix, secrets in sorted(settings.PAYMENTS_SECRETS.items())
        if not settings.DEBUG and settings.PAYMENTS_DEMO_SECRETS.intersection(secrets)
    ]


@register(TAG)
def check_confirm_url(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Where a secret is sent to must be an address, and nobody's to listen to."""
    url = settings.PAYMENTS_CONFIRM_URL
    if not url or _is_confidential(url):
        return []
    return [
        Error(
            "PAYMENTS_CONFIRM_URL is not the address of a server that can be asked in confidence.",
            hint="Set PAYMENTS_CONFIRM_URL to https://host, or leave it empty to ask the gateway's own API.",
            id="payments.E005",
        )
    ]


def _is_confidential(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in _LOCAL))


@register(TAG)
def check_outbox(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """What keeps messages from being sent."""
    try:
        configured = destinations.configured().values()
    except destinations.Misconfigured as problem:
        return [
            Error(
                f"{problem}. Messages are kept, and can't be sent.",
                hint="Set it, or take the name out of PAYMENTS_OUTBOX_DESTINATIONS.",
                id="payments.E006",
            )
        ]
    mailboxes = [one.name for one in configured if isinstance(one, destinations.Mailbox)]
    if not mailboxes or settings.is_overridden("EMAIL_HOST"):  # type: ignore[misc]  # the plugin sees settings only
        return []
    return [
        Warning(
            f"Messages to {', '.join(mailboxes)} go by mail, and EMAIL_URL is empty: port 25 of this machine is tried.",
            hint="Set EMAIL_URL to smtp+tls://user:password@host:587, and DEFAULT_FROM_EMAIL to an address of yours.",
            id="payments.W010",
        )
    ]


@register(TAG, deploy=True)
def check_second_factor(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Nothing but a password between strangers and the payments; a site that wants more says so in has_permission."""
    if admin.site.__class__.has_permission is not admin.AdminSite.has_permission:
        return []
    return [
        Warning(
            "A password is all that staff need to log in.",
            hint="Let a proxy in front of /admin/ ask for a second factor, and add payments.W009 to"
            " SILENCED_SYSTEM_CHECKS; or let the admin ask for it with django-otp, as README.md says.",
            id="payments.W009",
        )
    ]


# Endpoints ------------------------------------------------------------------------------------------------------------


@register(TAG, Tags.database)
def check_endpoints(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """What is wrong with the rows of endpoints and their secrets."""
    if "default" not in (databases or ()):
        return []
    try:
        with transaction.atomic():
            rows = list(models.Endpoint.objects.order_by("slug"))
    except DatabaseError:  # before the first migration, or without a database
        return []
    found = [message for row in rows for message in _endpoint(row)]
    return found + _nobodys_secrets({conf.secrets_name(row.slug) for row in rows})


def _endpoint(row: models.Endpoint) -> Iterator[CheckMessage]:
    gateway = gateways.REGISTRY.get(row.gateway)
    if gateway is None:
        yield Warning(
            f"The endpoint {row.slug} is of the gateway {row.gateway!r}, which has no adapter: it answers 404.",
            hint=f"Register the adapter in payments/gateways/__init__.py, or type {_update(row, gateway='…')} with one"
            f" of {', '.join(sorted(gateways.REGISTRY))}.",
            id="payments.W001",
        )
        return
    yield from _secrets(row, gateway)
    yield from _assurance(row, gateway)


def _secrets(row: models.Endpoint, gateway: base.Gateway) -> Iterator[CheckMessage]:
    name = conf.secrets_name(row.slug)
    secrets = conf.secrets_of(row.slug)
    if not secrets:
        yield Warning(
            f"The endpoint {row.slug} has no secrets: every delivery to it is refused with 400.",
            hint=f"Set {name} in the environment or in .env.",
            id="payments.W002",
        )
    is_standard = isinstance(gateway, standard_webhooks.StandardWebhooks)
    if is_standard and not all(standard_webhooks.is_usable(secret) for secret in secrets):
        yield Warning(
            f"{name} holds a secret that isn't whsec_ and base64: nothing that is signed with it is accepted.",
            hint=f"Set {name} to the secret as your sender shows it, whsec_ included.",
            id="payments.W003",
        )
    if isinstance(gateway, adyen.Adyen) and not all(adyen.is_usable(secret) for secret in secrets):
        yield Warning(
            f"{name} holds a key that isn't hexadecimal: nothing that is signed with it is accepted.",
            hint=f"Set {name} to the HMAC key that Adyen's Customer Area generates for the webhook: 64 digits, 0-9 and"
            " A-F.",
            id="payments.W004",
        )


def _assurance(row: models.Endpoint, gateway: base.Gateway) -> Iterator[CheckMessage]:
    if row.confirms and not gateway.confirm_urls:
        yield Warning(
            f"The endpoint {row.slug} is to have its deliveries confirmed, and {row.gateway} has no API that we ask.",
            hint=f"Type {_update(row, confirms=False)}",
            id="payments.W007",
        )
    if row.mode != models.Endpoint.Mode.LIVE:
        return
    if gateway.confirm_urls and not row.confirms:
        yield Warning(
            f"What {row.gateway} signs doesn't cover a payment's status, and the live endpoint {row.slug} believes it.",
            hint=f"Let its API confirm each delivery; type {_update(row, confirms=True)}",
            id="payments.W005",
        )
    if gateway.assurance is base.Assurance.TOKEN_ONLY:
        yield Warning(
            f"Only a token proves deliveries to the live endpoint {row.slug}: whoever learns it can book anything.",
            hint="Let only the gateway's addresses in at your proxy, and type"
            f" manage.py reconcile {row.slug} FILE for every day's statement.",
            id="payments.W006",
        )


def _update(row: models.Endpoint, **values: object) -> str:
    told = ", ".join(f"{name}={value!r}" for name, value in values.items())
    update = f"Endpoint.objects.filter(slug='{row.slug}').update({told})"
    return f'manage.py shell -c "from payments.models import Endpoint; {update}"'


def _nobodys_secrets(known: set[str]) -> list[CheckMessage]:
    names = {f"PAYMENTS_SECRETS_{suffix}" for suffix, secrets in settings.PAYMENTS_SECRETS.items() if secrets}
    return [
        Warning(
            f"{name} is no endpoint's.",
            hint="Its end is an endpoint's slug in upper case, with _ for -. Type manage.py shell -c"
            ' "from payments.models import Endpoint; print(*Endpoint.objects.all())" to see the slugs.',
            id="payments.W008",
        )
        for name in sorted(names - known)
    ]
