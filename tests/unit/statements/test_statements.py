"""What each format's lines say, in the words of the gateway's own webhooks; and what no line may do."""

import csv
import io
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from payments import facts, gateways, money, statements
from payments.facts import FactKind
from payments.gateways import base
from payments.statements import razorpay
from payments.statements.base import StatementUnreadable, moment, signed_minor, zone
from tests.unit.statements.reading import PAYLOADS, payload, read, shown

FILES: Final = sorted(path.name for path in PAYLOADS.iterdir())
CSV_FILES: Final = [name for name in FILES if name.endswith(".csv")]


def test_plain_line_is_the_fact_of_the_same_event() -> None:
    """A captured payment has no id of its own; refunds, fees, disputes and payouts have; the last line has no money."""
    lines = payload("plain__story.csv")

    assert [shown(line.principal) for line in lines] == [
        ("pay_1:captured", 10000, "IDR", "pay_1"),
        ("pay_2:captured", 2500, "JPY", "pay_2"),
        ("ref_1:refunded", 4000, "IDR", "pay_1"),
        ("fee_1:fee", 290, "IDR", "pay_1"),
        ("dis_1:withdrawn:1", 1000, "IDR", "pay_1"),
        ("dis_1:lost", 1000, "IDR", "pay_1"),
        ("DisputeOpened", None, None, "pay_2"),
        ("po_1:paid", 3000, "IDR", None),
    ]
    assert [line.number for line in lines] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert [line.is_summed for line in lines] == [True, True, False, False, False, False, False, False]
    assert lines[0].principal is not None
    assert lines[0].principal.account == "merchant-1"


def test_plain_capture_with_an_id_is_known_by_it() -> None:
    """The id of a capture's line, where there is one and it isn't the payment's, is the capture's."""
    header = b"type,payment,id,account,amount,currency,occurred_at\n"
    named, own, none = read(
        "plain",
        header
        + b"payment.captured,p,c1,,5,IDR,2026-11-30T00:00:00Z\n"
        + b"payment.captured,p,p,,5,IDR,2026-11-30T00:00:00Z\n"
        + b"payment.captured,p,,,5,IDR,2026-11-30T00:00:00Z\n",
    )

    assert (shown(named.principal), named.is_summed) == (("p:captured:c1", 5, "IDR", "p"), False)
    assert (shown(own.principal), own.is_summed) == (("p:captured", 5, "IDR", "p"), True)
    assert shown(none.principal) == shown(own.principal)


def test_stripe_line_is_its_balance_transaction() -> None:
    """Captures are the intent's, refunds and disputes their own; fees are known by the balance transaction."""
    lines = payload("stripe__story.csv")

    assert [shown(line.principal) for line in lines] == [
        ("pi_SekaliStory:captured", 3000, "USD", "pi_SekaliStory"),
        ("pi_SekaliStory:captured", 6000, "USD", "pi_SekaliStory"),
        ("re_SekaliStory1:refunded", 2000, "USD", "pi_SekaliStory"),
        ("re_SekaliStory2:refunded", 500, "USD", "pi_SekaliStory"),
        ("re_SekaliStory2:refunded", 500, "USD", "pi_SekaliStory"),
        ("du_SekaliStory1:withdrawn:txn_SekaliStoryW1", 4000, "USD", "pi_SekaliStory"),
        ("du_SekaliStory1:returned:txn_SekaliStoryB1", 4000, "USD", "pi_SekaliStory"),
        ("du_SekaliStory2:withdrawn:txn_SekaliStoryW2", 1000, "USD", "pi_SekaliStory"),
        ("txn_SekaliStoryF1:fee", 50, "USD", None),
    ]
    assert [shown(fact) for line in lines for fact in line.beside] == [
        ("txn_SekaliStoryC1:fee", 117, "USD", "pi_SekaliStory"),
        ("txn_SekaliStoryC2:fee", 174, "USD", "pi_SekaliStory"),
        ("txn_SekaliStoryW1:fee", 1500, "USD", "pi_SekaliStory"),
        ("txn_SekaliStoryW2:fee", 1500, "USD", "pi_SekaliStory"),
    ]
    kinds = {line.principal.kind for line in lines if line.principal and line.principal.object_id == "re_SekaliStory2"}
    assert kinds == {FactKind.REFUND_SUCCEEDED, FactKind.REFUND_FAILED}
    assert {line.payout for line in lines} == {"po_SekaliStory"}
    assert shown(lines[5].known_as) == ("du_SekaliStory1:withdrawn:1", None, None, None)
    assert lines[0].principal is not None
    assert (lines[0].principal.reference, lines[0].principal.reference_rank) == ("order-story", 2)


