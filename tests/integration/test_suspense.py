"""Nobody's money: booked to suspense with its hint kept, and moved to its payee as soon as there is one."""

from collections.abc import Callable

import pytest

from payments import conf, intake, ledger, models, payees, staff
from payments.registrations import Registered
from tests.deliveries import Deliver
from tests.settling import capture, job, outcomes, settle

pytestmark = pytest.mark.django_db

Books = Callable[[], dict[str, int]]


def open_account(code: str, currency: str = "IDR", *, kind: str = "liability") -> int:
    return payees.open_accounts([(code, currency, kind)])


def test_unknown_payee_waits_in_suspense_with_its_hint(deliver: Deliver, books: Books) -> None:
    """Money for a code without an account is booked, and what was said of whose it is stays readable."""
    deliver("payment.captured", payment="pay_1", account="late", amount=10_000)

    assert books() == {"suspense:demo IDR": 10_000, "receivable:demo IDR": 10_000}
    assert models.Transfer.objects.get().account_hint == "late"
    assert models.Payment.objects.get().payee == "late"


def test_account_opened_later_gets_what_waited(deliver: Deliver, books: Books) -> None:
    """Opening the payee's account moves each waiting payment's net there, a negative one too, and only theirs."""
    deliver("payment.captured", payment="pay_1", account="late", amount=10_000)
    deliver("refund.succeeded", payment="pay_1", refund="re_1", amount=4_000)
    deliver("refund.succeeded", payment="pay_2", refund="re_2", account="late", amount=500)
    deliver("payment.captured", payment="pay_3", account="later", amount=7)
    open_account("late")
    deliver("payment.captured", payment="pay_1", capture="2", amount=1_000)

    assert books() == {"late IDR": 6_500, "suspense:demo IDR": 7, "receivable:demo IDR": 6_507}


def test_opening_again_moves_nothing_twice(deliver: Deliver, books: Books) -> None:
    """An account is opened once; asking again is no error."""
    deliver("payment.captured", payment="pay_1", account="late", amount=10_000)

    assert [open_account("late"), open_account("late")] == [1, 0]
    assert books()["late IDR"] == 10_000
    assert models.Transfer.objects.count() == 2


def test_money_waits_for_an_account_in_its_own_currency(deliver: Deliver, books: Books) -> None:
    """An account in another currency is of no use to it."""
    deliver("payment.captured", payment="pay_1", account="late", amount=10_000)
    open_account("late", "USD")

    assert books() == {"suspense:demo IDR": 10_000, "receivable:demo IDR": 10_000}


@pytest.mark.parametrize("currencies", [("USD", "IDR"), ("IDR", "USD")])
def test_money_of_a_second_currency_is_allocated_too(
    deliver: Deliver, books: Books, currencies: tuple[str, str]
) -> None:
    """A payment in rupiah that also captured dollars: each waits for its account, and gets it."""
    deliver("payment.captured", payment="pay_1", capture="a", account="late", amount=10_000)
    deliver("payment.captured", payment="pay_1", capture="b", account="late", amount=70, currency="USD")
    for currency in currencies:
        open_account("late", currency)

    assert books() == {
        "late IDR": 10_000,
        "receivable:demo IDR": 10_000,
        "late USD": 70,
        "receivable:demo USD": 70,
    }


@pytest.mark.timeout(20)
def test_account_of_another_kind_is_no_payee(deliver: Deliver, books: Books) -> None:
    """Who opens an asset under the code that money waits for gets none of it, and an answer."""
    deliver("payment.captured", payment="pay_1", account="late", amount=10_000)
    open_account("late", kind="asset")
    deliver("payment.captured", payment="pay_2", account="late", amount=1)

    assert books() == {"suspense:demo IDR": 10_001, "receivable:demo IDR": 10_001}


