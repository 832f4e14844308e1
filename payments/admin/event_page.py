"""An event's page: what the gateway said, what we made of it, what was booked, how its deliveries went."""

from collections.abc import Iterable

from django.db.models import Q
from django.http import HttpResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from payments.admin import bodies, cells, claim_tables, conflicts, reread, rows
from payments.admin.tables import Section, table
from payments.facts import Fact
from payments.models import Attempt, Correction, Event, Payment, Transfer

FACTS: rows.Columns = [
    (_("Fact"), lambda fact: str(fact.kind)),
    (_("About"), lambda fact: fact.object_id),
    (_("Amount"), lambda fact: cells.amount(fact.amount_minor, fact.currency)),
    (_("Payee it names"), lambda fact: fact.account or cells.EMPTY),
    (_("Merchant's reference"), lambda fact: fact.reference or cells.EMPTY),
]


def sections(event: Event) -> list[Section]:
    """Return the parts of the page in the order in which things happened."""
    notice = reread.notice_of(event)
    facts = () if notice is None else notice.facts
    payments = _payments(event, facts)
    parts = [body(event), table(_("What we understood"), facts, FACTS, empty=_("No facts that we book."))]
    parts.append(table(_("Payment"), payments, rows.PAYMENTS))
    if event.claim is not None:
        contents = conflicts.contents_of(event.claim)
        parts = claim_tables.conflict_warning(event.claim, contents) + parts
        parts.append(claim_tables.reply(event.claim, of_first=event.role == Event.Role.CONFLICT))
        if len(contents) > 1:
            parts.append(claim_tables.contents_table(contents))
        parts += claim_tables.money(event.claim)
        parts += _corrections(event, payments)
    return [*parts, _deliveries(event)]


def body(event: Event) -> Section:
    """Return the raw body as text, cut to size, and the way to all of it."""
    title = _("What the gateway said")
    if event.body is None:
        return Section(title=title, empty=_("The body was pruned after its retention time."))
    shown = bodies.shown(bytes(event.body))
    size = gettext("%(bytes)d bytes.") % {"bytes": shown.size_bytes}
    if shown.is_cut:
        size += " " + gettext("Only the beginning is shown; the download has all of it.")
    return Section(
        title=title,
        note=size,
        text=shown.text,
        more_url=reverse("admin:payments_event_body", args=[event.pk]),
        more=_("Download the raw bytes"),
    )


def raw_file(event: Event) -> HttpResponse:
    """Return the body's bytes as a file to save. A browser must never take them for a page."""
    return HttpResponse(
        b"" if event.body is None else bytes(event.body),
        content_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="event-{event.pk}.bin"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        },
    )


def _payments(event: Event, facts: Iterable[Fact]) -> list[Payment]:
    """Return the payments that the event is about: by what it says and by what it booked."""
    references = {fact.payment for fact in facts if fact.payment is not None}
    books_id = event.endpoint.books_id or event.endpoint_id
    about = Q(endpoint_id=books_id, reference__in=references)
    if event.claim_id is not None and not references:
        about = Q(pk__in=Transfer.objects.filter(claim_id=event.claim_id).values("payment_id"))
    return list(Payment.objects.filter(about).order_by("pk")[:20])


def _corrections(event: Event, payments: Iterable[Payment]) -> list[Section]:
    if event.claim_id is None:
        return []
    # By the payment's index and then by claim: corrections have no index by claim.
    told = Correction.objects.filter(payment__in=list(payments), claim_id=event.claim_id)
    found = list(told.select_related("claim").order_by("pk")[:20])
    return [table(_("Corrections it told"), found, rows.CORRECTIONS)] if found else []


def _deliveries(event: Event) -> Section:
    attempts = Attempt.objects.filter(endpoint_id=event.endpoint_id, event_id=event.event_id).order_by("-pk")
    lookups = {"endpoint__id__exact": event.endpoint_id, "event_id__exact": event.event_id}
    return table(
        _("Deliveries, the newest first"),
        attempts,
        rows.ATTEMPTS,
        more_url=cells.list_url(Attempt, **lookups),
        empty=_("None recorded. The log of deliveries doesn't wait for the disk, and may have gaps."),
    )
