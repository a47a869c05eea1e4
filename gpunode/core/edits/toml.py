"""Set and remove keys in TOML text and leave every other byte as it is.

tomlkit needs seconds for 10,000 lines and changes bytes here and there.  So: find the spans of what is to change
(tomlscan.py), put text in or take it out, and let a TOML reader prove that the outcome says exactly what was there,
less what was to go and with what was to come.

The reader is tomli: tomllib's own code, compiled.  Below 2.4, as 2.4 reads TOML 1.1 and no container engine does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tomli

from gpunode.core.edits import tomllist
from gpunode.core.edits.request import Refusal, check_size, decode
from gpunode.core.edits.tomllist import Span, newline
from gpunode.core.edits.tomlscan import Pair, Path, Table, members, pairs, tables
from gpunode.core.errors import InputError

__all__ = ["Document", "Path", "edit", "literal", "load", "lookup", "parse", "set_key"]

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_NAN = math.nan  # one for all, so that documents with it can be compared


@dataclass(frozen=True)
class Document:
    """A TOML file that was read: its text, and what it says as plain values (shared: never change them)."""

    text: str
    doc: dict[str, Any]

    def edit(self, sets: Mapping[Path, Any] | None = None, removes: Collection[Path] = ()) -> Document:
        """What `edit` makes of it, proven; the document itself when nothing is to change."""
        wanted = _with(_without(self, removes), dict(_leaves(sets or {})))
        if wanted is self:
            return self
        try:
            says = _read(wanted.text)
        except tomli.TOMLDecodeError:
            says = None
        if says != wanted.doc:
            raise Refusal(
                f"{', '.join('.'.join(path) for path in [*(sets or ()), *removes])}: this part of the file is written"
                " in a way that gpunode cannot edit",
                "write that part of the file as [tables], then run again",
            )
        return wanted

    @cached_property
    def tables(self) -> Sequence[Table]:
        """All tables of the text, in order."""
        return tables(self.text)

    @cached_property
    def at(self) -> Mapping[Path, Sequence[Table]]:
        """The tables by their path; more than one only in arrays of tables."""
        found: dict[Path, list[Table]] = {}
        for table in self.tables:
            found.setdefault(table.path, []).append(table)
        return found

    def pairs_towards(self, path: Path) -> list[Pair]:
        """The pairs of all tables that `path` leads through."""
        ways = (path[:depth] for depth in range(len(path)))
        return [pair for way in ways for table in self.at.get(way, ()) for pair in pairs(self.text, table)]


def load(path: str, data: bytes) -> Document:
    """A TOML file; InputError carries path:line:column."""
    return Document(*parse(path, data))


def parse(path: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Text and plain values of a TOML file; InputError carries path:line:column."""
    check_size(path, data)
    text = decode(path, data)
    try:
        return text, _read(text)
    except tomli.TOMLDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}:{error.colno}: {error.msg}",
            expected="valid TOML",
            fix="mend the file: the daemon does not start with it either",
        ) from None
    except (RecursionError, ValueError) as error:  # ValueError: a date such as 2020-02-31, a number of 5,000 digits
        raise InputError(f"{path}: {str(error)[:200]}", expected="valid TOML", fix="mend the file") from None


def _read(text: str) -> dict[str, Any]:
    return tomli.loads(text, parse_float=lambda number: _NAN if "nan" in number else float(number))


def edit(text: str, sets: Mapping[Path, Any] | None = None, removes: Collection[Path] = ()) -> str:
    """The text without the keys and tables at `removes`, then with those of `sets`, all else as it was, to the byte.

    Values are strings, booleans, integers, floats, lists of those, and mappings: of a mapping each key is set below
    the path, {} makes an empty table.  A list that is there loses and gains only the elements that differ.  Paths of
    `removes` that are not there are passed over; a parent that only its now removed children implied goes with them.
    A table that is not there yet is written after its nearest relatives.  Raises Refusal where a value stands in the
    way of a table or the other way round, TOMLDecodeError for text that is no TOML.
    """
    return Document(text, _read(text)).edit(sets, removes).text


