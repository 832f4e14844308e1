"""The connection is lost at COMMIT: nobody can know whether it happened; the app must neither guess nor try again."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import figures, gateway, processes
from tests.crash.gateway import Gateway
from tests.crash.proxy import Fault, Proxy
from tests.crash.servers import App, Postgres

pytestmark = pytest.mark.crash


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[Proxy]:
    # Not tmp_path: a socket's path must be short.
    with tempfile.TemporaryDirectory() as folder, Proxy(Path(folder), postgres.socket_folder) as made:
        yield made


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_commit_whose_result_is_unknown_is_answered_503(
    fault: Fault, proxy: Proxy, app: App, postgres: Postgres
) -> None:
    """A whole batch hears 503, nothing is sent again, and the re-delivery learns the truth from the claim."""
    app.environment["DATABASE_URL"] = proxy.url
    app.serve(WEB_CONCURRENCY="1", PAYMENTS_SETTLE_PERMITS="1")
    sender = Gateway(app)
    sender.deliver(gateway.capture(amount=1))
    before = _balance(postgres)
    alone, *others = gateway.captures(9, amount=500, account="merchant-6")

    claims_before = proxy.claims_sent
    proxy.arm(fault)
    answer = sender.deliver(alone)
    assert proxy.struck.wait(timeout=10)
    claims_alone = proxy.claims_sent - claims_before
    is_committed = bool(postgres.query("SELECT id FROM payments_claim WHERE event_id = %(id)s", {"id": alone.event_id}))
    # With one permit, the first of the others is settled alone, and then all who queued meanwhile.
    proxy.arm(fault, skip=1)
    answers = sender.deliver_at_once(others)
    claims_together = proxy.claims_sent - claims_before - claims_alone
    replayed = sender.deliver(alone)
    sender.retry()
    sender.deliver_all_again()

    assert answer is not None
    assert answer.status == 503
    assert answer.retry_after is not None
    assert answer.seconds < 7
    assert claims_alone == 1, "the transaction was sent again"
    assert is_committed is (fault is not Fault.CUT_BEFORE)
    assert claims_together < len(others), "each member of the batch was tried alone"
    assert {one.status for one in answers if one} == {200, 503}
    assert None not in answers
    assert replayed is not None
    assert replayed.status == 200
    assert _balance(postgres) - before == 9 * 500
    figures.tell(f"answer to a delivery whose COMMIT: {fault.value}", answer.seconds)


def test_one_connection_without_an_answer_does_not_stop_the_others(proxy: Proxy, app: App, postgres: Postgres) -> None:
    """While one batch waits for a COMMIT whose answer never comes, the other permit serves."""
    app.environment["DATABASE_URL"] = proxy.url
    app.serve(WEB_CONCURRENCY="1")
    sender = Gateway(app)
    sender.deliver(gateway.capture(amount=1))
    stuck = gateway.capture(amount=500, account="merchant-7")
    proxy.arm(Fault.SWALLOW)

    with gateway.in_background(lambda: sender.deliver(stuck)) as waiting:
        assert proxy.struck.wait(timeout=10)
        meanwhile = sender.deliver_at_once(gateway.captures(5, account="merchant-7"))
        assert not waiting.done(), "they were served, but only after it"
        answer = waiting.result(timeout=10)
    replayed = sender.deliver(stuck)

    assert [one.status for one in meanwhile if one] == [200] * 5
    assert answer is not None
    assert answer.status == 503
    assert replayed is not None
    assert replayed.status == 200
    processes.wait_until("the swallowed session ends", lambda: len(postgres.list_backends()) <= 2, within_s=10)


def _balance(postgres: Postgres) -> int:
    sql = "SELECT balance FROM payments_account WHERE code = 'merchant-6' AND currency = 'IDR'"
    return int(postgres.query(sql)[0][0])