def test_stripe_charge_in_another_currency_is_compared_in_the_customers() -> None:
    """The gross is what the customer paid; what became of it is a conversion, the other way round for refunds."""
    charge, refund, payout = payload("stripe__converted.csv")

    assert shown(charge.principal) == ("pi_c1:captured", 1000, "JPY", "pi_c1")
    fee, conversion = charge.beside
    assert shown(fee) == ("txn_c1:fee", 42, "EUR", "pi_c1")
    assert shown(conversion) == ("txn_c1:converted", 1000, "JPY", None)
    assert (conversion.into_minor, conversion.into_currency) == (610, "EUR")
    assert shown(refund.principal) == ("re_c1:refunded", 500, "JPY", "pi_c1")
    (back,) = refund.beside
    assert (back.amount_minor, back.currency, back.into_minor, back.into_currency) == (305, "EUR", 500, "JPY")
    assert (shown(payout.principal), payout.beside, payout.payout) == (("po_2:paid", 263, "EUR", None), (), None)


def _stripe(category: str, gross: str, *, fee: str = "0.00", net: str | None = None) -> bytes:
    header = (
        "balance_transaction_id,created_utc,currency,gross,fee,net,reporting_category,source_id,charge_id,"
        "payment_intent_id\n"
    )
    return f"{header}txn_1,2026-11-30 10:00:00,usd,{gross},{fee},{net or gross},{category},src_1,ch_1,pi_1\n".encode()


@pytest.mark.parametrize(
    ("category", "gross", "kind", "key"),
    [
        ("charge_failure", "-10.00", FactKind.PAYMENT_REVERSED, "pi_1:captured"),
        ("payout", "-10.00", FactKind.PAYOUT_PAID, "src_1:paid"),
        ("payout", "10.00", FactKind.PAYOUT_COLLECTED, "src_1:collected"),
        ("payout_reversal", "10.00", FactKind.PAYOUT_FAILED, "src_1:paid"),
        ("payout_reversal", "-10.00", FactKind.PAYOUT_COLLECTION_FAILED, "src_1:collected"),
        ("network_cost", "-10.00", FactKind.FEE_ASSESSED, "txn_1:fee"),
        ("tax", "10.00", FactKind.FEE_RETURNED, "txn_1:fee-returned"),
    ],
)
def test_stripe_reporting_category_is_a_fact(category: str, gross: str, kind: FactKind, key: str) -> None:
    (line,) = read("stripe", _stripe(category, gross))

    assert line.principal is not None
    assert (line.principal.kind, shown(line.principal)[0]) == (kind, key)  # type: ignore[index]
    assert line.principal.amount_minor == 1000


def test_stripe_partial_capture_reversal_takes_back_from_the_sum() -> None:
    (line,) = read("stripe", _stripe("partial_capture_reversal", "-4.00"))

    assert (line.is_summed, line.sign, shown(line.principal)) == (True, -1, ("pi_1:captured", 400, "USD", "pi_1"))


@pytest.mark.parametrize("category", ["transfer", "topup", "issuing_transaction", "advance", "anything new", ""])
def test_stripe_money_that_is_not_translated_is_unusable(category: str) -> None:
    """A category that nobody gave a place in the books is told, never passed by."""
    (line,) = read("stripe", _stripe(category, "-10.00"))

    assert (line.principal, line.unusable) == (None, "money of this reporting_category is not translated")


def test_stripe_line_whose_net_is_not_gross_less_fee_is_unusable() -> None:
    (line,) = read("stripe", _stripe("charge", "10.00", fee="1.00", net="9.50"))

    assert line.unusable == "net is not gross less fee"


def test_xendit_line_is_its_transaction() -> None:
    """A payment's line names no capture and tells a sum; fee and VAT are what is missing of its net."""
    payment, failed, refund, chargeback, payout = payload("xendit__story.csv")
    py = "py-5d1b0001-0000-4000-8000-00000000000a"

    assert payment.principal is not None
    assert (payment.principal.kind, payment.is_summed) == (FactKind.PAYMENT_CAPTURED_TOTAL, True)
    assert (payment.principal.payment, payment.principal.amount_minor) == (py, 12_500_000)
    assert payment.principal.occurred_at == datetime(2026, 11, 28, 3, 0, 5, tzinfo=UTC)
    assert [shown(fact) for fact in payment.beside] == [("txn-0001:fee", 388_500, "IDR", py)]
    assert (failed.principal, failed.ignored) == (None, "nothing moved, or not yet")
    assert shown(refund.principal) == ("rfd-5d1b0001-0000-4000-8000-0000000000f1:refunded", 2_500_000, "IDR", None)
    dispute = "mi-dspt-5d1b0001-0000-4000-8000-0000000000d1"
    assert shown(chargeback.principal) == (f"{dispute}:withdrawn:1", 9_000_000, "IDR", None)
    assert shown(payout.principal) == ("po-5d1b0003-0000-4000-8000-0000000000e3:paid", 1_000_000, "IDR", None)
    assert [shown(fact) for fact in payout.beside] == [("txn-0005:fee", 277_500, "IDR", None)]


