"""Undoing an edit: to the byte, even when other lines of the file have changed since."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any, TypeVar

from gpunode.core.edits.values import Lost, same, undone, values, written
from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.late import regex
from gpunode.core.model import Hunk, Undo

FORMAT = 1
_AROUND = 3  # lines of context
_WHOLE = 1 << 16  # bytes: the first hunk of a file of up to so many has all the rest of it as context
_AHEAD = 400  # lines that are looked through for the next line that both have; beyond that all the rest is one hunk
_REMNANT = regex(rb"\s*(#|version\s*=)")
_WRITTEN = "what gpunode runtime configure wrote"
NOT_FOUND = (Lost("lines that gpunode wrote are no longer in it"),)
NEEDED = "changed since: others need what is still in it"
_BYTES = ("before", "after", "lead", "trail")

T = TypeVar("T")


def record(before: bytes | None, after: bytes | None) -> Undo:
    """How `after` becomes `before` again; None stands for a file that is not there."""
    start, end = _window(before or b"", after or b"")
    old = _lines((before or b"")[start : len(before or b"") - end])
    new = _lines((after or b"")[start : len(after or b"") - end])
    starts = [start]
    for line in new:
        starts.append(starts[-1] + len(line))
    hunks = [
        Hunk(
            before=b"".join(old[i1:i2]),
            after=b"".join(new[j1:j2]),
            lead=b"".join(new[max(0, j1 - _AROUND) : j1]),
            trail=b"".join(new[j2 : j2 + _AROUND]),
            at=starts[j1],
        )
        for i1, i2, j1, j2 in _differences(old, new)
    ]
    if hunks and before is not None and after is not None and len(after) <= _WHOLE:
        at, end = hunks[0].at, hunks[0].at + len(hunks[0].after)
        hunks[0] = replace(hunks[0], lead=after[:at], trail=after[end:])
    return Undo(created=before is None, hunks=tuple(hunks), sha256=sha256_of(after))


def sha256_of(data: bytes | None) -> str:
    """In hex; "" of a file that is not there."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _lines(data: bytes) -> list[bytes]:
    """Lines with their ends, which are line feeds alone."""
    return io.BytesIO(data).readlines()


def _window(old: bytes, new: bytes) -> tuple[int, int]:
    """How many bytes at the beginning and the end are whole lines that both have, and need not be looked at."""
    shorter = min(len(old), len(new))
    start = _common(old[:shorter], new[:shorter])
    rest = shorter - start
    end = len(new) - _common(old[len(old) - rest :][::-1], new[len(new) - rest :][::-1])
    for _ in range(_AROUND + 1):
        start = max(0, new.rfind(b"\n", 0, start))
        end = new.find(b"\n", end) + 1 or len(new)
    return start + (start > 0), len(new) - end


