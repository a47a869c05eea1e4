"""Numbers in text that a node or an API sent: of any length, and never an exception.

A rule compares the versions of knowledge with those of a node again and again: each text is parsed once.
"""

from __future__ import annotations

import re
from functools import lru_cache

_DIGITS = 18
_TEXTS = 2048  # versions that are parsed once: those of knowledge, and of some dozens of nodes
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


@lru_cache(maxsize=_TEXTS)
def release(version: str) -> tuple[int, int]:
    """Major and minor of a version; (0, 0) when it is unknown.

    >>> release("1.6.20~ds1-1+deb12u3"), release("v2.1.9"), release("")
    ((1, 6), (2, 1), (0, 0))
    """
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (whole(found[1]), whole(found[2])) if found else (0, 0)


def upstream(version: str) -> str:
    """1:1.20.1-1 → 1.20.1: the version without the packager's epoch and release."""
    return version.rpartition(":")[2].partition("-")[0]


@lru_cache(maxsize=_TEXTS)
def version_tuple(version: str) -> tuple[int, ...]:
    """All numbers of a version, for comparing.

    >>> version_tuple("580.95.05")
    (580, 95, 5)
    """
    return tuple(whole(part) for part in re.findall(r"\d+", version))
