"""`retry`: kept events told again after a fix, booked once, their stored answers as they were first given."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pytest
from django.core.management import call_command
from django.db import OperationalError
from django.test import Client

from payments import booked, conf, facts, gateways, handlers, intake, models, replay
from payments.gateways import base
from tests import books, deliveries
from tests.conftest import assert_sound
from tests.deliveries import Answer, Deliver, outcome
from tests.integration import statements
from tests.integration.statements import run_apart
from tests.settling import capture, settle
from tests.unit.gateways import cases, signing

pytestmark = pytest.mark.django_db

SLUGS: Final = {
    **{name: name for name in ("adyen", "midtrans", "razorpay", "stripe", "xendit")},
    "standard_webhooks": "demo",
}
CAPTURES: Final = {
    "adyen": "AUTHORISATION__success",
    "midtrans": "settlement__card",
    "razorpay": "payment.captured__story",
    "standard_webhooks": "payment.captured__typical",
    "stripe": "payment_intent.succeeded__typical",
    "xendit": "payment.capture__captures",
}
Translate = Callable[[list[base.Notice]], list[base.Notice]]


def retry(*options: str) -> tuple[int, dict[str, Any]]:
    """Run the command; return its exit code and what it prints as JSON."""
    printed = StringIO()
    with pytest.raises(SystemExit) as exited:
        call_command("retry", *options, "--json", stdout=printed, stderr=StringIO())
    return int(exited.value.code or 0), json.loads(printed.getvalue())


def counts(**told: int) -> dict[str, Any]:
    names = ("retried", "applied", "duplicate", "ignored", "quarantined", "handlers_done", "handlers_failed")
    return {**dict.fromkeys(names, 0), "still_quarantined": [], **told}


def post(client: Client, gateway: str, body: bytes, *, event_id: str = "evt_1", at: datetime | None = None) -> Answer:
    secret = deliveries.SECRETS[SLUGS[gateway].upper()]
    signed = signing.SIGN[gateway](body, secret, at=at or datetime.now(UTC), event_id=event_id)
    return client.post(f"/webhooks/{SLUGS[gateway]}/", signed.body, "application/json", headers=signed.headers)


@contextmanager
def adapter_bug(gateway: str, spoil: Translate) -> Iterator[None]:
    """Let a gateway's adapter translate wrongly, until it is fixed."""
    adapter = type(gateways.REGISTRY[gateway])
    right = adapter.translate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "translate", lambda self, *given: spoil(right(self, *given)))
        yield


def unusable(notices: list[base.Notice]) -> list[base.Notice]:
    return [replace(notice, facts=(), ignored=None, unusable="not understood") for notice in notices]


def ignored(notices: list[base.Notice]) -> list[base.Notice]:
    return [replace(notice, facts=(), ignored="not known", unusable=None) for notice in notices]


def open_findings() -> set[tuple[str, str]]:
    return set(models.Finding.objects.filter(closed_at=None).values_list("kind", "subject"))


# The same event after an adapter's fix --------------------------------------------------------------------------------


@pytest.mark.parametrize("gateway", SLUGS)
def test_quarantined_is_booked_once_after_the_fix(small_demo: None, client: Client, gateway: str) -> None:
    """What the fixed adapter would have booked at once; every re-delivery still hears the first answer."""
    body = cases.payload(gateway, CAPTURES[gateway])
    with books.undone():
        post(client, gateway, body)
        expected = books.read()

    with adapter_bug(gateway, unusable):
        first = post(client, gateway, body)
    quarantined = books.read()
    retried = retry("--quarantined")
    again = [retry("--quarantined"), retry("--event", models.Event.objects.get().event_id)]

    assert (quarantined.payments, quarantined.balances) == ({}, {})
    assert [kind for kind, _ in quarantined.findings] == ["quarantined"]
    assert retried == (0, counts(retried=1, applied=1))
    assert again == [(0, counts()), (0, counts(retried=1, duplicate=1))]
    assert books.read() == expected
    assert post(client, gateway, body).content == first.content
    assert models.Claim.objects.get().outcome == "quarantined"
    assert not models.Sighting.objects.exists()  # nobody else has seen it


