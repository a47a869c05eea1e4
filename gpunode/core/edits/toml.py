"""Set single keys in TOML text and leave every other byte as it is.

tomllib has no writer, and tomlkit needs seconds for 10,000 lines and changes bytes here and there.  So: find the spans
of the statements (`scan`), put text in or replace a span, and let tomllib prove that the outcome says exactly what was
meant and nothing else (`set_key`).
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpunode.core.edits.request import Refusal, check_size, decode, place
from gpunode.core.errors import InputError

Path = tuple[str, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_SKIP = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_KEY = re.compile(r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+|[ \t.])+""")
_HEADER = re.compile(r"\[\[?(" + _KEY.pattern + r")\]\]?")
_EQUALS = re.compile(r"=[ \t]*")
_STRING = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL)
_TAIL = re.compile(r"(?P<comma>[ \t]*,)?(?P<comment>[ \t]*#[^\r\n]*)?")
_SCALAR = re.compile(r"[^\s,\]}#]+(?: \d\d:[^\s,\]}#]+)?")  # a date-time may have one space before its hour


@dataclass(frozen=True)
class Statement:
    """A table header, or `key = value` with the span of its value; `path` is absolute from the root."""

    header: bool
    path: Path
    start: int
    value: int  # where the value starts; of a header: where it ends
    end: int
    last: int  # in an array: where its last element ends, 0 when it has none


