"""Staff give a payment's money an owner."""

from collections.abc import Callable

import pytest

from payments import conf, models, payees, staff
from tests.deliveries import Deliver

pytestmark = pytest.mark.django_db


def _allocate(account: str, *, reason: str = "order 7 names them") -> None:
    ref = (conf.endpoint("demo").books.id, "pay_1")
    payees.allocate([ref], account=account, why=staff.Why(actor="admin", reason=reason))


def test_allocated_money_leaves_suspense(deliver: Deliver, books: Callable[[], dict[str, int]]) -> None:
    """The payment's whole net moves by one transfer that names the action, and later facts follow it."""
    deliver("payment.captured", payment="pay_1", amount=10_000)
    deliver("refund.succeeded", payment="pay_1", refund="re_1", amount=3_000)
    _allocate("merchant-6")
    deliver("refund.succeeded", payment="pay_1", refund="re_2", amount=1_000)

    assert books() == {"merchant-6 IDR": 6_000, "receivable:demo IDR": 6_000}
    action = models.StaffAction.objects.get()
    assert models.Transfer.objects.get(kind="Allocation").key == f"demo:pay_1:staff:{action.pk}"


def test_staff_may_change_their_mind(deliver: Deliver, books: Callable[[], dict[str, int]]) -> None:
    """A second allocation moves the money again; no fact of lower rank takes it back."""
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=10_000)
    _allocate("merchant-6")
    _allocate("merchant-7")
    deliver("refund.succeeded", payment="pay_1", refund="re_1", account="merchant-2", amount=1_000)

    assert books()["merchant-7 IDR"] == 9_000


@pytest.mark.parametrize(("account", "error"), [("nobody", LookupError), ("suspense:demo", LookupError)])
def test_only_payees_can_be_given_money(deliver: Deliver, account: str, error: type[Exception]) -> None:
    """An unknown account, or an endpoint's own, is refused and nothing is recorded."""
    deliver("payment.captured", payment="pay_1", amount=10_000)

    with pytest.raises(error):
        _allocate(account)
    assert not models.StaffAction.objects.exists()


def test_allocation_needs_a_reason(deliver: Deliver) -> None:
    """Without a reason nothing happens."""
    deliver("payment.captured", payment="pay_1", amount=10_000)

    with pytest.raises(ValueError, match="reason"):
        _allocate("merchant-6", reason=" ")
