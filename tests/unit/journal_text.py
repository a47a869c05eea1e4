"""What node/undo/read_journal.sh prints, made up for tests: a journal and a present."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpunode.core.edits.undo import record, undo_data
from gpunode.core.undo.journal import parse_snapshot
from gpunode.core.undo.plan import UndoPlan, plan_undo
from gpunode.core.undo.scope import scope_of

AT = "2026-11-22T01:00:00Z"
OLD, OURS, THEIRS = "1" * 64, "2" * 64, "3" * 64  # hashes: before gpunode, as it wrote, somebody else's since


def line(
    op: str, *, id: str, phase: str = "done", run: str = "", part: str = "", at: str = AT, **more: Any
) -> dict[str, Any]:
    return {"v": 1, "id": id, "at": at, "op": op, "phase": phase, "run": run, "part": part, **more}


def wrote(id: str, *files: tuple[str, str, str], **more: Any) -> list[dict[str, Any]]:
    """A transaction on files: (path, hash before, hash after)."""
    listed = [{"path": path, "before": before, "after": after} for path, before, after in files]
    return [line("files", id=id, phase="intent", files=listed, **more), line("files", id=id, **more)]


def packages(id: str, **changes: Any) -> dict[str, Any]:
    """A package transaction; added and removed are {name: version}, changed {name: (from, to)}."""
    more = {key: changes.pop(key) for key in ("run", "part", "phase") if key in changes}
    lists = {
        "added": [{"name": n, "version": v} for n, v in changes.pop("added", {}).items()],
        "changed": [{"name": n, "from": a, "to": b} for n, (a, b) in changes.pop("changed", {}).items()],
        "removed": [{"name": n, "version": v} for n, v in changes.pop("removed", {}).items()],
    }
    return line("packages", id=id, **more, **lists, **changes)


def state(kind: str, name: str, before: str, after: str, **more: Any) -> dict[str, Any]:
    return line("state", id="s", kind=kind, name=name, **{"from": before, "to": after}, **more)


def recall_text(
    journal: Iterable[Mapping[str, Any]],
    *,
    files: Mapping[str, str] = {},
    kept: Iterable[tuple[str, str]] = (),
    states: Mapping[tuple[str, str], str] = {},
    manager: str = "apt",
    installed: Mapping[str, str] = {},
    available: Mapping[str, Sequence[str]] = {},
    more: Iterable[Sequence[str]] = (),
) -> str:
    """The text.  `kept` are (id, path) of copies; a version in `installed` may end in " hold"."""
    rows: list[Sequence[str]] = [("journal", json.dumps(one)) for one in journal]
    rows += [("copy", id, "0", "kept", "-", path) for id, path in kept]
    rows += [("file", path, sha256) for path, sha256 in files.items()]
    rows += [(kind, name, value) for (kind, name), value in states.items()]
    rows += [("manager", manager)] if manager else []
    for name, version in installed.items():
        rows.append(("package", name, version.removesuffix(" hold"), "hold" if version.endswith(" hold") else "-"))
    rows += [("available", name, version) for name, versions in available.items() for version in versions]
    rows += more
    lines = ["\t".join(("recall", *row)) for row in rows]
    return "\n".join([*lines, "gpunode\tstatus\tunchanged", "gpunode\tmessage\tthe journal", ""])


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def undo_row(id: str, path: str, before: bytes | None, after: bytes) -> tuple[str, str, str]:
    """A `told undo` line for one file that an edit has changed from `before` to `after`."""
    data = {"label": "an engine", **undo_data({path: record(before, after)})}
    return ("undo", id, coded(json.dumps(data).encode()))


def back(text: str, verb: str = "uninstall", parts: tuple[str, ...] = (), to: str | None = None) -> UndoPlan:
    """What undoes what the text of read_journal.sh reports."""
    recall = parse_snapshot(text)
    return plan_undo(recall, scope_of(recall, verb=verb, parts=parts, to=to))
