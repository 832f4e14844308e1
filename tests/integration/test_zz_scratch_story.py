import itertools, random, tomllib, json
from datetime import UTC, datetime
import pytest
from payments import models
from tests import deliveries
from tests.unit.gateways import cases, signing
pytestmark = pytest.mark.django_db
CASES = [(g, seed) for g in ("midtrans", "xendit", "adyen") for seed in range(25)]
@pytest.mark.parametrize(("gateway", "seed"), CASES)
def test_story(gateway, seed, client, small_demo, books):
    story = tomllib.loads((cases.PAYLOADS / gateway / "story.toml").read_text())
    events = list(story["events"])
    if seed:
        random.Random(seed).shuffle(events); events += events[:3]
    for n, name in enumerate(events):
        signed = signing.SIGN[gateway](cases.payload(gateway, name), deliveries.SECRETS[gateway.upper()], at=datetime.now(UTC), event_id=f"evt_{name}")
        r = client.post(f"/webhooks/{gateway}/", signed.body, "application/json", headers=signed.headers)
        assert r.status_code == 200, r.content
        claim = models.Claim.objects.order_by("-id").first()
        print(gateway, name, r.content, claim.outcome, claim.event_id)
        assert claim.outcome in ("applied", "duplicate"), (name, claim.outcome)
    p = models.Payment.objects.get(reference=story["payment"]["reference"])
    assert (p.currency, p.captured, p.refunded, p.status) == tuple(story["payment"][k] for k in ("currency", "captured", "refunded", "status"))
    got = books()
    for cur, want in story["balances"].items():
        assert {k: v for k, v in got.items() if k.endswith(cur)} == {f"{k} {cur}": v for k, v in want.items() if v}
    assert list(models.Finding.objects.filter(closed_at=None)) == []
