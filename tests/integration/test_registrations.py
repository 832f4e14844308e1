"""What the application expects of a merchant's reference, told before or after the gateway's facts."""

import itertools
from collections.abc import Callable

import pytest

from payments import claims, conf, intake, models, payees
from payments.registrations import Registered, RegistrationDiffers
from tests.books import undone
from tests.deliveries import Deliver
from tests.settling import capture, job, outcomes, settle
from tests.steps import Register, Said, Step, play

pytestmark = pytest.mark.django_db

Books = Callable[[], dict[str, int]]


def register(
    account: str = "merchant-6", amount: int = 10_000, currency: str = "IDR", *, reference: str = "order-1"
) -> None:
    payees.register(conf.endpoint("demo"), reference, Registered(account, amount, currency))


def open_findings() -> dict[str, dict[str, object]]:
    return {one.kind: one.detail for one in models.Finding.objects.filter(closed_at=None)}


def test_registration_before_its_capture(deliver: Deliver, books: Books) -> None:
    """Registered in advance, the money goes to its payee at once, without a detour."""
    register()
    deliver("payment.captured", payment="pay_1", reference="order-1", amount=10_000)

    assert books() == {"merchant-6 IDR": 10_000, "receivable:demo IDR": 10_000}
    assert models.Transfer.objects.count() == 1
    assert open_findings() == {}


def test_registration_after_its_capture(deliver: Deliver, books: Books) -> None:
    """Registered afterwards, the payment's whole net moves from suspense by one transfer."""
    deliver("payment.captured", payment="pay_1", reference="order-1", amount=10_000)
    deliver("refund.succeeded", payment="pay_1", refund="re_1", amount=3_000)
    register()

    assert books() == {"merchant-6 IDR": 7_000, "receivable:demo IDR": 7_000}
    allocation = models.Transfer.objects.get(kind="Allocation")
    assert (allocation.key, allocation.amount, allocation.source) == ("demo:pay_1:allocated:3", 7_000, "system")


def test_payment_without_a_reference_is_registered_by_its_id(deliver: Deliver, books: Books) -> None:
    """Where the merchant's reference isn't named, the gateway's stands in for it."""
    register(reference="pay_1")
    deliver("payment.captured", payment="pay_1", amount=10_000)

    assert books()["merchant-6 IDR"] == 10_000


def test_registration_again_changes_nothing(deliver: Deliver, books: Books) -> None:
    """The same again is the same; other arguments are refused, and nothing of them is there."""
    deliver("payment.captured", payment="pay_1", reference="order-1", amount=10_000)
    register()
    register()
    for other in (("merchant-7", 10_000, "IDR"), ("merchant-6", 9_999, "IDR"), ("merchant-6", 10_000, "JPY")):
        with pytest.raises(RegistrationDiffers) as caught:
            register(*other)
        assert caught.value.known == Registered("merchant-6", 10_000, "IDR")

    assert books() == {"merchant-6 IDR": 10_000, "receivable:demo IDR": 10_000}
    assert models.Registration.objects.count() == 1


def test_registration_beats_what_a_capture_names(deliver: Deliver, books: Books) -> None:
    """A registered payee has the higher rank, before and after; that a capture named another is no finding."""
    register(reference="before")
    deliver("payment.captured", payment="pay_1", reference="before", account="merchant-1", amount=10_000)
    deliver("payment.captured", payment="pay_2", reference="after", account="merchant-1", amount=10_000)
    register(reference="after")

    assert books() == {"merchant-6 IDR": 20_000, "receivable:demo IDR": 20_000}
    assert open_findings() == {}


@pytest.mark.parametrize(
    ("captured", "kind"),
    [((9_999,), "underpaid"), ((10_001,), "overpaid"), ((4_000, 5_000), "underpaid"), ((4_000, 6_001), "overpaid")],
)
def test_paid_otherwise_than_expected_is_a_finding(deliver: Deliver, captured: tuple[int, ...], kind: str) -> None:
    """All payments of one reference count together, whichever side is heard of first."""
    steps: list[Step] = [Register("order-1", Registered("merchant-6", 10_000, "IDR"))]
    steps += [
        Said("payment.captured", f"pay_{n}", amount=amount, currency="IDR", reference="order-1")
        for n, amount in enumerate(captured)
    ]
    for order in itertools.permutations(steps):
        with undone():
            play(order)
            assert open_findings() == {kind: {"expected": 10_000, "currency": "IDR", "captured": sum(captured)}}


def test_findings_of_a_reference_heal(deliver: Deliver) -> None:
    """Underpaid, then paid in full by a second payment, overpaid by a third, which is reversed."""
    register()
    seen = []
    for event_type, payment, amount in (
        ("captured", "pay_1", 4_000),
        ("captured", "pay_2", 6_000),
        ("captured", "pay_3", 1),
        ("reversed", "pay_3", 1),
    ):
        deliver(f"payment.{event_type}", payment=payment, reference="order-1", amount=amount)
        seen.append(list(open_findings()))

    assert seen == [["underpaid"], [], ["overpaid"], []]


