"""What one would write first: each event in a transaction of its own, by Django's ORM, into the same tables.

It is right, too: claimed once, balanced, accounts locked last and in one order. Only captures are booked.
"""

from django.db import IntegrityError, transaction
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from benchmarks.floor import ready, translated
from payments import conf, facts, models, replies, views
from payments.gateways import base


@csrf_exempt
def webhook(request: HttpRequest, slug: str) -> HttpResponse:
    """Claim, keep, book and answer one verified."""
    endpoint = conf.known_endpoint(slug) or conf.endpoint(slug)
    try:
        verified, notice = translated(request, endpoint)
    except base.VerificationFailed:
        return views._response(replies.problem(400, "The delivery could not be verified"))
    try:
        with transaction.atomic():
            claim = _claim(endpoint, notice, verified)
            _book(endpoint, notice.facts[0], claim)
    except IntegrityError:
        claim = models.Claim.objects.get(endpoint_id=endpoint.id, event_id=notice.event_id)
    return HttpResponse(bytes(claim.reply_body), status=claim.reply_status, content_type=claim.reply_content_type)


def _claim(endpoint: conf.Endpoint, notice: base.Notice, verified: base.Verified) -> models.Claim:
    reply = endpoint.gateway.acknowledge(notice.event_id, "applied")
    claim = models.Claim.objects.create(
        endpoint_id=endpoint.id,
        event_id=notice.event_id,
        event_type=notice.event_type,
        fingerprint=notice.fingerprint,
        outcome="applied",
        reply_status=reply.status,
        reply_content_type=reply.content_type,
        reply_body=reply.body,
    )
    models.Event.objects.create(
        endpoint_id=endpoint.id,
        claim=claim,
        event_id=notice.event_id,
        event_type=notice.event_type,
        content="",
        headers={name: verified.headers[name] for name in endpoint.gateway.evidence_headers},
        body=verified.body,
        occurred_at=notice.occurred_at,
        received_at=verified.received_at,
    )
    return claim


def _book(endpoint: conf.Endpoint, fact: facts.Fact, claim: models.Claim) -> None:
    assert fact.amount_minor is not None
    assert fact.currency is not None
    accounts = {
        code: models.Account.objects.get(code=code, currency=fact.currency)
        for code in (f"receivable:{endpoint.slug}", fact.account)
    }
    debited, credited = accounts.values()
    payment, _ = models.Payment.objects.select_for_update().get_or_create(
        endpoint_id=endpoint.id,
        reference=fact.payment,
        defaults={
            "currency": fact.currency,
            "payee": fact.account,
            "payee_rank": 2,
            "payee_account": credited,
        },
    )
    transfer = models.Transfer.objects.create(
        key=facts.business_key(endpoint.slug, fact),
        kind=fact.kind,
        endpoint_id=endpoint.id,
        payment=payment,
        claim=claim,
        source="webhook",
        amount=fact.amount_minor,
        currency=fact.currency,
        account_hint=fact.account,
        occurred_at=fact.occurred_at,
    )
    legs = (("debit", debited), ("credit", credited))
    models.Entry.objects.bulk_create(
        models.Entry(
            transfer=transfer,
            line=line,
            account=account,
            currency=fact.currency,
            direction=direction,
            amount=fact.amount_minor,
        )
        for line, (direction, account) in enumerate(legs, start=1)
    )
    models.Payment.objects.filter(pk=payment.pk).update(
        captured=F("captured") + fact.amount_minor, rank=5, ever_captured=True
    )
    for direction, account in sorted(legs, key=lambda leg: leg[1].pk):
        column = f"{direction}s"
        models.Account.objects.filter(pk=account.pk).update(**{column: F(column) + fact.amount_minor})


urlpatterns = [path("webhooks/<str:slug>/", webhook), path("readyz", ready)]
