"""Two JSON texts side by side, field by field, what differs first. Personal data is hidden unless asked for."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from payments.admin import bodies, masks
from payments.gateways import base

FIELDS_MAX: Final = 500  # shown of both together; an event has some dozens
VALUE_CHARS_MAX: Final = 300

ABSENT: Final = "—"


@dataclass(frozen=True, slots=True)
class Row:
    """One field. decides: a difference in it makes the two another content, and not only other bytes."""

    name: str
    first: str
    other: str
    decides: bool

    @property
    def differs(self) -> bool:
        return self.first != self.other


def side_by_side(first: bytes, other: bytes, *, deciding: Collection[str], revealed: bool = False) -> list[Row]:
    """Return the fields of both, the differing ones first and among them those that decide.

    Raises base.Unusable where one isn't JSON that can be read in only one way.
    """
    left, right = _fields(first), _fields(other)
    rows = []
    for name in [*left, *(name for name in right if name not in left)]:
        values = left.get(name), right.get(name)
        # Compared before anything is hidden, or two hidden values would look alike.
        shown = [ABSENT if value is None else _shown(name, value, revealed=revealed) for value in values]
        if values[0] != values[1] and shown[0] == shown[1]:
            shown[1] += " ≠"
        rows.append(Row(name, shown[0], shown[1], _decides(name, deciding)))
    rows.sort(key=lambda row: (not row.differs, not (row.differs and row.decides)))
    return rows[:FIELDS_MAX]


def _fields(body: bytes) -> dict[str, str]:
    """Return {path: value as JSON}; an empty object or list is a value."""
    return dict(_leaves(base.parse_json(body), ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, child in value.items():
            yield from _leaves(child, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for position, child in enumerate(value):
            yield from _leaves(child, f"{path}[{position}]")
    else:
        yield path, value.lexeme if isinstance(value, base.Inexact) else base.canonical_json(value)


def _shown(path: str, value: str, *, revealed: bool) -> str:
    if not revealed:
        names = path.replace("[", ".").split(".")
        is_hidden = masks.is_personal(names[-1]) or any(map(masks.is_personal_object, names[:-1]))
        value = masks.HIDDEN if is_hidden else masks.hide(value)
    return bodies.visible(value if len(value) <= VALUE_CHARS_MAX else f"{value[:VALUE_CHARS_MAX]}…")


def _decides(path: str, deciding: Collection[str]) -> bool:
    # A fingerprint's names begin where the gateway's object does: `object.amount` for `data.object.amount`.
    return any(path == name or path.endswith(f".{name}") for name in deciding)
