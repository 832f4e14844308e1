"""The same money at the same instant: threads, connections of their own, real commits."""

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client

from payments import claims, conf, intake, ledger, models, outbox, payees
from payments.registrations import Registered
from tests.conftest import assert_sound
from tests.deliveries import Deliver, outcome
from tests.races import Pause, Session, Thread, at_once, session, wait_until_blocked
from tests.settling import capture, job, outcomes, settle
from tests.steps import TRIES

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]

Books = Callable[[], dict[str, int]]


@pytest.fixture
def other() -> Iterator[Session]:
    """A session that looks on."""
    with session() as opened:
        yield opened


@pytest.fixture
def post(small_demo: None) -> Callable[..., HttpResponse]:
    """Deliver to the demo endpoint with a client of one's own, for threads; try again later when told so."""

    def post(event_type: str, **data: Any) -> HttpResponse:
        response = HttpResponse(status=503)
        for _ in range(TRIES):
            response = Deliver(Client())(event_type, **data)
            if response.status_code != 503:
                break
        return response

    return post


Post = Callable[..., HttpResponse]


# Many at once ---------------------------------------------------------------------------------------------------------


def test_thirty_copies_of_one_event(post: Post, books: Books) -> None:
    """Thirty simultaneous copies: one booking, thirty identical answers."""
    event = {"event_id": "evt_1", "payment": "pay_1", "account": "merchant-1", "amount": 10_000}

    answers = at_once([lambda: post("payment.captured", **event)] * 30)

    assert {(a.status_code, a.content, str(sorted(a.headers.items()))) for a in answers} == {
        (200, b'{"event": "evt_1", "outcome": "applied"}', str(sorted(answers[0].headers.items())))
    }
    assert books() == {"merchant-1 IDR": 10_000, "receivable:demo IDR": 10_000}
    assert (models.Claim.objects.count(), models.Event.objects.count(), models.Transfer.objects.count()) == (1, 1, 1)


def test_thirty_captures_on_one_account(post: Post, books: Books) -> None:
    """Thirty simultaneous different captures of 10,000 on one account: exactly 300,000."""
    works = [
        lambda n=n: post("payment.captured", payment=f"pay_{n}", account="merchant-1", amount=10_000) for n in range(30)
    ]

    assert {outcome(answer) for answer in at_once(works)} == {"applied"}
    assert books() == {"merchant-1 IDR": 300_000, "receivable:demo IDR": 300_000}


def test_thirty_captures_of_one_payment(post: Post, books: Books) -> None:
    """The same on one payment: its row's totals lose nothing either."""
    works = [
        lambda n=n: post("payment.captured", payment="pay_1", capture=str(n), account="merchant-1", amount=10_000)
        for n in range(30)
    ]

    assert {outcome(answer) for answer in at_once(works)} == {"applied"}
    assert books() == {"merchant-1 IDR": 300_000, "receivable:demo IDR": 300_000}
    assert models.Payment.objects.get().captured == 300_000


def test_thirty_events_of_one_fact(post: Post, books: Books) -> None:
    """Thirty event ids that tell the same capture: one is applied, the others are duplicates, and seen."""
    works = [
        lambda n=n: post("payment.captured", event_id=f"evt_{n}", payment="pay_1", account="merchant-1", amount=10_000)
        for n in range(30)
    ]

    assert sorted(outcome(answer) for answer in at_once(works)) == ["applied"] + ["duplicate"] * 29
    assert books() == {"merchant-1 IDR": 10_000, "receivable:demo IDR": 10_000}
    assert models.Sighting.objects.count() == 29


def test_same_id_with_another_amount_at_the_same_instant(post: Post, books: Books) -> None:
    """One of two contents is booked; the other is refused by name, kept, and answered the same when it comes again."""
    event = {"event_id": "evt_1", "payment": "pay_1", "account": "merchant-1"}
    works = [partial(post, "payment.captured", amount=amount, **event) for amount in (100, 200)]

    answers = at_once(works)

    assert sorted(answer.status_code for answer in answers) == [200, 422]
    won, lost = sorted(answers, key=lambda answer: answer.status_code)
    assert json.loads(lost.content)["differing_fields"] == ["data.amount"]
    assert books()["merchant-1 IDR"] in (100, 200)
    assert sorted(models.Event.objects.values_list("role", flat=True)) == ["conflict", "first"]
    again = [work() for work in works]
    assert sorted(answer.content for answer in again) == sorted((won.content, lost.content))


