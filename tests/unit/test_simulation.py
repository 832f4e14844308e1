"""The simulated gateway, without the product: what it tells, and what it makes of a server's answers."""

import asyncio
import io
import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import call_command
from pytest_django import Settings

from payments import facts, gateways
from payments.gateways import base
from payments.simulation import dialects, gateway, stories, wire

NOW = 1_790_000_000
SECRETS = {
    "standard_webhooks": "whsec_dGVzdHMtb2YtdGhlLXNpbXVsYXRvci0wMDAwMDA=",
    "stripe": "whsec_of_the_simulators_tests",
    "midtrans": "SB-Mid-server-of-the-tests",
    "xendit": "token-of-the-tests",
    "adyen": "0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF",
    "razorpay": "rzp-of-the-tests",
}
DEMO = dialects.TABLE["standard_webhooks"]


def tell(events: int = 200, seed: int = 7, dialect: dialects.Dialect = DEMO) -> list[stories.Happening]:
    foreign = 0.0 if dialect.only_idr else stories.FOREIGN_PART
    return list(stories.happenings(events=events, seed=seed, accounts=20, kinds=dialect.kinds, foreign=foreign))


# What it tells


def test_same_seed_tells_the_same_bytes() -> None:
    """A run can be repeated to the byte; another seed shares no id with it."""
    first, again, other = tell(seed=7), tell(seed=7), tell(seed=8)

    secret = SECRETS["standard_webhooks"]
    assert [DEMO.tell(h, secret, NOW) for h in first] == [DEMO.tell(h, secret, NOW) for h in again]
    assert not {h.event_id for h in first} & {h.event_id for h in other}
    assert not {h.payment for h in first} & {h.payment for h in other}


def test_seed_that_is_a_time_tells_of_that_time() -> None:
    """By default events happen when the run begins, so that they look like today's."""
    assert stories.started_at(1_790_000_000_000) == datetime.fromtimestamp(1_790_000_000, UTC)
    assert stories.started_at(7) == stories.BEGINNING


def test_refunds_and_fees_follow_their_captures() -> None:
    """A story is possible: nothing is refunded or charged before it is captured, and no more than was."""
    captured: dict[str, stories.Happening] = {}
    refunded: Counter[str] = Counter()

    happenings = tell(events=2000)

    for happening in happenings:
        if happening.kind is facts.FactKind.PAYMENT_CAPTURED:
            captured[happening.payment] = happening
        else:
            capture = captured[happening.payment]
            assert (happening.payee, happening.currency) == (capture.payee, capture.currency)
        if happening.kind is facts.FactKind.REFUND_SUCCEEDED:
            refunded[happening.payment] += happening.amount_minor
    assert all(total <= captured[payment].amount_minor for payment, total in refunded.items())
    assert {h.kind for h in happenings} == DEMO.kinds
    assert len({h.event_id for h in happenings}) == 2000


def test_deliveries_repeat_and_reorder_the_asked_part() -> None:
    """Every event is delivered; about as many come twice, and about as many late, as was asked for."""
    happenings = tell(events=5000)

    delivered = list(stories.deliveries(happenings, duplicates=0.1, reorder=0.05, seed=7))

    times = Counter(h.event_id for h in delivered)
    assert set(times) == {h.event_id for h in happenings}
    assert 400 < sum(times[event] == 2 for event in times) < 600
    neighbours = sum(a == b for a, b in itertools.pairwise(delivered))
    assert 150 < neighbours < 350
    firsts = list(dict.fromkeys(h.event_id for h in delivered))
    place = {event: position for position, event in enumerate(firsts)}
    late = sum(place[h.event_id] > position for position, h in enumerate(happenings))
    assert 150 < late < 350


def test_deliveries_without_tricks_are_the_events_in_order() -> None:
    happenings = tell()

    assert list(stories.deliveries(happenings, duplicates=0, reorder=0, seed=7)) == happenings


def test_expected_is_double_entry() -> None:
    """What is expected sums to zero per currency: what we have on one side, what we owe on the other."""
    expected = stories.Expected(books="demo")
    for happening in tell(events=2000):
        expected.add(happening)

    sums: Counter[str] = Counter()
    for (code, currency), balance in expected.balances.items():
        sums[currency] += balance if code.startswith(("receivable:", "fees:")) else -balance
    assert expected.events == 2000
    assert set(sums) == {"IDR", *stories.FOREIGN_CURRENCIES}
    assert not any(sums.values())


