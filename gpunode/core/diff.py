"""The difference of two versions of a file, for a person to read: unified, and without secrets."""

from __future__ import annotations

import difflib

from gpunode.core.late import regex
from gpunode.core.mask import mask


def unified(before: bytes | None, after: bytes | None, path: str) -> str:
    """A unified diff with three lines of context, "" when nothing differs.  None stands for no such file.

    Secrets are masked on both sides; where nothing else differs, it says which lines differ in what is hidden.
    """
    if before == after:
        return ""
    old, new = (mask(_text(data)).splitlines() for data in (before, after))
    head = ["/dev/null" if data is None else path for data in (before, after)]
    lines = list(difflib.unified_diff(old, new, head[0], head[1], lineterm=""))
    if not lines:
        return f"--- {head[0]}\n+++ {head[1]}\n@@ {_unseen(before, after)} @@\n"
    return "".join(f"{line}\n" for line in lines)


def _unseen(before: bytes | None, after: bytes | None) -> str:
    """What differs though the masked lines are the same."""
    if before is None or after is None:
        return "an empty file"
    old, new = (_text(data).splitlines() for data in (before, after))
    if old == new:
        return "only line ends, or bytes that are not UTF-8, differ"
    numbers = [number for number, pair in enumerate(zip(old, new, strict=False), 1) if pair[0] != pair[1]]
    stated = f"line{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:10]))}{' …' * (len(numbers) > 10)}"
    return (
        f"the difference is hidden: a secret, or what stands behind one, in {stated if numbers else 'the last lines'}"
    )


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


_HUNK = regex(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def changed_lines(diff: str) -> list[tuple[str, int, int]]:
    """Path, lines added and lines removed of each file of unified diffs, in their order.

    >>> changed_lines("--- /dev/null\\n+++ /etc/a\\n@@ -0,0 +1,2 @@\\n+x\\n+-- y")
    [('/etc/a', 2, 0)]
    """
    found: dict[str, tuple[int, int]] = {}
    path, old, new = "", 0, 0  # lines of the hunk that are still to come
    for line in diff.splitlines():
        hunk = _HUNK.match(line)
        if old <= 0 and new <= 0 and hunk:
            old, new = (int(number) if number is not None else 1 for number in hunk.groups())
        elif old <= 0 and new <= 0:
            if line.startswith(("--- /", "+++ /")) and line[4:] != "/dev/null":
                path = line[4:]
                found.setdefault(path, (0, 0))
        else:
            added, gone = found.get(path, (0, 0))
            found[path] = (added + line.startswith("+"), gone + line.startswith("-"))
            old -= line[:1] in (" ", "-", "")
            new -= line[:1] in (" ", "+", "")
    return [(name, added, gone) for name, (added, gone) in found.items()]
