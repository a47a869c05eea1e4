"""Files: each as it is to be again, from a copy, without gpunode's lines, or gone; sorted into transactions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

from gpunode.core.edits import RuntimeRequest, unconfigure_runtime
from gpunode.core.edits.undo import base_of, revert
from gpunode.core.engines import DAEMONS, ROWS
from gpunode.core.model import Hunk, Problem, RuntimeName, Undo
from gpunode.core.undo.history import Change, Replayed, replay_file
from gpunode.core.undo.journal import ROLLBACK, JournalSnapshot, PostCommit, Record
from gpunode.core.undo.kinds import ABSENT
from gpunode.core.undo.packages import Packages, versions_before
from gpunode.core.undo.scope import Scope

SOURCES = ("/etc/apt/", "/etc/yum.repos.d/", "/etc/zypp/", "/etc/pki/rpm-gpg/", "/usr/share/keyrings/")
SOURCE_FILES = (".list", ".sources", ".repo")
AT_BOOT = (
    "/etc/modprobe.d/",
    "/etc/modules-load.d/",
    "/etc/dracut.conf.d/",
    "/etc/initramfs-tools/",
    "/etc/mkinitcpio",
)
BACKUP = "/var/lib/gpunode/backup"
BY_PACKAGES = "packages"  # in a record of files: packages made them
# engines whose configuration can be rid of nvidia's entries even where lines are no longer as gpunode wrote them
_ENGINES: Mapping[str, RuntimeName] = {
    **{f"{ROWS[name].unit}.service": name for name in DAEMONS},
    "snap.docker.dockerd.service": "docker",
}


@dataclass(frozen=True, kw_only=True)
class FileRestore:
    """One file as it is to be again: from the copy `held` (below the journal's backup), as `data`, or gone (None).

    `expect` is its sha256 now, "" when it is not there, None when that may change until then.
    """

    path: str
    expect: str | None
    held: str = ""
    data: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class FileTransaction:
    """One transaction: files, what follows it, and the transactions of the journal that it undoes."""

    files: tuple[FileRestore, ...]
    used: tuple[str, ...] = ()
    follow: PostCommit | None = None


def file_records(records: Sequence[Record], path: str = "") -> Iterator[tuple[Record, Mapping[str, Any]]]:
    """(record, {path, before, after}) of what was written and stands, oldest first."""
    undone = {r.id for r in records if r.op == "files" and r.phase == "undone"}
    for record in records:
        if record.op == "files" and record.id not in undone:
            for file in record.more.get("files", ()):
                if not path or file["path"] == path:
                    yield record, file


def first_records(records: Sequence[Record]) -> dict[str, Record]:
    """By path, the record that says how a file was before."""
    found: dict[str, Record] = {}
    for record, file in file_records(records):
        found.setdefault(file["path"], record)
    return found


def hashes(records: Sequence[Record], path: str) -> list[str]:
    """The hashes of a file that gpunode saw or wrote: the first one is from before."""
    found = list(file_records(records, path))
    return [found[0][1]["before"], *(f["after"] for _, f in found), *(f["before"] for _, f in found)] if found else []


def generated(scope: Scope) -> set[str]:
    """Files that a service of the packages writes again and again: they are there or not, whatever is in them."""
    return {r.more["name"] for r in scope.known if r.op == "state" and r.more["kind"] == "cdi"}


def files_before(journal: JournalSnapshot, scope: Scope) -> dict[str, str]:
    """By path, the hash that a file is to have again, of those of which that is known."""
    files = Files(journal, scope)
    found = {}
    for path in first_records(scope.records):
        if path in files.kept or path in files.others:
            continue
        if path in files.brought:
            found[path] = ABSENT
        elif (wanted := files.replayed(path).wanted).exact:
            found[path] = wanted.hash
    return found


def _without_edits(data: bytes | None, edits: Sequence[Undo]) -> bytes | None:
    """The file without edits, the earliest first; None where a line of one is left.

    What a later edit made of an earlier one goes along with that, and then is not to be found any more.
    """
    lost: list[Hunk] = []
    for one in edits:
        if data is None or one.created:
            return None
        data, missed = revert(data, one)
        lost += missed
    if data is None:
        return None
    lines = {line.strip() for line in data.splitlines()} - {b""}
    return None if any(lines & {line.strip() for line in hunk.after.splitlines()} for hunk in lost) else data


class Files:
    """The files of a scope, sorted into transactions."""

    def __init__(self, journal: JournalSnapshot, scope: Scope) -> None:
        self.journal, self.scope = journal, scope
        self.notes: list[str] = []
        self.problems: list[Problem] = []
        self.theirs: tuple[str, ...] = ()
        found = first_records(scope.records)
        self.others = {*generated(scope), *(path for path, one in found.items() if self._is_taken(path, one))}
        first = {path: one for path, one in found.items() if path not in self.others}
        self.brought = tuple(path for path, record in first.items() if record.more.get("by") == BY_PACKAGES)
        self.kept = tuple(path for path in self.brought if self._is_kept(path))
        own = [p for p in first if p not in self.brought or (p in self.kept and self._is_edited(p))]
        back = {path: one for path in own if (one := self._file(path))}
        units = {path: self._unit_of(path) for path in back}
        self.engines = tuple(
            self._together([f for p, f in back.items() if units[p] and units[p] == unit], follow)
            for unit, follow in self._follows(units.values()).items()
        )
        plain = [file for path, file in back.items() if not units[path]]
        self._late = [f for f in plain if self._is_late(f, first, back)]
        rest = [file for file in plain if file not in self._late]
        self.first = self._together(rest) if rest else None
        at_boot = {path for path in first if path.startswith(AT_BOOT)}
        self.at_boot = bool(at_boot & set(back)) or bool(at_boot and journal.old_initramfs)

    def last(self, packages: Packages) -> FileTransaction | None:
        """Repositories, and what packages have left behind: it goes after them, where they all go."""
        late = [*self._late, *(self._dependencies_added() if not packages.kept else ())]
        return self._together(late) if late else None

    def left_by(self, packages: Packages) -> list[tuple[str, str]]:
        """What scripts wrote of packages that do not all go."""
        return [("", file.path) for file in self._dependencies_added()] if packages.kept else []

    def _is_late(self, file: FileRestore, first: Mapping[str, Record], back: Mapping[str, FileRestore]) -> bool:
        """Whether it is a repository that packages may still be needed from.

        Not one whose transaction took another's place that comes back now: apt refuses to have both.
        """
        if file.held or file.data is not None or not file.path.startswith(SOURCES):
            return False
        others = (other["path"] for other in first[file.path].more["files"] if other["path"] != file.path)
        return not any(path in back and back[path].held and path.endswith(SOURCE_FILES) for path in others)

    def sources_restored(self, endings: tuple[str, ...]) -> tuple[str, ...]:
        files = self.first.files if self.first else ()
        return tuple(f.path for f in files if f.path.startswith(SOURCES) and f.path.endswith(endings) and f.held)

    def _file(self, path: str) -> FileRestore | None:
        now, found = self.journal.files.get(path, ABSENT), self.replayed(path)
        wanted, expect = found.wanted, "" if now == ABSENT else now
        by_lines = not wanted.exact and (found.changed_since or bool(self._unit_of(path)) or any(self._edits(path)))
        self._name(path, now, found, by_lines=by_lines)
        if found.theirs and self._is_left_so(path, now):
            return None
        if by_lines:
            return self._changed_since(path, expect)
        if wanted.hash == now or (not wanted.exact and self._is_undone(path, now)):
            return None
        if wanted.hash == ABSENT:
            return FileRestore(path=path, expect=expect)
        held = self._copy_of(path, wanted.hash)
        if held or wanted.data is not None:
            return FileRestore(path=path, expect=expect, held=held, data=None if held else wanted.data)
        record = next(r for r, f in file_records(self.scope.known, path) if f["before"] == wanted.hash)
        what = f"the copy of {path} from before {record.at} is gone"
        self.problems.append(Problem(what=what, fix="fix the file by hand, to what it was"))
        return None

    def _name(self, path: str, now: str, replayed: Replayed, *, by_lines: bool) -> None:
        """Notes of what somebody else has written there."""
        if replayed.theirs:
            self.theirs = tuple(dict.fromkeys((*self.theirs, path)))
        # where gpunode has written a file as a whole since, nothing of theirs is in it
        versions = replayed.aside if by_lines else (*replayed.aside, *replayed.unmerged)
        if aside := [copy for hash in versions if (copy := self._copy_of(path, hash))]:
            copies = ", ".join(f"{BACKUP}/{one}" for one in aside)
            self.notes.append(f"{path}: what somebody else wrote there, and what is not there now, is in {copies}")
        wanted, stays = replayed.wanted, f"{path}: somebody has changed it since; it stays as it is"
        if wanted.exact and wanted.hash == now and replayed.changed_since:
            self.notes.append(stays)
        elif wanted.exact and wanted.hash not in (now, ABSENT) and replayed.theirs:
            self.notes.append(f"{path}: somebody has changed it since; their lines stay")
        elif not wanted.exact and now != wanted.hash and self._is_undone(path, now) and not self._unit_of(path):
            self.notes.append(stays)

    def _is_undone(self, path: str, now: str) -> bool:
        """Whether an undo has left it so."""
        last = [r.part for r, f in file_records(self.scope.known, path) if f["after"] == now][-1:]
        return bool(last) and last[0] in ("uninstall", ROLLBACK)

    def _is_left_so(self, path: str, now: str) -> bool:
        """Whether this undo, which has no end yet, has left it so by records of edits that are gone since."""
        ends = [n for n, r in enumerate(self.scope.records) if r.op in ("uninstall", ROLLBACK)][-1:]
        now_open = self.scope.records[ends[0] + 1 :] if ends else self.scope.records
        last = [(r.part, f["after"]) for r, f in file_records(now_open, path)][-1:]
        return last in ([("uninstall", now)], [(ROLLBACK, now)]) and not any(self._edits(path))

    def replayed(self, path: str) -> Replayed:
        mine = {id(record) for record in self.scope.records}
        now = self.journal.files.get(path, ABSENT)
        changes = [
            Change(
                id=record.id,
                before=file["before"],
                after=file["after"],
                mine=id(record) in mine and (path not in self.brought or record.more.get("by") != BY_PACKAGES),
                edited=path in self.journal.undo.get(record.id, {}) or bool(self._unit_of(path)),
            )
            for record, file in file_records(self.scope.known, path)
        ]
        return replay_file(changes, now, self._texts(path))

    def _texts(self, path: str) -> dict[str, bytes]:
        """What is known of the bytes of the file's versions, by hash."""
        found = [data for (_, p), data in self.journal.versions.items() if p == path]
        found += [self.journal.contents[path]] if path in self.journal.contents else []
        found += [
            base for undo in self.journal.undo.values() if path in undo and (base := base_of(undo[path])) is not None
        ]
        return {hashlib.sha256(data).hexdigest(): data for data in found}

    def _copy_of(self, path: str, wanted: str) -> str:
        """The earliest copy of these bytes, which has the mode and the times, too."""
        for record, file in file_records(self.scope.known, path):
            copy = self.journal.copies.get((record.id, path))
            if file["before"] == wanted and copy and copy.kept:
                return copy.held
        return ""

    def _edits(self, path: str) -> Iterator[Any]:
        """Records of edits of the file: lines in it that are gpunode's, and others that may be a person's."""
        ids = {record.id for record, _ in file_records(self.scope.records, path)}
        return (undo[path] for id, undo in self.journal.undo.items() if id in ids and path in undo)

    def _dependencies_added(self) -> list[FileRestore]:
        """What packages have brought goes, unless somebody has changed it: then gpunode's part of it alone does."""
        return [
            FileRestore(path=path, expect=None)
            for path in self.brought
            if path not in self.kept and self.journal.files.get(path, ABSENT) != ABSENT
        ]

    def _is_taken(self, path: str, first: Record) -> bool:
        """Whether a file that packages have brought is by now, as it is, that of another package, which stays."""
        owners = self.journal.unchanged.get(path, frozenset()) & self.journal.packages.keys()
        return first.more.get("by") == BY_PACKAGES and bool(owners - versions_before(self.scope.records).keys())

    def _is_kept(self, path: str) -> bool:
        """Whether a file that packages have brought has become a person's."""
        mine = {id(record) for record in self.scope.records}
        # not what an earlier run wrote there, which is gone, or stays
        records = dropwhile(lambda one: id(one[0]) not in mine, file_records(self.scope.known, path))
        (_, brought), *later = records
        now = self.journal.files.get(path, ABSENT)
        by_packages_alone = all(record.more.get("by") == BY_PACKAGES for record, _ in later)
        # another package may have come in the place of that one, with a file of its own there
        if by_packages_alone and (now in (ABSENT, brought["after"]) or path in self.journal.unchanged):
            return False
        if later:
            found = self.replayed(path)
            if found.wanted.exact and found.wanted.hash == brought["after"]:
                return False
            if now == ABSENT and found.wanted.exact and found.wanted.hash == ABSENT:
                return bool(found.theirs)
        self.notes.append(f"{path}: somebody has changed it since a package brought it; it stays if it can")
        self.theirs = (*self.theirs, path)
        return True

    def _is_edited(self, path: str) -> bool:
        """Whether gpunode itself has written it, too."""
        return any(record.more.get("by") != BY_PACKAGES for record, _ in file_records(self.scope.records, path))

    def _changed_since(self, path: str, expect: str) -> FileRestore | None:
        """Of a file that somebody has changed since, only gpunode's own lines go, where they can be found.

        What is left of nvidia's in an engine's configuration goes by its meaning: the toolkit goes as well, and the
        engine would not run any container without it.
        """
        ids = list(dict.fromkeys(record.id for record, _ in file_records(self.scope.records, path)))
        undo = [self.journal.undo[id][path] for id in reversed(ids) if path in self.journal.undo.get(id, {})]
        data = was = self.journal.contents.get(path)
        left = 0
        for one in undo:
            data, missed = revert(data, one)
            left += len(missed)
        if left and (other := _without_edits(was, undo[::-1])) is not None:
            data, left = other, 0
        engine = _ENGINES.get(self._unit_of(path))
        if engine and was is not None and (left or data == was):
            request = RuntimeRequest(runtime=engine, config=path)
            edit = unconfigure_runtime({path: was}, request, [{path: one} for one in undo])
            if path in edit.changes and not edit.problems:
                data, left = edit.changes[path], 0
        if data == was:
            self.notes.append(f"{path}: somebody has changed it since; it stays as it is")
            return None
        lines = f"; {left} of gpunode's changes were not found again" if left else ""
        self.notes.append(f"{path}: somebody has changed it since; their lines stay{lines}")
        return FileRestore(path=path, expect=expect, data=data)

    def _unit_of(self, path: str) -> str:
        ids = [record.id for record, _ in file_records(self.scope.records, path)]
        units = [self.journal.follow[id].unit for id in ids if id in self.journal.follow]
        return next(filter(None, reversed(units)), "")

    def _follows(self, units: Any) -> dict[str, PostCommit]:
        """What follows for each unit, as its latest transaction has it."""
        found = {
            follow.unit: follow for _id, follow in sorted(self.journal.follow.items()) if follow.unit in set(units)
        }
        found.pop("", None)
        return found

    def _together(self, files: Sequence[FileRestore], follow: PostCommit | None = None) -> FileTransaction:
        paths = {file.path for file in files}
        used = dict.fromkeys(r.id for r, f in file_records(self.scope.records) if f["path"] in paths)
        return FileTransaction(files=tuple(files), used=tuple(used), follow=follow)