def set_key(text: str, path: Path, value: Any) -> str:
    """`edit` for one key."""
    return edit(text, {path: value})


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


def _leaves(sets: Mapping[Path, Any]) -> Iterator[tuple[Path, Any]]:
    for path, value in sets.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves({(*path, key): item for key, item in value.items()})
        else:
            yield path, value


# ---------------------------------------------------------------- finding


def _place(document: Document, path: Path) -> tuple[Pair | None, Pair | None]:
    """The innermost inline table around a path, and the pair that says its value; None for what is not there."""
    inline, level = None, document.pairs_towards(path)
    while True:
        hit = next((pair for pair in level if path[: len(pair.path)] == pair.path), None)
        if hit is None or hit.path == path:
            return inline, hit
        inline, level = hit, members(document.text, hit)[0]


def _known(doc: Any, path: Path) -> int:
    """How many parts of a path are there."""
    for depth, name in enumerate(path):
        if not isinstance(doc, dict) or name not in doc:
            return depth
        doc = doc[name]
    return len(path)


# ---------------------------------------------------------------- taking out


def _without(document: Document, removes: Collection[Path]) -> Document:
    """The document, not yet proven, without what stands at these paths."""
    text, doc, spans = document.text, document.doc, []
    inlines: dict[Pair, set[Path]] = {}
    for path in removes:
        if not path or _known(doc, path) < len(path):
            continue
        inline, _ = _place(document, path)
        if inline is not None:
            inlines.setdefault(inline, set()).add(path)
        spans += [_line(text, p.start, p.end) for p in document.pairs_towards(path) if _below(p.path, path)]
        spans += [_table_lines(document, n) for n, t in enumerate(document.tables) if _below(t.path, path)]
        doc = _dropped(document, doc, path)
    for inline, paths in inlines.items():
        items, closing = members(text, inline)
        gone = {n for n, item in enumerate(items) if any(_below(item.path, path) for path in paths)}
        spans += tomllist.drop(text, items, closing, gone)
    return Document(_applied(text, _joined(text, spans)), doc) if spans else document


def _below(path: Path, above: Path) -> bool:
    return path[: len(above)] == above


def _dropped(document: Document, doc: dict[str, Any], path: Path) -> dict[str, Any]:
    """The values without a path, and without those above it that nothing but it implied."""
    result = dict(doc)
    above = [result]
    for name in path[:-1]:
        above[-1][name] = dict(above[-1][name])
        above.append(above[-1][name])
    del above[-1][path[-1]]
    for depth in range(len(path) - 1, 0, -1):
        way = path[:depth]
        if above[depth] or way in document.at or _place(document, way)[1]:
            break
        del above[depth - 1][way[-1]]
    return result


def _table_lines(document: Document, number: int) -> Span:
    """A table with the blank line before it, down to its last pair and the comments that hang on that."""
    text, table = document.text, document.tables[number]
    start, _, _ = _line(text, table.start, table.start)
    above = text.rfind("\n", 0, max(start - 1, 0)) + 1
    if start and not text[above:start].strip():
        start = above
    return start, _body_end(text, table), ""


def _body_end(text: str, table: Table) -> int:
    """Behind the last line of a table: its last pair, and comments right below it that no other line follows."""
    last = table.body
    for pair in pairs(text, table):
        last = pair.end
    end = at = _line(text, last, last)[1]
    while text[at : table.end].lstrip(" \t").startswith("#"):
        at = _line(text, at, at)[1]
    follows = text[at : text.find("\n", at) + 1 or len(text)]
    return end if follows.strip() else at


def _line(text: str, start: int, end: int) -> Span:
    """The lines from `start` to `end`, with the line end."""
    return text.rfind("\n", 0, start) + 1, text.find("\n", end) + 1 or len(text), ""


