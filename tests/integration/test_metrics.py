"""/metrics: what it tells of deliveries and of what is stored, and that nothing from outside gets into its labels."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import DjangoAssertNumQueries, Settings

from payments import limits, models, outbox, stored_metrics
from tests.deliveries import Deliver

pytestmark = pytest.mark.django_db

Samples = dict[tuple[str, str], float]  # (name, the labels' values) -> value
STORED = "payments_suspense_minor_units"


@pytest.fixture
def scrape(client: Client) -> Callable[[], Samples]:
    def scrape() -> Samples:
        response = client.get("/metrics")
        assert response.status_code == 200
        return {
            (sample.name, ",".join(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(response.content.decode())
            for sample in family.samples
        }

    return scrape


def grown(before: Samples, after: Samples) -> dict[tuple[str, str], float]:
    """Return by how much which counters grew."""
    return {
        key: value - before.get(key, 0)
        for key, value in after.items()
        if key[0].startswith("payments_") and key[0].endswith("_total") and value != before.get(key, 0)
    }


def test_deliveries_are_counted_by_endpoint_and_outcome(deliver: Deliver, scrape: Callable[[], Samples]) -> None:
    """New, again, with other content, unusable, unusable again, not signed, to nobody."""
    before = scrape()
    for amount in (1, 1, 2):
        deliver("payment.captured", event_id="evt_metrics", payment="pay_1", account="merchant-1", amount=amount)
    for _ in range(2):
        deliver.raw(b"unusable", event_id="evt_unusable")
    deliver.client.post("/webhooks/demo", b"{}", "application/json")
    deliver.client.post("/webhooks/nobody-at-home", b"{}", "application/json")

    assert grown(before, scrape()) == {
        ("payments_deliveries_total", "demo,applied"): 2,
        ("payments_deliveries_total", "demo,conflict"): 1,
        ("payments_deliveries_total", "demo,quarantined"): 2,
        ("payments_deliveries_total", "demo,refused"): 1,
        ("payments_deliveries_total", "unknown,unknown"): 1,
        ("payments_replays_total", "demo"): 2,
        ("payments_conflicts_total", "demo"): 1,
        ("payments_quarantined_total", "demo"): 1,
    }


def test_what_is_stored_is_read_when_asked(deliver: Deliver, scrape: Callable[[], Samples], settings: Settings) -> None:
    """Suspense by currency, findings by kind, the outbox by destination, what statements told first by endpoint."""
    deliver("payment.captured", payment="pay_1", amount=500)
    deliver("payment.captured", payment="pay_2", amount=700, currency="KWD")
    deliver.raw(b"unusable")
    for key, state in (("a", "ready"), ("b", "ready"), ("c", "dead"), ("d", "sent")):
        models.OutboxMessage.objects.create(key=key, destination="shop", topic="t", body="{}", state=state)
    models.Reconciliation.objects.create(
        endpoint=models.Endpoint.objects.get(slug="demo"), file_digest="", counts={"booked": 3, "matched": 9}
    )

    settings.PAYMENTS_OUTBOX = {"idle": {"url": "https://example.com/", "secrets": ()}}

    seen = scrape()

    stored = {key: value for key, value in seen.items() if key[0].startswith(STORED)}
    assert stored == {(STORED, "IDR"): 500, (STORED, "KWD"): 700}
    assert seen["payments_findings_open", "quarantined"] == 1
    assert seen["payments_outbox_waiting", "shop"] == 2
    assert seen["payments_outbox_waiting", "idle"] == seen["payments_outbox_oldest_seconds", "idle"] == 0
    assert seen["payments_outbox_dead", "shop"] == 1
    assert 0 <= seen["payments_outbox_oldest_seconds", "shop"] < 60
    assert seen["payments_first_seen_by_statement", "demo"] == 3
    assert seen["payments_database_answers", ""] == 1


def test_money_that_found_its_owner_reads_zero(deliver: Deliver, scrape: Callable[[], Samples]) -> None:
    """Not absent: an alert must see it end."""
    deliver("payment.captured", payment="pay_1", amount=500)
    deliver("refund.succeeded", payment="pay_1", refund="re_1", amount=500)

    assert scrape()[STORED, "IDR"] == 0


def test_a_scrape_reads_a_bounded_part_of_what_is_owed(small_demo: None) -> None:
    """A receiver is away for a day: the figures stay there, say "more than", and hide no other destination's."""
    for destination, state, number in (("away", "ready", 60_000), ("broken", "dead", 900), ("shop", "ready", 3)):
        sql = (
            "INSERT INTO payments_outboxmessage (key, destination, topic, body, state, created_at)"
            " SELECT %s || n, %s, 't', repeat('x', 300), %s, now() - n * interval '1 second'"
            " FROM generate_series(1, %s) AS n"
        )
        with connection.cursor() as cursor:
            cursor.execute(sql, [destination, destination, state, number])
            cursor.execute("ANALYZE payments_outboxmessage")

    owed = {one.destination: (one.waiting, one.dead) for one in outbox.backlogs()}

    assert owed == {"away": (10_001, 0), "broken": (0, 900), "shop": (3, 0)}
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {outbox._BACKLOGS}")
        (plan,) = cursor.fetchone()
    assert max(rows_read(plan[0]["Plan"])) < 12_000


