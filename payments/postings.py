"""Which fact debits and credits what: the table of postings, and nothing else."""

from enum import StrEnum
from typing import Final

from payments.facts import FactKind


class Role(StrEnum):
    """An account by its part in a posting; all but the payee's are an endpoint's own: `<role>:<endpoint>`."""

    PAYEE = "payee"  # the payment's payee of now, or the endpoint's suspense account where there is none
    RECEIVABLE = "receivable"
    FEES = "fees"
    DISPUTES = "disputes"
    BANK = "bank"
    SUSPENSE = "suspense"
    FX = "fx"


# The kind of an endpoint's own account. Suspense is owed to somebody, we only don't know to whom.
OWN_ACCOUNTS: Final = {
    Role.RECEIVABLE: "asset",
    Role.FEES: "expense",
    Role.DISPUTES: "asset",
    Role.BANK: "asset",
    Role.SUSPENSE: "liability",
    Role.FX: "equity",
}

# Transfers that no gateway tells as such, but that follow from what was told.
REVERSAL: Final = "Reversal"  # an original and its correction are both known
ALLOCATION: Final = "Allocation"  # a payment's net moves to its payee
CAPTURE_NAMED: Final = "CaptureNamed"  # a single capture takes its part out of what was told only as a total
REFUND_NAMED: Final = "RefundNamed"
ADJUSTMENT: Final = "Adjustment"  # staff, with a reason

_CAPTURE: Final = (Role.RECEIVABLE, Role.PAYEE)
_REFUND: Final = (Role.PAYEE, Role.RECEIVABLE)

# kind -> (debit, credit). A conversion has these legs in the currency it took, and the other way round in the one that
# it gave.
TABLE: Final[dict[str, tuple[Role, Role]]] = {
    FactKind.PAYMENT_CAPTURED: _CAPTURE,
    FactKind.PAYMENT_CAPTURED_TOTAL: _CAPTURE,
    CAPTURE_NAMED: _REFUND,
    FactKind.REFUND_SUCCEEDED: _REFUND,
    FactKind.REFUNDED_TOTAL: _REFUND,
    REFUND_NAMED: _CAPTURE,
    FactKind.FEE_ASSESSED: (Role.FEES, Role.RECEIVABLE),
    FactKind.FEE_RETURNED: (Role.RECEIVABLE, Role.FEES),
    FactKind.DISPUTE_FUNDS_WITHDRAWN: (Role.DISPUTES, Role.RECEIVABLE),
    FactKind.DISPUTE_FUNDS_RETURNED: (Role.RECEIVABLE, Role.DISPUTES),
    FactKind.DISPUTE_LOST: (Role.PAYEE, Role.DISPUTES),
    FactKind.PAYOUT_PAID: (Role.BANK, Role.RECEIVABLE),
    FactKind.PAYOUT_COLLECTED: (Role.RECEIVABLE, Role.BANK),
    FactKind.FUNDS_CONVERTED: (Role.FX, Role.RECEIVABLE),
}


def own_code(role: Role, books: str) -> str:
    """Return the code of an endpoint's own account: `receivable:demo`."""
    return f"{role}:{books}"


def is_own_code(code: str) -> bool:
    """Say whether a code is of the shape that only an endpoint's own accounts have."""
    return code.partition(":")[0] in OWN_ACCOUNTS and ":" in code
