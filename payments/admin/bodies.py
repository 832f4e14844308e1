"""Bytes from outside as text to read: re-indented if JSON, cut to size, every unprintable character visible.

Personal data is hidden unless asked for (masks.py).

The indentation never parses: numbers, duplicate members and whatever else is odd stay exactly as they were
written, nesting can't exhaust a stack, and the work ends at the size that is shown.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from payments.admin import masks

SHOWN_CHARS_MAX: Final = 64 * 1024  # nobody reads more, and the page stays quick; the download has all
_INDENT: Final = "  "
_DEPTH_SHOWN_MAX: Final = 32  # deeper, indentation would only push the text out of sight

# A string that never ends is one token to the end: each quote is looked at once, whatever somebody sends.
_TOKEN: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\],:]|[^\s{}\[\],:"]+)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page shows of a body. size_bytes is the whole body's."""

    text: str
    size_bytes: int
    is_cut: bool
    is_masked: bool


def shown(body: bytes, *, revealed: bool = False) -> Shown:
    """Return the body's beginning as text, indented if it looks like JSON. revealed: nothing is hidden."""
    # Cut before anything looks at it; indentation only makes it longer.
    text = body[: 4 * SHOWN_CHARS_MAX].decode("utf-8", "backslashreplace")[: SHOWN_CHARS_MAX + 1]
    if text.lstrip()[:1] in ("{", "["):
        tokens = [match[1] for match in _TOKEN.finditer(text)]
        kept = tokens if revealed else list(masks.hide_tokens(tokens))
        pretty, is_masked = _indented(kept, SHOWN_CHARS_MAX), kept != tokens
    else:
        pretty = text if revealed else masks.hide(text)
        is_masked = pretty != text
    is_cut = max(len(pretty), len(text)) > SHOWN_CHARS_MAX
    return Shown(visible(pretty[:SHOWN_CHARS_MAX]), len(body), is_cut, is_masked)


def visible(text: str) -> str:
    r"""Return the text with what can't be seen, or would reorder what can, as \u escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _indented(tokens: Iterable[str], chars_max: int) -> str:
    pieces: list[str] = []
    length, depth, previous = 0, 0, ""
    for token in tokens:
        if token in ("}", "]"):
            depth -= 1
        piece = _gap(previous, token, depth) + token
        if token in ("{", "["):
            depth += 1
        pieces.append(piece)
        length += len(piece)
        if length > chars_max:
            break
        previous = token
    return "".join(pieces)


def _gap(previous: str, token: str, depth: int) -> str:
    """Return what stands between two tokens: a new line, a space, or nothing."""
    opened, closes = previous in ("{", "["), token in ("}", "]")
    if not previous or (opened and closes) or token in (",", ":"):
        return ""
    if opened or closes or previous == ",":
        return "\n" + _INDENT * max(0, min(depth, _DEPTH_SHOWN_MAX))
    return " "


def as_sent(body: bytes) -> str:
    """Return bytes of ours as text, exactly but for what can't be seen."""
    return visible(body.decode("utf-8", "backslashreplace"))
