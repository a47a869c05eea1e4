"""Put keys and tables into TOML text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpunode.core.edits.request import Refusal
from gpunode.core.edits.text import tomllist
from gpunode.core.edits.text.tomldoc import (
    Source,
    applied,
    below,
    blank_line,
    depth_of,
    kind,
    line_of,
    lookup,
    place_of,
)
from gpunode.core.edits.text.tomllist import Span, newline
from gpunode.core.edits.text.tomlscan import Pair, Path, members

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


@dataclass
class _NewTable:
    """A table that is to be written at an offset."""

    path: Path
    at: int
    indent: str
    blank: bool  # whether a blank line comes before it
    lines: list[str]


def with_values(source: Source, sets: Mapping[Path, Any]) -> Source:
    """The source, not yet proven, with these values."""
    text, doc, spans = source.text, source.doc, []
    inlines: dict[Pair, dict[Path, Any]] = {}
    new: list[_NewTable] = []
    for path, value in sets.items():
        have = lookup(doc, path)
        if repr(have) == repr(value) or (value == {} and isinstance(have, dict)):  # repr: 1 is neither true nor 1.0
            continue
        if isinstance(have, dict) or (have is not None and value == {}):
            raise Refusal(f"{'.'.join(path)} is {'a table' if isinstance(have, dict) else kind(have)}", "remove it")
        doc = _put(doc, path, value)
        inline, pair = place_of(source, path)
        if pair is not None:
            spans += _changed(text, pair, have, value)
        elif inline is not None:
            inlines.setdefault(inline, {})[path] = value
        elif (span := _dotted(source, path, value) or _into_table(source, path, value)) is not None:
            spans.append(span)
        else:
            _into_new(source, new, path, value)
    for inline, values in inlines.items():
        items, closing = members(text, inline)
        spans.append(tomllist.append(text, inline.value, items, closing, _members_of(source, inline, values)))
    if doc is source.doc:
        return source
    for table in new:
        end, start = newline(text), newline(text) if table.blank else ""
        lines = "".join(f"{line}{end}" for line in table.lines)
        spans.append(_inserted(text, table.at, f"{start}{table.indent}[{_key(table.path)}]{end}{lines}"))
    return Source(applied(text, spans), doc)


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
        return [(item.start, item.end, literal(b)) for item, a, b in both if repr(a) != repr(b)]
    left, gone = list(new), set()
    for number, item in enumerate(old):
        if left and repr(left[0]) == repr(item):
            left.pop(0)
        else:
            gone.add(number)
    if not gone:
        return [tomllist.append(text, pair.value, items, closing, [literal(item) for item in left])]
    if not left:
        return list(tomllist.drop(text, items, closing, gone))
    return [(pair.value, pair.end, literal(new))]


def _members_of(source: Source, inline: Pair, values: Mapping[Path, Any]) -> list[str]:
    """`key = value` for an inline table; what lies deeper and is not there yet becomes inline tables in it."""
    found: dict[Path, Any] = {}
    for path, value in values.items():
        depth = depth_of(source.doc, path) + 1
        if depth < len(path):
            table = found.setdefault(path[:depth], {})
            for name in path[depth:-1]:
                table = table.setdefault(name, {})
            table[path[-1]] = value
        else:
            found[path] = value
    return [f"{_key(path[len(inline.path) :])} = {literal(value)}" for path, value in found.items()]


def _dotted(source: Source, path: Path, value: Any) -> Span | None:
    """A dotted key beside others of the same table, where that is written with dotted keys."""
    above = path[: min(depth_of(source.doc, path), len(path) - 1)]
    near = [p for p in source.pairs_towards(above) if len(p.path) > len(above) and below(p.path, above)]
    if not near:
        return None
    line = f"{_indent(source.text, near[-1].start)}{_key(path[near[-1].base :])} = {literal(value)}"
    return _inserted(source.text, line_of(source.text, near[-1].end, near[-1].end)[1], line + newline(source.text))


def _into_table(source: Source, path: Path, value: Any) -> Span | None:
    """A new line after the last pair of the table that [header] opens, or at the top of the file."""
    text, opened = source.text, source.at.get(path[:-1])
    if not opened or value == {}:
        return None
    table = opened[0]
    line = f"{_key(path[-1:])} = {literal(value)}{newline(text)}"
    found = source.pairs(table)
    if found:
        last = found[-1]
        at, indent = line_of(text, last.end, last.end)[1], _indent(text, last.start)
    elif table.path:
        at, indent = line_of(text, table.body, table.body)[1], _indent(text, table.start)
        indent = _deeper(indent)
    else:
        at, indent = (line_of(text, table.end, table.end)[0] if len(source.tables) > 1 else 0), ""
    return _inserted(text, at, indent + line)


def _into_new(source: Source, new: list[_NewTable], path: Path, value: Any) -> None:
    """A line for a table that is not there yet; that comes after those that share the longest beginning with it."""
    table, lines = (path, []) if value == {} else (path[:-1], [f"{_key(path[-1:])} = {literal(value)}"])
    same = next((t for t in new if t.path == table), None)
    if same is not None:
        same.lines += [_deeper(same.indent) + line for line in lines]
        return
    known = table[: depth_of(source.doc, table)]
    parent = max(new, key=lambda t: _common(t.path, table), default=None)
    if parent is not None and _common(parent.path, table) > len(known):
        indent = _deeper(parent.indent) if below(table, parent.path) else parent.indent
        made = _NewTable(table, parent.at, indent, parent.blank, [])
        after = max(n for n, t in enumerate(new) if _common(t.path, table) == _common(parent.path, table))
        new.insert(after + 1, made)
    else:
        made = _new_table(source, table, known)
        new.append(made)
    made.lines = [_deeper(made.indent) + line for line in lines]


def _new_table(source: Source, path: Path, known: Path) -> _NewTable:
    text = source.text
    near = [t for t in source.tables if known and t.path and below(t.path, known)]
    if not near:
        return _NewTable(path, len(text), "", bool(text), [])
    brothers = [t for t in near if len(t.path) == len(path) and _common(t.path, path) == len(known)]
    indent = _indent(text, (brothers or near)[-1].start)
    if not brothers and near[-1].path == known:
        indent = _deeper(indent)
    at = source.body_end(near[-1])
    return _NewTable(path, at, indent, blank_line(text, at), [])


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


def _deeper(indent: str) -> str:
    """One step more, where there is any indentation."""
    return indent + ("\t" if indent.endswith("\t") else "  ") if indent else ""


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
