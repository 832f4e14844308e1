"""A gateway's statement against the ledger. The way of one: run.py; what is said of lines: verdicts.py."""

from payments.reconciliation.lost_webhooks import find_lost_webhooks
from payments.reconciliation.run import Report, Request, finish, reconcile
from payments.reconciliation.staging import AlreadyRunning

__all__ = ["AlreadyRunning", "Report", "Request", "find_lost_webhooks", "finish", "reconcile"]
