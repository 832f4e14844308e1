"""What facts mean: histories worked out by hand, in every order, and the rules at their edges."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from django.db import transaction

from payments import conf, intake, models
from payments.money import AMOUNT_MINOR_MAX
from payments.registrations import Registered
from tests.books import undone
from tests.deliveries import Deliver, outcome
from tests.settling import capture, job, outcomes, settle
from tests.steps import OCCURRED_AT, Register, Said, Step, book, play

pytestmark = pytest.mark.django_db

Books = Callable[[], dict[str, int]]
IDR: Final[dict[str, Any]] = {"payment": "pay_1", "currency": "IDR"}


# Worked histories -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    steps: list[Step]
    balances: dict[str, int]
    payment: dict[str, Any]
    findings: tuple[str, ...] = ()
    transfers: int | None = None
    slug: str = "demo"


HISTORIES: Final = {
    "total 200, its only refund fails, no capture yet": History(
        [
            Said("refunded.total", amount=200, **IDR),
            Said("refund.succeeded", id="a", amount=200, **IDR),
            Said("refund.failed", id="a", amount=200, **IDR),
        ],
        {},
        {"refunded": 0, "status": "pending"},
    ),
    "a dispute lost, and nothing else known": History(
        [Said("dispute.lost", id="d", amount=4_000, **IDR)],
        # Nobody is named, so suspense stands for the payee.
        {"suspense:demo IDR": -4_000, "receivable:demo IDR": -4_000},
        {"disputed": 4_000},
        transfers=2,
    ),
    "captured and refunded without a payee, then registered": History(
        [
            Said("payment.captured", amount=10_000, reference="order-1", **IDR),
            Said("refund.succeeded", id="a", amount=3_000, **IDR),
            Register("order-1", Registered("merchant-6", 10_000, "IDR")),
        ],
        {"merchant-6 IDR": 7_000, "receivable:demo IDR": 7_000},
        {"captured": 10_000, "refunded": 3_000, "status": "partially_refunded", "payee": "merchant-6"},
    ),
    "the endpoint's default payee, until one is registered": History(
        [
            Said("payment.captured", amount=1_000, reference="order-1", **IDR),
            Register("order-1", Registered("merchant-2", 1_000, "IDR")),
        ],
        {"merchant-2 IDR": 1_000, "receivable:stripe IDR": 1_000},
        {"captured": 1_000, "payee": "merchant-2", "payee_rank": 3},
        slug="stripe",
    ),
    "captured and cancelled": History(
        [
            Said("payment.captured", amount=1_000, account="merchant-1", **IDR),
            Said("payment.reversed", amount=1_000, **IDR),
        ],
        {},
        {"captured": 0, "status": "reversed"},
        transfers=2,
    ),
    "manual captures told as totals": History(
        [Said("captured.total", amount=300, **IDR), Said("captured.total", amount=700, **IDR)],
        {"merchant-1 IDR": 700, "receivable:stripe IDR": 700},
        {"captured": 700, "status": "captured"},
        slug="stripe",
    ),
    "a payout that failed": History(
        [
            Said("payout.paid", id="po", amount=500, currency="IDR"),
            Said("payout.failed", id="po", amount=500, currency="IDR"),
        ],
        {},
        {},
        transfers=2,
    ),
    "one of two captures reversed, and more refunded than is left": History(
        [
            Said("payment.captured", part="a", amount=4_000, account="merchant-1", **IDR),
            Said("payment.captured", part="b", amount=6_000, account="merchant-1", **IDR),
            Said("payment.reversed", part="b", amount=6_000, **IDR),
            Said("refund.succeeded", id="r", amount=5_000, **IDR),
        ],
        {"merchant-1 IDR": -1_000, "receivable:demo IDR": -1_000},
        {"captured": 4_000, "refunded": 5_000, "status": "refunded"},
        ("over_refund",),
    ),
    "withdrawn, returned, withdrawn again, lost": History(
        [
            Said("payment.captured", amount=9_000, account="merchant-1", **IDR),
            Said("dispute.funds_withdrawn", id="d", amount=4_000, **IDR),
            Said("dispute.funds_returned", id="d", amount=4_000, **IDR),
            Said("dispute.funds_withdrawn", id="d", part="2", amount=4_000, **IDR),
            Said("dispute.lost", id="d", amount=4_000, **IDR),
        ],
        {"merchant-1 IDR": 5_000, "receivable:demo IDR": 5_000},
        {"captured": 9_000, "disputed": 4_000, "status": "captured"},
    ),
    "a dispute won whose funds are still away": History(
        [
            Said("payment.captured", amount=9_000, account="merchant-1", **IDR),
            Said("dispute.opened", id="d", **IDR | {"currency": None}),
            Said("dispute.funds_withdrawn", id="d", amount=4_000, **IDR),
            Said("dispute.won", id="d", **IDR | {"currency": None}),
        ],
        {"merchant-1 IDR": 9_000, "receivable:demo IDR": 5_000, "disputes:demo IDR": 4_000},
        {"disputed": 4_000},
        ("dispute_closed_not_zero",),
    ),
    "a total of captures, of which the only one named was reversed": History(
        [Said("captured.total", amount=100, **IDR), Said("payment.reversed", part="a", amount=100, **IDR)],
        {},
        {"captured": 0, "status": "reversed"},
    ),
    "a fee in another currency, before anything else": History(
        [
            Said("fee.assessed", "pay_1", "f1", amount=30, currency="USD"),
            Said("fee.assessed", id="f2", amount=100, **IDR),
            Said("payment.captured", amount=1_000, account="merchant-1", **IDR),
        ],
        {
            "merchant-1 IDR": 1_000,
            "receivable:demo IDR": 900,
            "fees:demo IDR": 100,
            "fees:demo USD": 30,
            "receivable:demo USD": -30,
        },
        {"currency": "IDR", "fees": 100},
    ),
    "failed, expired, then captured after all": History(
        [
            Said("payment.failed", "pay_1"),
            Said("payment.expired", "pay_1"),
            Said("payment.authorized", amount=1_000, **IDR),
            Said("payment.captured", amount=1_000, account="merchant-1", **IDR),
        ],
        {"merchant-1 IDR": 1_000, "receivable:demo IDR": 1_000},
        {"authorized": 1_000, "captured": 1_000, "status": "captured"},
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_worked_history_in_any_order(small_demo: None, books: Books, name: str) -> None:
    """Whatever the order, every fact told twice: the same balances, row, findings and number of transfers."""
    history = HISTORIES[name]
    orders = list(itertools.permutations(history.steps))
    for order in orders[:: max(1, len(orders) // 24)]:
        with undone():
            play([*order, *order[::-1]], itertools.cycle([1, 2, 3]), slug=history.slug)

            assert books() == history.balances
            assert list(models.Payment.objects.values(*history.payment)) == (
                [history.payment] if history.payment else []
            )
            assert open_findings() == list(history.findings)
            assert history.transfers in (None, models.Transfer.objects.count())


def open_findings() -> list[str]:
    return list(
        models.Finding.objects.filter(closed_at=None).order_by("kind", "subject").values_list("kind", flat=True)
    )


# Contradictions: the first stands, a finding opens, in both orders ----------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (
            Said("payment.captured", amount=100, account="merchant-1", **IDR),
            Said("payment.captured", amount=200, account="merchant-1", **IDR),
            "fact_differs",
        ),
        (
            Said("payment.captured", "pay_1", amount=100, currency="IDR"),
            Said("payment.captured", "pay_1", amount=100, currency="JPY"),
            "fact_differs",
        ),
        (
            Said("refund.succeeded", "pay_1", "r", amount=100, currency="IDR"),
            Said("refund.succeeded", "pay_2", "r", amount=100, currency="IDR"),
            "fact_differs",
        ),
        (
            Said("payment.captured", part="a", amount=100, account="merchant-1", **IDR),
            Said("payment.captured", part="b", amount=100, account="merchant-2", **IDR),
            "payee_differs",
        ),
        (
            Said("payment.captured", part="a", amount=100, reference="order-1", **IDR),
            Said("payment.captured", part="b", amount=100, reference="order-2", **IDR),
            "reference_differs",
        ),
        (
            Said("payment.captured", "pay_1", part="a", amount=100, currency="IDR"),
            Said("payment.captured", "pay_1", part="b", amount=100, currency="JPY"),
            "wrong_currency",
        ),
        (
            Said("payment.captured", amount=100, **IDR),
            Said("payment.reversed", amount=99, **IDR),
            "correction_differs",
        ),
        (
            Said("refund.succeeded", "pay_1", "r", amount=100, currency="IDR"),
            Said("refund.failed", "pay_2", "r", amount=100, currency="IDR"),
            "correction_differs",
        ),
        (
            Said("refund.failed", id="r", amount=100, **IDR),
            Said("refund.failed", id="r", amount=101, **IDR),
            "correction_differs",
        ),
    ],
)
@pytest.mark.parametrize("batch_size", [1, 2])
def test_contradiction_is_a_finding_in_both_orders(
    small_demo: None, books: Books, one: Said, other: Said, kind: str, batch_size: int
) -> None:
    """Two facts that can't both be so open the same finding whichever comes first, alone or in one batch."""
    for order in ([one, other], [other, one]):
        with undone():
            play(order, itertools.repeat(batch_size))

            assert kind in open_findings()
            books()


