"""The schema: tables, constraints and querysets. No business steps, no save() overrides, no signals."""

from payments.models.endpoints import Endpoint
from payments.models.events import Attempt, Claim, Event
from payments.models.ledger import Account, Entry, Sighting, Transfer
from payments.models.operations import (
    Finding,
    LoginBrake,
    OutboxMessage,
    PassBalance,
    StaffAction,
    Verification,
    VerificationPass,
    VerifiedBalance,
)
from payments.models.payments import Correction, Dispute, Payment, Registration
from payments.models.reconciliations import Reconciliation, ReconciliationLine

__all__ = [
    "Account",
    "Attempt",
    "Claim",
    "Correction",
    "Dispute",
    "Endpoint",
    "Entry",
    "Event",
    "Finding",
    "LoginBrake",
    "OutboxMessage",
    "PassBalance",
    "Payment",
    "Reconciliation",
    "ReconciliationLine",
    "Registration",
    "Sighting",
    "StaffAction",
    "Transfer",
    "Verification",
    "VerificationPass",
    "VerifiedBalance",
]
