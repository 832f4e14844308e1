"""`prune_events`: old bodies are forgotten; what they were claimed as, answered and booked stays. `prune_attempts`."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import F

from payments import claims, intake, models, retention
from tests.conftest import assert_sound
from tests.deliveries import Deliver, outcome
from tests.integration.statements import run, run_apart

pytestmark = pytest.mark.django_db(transaction=True)


def age(days: int) -> None:
    """Let all events be so much older."""
    models.Event.objects.update(received_at=F("received_at") - timedelta(days=days))


def with_body() -> set[str]:
    return set(models.Event.objects.filter(body__isnull=False).values_list("event_id", flat=True))


def test_old_bodies_are_forgotten_and_all_else_stays(deliver: Deliver) -> None:
    """Claims, rows and money are as before; younger events keep their bodies."""
    deliver("payment.captured", event_id="old", payment="pay_1", account="merchant-1", amount=1)
    age(31)
    deliver("payment.captured", event_id="young", payment="pay_2", account="merchant-1", amount=1)
    before = list(models.Claim.objects.order_by("id").values())

    ran = run("prune_events", "--older-than", 30)

    assert (ran.status, ran.data["pruned"], ran.data["kept"]) == (0, 1, 0)
    assert with_body() == {"young"}
    assert list(models.Claim.objects.order_by("id").values()) == before
    assert models.Event.objects.count() == models.Transfer.objects.count() == 2
    assert_sound()


def test_zero_days_forgets_all_until_now(deliver: Deliver) -> None:
    deliver("payment.captured", payment="pay_1", account="merchant-1", amount=1)
    deliver("customer.created")

    assert run("prune_events", "--older-than", 0).data["pruned"] == 2
    assert with_body() == set()
    assert run("prune_events", "--older-than", 0).data["pruned"] == 0


def test_redelivery_of_a_pruned_event_gets_the_stored_reply(deliver: Deliver) -> None:
    """And other content under its id is still a conflict, its fields named."""
    event = {"payment": "pay_1", "account": "merchant-1"}
    first = deliver("payment.captured", event_id="evt_1", amount=1, **event)
    run("prune_events", "--older-than", 0)

    again = deliver("payment.captured", event_id="evt_1", amount=1, **event)
    other = deliver("payment.captured", event_id="evt_1", amount=2, **event)

    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert other.status_code == 422
    assert other.json()["differing_fields"] == ["data.amount"]


def test_quarantined_event_keeps_its_body_until_its_finding_is_closed(deliver: Deliver) -> None:
    """It is needed to tell the event again."""
    assert outcome(deliver("payment.captured", event_id="evt_1", payment="pay_1", amount="x")) == "quarantined"

    ran = run("prune_events", "--older-than", 0)

    assert (ran.status, ran.data["pruned"], ran.data["kept"]) == (0, 0, 1)
    assert with_body() == {"evt_1"}
    models.Finding.objects.update(closed_at=F("opened_at"))
    assert run("prune_events", "--older-than", 0).data["pruned"] == 1
    assert with_body() == set()


def test_contents_in_conflict_keep_their_bodies_until_the_finding_is_closed(deliver: Deliver) -> None:
    """Somebody has to see both to find out which one is true."""
    for amount in (1, 2):
        data = {"payment": "pay_1", "account": "merchant-1", "amount": amount, "currency": "IDR"}
        deliver("payment.captured", event_id="evt_1", **data)

    assert run("prune_events", "--older-than", 0).data["kept"] == 2
    models.Finding.objects.update(closed_at=F("opened_at"))
    assert run("prune_events", "--older-than", 0).data["pruned"] == 2


def test_event_that_we_failed_on_keeps_its_body(deliver: Deliver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It isn't claimed yet: the body is all there is."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(intake, "book", fail)
        assert deliver("payment.captured", event_id="evt_1", payment="pay_1", amount=1).status_code == 503

    assert run("prune_events", "--older-than", 0).data["kept"] == 1
    assert with_body() == {"evt_1"}


def test_dry_run_only_counts(deliver: Deliver) -> None:
    deliver("payment.captured", event_id="evt_1", payment="pay_1", amount=1)

    assert run("prune_events", "--older-than", 0, "--dry-run").data["pruned"] == 1
    assert with_body() == {"evt_1"}


@pytest.mark.parametrize("days", ["-1", "x", "1.5", ""])
def test_number_of_days_must_be_one(days: str, small_demo: None) -> None:
    assert run_apart("prune_events", "--older-than", days).status == 2


def test_chunks_go_on_where_the_last_one_ended(deliver: Deliver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays with its body is passed by, not met again and again."""
    monkeypatch.setattr(retention, "CHUNK", 2)
    for n in range(7):
        deliver("payment.captured", event_id=f"evt_{n}", payment=f"pay_{n}", amount=1 if n != 3 else "x")

    assert run("prune_events", "--older-than", 0).data["pruned"] == 6
    assert with_body() == {"evt_3"}


