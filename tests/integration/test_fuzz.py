"""Deliveries that nobody would think of, signed and not, against what payments/openapi.json says of the endpoint.

`make test` sends some two thousand; the long run sends 100,000.
"""

import copy
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from django.test import Client
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import payments
from payments import models
from tests import deliveries
from tests.deliveries import Answer
from tests.unit.gateways import cases
from tests.unit.gateways.signing import SIGN, Signed

OPENAPI: Final = json.loads((Path(payments.__file__).parent / "openapi.json").read_text(encoding="utf-8"))
GATEWAYS: Final = {slug: "standard_webhooks" if slug == "demo" else slug for slug in map(str.lower, deliveries.SECRETS)}
DELIVERIES_MAX: Final = 20  # of one example
QUICK: Final = 150
THOROUGH: Final = 10_000
REQUESTS: Final = 100_000  # that many examples make at least so many

_examples = itertools.count(1)
_seen: Counter[tuple[str, int]] = Counter()


@dataclass(frozen=True, slots=True)
class Fuzz:
    """A delivery to be made: id_number tells which of an example's few event ids it has."""

    slug: str
    body: bytes
    id_number: int
    proof: str  # "good", "changed", "none" or "headers"
    headers: tuple[tuple[str, str], ...]


texts = st.text(max_size=20) | st.sampled_from([one for one in cases.JUNK if isinstance(one, str)])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from(cases.JUNK),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def changed_payloads(draw: st.DrawFn, gateway: str) -> bytes:
    """A payload of the gateway with a few values replaced by any others, or members removed."""
    document = json.loads(draw(st.sampled_from(list(cases.payloads(gateway).values()))))
    for _ in range(draw(st.integers(0, 3))):
        place = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and draw(st.booleans()):
                place = place[key]
                continue
            if draw(st.integers(0, 4)):
                place[key] = copy.deepcopy(draw(values))  # the next change may be within it
            else:
                del place[key]
            break
    return json.dumps(document).encode()


@st.composite
def fuzzes(draw: st.DrawFn) -> Fuzz:
    slug = draw(st.sampled_from(sorted(GATEWAYS)))
    bodies = (
        st.binary(max_size=100) | st.sampled_from(cases.GARBAGE_BODIES) | values.map(lambda v: json.dumps(v).encode())
    )
    hostile = st.sampled_from(cases.HOSTILE_TEXTS) | st.text(max_size=30)
    names = st.sampled_from(["content-type", "x-forwarded-proto", "accept", "expect", "webhook-id", "x-request-id"])
    return Fuzz(
        slug=slug,
        body=draw(changed_payloads(GATEWAYS[slug]) | changed_payloads(GATEWAYS[slug]) | bodies),
        id_number=draw(st.integers(0, 4)),
        proof=draw(st.sampled_from(["good", "good", "good", "changed", "none", "headers"])),
        headers=tuple(draw(st.lists(st.tuples(names, hostile), max_size=2))),
    )


def sign(fuzz: Fuzz, event_id: str, at: datetime) -> Signed:
    """Sign as the gateway does; what it could not sign goes out as it is."""
    secret = deliveries.SECRETS[fuzz.slug.upper()]
    try:
        return SIGN[GATEWAYS[fuzz.slug]](fuzz.body, secret, at=at, event_id=event_id)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Signed({}, fuzz.body)


def send(client: Client, fuzz: Fuzz, event_id: str, at: datetime) -> tuple[Signed, Answer]:
    signed = sign(fuzz, event_id, at)
    headers = dict(signed.headers)
    if fuzz.proof == "none":
        headers = {}
    elif fuzz.proof == "changed":
        headers = {name: value + "0" for name, value in headers.items()}
    elif fuzz.proof == "headers":
        headers |= dict(fuzz.headers)
    # Django's client makes of a header's text what a server makes of its bytes: latin-1.
    wire = {name: value.encode("utf-8", "replace").decode("latin-1") for name, value in headers.items()}
    return signed, client.post(f"/webhooks/{fuzz.slug}", signed.body, "application/json", headers=wire)


def described(answer: Answer) -> dict[str, Any]:
    """Return the schema that the description has for this answer. Fails where it has none."""
    response = OPENAPI["paths"]["/webhooks/{slug}"]["post"]["responses"][str(answer.status_code)]
    response = resolve(response)
    schema: dict[str, Any] = response["content"][answer["Content-Type"]]["schema"]
    return schema


