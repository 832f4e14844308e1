"""Lists as CSV."""

import csv
import io
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from django.test import Client

from payments import limits
from payments.admin import export
from payments.models import Entry, Event, Payment, Transfer
from tests import staff

pytestmark = pytest.mark.django_db

Deliver = Callable[..., Any]


def _rows(client: Client, url: str) -> list[dict[str, str]]:
    answer = client.get(url)
    assert answer.status_code == 200
    assert answer["Content-Disposition"].startswith("attachment")
    text = b"".join(answer.streaming_content).decode()  # type: ignore[attr-defined]
    return list(csv.DictReader(io.StringIO(text)))


def test_list_is_downloaded_as_it_is_filtered(capture: Event, deliver: Deliver, viewer: Client) -> None:
    """Minor units, times in UTC, names of what is pointed to."""
    deliver("evt_2", payment="pay_2", amount=700, currency="IDR")

    transfers = _rows(viewer, "/admin/payments/transfer/export/?q=demo:pay_1")

    transfer = Transfer.objects.get(key="demo:pay_1:captured")
    assert [row["key"] for row in transfers] == ["demo:pay_1:captured"]
    assert (transfers[0]["amount"], transfers[0]["currency"]) == ("1000000", "IDR")
    assert (transfers[0]["payment"], transfers[0]["claim"]) == ("pay_1", "evt_1")
    assert transfers[0]["recorded_at"] == transfer.recorded_at.isoformat()
    assert len(_rows(viewer, "/admin/payments/entry/export/")) == 4


def test_list_links_to_its_download(capture: Event, viewer: Client) -> None:
    """With the filters of the list."""
    assert 'href="export/?period=week"' in staff.text(viewer, "/admin/payments/claim/?period=week")


def test_every_list_can_be_downloaded(conflict: Event, viewer: Client) -> None:
    """Without bodies and without JSON, which hold what gateways sent."""
    rows = [_rows(viewer, f"/admin/payments/{model._meta.model_name}/export/") for model in staff.all_models()]

    for row in chain.from_iterable(rows):
        assert not {"body", "reply_body", "headers", "detail", "fingerprint"} & row.keys()


@pytest.mark.parametrize("begin", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\uff1d1"])
def test_no_text_is_a_formula(begin: str) -> None:
    """Whatever a gateway's payload holds; numbers stay numbers."""
    assert export.safe(begin) == f"'{begin}"
    assert export.safe(f"a{begin}") == f"a{begin}"


def test_hostile_references_are_texts(deliver: Deliver, viewer: Client) -> None:
    """As they come in from outside, quotes and all."""
    hostile = '=HYPERLINK("http://x.example","a,b")'
    deliver("evt_1", payment=hostile, account="merchant-1", amount=1, currency="IDR")

    (row,) = _rows(viewer, "/admin/payments/payment/export/")

    assert Payment.objects.get().reference == hostile
    assert row["reference"] == f"'{hostile}"


def test_long_lists_are_read_piece_by_piece(
    capture: Event, deliver: Deliver, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a permit that is given back before the piece is sent; and every row once."""
    for number in range(5):
        deliver(f"evt_more_{number}", payment=f"pay_more_{number}", account="merchant-1", amount=1, currency="IDR")
    monkeypatch.setattr(export, "PIECE", 3)
    answer: Any = viewer.get("/admin/payments/entry/export/")

    pieces = []
    for piece in answer.streaming_content:
        assert limits.get("staff").in_use == 0
        pieces.append(piece)

    lines = b"".join(pieces).decode().splitlines()
    ids = [int(line.split(",")[0]) for line in lines[1:]]
    assert len(pieces) == 5
    assert ids == sorted(Entry.objects.values_list("pk", flat=True), reverse=True)


def test_too_long_lists_say_so(capture: Event, viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """At their end: nobody takes a part for the whole."""
    monkeypatch.setattr(export, "PIECE", 1)
    monkeypatch.setattr(export, "ROWS_MAX", 1)

    rows = _rows(viewer, "/admin/payments/entry/export/")

    assert len(rows) == 2
    assert rows[-1]["id"].startswith("There are more rows than 1")


def test_download_waits_for_a_permit_and_then_breaks_off(
    capture: Event, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken download is seen to be broken; no page takes the last permit for it."""
    monkeypatch.setattr(export, "PIECE", 1)
    answer: Any = viewer.get("/admin/payments/entry/export/")

    def saturated(name: str) -> Any:
        raise limits.Saturated(name, 1)

    monkeypatch.setattr(limits, "get", saturated)
    with pytest.raises(limits.Saturated):
        list(answer.streaming_content)


def test_download_needs_permission(capture: Event, client: Client) -> None:
    """That of seeing the list."""
    user = staff.member("newcomer")
    user.user_permissions.clear()
    client.force_login(user)

    assert client.get("/admin/payments/entry/export/").status_code == 403