def test_burst_about_one_new_payment(post: Post, books: Books) -> None:
    """Six different events about one payment that nobody knows yet, at the same instant: all booked once."""
    data = {"payment": "pay_1", "reference": "order-1"}
    works: list[Callable[[], HttpResponse]] = [
        lambda: post("payment.pending", **data),
        lambda: post("payment.authorized", amount=10_000, **data),
        lambda: post("payment.captured", amount=10_000, account="merchant-1", **data),
        lambda: post("refund.succeeded", refund="re_1", amount=4_000, **data),
        lambda: post("refund.failed", refund="re_1", amount=4_000, **data),
        lambda: post("fee.assessed", fee="fee_1", amount=100, **data),
    ]

    assert {outcome(answer) for answer in at_once(works)} == {"applied"}
    assert books() == {"merchant-1 IDR": 10_000, "receivable:demo IDR": 9_900, "fees:demo IDR": 100}


# Told interleavings ---------------------------------------------------------------------------------------------------


def test_loser_of_a_claim_waits_and_replays(
    small_demo: None, books: Books, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two waits for the first one's COMMIT and is answered from what it committed."""
    pause = Pause(monkeypatch, outbox, "enqueue_transfers")
    event = capture("pay_1", event_id="evt_1")
    winner = Thread(lambda: settle(event))
    pause.wait_reached()
    loser = Thread(lambda: settle(capture("pay_1", event_id="evt_1")))
    wait_until_blocked(other, or_ended=loser)
    pause.go_on()

    (first,), (second,) = winner.result(), loser.result()
    assert (first.is_replay, second.is_replay) == (False, True)
    assert second.reply == first.reply
    assert books()["merchant-1 IDR"] == 10_000


def test_waiter_owns_the_claim_when_the_winner_rolls_back(
    small_demo: None, books: Books, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first one claimed and lost again is the second one's, also with other content."""
    pause = Pause(monkeypatch, outbox, "enqueue_transfers")
    winner = Thread(lambda: settle(capture("pay_1", 100, event_id="evt_1")))
    pause.wait_reached()
    loser = Thread(lambda: settle(capture("pay_1", 200, event_id="evt_1")))
    wait_until_blocked(other, or_ended=loser)
    monkeypatch.setattr(ledger, "enter", _buggy_once(ledger.enter))
    pause.go_on()

    assert outcomes(winner.result()) == ["SettlementFailed"]
    assert outcomes(loser.result()) == ["applied"]
    assert books()["merchant-1 IDR"] == 200
    assert models.Claim.objects.get().outcome == "applied"


def _buggy_once(original: Callable[..., Any]) -> Callable[..., Any]:
    first = threading.Lock()

    def buggy(*args: Any) -> Any:
        if first.acquire(blocking=False):
            raise KeyError("a bug")
        return original(*args)

    return buggy


MEETINGS: dict[str, tuple[Callable[[], Any], Callable[[], Any], dict[str, int]]] = {
    "a capture and its registration": (
        lambda: settle(capture("pay_1", account=None, reference="order-1")),
        lambda: payees.register(conf.endpoint("demo"), "order-1", Registered("merchant-6", 10_000, "IDR")),
        {"merchant-6 IDR": 10_000, "receivable:demo IDR": 10_000},
    ),
    "a payout paid and failed": (
        lambda: settle(job("payout.paid", payout="po_1", amount=500)),
        lambda: settle(job("payout.failed", payout="po_1", amount=500)),
        {},
    ),
    "a refund and its failure": (
        lambda: settle(job("refund.succeeded", payment="pay_1", refund="re_1", amount=500)),
        lambda: settle(job("refund.failed", payment="pay_1", refund="re_1", amount=500)),
        {},
    ),
    "a capture and its reversal": (
        lambda: settle(capture("pay_1")),
        lambda: settle(job("payment.reversed", payment="pay_1", amount=10_000)),
        {},
    ),
    "a dispute lost and its withdrawal": (
        lambda: settle(job("dispute.lost", payment="pay_1", dispute="dp_1", account="merchant-1", amount=500)),
        lambda: settle(job("dispute.funds_withdrawn", payment="pay_1", dispute="dp_1", amount=500)),
        {"merchant-1 IDR": -500, "receivable:demo IDR": -500},
    ),
    "two captures that name the payee and don't": (
        lambda: settle(capture("pay_1", 100, capture="a", account=None)),
        lambda: settle(capture("pay_1", 10, capture="b")),
        {"merchant-1 IDR": 110, "receivable:demo IDR": 110},
    ),
}


@pytest.mark.parametrize("name", MEETINGS)
@pytest.mark.parametrize("swapped", [False, True])
def test_facts_that_must_see_each_other_meet(
    small_demo: None, books: Books, other: Session, monkeypatch: pytest.MonkeyPatch, name: str, swapped: bool
) -> None:
    """While one stands still just before its COMMIT, the other is told: they meet all the same, in both orders."""
    one, two, balances = MEETINGS[name]
    if swapped:
        one, two = two, one
    pause = Pause(monkeypatch, ledger, "enter")
    first = Thread(one)
    pause.wait_reached()
    second = Thread(two)
    wait_until_blocked(other, or_ended=second)
    pause.go_on()
    first.result()
    second.result()

    assert books() == balances
    assert not models.Finding.objects.filter(closed_at=None).exists()


@pytest.mark.parametrize("opened_first", [False, True])
def test_capture_and_the_account_that_it_names_meet(
    small_demo: None, books: Books, other: Session, monkeypatch: pytest.MonkeyPatch, opened_first: bool
) -> None:
    """A payee's account is opened while a capture for it is being booked: its money doesn't stay in suspense."""
    works: list[Callable[[], Any]] = [
        lambda: settle(capture("pay_1", account="late")),
        lambda: payees.open_accounts([("late", "IDR", "liability")]),
    ]
    module, name = (ledger, "require_kinds") if opened_first else (ledger, "enter")
    pause = Pause(monkeypatch, module, name)
    first = Thread(works[opened_first])
    pause.wait_reached()
    second = Thread(works[not opened_first])
    wait_until_blocked(other, or_ended=second)
    pause.go_on()
    first.result()
    second.result()

    assert books() == {"late IDR": 10_000, "receivable:demo IDR": 10_000}


def test_payments_of_one_reference_meet_without_naming_it(
    small_demo: None, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two payments of one order are captured at once by events that name only the payments: together they overpay."""
    payees.register(conf.endpoint("demo"), "order-1", Registered("merchant-6", 10_000, "IDR"))
    for n in range(2):
        settle(job("payment.pending", payment=f"pay_{n}", reference="order-1"))
    pause = Pause(monkeypatch, outbox, "enqueue_transfers")
    first = Thread(lambda: settle(capture("pay_0", 6_000)))
    pause.wait_reached()
    second = Thread(lambda: settle(capture("pay_1", 5_000)))
    wait_until_blocked(other, or_ended=second)
    pause.go_on()
    first.result()
    second.result()

    assert_sound()
    opened = models.Finding.objects.filter(closed_at=None).values_list("kind", "detail__captured")
    assert list(opened) == [("overpaid", 11_000)]


# Two endpoints, one set of books --------------------------------------------------------------------------------------


def test_two_endpoints_sharing_books(small_demo: None, books: Books) -> None:
    """One gateway account posts everything to two URLs at once: each claims, the money is booked once."""
    demo = models.Endpoint.objects.get(slug="demo")
    models.Endpoint.objects.create(slug="demo-2", gateway="standard_webhooks", books=demo)
    conf.read_copy()
    twin = conf.known_endpoint("demo-2")
    assert twin is not None
    events = [capture(f"pay_{n}", event_id=f"evt_{n}") for n in range(20)]
    copies = [
        intake.Job(twin, tuple(claims.Candidate(twin, c.notice, c.verified) for c in event.candidates))
        for event in events
    ]

    one, two = at_once([lambda: settle(*events), lambda: settle(*reversed(copies))])

    assert sorted(outcomes(one) + outcomes(two)) == ["applied"] * 20 + ["duplicate"] * 20
    assert books() == {"merchant-1 IDR": 200_000, "receivable:demo IDR": 200_000}
    assert models.Claim.objects.count() == 40
