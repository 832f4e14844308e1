"""Generated histories of a payment, told by each gateway in any order and number: one end, the one the rules say."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from itertools import cycle

import pytest
from django.db import connection
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from payments import conf, intake, models
from payments.gateways import base
from tests import books, deliveries, histories, tellers
from tests.settling import outcomes
from tests.unit.gateways import signing

pytestmark = pytest.mark.django_db


def job(speaker: tellers.Speaker, body: bytes) -> intake.Job:
    """Return a body as this gateway's delivery, signed now; its event id, where a header tells it, is the body's."""
    secret, event_id = deliveries.SECRETS[speaker.slug.upper()], f"evt_{sha256(body).hexdigest()[:16]}"
    signed = signing.SIGN[speaker.gateway](body, secret, at=datetime.now(UTC), event_id=event_id)
    endpoint = conf.known_endpoint(speaker.slug)
    assert endpoint is not None
    return intake.receive(endpoint, base.Delivery(signed.headers, signed.body, datetime.now(UTC)))


def deliver(speaker: tellers.Speaker, bodies: Sequence[bytes], sizes: Iterator[int]) -> None:
    """Settle the bodies in this order, in batches of these sizes; every one of them is understood."""
    waiting = list(bodies)
    while waiting:
        size = next(sizes)
        answers = outcomes(intake.settle([job(speaker, body) for body in waiting[:size]], time.monotonic() + 5))
        assert set(answers) <= {"applied", "duplicate"}, answers
        waiting = waiting[size:]


def end(speaker: tellers.Speaker, held: books.Books) -> histories.End:
    """Return what the database holds in the plan's terms."""
    row = held.payments[speaker.payment]
    assert row["currency"] == speaker.currency
    roles = {"merchant-1": "payee"} | {
        f"{role}:{speaker.slug}": role for role in ("receivable", "fees", "disputes", "bank")
    }
    return histories.End(
        totals={name: row[name] for name in ("captured", "refunded", "disputed", "fees")},
        status=row["status"],
        balances={roles[code]: balance for (code, _), balance in held.balances.items()},
        findings={kind for kind, _ in held.findings},
    )


@pytest.mark.parametrize("name", tellers.SPEAKERS)
@settings(
    max_examples=12,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),  # explaining is slow with a database
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_order_ends_in_what_the_rules_say(small_demo: None, data: st.DataObject, name: str) -> None:
    """Shuffled, repeated and batched at will: the row, balances, findings and transfers of the told order."""
    speaker = tellers.SPEAKERS[name]
    with connection.cursor() as cursor:  # the search for an example may take its time between two statements
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
    models.Endpoint.objects.filter(slug=speaker.slug).update(auto_capture=speaker.auto_capture)
    conf.read_copy()
    history = data.draw(histories.histories(speaker.can))
    bodies = speaker.tell(history)
    repeated = data.draw(st.lists(st.sampled_from(bodies), max_size=5))
    order = data.draw(st.permutations([*bodies, *repeated]))
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))

    ends = []
    for bodies_in_order in (bodies, order, order[::-1]):
        with books.undone():
            deliver(speaker, bodies_in_order, cycle(sizes))
            ends.append(books.read())

    assert end(speaker, ends[0]) == histories.expected(history)
    assert ends[1] == ends[0]
    assert ends[2] == ends[0]
