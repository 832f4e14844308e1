"""How the rows of a model look in the tables on other objects' pages: heading, and what stands below it."""

from typing import Any, Final

from django.utils.translation import gettext_lazy as _

from payments.admin import codes
from payments.admin.cells import EMPTY, Column, Label, amount, link, moment, yes_or_no
from payments.models import Attempt, Entry

Columns = list[tuple[Label, Column]]


def duration(attempt: Attempt) -> str:
    return EMPTY if attempt.duration_ms is None else f"{attempt.duration_ms:.1f}\u00a0ms"  # in one line


def side(entry: Entry, direction: str) -> str:
    """Return the amount if it stands on this side, as in an accountant's two columns."""
    return amount(entry.amount, entry.currency) if entry.direction == direction else ""


def _event_of(transfer: Any) -> str:
    return link(transfer.claim)


TRANSFERS_TOLD: Final[Columns] = [
    (_("Transfer"), link),
    (_("Kind"), lambda transfer: codes.shown(transfer.kind)),
    (_("Amount"), lambda transfer: amount(transfer.amount, transfer.currency)),
    (_("Source"), lambda transfer: transfer.get_source_display()),
    (_("Occurred"), lambda transfer: moment(transfer.occurred_at)),
    (_("Recorded"), lambda transfer: moment(transfer.recorded_at)),
]

TRANSFERS: Final[Columns] = [*TRANSFERS_TOLD, (_("Event"), _event_of)]

# As seen from a transfer, a payment or an event.
ENTRIES: Final[Columns] = [
    (_("Transfer"), lambda entry: link(entry.transfer)),
    (_("Kind"), lambda entry: codes.shown(entry.transfer.kind)),
    (_("Line"), lambda entry: link(entry, entry.line)),
    (_("Account"), lambda entry: link(entry.account, entry.account.code)),
    (_("Debit"), lambda entry: side(entry, Entry.Direction.DEBIT)),
    (_("Credit"), lambda entry: side(entry, Entry.Direction.CREDIT)),
    (_("Balance now"), lambda entry: amount(entry.account.balance, entry.currency)),
]

# As seen from an account.
ACCOUNT_ENTRIES: Final[Columns] = [
    (_("Recorded"), lambda entry: moment(entry.transfer.recorded_at)),
    (_("Transfer"), lambda entry: link(entry.transfer)),
    (_("Debit"), lambda entry: side(entry, Entry.Direction.DEBIT)),
    (_("Credit"), lambda entry: side(entry, Entry.Direction.CREDIT)),
    (_("Payment"), lambda entry: link(entry.transfer.payment)),
    (_("Event"), lambda entry: _event_of(entry.transfer)),
]

CONTENTS: Final[Columns] = [
    (_("Content"), lambda event: link(event, event.get_role_display())),
    (_("Type"), lambda event: event.event_type),
    (_("Received"), lambda event: moment(event.received_at)),
    (_("Note"), lambda event: event.note),
]

CLAIMS: Final[Columns] = [
    (_("Event"), link),
    (_("Type"), lambda claim: claim.event_type),
    (_("Outcome"), lambda claim: claim.get_outcome_display()),
    (_("Claimed"), lambda claim: moment(claim.claimed_at)),
]

FAILED: Final[Columns] = [
    (_("Event"), link),
    (_("Type"), lambda event: event.event_type),
    (_("Failures"), lambda event: str(event.failures)),
    (_("Received"), lambda event: moment(event.received_at)),
    (_("Note"), lambda event: event.note),
]

ATTEMPTS: Final[Columns] = [
    (_("Received"), lambda attempt: moment(attempt.received_at)),
    (_("Answer"), lambda attempt: EMPTY if attempt.status is None else str(attempt.status)),
    (_("Replayed"), lambda attempt: yes_or_no(attempt.replayed)),
    (_("Took"), duration),
]

SIGHTINGS: Final[Columns] = [
    (_("Source"), lambda sighting: sighting.get_source_display()),
    (_("Event"), lambda sighting: link(sighting.claim)),
    (_("Seen"), lambda sighting: moment(sighting.seen_at)),
]

CORRECTIONS: Final[Columns] = [
    (_("Corrects"), link),
    (_("Kind"), lambda correction: codes.shown(correction.kind)),
    (_("Amount"), lambda correction: amount(correction.amount, correction.currency)),
    (_("Event"), lambda correction: link(correction.claim)),
    (_("Occurred"), lambda correction: moment(correction.occurred_at)),
]

PAYMENTS: Final[Columns] = [
    (_("Payment"), link),
    (_("Status"), lambda payment: codes.shown(payment.status)),
    (_("Captured"), lambda payment: amount(payment.captured, payment.currency)),
    (_("Refunded"), lambda payment: amount(payment.refunded, payment.currency)),
    (_("Payee"), lambda payment: payment.payee or EMPTY),
]

ACCOUNTS: Final[Columns] = [
    (_("Account"), lambda account: link(account, account.code)),
    (_("Kind"), lambda account: account.get_kind_display()),
    (_("Balance"), lambda account: amount(account.balance, account.currency)),
]

MESSAGES: Final[Columns] = [
    (_("Message"), link),
    (_("Topic"), lambda message: message.topic),
    (_("To"), lambda message: message.destination),
    (_("State"), lambda message: message.get_state_display()),
    (_("Attempts"), lambda message: str(message.attempts)),
    (_("Due"), lambda message: moment(message.due_at)),
    (_("Sent"), lambda message: moment(message.sent_at)),
]

DISPUTES: Final[Columns] = [
    (_("Dispute"), link),
    (_("Withdrawn"), lambda dispute: amount(dispute.withdrawn, dispute.payment.currency)),
    (_("Returned"), lambda dispute: amount(dispute.returned, dispute.payment.currency)),
    (_("Lost"), lambda dispute: amount(dispute.lost, dispute.payment.currency)),
    (_("Outcome"), lambda dispute: dispute.get_outcome_display()),
    (_("Opened"), lambda dispute: moment(dispute.opened_at)),
]

REGISTRATIONS: Final[Columns] = [
    (_("Merchant's reference"), link),
    (_("Payee"), lambda registration: registration.account),
    (_("Expected"), lambda registration: amount(registration.amount, registration.currency)),
    (_("Registered"), lambda registration: moment(registration.registered_at)),
]

FINDINGS_OPEN: Final[Columns] = [
    (_("Finding"), link),
    (_("Opened"), lambda finding: moment(finding.opened_at)),
]

FINDINGS: Final[Columns] = [*FINDINGS_OPEN, (_("Closed"), lambda finding: moment(finding.closed_at))]

ACTIONS: Final[Columns] = [
    (_("Done"), lambda action: moment(action.done_at)),
    (_("By"), lambda action: action.actor),
    (_("What"), lambda action: link(action, codes.shown(action.action))),
    (_("Why"), lambda action: action.reason),
]

RECONCILED: Final[Columns] = [
    (_("Key"), lambda line: link(line, line.key)),
    (_("Verdict"), lambda line: line.get_verdict_display()),
    (_("Line"), lambda line: EMPTY if line.number is None else str(line.number)),
    (_("Statement"), lambda line: amount(line.amount, line.currency)),
    (_("Booked"), lambda line: amount(line.booked_amount, line.booked_currency)),
    (_("Why"), lambda line: line.why),
]