@pytest.mark.parametrize("gateway", SLUGS)
def test_ignored_is_booked_once_after_the_fix(small_demo: None, client: Client, gateway: str) -> None:
    """A type of event that the adapter learned meanwhile; told again as often as anybody likes."""
    body = cases.payload(gateway, CAPTURES[gateway])
    with books.undone():
        post(client, gateway, body)
        expected = books.read()

    with adapter_bug(gateway, ignored):
        first = post(client, gateway, body)
        unfixed = retry("--ignored")

    assert unfixed == (0, counts(retried=1, ignored=1))
    assert retry("--ignored") == (0, counts(retried=1, applied=1))
    assert retry("--ignored") == (0, counts(retried=1, duplicate=1))
    assert books.read() == expected
    assert post(client, gateway, body).content == first.content


@pytest.mark.parametrize("gateway", SLUGS)
def test_fact_that_another_event_told_meanwhile_is_a_duplicate(small_demo: None, client: Client, gateway: str) -> None:
    """After the fix the gateway tells the fact by another event first: the retry is a sighting of it."""
    body = cases.payload(gateway, CAPTURES[gateway])
    with adapter_bug(gateway, unusable):
        post(client, gateway, body)
    quarantined = models.Claim.objects.get()
    told = settled_as_another_event(gateway, body)

    code, printed = retry("--quarantined")

    assert told == "applied"
    assert (code, printed) == (0, counts(retried=1, duplicate=1))
    assert models.Sighting.objects.exclude(claim=quarantined).count() == 0
    assert models.Sighting.objects.filter(claim=quarantined).exists()
    assert books.read().findings == set()


def settled_as_another_event(gateway: str, body: bytes) -> str:
    """Settle what a body tells under another event id, as if a second event told it; return the outcome."""
    secret, endpoint = deliveries.SECRETS[SLUGS[gateway].upper()], conf.known_endpoint(SLUGS[gateway])
    assert endpoint is not None
    signed = signing.SIGN[gateway](body, secret, at=datetime.now(UTC))
    job = intake.receive(endpoint, base.Delivery(signed.headers, signed.body, datetime.now(UTC)))
    candidates = tuple(replace(one, notice=replace(one.notice, event_id="another")) for one in job.candidates)
    (answer,) = intake.settle([replace(job, candidates=candidates)], time.monotonic() + 5)
    assert not isinstance(answer, Exception)
    return answer.outcome


def test_one_item_of_a_batch_is_told_alone(small_demo: None, client: Client) -> None:
    """Adyen's batches: each item is evidence of its own, so the one that was quarantined is told without the other."""
    body = cases.payload("adyen", "batch__authorisation_and_refund")
    with books.undone():
        post(client, "adyen", body)
        expected = books.read()

    with adapter_bug("adyen", lambda notices: [notices[0], *unusable(notices[1:])]):
        response = post(client, "adyen", body)
    outcomes = list(models.Claim.objects.order_by("id").values_list("outcome", flat=True))
    evidence = [json.loads(bytes(event.body or b"")) for event in models.Event.objects.order_by("id")]
    retried = retry("--quarantined")

    assert (response.content, outcomes) == (b"[accepted]", ["applied", "quarantined"])
    assert [len(one["notificationItems"]) for one in evidence] == [1, 1]
    assert retried == (0, counts(retried=1, applied=1))
    assert books.read() == expected
    assert post(client, "adyen", body).content == b"[accepted]"


def test_wrongly_booked_stays_and_is_a_finding(small_demo: None, client: Client) -> None:
    """An adapter that read the wrong amount: telling the event again moves no money, and says what differs."""
    body = cases.payload("stripe", CAPTURES["stripe"])

    def twice_as_much(notices: list[base.Notice]) -> list[base.Notice]:
        (notice,) = notices
        (fact,) = notice.facts
        return [replace(notice, facts=(replace(fact, amount_minor=2 * (fact.amount_minor or 0)),))]

    with adapter_bug("stripe", twice_as_much):
        post(client, "stripe", body)
    booked = books.read()

    assert retry("--since", "2026-01-01") == (0, counts(retried=1, duplicate=1))
    assert books.read().balances == booked.balances
    assert [kind for kind, _ in open_findings()] == ["fact_differs"]


def test_ignored_that_turns_out_unusable_is_quarantined(small_demo: None, client: Client) -> None:
    """The fixed adapter knows that it is money, but can't use it: a finding opens, as it would have at once."""
    body = cases.payload("stripe", "transfer.created__untranslated")
    with adapter_bug("stripe", ignored):
        post(client, "stripe", body)
    event_id = models.Event.objects.get().event_id

    code, printed = retry("--ignored")

    assert (code, printed) == (1, counts(retried=1, quarantined=1, still_quarantined=[event_id]))  # type: ignore[arg-type]
    assert open_findings() == {("quarantined", f"stripe:{event_id}")}
    assert retry("--quarantined") == (code, printed)