def test_correction_of_another_amount_undoes_nothing(deliver: Deliver, books: Books) -> None:
    """A reversal of 99 of a capture of 100 moves no money, in either order."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=100)
    deliver("payment.reversed", payment="pay_1", amount=99)
    deliver("payment.reversed", payment="pay_2", amount=99)
    deliver("payment.captured", payment="pay_2", account="merchant-1", amount=100)

    assert books()["merchant-1 IDR"] == 200
    assert open_findings() == ["correction_differs"] * 2


def test_other_currency_books_in_its_own_and_stays_out_of_the_totals(deliver: Deliver, books: Books) -> None:
    """Money in a second currency reaches the payee in that currency; the payment's totals count the first alone."""
    deliver("payment.captured", payment="pay_1", capture="a", account="merchant-1", amount=10_000)
    deliver("payment.captured", payment="pay_1", capture="b", amount=70, currency="USD")
    deliver("refund.succeeded", payment="pay_1", refund="r", amount=30, currency="USD")

    assert books() == {
        "merchant-1 IDR": 10_000,
        "receivable:demo IDR": 10_000,
        "merchant-1 USD": 40,
        "receivable:demo USD": 40,
    }
    payment = models.Payment.objects.get()
    assert (payment.currency, payment.captured, payment.refunded) == ("IDR", 10_000, 0)
    assert open_findings() == ["wrong_currency"]


