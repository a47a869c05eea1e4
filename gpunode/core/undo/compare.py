"""After an undo: is each thing that the journal names as it was before?  By what the node says, not by the plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpunode.core.items.item import ABSENT
from gpunode.core.undo.files import files_before
from gpunode.core.undo.journal import JournalSnapshot
from gpunode.core.undo.kinds import KINDS, OTHER
from gpunode.core.undo.packages import versions_before
from gpunode.core.undo.scope import Scope
from gpunode.core.undo.states import states_before

_GONE = {"absent": "not there", "present": "there", "": "not set"}


def differences(journal: JournalSnapshot, scope: Scope, noted: Collection[str] = ()) -> list[str]:
    """What is not as it was before the records of `scope`, in words; what is `noted` has its reason, and stays."""
    found = [*_files(journal, scope), *_packages(journal, scope), *_states(journal, scope), *_driver(journal, scope)]
    return [text for thing, text in found if thing not in noted]


def _files(journal: JournalSnapshot, scope: Scope) -> Iterator[tuple[str, str]]:
    for path, wanted in files_before(journal, scope).items():
        now = journal.files.get(path, ABSENT)
        if now != wanted:
            yield path, f"{path} {_is_and_was(now, wanted)}"


def _is_and_was(now: str, wanted: str) -> str:
    if wanted == ABSENT:
        return "is there, and was not"
    return "is gone, and was there" if now == ABSENT else "is another one than before"


def _packages(journal: JournalSnapshot, scope: Scope) -> Iterator[tuple[str, str]]:
    for name, version in versions_before(scope.records).items():
        now = journal.packages.get(name, (ABSENT, ""))[0]
        if now != version:
            yield name, f"{name} is {_GONE.get(now, now)}, and was {_GONE.get(version, version)}"


def _states(journal: JournalSnapshot, scope: Scope) -> Iterator[tuple[str, str]]:
    for (kind, name), was in states_before(journal, scope).items():
        now = journal.states.get((kind, name))
        there = KINDS.get(kind, OTHER)
        if now is not None and not there.again(now, was):
            yield name, f"{there.called}{name} is {_GONE.get(now, now)}, and was {_GONE.get(was, was)}"


def _driver(journal: JournalSnapshot, scope: Scope) -> Iterator[tuple[str, str]]:
    """Where all of gpunode goes: the driver that was loaded before it came, by the baseline."""
    baseline = next((r for r in scope.known if r.op == "baseline"), None)
    was = baseline.more.get("driver") if baseline else None
    touched = any(
        r.op in ("packages", "runfile") or (r.op == "state" and r.more["kind"] == "module") for r in scope.records
    )
    if scope.whole and touched and was == "" and journal.driver:
        yield "nvidia", f"the driver {journal.driver} is loaded, and none was"
