"""What staff may do: with a permission, a reason and a record, and nothing else."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from payments import conf, money
from payments.models import Account, Claim, Event, Finding, OutboxMessage, Payment, StaffAction, Transfer, Verification
from tests import staff

pytestmark = pytest.mark.django_db

Deliver = Callable[..., Any]
REASON = {"reason": "  the adapter is mended  "}


@pytest.fixture
def dead(capture: Event) -> OutboxMessage:
    """A message that was given up."""
    message = OutboxMessage.objects.get()
    OutboxMessage.objects.update(state="dead", attempts=12)
    Finding.objects.create(kind="outbox_dead", subject=message.key)
    return message


@pytest.fixture
def waiting(deliver: Deliver) -> Payment:
    """A captured payment without a payee."""
    deliver("evt_2", payment="pay_2", amount=700, currency="IDR")
    return Payment.objects.get(reference="pay_2")


@pytest.fixture
def every_act(unusable: Event, dead: OutboxMessage, waiting: Payment) -> list[tuple[str, Any]]:
    """Each act with something that it can be done to."""
    finding = Finding.objects.get(kind="quarantined")
    return [
        ("retry", unusable.claim),
        ("retry-found", finding),
        ("close", finding),
        ("requeue", dead),
        ("allocate", waiting),
        ("reveal", unusable),
        ("download", unusable),
    ]


GIVEN = {**REASON, "account": "merchant-1"}


def _action() -> tuple[str, str, str, str]:
    done = StaffAction.objects.get()
    return done.actor, done.action, done.subject, done.reason


# Who may, and what it takes -------------------------------------------------------------------------------------------


def test_nobody_acts_without_the_permission(every_act: list[tuple[str, Any]], viewer: Client) -> None:
    """Neither by the page nor by a crafted POST; and no button leads there."""
    before = staff.everything()

    for name, subject in every_act:
        assert viewer.get(staff.act(name, subject)).status_code == 403
        assert viewer.post(staff.act(name, subject), GIVEN).status_code == 403
        assert "/admin/act/" not in staff.text(viewer, staff.page(subject))
    assert staff.everything() == before


def test_each_act_has_a_permission_of_its_own(every_act: list[tuple[str, Any]], client: Client) -> None:
    """Who may close findings may not allocate."""
    client.force_login(staff.member("closer", "close_finding"))

    allowed = [name for name, subject in every_act if client.get(staff.act(name, subject)).status_code == 200]

    assert allowed == ["close"]


def test_nothing_is_done_without_a_reason(every_act: list[tuple[str, Any]], operator: Client) -> None:
    """A look at the page changes nothing, nor does a reason that says nothing."""
    before = staff.everything()

    for name, subject in every_act:
        assert operator.get(staff.act(name, subject)).status_code == 200
        for reason in ("", "   ", "\0", "x" * 1001):
            assert operator.post(staff.act(name, subject), {**GIVEN, "reason": reason}).status_code == 200
    assert staff.everything() == before


def test_nothing_is_done_from_elsewhere(every_act: list[tuple[str, Any]]) -> None:
    """A form on another site has no token."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(staff.member("operator", *staff.ACTS))
    before = staff.everything()

    for name, subject in every_act:
        assert client.post(staff.act(name, subject), GIVEN).status_code == 403
    assert staff.everything() == before


@pytest.mark.parametrize("query", ["id=x", "id=1;DROP", f"id={'9' * 30}", "&".join(f"id={n}" for n in range(201))])
def test_unusable_choices_are_refused(operator: Client, query: str) -> None:
    """What can't be an id, and more than can be done at once."""
    assert operator.get(f"/admin/act/close/?{query}").status_code == 400


def test_unknown_acts_and_empty_choices_do_nothing(operator: Client) -> None:
    """Never a crash."""
    assert operator.get("/admin/act/delete/?id=1").status_code == 404
    assert "There is nothing to do." in staff.text(operator, "/admin/act/close/?id=999999")
    assert operator.post("/admin/act/close/?id=999999", REASON).status_code == 200
    assert operator.post("/admin/act/close/", REASON).status_code == 200


