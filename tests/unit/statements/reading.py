"""Statements read from tests/payloads/statements, or from text, by the format's name."""

import io
from pathlib import Path
from typing import Any, Final

from payments import facts, statements
from payments.facts import Fact
from payments.gateways import base
from payments.statements.base import StatementLine

PAYLOADS: Final = Path(__file__).parents[2] / "payloads" / "statements"


def read(name: str, content: bytes, **options: Any) -> list[StatementLine]:
    """Return the lines of a statement of this format."""
    columns = options.pop("columns", {})
    config = base.EndpointConfig(slug="books", **options)
    return list(statements.REGISTRY[name].lines(io.BytesIO(content), config, columns))


def payload(file_name: str, **options: Any) -> list[StatementLine]:
    """Return the lines of <format>__<variant>.<ext>."""
    return read(file_name.partition("__")[0], (PAYLOADS / file_name).read_bytes(), **options)


def shown(fact: Fact | None) -> tuple[str, int | None, str | None, str | None] | None:
    """Return how a fact is known: its business key without the books, amount, currency, payment."""
    if fact is None:
        return None
    key = facts.business_key("", fact).removeprefix(":") if fact.kind in facts.MONEY else str(fact.kind)
    return key, fact.amount_minor, fact.currency, fact.payment