def parse(path: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Text and plain values of a TOML file; InputError carries path:line:column."""
    check_size(path, data)
    text = decode(path, data)
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.match(r"(.*?)(?: \(at (?:line (\d+), column (\d+)|end of document)\))?\Z", str(error), re.DOTALL)
        message, line, column = found.groups() if found else (str(error), None, None)
        where = f"{line}:{column}" if line else place(text, len(text))
        raise InputError(
            f"{path}:{where}: {message}",
            expected="valid TOML",
            fix="mend the file: the daemon does not start with it either",
        ) from None
    except (RecursionError, ValueError) as error:  # ValueError: a date such as 2020-02-31, a number of 5,000 digits
        raise InputError(f"{path}: {str(error)[:200]}", expected="valid TOML", fix="mend the file") from None


def scan(text: str) -> list[Statement]:
    """The statements of valid TOML text, in order."""
    return list(_statements(text))


def _statements(text: str) -> Iterator[Statement]:
    table: Path = ()
    at = _skip(text, 0)
    while at < len(text):
        if text[at] == "[":
            found = _must(_HEADER.match(text, at))
            table, end = _path(found[1].strip()), found.end()
            yield Statement(True, table, at, end, end, 0)
        else:
            key = _must(_KEY.match(text, at))
            value = _must(_EQUALS.match(text, key.end())).end()
            end, last = _value(text, value)
            yield Statement(False, table + _path(key[0].strip()), at, value, end, last)
        at = _skip(text, end)


def _must(found: re.Match[str] | None) -> re.Match[str]:
    if found is None:
        raise Refusal("this TOML is written in a way that gpunode cannot edit", "simplify the file, or edit it by hand")
    return found


def _skip(text: str, at: int) -> int:
    return _must(_SKIP.match(text, at)).end()


def _value(text: str, at: int) -> tuple[int, int]:
    """Where the value that starts at `at` ends, and where its last element does (arrays, inline tables)."""
    depth = last = 0
    while True:
        mark = text[at]
        if mark in "[{":
            depth += 1
            at += 1
        elif mark in "]}":
            depth -= 1
            at += 1
            last = at if depth else last
        elif mark in ",=.":  # between elements and the parts of an inline table's key
            at += 1
        else:
            at = last = _must((_STRING if mark in "\"'" else _SCALAR).match(text, at)).end()
        if depth == 0:
            return at, last
        at = _skip(text, at)


@lru_cache(maxsize=4096)
def _path(key: str) -> Path:
    """The parts of a key as it stands in the text, dotted and quoted."""
    found: Any = tomllib.loads(f"{key} = 0")
    parts = []
    while isinstance(found, dict):
        name, found = next(iter(found.items()))
        parts.append(name)
    return tuple(parts)


# ---------------------------------------------------------------- writing


def lookup(doc: Any, path: Path) -> Any:
    """The value at a path of plain data, None when it is not there; Refusal where a table should be and is not."""
    for depth, name in enumerate(path):
        if not isinstance(doc, dict):
            raise Refusal(
                f"{'.'.join(path[:depth])} is {_kind(doc)}, not a table",
                "make it a table: the daemon expects one there",
            )
        if name not in doc:
            return None
        doc = doc[name]
    return doc


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean"}.get(type(value), "a single value")


def set_key(text: str, path: Path, value: Any) -> str:
    """The text with the key at `path` set to a string, boolean, integer or list of strings, all else as it was.

    A table that is not there yet is written after its nearest relatives.  Raises Refusal where the file is written in
    a way (inline tables, arrays) that leaves no place for it.
    """
    doc = tomllib.loads(text)
    if lookup(doc, path) == value and type(lookup(doc, path)) is type(value):
        return text
    wanted = _with(doc, path, value)
    statements = scan(text)
    for write in (_replace, _into_table, _dotted, _new_table):
        after = write(text, statements, path, value)
        if after is not None and _says(after, wanted):
            return after
    raise Refusal(
        f"{'.'.join(path)} cannot be set without rewriting an inline table or an array",
        "write that part of the file as [tables], then run again",
    )


@dataclass(frozen=True)
class Document:
    """A TOML file that was read: its text, and what it says as plain values (never change those)."""

    text: str
    doc: dict[str, Any]

    def edit(self, sets: Mapping[Path, Any] | None = None, removes: Collection[Path] = ()) -> Document:
        """`edit`, without reading the text again; the outcome itself when nothing is to change."""
        text = edit(self.text, sets, removes)
        return self if text == self.text else Document(text, tomllib.loads(text))


def load(path: str, data: bytes) -> Document:
    """A TOML file; InputError carries path:line:column."""
    return Document(*parse(path, data))


def edit(text: str, sets: Mapping[Path, Any] | None = None, removes: Collection[Path] = ()) -> str:
    """The text without the keys and tables at `removes`, then with those of `sets`, all else as it was, to the byte.

    Values are strings, booleans, integers, floats, lists of those, and dicts: of a dict each key is set below the
    path, {} makes an empty table.  A list that is there loses and gains only the elements that differ.  Paths of
    `removes` that are not there are passed over.  A table that is not there yet is written after its nearest
    relatives.  Raises Refusal where no place is legal, or a value stands where a table is needed.
    """
    for path in removes:
        text = _remove(text, path)
    for path, value in _leaves(sets or {}):
        text = set_key(text, path, value)
    return text


def _leaves(sets: Mapping[Path, Any]) -> Iterator[tuple[Path, Any]]:
    for path, value in sets.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves({(*path, key): item for key, item in value.items()})
        else:
            yield path, value


def _remove(text: str, path: Path) -> str:
    doc = tomllib.loads(text)
    parent = lookup(doc, path[:-1])
    if not isinstance(parent, dict) or path[-1] not in parent:
        return text
    wanted = copy.deepcopy(doc)
    del lookup(wanted, path[:-1])[path[-1]]
    statements, after, inside = scan(text), text, False
    for at in reversed(range(len(statements))):
        statement = statements[at]
        inside = statement.path[: len(path)] == path
        if not inside:
            continue
        start = text.rfind("\n", 0, statement.start) + 1
        end = text.find("\n", statement.end) + 1 or len(text)
        if statement.header and text[:start].endswith("\n\n"):
            start -= 1
        after = after[:start] + after[end:]
    if not _says(after, wanted):
        raise Refusal(f"{'.'.join(path)} cannot be removed", "remove it by hand")
    return after


def _with(doc: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    wanted = copy.deepcopy(doc)
    table: Any = wanted
    for name in path[:-1]:
        table = table.setdefault(name, {})
    table[path[-1]] = value
    return wanted


def _says(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return repr(tomllib.loads(text)) == repr(wanted) or tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False


def _replace(text: str, statements: Sequence[Statement], path: Path, value: Any) -> str | None:
    at = next((s for s in statements if not s.header and s.path == path), None)
    if at is None:
        return None
    old = tomllib.loads("x = " + text[at.value : at.end])["x"]
    if isinstance(old, list) and isinstance(value, list) and value[:-1] == old and text[at.value] == "[":
        if not old:
            return text[: at.value] + f"[{literal(value[-1])}]" + text[at.end :]
        return _append(text, at, literal(value[-1]))
    return text[: at.value] + literal(value) + text[at.end :]


def _append(text: str, at: Statement, element: str) -> str:
    """One more element of an array: on a line of its own, behind the comment of the last one, if they have lines."""
    lead = text[at.value + 1 : _skip(text, at.value + 1)]  # white space before the first element
    if "\n" not in lead or "#" in lead:
        return f"{text[: at.last]}, {element}{text[at.last :]}"
    tail = _must(_TAIL.match(text, at.last))
    comma = tail["comma"] or ""
    return f"{text[: at.last]}{comma or ','}{tail['comment'] or ''}{lead}{element}{comma.strip()}{text[tail.end() :]}"


def _into_table(text: str, statements: Sequence[Statement], path: Path, value: Any) -> str | None:
    """A new line after the last pair of the table that [header] opens, or at the top of the file."""
    table = path[:-1]
    opened = next((i for i, s in enumerate(statements) if s.header and s.path == table), None)
    if table and opened is None:
        return None
    start = 0 if opened is None else opened + 1
    stop = next((i for i in range(start, len(statements)) if statements[i].header), len(statements))
    pairs = statements[start:stop]
    line = f"{_key(path[-1:])} = {literal(value)}"
    if pairs:
        return _after_line(text, pairs[-1].end, _indent(text, pairs[-1].start) + line)
    if opened is not None:
        deeper = "  " if _indent(text, statements[opened].start) else ""
        return _after_line(text, statements[opened].end, _indent(text, statements[opened].start) + deeper + line)
    rest = text[: statements[0].start].rpartition("\n") if statements else ("", "", "")
    at = len(rest[0]) + len(rest[1]) if statements else 0
    return f"{text[:at]}{line}{_newline(text)}{text[at:]}"


def _dotted(text: str, statements: Sequence[Statement], path: Path, value: Any) -> str | None:
    """A dotted key beside others of the same table, where it is written with dotted keys."""
    for depth in range(len(path) - 1, 1, -1):
        near = [s for s in statements if not s.header and len(s.path) > depth and s.path[:depth] == path[:depth]]
        if not near:
            continue
        table = max(
            (s for s in statements if s.header and s.start < near[-1].start), key=lambda s: s.start, default=None
        )
        root = table.path if table else ()
        if len(root) < depth and path[: len(root)] == root:
            line = f"{_key(path[len(root) :])} = {literal(value)}"
            return _after_line(text, near[-1].end, _indent(text, near[-1].start) + line)
    return None


def _new_table(text: str, statements: Sequence[Statement], path: Path, value: Any) -> str:
    """[table] with the key, after the last table that shares the longest beginning with it, else at the end."""
    table = path[:-1]
    newline = _newline(text)
    headers = [s for s in statements if s.header]
    near, shared = None, 0
    for header in headers:
        common = _common(header.path, table)
        if common >= max(shared, 1):
            near, shared = header, common
    indent = _table_indent(text, headers, table, near, shared)
    body = f"{indent}[{_key(table)}]{newline}{indent}{'  ' if indent else ''}{_key(path[-1:])} = {literal(value)}"
    if near is None:
        gap = "" if not text else newline if text.endswith("\n") else newline * 2
        return f"{text}{gap}{body}{newline}"
    following = [s for s in statements if s.start > near.start]
    body_end = near.end
    for statement in following:
        if statement.header:
            break
        body_end = statement.end
    end = text.find("\n", body_end) + 1 or len(text)
    blank = newline if text[end:].split("\n", 1)[0].strip() else ""
    return _after_line(text, body_end, newline + body + blank)


def _table_indent(text: str, headers: Sequence[Statement], table: Path, near: Statement | None, shared: int) -> str:
    """As its brothers, else two deeper than its parent where that is indented, else as its nearest relative."""
    brothers = [h for h in headers if len(h.path) == len(table) and _common(h.path, table) == shared]
    if brothers or near is None:
        return _indent(text, brothers[-1].start) if brothers else ""
    indent = _indent(text, near.start)
    return indent + "  " if indent and len(near.path) < len(table) and shared == len(near.path) else indent


def _common(one: Path, other: Path) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _after_line(text: str, at: int, addition: str) -> str:
    """The addition on a line of its own, after the line (with its comment) in which `at` lies."""
    end = text.find("\n", at)
    newline = _newline(text)
    if end < 0:
        return f"{text}{newline}{addition}{newline}"
    return f"{text[: end + 1]}{addition}{newline}{text[end + 1 :]}"


def _indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line if not line.strip(" \t") else ""


def _newline(text: str) -> str:
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def _key(path: Path) -> str:
    return ".".join(part if _BARE.match(part) else literal(part) for part in path)


def literal(value: Any) -> str:
    """A string, boolean, integer, float, list or (inline) table as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + re.sub(r'["\\\x00-\x1f\x7f]', lambda m: _escape(m[0]), value) + '"'
    if isinstance(value, list):
        return f"[{', '.join(literal(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key((k,))} = {literal(v)}" for k, v in value.items()) + "}"
    return str(value)


def _escape(character: str) -> str:
    return "\\" + character if character in '"\\' else f"\\u{ord(character):04x}"
