"""What a run did to a node, in a few words: «driver 580.178.04 → 595.91.07, 20 packages, 3 files»."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.core.items.item import ABSENT
from gpunode.core.items.module_undo import is_driver
from gpunode.core.items.package_undo import versions
from gpunode.core.late import regex
from gpunode.core.model.journal import ROLLBACK, Record
from gpunode.core.printable import counted

TOOLKIT = "nvidia-container-toolkit"
_CUDA = regex(r"cuda-(?:toolkit|compiler|libraries)-(\d+)-(\d+)\Z")
_PLAIN = regex(r"(?:\d+:)?(\d+(?:\.\d+)+)")


def summary(records: Sequence[Record]) -> str:
    """What is another way after the records than before them; "" where nothing is."""
    own = [r for r in records if ROLLBACK not in (r.op, r.part)]
    packages = _versions(own)
    found = [
        _change("driver", [pair for name, pair in packages.items() if is_driver(name)]),
        _change("toolkit", [pair for name, pair in packages.items() if name == TOOLKIT]),
        *sorted(
            {f"CUDA {m[1]}.{m[2]}" for name, (_, to) in packages.items() if (m := _CUDA.match(name)) and to != ABSENT}
        ),
    ]
    undone = {r.id for r in own if r.op == "files" and r.phase == "undone"}
    files = {f["path"] for r in own if r.op == "files" and r.id not in undone for f in r.more.get("files", ())}
    settings = {(r.more["kind"], r.more["name"]) for r in own if r.op == "state"}
    for count, word in ((len(packages), "package"), (len(files), "file"), (len(settings), "setting")):
        found.append(counted(count, word) if count else "")
    return ", ".join(filter(None, found))


def _versions(records: Sequence[Record]) -> dict[str, tuple[str, str]]:
    """Package → (version before, version after), of those where they differ."""
    found: dict[str, tuple[str, str]] = {}
    for name, before, after in versions(records):
        found[name] = found.get(name, (before, ""))[0], after
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def _change(what: str, pairs: Sequence[tuple[str, str]]) -> str:
    """«driver 580.178.04 → 595.91.07»; a part that comes by other names in another version is one all the same."""
    before, after = ({m[1] for pair in pairs if (m := _PLAIN.match(pair[n]))} for n in (0, 1))
    if not before | after:
        return ""
    return f"{what} {_named(before)} → {_named(after)}" if before else f"{what} {_named(after)} installed"


def _named(versions: set[str]) -> str:
    return " and ".join(sorted(versions)) or "none"
