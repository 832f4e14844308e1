"""The cases that every gateway passes, so that a new one can't forget one.

A subclass names its gateway, its secrets and one good body, and says what its scheme can do (has_age and
has_several; the gateway itself says its assurance). Where a case doesn't apply the opposite is asserted, so
that a reader learns what a signature doesn't prove. Nothing here knows a gateway: see test_stripe.py.
"""

import dataclasses
import json
import random
import tomllib
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from payments import facts, money
from payments.gateways import base
from tests.unit.gateways.signing import NOW, SIGN

PAYLOADS: Final = Path(__file__).parents[2] / "payloads"
TOLERANCE: Final = timedelta(seconds=300)

# What nobody honest sends as a proof: latin-1, beyond latin-1 (inside bodies), controls, 60 kB of everything.
HOSTILE_TEXTS: Final = [
    *("é", "\xff" * 40, "\x00", "\r\n", "☃", "\ud800", "t", "=", ",", "v1", "v1=", "v1,", "t=,v1=", "null"),
    *("-1", "0" * 64, "f" * 64, "é" * 64, "=" * 44, "A" * 43 + "=", "t=1,v1=é", "t=é,v1=1", "t=²,v1=1"),
    *("v1,é", "v1,=", "t=-1,v1=1", "t=1.5,v1=1", "t=1e9,v1=1", "t=1,t=1,v1=1", "v1=1", "T=1,V1=1"),
    *("t=" + "9" * 5000 + ",v1=1", "a" * 60_000, "é" * 60_000, "0" * 60_000, " " * 60_000, "," * 60_000),
    *("v1," * 20_000, "v1=" * 20_000, "t=1," * 15_000, "t=1,v1=a," * 6_700, "v1,a " * 12_000),
]
# What nobody honest sends as a body.
GARBAGE_BODIES: Final = [
    *(b"", b" ", b"\x00", b"\xff\xfe", b"null", b"true", b"0", b"-1", b"1e400", b"NaN", b'"', b'"x"', b"[]"),
    *(b"{}", b"[[]]", b"[{}]", b"[null]", b"{", b"}", b'{"id":', b'{"a":1,"a":2}', b"\xef\xbb\xbf{}"),
    *(b"[" * 100_000, b'{"a":' * 50_000, b"[" * 100 + b"]" * 100, b"9" * 10_000, b'{"id":"\\ud800"}'),
    *(random.Random(seed).randbytes(200) for seed in range(20)),
]
CANARY: Final = "cAnArY"
# What may stand in place of any value of an event. Texts long enough to be recognised carry the canary.
JUNK: Final[list[Any]] = [
    *(None, True, False, 0, 1, -1, 2**53, 10**18, -(10**18), 10**30, 1.5, "", " ", "0", "-1", "1.5", "1e3"),
    *("٣", "NaN", CANARY, CANARY * 50, f"{CANARY}\x00", f"{CANARY}\n", f"{CANARY}:%é", f"{CANARY}\ud800"),
    *("9" * 400, [], [None], [[]], [CANARY], [{}], {}, {"id": None}, {"id": CANARY}, {"data": None}),
    *({"data": [None, {}]}, {CANARY: CANARY}, {"entity": None}, {"entity": []}, {"object": 1}),
]


def payload(gateway: str, name: str) -> bytes:
    """Return the bytes of tests/payloads/<gateway>/<name>.json."""
    return (PAYLOADS / gateway / f"{name}.json").read_bytes()


def payloads(gateway: str) -> dict[str, bytes]:
    """Return all payloads of a gateway by name."""
    return {path.stem: path.read_bytes() for path in sorted((PAYLOADS / gateway).glob("*.json"))}


def story(gateway: str) -> dict[str, Any]:
    """Return tests/payloads/<gateway>/story.toml: the events of one payment in order, and where they end."""
    return tomllib.loads((PAYLOADS / gateway / "story.toml").read_text(encoding="utf-8"))


def variant(body: bytes, **changes: Any) -> bytes:
    """Return the JSON body with members changed, named by path: `data__object__amount=5`; ... removes."""
    document = json.loads(body)
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = document
        for name in parents:
            target = target[int(name)] if isinstance(target, list) else target[name]
        if value is ...:
            del target[last]
        elif isinstance(target, list):
            target[int(last)] = value
        else:
            target[last] = value
    return json.dumps(document).encode()


