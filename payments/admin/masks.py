"""Personal data in what gateways send: hidden by the name of its field, or because it looks like it.

Rather too much is hidden than too little: who needs it can ask to see all, and that is recorded. Ids, amounts,
statuses and times stay readable.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

HIDDEN: Final = "•••"

# Compared with a field's name in lower case without `_`, `-` and the like; wherever one of these stands in it …
_PARTS: Final = re.compile(
    r"e?mail|phone|mobile|msisdn|whatsapp|address|street|postal|postcode|zipcode|birth|passport|ssn|nationalid"
    r"|ktp|npwp|taxid|iban|cardnumber|maskedcard|nameoncard|holder|accountnumber|bankaccount|vanumber|cvc|cvv"
    r"|(?:^|first|last|full|middle|given|family|maiden|nick|customer|shopper|payer|buyer|user|billing|shipping"
    r"|recipient|contact|beneficiary|account|person|sender)name$"
)
# … or is the whole name, …
_WHOLE: Final = frozenset(
    (
        *("pan", "vpa", "upi", "nik", "dob", "ip", "tel", "surname", "line1", "line2", "city", "zip", "house"),
        *("ipaddress", "clientip", "useragent", "expiry", "expirymonth", "expiryyear", "expmonth", "expyear"),
    )
)
# … or is that of an object, which is hidden with all that is in it. (A text there is the object's id.)
_OBJECTS: Final = frozenset(
    ["card", "customer", "customerdetails", "billing", "billingdetails", "shipping", "payer", "shopper"]
)
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]")

_LIKE_EMAIL: Final = re.compile(r"[^\s\"'<>@,;:\\]{1,64}@[^\s\"'<>@,;:\\]{1,255}\.[A-Za-z]{2,24}")
_LIKE_PHONE: Final = re.compile(r"(?<![\w+])(?:\+\d[\d ().-]{6,18}\d|08\d{8,11})(?!\w)")
_LIKE_CARD: Final = re.compile(r"(?<!\w)[2-6]\d{3}(?:[ -]?\d{2,4}){3,5}(?!\w)")
_STRUCTURE: Final = frozenset("{}[],:")


def is_personal(name: str) -> bool:
    """Say whether a field of this name holds something about a person."""
    plain = _plain(name)
    return plain in _WHOLE or _PARTS.search(plain) is not None


def is_personal_object(name: str) -> bool:
    """Say whether an object or a list of this name does."""
    return _plain(name) in _OBJECTS or is_personal(name)


def _plain(name: str) -> str:
    return _NOT_IN_NAMES.sub("", name.lower())


def hide(text: str) -> str:
    """Return a text without what looks like an e-mail address, a telephone or a card number."""
    if "@" in text:
        text = _LIKE_EMAIL.sub(HIDDEN, text)
    text = _LIKE_CARD.sub(lambda match: HIDDEN if _is_card(match[0]) else match[0], text)
    return _LIKE_PHONE.sub(HIDDEN, text)


def hide_tokens(tokens: Iterable[str]) -> Iterator[str]:
    """Yield the tokens of a JSON text with personal values hidden, whole objects and lists among them.

    A string's token has its quotes; of broken JSON nothing is worse hidden than of good one.
    """
    depth = 0
    hidden_from: int | None = None  # the depth of the object or list that is hidden
    name: str | None = None  # of the member whose value comes next
    waiting: str | None = None  # a string that is a name if a colon follows it
    for piece in tokens:
        if waiting is not None:
            if piece == ":":
                yield waiting
                name, waiting = waiting, None
                yield piece
                continue
            yield _value(waiting, name, is_hidden=hidden_from is not None)
            name, waiting = None, None
        if piece in ("{", "["):
            if hidden_from is None and name is not None and is_personal_object(name):
                hidden_from = depth
            depth, name = depth + 1, None
        elif piece in ("}", "]"):
            depth -= 1
            if hidden_from is not None and depth <= hidden_from:
                hidden_from = None
        elif piece.startswith('"'):
            waiting = piece
            continue
        elif piece not in _STRUCTURE:
            piece, name = _value(piece, name, is_hidden=hidden_from is not None), None
        yield piece
    if waiting is not None:
        yield _value(waiting, name, is_hidden=hidden_from is not None)


def _value(piece: str, name: str | None, *, is_hidden: bool) -> str:
    if piece == "null" or not (is_hidden or (name is not None and is_personal(name))):
        return hide(piece)
    return f'"{HIDDEN}"' if piece.startswith('"') else HIDDEN


def _is_card(text: str) -> bool:
    """Say whether the digits are as many as a card's, with its check digit (Luhn)."""
    digits = [int(character) for character in text if character.isdigit()]
    if not 14 <= len(digits) <= 19:
        return False
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
