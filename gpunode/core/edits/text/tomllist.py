"""Put elements into arrays and inline tables of TOML text, and take them out, comments and lines kept."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from gpunode.core.edits.text.tomlscan import STRING, Pair, skip

Span = tuple[int, int, str]  # from, to, what comes there instead

_COMMENT = re.compile(rf"(?:{STRING.pattern})|(?P<comment>#[^\n]*)", re.DOTALL)
_TAIL = re.compile(r"(?P<comma>[ \t]*,)?(?P<comment>[ \t]*#[^\r\n]*)?")


def append(text: str, opening: int, items: Sequence[Pair], closing: int, new: Sequence[str]) -> Span:
    """New elements behind the last one: on lines of their own, behind its comment, if it has one of its own."""
    if not items:
        return _fill(text, opening, closing, new)
    last = items[-1]
    line = _own_line(text, last)
    if line is None:
        return last.end, last.end, "".join(f", {item}" for item in new)
    tail = _TAIL.match(text, last.end)
    comma, comment = (tail["comma"] or "", tail["comment"] or "") if tail else ("", "")
    lead = newline(text) + text[line[0] : last.start]
    added = ",".join(f"{lead}{item}" for item in new)
    return last.end, last.end + len(comma + comment), f"{comma or ','}{comment}{added}{comma.strip()}"


def _fill(text: str, opening: int, closing: int, new: Sequence[str]) -> Span:
    """The first elements: before the closing bracket's line if there are lines, else within the same spaces."""
    inside = text[opening + 1 : closing]
    if "\n" not in inside:
        return closing, closing, ", ".join(new) + inside
    at = text.rfind("\n", 0, closing) + 1
    comment = re.search(r"\n([ \t]*)#", inside)
    indent = comment[1] if comment else text[at:closing] + "  "
    return at, at, "".join(f"{indent}{item},{newline(text)}" for item in new)


def drop(text: str, items: Sequence[Pair], closing: int, gone: Collection[int]) -> Iterator[Span]:
    """Takes out the elements of those numbers."""
    for number in sorted(gone):
        if number - 1 in gone:
            continue
        last = next(n for n in range(number, len(items)) if n + 1 not in gone)
        yield from _drop_run(text, items, closing, number, last)


def _drop_run(text: str, items: Sequence[Pair], closing: int, first: int, last: int) -> Iterator[Span]:
    """Takes out the elements from number `first` to `last`."""
    start, end = items[first].start, items[last].end
    after = skip(text, end)
    comma, kept = text[after] == ",", ""
    opens, closes = _own_line(text, items[first]), _own_line(text, items[last])
    if opens and closes and (not comma or after < closes[1]):
        start, end = opens[0], closes[1]
        kept = comments(text, start, end)
    elif last + 1 < len(items):
        follows = items[last + 1].start
        end = follows if "#" not in text[end:follows] else after + 1
    elif first == 0:
        end = after + 1 if comma else end
        end = closing if not text[end:closing].strip(" \t") else end
    elif "#" not in text[items[first - 1].end : start]:
        start, comma = items[first - 1].end, True
    elif comma:
        end = after + 1
    yield start, end, kept
    if last + 1 == len(items) and first and not comma:  # the comma that stands before it now stands before nothing
        before = skip(text, items[first - 1].end)
        yield before, before + 1, ""


def _own_line(text: str, item: Pair) -> tuple[int, int] | None:
    """The lines of an element that shares them with nothing but its comma and comment, from start to start."""
    start = text.rfind("\n", 0, item.start) + 1
    tail = _TAIL.match(text, item.end)
    end = text.find("\n", item.end)
    if end < 0 or text[start : item.start].strip(" \t") or tail is None or text[tail.end() : end].strip(" \t\r"):
        return None
    return start, end + 1


def newline(text: str) -> str:
    """The line end of the text's first line."""
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def comments(text: str, start: int, end: int) -> str:
    """The comments of a span that starts outside of strings: those on lines of their own as they stand."""
    kept = []
    for found in _COMMENT.finditer(text, start, end):
        if found["comment"] is None:
            continue
        line = text.rfind("\n", 0, found.start()) + 1
        before = text[line : found.start()]
        if before.strip():  # it shares its line with what goes
            indent = before[: len(before) - len(before.lstrip(" \t"))]
            kept.append(f"{indent}{found['comment'].rstrip()}{newline(text)}")
        else:
            kept.append(f"{before}{found['comment']}\n")
    return "".join(kept)