def _joined(text: str, spans: Collection[Span]) -> list[Span]:
    """Removals without overlap.  A text whose last line is not ended stays such a text."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span[0] <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(span[1], joined[-1][1]), "")
        else:
            joined.append(span)
    start, end, _ = joined[-1]
    if end == len(text) and not text.endswith("\n") and text[:start].endswith("\n"):
        joined[-1] = (start - (2 if text[:start].endswith("\r\n") else 1), end, "")
    return joined


def _applied(text: str, spans: Collection[Span]) -> str:
    parts, at = [], 0
    for start, end, new in sorted(spans, key=lambda span: span[:2]):
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])


# ---------------------------------------------------------------- putting in


@dataclass
class _NewTable:
    """A table that is to be written at an offset."""

    path: Path
    at: int
    indent: str
    blank: bool  # whether a blank line comes before it
    lines: list[str]


def _with(document: Document, sets: Mapping[Path, Any]) -> Document:
    """The document, not yet proven, with these values."""
    text, doc, spans = document.text, document.doc, []
    inlines: dict[Pair, dict[Path, Any]] = {}
    new: list[_NewTable] = []
    for path, value in sets.items():
        have = lookup(doc, path)
        if (type(have) is type(value) and have == value) or (value == {} and isinstance(have, dict)):
            continue
        if isinstance(have, dict) or (have is not None and value == {}):
            raise Refusal(f"{'.'.join(path)} is {'a table' if isinstance(have, dict) else _kind(have)}", "remove it")
        doc = _put(doc, path, value)
        inline, pair = _place(document, path)
        if pair is not None:
            spans += _changed(text, pair, have, value)
        elif inline is not None:
            inlines.setdefault(inline, {})[path] = value
        elif (span := _dotted(document, path, value) or _into_table(document, path, value)) is not None:
            spans.append(span)
        else:
            _into_new(document, new, path, value)
    for inline, values in inlines.items():
        items, closing = members(text, inline)
        spans.append(tomllist.append(text, inline.value, items, closing, _members_of(document, inline, values)))
    if doc is document.doc:
        return document
    for table in new:
        end, start = newline(text), newline(text) if table.blank else ""
        lines = "".join(f"{table.indent}{line}{end}" for line in table.lines)
        spans.append(_inserted(text, table.at, f"{start}{table.indent}[{_key(table.path)}]{end}{lines}"))
    return Document(_applied(text, spans), doc)


def _put(doc: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A copy, as far as it differs, with the value at the path."""
    below = value if len(path) == 1 else _put(doc.get(path[0], {}), path[1:], value)
    return {**doc, path[0]: below}


def _changed(text: str, pair: Pair, old: Any, new: Any) -> list[Span]:
    """Another value; of a list only the elements that differ."""
    if not isinstance(old, list) or not isinstance(new, list):
        return [(pair.value, pair.end, literal(new))]
    items, closing = members(text, pair)
    if len(old) == len(new):
        both = zip(items, old, new, strict=True)
        return [(item.start, item.end, literal(b)) for item, a, b in both if a != b or type(a) is not type(b)]
    left, gone = list(new), set()
    for number, item in enumerate(old):
        if left and left[0] == item:
            left.pop(0)
        else:
            gone.add(number)
    if not gone:
        return [tomllist.append(text, pair.value, items, closing, [literal(item) for item in left])]
    if not left:
        return list(tomllist.drop(text, items, closing, gone))
    return [(pair.value, pair.end, literal(new))]


def _members_of(document: Document, inline: Pair, values: Mapping[Path, Any]) -> list[str]:
    """`key = value` for an inline table; what lies deeper and is not there yet becomes inline tables in it."""
    found: dict[Path, Any] = {}
    for path, value in values.items():
        depth = _known(document.doc, path) + 1
        if depth < len(path):
            table = found.setdefault(path[:depth], {})
            for name in path[depth:-1]:
                table = table.setdefault(name, {})
            table[path[-1]] = value
        else:
            found[path] = value
    return [f"{_key(path[len(inline.path) :])} = {literal(value)}" for path, value in found.items()]


