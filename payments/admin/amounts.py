"""Amounts as the readers of a currency write them: IDR 10.000,00, JPY 500, INR 1,00,000.00, USD 1,234.50.

Only for the eye. What machines read (JSON, CSV, messages) is minor units or `money.format_major`.
"""

from typing import Final

from payments import money

# (between groups, before the fraction), where they are not "," and ".": the habit of the currency's home.
_MARKS: Final[dict[str, tuple[str, str]]] = {
    **dict.fromkeys(["IDR", "EUR", "VND", "BRL", "TRY", "DKK", "ARS", "CLP", "COP", "UYU", "PYG"], (".", ",")),
    **dict.fromkeys(["ISK", "RON", "RSD"], (".", ",")),
    **dict.fromkeys(["SEK", "NOK", "PLN", "CZK", "HUF", "UAH", "KZT", "BGN", "XOF", "XAF"], (" ", ",")),
    "CHF": ("’", "."),  # noqa: RUF001 (the typographic apostrophe is the habit)
}
# Three digits, then groups of two: lakh and crore.
_GROUPED_BY_TWO: Final = frozenset({"INR", "BDT", "NPR", "PKR"})


def shown(amount_minor: int, currency: str | None) -> str:
    """Return the code and the amount in major units, grouped; without a currency the plain minor units."""
    if currency is None:
        return str(amount_minor)
    group_mark, fraction_mark = _MARKS.get(currency, (",", "."))
    whole, _, fraction = money.format_major(abs(amount_minor), currency).partition(".")
    grouped = group_mark.join(_groups(whole, 2 if currency in _GROUPED_BY_TWO else 3))
    sign = "-" if amount_minor < 0 else ""
    return f"{currency} {sign}{grouped}{fraction_mark if fraction else ''}{fraction}"


def _groups(digits: str, size: int) -> list[str]:
    groups, rest = [digits[-3:]], digits[:-3]
    while rest:
        groups.append(rest[-size:])
        rest = rest[:-size]
    return groups[::-1]
