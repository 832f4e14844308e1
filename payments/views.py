"""HTTP, and nothing else: bytes in, one domain call, bytes out.

What each error becomes, drawn once:

    VerificationFailed                        400   never says which part failed
    unknown endpoint                          404
    not POST                                  405   Allow: POST
    body past PAYMENTS_BODY_BYTES_MAX         413
    event id re-used for other content        422   or 200, where the endpoint acknowledges; names the fields
    limits.Saturated, batching.ResultUnknown,
    SettlementFailed, database not reachable  503   Retry-After; the gateway's retry is the repair

An intentional 500 does not exist, nor a redirect: some gateways never retry one. A 2xx is sent only after COMMIT.
"""

import hmac
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Final

from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse
from django.views import defaults
from django.views.decorators.csrf import csrf_exempt

from payments import (
    attempts,
    batching,
    conf,
    confirmation,
    database,
    failpoints,
    intake,
    limits,
    metrics,
    replies,
    stored_metrics,
)
from payments.gateways import base
from payments.replies import Answer, Reply

QUEUE_S: Final = 2.0  # how long a delivery waits for its batch; with 3 s of transaction it stays within the deadline
# A settlement takes some tens of ms; one that takes so long is stuck, and others go on beside it with the next permit.
PATIENCE_S: Final = 0.25
QUEUE_MAX: Final = 10_000  # never reached: threads are fewer. A number all the same, so that the queue has an end


@csrf_exempt
def webhook(request: HttpRequest, slug: str) -> HttpResponse:
    """Answer one delivery."""
    started_at = time.perf_counter()
    metrics.start_publishing()
    if request.method != "POST":
        response = _response(replies.problem(405, "Only POST is answered here"))
        response["Allow"] = "POST"
        return response
    try:
        with limits.get("intake"):
            endpoint = _endpoint(slug)
            job = _receive(request, endpoint)
            answer = _settled(job) if isinstance(job, intake.Job) else job
    except limits.Saturated as saturated:
        endpoint, job, answer = conf.known_endpoint(slug), None, _try_later(saturated.retry_after_s)
    except (intake.SettlementFailed, DatabaseError, InterfaceError):
        endpoint, job, answer = conf.known_endpoint(slug), None, _try_later(batcher().retry_after_s())
    failpoints.hit("before_answer")
    metrics.count_delivery("unknown" if endpoint is None else endpoint.slug, answer.outcome, is_replay=answer.is_replay)
    # Only what is verified is logged: who can't sign must not be able to fill a disk.
    if isinstance(job, intake.Job):
        attempts.record(job.endpoint.id, job.event_id, answer, started_at=started_at)
    response = _response(answer.reply)
    if answer.retry_after_s is not None:
        response["Retry-After"] = str(answer.retry_after_s)
    return response


def _receive(request: HttpRequest, endpoint: conf.Endpoint | None) -> intake.Job | Answer:
    if endpoint is None:
        return Answer(replies.problem(404, "No such endpoint"), "unknown")
    try:
        body = _body(request)
    except Exception:  # noqa: BLE001  whatever the server found wrong with it, the sender framed it so
        return Answer(replies.problem(400, "The body could not be read"), "refused")
    if body is None:
        return Answer(replies.problem(413, "The body is too large"), "too_large")
    try:
        return intake.receive(endpoint, base.Delivery(_headers(request), body, datetime.now(UTC)))
    except base.VerificationFailed:
        return Answer(replies.problem(400, "The delivery could not be verified"), "refused")


def _settled(job: intake.Job) -> Answer:
    deadline = time.monotonic() + settings.PAYMENTS_DEADLINE_MS / 1000
    try:
        try:
            return _submit(job, deadline)
        except intake.Unconfirmed:
            return _submit(confirmation.confirm(job, deadline=deadline), deadline)
    except (limits.Saturated, batching.ResultUnknown, intake.SettlementFailed, DatabaseError, InterfaceError):
        return _try_later(batcher().retry_after_s())


def _submit(job: intake.Job, deadline: float) -> Answer:
    queue_deadline = min(time.monotonic() + QUEUE_S, deadline)
    return batcher().submit(job, queue_deadline=queue_deadline, deadline=deadline)


