"""`reconcile` over what webhooks brought and what they didn't: verdicts, bookings, findings, and what a kill leaves."""

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client

from payments import conf, findings, intake, models, reconciliation, staff
from payments.reconciliation import staging
from tests import settling
from tests.deliveries import Deliver, outcome
from tests.integration.statements import AT, Ran, line, plain, run, run_apart
from tests.integration.test_stories import post
from tests.unit.gateways import cases
from tests.unit.statements.reading import PAYLOADS

pytestmark = pytest.mark.django_db(transaction=True)

Reconcile = Callable[..., Ran]
Balances = Callable[..., dict[str, int]]
DAY: Final = ("--from", "2026-11-30", "--to", "2026-12-01")
STORIES: Final = {
    "stripe": "stripe__story.csv",
    "xendit": "xendit__story.csv",
    "midtrans": "midtrans__story.csv",
    "adyen": "adyen__story.csv",
    "razorpay": "razorpay__story.json",
}


@pytest.fixture
def reconcile(small_demo: None, tmp_path: Path) -> Reconcile:
    """Reconcile the demo endpoint with a plain statement of these lines."""

    def reconcile(*lines: str, options: tuple[str, ...] = ()) -> Ran:
        return run("reconcile", "demo", plain(tmp_path, lines), *options)

    return reconcile


def sources() -> dict[str, tuple[str, list[str]]]:
    """Return of each transfer who told it first, and who told it again."""
    return {
        transfer.key: (transfer.source, sorted(transfer.sighting_set.values_list("source", flat=True)))
        for transfer in models.Transfer.objects.all()
    }


def open_findings() -> set[tuple[str, str]]:
    return set(models.Finding.objects.filter(closed_at=None).values_list("kind", "subject"))


# Verdicts -------------------------------------------------------------------------------------------------------------