def _common(one: Sequence[T], other: Sequence[T]) -> int:
    """How many bytes or lines two sequences of one length have in common at the beginning."""
    low, high = 0, len(one)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _differences(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[tuple[int, int, int, int]]:
    """Where lines differ, as (from, to) in the old and in the new ones; in linear time, and not always the fewest."""
    i = j = 0
    while True:
        rest = min(len(old) - i, len(new) - j)
        same = _common(old[i : i + rest], new[j : j + rest])
        i, j = i + same, j + same
        if i == len(old) and j == len(new):
            return
        more, less = _meet(old, new, i, j)
        yield i, i + more, j, j + less
        i, j = i + more, j + less


def _meet(old: Sequence[bytes], new: Sequence[bytes], i: int, j: int) -> tuple[int, int]:
    """How many lines to pass over on both sides, at least, until three are the same, or the old ones end."""
    for both in range(1, _AHEAD):
        for more in range(max(0, both - len(new) + j), min(both, len(old) - i) + 1):
            ahead, there = old[i + more : i + more + _AROUND], j + both - more
            if ahead == new[there : there + len(ahead)] and (ahead or there == len(new)):
                return more, both - more
    return len(old) - i, len(new) - j


# ---------------------------------------------------------------- back


def revert(data: bytes | None, undo: Undo, path: str = "") -> tuple[bytes | None, tuple[Lost, ...]]:
    """The file without the edit, and what of the edit is not undone.

    A file that is as the edit left it becomes what it was.  Of one that has changed since, each hunk goes back whose
    lines are there once with lines around them that were there.  Where the `path` says how to read the file, its values
    decide (core/edits/values.py): where lines give others, the values are written.  A file that the edit made goes
    where nothing of anybody else's is left in it (`remnant`).  Hunks that are back already change nothing.
    """
    if untouched(data, undo):
        return None if undo.created else _replayed(data or b"", undo.hunks), ()
    if data is None:
        return None, () if undo.created else NOT_FOUND
    left, lost = _by_lines(data, undo)
    base = base_of(undo)
    if base is None or not path:
        return left, lost
    before = former(undo, base) or b""
    said = [values(path, one) for one in (data, before, base)]
    if any(one is None for one in said):
        return left, lost
    now, *edit = (one or {} for one in said)
    wanted, stays = undone(now, *edit)
    if not lost and not all(one.theirs for one in stays):
        return left, ()
    if not same(values(path, left or b""), wanted):
        rewritten = written(path, data, now, wanted)
        if rewritten is None:
            return left, lost
        left = None if remnant(rewritten, undo) else rewritten
    return left, tuple(stays)


def _by_lines(data: bytes, undo: Undo) -> tuple[bytes | None, tuple[Lost, ...]]:
    if undo.created:
        return (None, ()) if remnant(data, undo) else (data, NOT_FOUND)
    found = {hunk: _find(data, hunk) for hunk in undo.hunks}
    spans = sorted((*span, hunk.before) for hunk, span in found.items() if span)
    if any(later[0] < earlier[1] for earlier, later in pairwise(spans)):
        return data, NOT_FOUND
    for start, end, before in reversed(spans):
        data = data[:start] + _ended(before, data, end) + data[end:]
    return data, () if all(found.values()) else NOT_FOUND


def base_of(undo: Undo) -> bytes | None:
    """The whole file as the edit left it, where the first hunk has all of it around itself."""
    whole = undo.hunks[0].lead + undo.hunks[0].after + undo.hunks[0].trail if undo.hunks else b""
    return whole if sha256_of(whole) == undo.sha256 else None


def former(undo: Undo, data: bytes | None) -> bytes | None:
    """The file as it was before the edit; `data` where the record does not have all of it."""
    base = base_of(undo)
    return None if undo.created else data if base is None else _replayed(base, undo.hunks)


def _ended(lines: bytes, data: bytes, end: int) -> bytes:
    """The lines as they come before what stands at `end`: with a line end, where the last one had none."""
    if not lines or lines.endswith(b"\n") or end == len(data) or _ends_line(data, end):
        return lines
    return lines + (b"\r\n" if data.endswith(b"\r\n", 0, end) else b"\n")


def untouched(data: bytes | None, undo: Undo) -> bool:
    """Whether the file is as the edit left it."""
    return sha256_of(data) == undo.sha256


def remnant(data: bytes, undo: Undo) -> bool:
    """Whether nothing is left of a file that the edit made but blank lines, {}, and comments and a version it wrote."""
    wrote = b"".join(hunk.after for hunk in undo.hunks)
    kept = {line.strip() for line in _lines(wrote) if _REMNANT.match(line)} | {b"", b"{}"}
    rest = data.replace(wrote, b"", 1) if wrote else data
    return undo.created and all(line.strip() in kept for line in _lines(rest))


def _replayed(data: bytes, hunks: Sequence[Hunk]) -> bytes:
    for hunk in reversed(hunks):
        data = data[: hunk.at] + hunk.before + data[hunk.at + len(hunk.after) :]
    return data


def _find(data: bytes, hunk: Hunk) -> tuple[int, int] | None:
    """The span that becomes `before`: where the hunk's lines stand, or where they were put back already.

    First with all the lines around them, then with fewer, as long as that is one place only.  They are not back where a
    line is there that the edit alone has: neighbours may look like the lines before it.
    """
    lead, trail = _lines(hunk.lead), _lines(hunk.trail)
    kept = {line.strip() for line in (*lead, *trail, *_lines(hunk.before))} | {b""}
    own = {line.strip() for line in _lines(hunk.after)} - kept
    forms = [(hunk.after, not hunk.after)]
    if own.isdisjoint(line.strip() for line in _lines(data)):
        forms.append((hunk.before, True))
    for near in range(_AROUND, -1, -1):
        for left, right in ((near, near), (near, 0), (0, near)):
            before, behind = b"".join(lead[max(0, len(lead) - left) :]), b"".join(trail[:right])
            for middle, gone in forms:
                wanted = before + middle + behind
                if (before, behind) != (hunk.lead, hunk.trail) and not _suffices(data, wanted, hunk):
                    continue
                places = [at + len(before) for at in _places(data, wanted)]
                if gone:  # what is not there is between these lines, or at an end of the file
                    end = len(data) - len(middle)
                    places = [at for at in places if (before or at == 0) and (behind or at == end)]
                if len(places) == 1:
                    return places[0], places[0] + len(middle)
    return None


def _suffices(data: bytes, wanted: bytes, hunk: Hunk) -> bool:
    """Whether lines are enough not to be found by chance; an end of the file, where the hunk was, counts as one."""
    known = sum(not line.isspace() for line in _lines(wanted))
    ends = (not hunk.lead and data.startswith(wanted)) + (not hunk.trail and data.endswith(wanted))
    return known + ends >= _AROUND


def _places(data: bytes, wanted: bytes) -> Iterator[int]:
    """Where these whole lines stand."""
    at = data.find(wanted) if wanted else -1
    while at >= 0:
        end = at + len(wanted)
        starts = at == 0 or data.endswith(b"\n", 0, at)
        if starts and (wanted.endswith(b"\n") or end == len(data) or _ends_line(data, end)):
            yield at
        at = data.find(wanted, at + 1)


def _ends_line(data: bytes, at: int) -> bool:
    """Whether a line ends there: what was the last one, without an end, may have got lines below it."""
    return data.startswith((b"\n", b"\r\n"), at)


# ---------------------------------------------------------------- as JSON


def undo_data(undo: Mapping[str, Undo]) -> dict[str, Any]:
    """As plain data for JSON; bytes in base64."""

    def plain(items: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        return {key: base64.b64encode(one).decode() if isinstance(one, bytes) else one for key, one in items}

    return {"version": FORMAT, "files": {path: asdict(one, dict_factory=plain) for path, one in undo.items()}}


def undo_from_data(data: Any) -> dict[str, Undo]:
    """The reverse; InputError for what no gpunode of this format wrote."""
    version = data.get("version") if isinstance(data, dict) else None
    if version != FORMAT:
        raise InputError(f"undo record of format {version!r}", expected=f"format {FORMAT}")
    return {_is(str, path): _undo(one) for path, one in _is(dict, data.get("files")).items()}


def recorded_edits(files: Mapping[str, bytes], label: str) -> dict[str, Mapping[str, Undo]]:
    """What edits of that label left in the journal, newest first: id → record; `files` are backup/ID/undo.json."""
    found: dict[str, Mapping[str, Undo]] = {}
    for path in sorted((path for path in files if path.endswith("/undo.json")), reverse=True):
        try:
            data = json.loads(files[path])
            if isinstance(data, dict) and data.get("label") == label:
                found[path.split("/")[-2]] = undo_from_data(data)
        except (ValueError, RecursionError, GpunodeError) as error:
            raise InputError(
                f"{path}: {error}",
                expected="an undo record that configure wrote",
                fix="move it away: then unconfigure takes only what it knows for its own out",
            ) from error
    return found


def _undo(data: Any) -> Undo:
    have = _is(dict, data)
    hunks = tuple(_hunk(one) for one in _is(list, have.get("hunks")))
    undo = Undo(created=_is(bool, have.get("created")), sha256=_is(str, have.get("sha256")), hunks=hunks)
    if any(hunk.at < 0 for hunk in hunks) or [*hunks] != sorted(hunks, key=lambda hunk: hunk.at):
        raise InputError("undo record: its hunks are not in order", expected=_WRITTEN)
    return undo


def _hunk(data: Any) -> Hunk:
    have = _is(dict, data)
    try:
        spans = {key: base64.b64decode(_is(str, have.get(key)), validate=True) for key in _BYTES}
    except ValueError:
        raise InputError("undo record: a span is not in base64", expected=_WRITTEN) from None
    return Hunk(**spans, at=_is(int, have.get("at")))


def _is(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise InputError(f"undo record: it has a {type(value).__name__} for a {kind.__name__}", expected=_WRITTEN)
    return value


# ---------------------------------------------------------------- all files together

Files = Mapping[str, bytes]


def put(files: Files, changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """The files with the changes made to them."""
    return {path: data for path, data in {**files, **changes}.items() if data is not None}
