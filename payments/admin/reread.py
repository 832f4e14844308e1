"""What a stored event says, read again from its raw bytes by the same adapter that read it when it came."""

import logging

from payments import claims, conf
from payments.gateways import base
from payments.models import Event

logger = logging.getLogger(__name__)


def notice_of(event: Event) -> base.Notice | None:
    """Return the event as its gateway's adapter translates it today; None where that can't be done any more.

    The body may be pruned, the gateway unknown to this version, or a bug of the adapter the very reason why
    somebody looks at this event.
    """
    if event.body is None:
        return None
    try:
        endpoint = conf.known_endpoint(event.endpoint.slug) or conf.endpoint(event.endpoint.slug)
        delivery = base.Delivery(event.headers, bytes(event.body), event.received_at)
        notices = endpoint.gateway.translate(base.Verified.of(delivery), endpoint.config)
    except Exception:  # noqa: BLE001 (whatever the adapter does, the evidence must still be shown)
        logger.warning("event_not_reread", extra={"event": event.pk})
        return None
    return next((notice for notice in notices if notice.event_id == event.event_id), None)


def fingerprint_of(event: Event) -> dict[str, str] | None:
    """Return the fingerprint of a stored content, if today's adapter still makes the same one of it."""
    notice = notice_of(event)
    if notice is None or claims.content_digest(notice.fingerprint) != event.content:
        return None
    return dict(notice.fingerprint)
