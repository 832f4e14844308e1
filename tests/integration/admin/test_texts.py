"""How amounts and bodies look."""

import pytest

from payments.admin import amounts, bodies


@pytest.mark.parametrize(
    ("amount_minor", "currency", "shown"),
    [
        (1_000_000, "IDR", "IDR 10.000,00"),
        (500, "JPY", "JPY 500"),
        (123_456_789, "USD", "USD 1,234,567.89"),
        (-5, "EUR", "EUR -0,05"),
        (1_234_567, "KWD", "KWD 1,234.567"),
        (1_234_567_89, "INR", "INR 12,34,567.89"),
        (0, "IDR", "IDR 0,00"),
        (7, None, "7"),
    ],
)
def test_amounts_are_written_as_at_home(amount_minor: int, currency: str | None, shown: str) -> None:
    """Grouped, with the currency's own number of decimals."""
    assert amounts.shown(amount_minor, currency) == shown


def test_bodies_are_shown_as_they_were_written() -> None:
    """Odd numbers, members named twice and invalid bytes are what somebody is looking for."""
    shown = bodies.shown(b'{"a":1e400,"a":[],"b":{"c":[1,"x,{"]},"d":"\xff"}')

    assert shown.text.splitlines() == [
        "{",
        '  "a": 1e400,',
        '  "a": [],',
        '  "b": {',
        '    "c": [',
        "      1,",
        '      "x,{"',
        "    ]",
        "  },",
        '  "d": "\\xff"',
        "}",
    ]


def test_bodies_hide_nothing_and_are_cut() -> None:
    """What would reorder or hide text is shown as an escape; a megabyte is shown in part."""
    assert bodies.shown("a\u202eb\x00".encode()).text == "a\\u202eb\\u0000"
    long = bodies.shown(b"[" * 1_000_000)
    assert long.is_cut
    assert len(long.text) <= bodies.SHOWN_CHARS_MAX