def _dotted(document: Document, path: Path, value: Any) -> Span | None:
    """A dotted key beside others of the same table, where that is written with dotted keys."""
    above = path[: min(_known(document.doc, path), len(path) - 1)]
    near = [p for p in document.pairs_towards(above) if len(p.path) > len(above) and _below(p.path, above)]
    if not near:
        return None
    line = f"{_indent(document.text, near[-1].start)}{_key(path[near[-1].base :])} = {literal(value)}"
    return _inserted(document.text, _line(document.text, near[-1].end, near[-1].end)[1], line + newline(document.text))


def _into_table(document: Document, path: Path, value: Any) -> Span | None:
    """A new line after the last pair of the table that [header] opens, or at the top of the file."""
    text, found = document.text, document.at.get(path[:-1])
    if not found or value == {}:
        return None
    table = found[0]
    line = f"{_key(path[-1:])} = {literal(value)}{newline(text)}"
    last = next(reversed([*pairs(text, table)]), None)
    if last is not None:
        at, indent = _line(text, last.end, last.end)[1], _indent(text, last.start)
    elif table.path:
        at, indent = _line(text, table.body, table.body)[1], _indent(text, table.start)
        indent += "  " if indent else ""
    else:
        at, indent = (_line(text, table.end, table.end)[0] if len(document.tables) > 1 else 0), ""
    return _inserted(text, at, indent + line)


def _into_new(document: Document, new: list[_NewTable], path: Path, value: Any) -> None:
    """A line for a table that is not there yet; that comes after those that share the longest beginning with it."""
    table, lines = (path, []) if value == {} else (path[:-1], [f"{_key(path[-1:])} = {literal(value)}"])
    same = next((t for t in new if t.path == table), None)
    if same is not None:
        same.lines += [("  " if same.indent else "") + line for line in lines]
        return
    known = table[: _known(document.doc, table)]
    parent = max(new, key=lambda t: _common(t.path, table), default=None)
    if parent is not None and _common(parent.path, table) > len(known):
        deeper = "  " if parent.indent and _below(table, parent.path) else ""
        made = _NewTable(table, parent.at, parent.indent + deeper, parent.blank, [])
        after = max(n for n, t in enumerate(new) if _common(t.path, table) == _common(parent.path, table))
        new.insert(after + 1, made)
    else:
        made = _new_table(document, table, known)
        new.append(made)
    made.lines = [("  " if made.indent else "") + line for line in lines]


def _new_table(document: Document, path: Path, known: Path) -> _NewTable:
    text = document.text
    near = [t for t in document.tables if known and t.path and _below(t.path, known)]
    if not near:
        return _NewTable(path, len(text), "", bool(text), [])
    brothers = [t for t in near if len(t.path) == len(path) and _common(t.path, path) == len(known)]
    indent = _indent(text, (brothers or near)[-1].start)
    if not brothers and indent and near[-1].path == known:
        indent += "  "
    at = _body_end(text, near[-1])
    follows = text[at : text.find("\n", at) + 1 or len(text)]
    return _NewTable(path, at, indent, not follows.strip(), [])


def _common(one: Path, other: Path) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _inserted(text: str, at: int, lines: str) -> Span:
    """Whole lines before the line that starts at `at`; a text whose last line is not ended stays such a text."""
    if at < len(text) or not text or text.endswith("\n"):
        return at, at, lines
    end = newline(text)
    return at, at, end + lines.removesuffix(end)


def _indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line if not line.strip(" \t") else ""


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
        return "{ " + ", ".join(f"{_key((k,))} = {literal(v)}" for k, v in value.items()) + " }" if value else "{}"
    return str(value)


def _escape(character: str) -> str:
    return "\\" + character if character in '"\\' else f"\\u{ord(character):04x}"