# Refunds --------------------------------------------------------------------------------------------------------------


def test_refund_without_capture_books_and_is_no_finding_yet(deliver: Deliver, books: Books) -> None:
    """A refund may overtake its capture: it books at once, and nobody is called."""
    deliver("refund.succeeded", payment="pay_1", refund="re_1", account="merchant-1", amount=100)

    assert books() == {"merchant-1 IDR": -100, "receivable:demo IDR": -100}
    assert open_findings() == []


def test_over_refund_opens_and_heals(deliver: Deliver) -> None:
    """More refunded than captured is a finding while it is so; it comes back when it is so again."""
    deliver("payment.captured", payment="pay_1", capture="a", account="merchant-1", amount=100)
    deliver("refund.succeeded", payment="pay_1", refund="re_1", amount=150)
    opened = models.Finding.objects.get()
    deliver("payment.captured", payment="pay_1", capture="b", amount=100)
    healed = models.Finding.objects.get()
    deliver("payment.reversed", payment="pay_1", capture="b", amount=100)
    again = models.Finding.objects.get()

    assert (opened.kind, opened.closed_at) == ("over_refund", None)
    assert (healed.closed_by, healed.close_reason) == ("system", "healed")
    assert again.closed_at is None
    assert again.pk == opened.pk


def test_failed_beats_succeeded_for_ever(deliver: Deliver, books: Books) -> None:
    """After a failure no repetition of the success books anything."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=100)
    deliver("refund.failed", payment="pay_1", refund="re_1", amount=60)
    answers = [deliver("refund.succeeded", payment="pay_1", refund="re_1", amount=60) for _ in range(3)]

    assert [outcome(answer) for answer in answers] == ["applied", "duplicate", "duplicate"]
    assert books() == {"merchant-1 IDR": 100, "receivable:demo IDR": 100}


# Ids ------------------------------------------------------------------------------------------------------------------

# Characters that mean something to business keys, array literals, SQL, JSON or a terminal.
ODD_IDS: Final = [
    "a",
    "a:b",
    "a%3Ab",
    "a%253Ab",
    "%",
    ":",
    "::",
    "NULL",
    "null",
    '"',
    '""',
    "\\",
    '\\"',
    "{}",
    "{a,b}",
    "a,b",
    "'; --",
    "%s",
    " a",
    "a ",
    "A",
    "é",
    "e\u0301",
    "😀",
    "x" * 255,
]


def test_odd_ids_never_collide(deliver: Deliver, books: Books) -> None:
    """Payments, captures, refunds and references of every odd name are told apart, in one batch and after it."""
    jobs = [
        job("payment.captured", payment=one, capture=other, account="merchant-1", reference=one, amount=1)
        for one, other in itertools.product(ODD_IDS[:9], ODD_IDS[:9])
    ]
    jobs += [job("payment.captured", payment=one, account="merchant-1", amount=100) for one in ODD_IDS]
    jobs += [job("refund.succeeded", payment=one, refund=one, amount=10) for one in ODD_IDS]

    assert set(outcomes(settle(*jobs))) == {"applied"}
    assert set(outcomes(settle(*jobs))) == {"applied"}  # replays
    assert books()["merchant-1 IDR"] == 81 + 90 * len(ODD_IDS)
    assert sorted(models.Payment.objects.values_list("reference", flat=True)) == sorted(ODD_IDS)
    assert open_findings() == []


@pytest.mark.parametrize("part", ["reversed", "named"])
def test_capture_id_is_no_suffix_of_ours(small_demo: None, books: Books, part: str) -> None:
    """A capture whose id is a word that our own keys end in doesn't take the place of what follows from another."""
    book([Said("captured.total", amount=100, **IDR)])
    play(
        [
            Said("payment.captured", part=part, amount=30, account="merchant-1", **IDR),
            Said("payment.captured", amount=70, account="merchant-1", **IDR),
            Said("payment.reversed", amount=70, **IDR),
        ]
    )

    assert books() == {"merchant-1 IDR": 30, "receivable:demo IDR": 30}


