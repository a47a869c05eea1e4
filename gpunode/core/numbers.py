"""Numbers in text that a node or an API sent: of any length, and never an exception."""

from __future__ import annotations

_DIGITS = 18
HUGE = 10**_DIGITS  # stands for every number with more digits: they only have to compare as large


def whole(text: str) -> int:
    """The number that ASCII digits make; HUGE for more of them than any real one has, 0 for what is no number.

    >>> whole("580"), whole("9" * 5000) == HUGE, whole("²"), whole("")
    (580, True, 0, 0)
    """
    if not (text.isascii() and text.isdigit()):
        return 0
    digits = text.lstrip("0")
    return HUGE if len(digits) > _DIGITS else int(digits or "0")