def test_payment_told_without_its_reference_still_counts(deliver: Deliver) -> None:
    """A later fact need not name the reference again: the payment is known by it."""
    register()
    deliver("payment.authorized", payment="pay_1", reference="order-1", amount=10_001)
    deliver("payment.captured", payment="pay_1", amount=10_001)

    assert list(open_findings()) == ["overpaid"]


def test_paid_in_another_currency_is_a_finding(deliver: Deliver, books: Books) -> None:
    """Other money than expected counts for nothing, reaches the payee in its own currency, and heals when reversed."""
    register()
    deliver("payment.captured", payment="pay_1", reference="order-1", amount=10_000, currency="JPY")
    during = open_findings()
    balances = books()
    deliver("payment.reversed", payment="pay_1", amount=10_000, currency="JPY")

    assert during == {"paid_in_other_currency": {"expected": 10_000, "currency": "IDR", "captured": 0}}
    assert balances == {"merchant-6 JPY": 10_000, "receivable:demo JPY": 10_000}
    assert open_findings() == {}


def test_nothing_captured_yet_is_no_finding(deliver: Deliver) -> None:
    """An expected payment that hasn't come is not underpaid; nor is one that was reversed whole."""
    register()
    deliver("payment.authorized", payment="pay_1", reference="order-1", amount=5_000)
    deliver("payment.captured", payment="pay_1", amount=5_000)
    deliver("payment.reversed", payment="pay_1", amount=5_000)

    assert open_findings() == {}


def test_registration_allocates_all_payments_of_its_reference(deliver: Deliver, books: Books) -> None:
    """Ten payments of one order, captured in one batch, move together."""
    settle(*(capture(f"pay_{n}", 1_000, account=None, reference="order-1") for n in range(10)))
    register()

    assert books() == {"merchant-6 IDR": 10_000, "receivable:demo IDR": 10_000}
    assert models.Transfer.objects.filter(kind="Allocation").count() == 10


def test_reference_of_another_endpoint_is_another(deliver: Deliver, books: Books) -> None:
    """Two gateways may know the same order number: a registration is of one endpoint's books."""
    payees.register(conf.endpoint("stripe"), "order-1", Registered("merchant-6", 10_000, "IDR"))
    deliver("payment.captured", payment="pay_1", reference="order-1", amount=10_000)

    assert books() == {"suspense:demo IDR": 10_000, "receivable:demo IDR": 10_000}


def test_endpoints_that_share_books_share_registrations(deliver: Deliver, books: Books) -> None:
    """Two URLs of one gateway account keep their claims apart and share keys, payments, accounts and registrations."""
    demo = models.Endpoint.objects.get(slug="demo")
    models.Endpoint.objects.create(slug="demo-2", gateway="standard_webhooks", books=demo)
    conf.read_copy()
    payees.register(conf.endpoint("demo-2"), "order-1", Registered("merchant-6", 10_000, "IDR"))

    first = settle(capture("pay_1", account=None, reference="order-1", event_id="evt_1"))
    twin = conf.known_endpoint("demo-2")
    assert twin is not None
    told_again = job("payment.captured", event_id="evt_1", payment="pay_1", amount=10_000, reference="order-1")
    candidates = tuple(claims.Candidate(twin, one.notice, one.verified) for one in told_again.candidates)
    second = settle(intake.Job(twin, candidates))

    assert (outcomes(first), outcomes(second)) == (["applied"], ["duplicate"])
    assert books() == {"merchant-6 IDR": 10_000, "receivable:demo IDR": 10_000}
    assert models.Claim.objects.count() == 2


def test_finding_of_a_reference_heals_when_the_payment_turns_out_to_have_another(deliver: Deliver) -> None:
    """Underpaid by its id, until the gateway names the order that the payment is for."""
    register(reference="pay_1")
    deliver("payment.captured", payment="pay_1", amount=9_000)
    before = list(open_findings())
    deliver("payment.authorized", payment="pay_1", reference="order-1", amount=9_000)

    assert before == ["underpaid"]
    assert open_findings() == {}


def test_both_references_of_a_payment_are_registered(deliver: Deliver, books: Books) -> None:
    """First by its id, then by the order that is named later: each time its money moves to who is registered."""
    deliver("payment.captured", payment="pay_1", amount=10_000)
    register("merchant-6", reference="pay_1")
    deliver("payment.authorized", payment="pay_1", reference="order-1", amount=10_000)
    between = books()
    register("merchant-7", reference="order-1")

    assert between == {"suspense:demo IDR": 10_000, "receivable:demo IDR": 10_000}
    assert books() == {"merchant-7 IDR": 10_000, "receivable:demo IDR": 10_000}


def test_reference_named_later_is_the_one_that_counts(deliver: Deliver, books: Books) -> None:
    """Registered by the payment's id, then the gateway names the order: the same end in both orders."""
    named = Said("payment.captured", "pay_1", amount=10_000, currency="IDR", reference="order-1")
    pending = Said("payment.pending", "pay_1")
    registered = Register("pay_1", Registered("merchant-6", 10_000, "IDR"))
    orders: list[list[Step]] = [[pending, registered, named], [pending, named, registered]]
    ends = []
    for order in orders:
        with undone():
            play(order)
            ends.append(books())

    assert ends[0] == ends[1]
