"""Whose money it is, as people and applications say it, not gateways: registrations, allocations, accounts opened.

All of it goes through intake.book(), like a webhook's facts.

After a crash: each step is one transaction; run it again.
"""

import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from payments import conf, database, intake, ledger, payment_states, staff
from payments.precedence import Ref
from payments.registrations import Registered

SECONDS: Final = 10.0  # for one transaction, retries included
BATCH: Final = 500  # payments per transaction when a payee's account is opened late


def register(endpoint: conf.Endpoint, reference: str, wanted: Registered) -> None:
    """Say whose payment a merchant's reference is and what it should be, before or after its facts come.

    What was booked for it moves to its payee at once. Raises registrations.RegistrationDiffers.
    """
    registering = {(endpoint.books.id, reference): wanted}
    with database.connected():
        database.in_transaction(lambda: intake.book([], registering=registering), time.monotonic() + SECONDS)


def allocate(payments: Collection[Ref], *, account: str, why: staff.Why) -> None:
    """Make an account the payee of payments, as staff decided, and move their money there. Recorded as a StaffAction.

    Raises LookupError when no payee has such an account.
    """

    def decide() -> None:
        if not ledger.is_payee(account):
            raise LookupError(account)
        subject = ", ".join(f"{books_id}:{reference}" for books_id, reference in sorted(payments))
        action_id = why.record("allocate", subject, account=account)
        intake.book([], reassessing=payments, assigning=intake.Assignment(account, action_id))

    with database.connected():
        database.in_transaction(decide, time.monotonic() + SECONDS)


def open_accounts(wanted: Sequence[tuple[str, str, str]]) -> int:
    """Open the accounts (code, currency, kind) that aren't open yet; return how many were.

    Payments whose money waits in suspense for such an account get it now, also if it was opened before. Raises
    ledger.AccountDiffers for a code that is reserved, or open as another kind.
    """

    def open_all() -> int:
        opened = ledger.open_accounts([(code, currency, kind, None) for code, currency, kind in wanted])
        ledger.require_kinds(wanted)
        return len(opened)

    with database.connected():
        opened = database.in_transaction(open_all, time.monotonic() + SECONDS)
        for refs in payment_states.waiting_for([(code, currency) for code, currency, _ in wanted], batch=BATCH):
            reassess = partial(intake.book, [], reassessing=refs)
            database.in_transaction(reassess, time.monotonic() + SECONDS)
    return opened