@pytest.mark.parametrize("event_id", ["x", "x" * 255, " x ", "~!@#$%^&*()", '"', "\\", "{}", "NULL"])
def test_event_id_is_kept_exactly(deliver: Deliver, event_id: str) -> None:
    """1 to 255 printable ASCII characters, no trimming, no folding; the re-delivery is recognised."""
    first = deliver("payment.captured", event_id=event_id, payment="pay_1", account="merchant-1", amount=100)
    second = deliver("payment.captured", event_id=event_id, payment="pay_1", account="merchant-1", amount=100)
    other = deliver(
        "payment.captured", event_id=event_id.swapcase() + "y"[len(event_id) // 255 :], payment="pay_2", amount=100
    )

    assert first.status_code == 200
    assert second.content == first.content
    assert models.Claim.objects.earliest("id").event_id == event_id
    assert outcome(other) in ("applied", "400")


@pytest.mark.parametrize("event_id", ["", "x" * 256, "é", "a\tb"])
def test_event_id_that_is_none_is_refused(deliver: Deliver, event_id: str) -> None:
    """A header id that can't be one answers 400 and leaves nothing."""
    assert deliver("payment.captured", event_id=event_id, payment="pay_1", amount=100).status_code == 400
    assert not models.Event.objects.exists()


@pytest.mark.parametrize(
    "data",
    [
        {"payment": "x" * 255},
        {"payment": "x" * 255, "capture": ":" * 255},
        {"payment": "pay_1", "reference": "%" * 255},
        {"payment": "pay_1", "account": "x" * 255},
        {"payment": "😀" * 255, "capture": "😀" * 255, "reference": "é" * 255, "account": "😀" * 255},
    ],
)
def test_longest_ids_are_booked(deliver: Deliver, books: Books, data: dict[str, str]) -> None:
    """255 characters fit everywhere, also three times as long when escaped."""
    assert outcome(deliver("payment.captured", amount=100, **data)) == "applied"
    assert books()["receivable:demo IDR"] == 100


@pytest.mark.parametrize("name", ["payment", "capture", "reference", "account"])
def test_longer_ids_are_quarantined(deliver: Deliver, books: Books, name: str) -> None:
    """One character more is unusable: kept, not booked, and never cut."""
    data = {"payment": "pay_1", name: "x" * 256}

    assert outcome(deliver("payment.captured", amount=100, **data)) == "quarantined"
    assert books() == {}


# Amounts --------------------------------------------------------------------------------------------------------------


def test_sums_pass_what_a_bigint_holds(small_demo: None, books: Books) -> None:
    """More than a thousand of the largest amounts, in one transaction and then again: every sum stays exact."""
    captures = [
        Said("payment.captured", f"pay_{n}", amount=AMOUNT_MINOR_MAX, currency="IDR", account="merchant-1")
        for n in range(2_200)
    ]
    endpoint = conf.endpoint("demo")
    for some in (captures[:1_100], captures[1_100:]):
        with transaction.atomic():
            intake.book(intake.tell(endpoint, [one.fact for one in some], claim_id=None, source="statement"))

    assert 1_100 * AMOUNT_MINOR_MAX > 2**63
    assert books() == {"merchant-1 IDR": 2_200 * AMOUNT_MINOR_MAX, "receivable:demo IDR": 2_200 * AMOUNT_MINOR_MAX}


@pytest.mark.parametrize("currency", ["JPY", "KWD", "XXX"])
def test_amounts_are_minor_units_of_any_currency(deliver: Deliver, books: Books, currency: str) -> None:
    """No exponent is applied: 500 is 500 yen, 0.500 dinars, and 500 of what no payee has an account in."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=500, currency=currency)

    payee = "suspense:demo" if currency == "XXX" else "merchant-1"
    assert books() == {f"{payee} {currency}": 500, f"receivable:demo {currency}": 500}


def test_smallest_and_largest_amount_are_booked(deliver: Deliver, books: Books) -> None:
    """1 and 2^53-1 are amounts."""
    answers = settle(capture("pay_1", 1), capture("pay_2", AMOUNT_MINOR_MAX))

    assert outcomes(answers) == ["applied", "applied"]
    assert books()["merchant-1 IDR"] == AMOUNT_MINOR_MAX + 1


# Outcomes -------------------------------------------------------------------------------------------------------------


def test_status_only_event_is_applied_each_time(deliver: Deliver) -> None:
    """An event that names no money is never a duplicate: what it says has no key to be known by."""
    answers = [deliver("payment.failed", payment="pay_1") for _ in range(3)]

    assert [outcome(answer) for answer in answers] == ["applied"] * 3


def test_lost_dispute_makes_its_own_withdrawal_a_duplicate(deliver: Deliver, books: Books) -> None:
    """The withdrawal that a lost dispute implies is booked once, whichever tells it first."""
    lost = deliver("dispute.lost", payment="pay_1", dispute="dp_1", account="merchant-1", amount=400)
    withdrawn = deliver("dispute.funds_withdrawn", payment="pay_1", dispute="dp_1", amount=400)

    assert (outcome(lost), outcome(withdrawn)) == ("applied", "duplicate")
    assert books() == {"merchant-1 IDR": -400, "receivable:demo IDR": -400}


def test_occurred_and_recorded_are_two_times(deliver: Deliver) -> None:
    """A transfer knows when it happened in the world, and when we heard."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=100)

    transfer = models.Transfer.objects.get()
    assert transfer.occurred_at == OCCURRED_AT
    assert transfer.recorded_at != OCCURRED_AT
