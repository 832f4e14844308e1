"""Verification in chunks: what one finds, and where the next one goes on after a kill."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from django.db import connection, transaction
from django.db.models import F

from payments import conf, models, recovery, verification
from tests.settling import capture, job, settle

pytestmark = pytest.mark.django_db(transaction=True)

Balances = Callable[[], dict[str, int]]
PAYMENTS: Final = 5
# Nothing else runs in this database; what runs in the server's other ones would hold the horizon back.
ENDED_BELOW: Final = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"


class Killed(Exception):
    """Stands for SIGKILL behind a COMMIT: nothing runs after it."""


@pytest.fixture
def ledger(small_demo: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfers of as many transactions, more than a chunk's."""
    monkeypatch.setattr(verification, "CHUNK", 2)
    monkeypatch.setattr(verification, "_ENDED_BELOW", ENDED_BELOW)
    for number in range(PAYMENTS):
        settle(capture(f"pay_{number}", account=f"merchant-{1 + number % 3}"))
    settle(job("refund.succeeded", payment="pay_0", refund="re_0", amount=300))


@contextmanager
def killed_after(chunks: int) -> Iterator[None]:
    """Expect the process to die when so many chunks are committed."""
    left = chunks

    def hit(name: str) -> None:
        nonlocal left
        left -= name == "verify_chunk"
        if not left:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):  # noqa: PT012
        patch.setattr("payments.failpoints.hit", hit)
        yield


@contextmanager
def guards_off(table: str) -> Iterator[None]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def change_entry(key: str, amount: int) -> None:
    with guards_off("payments_entry"):
        models.Entry.objects.filter(transfer__key=key, line=1).update(amount=F("amount") + amount)


def kinds(report: verification.Report) -> list[tuple[str, str]]:
    return sorted((one.kind, one.subject) for one in report.broken)


def count_verified() -> int:
    """Return how many credits of payees the checkpoint stands for."""
    rows = models.VerifiedBalance.objects.filter(account__kind="liability").values_list("credits", flat=True)
    return sum(map(int, rows))


def test_chunks_are_the_whole(ledger: None, books: Balances) -> None:
    """Each transfer is looked at once, and what is verified is what is booked."""
    report = verification.verify(full=True)

    assert (report.broken, report.is_full, report.checked["transfers"]) == ([], True, PAYMENTS + 1)
    assert count_verified() == PAYMENTS * 10_000
    again = verification.verify(full=False)
    assert (again.broken, again.is_full, again.checked["transfers"]) == ([], False, 0)
    assert not models.VerificationPass.objects.exists()
    assert not models.PassBalance.objects.exists()
    books()


def test_killed_from_the_beginning_goes_on(ledger: None) -> None:
    """Behind the last chunk; meanwhile a start verifies only what is new."""
    verification.verify(full=True)
    with killed_after(2):
        verification.verify(full=True)
    half_way = models.VerificationPass.objects.get()

    settle(capture("pay_new", account="merchant-1"))
    start = verification.verify(full=False)
    ended = verification.verify(full=True)

    assert half_way.checked["transfers"] == 4
    assert (start.is_full, start.broken, start.checked["transfers"]) == (False, [], 1)
    assert (ended.is_full, ended.broken, ended.checked["transfers"]) == (True, [], PAYMENTS + 2)
    newest = models.Verification.objects.latest("id")
    assert newest.started_at == half_way.started_at
    assert verification.verify(full=False).broken == []


def test_killed_catching_up_goes_on(ledger: None) -> None:
    """A start that is killed again and again comes further each time."""
    counted = []
    for _ in range(2):
        with killed_after(1):
            verification.verify(full=False)
        counted.append(count_verified())
    ended = verification.verify(full=False)

    assert counted == [20_000, 40_000]
    assert (ended.is_full, ended.broken, ended.checked["transfers"]) == (False, [], PAYMENTS + 1 - 4)
    assert count_verified() == PAYMENTS * 10_000


