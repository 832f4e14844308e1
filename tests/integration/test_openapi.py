"""schemathesis drives the webhooks' address, as payments/openapi.json describes it, on a real server.

It makes requests that fit the description and others that break it, and holds each answer against it. Some of them are
sent to the demo endpoint with a signature, so that they come past the door. `make test` sends some hundreds.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import requests  # what schemathesis sends with
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi import checks

import payments
from payments.facts import TYPE_NAMES
from tests import deliveries, serving
from tests.crash import invariants
from tests.serving import Served

OPENAPI: Final = json.loads((Path(payments.__file__).parent / "openapi.json").read_text(encoding="utf-8"))
OPERATION: Final = schemathesis.openapi.from_dict(OPENAPI)["/webhooks/{slug}"]["POST"]
CHECKS: Final = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
MODES: Final = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
PROOFS: Final = ["signed", "signed", "forged", "none"]
EVENT_TYPES: Final = sorted({*TYPE_NAMES.values(), "order.created"})
TRIES_MAX: Final = 5  # of a delivery that is told to come again, as on a machine that is busy with something else

cases = st.one_of([OPERATION.as_strategy(generation_mode=mode) for mode in MODES])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving.served(tmp_path_factory.mktemp("openapi"), WEB_CONCURRENCY="1") as made:
        yield made


def prepare(case: Any, *, proof: str, event_type: str, port: int) -> requests.PreparedRequest:
    """Return the request whose bytes are sent.

    proof: "none"; "forged": to the demo endpoint, with whatever headers the case has; "signed": with good ones, by code
    of the tests' own, and where the body is an event, it is of this type and has what most events need.
    """
    if proof != "none":
        case.path_parameters = {"slug": "demo"}
    if proof == "signed" and isinstance(case.body, dict) and isinstance(case.body.get("data", {}), dict):
        data = {"payment": "pay_1", "amount": 1, **case.body.get("data", {}), "currency": "IDR"}
        case.body = {**case.body, "type": event_type, "data": data}
    request = requests.Request(**case.as_transport_kwargs(base_url=f"http://127.0.0.1:{port}")).prepare()
    if proof == "signed":
        body = request.body or b""
        assert isinstance(body, str | bytes)
        request.headers.update(deliveries.demo(body.encode() if isinstance(body, str) else body).headers)
    return request


def send(session: requests.Session, request: requests.PreparedRequest) -> requests.Response:
    for _ in range(TRIES_MAX):
        response = session.send(request, timeout=20, allow_redirects=False)
        if response.status_code != 503:
            break
        time.sleep(1)
    return response


def drive(server: Served, examples: int) -> Counter[tuple[str, str]]:
    """Send so many requests, each twice; return how many of each proof got which answer."""
    seen: Counter[tuple[str, str]] = Counter()
    acknowledged: dict[str, bytes] = {}

    # Each example is another one; what fails is told as it was found, for rows stay from one to the next.
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=cases, proof=st.sampled_from(PROOFS), event_type=st.sampled_from(EVENT_TYPES))
    def check(case: Any, proof: str, event_type: str) -> None:
        request = prepare(case, proof=proof, event_type=event_type, port=server.app.port)
        response, again = send(session, request), send(session, request)
        is_claimed = response.status_code == 200
        seen[proof, response.json()["outcome"] if is_claimed else str(response.status_code)] += 1
        case.validate_response(response, checks=CHECKS)
        assert response.status_code in (200, 400, 404, 422)
        assert (again.status_code, again.content) == (response.status_code, response.content)
        if is_claimed:
            acknowledged[response.json()["event"]] = response.content

    with requests.Session() as session:
        session.trust_env = False  # no proxy between a test and its server
        check()
    with server.postgres.connect() as connection, invariants.snapshot(connection) as cursor:
        assert invariants.find_lost(cursor, acknowledged) == []
    server.app.manage("verify_ledger", expect=0)
    print(dict(seen))  # noqa: T201  shown with -rP
    return seen


@pytest.mark.parametrize("examples", [200, pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])])
def test_answers_are_as_described(server: Served, examples: int) -> None:
    """No 500, nothing that the description doesn't have, the same answer again, and what got 2xx is claimed."""
    seen = drive(server, examples)

    assert {("signed", "quarantined"), ("forged", "400"), ("none", "404")} <= set(seen), seen
