"""Requests, written and signed before they are sent: the load generator's work must not be measured.

Signatures hold for 300 seconds, so a round's requests are signed right before it.
"""

import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Sequence
from typing import Final

from benchmarks.machine import Server
from payments.simulation import dialects, stories

DIALECT: Final = dialects.TABLE["standard_webhooks"]
SECRET: Final = "whsec_YmVuY2htYXJrcy1iZW5jaG1hcmtzLWJlbmNobWFya3M="
PEER_SECRET: Final = "whsec_of_the_peer"


def captures(count: int, *, accounts: int, seed: int | None = None) -> Sequence[stories.Happening]:
    """Return captures in IDR, one for each payment; new ones unless a seed is given."""
    return list(
        stories.happenings(
            events=count,
            seed=time.time_ns() if seed is None else seed,
            accounts=accounts,
            kinds=(),
            foreign=0.0,
        )
    )


def signed(told: Iterable[stories.Happening], server: Server) -> list[bytes]:
    """Return the requests that tell these to the `demo` endpoint."""
    target, now = server.target("/webhooks/demo/"), int(time.time())
    return [target.request(*DIALECT.tell(happening, SECRET, now)) for happening in told]


def signed_for_peer(told: Iterable[stories.Happening], server: Server, path: str) -> list[bytes]:
    """Return the requests that tell these to dj-stripe: payment_intent.succeeded, as small as it takes it."""
    target, now = server.target(path), int(time.time())
    requests = []
    for happening in told:
        intent = {
            "id": f"pi_{happening.payment}",
            "object": "payment_intent",
            "amount_received": happening.amount_minor,
            "currency": happening.currency.lower(),
            "metadata": {"account": happening.payee},
        }
        event = {
            "id": happening.event_id,
            "object": "event",
            "api_version": "2025-09-30.clover",
            "account": "acct_bench",
            "type": "payment_intent.succeeded",
            "created": now,
            "livemode": True,
            "data": {"object": intent},
        }
        body = json.dumps(event).encode()
        proof = hmac.digest(PEER_SECRET.encode(), b"%d.%b" % (now, body), hashlib.sha256).hex()
        requests.append(target.request({"stripe-signature": f"t={now},v1={proof}"}, body))
    return requests