def test_line_that_says_what_a_webhook_said_is_matched(deliver: Deliver, reconcile: Reconcile, books: Balances) -> None:
    """Nothing is booked; the transfer is seen by both."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    before = books()

    ran = reconcile(line(account="merchant-1"))

    assert (ran.status, ran.verdicts, ran.data["lines"]) == (0, {"matched": 1}, 1)
    assert books() == before
    assert sources() == {"demo:pay_1:captured": ("webhook", ["statement"])}


def test_line_that_no_webhook_brought_is_booked(deliver: Deliver, reconcile: Reconcile, books: Balances) -> None:
    """It is no finding. The webhook that comes after all is a duplicate."""
    ran = reconcile(line(account="merchant-1"), line("refund.succeeded", id="ref_1", amount=4_000))

    assert (ran.status, ran.verdicts) == (0, {"booked": 2})
    assert books() == {"merchant-1 IDR": 6_000, "receivable:demo IDR": 6_000}
    late = deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    assert outcome(late) == "duplicate"
    assert books() == {"merchant-1 IDR": 6_000, "receivable:demo IDR": 6_000}
    assert sources()["demo:pay_1:captured"] == ("statement", ["webhook"])


def test_second_run_finds_all_matched(reconcile: Reconcile, books: Balances) -> None:
    """Booked means booked now."""
    lines = [line(payment=f"pay_{n}", account="merchant-1") for n in range(5)]
    reconcile(*lines)
    before = books()

    ran = reconcile(*lines)

    assert (ran.status, ran.verdicts) == (0, {"matched": 5})
    assert books() == before


def test_planted_faults_are_exactly_the_findings(deliver: Deliver, reconcile: Reconcile) -> None:
    """Missing there, extra, amount, currency, payment, payee, twice, and both edges of the day."""
    for n in range(20):
        deliver("payment.captured", payment=f"pay_{n}", account="merchant-1", amount=10_000)
    for n in range(3):
        deliver("refund.succeeded", payment=f"pay_{n}", refund=f"ref_{n}", amount=1_000)
    lines = [line(payment=f"pay_{n}", account="merchant-1") for n in range(20)]
    refunds = [line("refund.succeeded", f"pay_{n}", f"ref_{n}", amount=1_000) for n in range(3)]
    del lines[0]  # pay_0: missing there
    lines[0] = line(payment="pay_1", amount=10_001)
    lines[1] = line(payment="pay_2", currency="JPY")
    lines[2] = line(payment="pay_3", account="merchant-2")
    lines.append(line(payment="pay_4", account="merchant-1"))  # a second time
    refunds[0] = line("refund.succeeded", "pay_9", "ref_0", amount=1_000)
    refunds.append(refunds[1])
    lines += [line(payment="first", at="2026-11-30T00:00:00Z"), line(payment="last", at="2026-11-30T23:59:59.999999Z")]

    ran = reconcile(*lines, *refunds)

    assert ran.findings == {
        ("missing_there", "demo:pay_0:captured"),
        ("differs", "demo:pay_1:captured"),
        ("differs", "demo:pay_2:captured"),
        ("differs", "demo:pay_3:captured"),
        ("differs", "demo:pay_4:captured"),
        ("differs", "demo:ref_0:refunded"),
        ("differs", "demo:ref_1:refunded"),
    }
    assert ran.verdicts == {"matched": 18, "booked": 2, "differs": 6, "missing_there": 1}
    assert ran.data["lines"] == 26
    assert ran.status == 1
    assert open_findings() == ran.findings
    assert (ran.data["from"], ran.data["to"]) == ("2026-11-30T00:00:00+00:00", "2026-12-01T00:00:00+00:00")


def test_dry_run_books_and_notes_nothing(deliver: Deliver, reconcile: Reconcile, books: Balances) -> None:
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    deliver("payment.captured", payment="pay_2", account="merchant-1", amount=10_000)
    before = books()

    ran = reconcile(line(amount=1), line(payment="new"), options=("--dry-run",))

    assert ran.verdicts == {"differs": 1, "missing_here": 1, "missing_there": 1}
    assert ran.status == 1
    assert books() == before
    assert open_findings() == set()
    assert models.Sighting.objects.count() == models.Reconciliation.objects.count() == 0


def test_payment_at_midnight_is_in_exactly_one_day(deliver: Deliver, reconcile: Reconcile) -> None:
    """Windows are half-open: of three days in a row only one misses it."""
    deliver.defaults["timestamp"] = None
    body = b'{"type": "payment.captured", "timestamp": "%s", "data": {"payment": "p", "amount": 5, "currency": "IDR"}}'
    deliver.raw(body % b"2026-11-30T00:00:00Z")
    missed = []

    for day in (29, 30, 31):
        begin, end = (f"2026-11-{one:02}" if one < 31 else f"2026-12-{one - 30:02}" for one in (day, day + 1))
        ran = reconcile(options=("--dry-run", "--from", begin, "--to", end))
        missed += [begin] * ran.data["missing_there"]

    assert missed == ["2026-11-30"]


def test_days_are_counted_in_the_statements_own_zone(deliver: Deliver, reconcile: Reconcile) -> None:
    """A statement of Jakarta's 30th misses nothing of what was still the 29th there."""
    body = b'{"type": "payment.captured", "timestamp": "%s", "data": {"payment": "%s", "amount": 5, "currency": "IDR"}}'
    deliver.raw(body % (b"2026-11-29T16:59:59Z", b"on_29th"))
    deliver.raw(body % (b"2026-11-29T17:00:00Z", b"on_30th"))

    ran = reconcile(line(payment="other", at="2026-11-30T12:00:00+07:00"))

    assert ran.findings == {("missing_there", "demo:on_30th:captured")}
    assert (ran.data["from"], ran.data["to"]) == ("2026-11-30T00:00:00+07:00", "2026-12-01T00:00:00+07:00")


@pytest.mark.parametrize(
    ("gateway", "offset"),
    [("stripe", "+00:00"), ("adyen", "+00:00"), ("xendit", "+07:00"), ("midtrans", "+07:00"), ("razorpay", "+05:30")],
)
def test_day_that_is_asked_for_is_one_of_the_statements(small_demo: None, gateway: str, offset: str) -> None:
    """Who types a day means it as the gateway does; whoever names a zone is believed."""
    file = PAYLOADS / STORIES[gateway]

    day = run("reconcile", gateway, file, "--dry-run", "--from", "2026-11-30", "--to", "2026-12-01")
    told = run("reconcile", gateway, file, "--dry-run", "--from", "2026-11-30T00:00:00+01:00")

    assert (day.data["from"], day.data["to"]) == (f"2026-11-30T00:00:00{offset}", f"2026-12-01T00:00:00{offset}")
    assert told.data["from"] == "2026-11-30T00:00:00+01:00"


def test_what_is_not_due_yet_is_not_missing(small_demo: None, client: Client, tmp_path: Path) -> None:
    """Stripe settles within seven days: only what is older at the window's end should be in the statement."""
    story = cases.story("stripe")
    for name in story["events"]:
        post(client, "stripe", name)
    empty = tmp_path / "empty.csv"
    empty.write_text((PAYLOADS / "stripe__story.csv").read_text().splitlines()[0] + "\n")

    soon = run("reconcile", "stripe", empty, "--from", "2026-11-01", "--to", "2026-12-07", "--dry-run")
    late = run("reconcile", "stripe", empty, "--from", "2026-11-01", "--to", "2026-12-08", "--dry-run")

    assert soon.verdicts == {}
    assert [one["explained"].get("in_settlement") for one in soon.data["summary"]] == [-500]
    assert late.verdicts["missing_there"] > 0