def test_xendit_payment_of_an_invoice_is_known_by_it() -> None:
    header = (
        "Status,Type,Currency,Amount,Net Amount,Reference,Transaction ID,Invoice ID,Product ID,Timestamp - Created\n"
    )
    row = "SUCCESSFUL,PAYMENT,IDR,10000,10000,order-1,txn-1,inv-1,py-1,2026-11-30 10:00:00\n"
    (line,) = read("xendit", (header + row).encode())

    assert (shown(line.principal), line.is_summed) == (("inv-1:captured", 1_000_000, "IDR", "inv-1"), True)
    assert line.principal is not None
    assert line.principal.occurred_at.utcoffset() == timedelta(hours=7)


def test_midtrans_line_is_its_transaction() -> None:
    """Refunds are numbered within their transaction; a fee is known by the line's own id."""
    *lines, expired = payload("midtrans__story.csv")
    transaction = "6f1f7c0e-3a52-4f0a-9d0e-51a1c2d3e4f5"

    assert [shown(line.principal) for line in lines] == [
        (f"{transaction}:captured", 25_000_000, "IDR", transaction),
        (f"{transaction}/1:refunded", 5_000_000, "IDR", transaction),
        (f"{transaction}/2:refunded", 3_000_000, "IDR", transaction),
        (f"{transaction}:withdrawn:chargeback", 25_000_000, "IDR", transaction),
    ]
    assert [shown(fact) for line in lines for fact in line.beside] == [("ln-1:fee", 725_000, "IDR", transaction)]
    assert expired.ignored == "no money in this status"


def test_midtrans_columns_are_named_by_a_mapping() -> None:
    """Whatever the user chose as titles, a mapping says what they mean."""
    content = b"Nomor Pesanan;x\n".replace(b";x", b",id,status,Jumlah,Waktu\n") + (
        b"order-1,t-1,settlement,10000.00,2026-11-30 10:00:00\n"
    )
    columns = {"order_id": "Nomor Pesanan", "transaction_id": "id", "amount": "Jumlah", "occurred_at": "Waktu"}
    (line,) = read("midtrans", content.replace(b"\n\n", b"\n"), columns=columns)

    assert shown(line.principal) == ("t-1:captured", 1_000_000, "IDR", "t-1")


def test_midtrans_refund_without_its_id_is_unusable() -> None:
    """Two refunds of one transaction could not be told apart."""
    content = b"order_id,transaction_id,status,amount,occurred_at\no,t,refund,10.00,2026-11-30 10:00:00\n"
    (line,) = read("midtrans", content)

    assert line.unusable is not None
    assert line.unusable.startswith("refund_id")


def test_adyen_line_is_its_journal() -> None:
    """Costs are what is missing of the net; a batch is paid out once in each currency."""
    lines = payload("adyen__story.csv")

    assert [shown(line.principal) for line in lines] == [
        ("SekaliShopNL/AUTH000000000001:captured", 12_500, "EUR", "AUTH000000000001"),
        ("SekaliShopNL/PSP00000000000C1:refunded", 2_500, "EUR", "AUTH000000000001"),
        ("SekaliShopNL/PSP00000000000C3:refunded", 1_000, "EUR", "AUTH000000000001"),
        ("SekaliShopNL/PSP00000000000C3:refunded", 1_000, "EUR", "AUTH000000000001"),
        ("DISPUTE000000001:withdrawn:1", 5_000, "EUR", "AUTH000000000001"),
        ("DISPUTE000000001:returned:1", 5_000, "EUR", "AUTH000000000001"),
        ("DISPUTE000000001:withdrawn:2", 5_000, "EUR", "AUTH000000000001"),
        ("SekaliShopNL/Transaction Fees November 2026/7/Fee:fee", 120, "EUR", None),
        None,
        ("SekaliShopNL/7/EUR:paid", 3_120, "EUR", None),
    ]
    assert [shown(fact) for line in lines for fact in line.beside] == [
        ("SekaliShopNL/PSP00000000000A1/Settled:fee", 250, "EUR", "AUTH000000000001"),
        ("SekaliShopNL/PSP00000000000C1/Refunded:fee", 10, "EUR", "AUTH000000000001"),
        ("SekaliShopNL/DISPUTE000000001/Chargeback:fee", 1_500, "EUR", "AUTH000000000001"),
    ]
    assert lines[8].ignored == "the balance is carried over to another batch"
    assert lines[0].principal is not None
    assert lines[0].principal.occurred_at.utcoffset() == timedelta(hours=1)