def test_findings_of_all_chunks_are_told(ledger: None) -> None:
    """One in the first chunk, one in the last, and what they sum up to; then no money is served."""
    change_entry("demo:pay_0:captured", +1)
    change_entry("demo:pay_4:captured", +1)

    report = verification.verify(full=True)

    assert kinds(report) == [
        ("balance_differs_from_entries", "receivable:demo IDR"),
        ("transfer_not_balanced", "demo:pay_0:captured"),
        ("transfer_not_balanced", "demo:pay_4:captured"),
    ]
    conf.read_copy()
    assert "transfer_not_balanced" in str(conf.why_closed())
    for key in ("demo:pay_0:captured", "demo:pay_4:captured"):
        change_entry(key, -1)
    repaired = verification.verify(full=False)
    assert (repaired.is_full, repaired.broken) == (True, [])
    assert count_verified() == PAYMENTS * 10_000


def test_finding_while_catching_up_is_told_at_once(ledger: None) -> None:
    """What is verified stays as it was, and the next one looks at everything."""
    change_entry("demo:pay_2:captured", +1)

    report = verification.verify(full=False)

    assert kinds(report) == [("transfer_not_balanced", "demo:pay_2:captured")]
    assert models.Verification.objects.latest("id").broken
    assert count_verified() == 20_000
    change_entry("demo:pay_2:captured", -1)
    repaired = verification.verify(full=False)
    assert (repaired.is_full, repaired.broken) == (True, [])


def test_finding_that_was_not_recorded_is_found_again(ledger: None) -> None:
    """The process that found it died: the next one begins anew."""
    change_entry("demo:pay_0:captured", +1)
    with killed_after(2):
        verification.verify(full=True)

    report = verification.verify(full=True)

    assert ("transfer_not_balanced", "demo:pay_0:captured") in kinds(report)


@pytest.mark.parametrize("change", [{"moved_at": datetime.now(UTC) - timedelta(hours=2)}, {"horizon": 2**62}])
def test_pass_that_is_too_old_begins_anew(ledger: None, change: dict[str, datetime | int]) -> None:
    """Also one of another cluster, whose transactions were counted otherwise."""
    with killed_after(2):
        verification.verify(full=True)
    change_entry("demo:pay_0:captured", +1)
    models.VerificationPass.objects.update(**change)

    report = verification.verify(full=True)

    assert ("transfer_not_balanced", "demo:pay_0:captured") in kinds(report)
    assert report.checked["transfers"] == PAYMENTS + 1


def test_claims_beyond_the_transfers_are_looked_at(ledger: None) -> None:
    """Most claims may book nothing; each has its evidence all the same."""
    for number in range(7):
        settle(job("customer.created", event_id=f"evt_{number}"))
    with guards_off("payments_event"):
        models.Event.objects.filter(event_id__in=["evt_1", "evt_6"]).delete()

    report = verification.verify(full=True)

    assert kinds(report) == [("claim_without_evidence", "demo:evt_1"), ("claim_without_evidence", "demo:evt_6")]


def let_a_minute_pass() -> None:
    models.Verification.objects.update(finished_at=F("finished_at") - timedelta(seconds=recovery.VERIFY_EVERY_S))


def test_service_verifies_what_is_new(ledger: None) -> None:
    """When the newest verification is a minute old, and only then; what is found broken closes the money lane."""
    models.Verification.objects.all().delete()
    assert recovery.verify_if_due() is None  # a start comes first
    verification.verify(full=True)
    settle(capture("pay_new"))
    assert recovery.verify_if_due() is None

    let_a_minute_pass()
    due = recovery.verify_if_due()
    assert due is not None
    assert (due.broken, due.is_full, due.checked["transfers"]) == ([], False, 1)

    settle(capture("pay_newer"))
    change_entry("demo:pay_newer:captured", +1)
    let_a_minute_pass()
    due = recovery.verify_if_due()
    assert due is not None
    assert ("transfer_not_balanced", "demo:pay_newer:captured") in kinds(due)
    conf.read_copy()
    assert conf.why_closed()
    let_a_minute_pass()
    assert recovery.verify_if_due() is None  # not again and again: somebody has to look
