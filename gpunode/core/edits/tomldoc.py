"""TOML text with what it says, where that stands, and the lines it stands on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpunode.core.edits.request import Refusal
from gpunode.core.edits.tomllist import Span
from gpunode.core.edits.tomlscan import Pair, Path, Table, members, pairs, tables


@dataclass(frozen=True)
class Source:
    """A TOML file that was read: its text, and what it says as plain values (shared: never change them)."""

    text: str
    doc: dict[str, Any]

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


def body_end(text: str, table: Table) -> int:
    """Behind the last line of a table: its last pair, and comments right below it that no other line follows."""
    last = table.body
    for pair in pairs(text, table):
        last = pair.end
    end = at = line_of(text, last, last)[1]
    while text[at : table.end].lstrip(" \t").startswith("#"):
        at = line_of(text, at, at)[1]
    follows = text[at : text.find("\n", at) + 1 or len(text)]
    return end if follows.strip() else at


def applied(text: str, spans: Collection[Span]) -> str:
    parts, at = [], 0
    for start, end, new in sorted(spans, key=lambda span: span[:2]):
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])
