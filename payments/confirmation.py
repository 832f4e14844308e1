"""Asking a gateway's API whether a delivery is true, for endpoints that don't believe what is only partly signed.

One GET for each delivery that isn't claimed yet, outside of any transaction and without a database connection, under a
limit of its own, over by CONFIRM_S whatever the API does. What it answers is kept as evidence beside the body and takes
the place of what the body says. Secrets go to the API only, never into a log.

After a crash: nothing was claimed; the gateway delivers again, and the API is asked again.
"""

import base64
import http.client
import logging
import time
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings

from payments import addresses, conf, intake, limits, wire
from payments.gateways import base

logger = logging.getLogger(__name__)

CONFIRM_S: Final = 2.0  # for all of it, from the look-up of the name to the answer's last byte
SETTLE_S: Final = 1.0  # of a delivery's time that must be left to settle it afterwards
SECRETS_MAX: Final = 2  # that are tried, while one is being changed for another
# What says that the secret is not, or no longer, or not yet good.
_NOT_AUTHORIZED: Final = (401, 403)


class _Failed(Exception):
    """The API could not be asked, or gave no usable answer; the text says why, without any value of ours."""


def confirm(job: intake.Job, *, deadline: float) -> intake.Job:
    """Return the delivery as its gateway's API bears it out. deadline: monotonic seconds, of the whole delivery.

    Raises intake.SettlementFailed when the API can't be asked or doesn't bear it out (yet), limits.Saturated.
    """
    endpoint, verified = job.endpoint, job.candidates[0].verified
    with limits.get("confirm"):
        until = min(time.monotonic() + CONFIRM_S, deadline - SETTLE_S)
        try:
            answer = _ask(endpoint, endpoint.gateway.confirm_path(verified), until)
            confirmed = endpoint.gateway.confirmed(verified, answer, endpoint.secrets)
        except (_Failed, base.NotConfirmed) as error:
            logger.warning(
                "not_confirmed", extra={"endpoint": endpoint.slug, "event": job.event_id, "reason": str(error)}
            )
            raise intake.SettlementFailed("not confirmed") from error
    return intake.translate(endpoint, confirmed)


def _ask(endpoint: conf.Endpoint, path: str, until: float) -> bytes:
    for secret in endpoint.secrets[:SECRETS_MAX]:
        status, body = _get(endpoint, path, secret, until)
        if status not in _NOT_AUTHORIZED:
            break
    else:
        raise _Failed("none of the secrets is accepted")
    # An unknown or expired transaction may come with a status of its own; whether it fits, the body says.
    if 300 <= status < 400 or status == http.client.TOO_MANY_REQUESTS or status >= 500:
        raise _Failed(f"HTTP {status}")
    return body


def _get(endpoint: conf.Endpoint, path: str, secret: str, until: float) -> tuple[int, bytes]:
    host, port, is_tls, base_path = _address(settings.PAYMENTS_CONFIRM_URL or _own_url(endpoint))
    headers = {
        "Host": host if port is None else f"{host}:{port}",
        "Accept": "application/json",
        "Authorization": f"Basic {base64.b64encode(f'{secret}:'.encode()).decode()}",
        "Connection": "close",
        "User-Agent": "sekali",
    }
    try:
        line = wire.dial(
            host,
            port or (443 if is_tls else 80),
            is_tls=is_tls,
            deadline=until,
            may_be_private=bool(settings.PAYMENTS_CONFIRM_URL),  # whoever runs us said so
        )
    except addresses.Unreachable as error:
        raise _Failed(str(error)) from error
    try:
        answer = line.exchange("GET", base_path + path, headers)
        return answer.status, answer.read()
    except TimeoutError as error:
        raise _Failed("no answer in time") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _Failed(f"no usable answer ({type(error).__name__})") from error
    finally:
        line.hang_up()


def _own_url(endpoint: conf.Endpoint) -> str:
    return endpoint.gateway.confirm_urls[endpoint.config.live]


def _address(url: str) -> tuple[str, int | None, bool, str]:
    """Return host, port where one is named, whether it is TLS, and the path that all paths begin with."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https"):
        raise _Failed("PAYMENTS_CONFIRM_URL is not an http or https address")
    return host, port, parts.scheme == "https", parts.path.rstrip("/")
