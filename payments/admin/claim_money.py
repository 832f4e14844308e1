"""What a claim booked, and what it told again that was booked before."""

from django.utils.translation import gettext_lazy as _

from payments.admin import cells, rows
from payments.admin.tables import ROWS_MAX, Section, table
from payments.models import Claim, Entry, Sighting, Transfer


def sections(claim: Claim) -> list[Section]:
    """Return the tables of a claim's money."""
    transfers = Transfer.objects.filter(claim=claim).order_by("pk")
    entries = Entry.objects.filter(transfer__claim=claim).select_related("transfer", "account").order_by("pk")
    told = Sighting.objects.filter(claim=claim).select_related("transfer").order_by("pk")
    more_url = cells.list_url(Transfer, claim__id__exact=claim.pk)
    again = [sighting.transfer for sighting in told[:ROWS_MAX]]
    return [
        table(_("Transfers it booked"), transfers, rows.TRANSFERS_TOLD, more_url=more_url),
        table(_("Their entries"), entries, rows.ENTRIES),
        *([table(_("Told again: booked before, not booked twice"), again, rows.TRANSFERS_TOLD)] if again else []),
    ]