def mutants(body: bytes) -> Iterator[bytes]:
    """Yield the JSON body with every value in turn removed, and replaced by every junk."""
    document = json.loads(body)
    for container, name in list(_places(document)):
        original = container[name]
        for junk in JUNK:
            container[name] = junk
            yield json.dumps(document).encode()
        container[name] = original
        if isinstance(container, dict):
            without = {key: value for key, value in container.items() if key != name}
            kept = dict(container)
            container.clear()
            container.update(without)
            yield json.dumps(document).encode()
            container.clear()
            container.update(kept)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    # Of a list the first two items will do: the others are like them.
    children: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value[:2]))
    for name, child in children:
        yield value, name
        yield from _places(child)


def assert_sound(notices: list[base.Notice]) -> None:
    """Assert what every notice owes the rest of the product, whatever the body held."""
    assert notices
    for notice in notices:
        assert base.is_printable_ascii(notice.event_id)
        assert notice.event_type == "" or notice.event_type.isprintable()
        assert len(notice.event_type) <= base.ID_LENGTH_MAX
        assert notice.occurred_at.utcoffset() == timedelta(0)
        assert all(isinstance(value, str) and len(value) == 16 for value in notice.fingerprint.values())
        assert [bool(notice.facts), notice.ignored is not None, notice.unusable is not None].count(True) == 1
        for reason in (notice.ignored, notice.unusable):
            assert reason is None or (0 < len(reason) <= 200 and CANARY.lower() not in reason.lower())
        for fact in notice.facts:
            assert_sound_fact(fact)


def assert_sound_fact(fact: facts.Fact) -> None:
    """Assert that a fact can be keyed and booked: ids, exact amounts, a payment unless it is a payout."""
    assert fact.occurred_at.utcoffset() == timedelta(0)
    assert base.identifier(fact.object_id, "object") == fact.object_id
    for name in (fact.part, fact.payment, fact.reference, fact.account):
        assert name is None or base.identifier(name, "id") == name
    assert (fact.payment is None) == (fact.kind in facts.PAYOUTS)
    assert (fact.amount_minor is None) == (fact.currency is None)
    if fact.amount_minor is not None:
        assert money.amount_minor(fact.amount_minor) == fact.amount_minor
        assert money.currency_code(fact.currency) == fact.currency
    if fact.kind in facts.MONEY:
        assert facts.business_key("books", fact)
        assert fact.amount_minor is not None
    assert fact.reference is None or fact.reference_rank in (1, 2)


