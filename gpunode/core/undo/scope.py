"""What is to be undone: which records of a node's journal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpunode.core.errors import InputError
from gpunode.core.model.journal import JournalSnapshot, Record, Scope
from gpunode.core.undo.journal import after_run, era

_VERSIONED = ("added", "changed", "removed")
_LISTS = {"files", *_VERSIONED, "held", "unheld", "marks", "unmarked"}
PARTS = ("driver", "fabric", "cuda", "toolkit", "runtime", "sharing")


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
    return Scope(
        verb=verb, records=mine, known=tuple(r for _, r in known), to=run, whole=verb == "uninstall" and not parts
    )


def _of_gpunode(records: Sequence[Record]) -> list[tuple[int, Record]]:
    """(position, record); of those of an undo, what is about things that a run of gpunode had changed before."""
    things: set[tuple[str, str]] = set()
    found = []
    for at, record in enumerate(records):
        if not record.undoes:
            things.update(things_of(record))
            found.append((at, record))
        elif record.op != "state":
            found.append((at, replace(record, more=_about(things, record.more))))
        elif not things.isdisjoint(things_of(record)):
            found.append((at, record))
    return found


def _about(things: Collection[tuple[str, str]], more: Mapping[str, Any]) -> dict[str, Any]:
    return {key: [m for m in of if _thing(key, m) in things] if key in _LISTS else of for key, of in more.items()}


def things_of(record: Record) -> Iterator[tuple[str, str]]:
    """(kind, name) of what a record says something about."""
    if record.op == "state":
        yield record.more["kind"], record.more["name"]
    for key in record.more.keys() & _LISTS:
        yield from (_thing(key, member) for member in record.more[key])


def _thing(key: str, member: Any) -> tuple[str, str]:
    if key == "files":
        return "file", member["path"]
    return "package", member["name"] if key in _VERSIONED else member.removeprefix("manual ")
