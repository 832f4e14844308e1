"""What staff see of the payments: every row, its reasons, and nothing to edit."""

from payments.admin import accounts, deliveries, endpoints, operations, payments, reconciliations, transfers, words

__all__ = ["accounts", "deliveries", "endpoints", "operations", "payments", "reconciliations", "transfers", "words"]

words.translate("payments")
