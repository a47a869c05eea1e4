"""TOML text with what it says, where that stands, and the lines it stands on."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpunode.core.edits.request import Refusal
from gpunode.core.edits.text.tomllist import Span
from gpunode.core.edits.text.tomlscan import Pair, Path, Table, members, pairs, tables

_COMMENT = re.compile(r"[ \t]*#[^\n]*(?:\n|\Z)")


@dataclass(frozen=True)
class Source:
    """A TOML file that was read: its text, and what it says as plain values (shared: never change them)."""

    text: str
    doc: dict[str, Any]
    _pairs: dict[Table, list[Pair]] = field(default_factory=dict, init=False, repr=False, compare=False)

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

    def pairs(self, table: Table) -> Sequence[Pair]:
        """The pairs of a table, looked for once."""
        if table not in self._pairs:
            self._pairs[table] = list(pairs(self.text, table))
        return self._pairs[table]

    def pairs_towards(self, path: Path) -> list[Pair]:
        """The pairs of all tables that `path` leads through."""
        ways = (path[:depth] for depth in range(len(path)))
        return [pair for way in ways for table in self.at.get(way, ()) for pair in self.pairs(table)]

    def body_end(self, table: Table) -> int:
        """Behind the last line of a table: its last pair, and comments right below it that no other line follows."""
        found = self.pairs(table)
        last = found[-1].end if found else table.body
        end = at = line_of(self.text, last, last)[1]
        while (comment := _COMMENT.match(self.text, at)) is not None:
            at = comment.end()
        return at if blank_line(self.text, at) else end


def lookup(doc: Any, path: Path) -> Any:
    """The value at a path of plain data, None when it is not there; Refusal where a table should be and is not."""
    for depth, name in enumerate(path):
        if not isinstance(doc, dict):
            raise Refusal(
                f"{'.'.join(path[:depth])} is {kind(doc)}, not a table",
                "make it a table: the daemon expects one there",
            )
        if name not in doc:
            return None
        doc = doc[name]
    return doc


def kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean"}.get(type(value), "a single value")


def place_of(source: Source, path: Path) -> tuple[Pair | None, Pair | None]:
    """The innermost inline table around a path, and the pair that says its value; None for what is not there."""
    inline, level = None, source.pairs_towards(path)
    while True:
        hit = next((pair for pair in level if path[: len(pair.path)] == pair.path), None)
        if hit is None or hit.path == path:
            return inline, hit
        inline, level = hit, members(source.text, hit)[0]


def depth_of(doc: Any, path: Path) -> int:
    """How many parts of a path are there."""
    for depth, name in enumerate(path):
        if not isinstance(doc, dict) or name not in doc:
            return depth
        doc = doc[name]
    return len(path)


def below(path: Path, above: Path) -> bool:
    return path[: len(above)] == above


# ---------------------------------------------------------------- lines


def line_of(text: str, start: int, end: int) -> Span:
    """The lines from `start` to `end`, with the line end."""
    return text.rfind("\n", 0, start) + 1, text.find("\n", end) + 1 or len(text), ""


def blank_line(text: str, at: int) -> bool:
    """Whether the line that starts there is blank, or the text ends there."""
    return not text[at : line_of(text, at, at)[1]].strip()


def applied(text: str, spans: Collection[Span]) -> str:
    parts, at = [], 0
    for start, end, new in sorted(spans, key=lambda span: span[:2]):
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])
