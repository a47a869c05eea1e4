"""Text of nodes, logs and API objects without characters that act on whoever reads it.

A terminal takes C0 and C1 control characters as commands, and bidirectional controls show a text in another order than
programs read it in.  They become visible escapes: `\\x1b`, `\\u202e`.  Newline and tab stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpunode.core.late import regex

# C0 without tab and newline, DEL and C1, then the ranges of FORMATS
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
# Arabic letter mark, left-to-right and right-to-left marks, line and paragraph separators, embeddings, overrides and
# isolates, byte order mark, interlinear annotations; halves of surrogate pairs, which no encoding can write; tags
_FORMATS = (
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
UNSAFE = _CONTROLS + _FORMATS  # between the brackets of a regular expression
_UNSAFE = regex(f"[{UNSAFE}]")
_COLOUR = regex(r"\x1b\[[0-9;:]*m")


def printable(text: str) -> str:
    """The text with visible escapes in place of control characters; a printable text stays as it is.

    >>> printable("driver \\x1b]0;hello\\x07\\tloaded")
    'driver \\\\x1b]0;hello\\\\x07\\tloaded'
    """
    return _UNSAFE.sub(_escape, text) if _UNSAFE.search(text) else text


def uncoloured(text: str) -> str:
    """The text without the colours and styles that programs give their output."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def json_text(data: Any, **how: Any) -> str:
    """json.dumps in readable Unicode, in which the same characters are JSON escapes: the values stay what they are.

    >>> print(json_text({"a": "Größe\\x9b"}))
    {"a": "Größe\\u009b"}
    """
    return _UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], json.dumps(data, ensure_ascii=False, **how))


def with_texts(data: Any, change: Callable[[str], Any]) -> Any:
    """Plain data with `change` of each text in it; keys stay.

    >>> with_texts({"a": ["x", 1]}, str.upper)
    {'a': ['X', 1]}
    """
    if isinstance(data, Mapping):
        return {key: with_texts(value, change) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [with_texts(value, change) for value in data]
    return change(data) if isinstance(data, str) else data


def shortened(value: object, limit: int = 80) -> str:
    """At most `limit` characters of what may be anything, quoted, in one line, for a message.

    >>> shortened("6.1.0\\x1b[31m" + "a" * 1000, 12)
    "'6.1.0\\\\x1b[31ma…'"
    """
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= limit else f"{text[: limit - 1]}…")


def few(texts: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """The first ones, and how many more there are.

    >>> few(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return between.join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def counted(number: int, word: str) -> str:
    """1 change, 2 changes."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def names(hosts: Sequence[str], most: int = 8) -> str:
    """The names of hosts; of many the first, and how many there are."""
    return ", ".join(hosts[:most]) + (f" … ({len(hosts)} in all)" if len(hosts) > most else "")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