@pytest.mark.parametrize("gateway", SLUGS)
def test_adapter_that_fails_is_quarantined_at_the_third_time(small_demo: None, client: Client, gateway: str) -> None:
    """A bug of the adapter's own: 503 while its gateway may deliver again, then evidence; booked once after the fix."""
    body = cases.payload(gateway, CAPTURES[gateway])
    with books.undone():
        post(client, gateway, body)
        expected = books.read()

    at = datetime.now(UTC)  # the same bytes each time: nothing else is known of them
    with adapter_bug(gateway, fail):
        statuses = [post(client, gateway, body, at=at).status_code for _ in range(4)]
        assert models.Claim.objects.get().outcome == "quarantined"
        assert [kind for kind, _ in open_findings()] == ["quarantined"]
    retried = retry("--quarantined")
    redelivered = post(client, gateway, body, at=at)

    assert statuses == [503, 503, 200, 200]
    assert retried == (0, counts(retried=1, applied=1))
    assert redelivered.status_code == 200
    assert books.read() == expected


# What is told again, and what isn't -----------------------------------------------------------------------------------


def test_only_the_endpoint_whose_event_is_quarantined(deliver: Deliver, client: Client) -> None:
    """Two endpoints may have events of one id."""
    models.Endpoint.objects.create(slug="other", gateway="standard_webhooks", default_payee="merchant-2")
    conf.read_copy()
    deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=10_000)
    with adapter_bug("razorpay", unusable):
        post(client, "razorpay", cases.payload("razorpay", CAPTURES["razorpay"]), event_id="evt_1")

    assert retry("--quarantined") == (0, counts(retried=1, applied=1))
    assert retry("--event", "evt_1") == (0, counts(retried=2, duplicate=2))


def test_conflicting_content_is_never_told(deliver: Deliver) -> None:
    """Another content under a known id is kept as evidence only."""
    deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=10_000)
    assert outcome(deliver("payment.captured", event_id="evt_1", payment="pay_2", amount=5)) == "422"

    assert retry("--event", "evt_1") == (0, counts(retried=1, duplicate=1))
    assert set(books.read().payments) == {"pay_1"}


