"""Where tables, keys, values and elements stand in TOML text that is known to be valid.

Runs of plain lines (`key = "value"`, comments, blank ones) are passed over by one regular expression, so that a file
of 10,000 lines costs a few milliseconds; only the tables that an edit touches are looked at line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import tomli

from gpunode.core.edits.request import Refusal

Path = tuple[str, ...]

_TEXT = r"""(?:"[^"\\\n]*"(?!")|'[^'\n]*'(?!'))"""  # on one line, without escapes
# plain lines, and the plain header that follows them; no two parts match the same, or a failure would take for ever
_PLAIN = re.compile(
    rf"""(?:[ \t]*(?:[A-Za-z0-9_-]+[ \t]*=[ \t]*
    (?:{_TEXT}|[A-Za-z0-9_.:+-]+|\[[ \t]*(?:{_TEXT}[ \t]*(?:,[ \t]*)?)*\])[ \t]*)?(?:\#[^\n]*)?\r?\n)*
    [ \t]*(\[((?:[A-Za-z0-9_.-]|"[^"\\\n]*"|'[^'\n]*')+)\])?""",
    re.VERBOSE,
)
_SKIP = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_KEY = re.compile(r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_. \t-])+""")
_PART = re.compile(r""""([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+)""")
_HEADER = re.compile(rf"(\[\[?({_KEY.pattern})\]\]?)")
_EQUALS = re.compile(r"=[ \t]*")
STRING = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL)
_SCALAR = re.compile(r"[A-Za-z0-9_.:+-]+(?: \d\d:[0-9:.+Zz-]+)?")  # a date-time may have one space before its hour
_CLOSING = {"[": "]", "{": "}"}


class Table(NamedTuple):
    """A table from its header to the next one; the root has an empty path and header."""

    path: Path
    start: int  # of the header's first bracket
    body: int  # where the header ends
    end: int  # where the next header begins


class Pair(NamedTuple):
    """`key = value`, or an element of an array.  The first `base` parts of the path are those of what it stands in."""

    path: Path
    base: int
    start: int
    value: int
    end: int


def tables(text: str) -> list[Table]:
    """All tables of the text in order; those below arrays of tables too."""
    found = []
    path: Path = ()
    start = body = at = 0
    while at < len(text):
        header = plain = _must(_PLAIN.match(text, at))
        if plain[1] is None:
            at = skip(text, plain.end())
            if text[at : at + 1] != "[":
                at = _pair(text, at, (), 0).end if at < len(text) else at
                continue
            header = _must(_HEADER.match(text, at))
        found.append(Table(path, start, body, header.start(1)))
        path, start, body = _parts(header[2]), header.start(1), header.end()
        at = body
    return [*found, Table(path, start, body, len(text))]


def pairs(text: str, table: Table) -> Iterator[Pair]:
    """The pairs of a table, their paths from the root."""
    at = skip(text, table.body)
    while at < table.end:
        yield (pair := _pair(text, at, table.path, len(table.path)))
        at = skip(text, pair.end)


def members(text: str, inside: Pair) -> tuple[list[Pair], int]:
    """Elements of the array, or pairs of the inline table, that a pair's value is, and where its bracket closes."""
    found = []
    closing = _CLOSING[text[inside.value]]
    at = skip(text, inside.value + 1)
    while text[at] != closing:
        if closing == "}":
            found.append(_pair(text, at, inside.path, len(inside.path)))
        else:
            found.append(Pair((), 0, at, at, _value(text, at)))
        at = skip(text, found[-1].end)
        if text[at] == ",":
            at = skip(text, at + 1)
    return found, at


def skip(text: str, at: int) -> int:
    """Past white space, line ends and comments."""
    return _must(_SKIP.match(text, at)).end()


def _pair(text: str, at: int, table: Path, base: int) -> Pair:
    key = _must(_KEY.match(text, at))
    value = _must(_EQUALS.match(text, key.end())).end()
    return Pair(table + _parts(key[0]), base, at, value, _value(text, value))


def _value(text: str, at: int) -> int:
    """Where the value that starts at `at` ends."""
    depth = 0
    while True:
        mark = text[at]
        if mark in "[{":
            depth += 1
            at += 1
        elif mark in "]}":
            depth -= 1
            at += 1
        elif mark in ",=.":  # between elements and the parts of an inline table's key
            at += 1
        else:
            at = _must((STRING if mark in "\"'" else _SCALAR).match(text, at)).end()
        if depth == 0:
            return at
        at = skip(text, at)


def _parts(key: str) -> Path:
    """The parts of a key as it stands in the text, dotted and quoted."""
    if "\\" not in key:
        return tuple([double or single or bare for double, single, bare in _PART.findall(key)])
    found: object = tomli.loads(f"{key} = 0")
    parts = []
    while isinstance(found, dict):
        name, found = next(iter(found.items()))
        parts.append(name)
    return tuple(parts)


def _must(found: re.Match[str] | None) -> re.Match[str]:
    if found is None:
        raise Refusal("this TOML is written in a way that gpunode cannot edit", "simplify the file, or edit it by hand")
    return found