@pytest.mark.crash
@pytest.mark.parametrize(
    ("failpoint", "kept"), [("prune_forgotten", {"evt_0", "evt_1", "evt_2"}), ("prune_chunk", set())]
)
def test_killed_and_run_again_all_is_forgotten(deliver: Deliver, failpoint: str, kept: set[str]) -> None:
    """A chunk is whole or not there."""
    for n in range(3):
        deliver("payment.captured", event_id=f"evt_{n}", payment=f"pay_{n}", amount=1)

    killed = run_apart("prune_events", "--older-than", 0, failpoint=failpoint)

    assert killed.status == -9, killed.data
    assert with_body() == kept
    assert run("prune_events", "--older-than", 0).data["pruned"] == len(kept)
    assert with_body() == set()
    assert_sound()


def test_forgetting_needs_no_more_than_its_chunk(deliver: Deliver) -> None:
    """Rows are found by id, in order, and only those of the chunk are locked."""
    for n in range(3):
        deliver("payment.captured", event_id=f"evt_{n}", payment=f"pay_{n}", amount=1)
    latest = models.Event.objects.order_by("-id").values_list("received_at", flat=True)[0] + timedelta(seconds=1)

    first = claims.forget_bodies(before=latest, after_id=0, limit=2)
    rest = claims.forget_bodies(before=latest, after_id=max(first), limit=2)

    assert (len(first), len(rest)) == (2, 1)
    assert max(first) < min(rest)


# prune_attempts -------------------------------------------------------------------------------------------------------

NOW = datetime.now(UTC)


def attempt(event_id: str, days: float, *, until: float | None = None) -> None:
    """Make a row of a delivery so many days ago; until: of a gap that ended so many days ago."""
    is_gap = {"status": None, "lost": 7, "lost_until": NOW - timedelta(days=until)} if until is not None else {}
    fields = {"status": 200, "duration_ms": 1.0, **is_gap}
    models.Attempt.objects.create(event_id=event_id, received_at=NOW - timedelta(days=days), **fields)


def attempts_left() -> list[str]:
    return list(models.Attempt.objects.order_by("id").values_list("event_id", flat=True))


def test_old_attempts_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks, gaps with them; a gap is as old as its end. A dry run only counts."""
    monkeypatch.setattr(retention, "CHUNK", 2)
    for number in range(5):
        attempt("old", 31)  # at the same moment, which a chunk's end must not lose
        attempt(f"older {number}", 40 + number)
    attempt("old gap", 33, until=31)
    attempt("gap until lately", 33, until=29)
    attempt("young", 29)

    counted = run("prune_attempts", "--older-than", 30, "--dry-run")
    before = len(attempts_left())
    ran = run("prune_attempts", "--older-than", 30)
    again = run("prune_attempts", "--older-than", 30)

    assert (counted.status, counted.data["pruned"], before) == (0, 11, 13)
    assert (ran.status, ran.data["pruned"]) == (0, 11)
    assert attempts_left() == ["gap until lately", "young"]
    assert again.data["pruned"] == 0


def test_deleting_attempts_leaves_events(deliver: Deliver) -> None:
    deliver("payment.captured", event_id="evt_1", payment="pay_1", amount=1)
    attempt("evt_1", 1)

    assert run("prune_attempts", "--older-than", 0).data["pruned"] == 1
    assert with_body() == {"evt_1"}
    assert models.Claim.objects.count() == models.Transfer.objects.count() == 1


@pytest.mark.crash
def test_killed_while_deleting_attempts_and_run_again() -> None:
    for number in range(3):
        attempt(f"evt_{number}", 1 + number)

    killed = run_apart("prune_attempts", "--older-than", 0, failpoint="prune_chunk")
    rest = run("prune_attempts", "--older-than", 0)

    assert killed.status == -9, killed.data
    assert rest.status == 0
    assert attempts_left() == []
