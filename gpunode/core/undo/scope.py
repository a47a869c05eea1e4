"""What is to be undone: which records of a node's journal, with what they say of each thing.

How a thing was before gpunode is never what a record of an undo says: an undo that did not come to its end would itself
be undone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from gpunode.core.errors import InputError
from gpunode.core.undo.journal import JournalSnapshot, Record, after_run, era

_VERSIONED = ("added", "changed", "removed")
_LISTS = {"files", *_VERSIONED, "held", "unheld", "marks", "unmarked"}
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
    began = era(journal.records)
    known = _of_gpunode(journal.records[began:])
    if verb == "rollback":
        since, run = after_run(journal.records, to)
        mine = tuple(record for at, record in known if began + at >= since)
    else:
        mine, run = tuple(record for _, record in known if not parts or record.part in parts), ""
    return Scope(records=mine, known=tuple(r for _, r in known), to=run, whole=verb == "uninstall" and not parts)


def _of_gpunode(records: Sequence[Record]) -> list[tuple[int, Record]]:
    """(position, record); of those of an undo, what is about things that a run of gpunode had changed before."""
    things: set[tuple[str, str]] = set()
    found = []
    for at, record in enumerate(records):
        if not record.undoes:
            things.update(_things(record))
            found.append((at, record))
        elif record.op != "state":
            found.append((at, replace(record, more=_about(things, record.more))))
        elif not things.isdisjoint(_things(record)):
            found.append((at, record))
    return found


def _about(things: Collection[tuple[str, str]], more: Mapping[str, Any]) -> dict[str, Any]:
    return {key: [m for m in of if _thing(key, m) in things] if key in _LISTS else of for key, of in more.items()}


def _things(record: Record) -> Iterator[tuple[str, str]]:
    """(kind, name) of what a record says something about."""
    if record.op == "state":
        yield record.more["kind"], record.more["name"]
    for key in record.more.keys() & _LISTS:
        yield from (_thing(key, member) for member in record.more[key])


def _thing(key: str, member: Any) -> tuple[str, str]:
    if key == "files":
        return "file", member["path"]
    return "package", member["name"] if key in _VERSIONED else member.removeprefix("manual ")