def _try_later(seconds: int) -> Answer:
    # With jitter, or all who were refused together come back together.
    later = seconds + random.randint(0, seconds)
    return Answer(replies.problem(503, "Try again later"), "unavailable", retry_after_s=later)


@cache
def batcher() -> batching.Batcher[intake.Job, Answer]:
    """Return this process's batcher: whoever gets one of its permits settles for all who wait."""
    made = batching.Batcher[intake.Job, Answer](
        name="settle",
        permits=settings.PAYMENTS_SETTLE_PERMITS,
        batch_max=settings.PAYMENTS_SETTLE_BATCH_MAX,
        queue_max=QUEUE_MAX,
        patience_s=PATIENCE_S,
        run=_settle,
    )
    limits.register(made)
    return made


def _settle(jobs: Sequence[intake.Job], deadline: float) -> Sequence[Answer | Exception]:
    started_at = time.perf_counter()
    try:
        return intake.settle(jobs, deadline)
    finally:
        metrics.batch_size.observe(len(jobs))
        metrics.settle_seconds.observe(time.perf_counter() - started_at)


def _endpoint(slug: str) -> conf.Endpoint | None:
    if (conf.known_endpoint(slug) is None or conf.why_closed()) and not conf.is_copy_fresh(conf.RETRY_PAUSE_S):
        # One thread asks; the others hear 503 rather than queue for an answer.
        with limits.get("health"), database.connected(time.monotonic() + 1.0):
            conf.read_copy()
    if (reason := conf.why_closed()) is not None:
        raise intake.SettlementFailed(reason)
    return conf.known_endpoint(slug)


def _body(request: HttpRequest) -> bytes | None:
    """Return the body as received, or None past the limit. Reads no more than the limit, however it is framed."""
    body_bytes_max: int = settings.PAYMENTS_BODY_BYTES_MAX
    length = request.META.get("CONTENT_LENGTH") or "0"
    is_chunked = "HTTP_TRANSFER_ENCODING" in request.META  # then Django would take the body for empty
    if int(length) > body_bytes_max:
        return None
    body: bytes = request.META["wsgi.input"].read(body_bytes_max + 1 if is_chunked else int(length))
    return body if len(body) <= body_bytes_max else None


def _headers(request: HttpRequest) -> dict[str, str]:
    return {
        name[5:].replace("_", "-").lower(): value for name, value in request.META.items() if name.startswith("HTTP_")
    }


def _response(reply: Reply) -> HttpResponse:
    return HttpResponse(reply.body, status=reply.status, content_type=reply.content_type)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer an address that is nowhere. Staff get a page."""
    if request.path_info.startswith("/admin/"):
        return defaults.page_not_found(request, exception)
    return _response(replies.problem(404, "Not found"))


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer what Django doesn't take for a request to this site: a host that isn't in ALLOWED_HOSTS."""
    return _response(replies.problem(400, "Bad request"))


# Health ---------------------------------------------------------------------------------------------------------------


def livez(request: HttpRequest) -> HttpResponse:
    """Say that this process answers. Asks no database."""
    return HttpResponse("ok\n", content_type="text/plain")


def readyz(request: HttpRequest) -> HttpResponse:
    """Say whether deliveries are served: 503 until recovered, while an invariant is broken, without the database."""
    try:
        with limits.get("health"), database.connected(time.monotonic() + 1.0):
            conf.read_copy()
        problem = conf.why_closed()
    except limits.Saturated:
        problem = "too many ask at once"
    except (DatabaseError, InterfaceError):
        problem = "the database can't be reached"
    return HttpResponse(f"{problem or 'ready'}\n", status=503 if problem else 200, content_type="text/plain")


def metrics_page(request: HttpRequest) -> HttpResponse:
    """Return the metrics; where PAYMENTS_METRICS_TOKEN is set only to who sends it as `Authorization: Bearer …`."""
    token: str = settings.PAYMENTS_METRICS_TOKEN
    given = request.headers.get("Authorization", "")
    if token and not hmac.compare_digest(f"Bearer {token}".encode(), given.encode()):
        return HttpResponse("unauthorized\n", status=401, content_type="text/plain")
    batcher()  # an idle process's gauges read zero instead of being absent
    return HttpResponse(
        metrics.exposition() + stored_metrics.exposition(), content_type="text/plain; version=0.0.4; charset=utf-8"
    )