@pytest.mark.parametrize("name", sorted(dialects.TABLE.keys() & gateways.REGISTRY.keys()))
def test_adapter_understands_its_dialect(name: str) -> None:
    """The product's adapter verifies every delivery and finds the very fact that was told."""
    dialect, adapter, secret = dialects.TABLE[name], gateways.REGISTRY[name], SECRETS[name]
    config = base.EndpointConfig(slug="simulated")

    for happening in tell(dialect=dialect):
        headers, body = dialect.tell(happening, secret, NOW)
        delivery = base.Delivery(headers, body, datetime.fromtimestamp(NOW, UTC))
        [notice] = adapter.translate(adapter.authenticate(delivery, [secret]), config)
        [fact] = [fact for fact in notice.facts if fact.kind is happening.kind]
        told = (fact.payment, fact.amount_minor, fact.currency)
        assert told == (happening.payment, happening.amount_minor, happening.currency)
        assert (fact.account == happening.payee) == (dialect.names_payees and happening.names_payee)
        assert not dialect.names_event or notice.event_id == happening.event_id


# What it makes of answers

Respond = Callable[[str, int], bytes | None]  # event id, how manieth delivery of it -> answer; None: close


def response(status: int, body: bytes, *headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} -",
        f"Content-Length: {len(body)}",
        "Content-Type: application/json",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def acknowledged(event: str, outcome: str = "applied") -> bytes:
    return response(200, json.dumps({"event": event, "outcome": outcome}).encode())


@contextmanager
def server(respond: Respond) -> Iterator[tuple[str, Counter[str]]]:
    """Serve on a free port in a thread; give the URL and how often each event came."""
    came: Counter[str] = Counter()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                await reader.readexactly(int(headers["Content-Length"]))
                event = headers["webhook-id"]
                came[event] += 1
                answer = respond(event, came[event])
                if answer is None:
                    break
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", came
    finally:
        loop.call_soon_threadsafe(listening.close)  # a loop's objects are its own thread's
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), loop).result()  # let connections see their end
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def run(url: str, told: list[stories.Happening], give_up_s: float = 5.0, concurrency: int = 4) -> gateway.Run:
    done = gateway.Run(
        told=told,
        dialect=DEMO,
        secret=SECRETS["standard_webhooks"],
        target=wire.Target.of(url, "demo"),
        concurrency=concurrency,
        give_up_s=give_up_s,
    )
    done.execute()
    return done


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "RETRY_BASE_S", 0.001)
    monkeypatch.setattr(gateway, "RETRY_MAX_S", 0.01)


def test_clean_run_keeps_the_first_answer_of_each_event() -> None:
    """All acknowledged, replays equal: a clean report, and a journal with the bytes."""
    told = list(stories.deliveries(tell(), duplicates=0.5, reorder=0.1, seed=7))

    with server(lambda event, _: acknowledged(event)) as (url, came):
        done = run(url, told)

    report = done.report.as_dict()
    assert done.report.is_clean
    assert (report["sent"], report["acked"], report["deliveries"]) == (200, 200, len(told))
    assert report["replays"] == len(told) - 200
    assert report["outcomes"] == {"applied": 200}
    assert came == Counter(h.event_id for h in told)
    assert all(json.loads(done.journal[event].body)["event"] == event for event in came)


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(response(503, b"{}", "Retry-After: 1"), id="503"),
        pytest.param(response(500, b"oh", "Connection: close"), id="500-and-close"),
        pytest.param(b"not HTTP at all\r\n\r\n", id="garbage"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut", id="cut-short"),
        pytest.param(None, id="closed"),
    ],
)
def test_failed_delivery_is_tried_again(trouble: bytes | None) -> None:
    """As a gateway does: whatever isn't a final answer is tried again, and ends acknowledged."""
    gives_up_on_cut = trouble is not None and trouble.endswith(b"cut")

    with (
        pytest.MonkeyPatch.context() as patch,
        server(lambda event, nth: trouble if nth == 1 else acknowledged(event)) as (url, came),
    ):
        if gives_up_on_cut:
            patch.setattr(gateway, "ANSWER_S_MAX", 0.1)
        done = run(url, tell(events=10))

    assert done.report.is_clean
    assert done.report.retries == 10
    assert set(came.values()) == {2}


def test_event_that_is_never_acknowledged_is_reported() -> None:
    """Given up at the deadline, named, and not clean."""
    told = tell(events=5)

    with server(lambda event, _: response(503, b"{}") if event == told[0].event_id else acknowledged(event)) as (
        url,
        _,
    ):
        done = run(url, told, give_up_s=0.05)

    assert not done.report.is_clean
    assert (done.report.sent, done.report.acked) == (5, 4)
    assert done.unacked == {told[0].event_id}
    assert "given up" in done.report.examples[0]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(lambda event: acknowledged(event, "duplicate"), id="other-bytes"),
        pytest.param(lambda event: response(202, acknowledged(event).split(b"\r\n\r\n")[1]), id="other-status"),
        pytest.param(lambda event: response(422, b"{}"), id="refused"),
    ],
)
def test_other_answer_to_a_replay_is_a_mismatch(second: Callable[[str], bytes]) -> None:
    """Every re-delivery of an acknowledged event gets the bytes of the first answer."""
    told = [happening for happening in tell(events=10) for _ in range(2)]

    with server(lambda event, nth: acknowledged(event) if nth == 1 else second(event)) as (url, _):
        done = run(url, told, concurrency=1)

    assert not done.report.is_clean
    assert done.report.replay_mismatches == 10
    assert len(done.report.examples) == gateway.EXAMPLES_MAX