def test_content_that_failed_before_the_claim_is_never_told(deliver: Deliver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first delivery failed by a bug of ours; the next one had other content, and was the one that was claimed."""
    with monkeypatch.context() as patch:
        patch.setattr(intake, "book", fail)
        first = deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=10_000)
    assert outcome(first) == "503"
    second = deliver("payment.captured", event_id="evt_1", payment="pay_2", account="merchant-1", amount=5)
    assert outcome(second) == "applied"
    assert models.Event.objects.count() == 2

    assert retry("--event", "evt_1") == (0, counts(retried=1, duplicate=1))
    assert set(books.read().payments) == {"pay_2"}


def fail(*told: Any, **given: Any) -> Any:
    raise ZeroDivisionError


def test_poison_event_is_booked_after_the_fix(deliver: Deliver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quarantined at its third failure; once the bug is fixed it is told like any other."""
    right = intake.book

    def fail_with_facts(told: Any, **given: Any) -> Any:
        return fail() if told else right(told, **given)

    with monkeypatch.context() as patch:
        patch.setattr(intake, "book", fail_with_facts)
        event = {"payment": "pay_1", "account": "merchant-1", "amount": 10_000}
        outcomes = [outcome(deliver("payment.captured", event_id="evt_1", **event)) for _ in range(4)]

    assert outcomes == ["503", "503", "quarantined", "quarantined"]
    assert retry("--quarantined") == (0, counts(retried=1, applied=1))
    assert books.read().balances[("merchant-1", "IDR")] == 10_000


def test_rival_capture_is_booked_only_by_name(small_demo: None, client: Client) -> None:
    """A second captured payment of one order may be forged: the retry of all quarantined events doesn't book it."""
    body = cases.payload("midtrans", "settlement__gopay")
    post(client, "midtrans", body)
    rival = post(client, "midtrans", cases.variant(body, transaction_id="7b2c9f10-aaaa-4bbb-8ccc-dddd00000009"))
    event_id = json.loads(rival.content)["event"]

    listed = counts(retried=1, quarantined=1, still_quarantined=[event_id])  # type: ignore[arg-type]
    assert outcome(rival) == "quarantined"
    assert retry("--quarantined") == (1, listed)
    assert retry("--since", "2026-01-01T00:00:00Z")[0] == 1
    several = list(models.Claim.objects.values_list("id", flat=True))
    assert replay.retry(replay.claimed_as(several)).still_quarantined == [event_id]
    assert len(books.read().payments) == 1
    assert retry("--event", event_id) == (0, counts(retried=1, applied=1))
    assert len(books.read().payments) == 2


def test_adyen_may_have_several_payments_of_one_order(small_demo: None, client: Client) -> None:
    """Its signature covers the payment's reference, and the merchant's may come twice: both are booked."""
    for psp in ("AUTH000000000001", "AUTH000000000002"):
        path = "notificationItems__0__NotificationRequestItem__pspReference"
        post(client, "adyen", cases.variant(cases.payload("adyen", CAPTURES["adyen"]), **{path: psp}))

    assert open_findings() == set()
    assert books.read().balances[("merchant-1", "EUR")] == 25_000


# A dry run, failures, exit codes --------------------------------------------------------------------------------------


def test_dry_run_tells_what_would_come_and_writes_nothing(small_demo: None, client: Client) -> None:
    """Applied and duplicate as they would be; not a row of any table is changed."""
    known = cases.payload("stripe", "charge.succeeded__automatic")
    with adapter_bug("stripe", unusable):
        post(client, "stripe", known)
        post(client, "stripe", cases.payload("stripe", "payout.paid__paid"))
    post(client, "stripe", cases.payload("stripe", "payment_intent.succeeded__typical"))
    before = (books.read(), tables())

    assert retry("--quarantined", "--dry-run") == (0, counts(retried=2, applied=1, duplicate=1))
    assert (books.read(), tables()) == before
    assert retry("--quarantined") == (0, counts(retried=2, applied=1, duplicate=1))


def tables() -> dict[str, int]:
    names = ("Transfer", "Entry", "Sighting", "Finding", "Event", "Claim", "OutboxMessage", "StaffAction", "Payment")
    return {name: getattr(models, name).objects.count() for name in names}


def test_event_that_fails_again_leaves_the_others_alone(
    deliver: Deliver, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug met by one event of a batch: the others are told, and staff see the one."""
    with adapter_bug("standard_webhooks", ignored):
        for number in range(3):
            event = {"payment": f"pay_{number}", "account": "merchant-1", "amount": 100}
            deliver("payment.captured", event_id=f"evt_{number}", **event)
    right = facts.business_key

    def fail_for_one(slug: str, fact: facts.Fact) -> str:
        return fail() if fact.payment == "pay_1" else right(slug, fact)

    with monkeypatch.context() as patch:
        patch.setattr(facts, "business_key", fail_for_one)
        retried = retry("--ignored")

    told = counts(retried=3, applied=2, quarantined=1, still_quarantined=["evt_1"])  # type: ignore[arg-type]
    assert retried == (1, told)
    assert open_findings() == {("quarantined", "demo:evt_1")}
    assert retry("--quarantined") == (0, counts(retried=1, applied=1))
    assert open_findings() == set()


def test_adapter_that_raises_leaves_the_others_alone(deliver: Deliver) -> None:
    """So does a bug of the adapter itself."""
    deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=100)
    with adapter_bug("standard_webhooks", fail):
        code, printed = retry("--event", "evt_1")

    assert (code, printed["still_quarantined"]) == (1, ["evt_1"])


def test_failed_handlers_run_again(deliver: Deliver, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application's handler that failed beside the booking is run again; failing again is a finding."""
    ran: list[str] = []
    broken = [True]
    monkeypatch.setattr(handlers, "_handlers", {})

    @handlers.handler("PaymentCaptured")
    def tell(told: booked.Booked) -> None:
        if broken:
            raise ValueError("not ready")
        ran.append(told.key)

    deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=100)

    assert retry("--event", "evt_1") == (1, counts(retried=1, duplicate=1, handlers_failed=1))
    broken.clear()
    assert retry("--event", "evt_1") == (0, counts(retried=1, duplicate=1, handlers_done=1))
    assert ran == ["demo:pay_1:captured"]


@pytest.mark.django_db(transaction=True)
def test_failed_handlers_of_what_no_event_told_run_again(
    small_demo: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement booked the capture, a registration moved it: there is no event to retry, and no money moves again."""
    ran: list[str] = []
    broken = [True]
    monkeypatch.setattr(handlers, "_handlers", {})

    @handlers.handler("PaymentCaptured", "Allocation")
    def tell(told: booked.Booked) -> None:
        if broken:
            raise ValueError("not ready")
        ran.append(told.key)

    statements.run("reconcile", "demo", statements.plain(tmp_path, [statements.line()]))
    statements.run("register_payment", "demo", "pay_1", "merchant-1", 10_000, "IDR")
    failed, balances = open_findings(), books.read().balances

    by_event = retry("--since", "2026-01-01")
    still_broken = retry("--handlers")
    broken.clear()
    foreseen = retry("--handlers", "--dry-run")
    ran_dry, ran[:] = list(ran), []
    open_before = open_findings()
    done = retry("--handlers")

    assert [kind for kind, _ in failed] == ["handler_failed"] * 2
    assert by_event == (0, counts())
    assert still_broken == (1, counts(handlers_failed=2))
    assert (foreseen, ran_dry, open_before) == ((0, counts(handlers_done=2)), ran, failed)
    assert (done, open_findings()) == ((0, counts(handlers_done=2)), set())
    assert ran == ["demo:pay_1:captured", "demo:pay_1:allocated:3"]
    assert retry("--handlers") == (0, counts())
    assert books.read().balances == balances


@pytest.mark.parametrize("options", [("--event", "evt_unknown"), ("--since", "yesterday")])
def test_what_cant_be_selected_exits_2(small_demo: None, options: tuple[str, str]) -> None:
    code, printed = retry(*options)

    assert (code, list(printed)) == (2, ["error"])


def test_pruned_event_exits_2(deliver: Deliver) -> None:
    """Without its body it can't be told again."""
    deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=100)
    models.Event.objects.update(body=None)

    assert retry("--event", "evt_1")[0] == 2
    assert retry("--since", "2026-01-01") == (0, counts())


def test_lost_database_exits_2_and_blames_no_event(deliver: Deliver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong with the events: run it again."""
    deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=100)

    def lose(*told: Any, **given: Any) -> Any:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(intake, "book", lose)

    assert retry("--event", "evt_1")[0] == 2
    assert open_findings() == set()


def test_no_money_is_booked_while_an_invariant_is_broken(deliver: Deliver) -> None:
    """As for deliveries: first look at what is broken."""
    deliver("payment.captured", event_id="evt_1", payment="pay_1", account="merchant-1", amount=100)
    broken = [{"kind": "currency_not_balanced", "subject": "IDR", "detail": {}}]
    models.Verification.objects.create(is_full=True, horizon=0, checked={}, broken=broken, started_at=datetime.now(UTC))

    code, printed = retry("--event", "evt_1")

    assert code == 2
    assert "currency_not_balanced" in printed["error"]


def test_many_events_in_batches(small_demo: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one transaction's worth."""
    monkeypatch.setattr(replay, "BATCH", 4)
    settle(*(capture(f"pay_{number}") for number in range(10)))

    assert retry("--since", "2026-01-01") == (0, counts(retried=10, duplicate=10))


@pytest.mark.crash
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("failpoint", "booked_by_then"),
    [
        ("after_payments", False),
        ("after_transfers", False),
        ("after_outbox", False),
        ("retry_told", False),
        ("retry_booked", True),
    ],
)
def test_killed_and_run_again_all_is_booked_once(
    small_demo: None, client: Client, failpoint: str, booked_by_then: bool
) -> None:
    """A batch and the closing of its findings are whole or not there."""
    with adapter_bug("standard_webhooks", unusable):
        for number in range(3):
            data = {"payment": f"pay_{number}", "account": "merchant-1", "amount": 100, "currency": "IDR"}
            body = deliveries.demo_body("payment.captured", data)
            assert outcome(post(client, "standard_webhooks", body, event_id=f"evt_{number}")) == "quarantined"

    killed = run_apart("retry", "--quarantined", failpoint=failpoint)

    assert killed.status == -9, killed.data
    again = 0 if booked_by_then else 3
    assert (models.Transfer.objects.count(), len(open_findings())) == (3 - again, again)
    assert retry("--quarantined") == (0, counts(retried=again, applied=again))
    assert retry("--since", "2026-01-01") == (0, counts(retried=3, duplicate=3))
    assert models.Account.objects.get(code="merchant-1", currency="IDR").balance == 300
    assert open_findings() == set()
    assert_sound()