def test_adyen_capture_of_manual_capture_is_known_by_its_own_reference() -> None:
    lines = payload("adyen__story.csv", auto_capture=False)

    assert shown(lines[0].principal) == ("SekaliShopNL/PSP00000000000A1:captured", 12_500, "EUR", "AUTH000000000001")


def test_adyen_payment_in_another_currency_is_compared_in_it() -> None:
    """Rupiah have two digits here and none there; what became of them in the payout's currency is a conversion."""
    settled, refunded = payload("adyen__converted.csv")

    assert shown(settled.principal) == (
        "SekaliShopNL/AUTHIDR000000001:captured",
        25_000_000,
        "IDR",
        "AUTHIDR000000001",
    )
    fee, sold = settled.beside
    assert (fee.amount_minor, fee.currency) == (50, "EUR")
    assert (sold.amount_minor, sold.currency, sold.into_minor, sold.into_currency) == (25_000_000, "IDR", 1_500, "EUR")
    cost, bought = refunded.beside
    assert (cost.amount_minor, cost.currency) == (20, "EUR")
    assert (bought.amount_minor, bought.currency) == (600, "EUR")
    assert (bought.into_minor, bought.into_currency) == (10_000_000, "IDR")


def test_razorpay_item_is_its_entity() -> None:
    """A payment's fee has the key that its webhook gives it; an adjustment with a dispute is its leg."""
    payment, refund, adjustment, transfer = payload("razorpay__story.json")

    assert shown(payment.principal) == ("pay_SekaliStory001:captured", 50_000, "INR", "pay_SekaliStory001")
    assert [shown(fact) for fact in payment.beside] == [("pay_SekaliStory001:fee", 1_180, "INR", "pay_SekaliStory001")]
    assert payment.principal is not None
    assert (payment.principal.reference, payment.principal.reference_rank) == ("order-story", 2)
    assert shown(refund.principal) == ("rfnd_SekaliStory01:refunded", 20_000, "INR", "pay_SekaliStory001")
    assert shown(adjustment.principal) == ("disp_SekaliStory01:withdrawn:1", 10_000, "INR", "pay_SekaliStory001")
    assert transfer.unusable == "money of this type is not translated"
    assert {line.payout for line in (payment, refund, adjustment)} == {"setl_SekaliStory01"}


