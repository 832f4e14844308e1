"""Our verifiers and the official SDKs agree on 1,000 generated deliveries of each gateway, good and bad.

The SDKs read the clock themselves, so deliveries are made around the real now, far from every edge. Where an
SDK is laxer than we are the kind of delivery is named, and the test holds us to being strict.
"""

import base64
import dataclasses
import json
import random
import string
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
import standardwebhooks
import stripe as stripe_sdk
from Adyen import util as adyen_sdk
from razorpay.errors import SignatureVerificationError as RazorpayRefused
from razorpay.utility.utility import Utility as RazorpayUtility

from payments.gateways import adyen, base, razorpay, standard_webhooks, stripe
from tests.unit.gateways import cases, signing

DELIVERIES: Final = 1_000
# The 300 s of the schemes, and a distance from them that no slow test run crosses.
FRESH: Final = range(-240, 241)
STALE: Final = [*range(-4000, -360), -(10**6)]
FUTURE: Final = [*range(360, 4000), 10**6]


@dataclasses.dataclass(frozen=True)
class Made:
    """A generated delivery: how it was made, and what is the same for ours and theirs."""

    kind: str
    headers: dict[str, str]
    body: bytes


def body_of(rng: random.Random, gateway: str) -> bytes:
    """Return a real payload, or some JSON text in any script."""
    if rng.random() < 0.5:
        return rng.choice(list(cases.payloads(gateway).values()))
    text = "".join(rng.choice('aé☃字\U0001f600 \\"\n' + string.printable) for _ in range(rng.randrange(40)))
    return text.encode()


def one_changed(rng: random.Random, text: str, alphabet: str) -> str:
    """Return the text with one character replaced by another of the alphabet."""
    place = rng.randrange(len(text))
    other = rng.choice([character for character in alphabet if character != text[place]])
    return text[:place] + other + text[place + 1 :]


def is_verified(gateway: base.Gateway, made: Made, secret: str) -> bool:
    """Say what our verifier says."""
    try:
        gateway.authenticate(base.Delivery(made.headers, made.body, datetime.now(UTC)), [secret])
    except base.VerificationFailed:
        return False
    return True


def assert_agreement(
    make: Callable[[random.Random], Made],
    ours: Callable[[Made], bool],
    theirs: Callable[[Made], bool],
    alone: Mapping[str, bool],
) -> None:
    """Assert that both say the same, but of the kinds in `alone`: there only we say what stands there."""
    rng, verdicts = random.Random(20261130), Counter[tuple[str, bool, bool]]()
    for _ in range(DELIVERIES):
        made = make(rng)
        verdicts[made.kind, ours(made), theirs(made)] += 1

    surprising = {
        (kind, us, them): count
        for (kind, us, them), count in verdicts.items()
        if (us is not them) is not (kind in alone) or us is not alone.get(kind, us)
    }
    assert surprising == {}
    assert set(alone) <= {kind for kind, _, _ in verdicts}
    accepted = sum(count for (_, us, _), count in verdicts.items() if us)
    assert DELIVERIES // 5 < accepted < DELIVERIES * 4 // 5


# --- Stripe

STRIPE_SECRET: Final = "whsec_of_the_oracle"


def stripe_header(body: bytes, secret: str, seconds: int) -> str:
    """Return the header as the SDK signs it."""
    timestamp = int(datetime.now(UTC).timestamp()) + seconds
    return str(stripe_sdk.WebhookSignature.generate_signature_header(body.decode(), secret, timestamp))