def rows_read(plan: dict[str, Any]) -> Iterator[float]:
    """Return how many rows each step of a plan came upon, those that it passed by too."""
    passed_by = plan.get("Rows Removed by Filter", 0)
    yield (plan["Actual Rows"] + passed_by) * plan["Actual Loops"]
    for part in plan.get("Plans", []):
        yield from rows_read(part)


def test_a_scrape_is_a_bounded_number_of_queries(
    small_demo: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(4):
        stored_metrics.exposition()


def fail(*_: Any, **__: Any) -> None:
    raise OperationalError("the database is away")


@pytest.mark.parametrize("what", ["connection", "statement", "permit"])
def test_without_the_database_a_scrape_tells_the_rest(
    scrape: Callable[[], Samples], small_demo: None, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """No connection, a statement that fails, or no permit: absent gauges and one that says so, never a 500."""
    if what == "connection":
        monkeypatch.setattr(connection, "ensure_connection", fail)
    elif what == "statement":
        monkeypatch.setattr(outbox, "backlogs", fail)
    else:
        monkeypatch.setattr(limits.get("health"), "wait_s", 0)
        monkeypatch.setitem(limits.get("health")._holders, 0, 0.0)

    seen = scrape()

    assert seen["payments_database_answers", ""] == 0
    assert not [key for key in seen if key[0] == STORED]
    assert ("payments_limit_in_use", "intake") in seen


def test_limits_read_zero_when_nothing_runs(scrape: Callable[[], Samples], small_demo: None) -> None:
    seen = scrape()

    for limit in ("intake", "settle", "staff", "confirm", "attempts", "relay", "health"):
        assert seen["payments_limit_in_use", limit] == 0
        assert seen["payments_limit_waiting", limit] == 0
        assert ("payments_limit_refused_total", limit) in seen


def test_labels_hold_nothing_from_outside(deliver: Deliver, client: Client) -> None:
    """Ids, slugs, paths and names of events that were sent stand nowhere."""
    stranger = "x0stranger0x"
    for method in ("get", "post", "put"):
        getattr(client, method)(f"/webhooks/{stranger}")
        getattr(client, method)(f"/{stranger}")
    deliver(stranger, event_id=stranger, payment=stranger, account=stranger)
    deliver("payment.captured", event_id=f"{stranger}2", payment=stranger, account=stranger, amount=1)
    deliver.raw(stranger.encode(), event_id=f"{stranger}3")
    models.Finding.objects.create(kind="conflict", subject=stranger, opened_at=datetime.now(UTC))

    assert stranger not in client.get("/metrics").content.decode()


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        ("Basic s3cret", 401),
        ("bearer s3cret", 401),
        ("Bearer s3crét", 401),
        ("Bearer s3cret", 200),
    ],
)
def test_a_token_guards_metrics_where_one_is_set(
    client: Client, small_demo: None, settings: Settings, given: str | None, status: int
) -> None:
    settings.PAYMENTS_METRICS_TOKEN = "s3cret"
    headers = {} if given is None else {"Authorization": given}

    response = client.get("/metrics", headers=headers)

    assert response.status_code == status
    assert (b"payments_" in response.content) == (status == 200)
