"""One event, one credit: runs in the transaction in which dj-stripe keeps the event."""

from typing import Any

from django.db.models import F
from django.dispatch import receiver
from djstripe.models import Event
from djstripe.signals import WEBHOOK_SIGNALS

from benchmarks.peer_site.models import Balance

# dj-stripe's own handlers would copy the payment and ask Stripe's API about it. Without them it is faster.
SIGNAL = WEBHOOK_SIGNALS["payment_intent.succeeded"]
SIGNAL.receivers.clear()
SIGNAL.sender_receivers_cache.clear()


@receiver(SIGNAL, sender=Event)
def credit(sender: object, event: Event, **_: Any) -> None:
    intent = event.data["object"]
    credited = Balance.objects.filter(code=intent["metadata"]["account"])
    if credited.update(minor=F("minor") + intent["amount_received"]) != 1:
        raise AssertionError("Bug: no such balance")
