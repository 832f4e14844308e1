"""What staff see of a delivery."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from payments.models import (
    Account,
    Attempt,
    Event,
    Finding,
    OutboxMessage,
    Payment,
    Reconciliation,
    StaffAction,
    Transfer,
)
from tests import staff

pytestmark = pytest.mark.django_db

Deliver = Callable[..., Any]


def test_event_page_links_to_its_claim_payment_transfers_and_entries(capture: Event, viewer: Client) -> None:
    """From what the gateway said to what was booked, without SQL."""
    text = staff.text(viewer, staff.page(capture))

    transfer = Transfer.objects.get()
    assert capture.claim is not None
    for related in (capture.claim, Payment.objects.get(), transfer, *transfer.entry_set.all()):
        assert staff.page(related) in text
    assert "IDR 10.000,00" in text


def test_event_page_shows_the_body_and_the_stored_reply(capture: Event, viewer: Client) -> None:
    """Both as text: re-indented, quotes escaped."""
    text = staff.text(viewer, staff.page(capture))

    assert "&quot;payment&quot;: &quot;pay_1&quot;" in text
    assert "&quot;outcome&quot;: &quot;applied&quot;" in text


@pytest.mark.parametrize("page", ["the conflicting content", "the first content", "the claim"])
def test_conflict_names_the_differing_fields(conflict: Event, viewer: Client, page: str) -> None:
    """On every page where one could stand and ask."""
    subject = {
        "the conflicting content": conflict,
        "the first content": Event.objects.get(event_id="evt_1", role="first"),
        "the claim": conflict.claim,
    }[page]

    assert "data.account, data.amount" in staff.text(viewer, staff.page(subject))


def test_conflict_names_the_differing_fields_after_pruning(conflict: Event, viewer: Client) -> None:
    """The bytes are gone; the finding that was opened then still knows."""
    Event.objects.update(body=None)

    text = staff.text(viewer, staff.page(conflict))

    assert "data.account, data.amount" in text
    assert "The body was pruned" in text


def test_account_page_leads_to_its_entries_transfers_and_events(capture: Event, viewer: Client) -> None:
    """Balance -> entries -> transfers -> events."""
    account = Account.objects.get(code="merchant-1")

    text = staff.text(viewer, staff.page(account))

    assert staff.page(Transfer.objects.get()) in text
    assert staff.page(capture.claim) in text
    assert "credits IDR 10.000,00 \u2212 debits IDR 0,00 = IDR 10.000,00" in text
    assert '<polyline class="curve"' in text


def test_every_page_and_list_can_be_seen(conflict: Event, deliver: Deliver, viewer: Client) -> None:
    """One of everything that a delivery leaves behind, and at most 20 queries each."""
    deliver("evt_2", "refund.succeeded", payment="pay_1", refund="re_1", amount=1, currency="IDR")
    deliver("evt_3", "refund.failed", payment="pay_1", refund="re_1", amount=1, currency="IDR")
    deliver("evt_4", "dispute.funds_withdrawn", payment="pay_1", dispute="dp_1", amount=1, currency="IDR")
    deliver("evt_5", payment="pay_1", amount="1")
    Attempt.objects.create(endpoint_id=conflict.endpoint_id, event_id="evt_1", received_at=conflict.received_at)
    StaffAction.objects.create(actor="somebody", action="close", subject="x", reason="y")

    for model in staff.all_models():
        newest = model.objects.order_by("-pk").first()
        urls = [f"/admin/payments/{model._meta.model_name}/", *([staff.page(newest)] if newest else [])]
        for url in urls:
            with CaptureQueriesContext(connection) as queries:
                staff.text(viewer, url)
            assert len(queries) <= staff.QUERIES_MAX, url


def test_event_of_a_broken_adapter_can_still_be_seen(capture: Event, viewer: Client) -> None:
    """Evidence that today's code can't read: the very event that somebody looks at."""
    Event.objects.filter(pk=capture.pk).update(headers={})

    assert "pay_1" in staff.text(viewer, staff.page(capture))


def test_hostile_text_is_only_text(deliver: Deliver, viewer: Client) -> None:
    """In every field that a payload can fill, on every list and page."""
    data = {
        "payment": staff.HOSTILE,
        "account": staff.HOSTILE,
        "reference": staff.HOSTILE,
        "amount": 1,
        "currency": "IDR",
    }
    deliver(f"evt_{staff.HOSTILE}", **data)
    deliver("evt_type", staff.HOSTILE, **data)
    deliver(f"evt_bad_{staff.HOSTILE}", **data | {"amount": staff.HOSTILE})
    deliver(f"evt_{staff.HOSTILE}", **data | {"amount": 2})
    Finding.objects.create(kind=staff.HOSTILE, subject=staff.HOSTILE, detail={staff.HOSTILE: staff.HOSTILE})

    for model in staff.all_models():
        list_url = f"/admin/payments/{model._meta.model_name}/"
        for url in [list_url, f"{list_url}?q={staff.HOSTILE}", *map(staff.page, model.objects.all())]:
            assert "<img src=x" not in staff.text(viewer, url), url


def test_event_page_tells_what_happened_in_order(capture: Event, deliver: Deliver, viewer: Client) -> None:
    """First delivery, claim, booking, message, answer, re-delivery, other content, finding."""
    deliver("evt_1", payment="pay_1", account="merchant-2", amount=5, currency="IDR")
    for replayed in (False, True):
        Attempt.objects.create(
            endpoint_id=capture.endpoint_id,
            event_id="evt_1",
            status=200,
            replayed=replayed,
            duration_ms=12.34,
            received_at=Finding.objects.get().opened_at,
        )

    text = staff.text(viewer, staff.page(capture))

    said = (
        *("Came for the first time", "signature verified: over the whole body", "Claimed: Applied", "Booked"),
        *("Message written", "Other content under the same id came", "Finding opened", "Delivery answered 200"),
        *("after 12.3\u00a0ms", "Re-delivery answered 200"),
    )
    positions = [text.index(words) for words in said]
    assert positions == sorted(positions)


def test_event_page_shows_all_events_of_its_payment(capture: Event, deliver: Deliver, viewer: Client) -> None:
    """Also those that were told by other events: a refund, the same capture again."""
    deliver("evt_2", "refund.succeeded", payment="pay_1", refund="re_1", amount=1, currency="IDR")
    deliver("evt_3", payment="pay_1", account="merchant-1", amount=1_000_000, currency="IDR")

    text = staff.text(viewer, staff.page(capture))

    for event_id in ("evt_2", "evt_3"):
        assert f">{event_id}</a>" in text


def test_curl_has_no_secret_and_no_body(capture: Event, viewer: Client) -> None:
    """What a shell's history may keep: neither a signature nor a customer."""
    text = staff.text(viewer, staff.page(capture))
    command = text[text.index("curl --request") :].partition("</pre>")[0]

    assert "webhook-id: evt_1" in command
    assert "signature" not in command
    assert "pay_1" not in command


