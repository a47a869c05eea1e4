"""Take keys and tables out of TOML text.  Comments stay: a person wrote them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gpunode.core.edits.text import tomllist
from gpunode.core.edits.text.tomldoc import Source, applied, below, depth_of, line_of, place_of
from gpunode.core.edits.text.tomllist import Span
from gpunode.core.edits.text.tomlscan import Pair, Path, members


def without(source: Source, removes: Collection[Path]) -> Source:
    """The source, not yet proven, without what stands at these paths."""
    text, doc, spans = source.text, source.doc, []
    inlines: dict[Pair, set[Path]] = {}
    for path in removes:
        if not path or depth_of(doc, path) < len(path):
            continue
        inline, _ = place_of(source, path)
        if inline is not None:
            inlines.setdefault(inline, set()).add(path)
        spans += [line_of(text, p.start, p.end) for p in source.pairs_towards(path) if below(p.path, path)]
        tables = {n for n, table in enumerate(source.tables) if below(table.path, path)}
        spans += [_table_lines(source, n, followed=n + 1 in tables) for n in tables]
        doc = _dropped(source, doc, path)
    for inline, paths in inlines.items():
        items, closing = members(text, inline)
        gone = {n for n, item in enumerate(items) if any(below(item.path, path) for path in paths)}
        spans += tomllist.drop(text, items, closing, gone)
    return Source(applied(text, _joined(text, spans)), doc) if spans else source


def _dropped(source: Source, doc: dict[str, Any], path: Path) -> dict[str, Any]:
    """The values without a path, and without those above it that nothing but it implied."""
    result = dict(doc)
    above = [result]
    for name in path[:-1]:
        above[-1][name] = dict(above[-1][name])
        above.append(above[-1][name])
    del above[-1][path[-1]]
    for depth in range(len(path) - 1, 0, -1):
        way = path[:depth]
        if above[depth] or way in source.at or place_of(source, way)[1]:
            break
        del above[depth - 1][way[-1]]
    return result


def _table_lines(source: Source, number: int, *, followed: bool) -> Span:
    """A table with the blank line before it, down to its last pair; where the next table goes too, down to that."""
    text, table = source.text, source.tables[number]
    start = line_of(text, table.start, table.start)[0]
    above = text.rfind("\n", 0, max(start - 1, 0)) + 1
    if start and not text[above:start].strip():
        start = above
    found = source.pairs(table)
    last = found[-1].end if found else table.body
    return start, table.end if followed else line_of(text, last, last)[1], ""


def _joined(text: str, spans: Collection[Span]) -> list[Span]:
    """Removals without overlap, less the comments in them.  A text whose last line is not ended stays such a text."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span[0] <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(span[1], joined[-1][1]), "")
        else:
            joined.append(span)
    joined = [(start, end, tomllist.comments(text, start, end)) for start, end, _ in joined]
    start, end, kept = joined[-1]
    if end == len(text) and not text.endswith("\n") and text[:start].endswith("\n"):
        ends = 2 if text[:start].endswith("\r\n") else 1
        joined[-1] = (start, end, kept.removesuffix("\n").removesuffix("\r")) if kept else (start - ends, end, "")
    return joined
