"""What is to be undone: which records of a node's journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpunode.core.errors import InputError
from gpunode.core.undo.journal import JournalSnapshot, Record, after_run, era

PARTS = ("driver", "fabric", "cuda", "toolkit", "runtime", "sharing")


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What is to be undone: records, in order; `known` are all records since the last uninstall."""

    records: tuple[Record, ...]
    known: tuple[Record, ...]
    to: str = ""  # the run after which the node is to be again
    whole: bool = True  # nothing of gpunode's stays


def scope_of(journal: JournalSnapshot, *, verb: str, parts: Sequence[str] = (), to: str | None = None) -> Scope:
    """What `verb` (uninstall | rollback) is to undo.  Raises InputError for an unknown part or run."""
    for part in parts:
        if part not in PARTS:
            raise InputError(f"part {part!r}", expected=f"one of {', '.join(PARTS)}")
    known = journal.records[era(journal.records) :]
    if verb == "rollback":
        since, run = after_run(journal.records, to)
        return Scope(records=journal.records[since:], known=known, to=run, whole=False)
    mine = tuple(r for r in known if not parts or r.part in parts)
    return Scope(records=mine, known=known, whole=not parts)