def test_conflict_is_shown_side_by_side(conflict: Event, viewer: Client) -> None:
    """Field by field: what differs first, then what is the same."""
    text = staff.text(viewer, staff.page(conflict))
    compared = text[text.index("Side by side") :]

    names = ("data.account", "data.amount", "data.currency")
    positions = [compared.index(f"<code>{name}</code>") for name in names]
    assert positions == sorted(positions)
    assert compared.count('<tr class="marked">') == 2


def test_payment_page_says_where_its_money_is(deliver: Deliver, viewer: Client) -> None:
    """Without a payee it is in suspense, and the page says why."""
    deliver("evt_1", payment="pay_1", amount=500, currency="JPY")

    text = staff.text(viewer, staff.page(Payment.objects.get()))

    assert "In suspense: nobody named a payee." in text
    assert "suspense:demo" in text
    assert "JPY 500" in text


def test_suspense_lists_what_waits_for_an_owner(capture: Event, deliver: Deliver, viewer: Client) -> None:
    """Payments with money and without an account for it; not those that never had money."""
    deliver("evt_2", payment="pay_2", amount=700, currency="IDR")
    deliver("evt_3", payment="pay_3", account="nobody-yet", amount=800, currency="IDR")
    deliver("evt_4", "payment.pending", payment="pay_4")

    def listed(owner: str) -> list[str]:
        answer = viewer.get(f"/admin/payments/payment/?owner={owner}")
        return [payment.reference for payment in answer.context["cl"].result_list]

    assert listed("waiting") == ["pay_3", "pay_2"]
    assert listed("unnamed") == ["pay_2"]
    assert listed("unopened") == ["pay_3"]
    assert "IDR 7,00" in staff.text(viewer, "/admin/payments/payment/?owner=unnamed")


