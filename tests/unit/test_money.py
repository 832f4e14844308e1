"""Amounts are exact, and every currency has ISO 4217's number of digits."""

import iso4217
import pytest

from payments import money

# Metals, units of account and test codes have none.
WITH_MINOR_UNIT = sorted(
    (currency for currency in iso4217.Currency if currency.exponent is not None), key=lambda c: str(c.code)
)


@pytest.mark.parametrize("currency", WITH_MINOR_UNIT, ids=lambda currency: str(currency.code))
def test_exponent_is_iso_4217s(currency: iso4217.Currency) -> None:
    """Every active currency that has a minor unit has ours."""
    assert money.exponent(currency.code) == currency.exponent


def test_no_exponent_is_of_a_currency_that_is_gone() -> None:
    """Every code in our table is active."""
    active = {c.code for c in iso4217.Currency}

    assert set(money._EXPONENTS) <= active


def test_every_price_is_exact() -> None:
    """All of "0.01" to "100.00" are their cents: through a float 573 of them would not be."""
    wrong = [
        cents
        for cents in range(1, 10_001)
        if money.minor_from_major(f"{cents // 100}.{cents % 100:02d}", exponent=2) != cents
    ]

    assert wrong == []


@pytest.mark.parametrize(
    ("text", "exponent", "minor"),
    [
        ("10000", 2, 1_000_000),
        ("10000.00", 2, 1_000_000),
        ("10000.0", 2, 1_000_000),
        ("0.5", 2, 50),
        ("500", 0, 500),
        ("500.00", 0, 500),
        ("1.001", 3, 1001),
        ("0001", 2, 100),
        ("90071992547409.91", 2, 2**53 - 1),
    ],
)
def test_decimal_text_is_parsed_exactly(text: str, exponent: int, minor: int) -> None:
    """Major units in a text become minor units; zeros beyond the exponent lose nothing."""
    assert money.minor_from_major(text, exponent=exponent) == minor


NO_AMOUNTS = [
    *("", ".", "1.", ".5", "-1", "+1", "1e3", "1,000", " 1", "1 ", "1\n", "0", "0.00", "1.001"),
    *("NaN", "Infinity", "90071992547409.92", "9" * 400, "0x10", "1_000", "1.0.0"),
    *("\u0661", "\u0663.\u0665"),  # Arabic digits are digits to Python's int()
]


@pytest.mark.parametrize("text", NO_AMOUNTS)
def test_text_that_is_no_amount_is_refused(text: str) -> None:
    """Nothing is rounded, trimmed or guessed."""
    with pytest.raises(money.UnusableAmount):
        money.minor_from_major(text, exponent=2)


@pytest.mark.parametrize("value", [0, -1, 2**53, True, False, 1.0, "1", None, [1]])
def test_amount_is_an_exact_positive_integer(value: object) -> None:
    """Booleans are no integers, and JSON is exact only up to 2^53-1."""
    with pytest.raises(money.UnusableAmount):
        money.amount_minor(value)


@pytest.mark.parametrize(
    ("amount", "from_exponent", "to_exponent", "expected"),
    [(50000, 2, 0, 500), (500, 0, 2, 50000), (100, 2, 3, 1000), (7, 2, 2, 7), (10010, 3, 3, 10010)],
)
def test_rescaling_is_exact(amount: int, from_exponent: int, to_exponent: int, expected: int) -> None:
    """An amount on a gateway's wire is the same amount in the ledger."""
    assert money.rescale(amount, from_exponent=from_exponent, to_exponent=to_exponent) == expected


@pytest.mark.parametrize(
    ("amount", "from_exponent", "to_exponent"),
    [(50050, 2, 0), (1, 3, 2), (2**53 - 1, 0, 2), (0, 2, 2), (-100, 2, 0)],
)
def test_rescaling_that_would_lose_something_is_refused(amount: int, from_exponent: int, to_exponent: int) -> None:
    """A rest is no rounding error: it is a misunderstanding."""
    with pytest.raises(money.UnusableAmount):
        money.rescale(amount, from_exponent=from_exponent, to_exponent=to_exponent)


@pytest.mark.parametrize("value", ["usd", "US", "USDT", "", "U$D", "\uff35\uff33\uff24", "USD\n", None, 840, ["USD"]])
def test_currency_is_three_capital_letters(value: object) -> None:
    """Case is the adapter's business; anything else is no code."""
    with pytest.raises(money.UnusableAmount):
        money.currency_code(value)


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [
        (1_000_000, "IDR", "10000.00"),
        (500, "JPY", "500"),
        (1001, "KWD", "1.001"),
        (5, "USD", "0.05"),
        (-5, "USD", "-0.05"),
        (0, "KWD", "0.000"),
    ],
)
def test_formatted_in_major_units(amount: int, currency: str, text: str) -> None:
    """500 yen are 500, not 5.00 and not 50,000."""
    assert money.format_major(amount, currency) == text


def test_formatting_and_parsing_are_inverse() -> None:
    """What is shown can be read back, in every currency."""
    for currency in iso4217.Currency:
        digits = money.exponent(currency.code)
        for amount in (1, 9, 10, 99, 100, 12345, 2**53 - 1):
            assert money.minor_from_major(money.format_major(amount, currency.code), exponent=digits) == amount
