"""What takes packages back: the value of a package transaction, from the journal and what is installed now."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gpunode.core.grouped import grouped
from gpunode.core.items.item import ABSENT, Back, Thing
from gpunode.core.late import dataclass, replace
from gpunode.core.model import Problem
from gpunode.core.model.journal import JournalSnapshot, Note, Record, Scope

MOST_NAMED = 5  # packages in one note
MANUAL, AUTO = "manual", "auto"  # as apt-mark has it
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Packages:
    """One transaction, in the words of core/items/package.py, and what is to be reported with it; `things` are all."""

    install: tuple[Mapping[str, Any], ...] = ()  # name, version, hold
    remove: tuple[str, ...] = ()
    unhold: tuple[str, ...] = ()
    purge: tuple[str, ...] = ()
    automatic: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()  # MODULE:STREAM, - for none
    refresh: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()  # files that stay where a package would take them along
    kept: tuple[str, ...] = ()  # that could not go
    notes: tuple[Note, ...] = ()
    problems: tuple[Problem, ...] = ()
    things: tuple[Thing[Back], ...] = ()

    @property
    def value(self) -> dict[str, Any]:
        names = ("install", "remove", "unhold", "purge", "automatic", "keys", "streams", "refresh", "keep")
        return {name: list(found) for name in names if (found := getattr(self, name))}

    @property
    def nothing(self) -> bool:
        return not set(self.value) - {"refresh", "purge", "keep"} and not self.purge

    def made(self, name: str, journal: JournalSnapshot) -> bool:
        """Whether a package that stays may have made a thing of this name: its scripts or files speak of it."""
        return not journal.mentions.get(name, frozenset()).isdisjoint(self.kept)

    def with_streams(self, streams: Mapping[str, str]) -> Packages:
        return replace(self, streams=tuple(f"{name}:{'-' if s in (ABSENT, '') else s}" for name, s in streams.items()))


class PackageBack(Back):
    def undo(
        self, journal: JournalSnapshot, scope: Scope, *, restored: Sequence[str] = (), theirs: Sequence[str] = ()
    ) -> Packages:
        """The transaction that brings back what was installed before the records of `scope`.

        `restored` are sources that come back, `theirs` files of which somebody has written a version.
        """
        # (package, version) that gpunode has installed
        ours = {(name, before if after == ABSENT else after) for name, before, after in versions(scope.known)}
        records = scope.records
        before = versions_before(records)
        things: tuple[Thing[Back], ...] = tuple(
            Thing(kind=self, name=name, was=version, now=journal.packages.get(name, (ABSENT, ""))[0])
            for name, version in before.items()
        )
        wanted = {one.name: one.was for one in things if one.differs}
        held = _holds(records)
        remove = _whole([name for name, version in wanted.items() if version == ABSENT], journal)
        kept = _needed(journal, set(remove), wanted.keys() - set(remove))
        notes = [Note(f"{name} stays: {_named(users)} needs it", (name, *users)) for name, users in kept.items()]
        remove = [name for name in remove if name not in kept]
        install, problems, more = _install(journal, wanted, held, ours, restored)
        added = {name for name, version in before.items() if version == ABSENT}
        manual_then = dict.fromkeys((*sorted(_manual(journal.marks)), *(str(item["name"]) for item in install)))
        asked = _asked_for(journal, records)
        gained = {mark for record in _done(records) for mark in record.more.get("marks", ())}
        purge, reported = _purge(journal, remove, added, _files(scope.known) - set(theirs))
        return Packages(
            install=tuple(install),
            remove=tuple(remove),
            unhold=tuple(n for n, hold in held.items() if not hold and _state(journal, n) == "hold"),
            purge=tuple(purge),
            automatic=tuple(name for name in manual_then if asked.get(name) == AUTO),
            keys=tuple(mark.partition(" ")[2] for mark in sorted(gained & journal.marks) if mark.startswith("key ")),
            refresh=tuple(restored) if install else (),
            keep=tuple(path for path in theirs if journal.files.get(path, ABSENT) != ABSENT) if remove else (),
            kept=tuple(kept),
            notes=(*notes, *more, *reported),
            problems=tuple(problems),
            things=things,
        )


def _done(records: Sequence[Record]) -> Iterator[Record]:
    return (r for r in records if r.op == "packages" and r.phase in ("done", "failed"))


def versions(records: Sequence[Record]) -> Iterator[tuple[str, str, str]]:
    """(package, version before, version after) of each change; ABSENT where it was not there."""
    for record in _done(records):
        for key, old, new in (("added", "", "version"), ("changed", "from", "to"), ("removed", "version", "")):
            for item in record.more.get(key, ()):
                yield item["name"], item.get(old, ABSENT), item.get(new, ABSENT)


def _first(changes: Iterable[tuple[str, T | None, T | None]], others: Callable[[T, T, T], bool]) -> dict[str, T]:
    """What each was before the changes (before and after; None is not known), or was made by somebody else in between.

    `others` says of that, what the change before left, and what was found, whether somebody has.
    """
    found: dict[str, T] = {}
    last: dict[str, T | None] = {}
    for name, before, after in changes:
        left = last.get(name)
        if before is not None and (name not in found or (left is not None and others(before, left, found[name]))):
            found[name] = before
        last[name] = after
    return found


def versions_before(records: Sequence[Record]) -> dict[str, str]:
    """Package → the version it had, "absent" when it was not there; one that somebody else put there since stays."""

    def others(before: str, last: str, found: str) -> bool:
        return last == ABSENT != before or (before not in (last, ABSENT) and found != ABSENT)

    found = _first(versions(records), others)
    # several versions of a kernel package stand side by side, and each has a name of its own
    side = {bare for name in found if name.startswith("kernel") for bare in _bare(name)}
    return {name: version for name, version in found.items() if name not in side or version == ABSENT}


def _bare(name: str) -> Iterator[str]:
    """What stands before each - of a name: NAME of NAME-VERSION."""
    return (name[: dash.start()] for dash in re.finditer("-", name))


def _whole(names: Sequence[str], journal: JournalSnapshot) -> list[str]:
    """Without NAME-VERSION where all of NAME goes."""
    bare = {name for name in names if name.startswith("kernel") and name in journal.packages}
    return [name for name in names if bare.isdisjoint(_bare(name))]


def _state(journal: JournalSnapshot, name: str) -> str:
    return journal.packages.get(name, ("", ""))[1]


def _holds(records: Sequence[Record]) -> dict[str, bool]:
    """Whether a package was held before the records, of those where that changed."""
    changes = (
        (name, was, not was)
        for record in _done(records)
        for key, was in (("held", False), ("unheld", True))
        for name in record.more.get(key, ())
    )
    return _first(changes, lambda before, last, _: before != last)


def _asked_for(journal: JournalSnapshot, records: Sequence[Record]) -> dict[str, str]:
    """Package → MANUAL or AUTO as it was before the records, or as somebody has marked it since; ABSENT of a new one.

    Empty with a manager that keeps no such marks: it shows none at all, now or in the records.
    """

    def changes() -> Iterator[tuple[str, str | None, str | None]]:
        for record in _done(records):
            lost, gained = (_manual(record.more.get(key, ())) for key in ("unmarked", "marks"))
            added, removed = ({item["name"] for item in record.more.get(key, ())} for key in ("added", "removed"))
            for name in gained | lost | removed | added:
                was = ABSENT if name in added else MANUAL if name in lost else AUTO
                yield name, was, ABSENT if name in removed else MANUAL if name in gained else AUTO
        yield from ((name, MANUAL if name in manual else AUTO, None) for name in journal.packages)

    manual = _manual(journal.marks)
    if not manual and not any(_manual(r.more.get(key, ())) for r in _done(records) for key in ("marks", "unmarked")):
        return {}
    return _first(changes(), lambda before, last, _: before not in (last, ABSENT))


def _manual(marks: Iterable[str]) -> set[str]:
    return {mark.removeprefix("manual ") for mark in marks if mark.startswith("manual ")}


def _files(known: Sequence[Record]) -> set[str]:
    return {file["path"] for record in known if record.op == "files" for file in record.more.get("files", ())}


def _install(
    journal: JournalSnapshot,
    wanted: Mapping[str, str],
    held: Mapping[str, bool],
    ours: set[tuple[str, str]],
    restored: Sequence[str],
) -> tuple[list[Mapping[str, Any]], list[Problem], list[Note]]:
    items: list[Mapping[str, Any]] = []
    notes: list[Note] = []
    missing: dict[str, list[str]] = {}  # by version
    for name, version in wanted.items():
        now = journal.packages.get(name, ("", ""))[0]
        if version == ABSENT:
            continue
        if now and (name, now) not in ours:
            notes.append(Note(f"{name} stays at {now}: changed since, not by gpunode", (name,)))
        elif not restored and version not in journal.available.get(name, ()):
            missing.setdefault(version, []).append(name)
        else:
            hold = held.get(name, _state(journal, name) == "hold")
            items.append({"name": name, "version": version, "hold": hold})
    again = {item["name"] for item in items}
    for name, hold in held.items():
        if hold and name not in again and _state(journal, name) == "-":
            items.append({"name": name, "version": journal.packages[name][0], "hold": True})
    return items, _gone(missing), notes


def _gone(missing: Mapping[str, Sequence[str]]) -> list[Problem]:
    """One problem, that names each package once."""
    if not missing:
        return []
    named = "; ".join(f"{', '.join(names)} {version}" for version, names in missing.items())
    what = f"no repository of this node has these packages any more: {named}"
    return [Problem(what=what, fix="set one up that has them, then run again")]


def _purge(
    journal: JournalSnapshot, remove: Sequence[str], ours: set[str], files: set[str]
) -> tuple[list[str], list[Note]]:
    """Packages of which nothing is to be left, now or after an interrupted run; what somebody wrote there stays."""
    if journal.manager != "apt":
        return list(remove), []
    purge: list[str] = []
    notes: list[Note] = []
    for name in (*remove, *sorted(ours & journal.remnants)):
        edited = sorted(journal.edited.get(name, frozenset()) - files)
        if edited:
            text = f"the configuration of {name} stays: changed since: {', '.join(edited)}"
            notes.append(Note(text, (name, *edited)))
        else:
            purge.append(name)
    return purge, notes


def _needed(journal: JournalSnapshot, remove: Collection[str], reset: Collection[str]) -> dict[str, list[str]]:
    """Packages that cannot go, with some of those that need them: packages of others, and what these keep."""
    kept: dict[str, list[str]] = {}
    # word → how many packages with it stay; package → what it gives
    stays = {word: sum(giver not in remove for giver in givers) for word, givers in journal.gives.items()}
    words_of = grouped((giver, word) for word, givers in journal.gives.items() for giver in givers)
    needs = grouped((name, words & stays.keys()) for name, words in journal.needs)
    users = [name for name in needs if name not in remove and name not in reset]
    while users:  # what is kept for some needs others, in turn
        needed: dict[str, list[str]] = {}  # word → who needs it
        for name in users:
            for words in needs.get(name, ()):
                if words and not any(stays[word] for word in words):
                    for word in words:
                        needed.setdefault(word, []).append(name)
        found: dict[str, list[str]] = {}
        for word, names in needed.items():
            for giver in sorted(journal.gives[word]):
                found.setdefault(giver, []).extend(names[: MOST_NAMED + 1])
        kept |= {giver: sorted(set(names)) for giver, names in found.items()}
        for word in (word for giver in found for word in words_of[giver]):
            stays[word] += 1
        users = list(found)
    return kept


def _named(names: Sequence[str]) -> str:
    others = ", another one" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{others}"