def test_what_an_earlier_statement_told_of_is_said_so(deliver: Deliver, reconcile: Reconcile) -> None:
    """Statements that overlap, as those of payouts do: it is missing in this one, and whoever looks need not go on."""
    deliver("payment.captured", payment="pay_1", amount=10_000)
    deliver("payment.captured", payment="pay_2", amount=10_000)
    reconcile(line(payment="pay_1"), line(payment="first"), options=DAY)

    ran = reconcile(line(payment="later"), options=DAY)

    told = {one["subject"].split(":")[1]: one["detail"].get("why", "") for one in ran.data["findings"]}
    earlier = "an earlier statement told of it"
    assert told == {"pay_1": earlier, "first": earlier, "pay_2": ""}


def test_transfer_that_was_reversed_before_any_statement_needs_no_line(deliver: Deliver, reconcile: Reconcile) -> None:
    """Original and reversal explain each other; but one that a statement told of must be told of again."""
    deliver("payment.captured", payment="never", account="merchant-1", amount=10_000)
    deliver("payment.reversed", payment="never", amount=10_000)
    deliver("payment.captured", payment="paid", account="merchant-1", amount=10_000)
    deliver("payment.reversed", payment="paid", amount=10_000)

    ran = reconcile(line(payment="paid"))

    assert ran.findings == {("missing_there", "demo:paid:captured:reversed")}
    assert ran.data["summary"][0]["unexplained"] == 0


def test_refund_told_in_a_total_is_there_when_its_line_names_it(
    small_demo: None, client: Client, tmp_path: Path
) -> None:
    """Stripe told only the sum of two refunds; the statement names one, and the other is what's missing there."""
    conf.read_copy()
    endpoint = conf.known_endpoint("stripe")
    assert endpoint is not None
    for name in ("payment_intent.succeeded__story", "charge.refunded__story"):
        post(client, "stripe", name)
    header, *lines = (PAYLOADS / "stripe__story.csv").read_text().splitlines()
    told = models.Transfer.objects.get(kind="RefundedTotal")
    file = tmp_path / "statement.csv"
    file.write_text("\n".join([header, *lines[:2], lines[3], ""]))  # 5.00 of 20.00 by name

    ran = run("reconcile", "stripe", file, "--to", "2026-12-30")

    assert ran.findings == {("missing_there", told.key)}
    assert ran.data["findings"][0]["detail"]["booked"] == {"amount": 1_500, "currency": "USD"}
    assert [one["unexplained"] for one in ran.data["summary"]] == [0]


def test_status_only_line_is_told_and_agrees(reconcile: Reconcile) -> None:
    """A line without money has nothing that could differ; what it says of a dispute is kept."""
    ran = reconcile(line(), line("dispute.opened", id="dis_1", amount="", currency=""))

    assert ran.verdicts == {"matched": 1, "booked": 1}
    assert models.Dispute.objects.get().reference == "dis_1"


def test_correction_is_matched_or_booked(deliver: Deliver, reconcile: Reconcile, books: Balances) -> None:
    """Lines that take something back: known, new, and of what nobody told."""
    for n in (1, 2):
        deliver("payment.captured", payment=f"pay_{n}", account="merchant-1", amount=10_000)
        deliver("refund.succeeded", payment=f"pay_{n}", refund=f"ref_{n}", amount=4_000)
    deliver("refund.failed", payment="pay_1", refund="ref_1", amount=4_000)
    happened = [line(payment="pay_1"), line(payment="pay_2")]
    happened += [line("refund.succeeded", f"pay_{n}", f"ref_{n}", amount=4_000) for n in (1, 2)]

    ran = reconcile(
        *happened,
        line("refund.failed", "pay_1", "ref_1", amount=4_000),
        line("refund.failed", "pay_2", "ref_2", amount=4_000),
        line("refund.failed", "pay_2", "ref_9", amount=1_000),
        line("refund.failed", "pay_2", "ref_2", amount=3_999),
    )

    assert ran.verdicts == {"matched": 5, "booked": 2, "differs": 1}
    assert books() == {"merchant-1 IDR": 20_000, "receivable:demo IDR": 20_000}
    summary = ran.data["summary"][0]
    assert (summary["unexplained"], summary["explained"]["nothing_to_correct"]) == (0, 1_000)


