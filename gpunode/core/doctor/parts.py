"""Reports of many parts → the parts, and whose messages each can have.

A report says with a heading where each part comes from: nvidia-bug-report.log, node/probe/logs.sh, the files of an
archive.  knowledge/faults/parts.toml knows the headings.  A text without headings is one part that may be from anyone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from gpunode.core.late import dataclass, replace

_LAST = 200  # characters at the end of a chunk in which a heading may begin


@dataclass(frozen=True, kw_only=True)
class Part:
    """Where some lines come from; `programs` None: from anyone."""

    name: str = ""
    programs: frozenset[str] | None = None
    earlier: bool = False  # of an earlier boot, or an older log
    refuted_by: str = ""  # a fact by which what it says is over
    report: bool = False  # of a report about one machine

    @property
    def silent(self) -> bool:
        return self.programs is not None and not self.programs


ANYONE = Part()


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Whole lines of one part; `line` is the number of the first one."""

    part: Part
    line: int
    text: str


@dataclass(frozen=True)
class Parts:
    """What knowledge/faults/parts.toml says."""

    data: Mapping[str, Any]

    @cached_property
    def _heading(self) -> re.Pattern[str]:
        """A heading, at the beginning of a line; its name is in the one group that matched."""
        return re.compile("|".join(f"(?:{form})" for form in self.data["headings"]), re.M)

    @cached_property
    def _rows(self) -> list[tuple[re.Pattern[str], Part]]:
        return [
            (
                re.compile(row["name"]),
                Part(
                    programs=None if row["of"] == ["*"] else frozenset(self._programs(row["of"])),
                    refuted_by=row.get("refuted_by", ""),
                ),
            )
            for row in self.data["part"]
        ]

    def _programs(self, names: Iterable[str]) -> list[str]:
        return [program for name in names for program in self.data["programs"].get(name, [name])]

    def ends(self) -> Iterator[tuple[str, list[str], str]]:
        """Texts, the programs whose earlier messages they end, and their place in the start they tell of."""
        return ((row["text"], self._programs(row["of"]), row.get("place", "first")) for row in self.data["over"])

    @cached_property
    def _earlier(self) -> re.Pattern[str]:
        return re.compile(self.data["earlier"])

    def part(self, name: str) -> Part:
        """The first row whose pattern is in the name; what no row knows says nothing."""
        known = next((part for pattern, part in self._rows if pattern.search(name)), Part(programs=frozenset()))
        return replace(known, name=name, earlier=bool(self._earlier.search(name)), report=True)

    def split(self, chunks: Iterable[str], part: Part = ANYONE) -> Iterator[Piece]:
        """Chunks of whole lines → pieces in order; `part` is where those before the first heading come from."""
        line, rest = 1, ""
        for chunk in chunks:
            text, start = rest + chunk, 0
            held = f"\n{text}".rfind("\n____", max(0, len(text) - _LAST))
            held = len(text) if held < 0 else held  # the name of a heading may be in the next chunk
            text, rest = text[:held], text[held:]
            headed = part.report or any(mark in text for mark in self.data["marks"])  # else it is a log, and long
            for match in [*(self._heading.finditer(text) if headed else ()), None]:
                end = match.start() if match else len(text)
                if end > start:
                    yield Piece(part=part, line=line, text=text[start:end])
                    line += text.count("\n", start, end)
                if match:
                    start, part = end, self.part(match[match.lastindex or 0])
        if rest:
            yield Piece(part=part, line=line, text=rest)
