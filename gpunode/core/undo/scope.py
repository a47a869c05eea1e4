"""What is to be undone: which records of a node's journal, with what they say of each thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gpunode.core.errors import InputError
from gpunode.core.undo.journal import JournalSnapshot, Record, after_run, era

PARTS = ("driver", "fabric", "cuda", "toolkit", "runtime", "sharing")


class Note(NamedTuple):
    """Why something stays as it is, and what that is: names of files, packages and settings."""

    text: str
    about: tuple[str, ...]


class Recorded(NamedTuple):
    """What a record says of one thing: how it was before, and how gpunode left it."""

    at: int  # in the order of the records
    record: Record
    before: str
    after: str
    mine: bool  # to be undone


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What is to be undone: records, in order; `known` are all records since the last uninstall."""

    records: tuple[Record, ...]
    known: tuple[Record, ...]
    to: str = ""  # the run after which the node is to be again
    whole: bool = True  # nothing of gpunode's stays

    @cached_property
    def _own(self) -> frozenset[int]:
        return frozenset(map(id, self.records))

    def has(self, record: Record) -> bool:
        """Whether a known record is to be undone."""
        return id(record) in self._own

    @cached_property
    def files(self) -> Mapping[str, Sequence[Recorded]]:
        """By path, what was written there and stands, oldest first."""
        undone = {r.id for r in self.known if r.op == "files" and r.phase == "undone"}
        standing = (r for r in self.known if r.op == "files" and r.id not in undone)
        files = ((record, file) for record in standing for file in record.more.get("files", ()))
        found: dict[str, list[Recorded]] = {}
        for at, (record, file) in enumerate(files):
            one = Recorded(at, record, file["before"], file["after"], self.has(record))
            found.setdefault(file["path"], []).append(one)
        return found

    @cached_property
    def own_files(self) -> Mapping[str, Sequence[Recorded]]:
        """By path, what of that is to be undone: the first one says how the file was before."""
        found = {path: own for path, ones in self.files.items() if (own := [one for one in ones if one.mine])}
        return dict(sorted(found.items(), key=lambda one: one[1][0].at))

    @cached_property
    def states(self) -> Mapping[tuple[str, str], Sequence[Recorded]]:
        """By kind and name, what was set of all but files and packages, where some of it is to be undone."""
        found: dict[tuple[str, str], list[Recorded]] = {}
        for at, record in enumerate(self.known):
            if record.op == "state":
                more = record.more
                one = Recorded(at, record, more["from"], more["to"], self.has(record))
                found.setdefault((more["kind"], more["name"]), []).append(one)
        return {key: ones for key, ones in found.items() if any(one.mine for one in ones)}


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
