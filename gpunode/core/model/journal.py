"""A node's journal as values: its records, how each thing that they name is now, and which of them are to be undone.

How a thing was before gpunode is never what a record of an undo says: an undo that did not come to its end would itself
be undone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from gpunode.core.grouped import grouped
from gpunode.core.late import dataclass, field
from gpunode.core.model.choice import Problem, Undo
from gpunode.core.printable import few

FOLDER = "/var/lib/gpunode/backup"
RUN = "run"  # the op that says that a run has come to its end
ROLLBACK = "rollback"  # the op of its last record, and the part of all
UNDOES = ("uninstall", ROLLBACK)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One line of the journal; `more` is what belongs to its operation (files, packages, a kind and a name …)."""

    id: str
    at: str  # UTC, 2026-11-22T01:38:21Z
    op: str  # baseline files packages state activate run uninstall rollback
    phase: str  # intent done undone failed
    run: str = ""
    part: str = ""
    controller: str = ""  # that says on the node when its run has ended, "" of a playbook that says nothing
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def undoes(self) -> bool:
        """Whether an undo wrote it."""
        return self.part in UNDOES or self.op in UNDOES


@dataclass(frozen=True, kw_only=True)
class PostCommit:
    """What followed the writes of a transaction: the files after, validate and health of its request."""

    after: bytes
    validate: bytes = b""
    health: bytes = b""

    @property
    def unit(self) -> str:
        return self._words.get(b"unit", b"").decode()

    @property
    def config(self) -> str:
        """The file that names the others."""
        return self._words.get(b"config", b"").decode()

    @property
    def binary(self) -> str:
        """The program that judges the files, as far as one does."""
        return self.validate.split(b"\n", 1)[0].decode()

    @cached_property
    def _words(self) -> Mapping[bytes, bytes]:
        return {key: word for key, _, word in (line.partition(b" ") for line in self.after.splitlines())}


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Counts of what is no record, and the copies that show that records are gone."""

    nul: int = 0  # bytes
    torn: int = 0  # lines of ours that were cut off: their operation had not started, or has no outcome
    garbage: int = 0  # lines that no gpunode wrote
    empty: bool = False
    missing: bool = False
    readable: bool = True  # at least one record
    lost: tuple[str, ...] = ()  # copies of operations that no record names, from before the first one

    @property
    def partial(self) -> bool:
        """Whether what can be read may not be all that gpunode has changed."""
        return bool(self.garbage or self.lost)

    @property
    def notes(self) -> tuple[str, ...]:
        parts = [
            f"{self.nul} NUL bytes, as a power cut leaves them" if self.nul else "",
            f"{self.torn} line(s) that were cut off: what they were about had not started, or has no outcome"
            if self.torn
            else "",
            f"{self.garbage} line(s) that gpunode did not write" if self.garbage else "",
        ]
        found = "; ".join(part for part in parts if part)
        return (f"the journal of this node has {found}",) if found else ()

    @property
    def problem(self) -> Problem | None:
        """Why nothing can be undone by this journal: then it is refused, and not called done."""
        state = "is gone" if self.missing else "is empty" if self.empty else "cannot be read"
        if self.lost:
            names = few(self.lost, 3)
            gone = "has lost its first records" if self.readable else state
            return Problem(
                what=f"the journal of this node {gone}, and copies of what it was about are there: {names}",
                fix=f"the folders below {FOLDER} hold files as they were (N.old; `plan` has the paths), and what was "
                "installed (packages): put back by hand what is to be as it was, remove holds (apt-mark showhold), "
                "then move these folders away and run again",
            )
        if not self.readable and (self.garbage or self.nul):
            return Problem(
                what=f"the journal of this node {state}: it has no record, {'; '.join(self.notes)}",
                fix="put /var/lib/gpunode/journal.jsonl back from a backup of the node; without one, move it away",
            )
        return None


@dataclass(frozen=True, kw_only=True)
class JournalSnapshot:
    """A node's journal and the present.  Files by path are sha256 or "absent"; `contents` only of files with `undo`
    and of all others that their engines read."""

    records: tuple[Record, ...] = ()
    damage: Damage = field(default_factory=Damage)
    copies: Mapping[tuple[str, str], str] = field(default_factory=dict)  # by id and path: ID/N.old, from before
    undo: Mapping[str, Mapping[str, Undo]] = field(default_factory=dict)  # by id, then by path
    moved: Mapping[str, str] = field(default_factory=dict)  # file → where it led as a link, which it no longer is
    called: Mapping[str, str] = field(default_factory=dict)  # file where links led → its path for the program
    follow: Mapping[str, PostCommit] = field(default_factory=dict)  # by id
    files: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, bytes] = field(default_factory=dict)
    engines: Mapping[str, str] = field(default_factory=dict)  # binary → what it says of its version
    versions: Mapping[tuple[str, str], bytes] = field(default_factory=dict)  # by ID/N.old or ID/N.new, and path
    states: Mapping[tuple[str, str], str] = field(default_factory=dict)  # by kind and name
    manager: str = ""  # apt dnf zypper pacman
    packages: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # name → version, hold|broken|-
    marks: frozenset[str] = frozenset()  # `manual NAME`, `key NAME`
    remnants: frozenset[str] = frozenset()  # removed packages that left configuration
    needs: tuple[tuple[str, frozenset[str]], ...] = ()  # package, words of which one has to be there
    gives: Mapping[str, frozenset[str]] = field(default_factory=dict)  # word → packages
    edited: Mapping[str, frozenset[str]] = field(default_factory=dict)  # package → configuration somebody changed
    mentions: Mapping[str, frozenset[str]] = field(default_factory=dict)  # file, user … → packages that speak of it
    unchanged: Mapping[str, frozenset[str]] = field(default_factory=dict)  # path → packages that bring it as it is
    available: Mapping[str, frozenset[str]] = field(default_factory=dict)  # package → versions
    driver: str = ""  # version of the nvidia module that is loaded
    stale: bool = False  # and another driver is installed
    old_initramfs: bool = False  # something that goes into it has changed since

    @cached_property
    def edits(self) -> Mapping[str, Mapping[str, Undo]]:
        """By path, the records of its edits by id."""
        found: dict[str, dict[str, Undo]] = {}
        for id, files in self.undo.items():
            for path, undo in files.items():
                found.setdefault(path, {})[id] = undo
        return found

    @cached_property
    def bytes_of(self) -> Mapping[str, Sequence[bytes]]:
        """By path, the versions of which all bytes are known."""
        return grouped((path, data) for (_, path), data in self.versions.items())


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
    verb: str = "uninstall"
    whole: bool = True  # nothing of gpunode's stays

    @cached_property
    def _own(self) -> frozenset[int]:
        return frozenset(map(id, self.records))

    def has(self, record: Record) -> bool:
        """Whether a known record is to be undone."""
        return id(record) in self._own

    @cached_property
    def baseline(self) -> Mapping[str, Any] | None:
        """What there was before gpunode."""
        return next((record.more for record in self.known if record.op == "baseline"), None)

    @cached_property
    def files(self) -> Mapping[str, Sequence[Recorded]]:
        """By path, what was written there and stands, oldest first."""
        undone = {r.id for r in self.known if r.op == "files" and r.phase == "undone"}
        standing = (r for r in self.known if r.op == "files" and r.id not in undone)
        files = ((record, file) for record in standing for file in record.more.get("files", ()))
        return grouped(
            (file["path"], Recorded(at, record, file["before"], file["after"], self.has(record)))
            for at, (record, file) in enumerate(files)
        )

    @cached_property
    def own_files(self) -> Mapping[str, Sequence[Recorded]]:
        """By path, what of that is to be undone: the first one says how the file was before."""
        found = {path: own for path, ones in self.files.items() if (own := [one for one in ones if one.mine])}
        return dict(sorted(found.items(), key=lambda one: one[1][0].at))

    @cached_property
    def states(self) -> Mapping[str, Mapping[str, Sequence[Recorded]]]:
        """By kind and name, what was set of all but files and packages, where some of it is to be undone."""
        states = ((at, record, record.more) for at, record in enumerate(self.known) if record.op == "state")
        found = grouped(
            ((more["kind"], more["name"]), Recorded(at, record, more["from"], more["to"], self.has(record)))
            for at, record, more in states
        )
        by_kind: dict[str, dict[str, Sequence[Recorded]]] = {}
        for (kind, name), ones in found.items():
            if any(one.mine for one in ones):
                by_kind.setdefault(kind, {})[name] = ones
        return by_kind