def test_answer_for_another_event_is_a_mismatch() -> None:
    """A server that settles in batches could mix answers up: each must name the event that was delivered."""
    with server(lambda _event, _nth: acknowledged("evt_somebody_elses")) as (url, _):
        done = run(url, tell(events=3))

    assert done.report.replay_mismatches == 3


def test_refusal_is_final() -> None:
    """A 4xx is not tried again and not clean."""
    with server(lambda _event, _nth: response(400, b"{}")) as (url, came):
        done = run(url, tell(events=3))

    assert not done.report.is_clean
    assert (done.report.refused, done.report.acked, set(came.values())) == (3, 0, {1})


def test_server_that_restarts_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing listens, deliveries are kept; when the server is back, all are acknowledged."""
    monkeypatch.setattr(gateway, "UNREACHABLE_PAUSE_S", 0.001)
    opened = itertools.count()
    open_connection = wire.Connection.open

    async def open_unless_down(target: wire.Target) -> wire.Connection:
        if 5 <= next(opened) < 25:
            raise ConnectionRefusedError("nothing listens")
        return await open_connection(target)

    monkeypatch.setattr(wire.Connection, "open", open_unless_down)

    with server(lambda event, _: acknowledged(event).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")) as (
        url,
        _,
    ):
        done = run(url, tell(events=40))

    assert done.report.is_clean
    assert (done.report.failed, done.report.acked) == (20, 40)


def test_unreachable_server_is_an_error_before_anything_is_sent() -> None:
    with server(lambda event, _: acknowledged(event)) as (url, _):
        pass

    with pytest.raises(gateway.ServerUnreachable):
        run(url, tell(events=3))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://"])
def test_unusable_url_is_named(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        wire.Target.of(url, "demo")


@pytest.mark.parametrize(
    "url", ["http://shop", "http://shop/", "http://shop/webhooks/demo", "http://shop/webhooks/demo/"]
)
def test_url_may_be_the_servers_or_the_endpoints(url: str) -> None:
    assert wire.Target.of(url, "demo").head.startswith("POST /webhooks/demo/ HTTP/1.1")


# The command


@pytest.mark.django_db
@pytest.mark.usefixtures("small_demo")
class TestSimulate:
    def simulate(self, *arguments: str) -> tuple[object, dict[str, Any]]:
        output = io.StringIO()
        with pytest.raises(SystemExit) as end:
            call_command("simulate", *arguments, "--events=20", "--json", stdout=output, stderr=io.StringIO())
        return end.value.code, json.loads(output.getvalue())

    def test_clean_run_exits_0(self) -> None:
        """The promised members are there, and the seed with which the run can be repeated."""
        with server(lambda event, _: acknowledged(event)) as (url, _):
            status, told = self.simulate("demo", "--duplicates=0.5", "--url", url, "--seed=7")

        promised = {"sent", "acked", "retries", "replay_mismatches", "seconds", "rate", "p50_ms", "p99_ms"}
        assert status == 0
        assert promised <= told.keys()
        assert (told["sent"], told["acked"], told["seed"]) == (20, 20, 7)

    def test_unacknowledged_events_exit_1(self) -> None:
        with server(lambda _event, _nth: response(503, b"{}")) as (url, _):
            status, told = self.simulate("demo", "--url", url, "--give-up=0.02")

        assert status == 1
        assert told["unacked"] == 20

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            pytest.param(["nowhere"], "no endpoint nowhere", id="unknown-endpoint"),
            pytest.param(["demo", "--url=http://127.0.0.1:9"], "nothing answers at", id="unreachable"),
            pytest.param(["demo", "--url=127.0.0.1"], "http://host:port", id="unusable-url"),
        ],
    )
    def test_what_could_not_run_exits_2(self, arguments: list[str], problem: str) -> None:
        status, told = self.simulate(*arguments)

        assert status == 2
        assert problem in told["error"]

    def test_missing_secret_is_named(self, settings: Settings) -> None:
        settings.PAYMENTS_SECRETS = {}

        status, told = self.simulate("demo")

        assert status == 2
        assert "PAYMENTS_SECRETS_DEMO" in told["error"]