def stripe_delivery(rng: random.Random) -> Made:
    body = body_of(rng, "stripe")
    header = stripe_header(body, STRIPE_SECRET, rng.choice(FRESH))
    time, proof = header.split(",")
    other = stripe_header(body, "whsec_of_another", 0).split(",")[1]
    headers = {
        "good": header,
        "rotated": rng.choice([f"{time},{other},{proof}", f"{time},{proof},{other}", f"{proof},{time}"]),
        "with_v0": f"{header},v0={'0' * 64}",
        "unknown_parts": f"{header},v2=é,x,=,",
        "only_v0": header.replace("v1=", "v0="),
        "wrong": f"{time},v1={one_changed(rng, proof[3:], '0123456789abcdef')}",
        "upper_case": f"{time},v1={proof[3:].upper()}",
        "truncated": header[: rng.randrange(len(header))],
        "spaced": f"{time}, {proof}",
        "other_secret": f"{time},{other}",
        "other_time": f"t={int(time[2:]) + rng.choice([-1, 1, 60])},{proof}",
        "stale": stripe_header(body, STRIPE_SECRET, rng.choice(STALE)),
        "no_time": proof,
        "no_proof": time,
        "garbage": rng.choice(cases.HOSTILE_TEXTS),
        # Laxer: the SDK knows no future, reads times as Python's int() does, and takes the first of two.
        "future": stripe_header(body, STRIPE_SECRET, rng.choice(FUTURE)),
        "loose_time": f"t={rng.choice([' ', '+', '0', '00'])}{time[2:]},{proof}",
        "two_times": f"{header},t=1",
    }
    kind = rng.choice([*headers, "missing", "changed_body", *["good"] * 5, *["rotated"] * 2])
    if kind == "missing":
        return Made(kind, {}, body)
    if kind == "changed_body":
        return Made(kind, {"stripe-signature": header}, body + b" ")
    return Made(kind, {"stripe-signature": headers[kind]}, body)


def test_stripe_agrees_with_its_sdk() -> None:
    """Ours is the SDK's verdict, but that we refuse times from the future, loose times, and two times."""

    def sdk(made: Made) -> bool:
        try:
            stripe_sdk.WebhookSignature.verify_header(
                made.body, made.headers.get("stripe-signature"), STRIPE_SECRET, tolerance=300
            )
        except (stripe_sdk.SignatureVerificationError, TypeError):  # it can't compare what isn't ASCII
            return False
        return True

    assert_agreement(
        stripe_delivery,
        lambda made: is_verified(stripe.Stripe(), made, STRIPE_SECRET),
        sdk,
        alone={"future": False, "loose_time": False, "two_times": False},
    )


# --- Razorpay

RAZORPAY_SECRET: Final = "secret-of-the-oracle"


def razorpay_delivery(rng: random.Random) -> Made:
    body = body_of(rng, "razorpay")
    proof = signing.razorpay(body, RAZORPAY_SECRET).headers["x-razorpay-signature"]
    other = signing.razorpay(body, "another-secret").headers["x-razorpay-signature"]
    proofs = {
        "good": proof,
        "wrong": one_changed(rng, proof, "0123456789abcdef"),
        "upper_case": proof.upper(),
        "truncated": proof[: rng.randrange(len(proof))],
        "longer": proof + rng.choice(["0", " ", ",", f",{proof}"]),
        "other_secret": other,
        "garbage": rng.choice(cases.HOSTILE_TEXTS),
    }
    kind = rng.choice([*proofs, "missing", "changed_body", *["good"] * 5])
    if kind == "missing":
        return Made(kind, {}, body)
    if kind == "changed_body":
        return Made(kind, {"x-razorpay-signature": proof}, body + rng.choice([b" ", b"\n", b"0"]))
    return Made(kind, {"x-razorpay-signature": proofs[kind]}, body)


def test_razorpay_agrees_with_its_sdk() -> None:
    """Ours is the SDK's verdict, without exception."""
    utility = RazorpayUtility()

    def sdk(made: Made) -> bool:
        try:
            utility.verify_webhook_signature(
                made.body.decode(), made.headers.get("x-razorpay-signature", ""), RAZORPAY_SECRET
            )
        except (RazorpayRefused, TypeError):  # it can't compare what isn't ASCII
            return False
        return True

    assert_agreement(
        razorpay_delivery, lambda made: is_verified(razorpay.Razorpay(), made, RAZORPAY_SECRET), sdk, alone={}
    )


# --- Standard Webhooks

WEBHOOKS_SECRET: Final = "whsec_b3JhY2xlLW9mLXRoZS10ZXN0cy0wMDAwMDAwMDA="


def webhooks_headers(body: bytes, secret: str, seconds: int, event_id: str = "msg_oracle") -> dict[str, str]:
    """Return the headers as the SDK signs them."""
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": standardwebhooks.Webhook(secret).sign(event_id, at, body.decode()),
    }


