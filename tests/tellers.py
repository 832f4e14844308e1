"""How each gateway tells a history: the bodies that it sends, made of its payloads in tests/payloads."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

from tests.histories import Abilities, Dispute, History
from tests.unit.gateways import cases

Bodies = list[bytes]


def _of(gateway: str, name: str, **changes: Any) -> bytes:
    return cases.variant(cases.payload(gateway, name), **changes)


def standard_webhooks(history: History) -> Bodies:
    def say(event_type: str, **data: Any) -> bytes:
        payment = {} if event_type.startswith("payout") else {"payment": "pay_1", "account": "merchant-1"}
        body = cases.payload("standard_webhooks", "payment.captured__typical")
        return cases.variant(body, type=event_type, data={**payment, "currency": "IDR", **data})

    said = [say(f"payment.{what}") for what in history.before]
    if history.authorized:
        said.append(say("payment.authorized", amount=history.authorized))
    for number, amount in enumerate(history.captures):
        said.append(say("payment.captured", capture=f"c{number}", amount=amount))
        if number >= len(history.captures) - history.reversed_captures:
            said.append(say("payment.reversed", capture=f"c{number}", amount=amount))
    if history.fee:
        said.append(say("fee.assessed", fee="fee_1", amount=history.fee))
    for number, refund in enumerate(history.refunds):
        fates = {"undone": ("requested", "succeeded", "failed"), "failed": ("requested", "failed")}
        for fate in fates.get(refund.fate, (refund.fate,)):
            said.append(say(f"refund.{fate}", refund=f"r{number}", amount=refund.amount))
    for number, one in enumerate(history.disputes):
        of = {"dispute": f"d{number}", "amount": one.amount}
        said.append(say("dispute.opened", **of))
        said += [say("dispute.funds_withdrawn", movement=leg, **of) for leg in range(1, one.out + 1)]
        said += [say("dispute.funds_returned", movement=leg, **of) for leg in range(1, one.back + 1)]
        if one.end:
            said.append(say(f"dispute.{one.end}", movement=max(1, one.out), **of))
    for number, payout in enumerate(history.payouts):
        for what in ("paid", "failed")[: 1 + payout.is_undone]:
            said.append(say(f"payout.{what}", payout=f"po{number}", amount=payout.amount))
    return said


def _stripe(name: str, event_type: str, **changes: Any) -> bytes:
    members = {"metadata": {"order_id": "order-1"}, **changes}
    about = {f"data__object__{member}": value for member, value in members.items()}
    return _of("stripe", name, type=event_type, **about)


def stripe(history: History) -> Bodies:
    """Automatic capture: the intent, its charge and its checkout session tell one payment, with one amount."""
    charge = {"payment_intent": "pi_1", "id": "ch_1", "amount": history.captured, "amount_captured": history.captured}
    said = [_stripe("charge.succeeded__automatic", "charge.succeeded", **charge)]
    intent = {"id": "pi_1", "amount": history.captured, "amount_received": history.captured}
    said.append(_stripe("payment_intent.succeeded__typical", "payment_intent.succeeded", **intent))
    return _numbered(said + _stripe_rest(history, charge))


def stripe_manual(history: History) -> Bodies:
    """Captures on demand: each event tells only the sum so far."""
    charge = {"payment_intent": "pi_1", "id": "ch_1", "amount": history.captured, "amount_captured": history.captured}
    said = []
    for total in accumulate(history.captures):
        told = {**charge, "amount_captured": total}
        said.append(_stripe("charge.captured__story_first", "charge.captured", **told))
    intent = {"id": "pi_1", "amount": history.captured, "amount_received": history.captured}
    said.append(_stripe("payment_intent.succeeded__story", "payment_intent.succeeded", **intent))
    return _numbered(said + _stripe_rest(history, charge))


_STRIPE_BEFORE: Final = {
    "pending": ("payment_intent.created__story", "payment_intent.created"),
    "failed": ("payment_intent.payment_failed__attempt", "payment_intent.payment_failed"),
    "voided": ("payment_intent.canceled__before_capture", "payment_intent.canceled"),
}


_STRIPE_REFUNDS: Final = {
    "requested": ("pending",),
    "succeeded": ("succeeded",),
    "failed": ("pending", "failed"),
    "undone": ("pending", "succeeded", "failed"),
}


def _stripe_rest(history: History, charge: dict[str, Any]) -> Bodies:
    said = [_stripe(*_STRIPE_BEFORE[what], id="pi_1") for what in history.before]
    if history.authorized:
        hold = {"id": "pi_1", "amount_capturable": history.authorized}
        said.append(
            _stripe(
                "payment_intent.amount_capturable_updated__hold", "payment_intent.amount_capturable_updated", **hold
            )
        )
    told = 0
    for number, one in enumerate(history.refunds):
        refund = {"id": f"re_{number}", "payment_intent": "pi_1", "amount": one.amount}
        statuses = {
            "undone": ("pending", "succeeded", "failed"),
            "failed": ("pending", "failed"),
            "requested": ("pending",),
        }
        for status in statuses.get(one.fate, ("succeeded",)):
            event_type = {"failed": "refund.failed", "pending": "refund.created"}.get(status, "refund.updated")
            said.append(_stripe("refund.created__story_first", event_type, status=status, **refund))
        # A charge tells the sum of its refunds, also of those that fail later.
        if one.fate != "requested":
            told += one.amount
            said.append(_stripe("charge.refunded__total", "charge.refunded", **{**charge, "amount_refunded": told}))
    for number, dispute in enumerate(history.disputes):
        said += _stripe_dispute(f"du_{number}", dispute)
    for number, payout in enumerate(history.payouts):
        for what in ("paid", "failed")[: 1 + payout.is_undone]:
            said.append(_stripe("payout.paid__story", f"payout.{what}", id=f"po_{number}", amount=payout.amount))
    return said


def _numbered(said: Bodies) -> Bodies:
    return [cases.variant(body, id=f"evt_{number}") for number, body in enumerate(said)]


def _stripe_dispute(dispute_id: str, dispute: Dispute) -> Bodies:
    legs: list[dict[str, Any]] = []

    def say(event_type: str, **members: Any) -> bytes:
        about = {
            "id": dispute_id,
            "payment_intent": "pi_1",
            "amount": dispute.amount,
            "balance_transactions": list(legs),
        }
        return _stripe(
            "charge.dispute.funds_withdrawn__story_first", f"charge.dispute.{event_type}", **about, **members
        )

    said = [say("created")]
    for leg in range(max(dispute.out, dispute.end == "lost")):
        legs.append({"id": f"txn_{dispute_id}_out{leg}", "amount": -dispute.amount, "currency": "usd"})
        if leg < dispute.out:
            said.append(say("funds_withdrawn"))
        if leg < dispute.back:
            legs.append({"id": f"txn_{dispute_id}_back{leg}", "amount": dispute.amount, "currency": "usd"})
            said.append(say("funds_reinstated"))
    if dispute.end:
        said.append(say("closed", status=dispute.end))
    return said


def midtrans(history: History) -> Bodies:
    def major(amount: int) -> str:
        return f"{amount // 100}.00"

    def say(name: str, **changes: Any) -> bytes:
        transaction = {"transaction_id": "trx-1", "order_id": "order-1", "payment_type": "credit_card"}
        return _of("midtrans", name, **transaction, gross_amount=major(history.captured), **changes)

    names = {"pending": "pending__bank_transfer", "failed": "failure__gopay", "expired": "expire__bank_transfer"}
    said = [say(names[what]) for what in history.before]
    if history.authorized:
        said.append(say("authorize__card"))
    said += [say("capture__card"), say("settlement__card")]
    if history.reversed_captures:
        said += [say("cancel__card"), say("deny__after_settlement")]
    # Each notification lists all refunds so far, those of before with the bank's confirmation.
    listed: list[dict[str, Any]] = []
    for number, refund in enumerate(history.refunds):
        one = {
            "refund_chargeback_id": number,
            "refund_amount": major(refund.amount),
            "created_at": "2026-11-30 08:00:00",
        }
        said.append(say("partial_refund__requested", refunds=[*listed, one]))
        if refund.fate == "succeeded":
            one = {**one, "bank_confirmed_at": "2026-11-30 11:00:00"}
            said.append(say("partial_refund__confirmed", refunds=[*listed, one]))
        listed.append(one)
    if history.disputes:
        said.append(say("chargeback__card"))
    return said


def xendit(history: History) -> Bodies:
    """Captures one by one, in events that list all so far."""
    listed: list[dict[str, Any]] = []
    said = []
    for number, amount in enumerate(history.captures):
        listed.append({"capture_id": f"cap-{number}", "capture_amount": amount // 100})
        said.append(_xendit("payment.capture__captures", payment_id="py-1", captures=list(listed)))
    return said + _xendit_rest(history)


def xendit_totals(history: History) -> Bodies:
    """A payment request of version 2, and an event of version 3 that lists no capture: both tell the sum."""
    major = history.captured // 100
    said = [
        _xendit("payment.succeeded__version_2", id="py-1", amount=f"{major}.0", currency="IDR"),
        _xendit("payment.capture__captures", payment_id="py-1", request_amount=major, captures=[]),
    ]
    return said + _xendit_rest(history)


def _xendit(name: str, **changes: Any) -> bytes:
    members = {"reference_id": "order-1", **changes}
    return _of("xendit", name, **{f"data__{member}": value for member, value in members.items()})


def _xendit_rest(history: History) -> Bodies:
    names = {"failed": "payment.failure__card", "expired": "payment.expiry__virtual_account"}
    said = [_xendit(names[what], payment_id="py-1") for what in history.before]
    if history.authorized:
        hold = {"payment_id": "py-1", "request_amount": history.authorized // 100}
        said.append(_xendit("payment.authorization__card", **hold))
    for number, one in enumerate(history.refunds):
        refund = {"id": f"rfd-{number}", "payment_id": "py-1", "invoice_id": None, "amount": one.amount // 100}
        for fate in {"undone": ("succeeded", "failed")}.get(one.fate, (one.fate,)):
            said.append(_xendit(f"refund.{fate}__card", **refund))
    for number, dispute in enumerate(history.disputes):
        of = {"id": f"dspt-{number}", "payment_id": "py-1", "reference_id": "order-1"}
        told = {"initial": f"{dispute.amount // 100}.00", "terminal": None}
        for what in ("action_required", dispute.end):
            said += [_of("xendit", f"dispute.{what}__card", amount=told, **of)] if what else []
    for number, payout in enumerate(history.payouts):
        for what in ("succeeded__idr", "reversed__idr")[: 1 + payout.is_undone]:
            taken = {"payout_id": f"po-{number}", "source_amount": payout.amount // 100}
            said.append(_xendit(f"v3_payout.{what}", **taken))
    return said


def _adyen(code: str, amount: int, psp: str, *, original: str | None = "AUTH1", success: bool = True) -> bytes:
    payload = "AUTHORISATION__success" if original is None else "REFUND__success"
    members: dict[str, Any] = {"eventCode": code, "pspReference": psp, "success": str(success).lower()}
    if original is not None:
        members["originalReference"] = original
    members["amount__value"] = amount
    item = {f"notificationItems__0__NotificationRequestItem__{name}": value for name, value in members.items()}
    return _of("adyen", payload, **item)


def adyen(history: History) -> Bodies:
    """Auto-capture: the authorisation is the capture."""
    amount = history.captured
    said = [_adyen("AUTHORISATION", amount, "AUTH1", original=None), _adyen("CAPTURE", amount, "CAP0")]
    if history.reversed_captures:
        said += [_adyen("CAPTURE_FAILED", amount, "CAP0"), _adyen("CANCELLATION", amount, "CANCEL1")]
    return said + _adyen_rest(history)


def adyen_manual(history: History) -> Bodies:
    """Captures on demand, each with a reference of its own."""
    said = [_adyen("AUTHORISATION", history.captured, "AUTH1", original=None)]
    for number, amount in enumerate(history.captures):
        said.append(_adyen("CAPTURE", amount, f"CAP{number}"))
        if number >= len(history.captures) - history.reversed_captures:
            said.append(_adyen("CAPTURE_FAILED", amount, f"CAP{number}"))
    return said + _adyen_rest(history)


def _adyen_rest(history: History) -> Bodies:
    said = []
    for what in history.before:
        if what == "failed":
            said.append(_adyen("AUTHORISATION", history.captured, "AUTH1", original=None, success=False))
        else:
            said.append(_adyen("EXPIRE", history.captured, "EXPIRE1"))
    for number, refund in enumerate(history.refunds):
        psp = f"REF{number}"
        if refund.fate != "failed":
            said.append(_adyen("REFUND", refund.amount, psp))
        if refund.fate == "failed":
            said.append(_adyen("REFUND", refund.amount, psp, success=False))
        if refund.fate == "undone":
            said.append(_adyen("REFUND_FAILED", refund.amount, psp))
    for number, dispute in enumerate(history.disputes):
        codes = ["NOTIFICATION_OF_CHARGEBACK"]
        codes += ["CHARGEBACK", "CHARGEBACK_REVERSED", "SECOND_CHARGEBACK"][: dispute.out + dispute.back]
        codes += [f"PREARBITRATION_{dispute.end.upper()}"] if dispute.end else []
        said += [_adyen(code, dispute.amount, f"DISPUTE{number}") for code in codes]
    return said


def razorpay(history: History) -> Bodies:
    payment = {
        "id": "pay_1",
        "amount": history.captured,
        "currency": "INR",
        "order_id": "order_1",
        "notes": {"order_id": "order-1"},
        "captured": True,
        "fee": history.fee or None,
    }

    def say(name: str, event_type: str, **entities: Any) -> bytes:
        changes = {f"payload__{entity}": {"entity": members} for entity, members in entities.items()}
        return _of("razorpay", name, event=event_type, **changes)

    said = [say("payment.captured__story", what, payment=payment) for what in ("payment.captured", "payment_link.paid")]
    said.append(say("order.paid__story", "order.paid", payment=payment))
    early = {**payment, "fee": None, "captured": False}
    said += [say("payment.captured__story", f"payment.{what}", payment=early) for what in history.before]
    if history.authorized:
        said.append(say("payment.captured__story", "payment.authorized", payment=early))
    for number, one in enumerate(history.refunds):
        refund = {"id": f"rfnd_{number}", "payment_id": "pay_1", "amount": one.amount, "currency": "INR"}
        fates = {"undone": ("processed", "failed"), "failed": ("created", "failed"), "requested": ("created",)}
        for fate in fates.get(one.fate, ("created", "processed")):
            said.append(say("refund.processed__story_first", f"refund.{fate}", refund=refund, payment=payment))
    for number, one_dispute in enumerate(history.disputes):
        dispute = {"id": f"disp_{number}", "payment_id": "pay_1", "amount": one_dispute.amount, "currency": "INR"}
        deducted = {**dispute, "amount_deducted": one_dispute.amount if one_dispute.end == "lost" else 0}
        said.append(say("payment.dispute.lost__story", "payment.dispute.created", dispute=dispute))
        if one_dispute.end:
            for event_type in (f"payment.dispute.{one_dispute.end}", "payment.dispute.closed"):
                told = {**deducted, "status": one_dispute.end if event_type.endswith(one_dispute.end) else "closed"}
                said.append(say("payment.dispute.lost__story", event_type, dispute=told))
    for number, payout in enumerate(history.payouts):
        settlement = {"id": f"setl_{number}", "amount": payout.amount}
        said.append(say("settlement.processed__story", "settlement.processed", settlement=settlement))
    return said


@dataclass(frozen=True)
class Speaker:
    """A gateway that tells histories: where to, with what abilities, and how. payment: its reference in all of them."""

    gateway: str
    slug: str
    currency: str
    payment: str
    can: Abilities
    tell: Callable[[History], Bodies]
    auto_capture: bool = True


_DEMO: Final = Abilities(
    before=frozenset({"pending", "failed", "expired", "voided"}),
    captures_max=3,
    reverses=True,
    fees=True,
    fates=("requested", "succeeded", "failed", "undone"),
    courses=tuple((out, back, end) for out in (0, 1, 2) for back in range(out + 1) for end in ("", "won", "lost")),
)
_STRIPE: Final = Abilities(
    before=frozenset({"pending", "failed", "voided"}),
    fates=("requested", "succeeded", "failed", "undone"),
    courses=((0, 0, ""), (0, 0, "lost"), (1, 0, ""), (1, 0, "lost"), (1, 1, "won"), (2, 1, ""), (2, 1, "lost")),
    payouts_negative=True,
)
_MIDTRANS: Final = Abilities(
    before=frozenset({"pending", "failed", "expired"}),
    reverses=True,
    fates=("requested", "succeeded"),
    over_refunds=False,
    courses=((1, 0, ""),),
    disputes_max=1,
    disputes_whole=True,
    payouts_max=0,
)
_XENDIT: Final = Abilities(
    before=frozenset({"failed", "expired"}),
    courses=((0, 0, ""), (0, 0, "won"), (0, 0, "lost")),
)
_ADYEN: Final = Abilities(
    before=frozenset({"failed", "expired"}),
    reverses=True,
    courses=((0, 0, ""), (1, 0, ""), (1, 1, ""), (1, 1, "won"), (2, 1, ""), (2, 1, "won"), (2, 1, "lost")),
    payouts_max=0,
)
_RAZORPAY: Final = Abilities(
    before=frozenset({"pending", "failed"}),
    fees=True,
    fates=("requested", "succeeded", "failed", "undone"),
    courses=((0, 0, ""), (0, 0, "won"), (0, 0, "lost")),
    payouts_fail=False,
)
_SEVERAL: Final[dict[str, Any]] = {"captures_max": 3}
SPEAKERS: Final[dict[str, Speaker]] = {
    "standard_webhooks": Speaker("standard_webhooks", "demo", "IDR", "pay_1", _DEMO, standard_webhooks),
    "stripe": Speaker("stripe", "stripe", "USD", "pi_1", _STRIPE, stripe),
    "stripe, manual capture": Speaker("stripe", "stripe", "USD", "pi_1", replace(_STRIPE, **_SEVERAL), stripe_manual),
    "midtrans": Speaker("midtrans", "midtrans", "IDR", "trx-1", _MIDTRANS, midtrans),
    "xendit": Speaker("xendit", "xendit", "IDR", "py-1", replace(_XENDIT, **_SEVERAL), xendit),
    "xendit, totals": Speaker("xendit", "xendit", "IDR", "py-1", _XENDIT, xendit_totals),
    "adyen": Speaker("adyen", "adyen", "EUR", "AUTH1", _ADYEN, adyen),
    "adyen, manual capture": Speaker(
        "adyen", "adyen", "EUR", "AUTH1", replace(_ADYEN, **_SEVERAL), adyen_manual, auto_capture=False
    ),
    "razorpay": Speaker("razorpay", "razorpay", "INR", "pay_1", _RAZORPAY, razorpay),
}