# Each of them ---------------------------------------------------------------------------------------------------------


def test_retry_books_what_can_be_read_now(unusable: Event, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the fix the page says what will come of it; then it is booked, and the finding closed."""
    amount_minor = money.amount_minor
    monkeypatch.setattr(money, "amount_minor", lambda value: amount_minor(int(value)))
    url = staff.act("retry", unusable.claim)

    assert "Applied: 1" in staff.text(operator, url)
    answer = operator.post(url, REASON)

    assert answer["Location"] == staff.page(unusable)
    assert Transfer.objects.get().key == "demo:pay_bad:captured"
    assert Finding.objects.get().closed_by == "system"
    assert _action() == ("operator", "retry", "demo:evt_bad", "the adapter is mended")
    assert Claim.objects.get().outcome == "quarantined"


def test_retry_of_what_is_still_unusable_is_recorded_too(unusable: Event, operator: Client) -> None:
    """Somebody tried, and it is known that they did."""
    answer = operator.post(staff.act("retry", unusable.claim), REASON, follow=True)

    assert b"still unusable: 1" in answer.content
    assert StaffAction.objects.get().detail == {"claim": unusable.claim_id, "outcome": "quarantined"}


def test_nothing_is_booked_while_an_invariant_is_broken(unusable: Event, waiting: Payment, operator: Client) -> None:
    """The page says why."""
    Verification.objects.create(
        is_full=True, horizon=0, checked={}, broken=[{"kind": "unbalanced"}], started_at=datetime.now(UTC)
    )
    before = staff.everything()

    for url in (staff.act("retry", unusable.claim), staff.act("allocate", waiting)):
        assert b"No money is booked now: broken invariant: unbalanced" in operator.post(url, GIVEN).content
    assert staff.everything() == before
    conf.forget_copy()


def test_closing_a_finding_says_who_and_why(conflict: Event, operator: Client) -> None:
    """On the finding, in the record, and on the event's page."""
    finding = Finding.objects.get()

    operator.post(staff.act("close", finding), REASON)

    finding.refresh_from_db()
    assert finding.closed_at is not None
    assert (finding.closed_by, finding.close_reason) == ("operator", "the adapter is mended")
    assert _action() == ("operator", "close", "demo:evt_1", "the adapter is mended")
    text = staff.text(operator, staff.page(conflict))
    assert "Finding closed" in text
    assert "the adapter is mended" in text


def test_closed_findings_are_left_alone(conflict: Event, unusable: Event, operator: Client) -> None:
    """Of two that were chosen, the page counts the one that is open."""
    Finding.objects.filter(kind="conflict").update(closed_at=datetime.now(UTC), closed_by="somebody")
    url = staff.act("close", *Finding.objects.all())

    text = staff.text(operator, url)
    operator.post(url, REASON)

    assert "Chosen: 1" in text
    assert "Left alone, because it isn't for that: 1" in text
    assert StaffAction.objects.get().subject == "demo:evt_bad"
    assert Finding.objects.get(kind="conflict").closed_by == "somebody"


def test_requeued_messages_get_all_their_tries_again(dead: OutboxMessage, operator: Client) -> None:
    """Due now, under the same key."""
    operator.post(staff.act("requeue", dead), REASON)

    message = OutboxMessage.objects.get()
    assert (message.key, message.state, message.attempts) == (dead.key, "ready", 0)
    assert _action()[:3] == ("operator", "requeue", dead.key)


def test_allocated_money_moves_to_the_payee(waiting: Payment, operator: Client) -> None:
    """By a transfer that names the action."""
    operator.post(staff.act("allocate", waiting), GIVEN)

    assert Account.objects.get(code="merchant-1").balance == 700
    assert Account.objects.get(code="suspense:demo").balance == 0
    action = StaffAction.objects.get()
    assert Transfer.objects.get(kind="Allocation").key == f"demo:pay_2:staff:{action.pk}"
    assert "the adapter is mended" in staff.text(operator, staff.page(waiting))


def test_how_much_will_move_is_said_before(
    waiting: Payment, deliver: Deliver, operator: Client, settings: Settings
) -> None:
    """In each currency, for all that was chosen."""
    deliver("evt_3", payment="pay_3", amount=300, currency="IDR")
    deliver("evt_4", payment="pay_4", amount=500, currency="JPY")

    url = staff.act("allocate", *Payment.objects.order_by("pk"))

    assert "If it is done now: IDR 10,00, JPY 500 will move." in staff.text(operator, url)
    operator.post(staff.act("allocate", waiting), GIVEN)
    again = staff.text(operator, staff.act("allocate", waiting))
    assert "If it is done now: IDR 7,00 will move. It is taken from merchant-1." in again
    settings.PAYMENTS_ALLOCATION_SECOND_PERSON = True
    assert "JPY 500 will move once another person has approved it." in staff.text(operator, url)


@pytest.mark.parametrize("account", ["nobody", "receivable:demo", "suspense:demo", "", " "])
def test_money_is_allocated_to_payees_only(waiting: Payment, operator: Client, account: str) -> None:
    """With an account in the payment's currency."""
    before = staff.everything()

    answer = operator.post(staff.act("allocate", waiting), {**REASON, "account": account})

    assert answer.status_code == 200
    assert b"errorlist" in answer.content
    assert staff.everything() == before


def test_money_that_has_an_owner_is_not_allocated(capture: Event, operator: Client) -> None:
    """What a gateway said of the payee is not staff's to change."""
    payment = Payment.objects.get()
    before = staff.everything()

    answer = operator.post(staff.act("allocate", payment), {**REASON, "account": "merchant-2"})

    assert b"There is nothing to do." in answer.content
    assert staff.everything() == before


# Two people -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(waiting: Payment, operator: Client, settings: Settings) -> Finding:
    """An allocation that one person asked for."""
    settings.PAYMENTS_ALLOCATION_SECOND_PERSON = True
    operator.post(staff.act("allocate", waiting), GIVEN)
    return Finding.objects.get(kind="allocation_asked")


def test_allocation_waits_for_a_second_person(asked: Finding, operator: Client) -> None:
    """Nothing is moved; who asked, for what and why is there to be seen, and is recorded."""
    before = staff.everything()

    text = staff.text(operator, staff.act("approve", asked))
    refused = operator.post(staff.act("approve", asked), REASON)

    assert "To merchant-1, asked for by operator: the adapter is mended" in text
    assert b"You asked for it yourself" in refused.content
    assert staff.everything() == before
    assert not Transfer.objects.filter(kind="Allocation").exists()
    assert _action() == ("operator", "allocation-asked", "demo:pay_2", "the adapter is mended")
    assert staff.page(asked) in staff.text(operator, staff.page(Payment.objects.get()))


def test_second_person_approves(asked: Finding, client: Client) -> None:
    """Then the money moves, in the names of both."""
    client.force_login(staff.member("second", *staff.ACTS))

    client.post(staff.act("approve", asked), {"reason": "seen the order"})

    assert Account.objects.get(code="merchant-1").balance == 700
    asked.refresh_from_db()
    assert asked.closed_at is not None
    done = StaffAction.objects.get(action="allocate")
    assert (done.actor, done.reason) == ("second", "seen the order (asked for by operator: the adapter is mended)")


def test_second_person_declines(asked: Finding, waiting: Payment, client: Client, operator: Client) -> None:
    """By closing the finding; and the first may ask again."""
    client.force_login(staff.member("second", *staff.ACTS))

    client.post(staff.act("close", asked), {"reason": "not theirs"})

    assert b"There is nothing to do." in client.post(staff.act("approve", asked), REASON).content
    assert not Transfer.objects.filter(kind="Allocation").exists()
    client.post(staff.act("allocate", waiting), {**GIVEN, "account": "merchant-2"})
    asked.refresh_from_db()
    assert (asked.closed_at, asked.detail["account"]) == (None, "merchant-2")


def test_events_are_retried_from_their_findings(unusable: Event, operator: Client) -> None:
    """Those that are open are what is still to be mended."""
    finding = Finding.objects.get()
    url = staff.act("retry-found", finding)

    assert "still unusable: 1" in staff.text(operator, url)
    operator.post(url, REASON)

    assert _action()[:3] == ("operator", "retry", "demo:evt_bad")


@pytest.mark.django_db(transaction=True)  # savepoints would count, and a service has none there
@pytest.mark.parametrize("name", ["retry", "retry-found"])
def test_many_are_retried_in_as_many_queries_as_few(
    name: str, deliver: Deliver, operator: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To foresee it, and to do it with a record for each."""
    settings.PAYMENTS_OUTBOX = {}
    deliver("evt_0", payment="pay_0", amount=1, currency="IDR", account="merchant-1")
    for n in range(1, 61):
        deliver(f"evt_{n}", payment=f"pay_{n}", amount="100", currency="IDR", account="merchant-1")
    amount_minor = money.amount_minor
    monkeypatch.setattr(money, "amount_minor", lambda value: amount_minor(int(value)))
    claims = Claim.objects.filter(outcome="quarantined").order_by("pk")
    rows = list(claims if name == "retry" else Finding.objects.order_by("pk"))
    few, many = staff.act(name, *rows[:2]), staff.act(name, *rows[10:])

    foreseen = [_queries(partial(operator.get, url)) for url in (few, many)]
    done = [_queries(partial(operator.post, url, REASON)) for url in (few, many)]

    assert foreseen[0] == foreseen[1] <= staff.QUERIES_MAX
    assert done[0] == done[1]
    assert Transfer.objects.count() == 53
    assert StaffAction.objects.filter(action="retry").count() == 52


def _queries(ask: Callable[[], Any]) -> int:
    with CaptureQueriesContext(connection) as queries:
        assert ask().status_code in (200, 302)
    return len(queries)


# Lists ----------------------------------------------------------------------------------------------------------------


def test_list_leads_to_the_page_that_asks_why(conflict: Event, unusable: Event, operator: Client) -> None:
    """With all that was chosen; the list itself does nothing."""
    findings = list(Finding.objects.order_by("pk"))
    before = staff.everything()
    form = {"action": "close", "index": "0", "_selected_action": [finding.pk for finding in findings]}

    answer = operator.post("/admin/payments/finding/", form)

    assert answer["Location"] == staff.act("close", *findings)
    assert "Chosen: 2" in staff.text(operator, answer["Location"])
    assert staff.everything() == before


@pytest.mark.parametrize(
    "form", [*({"action": name} for name in ("delete_selected", "retry", "")), {"select_across": 1}]
)
def test_lists_know_no_other_act(conflict: Event, operator: Client, form: dict[str, Any]) -> None:
    """However the form is crafted."""
    before = staff.everything()

    answer = operator.post("/admin/payments/finding/", {"index": 0, "_selected_action": 1, **form})

    assert answer.status_code == 403
    assert staff.everything() == before


# Groups ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "is_allowed"), [("payments viewers", False), ("payments operators", True)])
def test_groups_come_with_the_migrations(
    every_act: list[tuple[str, Any]], client: Client, group: str, is_allowed: bool
) -> None:
    """Both see everything; operators act."""
    user = User.objects.create_user("member", is_staff=True)
    user.groups.add(Group.objects.get(name=group))
    client.force_login(user)

    for model in staff.all_models():
        assert client.get(f"/admin/payments/{model._meta.model_name}/").status_code == 200, model
    for name, subject in every_act:
        assert (client.get(staff.act(name, subject)).status_code == 200) == is_allowed, name