def webhooks_delivery(rng: random.Random) -> Made:
    body = body_of(rng, "standard_webhooks")
    good = webhooks_headers(body, WEBHOOKS_SECRET, rng.choice(FRESH))
    proof = good["webhook-signature"]
    other = webhooks_headers(body, "whsec_YW5vdGhlci1zZWNyZXQ=", 0)["webhook-signature"]
    alphabet = string.ascii_letters + string.digits + "+/"
    changes: dict[str, dict[str, str]] = {
        "good": {},
        "rotated": {"webhook-signature": rng.choice([f"{other} {proof}", f"{proof} {other}"])},
        "other_scheme": {"webhook-signature": f"v1a,{base64.b64encode(b'x' * 64).decode()} {proof}"},
        "only_other_scheme": {"webhook-signature": proof.replace("v1,", "v1a,")},
        # The last character of 32 bytes in base64 holds 2 bits that mean nothing: it isn't changed here.
        "wrong": {"webhook-signature": f"v1,{one_changed(rng, proof[3:-2], alphabet)}{proof[-2:]}"},
        "truncated": {"webhook-signature": proof[: rng.randrange(len(proof))]},
        "other_secret": {"webhook-signature": other},
        "other_id": {"webhook-id": "msg_else"},
        "other_time": {"webhook-timestamp": str(int(good["webhook-timestamp"]) + rng.choice([-1, 1, 60]))},
        "no_time": {"webhook-timestamp": rng.choice(["", "now", "NaN", "1e400"])},
        "stale": webhooks_headers(body, WEBHOOKS_SECRET, rng.choice(STALE)),
        "future": webhooks_headers(body, WEBHOOKS_SECRET, rng.choice(FUTURE)),
        "garbage": {"webhook-signature": rng.choice(cases.HOSTILE_TEXTS)},
        # Laxer: the SDK reads times as floats, skips what isn't base64 in a signature, and takes any id.
        "loose_time": {"webhook-timestamp": good["webhook-timestamp"] + rng.choice([".0", ".9", " "])},
        "loose_base64": {"webhook-signature": f"{proof[:10]}{rng.choice('!*~-')}{proof[10:]}"},
        "any_id": webhooks_headers(body, WEBHOOKS_SECRET, 0, rng.choice(["é", "x" * 256, "\x7f"])),
        # Stricter: the SDK fails at a part that has no comma before it comes to the good one.
        "part_without_comma": {"webhook-signature": f"v1 {proof}"},
    }
    kind = rng.choice([*changes, "missing", "changed_body", *["good"] * 5, *["rotated"] * 2])
    if kind == "missing":
        dropped = rng.choice(list(good))
        return Made(kind, {name: value for name, value in good.items() if name != dropped}, body)
    if kind == "changed_body":
        return Made(kind, good, body + b" ")
    return Made(kind, {**good, **changes[kind]}, body)


def test_standard_webhooks_agrees_with_its_sdk() -> None:
    """Ours is the SDK's verdict, but that we refuse loose times, loose base64 and ids that can't be kept."""
    webhook = standardwebhooks.Webhook(WEBHOOKS_SECRET)

    def sdk(made: Made) -> bool:
        try:
            webhook.verify(made.body, made.headers, json_parse=False)
        except (standardwebhooks.WebhookVerificationError, ValueError):
            return False
        return True

    assert_agreement(
        webhooks_delivery,
        lambda made: is_verified(standard_webhooks.StandardWebhooks(), made, WEBHOOKS_SECRET),
        sdk,
        alone={"loose_time": False, "loose_base64": False, "any_id": False, "part_without_comma": True},
    )


# --- Adyen

ADYEN_SECRET: Final = "0123456789ABCDEF" * 4


def adyen_item(rng: random.Random) -> dict[str, Any]:
    """Return an unsigned item: of a payload, or with a merchant's reference in any script."""
    body = json.loads(rng.choice(list(cases.payloads("adyen").values())))
    item: dict[str, Any] = body["notificationItems"][0]["NotificationRequestItem"]
    if rng.random() < 0.5:
        item["merchantReference"] = "".join(rng.choices('aé☃字\\:/|" 0\n', k=rng.randrange(20)))
        item["amount"]["value"] = rng.randrange(10**6)
    return item


def adyen_signed(item: dict[str, Any], secret: str = ADYEN_SECRET) -> dict[str, Any]:
    """Return the item as the SDK signs it."""
    proof = adyen_sdk.generate_notification_sig(item, secret).decode()
    return {**item, "additionalData": {**item.get("additionalData", {}), "hmacSignature": proof}}


def adyen_reproved(item: dict[str, Any], proof: str) -> dict[str, Any]:
    return {**item, "additionalData": {**item["additionalData"], "hmacSignature": proof}}