def resolve(node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        target: Any = OPENAPI
        for step in node["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        node = target
    return node


def assert_matches(value: Any, schema: dict[str, Any]) -> None:
    """Check a value against the few words of JSON Schema that the description uses for answers."""
    schema = resolve(schema)
    types = {"object": dict, "string": str, "integer": int, "array": list}
    for part in schema.get("allOf", []):
        assert_matches(value, part)
    assert "const" not in schema or value == schema["const"]
    assert "enum" not in schema or value in schema["enum"]
    assert "type" not in schema or isinstance(value, types[schema["type"]])
    for name in schema.get("required", []):
        assert name in value
    for name, part in schema.get("properties", {}).items():
        if name in value:
            assert_matches(value[name], part)
    if not schema.get("additionalProperties", True):
        assert set(value) <= set(schema["properties"])
    for item in value if isinstance(value, list) else ():
        assert_matches(item, schema["items"])


def check(client: Client, fuzzed: list[Fuzz]) -> None:
    """Make the deliveries, each twice in a row and all once more; hold the answers against what was promised."""
    prefix, at = f"fuzz-{next(_examples)}", datetime.now(UTC)
    first: dict[Fuzz, tuple[int, bytes]] = {}
    for fuzz in [*(twice for one in fuzzed for twice in (one, one)), *fuzzed]:
        event_id = f"{prefix}-{fuzz.id_number}"
        signed, answer = send(client, fuzz, event_id, at)
        assert answer.status_code in (200, 400, 422), (fuzz, answer.content)
        _seen[fuzz.slug, answer.status_code] += 1
        schema = described(answer)
        text = answer.content.decode()
        assert_matches(text if answer["Content-Type"] == "text/plain" else json.loads(text), schema)
        assert first.setdefault(fuzz, (answer.status_code, answer.content)) == (answer.status_code, answer.content), (
            fuzz
        )
        if answer.status_code == 200:
            assert_kept(fuzz, signed, answer)


def assert_kept(fuzz: Fuzz, signed: Signed, answer: Answer) -> None:
    """A 2xx lost nothing: there is a claim, with this reply, or evidence of other content under its id."""
    endpoint = models.Endpoint.objects.get(slug=fuzz.slug)
    if answer["Content-Type"] == "application/json":
        event_id = json.loads(answer.content)["event"]
        claim = models.Claim.objects.get(endpoint=endpoint, event_id=event_id)
        is_its_reply = bytes(claim.reply_body) == answer.content
        assert is_its_reply or models.Event.objects.filter(claim=claim, role="conflict").exists(), fuzz
    else:
        assert models.Claim.objects.filter(endpoint=endpoint).exists()
    assert models.Event.objects.filter(endpoint=endpoint, claim__isnull=False).exists()


fixtures_are_shared = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
# Rows stay from one example to the next; each has event ids of its own. What fails is told as it was found.
options: Callable[[int], settings] = lambda examples: settings(  # noqa: E731
    max_examples=examples,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=fixtures_are_shared,
)
examples = st.lists(fuzzes(), min_size=1, max_size=DELIVERIES_MAX)


@pytest.mark.django_db
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_fuzz(client: Client, small_demo: None, books: Callable[..., dict[str, int]]) -> None:
    """No 500 and no 503, no 2xx that lost anything, no answer that differs from its first; and the books are sound."""
    options(QUICK)(given(examples)(lambda fuzzed: check(client, fuzzed)))()
    books()
    # What is refused at the door shows little of the house.
    assert {(slug, status) for slug in GATEWAYS for status in (200, 400)} <= set(_seen), _seen


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.django_db
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_fuzz_for_long(client: Client, small_demo: None, books: Callable[..., dict[str, int]]) -> None:
    before = _seen.total()
    options(THOROUGH)(given(examples)(lambda fuzzed: check(client, fuzzed)))()
    books()
    assert _seen.total() - before >= REQUESTS, _seen


def test_the_description_names_what_there_is() -> None:
    """Its references lead somewhere, and its limits are the code's."""
    text = json.dumps(OPENAPI)
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', text):
        assert resolve({"$ref": f"#/{reference}"})
    outcomes = OPENAPI["components"]["schemas"]["Acknowledgement"]["properties"]["outcome"]["enum"]
    assert sorted(outcomes) == sorted(models.Claim.Outcome.values)