class _Trickle(io.BytesIO):
    """A file that gives a few bytes at a time."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(7)


def test_json_items_are_read_wherever_the_file_is_cut() -> None:
    """Items and characters of several bytes that stand across two reads are whole."""
    wanted = [{"n": number, "text": "çé☃ [}]" * number} for number in range(20)]
    content = json.dumps({"count": 20, "items": wanted}, ensure_ascii=False).encode()

    assert list(razorpay.items(_Trickle(content))) == wanted


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"not json", b"[", b'[{"a": 1}', b'[{"a": 1,}]', b"[\xff]", b'[{"a":1,"a":2}]']
)
def test_json_that_is_no_whole_list_is_unreadable(content: bytes) -> None:
    with pytest.raises(StatementUnreadable):
        list(razorpay.items(io.BytesIO(content)))


@pytest.mark.parametrize("name", ["plain", "stripe", "xendit", "midtrans", "adyen"])
@pytest.mark.parametrize("content", [b"", b"\n", b"a,b,c\n1,2,3\n", b"\xff\xfe", b'"', b"\x00,\x00\n"])
def test_csv_without_the_formats_columns_is_unreadable(name: str, content: bytes) -> None:
    with pytest.raises(StatementUnreadable):
        read(name, content)


def test_file_that_stops_being_utf8_is_unreadable() -> None:
    content = (
        PAYLOADS / "plain__story.csv"
    ).read_bytes() * 1000 + b"payment.captured,p\xff,,,1,IDR,2026-11-30T00:00:00Z\n"
    with pytest.raises(StatementUnreadable, match="not UTF-8"):
        read("plain", content)


def test_line_with_a_field_too_many_is_unusable_alone() -> None:
    content = (PAYLOADS / "plain__story.csv").read_bytes() + b"payment.captured,p,,,1,IDR,2026-11-30T00:00:00Z,x\n"
    *others, last = read("plain", content)

    assert last.unusable == "the line has more or fewer fields than the header"
    assert all(line.unusable is None for line in others)


def test_byte_order_mark_and_blank_lines_are_nothing() -> None:
    content = (PAYLOADS / "plain__story.csv").read_bytes()
    plain = [shown(line.principal) for line in read("plain", content)]

    assert [shown(line.principal) for line in read("plain", b"\xef\xbb\xbf" + content + b"\r\n\n")] == plain


@pytest.mark.parametrize("name", CSV_FILES)
def test_columns_may_stand_in_any_order(name: str) -> None:
    rows = list(csv.reader((PAYLOADS / name).read_text(encoding="utf-8").splitlines()))
    order = random.Random(name).sample(range(len(rows[0])), len(rows[0]))
    text = io.StringIO()
    csv.writer(text).writerows([row[n] for n in order] for row in rows)

    shuffled = read(name.partition("__")[0], text.getvalue().encode())
    assert [shown(line.principal) for line in shuffled] == [shown(line.principal) for line in payload(name)]


@pytest.mark.parametrize("name", CSV_FILES)
@pytest.mark.parametrize(
    "junk", ["", " ", "-", "0", "-1", "1e3", "NaN", "1,5", "٣", "x" * 300, "a\x00b", "\ud7ff\u200b", "9" * 30, "1.005"]
)
def test_any_field_may_be_junk(name: str, junk: str) -> None:
    """Each field in turn: the line is told, ignored or unusable for a reason; what is told can be keyed and booked."""
    rows = list(csv.reader((PAYLOADS / name).read_text(encoding="utf-8").splitlines()))
    for column in range(len(rows[0])):
        text = io.StringIO()
        changed = [[*row[:column], junk, *row[column + 1 :]] for row in rows[1:]]
        csv.writer(text).writerows([rows[0], *changed])
        try:
            lines = read(name.partition("__")[0], text.getvalue().encode())
        except StatementUnreadable:
            assert "\x00" in junk  # what csv itself refuses
            continue
        assert len(lines) == len(changed)
        for line in lines:
            states = [line.principal is not None, line.ignored is not None, line.unusable is not None]
            assert states.count(True) == 1
            for fact in (line.principal, *line.beside):
                if fact is not None and fact.kind in facts.MONEY:
                    assert base.identifier(fact.object_id, "id") == fact.object_id
                    assert money.amount_minor(fact.amount_minor) == fact.amount_minor
                    assert fact.occurred_at.tzinfo is not None


def test_every_gateway_has_its_format() -> None:
    assert set(statements.OF_GATEWAY) == set(gateways.REGISTRY)
    assert set(statements.OF_GATEWAY.values()) <= set(statements.REGISTRY)


@pytest.mark.parametrize(
    ("text", "currency", "minor"),
    [("", "IDR", 0), ("0.00", "IDR", 0), ("-12.34", "USD", -1234), ("500.00", "JPY", 500), ("1.5", "KWD", 1500)],
)
def test_signed_decimal_is_exact_minor_units(text: str, currency: str, minor: int) -> None:
    assert signed_minor(text, currency) == minor


@pytest.mark.parametrize("text", ["1,000.00", "--1", "1e3", "0x1", "1.005", "½", "1 000"])
def test_what_is_no_plain_decimal_is_no_amount(text: str) -> None:
    with pytest.raises(money.UnusableAmount):
        signed_minor(text, "USD")


@pytest.mark.parametrize(
    ("name", "hours"), [("CET", 1), ("cest", 2), ("+07:00", 7), ("GMT+7", 7), ("UTC-0330", -3.5), ("IST", 5.5)]
)
def test_zone_of_a_statement(name: str, hours: float) -> None:
    assert datetime(2026, 11, 30, tzinfo=zone(name, "zone")).utcoffset() == timedelta(hours=hours)


@pytest.mark.parametrize("name", ["", "Mars", "+99:00", "7"])
def test_zone_that_is_not_known_is_unusable(name: str) -> None:
    with pytest.raises(base.Unusable):
        zone(name, "zone")


def test_time_without_a_zone_needs_one() -> None:
    with pytest.raises(base.Unusable):
        moment("2026-11-30T10:00:00", "time")
    assert moment("2026-11-30T10:00:00+07:00", "time").utcoffset() == timedelta(hours=7)
