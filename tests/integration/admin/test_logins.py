"""Nobody guesses passwords for long, and nobody locks out another."""

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import hashers
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.db.models import F
from django.test import Client, RequestFactory
from pytest_django import Settings

from payments import callers, logins
from payments.models import LoginBrake
from tests import staff

pytestmark = pytest.mark.django_db

PASSWORD = "long-enough-17"
ELSEWHERE = "203.0.113.7"


@pytest.fixture
def budi() -> User:
    user = staff.member("budi")
    user.set_password(PASSWORD)
    user.save()
    return user


def log_in(password: str, *, username: str = "budi", **environ: Any) -> Any:
    """Post the form; return the answer: 302 who is in, 200 who is told that it's wrong, 429 who is not looked at."""
    return Client().post("/admin/login/", {"username": username, "password": password}, **environ)


def guess(times: int, **given: Any) -> list[int]:
    return [log_in(f"guess-{n}", **given).status_code for n in range(times)]


def test_guesses_end_and_are_told_so(budi: User, caplog: pytest.LogCaptureFixture) -> None:
    """Then the right password isn't looked at either, or guessing would go on."""
    answers = guess(logins.TRIES_MAX + 3)
    braked = log_in(PASSWORD)

    assert answers == [200] * logins.TRIES_MAX + [429] * 3
    assert braked.status_code == 429
    assert 0 < int(braked["Retry-After"]) <= logins.SECONDS
    assert b"Too many log-ins with this name failed from your address." in braked.content
    (record,) = [record for record in caplog.records if record.message == "login_braked"]
    assert (record.levelno, vars(record)["username"], vars(record)["address"]) == (logging.WARNING, "budi", "127.0.0.1")


def test_brake_is_of_one_name_from_one_address(budi: User) -> None:
    """Whoever guesses for everybody from one address, or for one name from everywhere, locks out nobody else."""
    guess(logins.TRIES_MAX + 1)

    assert log_in(PASSWORD, REMOTE_ADDR=ELSEWHERE).status_code == 302
    assert log_in("wrong", username="siti").status_code == 200


@pytest.mark.parametrize("variant", ["budi", " budi ", "BUDI", "\uff42udi"])
def test_variants_of_a_name_share_its_tries(budi: User, variant: str) -> None:
    """Django's form takes spaces away and makes wide letters plain."""
    guess(logins.TRIES_MAX)

    assert log_in(PASSWORD, username=variant).status_code == 429


def test_brake_is_let_go_after_a_while(budi: User) -> None:
    """The next while has tries of its own, and tidies up what others left."""
    guess(logins.TRIES_MAX + 1)
    guess(1, username="siti")
    LoginBrake.objects.update(began_at=F("began_at") - timedelta(seconds=logins.SECONDS + 1))

    assert guess(logins.TRIES_MAX + 1) == [200] * logins.TRIES_MAX + [429]
    assert LoginBrake.objects.count() == 1


def test_who_logs_in_has_all_tries_again(budi: User) -> None:
    """Nobody is braked by a mistake now and then; a page that is looked at is no try."""
    guess(logins.TRIES_MAX - 1)

    assert log_in(PASSWORD).status_code == 302
    assert not LoginBrake.objects.exists()
    Client().get("/admin/login/")
    assert not LoginBrake.objects.exists()


def test_logged_in_colleague_is_braked_too(budi: User) -> None:
    """Who is in already guesses another's password no longer than a stranger."""
    colleague = Client()
    colleague.force_login(User.objects.create_superuser("siti"))
    form = {"username": "budi", "password": "guess"}

    answers = [colleague.post("/admin/login/", form).status_code for _ in range(logins.TRIES_MAX + 1)]

    assert answers[-1] == 429


def test_name_is_not_stored(budi: User) -> None:
    """It may be a password, typed into the wrong field."""
    guess(1, username=PASSWORD)

    assert PASSWORD not in str(LoginBrake.objects.values_list().get())


def test_no_password_is_looked_at_without_the_count(budi: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that can't count is a 503, not a free guess."""

    def away(attempt: logins.Attempt) -> int:
        raise OperationalError("connection refused")

    looked_at: list[str] = []
    monkeypatch.setattr(logins.Attempt, "wait_s", away)
    monkeypatch.setattr(hashers, "verify_password", lambda *given: looked_at.append("password"))

    assert log_in(PASSWORD).status_code == 503
    assert looked_at == []


@pytest.mark.concurrency
@pytest.mark.django_db(transaction=True)
def test_simultaneous_guesses_are_counted_each() -> None:
    """Of forty at the same instant, no more are looked at than of forty in turn."""
    attempt = logins.Attempt("budi", ELSEWHERE)

    def guess_five() -> list[int]:
        try:
            return [attempt.wait_s() for _ in range(5)]
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        waits = [wait for future in [threads.submit(guess_five) for _ in range(8)] for wait in future.result()]

    assert waits.count(0) == logins.TRIES_MAX
    assert LoginBrake.objects.get().tries == 40


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.7", "", "203.0.113.7"),
        ("203.0.113.7", "198.51.100.1", "203.0.113.7"),
        ("127.0.0.1", "198.51.100.1, 203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "unreadable", "127.0.0.1"),
        ("10.1.2.3", "203.0.113.9", "203.0.113.9"),
        ("", "203.0.113.9", "203.0.113.9"),
        ("", "", callers.UNKNOWN),
        ("2001:db8:1:2:3:4:5:6", "", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.7", "", "203.0.113.7"),
    ],
)
def test_address_is_what_can_be_believed(
    rf: RequestFactory, settings: Settings, peer: str, forwarded: str, address: str
) -> None:
    """A proxy's word, never a stranger's; of IPv6 the part that a household can't choose."""
    settings.FORWARDED_ALLOW_IPS = "127.0.0.1,::1,10.0.0.0/8"
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}

    assert callers.address_of(rf.get("/admin/", headers=headers, REMOTE_ADDR=peer)) == address