def adyen_delivery(rng: random.Random) -> Made:
    plain = adyen_item(rng)
    signed, bad = adyen_signed(plain), adyen_signed(adyen_item(rng), "AB" * 32)
    proof: str = signed["additionalData"]["hmacSignature"]
    alphabet, account = string.ascii_letters + string.digits + "+/", plain["merchantAccountCode"]
    items: dict[str, list[dict[str, Any]]] = {
        "good": [signed],
        "two_good": [signed, adyen_signed(adyen_item(rng))],
        "more_data": [{**signed, "reason": "é", "additionalData": {**signed["additionalData"], "x": "y"}}],
        "without_reference": [adyen_signed({k: v for k, v in plain.items() if k != "merchantReference"})],
        "other_amount": [{**signed, "amount": {**plain["amount"], "value": 10**7 + rng.randrange(9)}}],
        "other_success": [{**signed, "success": "maybe"}],
        "other_payment": [{**signed, "originalReference": "ANOTHER000000001"}],
        "other_secret": [bad],
        "wrong": [adyen_reproved(signed, one_changed(rng, proof[:-2], alphabet) + proof[-2:])],
        "truncated": [adyen_reproved(signed, proof[: rng.randrange(len(proof))])],
        "longer": [adyen_reproved(signed, proof + rng.choice([" ", "=", ",", proof]))],
        "garbage": [adyen_reproved(signed, rng.choice(cases.HOSTILE_TEXTS))],
        "unsigned": [plain],
        "bad_first": [bad, signed],
        # Laxer: the SDK looks at the first item only, and signs colons anywhere and true as the text True.
        "bad_second": [signed, bad],
        "colon_elsewhere": [adyen_signed({**plain, "merchantAccountCode": f"{account}:x"})],
        "boolean_success": [adyen_signed({**plain, "success": True})],
        # Stricter: to the SDK null is the text None, to us it is as if absent.
        "null_reference": [{**adyen_signed({**plain, "merchantReference": ""}), "merchantReference": None}],
    }
    kind = rng.choice([*items, *["good"] * 7, "two_good"])
    wrapped = [{"NotificationRequestItem": item} for item in items[kind]]
    return Made(kind, {}, json.dumps({"live": "true", "notificationItems": wrapped}).encode())


def test_adyen_agrees_with_its_sdk() -> None:
    """Ours is the SDK's verdict, but that we verify every item and are strict about colons and types."""

    def sdk(made: Made) -> bool:
        try:
            return bool(adyen_sdk.is_valid_hmac_notification(json.loads(made.body), ADYEN_SECRET))
        except (ValueError, KeyError, TypeError):  # nothing to compare, or what it can't compare
            return False

    assert_agreement(
        adyen_delivery,
        lambda made: is_verified(adyen.Adyen(), made, ADYEN_SECRET),
        sdk,
        alone={
            "bad_second": False,
            "colon_elsewhere": False,
            "boolean_success": False,
            "null_reference": True,
        },
    )


# --- our signers


@pytest.mark.parametrize("header", ["webhook-signature", "webhook-id", "webhook-timestamp"])
def test_standard_webhooks_own_signer_is_the_sdks(header: str) -> None:
    """Test code and SDK, written by different people, sign alike."""
    body, secret = cases.payload("standard_webhooks", "payment.captured__typical"), WEBHOOKS_SECRET
    ours = signing.standard_webhooks(body, secret, event_id="msg_1").headers
    theirs = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(signing.NOW.timestamp())),
        "webhook-signature": standardwebhooks.Webhook(secret).sign("msg_1", signing.NOW, body.decode()),
    }

    assert ours[header] == theirs[header]


def test_stripes_own_signer_is_the_sdks() -> None:
    """Test code and SDK, written by different people, sign alike."""
    body = cases.payload("stripe", "payment_intent.succeeded__typical")

    ours = signing.stripe(body, STRIPE_SECRET).headers["stripe-signature"]

    assert ours == stripe_sdk.WebhookSignature.generate_signature_header(
        body.decode(), STRIPE_SECRET, int(signing.NOW.timestamp())
    )


def test_adyens_own_signer_is_the_sdks() -> None:
    """Test code and SDK, written by different people, sign alike."""
    for body in cases.payloads("adyen").values():
        for wrapper in json.loads(body)["notificationItems"]:
            item = wrapper["NotificationRequestItem"]

            theirs = adyen_sdk.generate_notification_sig(item, ADYEN_SECRET).decode()

            assert signing.adyen_signature(item, ADYEN_SECRET) == theirs
