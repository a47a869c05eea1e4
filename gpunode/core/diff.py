"""The difference of two versions of a file, for a person to read: unified, and without secrets."""

from __future__ import annotations

import difflib

from gpunode.core.mask import mask


def unified(before: bytes | None, after: bytes | None, path: str) -> str:
    """A unified diff with three lines of context, "" when nothing differs.  None stands for no such file.

    Secrets are masked on both sides; a line that differs only in a secret shows as a change all the same.
    """
    if before == after:
        return ""
    old, new = (_lines(data) for data in (before, after))
    head = ["/dev/null" if data is None else path for data in (before, after)]
    lines = list(difflib.unified_diff(old, new, head[0], head[1], lineterm=""))
    if not lines:
        return f"--- {head[0]}\n+++ {head[1]}\n@@ only secrets, line ends or an empty file differ @@\n"
    return "".join(f"{line}\n" for line in lines)


def _lines(data: bytes | None) -> list[str]:
    return mask((data or b"").decode(errors="replace")).splitlines()