def test_unusable_line_is_missing_here_until_it_can_be_used(reconcile: Reconcile, books: Balances) -> None:
    """It is a finding with the line's number and the reason; the others are booked."""
    ran = reconcile(line(account="merchant-1"), line(payment="pay_2", amount="12.5"), "one field,too few")

    assert ran.verdicts == {"booked": 1, "missing_here": 2}
    assert ran.status == 1
    assert [(one["detail"]["line"], one["detail"]["why"]) for one in ran.data["findings"]] == [
        (3, "amount is not an integer of minor units from 1 to 2^53-1"),
        (4, "the line has more or fewer fields than the header"),
    ]
    assert books() == {"merchant-1 IDR": 10_000, "receivable:demo IDR": 10_000}


def test_line_that_makes_booking_fail_stops_no_other(reconcile: Reconcile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours costs that line alone."""
    original = intake.book

    def book(told: Any, **options: Any) -> Any:
        if any(one.fact.payment == "poison" for one in told):
            raise ZeroDivisionError
        return original(told, **options)

    monkeypatch.setattr(intake, "book", book)

    ran = reconcile(line(payment="pay_1"), line(payment="poison"), line(payment="pay_2"))

    assert ran.verdicts == {"booked": 2, "missing_here": 1}
    assert ran.data["findings"][0]["detail"]["why"] == "booking failed: ZeroDivisionError"


def test_lines_without_a_capture_id_are_summed(deliver: Deliver, reconcile: Reconcile, books: Balances) -> None:
    """Two captures by webhook, told in three lines; and two lines that nobody told, booked as their sum."""
    deliver("payment.captured", payment="pay_1", capture="a", account="merchant-1", amount=4_000)
    deliver("payment.captured", payment="pay_1", capture="b", account="merchant-1", amount=6_000)

    ran = reconcile(
        *(line(payment="pay_1", amount=amount) for amount in (1_000, 2_000, 7_000)),
        *(line(payment="pay_2", amount=amount, account="merchant-2") for amount in (300, 400)),
    )

    assert ran.verdicts == {"matched": 3, "booked": 2}
    assert books()["merchant-2 IDR"] == 700
    deliver("payment.captured", payment="pay_2", capture="x", account="merchant-2", amount=300)
    deliver("payment.captured", payment="pay_2", capture="y", account="merchant-2", amount=400)
    assert books()["merchant-2 IDR"] == 700


# Other gateways -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gateway", STORIES)
def test_statement_tells_the_facts_of_the_gateways_webhooks(
    small_demo: None, client: Client, gateway: str, books: Balances
) -> None:
    """After a gateway's story its statement agrees line by line: both roads know each fact by one key."""
    for name in cases.story(gateway)["events"]:
        post(client, gateway, name)
    transfers = models.Transfer.objects.count()

    ran = run("reconcile", gateway, PAYLOADS / STORIES[gateway], "--to", "2027-02-01", "--from", "2026-11-01")

    assert {"differs", "missing_there"}.isdisjoint(ran.verdicts)
    booked = list(
        models.ReconciliationLine.objects.filter(verdict="booked", is_beside=False)
        .order_by("number")
        .values_list("key", flat=True)
    )
    assert booked == {"stripe": ["stripe:txn_SekaliStoryF1:fee"], "adyen": BOOKED_OF_ADYEN}.get(gateway, [])
    assert models.Transfer.objects.count() == transfers + len(booked) + ran.data["fees_booked"]
    assert all(one["unexplained"] == 0 for one in ran.data["summary"])
    books()


BOOKED_OF_ADYEN: Final = [
    "adyen:SekaliShopNL/Transaction Fees November 2026/7/Fee:fee",
    "adyen:SekaliShopNL/7/EUR:paid",
]


@pytest.mark.parametrize("gateway", STORIES)
def test_statement_alone_books_what_the_webhooks_would_have(
    small_demo: None, client: Client, gateway: str, books: Balances
) -> None:
    """Webhooks that come after the statement of all of it move nothing more."""
    story = cases.story(gateway)
    run("reconcile", gateway, PAYLOADS / STORIES[gateway])
    first = books()
    for name in story["events"]:
        post(client, gateway, name)

    told = {key: amount for key, amount in books().items() if first.get(key) != amount}
    # What no statement tells: that a dispute is lost, and (Razorpay, Stripe) the payout that its lines are part of.
    assert {key.split(" ")[0].partition(":")[0] for key in told} <= {"merchant-1", "disputes", "bank", "receivable"}
    payment = models.Payment.objects.get(reference=story["payment"]["reference"])
    assert {name: getattr(payment, name) for name in story["payment"]} == story["payment"]


@pytest.mark.parametrize(
    ("gateway", "file", "balances"),
    [
        (
            "stripe",
            "stripe__converted.csv",
            {
                "merchant-1 JPY": 500,
                "receivable:stripe JPY": 0,
                "fx:stripe JPY": -500,
                "receivable:stripe EUR": 0,
                "fx:stripe EUR": 305,
                "fees:stripe EUR": 42,
                "bank:stripe EUR": 263,
            },
        ),
        (
            "adyen",
            "adyen__converted.csv",
            {
                "merchant-1 IDR": 15_000_000,
                "receivable:adyen IDR": 0,
                "fx:adyen IDR": -15_000_000,
                "receivable:adyen EUR": 830,
                "fx:adyen EUR": 900,
                "fees:adyen EUR": 70,
            },
        ),
    ],
)
def test_conversion_moves_what_is_owed_to_the_payouts_currency(
    small_demo: None, gateway: str, file: str, balances: dict[str, int], books: Balances
) -> None:
    """Four legs: what the gateway owes us goes from one currency to the other, the difference stays visible in fx."""
    ran = run("reconcile", gateway, PAYLOADS / file)

    assert (ran.data["conversions_booked"], ran.data["differs"]) == (2, 0)
    assert books() == {key: amount for key, amount in balances.items() if amount}
    assert all(one["unexplained"] == one["difference"] == 0 for one in ran.data["summary"])
    again = run("reconcile", gateway, PAYLOADS / file)
    assert (again.data["booked"], again.data["conversions_booked"], again.data["fees_booked"]) == (0, 0, 0)
    assert again.data["matched"] == again.data["lines"]


def test_conversion_that_bought_another_amount_is_a_finding(small_demo: None, tmp_path: Path, books: Balances) -> None:
    """A corrected report of the same lines: what was sold agrees, what came of it doesn't, and it says both amounts."""
    run("reconcile", "stripe", PAYLOADS / "stripe__converted.csv")
    booked = books()
    text = (PAYLOADS / "stripe__converted.csv").read_text()
    corrected = tmp_path / "corrected.csv"
    corrected.write_text(text.replace("eur,6.10,0.42,5.68,", "eur,6.20,0.42,5.78,"))

    ran = run("reconcile", "stripe", corrected)

    assert (ran.status, ran.verdicts) == (1, {"matched": 3, "fees_differing": 1})
    (finding,) = ran.data["findings"]
    assert (finding["kind"], finding["subject"]) == ("fee_differs", "stripe:txn_c1:converted")
    assert finding["detail"]["why"] == "bought 6.20 EUR, here 6.10 EUR"
    assert [(one["currency"], one["difference"], one["unexplained"]) for one in ran.data["summary"]] == [
        ("EUR", 10, 0),
        ("JPY", 0, 0),
    ]
    assert books() == booked
    assert run("reconcile", "stripe", PAYLOADS / "stripe__converted.csv").status == 0
    assert open_findings() == set()


def test_fee_of_another_amount_is_a_finding_and_no_verdict(small_demo: None, client: Client, tmp_path: Path) -> None:
    """The line's own fact agrees; that the webhook told another fee is said beside it."""
    for name in cases.story("razorpay")["events"]:
        post(client, "razorpay", name)
    document = json.loads((PAYLOADS / STORIES["razorpay"]).read_text())
    document["items"] = [{**document["items"][0], "fee": 1_200}] * 2
    file = tmp_path / "statement.json"
    file.write_text(json.dumps(document))

    ran = run("reconcile", "razorpay", file)

    assert ran.verdicts == {"matched": 1, "differs": 1, "fees_differing": 1}
    assert ran.findings == {
        ("fee_differs", "razorpay:pay_SekaliStory001:fee"),
        ("differs", "razorpay:pay_SekaliStory001:captured"),  # told twice, and so its fee
    }


def test_default_payee_has_what_the_statement_brings(small_demo: None, books: Balances) -> None:
    """As with a webhook: Stripe's payments are merchant-1's unless something names another."""
    run("reconcile", "stripe", PAYLOADS / "stripe__story.csv")

    assert books()["merchant-1 USD"] == 9_000 - 2_000


# Findings -------------------------------------------------------------------------------------------------------------


def test_finding_heals_when_a_later_statement_has_the_line(deliver: Deliver, reconcile: Reconcile) -> None:
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    reconcile(options=DAY)
    assert open_findings() == {("missing_there", "demo:pay_1:captured")}

    reconcile(line())

    assert open_findings() == set()
    assert models.Finding.objects.get().closed_by == "system"


def test_finding_that_staff_closed_stays_closed(deliver: Deliver, reconcile: Reconcile) -> None:
    """The same statement, or another one that says the same, tells nothing new."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    reconcile(line(amount=9_999))
    findings.close([models.Finding.objects.get().pk], why=staff.Why(actor="admin", reason="known to the bank"))

    ran = reconcile(line(payment="other"), line(amount=9_999))

    assert ran.findings == {("differs", "demo:pay_1:captured")}
    assert open_findings() == set()


def test_finding_that_this_statement_still_bears_out_stays_open(deliver: Deliver, reconcile: Reconcile) -> None:
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    for _ in range(2):
        reconcile(line(), line())  # the second is one too many

    assert open_findings() == {("differs", "demo:pay_1:captured")}


def test_run_is_kept_with_what_a_person_wants_to_see(deliver: Deliver, reconcile: Reconcile) -> None:
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    deliver("payment.captured", payment="pay_2", account="merchant-1", amount=10_000)

    ran = reconcile(line(amount=9_000), line(payment="pay_3"))

    kept = models.Reconciliation.objects.get()
    assert kept.finished_at is not None
    assert (kept.counts["differs"], kept.counts["booked"], kept.summary) == (1, 1, ran.data["summary"])
    rows = models.ReconciliationLine.objects.order_by("id").values_list("verdict", "key", "amount", "booked_amount")
    assert list(rows) == [
        ("booked", "demo:pay_3:captured", 10_000, None),
        ("differs", "demo:pay_1:captured", 9_000, 10_000),
        ("missing_there", "demo:pay_2:captured", None, 10_000),
    ]


def test_summary_explains_the_difference_to_zero(deliver: Deliver, reconcile: Reconcile) -> None:
    """Per currency: the gateway's total, ours, and every part of what lies between."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    deliver("payment.captured", payment="pay_2", account="merchant-1", amount=20_000)
    deliver("refund.succeeded", payment="pay_2", refund="ref_1", amount=500)

    ran = reconcile(line(amount=9_000), line(payment="bad", amount="x"), line(payment="pay_1", currency="USD"))

    assert ran.data["summary"] == [
        {
            "currency": "IDR",
            "gateway": 9_000,
            "ours": 29_500,
            "difference": -20_500,
            "explained": {"differs": -1_000, "missing_there": -19_500},
            "unexplained": 0,
            "items": [],
        },
        {
            "currency": "USD",
            "gateway": 10_000,
            "ours": 0,
            "difference": 10_000,
            "explained": {"differs": 10_000},
            "unexplained": 0,
            "items": [],
        },
    ]


def test_summary_can_be_added_up_line_by_line(deliver: Deliver, tmp_path: Path) -> None:
    """As a person reads it: each reason is the sum of what stands below it, the difference that of the reasons."""
    for n in range(1, 13):  # which the statement has on the day before
        deliver("payment.captured", payment=f"pay_{n:02}", account="merchant-1", amount=n * 100_000)
    before = "2026-11-29T10:00:00Z"
    lines = [line(payment=f"pay_{n:02}", amount=n * 100_000, at=before) for n in range(1, 13)]
    file = plain(tmp_path, [*lines, line(payment="new", amount=3, at=before), line(payment="bad", amount="x")])
    out = StringIO()

    with pytest.raises(SystemExit):
        call_command("reconcile", "demo", file, "--from", "2026-11-29", "--to", "2026-11-30", stdout=out)

    told = [text for text in out.getvalue().splitlines() if text.startswith("IDR")]
    assert [re.sub("  +", " ", text) for text in told] == [
        "IDR gateway's statement 78,000.03",
        "IDR our books 0.03",
        "IDR difference 78,000.00",
        "IDR lines of what happened on other days here 78,000.00",
        *[f"IDR demo:pay_{n:02}:captured, 2026-11-30T10:00:00+00:00 {n},000.00" for n in range(1, 11)],
        "IDR and others 23,000.00",
        "IDR unexplained 0.00",
    ]
    assert "1 lines can't be used: what they move is in none of these amounts" in out.getvalue()


def test_lost_webhooks_are_reported_by_endpoint_and_day(deliver: Deliver, reconcile: Reconcile) -> None:
    """Fees beside lines have no webhook to lose; a webhook that comes late is told as such."""
    ran = reconcile(
        line(payment="pay_1", at="2026-11-29T23:59:59Z"),
        line(payment="pay_2", at="2026-11-30T00:00:00Z"),
        line("refund.succeeded", "pay_2", "ref_1", amount=1, at="2026-11-30T23:59:59Z"),
    )
    deliver("payment.captured", payment="pay_2", amount=10_000)

    days = [("demo", "2026-11-29", 1), ("demo", "2026-11-30", 2)]
    assert [(one["endpoint"], one["day"], one["facts"]) for one in ran.data["lost_webhooks"]] == days
    since = reconciliation.find_lost_webhooks()
    assert [(one["day"], one["facts"], one["told_since"]) for one in since] == [
        ("2026-11-29", 1, 0),
        ("2026-11-30", 2, 1),
    ]


# Refusals -------------------------------------------------------------------------------------------------------------


def test_second_run_at_the_same_time_exits_2(reconcile: Reconcile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_LOCK_WAIT_S", 0.0)
    with staging.opened():
        ran = reconcile(line())

    assert ran.status == 2
    assert "Another reconciliation is running" in ran.data["error"]
    assert reconcile(line()).status == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere", "{file}"), "There is no endpoint nowhere"),
        (("demo", "{folder}/none.csv"), "can't be read"),
        (("demo", "{folder}"), "can't be read"),
        (("demo", "{file}", "--format", "stripe"), "is no statement of the format stripe: the header has no column"),
        (("demo", "{file}", "--from", "yesterday"), "is not a day or a time"),
        (("demo", "{file}", "--from", "2026-12-01", "--to", "2026-12-01"), "--from is not before --to"),
        (("demo", "{file}", "--column", "amount"), "--column takes NAME=TITLE"),
        (("demo", "{file}", "--column", "amount=Gros Amount"), "the header has no column Gros Amount"),
        (("demo", "{file}", "--column", "amont=id"), "no column of plain is named amont: type, payment"),
    ],
)
def test_what_can_not_run_exits_2_and_says_why(
    small_demo: None, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    file = plain(tmp_path, [line()])
    ran = run("reconcile", *(one.format(file=file, folder=tmp_path) for one in arguments))

    assert ran.status == 2
    assert said in ran.data["error"]
    assert models.Transfer.objects.count() == models.Reconciliation.objects.count() == 0


def test_file_that_breaks_off_books_nothing(small_demo: None, tmp_path: Path) -> None:
    """It is read whole before anything of it is booked."""
    file = plain(tmp_path, [line(payment=f"pay_{n}") for n in range(100)])
    file.write_bytes(file.read_bytes() + b'payment.captured,"\xff\n')

    ran = run("reconcile", "demo", file)

    assert ran.status == 2
    assert models.Transfer.objects.count() == 0


def test_statement_without_lines_is_clean(reconcile: Reconcile) -> None:
    ran = reconcile()

    assert (ran.status, ran.data["lines"], ran.data["from"], ran.data["summary"]) == (0, 0, None, [])


# Beside live webhooks, and killed -------------------------------------------------------------------------------------


@pytest.mark.concurrency
def test_webhook_that_comes_between_comparing_and_booking_is_matched(
    reconcile: Reconcile, books: Balances, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The told interleaving: not booked when compared, booked by its webhook before the statement's turn."""

    def hit(name: str) -> None:
        if name == "reconcile_matched":
            settling.settle(settling.capture("pay_1"), settling.capture("pay_2", amount=9_999))

    monkeypatch.setattr("payments.failpoints.hit", hit)

    ran = reconcile(line(), line(payment="pay_2"), line(payment="pay_3", account="merchant-1"))

    assert ran.verdicts == {"matched": 1, "booked": 1, "differs": 1}
    assert books()["merchant-1 IDR"] == 10_000 + 9_999 + 10_000
    assert sources()["demo:pay_1:captured"] == ("webhook", ["statement"])


def test_run_whose_session_is_lost_exits_2_and_can_be_run_again(
    reconcile: Reconcile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the session go the staged lines; what was booked is known by its keys."""

    def hit(name: str) -> None:
        if name == "reconcile_booked":
            monkeypatch.undo()
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s",
                    [staging._SINGLE_FLIGHT],
                )

    monkeypatch.setattr("payments.failpoints.hit", hit)

    lost = reconcile(line())

    assert (lost.status, "the database" in lost.data["error"]) == (2, True)
    again = reconcile(line())
    assert (again.status, again.verdicts) == (0, {"booked": 1})


@pytest.mark.concurrency
@pytest.mark.usefixtures("close_connections")
def test_webhooks_and_reconciliation_racing_book_each_payment_once(reconcile: Reconcile, books: Balances) -> None:
    """Two threads of webhooks from both ends, and the statement of all: one transfer each, and each seen by both."""
    payments = 1_200
    started = threading.Event()

    def tell(numbers: Iterator[int]) -> None:
        assert started.wait(10)
        while jobs := [settling.capture(f"pay_{n}") for n in (next(numbers, None) for _ in range(20)) if n is not None]:
            for answer in settling.settle(*jobs, seconds=20.0):
                assert not isinstance(answer, Exception), answer

    half = payments // 2
    tellers = [
        threading.Thread(target=tell, args=[iter(numbers)])
        for numbers in (range(half), range(payments - 1, half - 1, -1))
    ]
    for teller in tellers:
        teller.start()
    started.set()
    ran = reconcile(*(line(payment=f"pay_{n}", account="merchant-1") for n in range(payments)))
    for teller in tellers:
        teller.join(60)

    assert ran.data["matched"] + ran.data["booked"] == payments
    assert books()["merchant-1 IDR"] == payments * 10_000
    told = sources()
    assert len(told) == payments
    assert {tuple(sorted([first, *again])) for first, again in told.values()} == {("statement", "webhook")}
    assert sum(first == "statement" for first, _ in told.values()) == ran.data["booked"]


@pytest.fixture
def twin(deliver: Deliver, client: Client) -> str:
    """A second endpoint with books of its own, to which everything is told as to the demo."""
    models.Endpoint.objects.create(slug="twin", gateway="standard_webhooks")
    conf.read_copy()
    return "twin"


@pytest.mark.crash
@pytest.mark.parametrize(
    "failpoint",
    [
        "reconcile_read",
        "reconcile_matched",
        "after_payments:1",
        "after_outbox:2",
        "reconcile_booked:1",
        "reconcile_booked:2",
        "reconcile_sighted",
        "reconcile_found",
        "reconcile_finished",
        "reconcile_kept",
    ],
)
def test_run_after_a_kill_reports_what_an_unkilled_one_reports(
    twin: str, tmp_path: Path, failpoint: str, books: Balances, settings: Any
) -> None:
    """Wherever it is killed: the same counts, findings, summary and lost webhooks, and nothing booked twice."""
    settings.PAYMENTS_SECRETS = {**settings.PAYMENTS_SECRETS, "TWIN": settings.PAYMENTS_SECRETS["DEMO"]}
    conf.read_copy()
    for slug in ("demo", twin):
        jobs = [settling.capture(f"pay_{n}", slug=slug, event_id=f"e{n}") for n in range(100)]
        settling.settle(*jobs, seconds=30.0)
    lines = [line(payment=f"pay_{n}", account="merchant-1") for n in range(1, 900)]
    lines[3] = line(payment="pay_4", amount=9_999)
    lines += [lines[5], line(payment="bad", amount="x"), line("fee.assessed", "pay_1", "fee_1", amount=7)]
    lines += [line(payment="part", amount=n, account="merchant-2") for n in (3, 4)]
    file = plain(tmp_path, lines)
    expected = run("reconcile", twin, file)

    killed = run_apart("reconcile", "demo", file, failpoint=failpoint)
    ran = run("reconcile", "demo", file)

    assert killed.status == -9, killed.data
    assert json.dumps(ran.data) == json.dumps(expected.data).replace(f'"{twin}', '"demo')
    assert (ran.status, ran.verdicts["booked"], ran.verdicts["differs"]) == (1, 803, 2)
    assert models.Reconciliation.objects.filter(endpoint__slug="demo").count() == 1
    totals = books()
    assert totals["receivable:demo IDR"] == totals["receivable:twin IDR"]


def test_report_that_nobody_read_is_told_again(reconcile: Reconcile, tmp_path: Path) -> None:
    """Whoever should have read it is gone: exit 2, and the next run says what this one would have said."""
    file = plain(tmp_path, [line(), line(payment="bad", amount="x")])
    unread, pipe = os.pipe()
    os.close(unread)

    untold = run_apart("reconcile", "demo", file, stdout=pipe)
    os.close(pipe)
    told = run("reconcile", "demo", file)
    after = run("reconcile", "demo", file)

    assert untold.status == 2
    assert told.verdicts == {"booked": 1, "missing_here": 1}
    assert after.verdicts == {"matched": 1, "missing_here": 1}


def test_finished_run_is_not_gone_on_with(reconcile: Reconcile) -> None:
    for _ in range(2):
        reconcile(line())

    assert models.Reconciliation.objects.count() == 2


def test_unfinished_run_over_another_window_is_left_alone(reconcile: Reconcile) -> None:
    """A run goes on only with one that was asked the same."""
    reconcile(line(at=AT))
    models.Reconciliation.objects.update(finished_at=None)

    ran = reconcile(line(at=AT), options=DAY)

    assert ran.verdicts == {"matched": 1}
    assert models.Reconciliation.objects.count() == 2
