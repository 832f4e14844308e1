"""Deliveries settled as the batcher would settle them: for tests that need several in one transaction."""

import itertools
import time
from datetime import UTC, datetime
from typing import Any

from payments import conf, intake
from payments.gateways import base
from payments.replies import Answer
from tests import deliveries

_numbers = itertools.count(1)


def job(event_type: str, *, event_id: str | None = None, slug: str = "demo", **data: Any) -> intake.Job:
    """Return one verified delivery of the demo's vocabulary; IDR unless data says otherwise."""
    return raw_job(deliveries.demo_body(event_type, {"currency": "IDR", **data}), event_id=event_id, slug=slug)


def raw_job(body: bytes, *, event_id: str | None = None, slug: str = "demo") -> intake.Job:
    """Return these very bytes as one verified delivery."""
    signed = deliveries.demo(body, event_id=event_id or f"settled_{next(_numbers)}")
    endpoint = conf.known_endpoint(slug)
    assert endpoint is not None
    return intake.receive(endpoint, base.Delivery(signed.headers, signed.body, datetime.now(UTC)))


def capture(payment: str, amount: int = 10_000, *, account: str | None = "merchant-1", **data: Any) -> intake.Job:
    """Return a capture's delivery."""
    return job("payment.captured", payment=payment, amount=amount, account=account, **data)


def settle(*jobs: intake.Job, seconds: float = 3.0) -> list[Answer | Exception]:
    """Settle the deliveries as one batch; return what each is answered, or what failed."""
    return intake.settle(jobs, time.monotonic() + seconds)


def outcomes(answers: list[Answer | Exception]) -> list[str]:
    """Return what each answer says became of its event, or the name of what failed."""
    return [one.outcome if isinstance(one, Answer) else type(one).__name__ for one in answers]