def test_finding_leads_to_what_it_is_about(unusable: Event, viewer: Client) -> None:
    """And says what it means."""
    text = staff.text(viewer, staff.page(Finding.objects.get()))

    assert "A verified event that could not be used." in text
    assert staff.page(unusable.claim) in text


def test_findings_of_a_page_have_their_acts_beside_them(capture: Event, deliver: Deliver, operator: Client) -> None:
    """Nobody closes one for another; what there are many of is said once."""
    deliver("evt_2", "refund.succeeded", payment="pay_1", refund="re_1", amount=2_000_000, currency="IDR")
    message = OutboxMessage.objects.order_by("pk").first()
    assert message is not None
    for kind, subject in (("outbox_dead", message.key), ("fact_differs", "demo:pay_1:captured")):
        Finding.objects.create(kind=kind, subject=subject)

    text = staff.text(operator, staff.page(Payment.objects.get()))

    assert "Waits for somebody: over_refund, outbox_dead, fact_differs." in text
    for finding in Finding.objects.all():
        row = text.partition(f"{finding.kind}: {finding.subject}</a>")[2].partition("</tr>")[0]
        assert staff.act("close", finding) in row


def test_finding_says_amounts_as_people_do(capture: Event, deliver: Deliver, viewer: Client) -> None:
    """And each value on a line of its own."""
    deliver("evt_2", payment="pay_1", account="merchant-1", amount=999, currency="IDR")

    text = staff.text(viewer, staff.page(Finding.objects.get()))

    for name, amount in (("told", "IDR 9,99"), ("booked", "IDR 10.000,00")):
        assert re.search(rf"<td>{name}\.amount</td><td><span class=\"amount\">{re.escape(amount)}</span>", text)


def test_reconciliation_says_what_explains_the_difference(capture: Event, viewer: Client) -> None:
    """In words and in the currency's own way."""
    explained = {"missing_there": -1_000_000}
    summary = {"currency": "IDR", "gateway": 0, "ours": 1_000_000, "difference": -1_000_000, "unexplained": 0}
    run = Reconciliation.objects.create(
        endpoint_id=capture.endpoint_id,
        file_name="november.csv",
        format="plain",
        counts={"lines": 1200, "matched": 0},
        summary=[{**summary, "explained": explained}],
    )

    text = staff.text(viewer, staff.page(run))

    assert "lines: 1,200" in text
    assert "matched" not in text
    assert 'booked here, and no line says so: <span class="amount">IDR -10.000,00</span>' in text


def test_outbox_message_is_shown_with_its_body(capture: Event, viewer: Client) -> None:
    """The text that is sent."""
    text = staff.text(viewer, staff.page(OutboxMessage.objects.get()))

    assert "demo:pay_1:captured" in text


def test_times_are_shown_in_the_readers_zone_with_utc_beside(capture: Event, viewer: Client) -> None:
    """Jakarta is seven hours ahead; an unknown zone is UTC."""
    Event.objects.update(received_at="2026-11-30T20:00:00Z")

    viewer.cookies["zone"] = "Asia/Jakarta"
    assert '2026-12-01 03:00:00 WIB <span class="utc">2026-11-30 20:00:00 UTC</span>' in staff.text(
        viewer, staff.page(capture)
    )
    viewer.cookies["zone"] = "../../etc/passwd"
    assert ">2026-11-30 20:00:00 UTC</time>" in staff.text(viewer, staff.page(capture))


def test_zone_and_language_are_chosen_on_a_page(viewer: Client) -> None:
    """Kept in cookies that only these pages get."""
    answer = viewer.post("/admin/view/", {"language": "id", "zone": "Asia/Makassar"})

    assert answer.status_code == 302
    for name, value in (("django_language", "id"), ("zone", "Asia/Makassar")):
        cookie = answer.cookies[name]
        assert (cookie.value, cookie["path"], cookie["httponly"]) == (value, "/admin/", True)
    assert viewer.post("/admin/view/", {"language": "xx", "zone": "nowhere"}).status_code == 200
