"""Sekali: gateway webhooks become money in a ledger, exactly once."""