class GatewayCases:
    """Security and soundness of one gateway. Subclass as `class TestStripe(cases.GatewayCases)`."""

    gateway: ClassVar[base.Gateway]
    secret: ClassVar[str]
    other_secret: ClassVar[str]  # another of the same shape: the older one of a rotation, or somebody else's
    good_body: ClassVar[bytes]  # a typical event that books money; a proof inside may be absent
    proof_header: ClassVar[str | None]  # None where the proof is in the body; then override the hooks
    has_age: ClassVar[bool]  # the proof covers a time, so that an old one is worth nothing
    has_several: ClassVar[bool]  # one delivery can carry several signatures, of which any one is enough
    endpoint: ClassVar[base.EndpointConfig] = base.EndpointConfig(slug="endpoint")

    # --- hooks

    def deliver(self, body: bytes, *, secret: str | None = None, at: datetime = NOW) -> base.Delivery:
        """Return the body as the gateway would send it, received NOW."""
        signed = SIGN[self.gateway.name](body, self.secret if secret is None else secret, at=at)
        return base.Delivery(signed.headers, signed.body, NOW)

    def proof_of(self, delivery: base.Delivery) -> str:
        """Return the proof that a delivery carries."""
        assert self.proof_header is not None
        return delivery.headers[self.proof_header]

    def with_proof(self, delivery: base.Delivery, proof: str | None) -> base.Delivery:
        """Return the delivery with another proof in place of its own, or with none."""
        assert self.proof_header is not None
        headers = {name: value for name, value in delivery.headers.items() if name != self.proof_header}
        return dataclasses.replace(
            delivery, headers=headers if proof is None else {**headers, self.proof_header: proof}
        )

    def joined(self, proofs: list[str]) -> str:
        """Return several proofs as one, as the gateway's scheme would write them."""
        return ",".join(proofs)

    def tampered(self, delivery: base.Delivery) -> base.Delivery:
        """Return the delivery with one byte changed of what is signed (at TOKEN_ONLY: of the body)."""
        place = len(delivery.body) // 2
        changed = bytes([delivery.body[place] ^ 1])
        return dataclasses.replace(delivery, body=delivery.body[:place] + changed + delivery.body[place + 1 :])

    # --- helpers

    def good(self) -> base.Delivery:
        return self.deliver(self.good_body)

    def assert_refused(self, delivery: base.Delivery, secrets: list[str] | None = None) -> None:
        with pytest.raises(base.VerificationFailed):
            self.gateway.authenticate(delivery, [self.secret] if secrets is None else secrets)

    def translate(self, body: bytes, endpoint: base.EndpointConfig | None = None) -> list[base.Notice]:
        """Return the notices of a body as if proved; translation doesn't look at proofs."""
        delivery = dataclasses.replace(self.good(), body=body)
        return self.gateway.translate(base.Verified.of(delivery), endpoint or self.endpoint)

    # --- verification

    def test_good_is_verified_and_books(self) -> None:
        """A delivery signed as the vendor documents is verified, byte for byte, and tells of money."""
        delivery = self.good()

        verified = self.gateway.authenticate(delivery, [self.secret])

        assert verified.body == delivery.body
        assert verified.problem is None
        notices = self.gateway.translate(verified, self.endpoint)
        assert_sound(notices)
        assert all(notice.facts for notice in notices)

    def test_wrong_proof_is_refused(self) -> None:
        """One character of the proof changed, at each end and in the middle."""
        delivery = self.good()
        proof = self.proof_of(delivery)

        for place in (-6, -len(proof) // 3, -len(proof) // 4):
            wrong = "x" if proof[place] != "x" else "y"
            self.assert_refused(self.with_proof(delivery, proof[:place] + wrong + proof[place + 1 :]))

    def test_missing_proof_is_refused(self) -> None:
        """Without its proof a delivery is anybody's."""
        self.assert_refused(self.with_proof(self.good(), None))

    def test_no_headers_at_all_are_refused_unless_the_proof_is_inside(self) -> None:
        """A bare body proves nothing, except where the proof is part of it."""
        delivery = dataclasses.replace(self.good(), headers={})

        if self.proof_header is not None:
            self.assert_refused(delivery)
        else:
            self.gateway.authenticate(delivery, [self.secret])

    def test_empty_proof_is_refused(self) -> None:
        """An empty proof equals nothing, not even an empty secret."""
        self.assert_refused(self.with_proof(self.good(), ""))
        self.assert_refused(self.with_proof(self.good(), ""), [""])

    def test_truncated_proof_is_refused(self) -> None:
        """No beginning of a good proof is enough."""
        delivery = self.good()
        proof = self.proof_of(delivery)

        for length in (1, len(proof) // 2, len(proof) - 8, len(proof) - 1):
            self.assert_refused(self.with_proof(delivery, proof[:length]))

    def test_wrong_secret_is_refused(self) -> None:
        """A proof under somebody else's secret is no proof."""
        self.assert_refused(self.deliver(self.good_body, secret=self.other_secret))

    def test_no_secrets_refuse_everything(self) -> None:
        """An endpoint whose secrets are unset accepts nothing."""
        self.assert_refused(self.good(), [])

    def test_empty_secret_proves_nothing(self) -> None:
        """Everybody can sign with an empty key: a secret that was left empty is no secret."""
        self.assert_refused(self.deliver(self.good_body, secret=""), [""])

    @pytest.mark.parametrize("mistyped", ["not a secret", "é", "whsec_", "whsec_é", "0"])
    def test_mistyped_secret_takes_no_good_one_with_it(self, mistyped: str) -> None:
        """A secret that is none verifies nothing, and those beside it are as good as before."""
        delivery = self.good()

        self.assert_refused(delivery, [mistyped])
        for secrets in ([self.secret, mistyped], [mistyped, self.secret]):
            assert self.gateway.authenticate(delivery, secrets).body == delivery.body

    def test_rotated_secret_is_good_in_either_place(self) -> None:
        """During a rotation a proof under any one of the secrets is good, whichever stands first."""
        delivery = self.good()

        for secrets in ([self.secret, self.other_secret], [self.other_secret, self.secret]):
            assert self.gateway.authenticate(delivery, secrets).body == delivery.body

    def test_several_signatures_need_one_good(self) -> None:
        """Where a scheme allows several signatures one good is enough; elsewhere they are refused."""
        delivery = self.good()
        good = self.proof_of(delivery)
        bad = self.proof_of(self.deliver(self.good_body, secret=self.other_secret))

        for proofs in ([bad, good], [good, bad], [bad, bad, good]):
            several = self.with_proof(delivery, self.joined(proofs))
            if self.has_several:
                assert self.gateway.authenticate(several, [self.secret]).body == delivery.body
            else:
                self.assert_refused(several)
        self.assert_refused(self.with_proof(delivery, self.joined([bad, bad])))

    @pytest.mark.parametrize("sign", [-1, 1], ids=["stale", "future"])
    def test_age_is_bounded_in_both_directions(self, sign: int) -> None:
        """A proof older than 300 s, or as far in the future, is refused; without an age it never ages."""
        at_the_edge = self.deliver(self.good_body, at=NOW + sign * TOLERANCE)
        too_far = self.deliver(self.good_body, at=NOW + sign * (TOLERANCE + timedelta(seconds=1)))

        self.gateway.authenticate(at_the_edge, [self.secret])
        if self.has_age:
            self.assert_refused(too_far)
        else:
            self.gateway.authenticate(too_far, [self.secret])

    def test_changed_body_is_refused_where_it_is_signed(self) -> None:
        """One byte changed of what is signed refuses the delivery; a mere token proves nothing of it."""
        changed = self.tampered(self.good())

        if self.gateway.assurance is base.Assurance.TOKEN_ONLY:
            self.gateway.authenticate(changed, [self.secret])
        else:
            self.assert_refused(changed)

    @pytest.mark.parametrize("number", range(len(HOSTILE_TEXTS)))
    def test_hostile_proof_is_refused(self, number: int) -> None:
        """Non-ASCII, control characters and 60 kB of anything in place of the proof are refused."""
        self.assert_refused(self.with_proof(self.good(), HOSTILE_TEXTS[number]))

    @pytest.mark.parametrize("number", range(len(HOSTILE_TEXTS)))
    def test_hostile_header_never_raises_anything_else(self, number: int) -> None:
        """Any header may hold anything: the delivery is refused, or verified and then translated soundly."""
        delivery = self.good()

        for name in delivery.headers:
            headers = {**delivery.headers, name: HOSTILE_TEXTS[number]}
            try:
                verified = self.gateway.authenticate(dataclasses.replace(delivery, headers=headers), [self.secret])
            except base.VerificationFailed:
                continue
            assert_sound(self.gateway.translate(verified, self.endpoint))

    @pytest.mark.parametrize("number", range(len(GARBAGE_BODIES)))
    def test_garbage_body_under_anothers_proof(self, number: int) -> None:
        """Garbage bytes beside a good event's proof are refused, except where only the sender is proved."""
        delivery = dataclasses.replace(self.good(), body=GARBAGE_BODIES[number])

        if self.gateway.assurance is base.Assurance.TOKEN_ONLY:
            assert_sound(self.gateway.translate(self.gateway.authenticate(delivery, [self.secret]), self.endpoint))
        else:
            self.assert_refused(delivery)

    # --- translation

    @pytest.mark.parametrize("number", range(len(GARBAGE_BODIES)))
    def test_garbage_body_is_unusable_not_an_error(self, number: int) -> None:
        """Proved garbage becomes one notice that says it can't be used and holds the body's hash."""
        body = GARBAGE_BODIES[number]

        notices = self.translate(body)

        assert_sound(notices)
        assert [notice.facts for notice in notices] == [()]
        if base.Verified.of(dataclasses.replace(self.good(), body=body)).problem is not None:
            assert notices[0].unusable is not None
            assert notices[0].fingerprint == base.body_fingerprint(body)

    def test_mutants_never_raise(self) -> None:
        """Every payload with any one value removed or replaced by junk translates, and quotes nothing."""
        bodies = payloads(self.gateway.name)
        for name in sorted(bodies):
            if "__story" in name:  # of the same shapes as the others
                continue
            for mutant in mutants(bodies[name]):
                try:
                    assert_sound(self.translate(mutant))
                except Exception as error:
                    error.add_note(f"of {mutant!r}")
                    raise

    def test_every_event_of_the_story_is_told(self) -> None:
        """The gateway's story (story.toml, with the balances it ends in) holds nothing that can't be used."""
        told = story(self.gateway.name)

        for name in told["events"]:
            for notice in self.translate(payload(self.gateway.name, name)):
                assert notice.unusable is None, name
        assert told["payment"]["captured"] > 0
        assert told["balances"]

    def test_translation_is_deterministic(self) -> None:
        """The same bytes give the same notices: composed ids do not change between deliveries."""
        for body in payloads(self.gateway.name).values():
            assert self.translate(body) == self.translate(body)