def test_opening_again_finishes_what_a_crash_left(
    deliver: Deliver, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the account was opened and before the money moved: the next start moves it."""
    deliver("payment.captured", payment="pay_1", account="late", amount=10_000)
    with monkeypatch.context() as patch:
        patch.setattr(intake, "book", _killed)
        with pytest.raises(KeyboardInterrupt):
            open_account("late")
    open_account("late")

    assert books() == {"late IDR": 10_000, "receivable:demo IDR": 10_000}


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("code", ["receivable:demo", "suspense:demo", "bank:demo", "fees:stripe", "fx:nobody"])
def test_endpoints_own_account_is_no_payee(deliver: Deliver, books: Books, code: str) -> None:
    """Whoever names an endpoint's own account as the payee is not paid from it; nobody can open one by that name."""
    deliver("payment.captured", payment="pay_0", account="merchant-1", amount=1)
    deliver("payment.captured", payment="pay_1", account=code, amount=10_000)
    payees.register(conf.endpoint("demo"), "order-2", Registered(code, 5, "IDR"))
    deliver("payment.captured", payment="pay_2", reference="order-2", amount=5)
    with pytest.raises(ledger.AccountDiffers):
        open_account(code)

    assert books() == {"merchant-1 IDR": 1, "suspense:demo IDR": 10_005, "receivable:demo IDR": 10_006}


def test_payee_named_by_a_later_capture_gets_all(deliver: Deliver, books: Books) -> None:
    """A capture's word has a higher rank than a refund's; what was booked before moves each time."""
    deliver("payment.captured", payment="pay_1", capture="a", amount=10_000)
    deliver("refund.succeeded", payment="pay_1", refund="re_1", account="merchant-2", amount=4_000)
    after_refund = books()
    deliver("payment.captured", payment="pay_1", capture="b", account="merchant-3", amount=1_000)

    assert after_refund == {"merchant-2 IDR": 6_000, "receivable:demo IDR": 6_000}
    assert books() == {"merchant-3 IDR": 7_000, "receivable:demo IDR": 7_000}
    keys = models.Transfer.objects.filter(kind="Allocation").order_by("key").values_list("key", flat=True)
    assert list(keys) == ["demo:pay_1:allocated:1", "demo:pay_1:allocated:2"]


def test_reversal_after_an_allocation_is_the_payees_of_now(deliver: Deliver, books: Books) -> None:
    """What was captured into suspense and moved away is taken back from who has it."""
    deliver("payment.captured", payment="pay_1", amount=10_000)
    payees.register(conf.endpoint("demo"), "pay_1", Registered("merchant-6", 10_000, "IDR"))
    deliver("payment.reversed", payment="pay_1", amount=10_000)

    assert books() == {}


def test_allocation_and_new_money_in_one_batch(deliver: Deliver, books: Books) -> None:
    """A payee named in the middle of a batch gets what was before, what comes after, and the reversal between."""
    deliver("payment.captured", payment="pay_1", capture="a", amount=10_000)
    answers = settle(
        job("payment.reversed", payment="pay_1", capture="a", amount=10_000),
        capture("pay_1", 3_000, capture="b", account="merchant-3"),
        capture("pay_1", 400, capture="c", account=None),
    )

    assert outcomes(answers) == ["applied"] * 3
    assert books() == {"merchant-3 IDR": 3_400, "receivable:demo IDR": 3_400}


def test_default_payee_without_an_account_means_suspense(deliver: Deliver, books: Books) -> None:
    """A chosen payee that can't be paid in the currency: suspense, never the next rank."""
    models.Endpoint.objects.filter(slug="demo").update(default_payee="merchant-1")
    conf.read_copy()
    settle(
        capture("pay_1", 5, account=None),
        capture("pay_2", 70, account="nobody"),
        capture("pay_3", 900, account=None, currency="XAU"),
    )

    assert books() == {
        "merchant-1 IDR": 5,
        "suspense:demo IDR": 70,
        "suspense:demo XAU": 900,
        "receivable:demo IDR": 75,
        "receivable:demo XAU": 900,
    }


def test_staff_choose_twice_and_each_account_is_opened_later(deliver: Deliver, books: Books) -> None:
    """Dollars follow two choices of staff, neither of whose accounts was open in dollars when it was made."""
    for code in ("one", "two"):
        open_account(code)
    deliver("payment.captured", payment="pay_1", amount=70, currency="USD")
    ref = (conf.endpoint("demo").books.id, "pay_1")
    for code in ("one", "two"):
        payees.allocate([ref], account=code, why=staff.Why(actor="admin", reason="asked"))
        open_account(code, "USD")

    assert books() == {"two USD": 70, "receivable:demo USD": 70}


def test_many_payments_wait_for_one_account(deliver: Deliver, books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one transaction's worth of waiting payments moves in several."""
    monkeypatch.setattr(payees, "BATCH", 7)
    settle(*(capture(f"pay_{n}", 10, account="late") for n in range(30)))
    open_account("late")

    assert books() == {"late IDR": 300, "receivable:demo IDR": 300}
