"""Text of logs in one form: one kind of quotation mark, no colours, no escapes; broken lines joined."""

from __future__ import annotations

import calendar
import re
import string
from bisect import bisect
from collections.abc import Callable
from itertools import accumulate

from gpunode.core.late import dataclass, regex

_QUOTES = str.maketrans(dict.fromkeys('"’‘`´“”„″′', "'") | {"\u00a0": " ", "\t": " "})
_SMALL = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_ANSI = regex(r"\x1b\[[0-9;?]*[A-Za-z]")
_ESCAPED = regex(r"""(?<!\\)\\+["']""")  # once, or as often as one log quotes another
_ENTITIES = {"&quot;": "'", "&#39;": "'", "&apos;": "'", "&lt;": "<", "&gt;": ">", "&nbsp;": " ", "&amp;": "&"}
_PIECES = regex(r".{1,20}\S*\s*", re.DOTALL)  # what becomes one letter is never cut: it has no spaces in it
_WORDS = regex(r"(?<!\s)\s*\n[\s>|]*")  # between two words, by a mail program or a forum
_EDGES = (" \n", "\r\n", "\n ", "\n>", "\n|", "\n\n")  # of lines with more at their ends than the break
_LETTERS = regex(r"\r?\n(?:[>|]+ ?)?")  # anywhere, by a terminal


def plain(text: str) -> str:
    r"""The text in one form; it has as many lines as before.

    >>> plain('{"log": "docker: unknown runtime \\"nvidia\\""}')
    "{'log': 'docker: unknown runtime 'nvidia''}"
    """
    text = uncoloured(text)
    if "&" in text:
        for entity, letter in _ENTITIES.items():
            text = text.replace(entity, letter)
    if "\\" in text:
        text = _ESCAPED.sub("'", text).replace("\\x0a", " ").replace("\\u003e", ">")
    return text.translate(_QUOTES)


def uncoloured(text: str) -> str:
    """The text without what a terminal reads as colours and movements."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def places(line: str) -> Callable[[int], int]:
    """Offset in what `plain` makes of a line → offset in the line, to a word: escapes and entities are longer there.

    >>> places("&lt;a&gt; long word and what follows it &amp; " * 2)(60) > 60
    True
    """
    pieces = [(piece.start(), len(plain(piece[0]))) for piece in _PIECES.finditer(line)]
    ends = list(accumulate(length for _, length in pieces))

    def place(offset: int) -> int:
        number = bisect(ends, offset)
        if number == len(ends):
            return len(line)
        start, length = pieces[number]
        return start + offset - (ends[number] - length)

    return place


def small(text: str) -> str:
    """Small letters, each where its capital is: Unicode's own lower case can be longer."""
    return text.lower() if text.isascii() else text.translate(_SMALL)


def joined(text: str, glue: str) -> str:
    """The lines as one, with a space or nothing between them.

    >>> joined("could not\\n> load", " ")
    'could not load'
    """
    return text.replace("\n", glue) if _is_bare(text) else (_WORDS if glue else _LETTERS).sub(glue, text)


def starts(text: str, glue: str) -> list[int]:
    """Where in the joined text each line but the first begins.

    >>> starts("could not\\n> load", " ")
    [10]
    """
    lines = text.split("\n") if _is_bare(text) else (_WORDS if glue else _LETTERS).split(text)
    return list(accumulate(len(line) + len(glue) for line in lines[:-1]))


def _is_bare(text: str) -> bool:
    """Whether lines have no more at their ends than the break."""
    return not any(edge in text for edge in _EDGES)


_TIME = regex(r"(?:(20\d\d)-(\d\d)-|([A-Z][a-z]{2}) {1,2})(\d{1,2})[ T](\d\d):(\d\d):(\d\d)\b")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_YEAR = 31_556_952  # seconds


def time_of(text: str, around: int = 0) -> int | None:
    """The time at the beginning of a line, in seconds since 1970 by its machine's own clock.

    syslog leaves the year out: it is the one in which the line comes next to `around`.

    >>> time_of("2026-01-02 00:00:00") - time_of("Dec 31 23:59:10 n1 kernel: x", time_of("2026-01-02 00:00:00"))
    86450
    """
    found = _TIME.match(text)
    if not found or (found[3] and found[3] not in _MONTHS):
        return None
    month, year = int(found[2] or _MONTHS.index(found[3]) + 1), int(found[1] or 1970 + around // _YEAR)
    if not 1 <= month <= 12:
        return None
    rest = [int(number) for number in found.groups()[3:]]
    when = calendar.timegm((year, month, *rest))
    return when if found[1] else calendar.timegm((year - round((when - around) / _YEAR), month, *rest))


# ---------------------------------------------------------------- evidence


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A line of a log, or a thing in a node's state; `line` counts from 1, 0 where there is none."""

    source: str
    line: int
    text: str
