"""Taking an edit back: to the byte, even when other lines of the file have changed since."""

from __future__ import annotations

import base64
import difflib
import hashlib
from collections.abc import Mapping
from typing import Any

from gpunode.core.errors import InputError
from gpunode.core.model import Hunk, Undo

FORMAT = 1
_AROUND = 3  # lines of context


def record(before: bytes | None, after: bytes | None) -> Undo:
    """How `after` becomes `before` again; None stands for a file that is not there."""
    sha256 = "" if after is None else hashlib.sha256(after).hexdigest()
    old, new = (before or b"").splitlines(keepends=True), (after or b"").splitlines(keepends=True)
    same = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    hunks = tuple(
        Hunk(
            before=b"".join(old[i1:i2]),
            after=b"".join(new[j1:j2]),
            lead=b"".join(new[max(0, j1 - _AROUND) : j1]),
            trail=b"".join(new[j2 : j2 + _AROUND]),
        )
        for tag, i1, i2, j1, j2 in same
        if tag != "equal"
    )
    return Undo(created=before is None, hunks=hunks, sha256=sha256)


def revert(data: bytes | None, undo: Undo) -> tuple[bytes | None, tuple[Hunk, ...]]:
    """The file without the edit, and the hunks that could not be found again."""
    if undo.sha256 == ("" if data is None else hashlib.sha256(data).hexdigest()) and undo.created:
        return None, ()
    if data is None:
        return None, undo.hunks
    lost = []
    for hunk in undo.hunks:
        at = _find(data, hunk)
        if at is None:
            lost.append(hunk)
        else:
            data = data[:at] + hunk.before + data[at + len(hunk.after) :]
    return (None if undo.created and not data.strip() else data), tuple(lost)


def _find(data: bytes, hunk: Hunk) -> int | None:
    """Where the hunk's new bytes are: with the lines around them, or at the one place where they occur."""
    for lead, trail in ((hunk.lead, hunk.trail), (hunk.lead, b""), (b"", hunk.trail), (b"", b"")):
        wanted = lead + hunk.after + trail
        if wanted and data.count(wanted) == 1:
            return data.index(wanted) + len(lead)
    return None


def undo_data(undo: Mapping[str, Undo]) -> dict[str, Any]:
    """As plain data for JSON; bytes in base64."""
    return {"version": FORMAT, "files": {path: _data(one) for path, one in undo.items()}}


def _data(undo: Undo) -> dict[str, Any]:
    keys = ("before", "after", "lead", "trail")
    hunks = [{key: base64.b64encode(getattr(hunk, key)).decode() for key in keys} for hunk in undo.hunks]
    return {"created": undo.created, "sha256": undo.sha256, "hunks": hunks}


def undo_from_data(data: Any) -> dict[str, Undo]:
    """The reverse; InputError for what no gpunode of this format wrote."""
    try:
        if data["version"] != FORMAT:
            raise InputError(f"undo record of format {data['version']!r}", expected=f"format {FORMAT}")
        return {
            path: Undo(
                created=bool(one["created"]),
                sha256=str(one["sha256"]),
                hunks=tuple(
                    Hunk(**{key: base64.b64decode(text, validate=True) for key, text in hunk.items()})
                    for hunk in one["hunks"]
                ),
            )
            for path, one in data["files"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"undo record: {error}", expected="what gpunode runtime configure wrote") from None
