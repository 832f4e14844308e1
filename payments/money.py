"""Amounts of money: exact integers in minor units, beside an ISO 4217 code.

Must not hold a float, and no bare Decimal leaves a function here. Nothing here touches the database.
"""

import re
from typing import Final

# JSON numbers are exact for every reader only up to here (RFC 8259 section 6), and no gateway names more.
AMOUNT_MINOR_MAX: Final = 2**53 - 1

# ISO 4217 minor units, where they are not 2.  https://www.six-group.com/en/products-services/financial-information/data-standards.html
_EXPONENTS: Final[dict[str, int]] = {
    **dict.fromkeys(
        (
            "BIF",
            "CLP",
            "DJF",
            "GNF",
            "ISK",
            "JPY",
            "KMF",
            "KRW",
            "PYG",
            "RWF",
            "UGX",
            "UYI",
            "VND",
            "VUV",
            "XAF",
            "XOF",
            "XPF",
        ),
        0,
    ),
    **dict.fromkeys(["BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"], 3),
    **dict.fromkeys(["CLF", "UYW"], 4),
}

_CODE = re.compile(r"[A-Z]{3}")
# At most 20 digits before the point: int() of a longer text is a waste that nobody's money needs.
_MAJOR = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,20}))?")


class UnusableAmount(ValueError):
    """An amount that can't be money here: not exact, not positive, out of range, or of no known currency."""


def exponent(currency: str) -> int:
    """Return how many decimal digits ISO 4217 gives the currency (IDR 2, JPY 0, KWD 3)."""
    return _EXPONENTS.get(currency, 2)


def currency_code(value: object) -> str:
    """Return the value if it is shaped like an ISO 4217 code (three capital letters), else raise UnusableAmount."""
    if isinstance(value, str) and _CODE.fullmatch(value):
        return value
    raise UnusableAmount("currency is not an ISO 4217 code")


def amount_minor(value: object) -> int:
    """Return the value if it is an integer of 1 … AMOUNT_MINOR_MAX, else raise UnusableAmount."""
    if type(value) is int and 0 < value <= AMOUNT_MINOR_MAX:  # bool is an int to isinstance
        return value
    raise UnusableAmount("amount is not an integer of minor units from 1 to 2^53-1")


def minor_from_major(text: str, *, exponent: int) -> int:
    """Return a decimal text of major units ("10000.00") as minor units, exactly.

    Raises UnusableAmount when the text is no plain positive decimal, is finer than the exponent, or out of range.
    """
    match = _MAJOR.fullmatch(text)
    if match is None:
        raise UnusableAmount("amount is not a plain decimal")
    whole, fraction = match[1], (match[2] or "").rstrip("0")
    if len(fraction) > exponent:
        raise UnusableAmount("amount is finer than its currency's minor unit")
    return amount_minor(int(whole) * 10**exponent + int(fraction.ljust(exponent, "0") or "0"))


def rescale(amount: int, *, from_exponent: int, to_exponent: int) -> int:
    """Return an amount told in one exponent's minor units in another's, exactly, or raise UnusableAmount."""
    if to_exponent >= from_exponent:
        return amount_minor(amount * 10 ** (to_exponent - from_exponent))
    quotient, rest = divmod(amount, 10 ** (from_exponent - to_exponent))
    if rest:
        raise UnusableAmount("amount is finer than its currency's minor unit")
    return amount_minor(quotient)


def format_major(amount: int, currency: str) -> str:
    """Return minor units as a plain decimal text of major units: 1000000 IDR -> "10000.00", 500 JPY -> "500"."""
    digits = exponent(currency)
    sign, text = ("-" if amount < 0 else ""), str(abs(amount)).rjust(digits + 1, "0")
    return f"{sign}{text[:-digits]}.{text[-digits:]}" if digits else f"{sign}{text}"
