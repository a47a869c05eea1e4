"""What removes gpunode's changes: from a node's journal and its present to the packages, files and settings to restore.

For each thing the first record in scope says how it was before; what is so already needs nothing, so that a second run
goes on where the first was cut off, and what neither gpunode wrote nor was there before is somebody else's: it stays,
and a note says so.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpunode.core.edits import RuntimeRequest, unconfigure_runtime
from gpunode.core.edits.undo import base_of, revert
from gpunode.core.engines import DAEMONS, ROWS
from gpunode.core.errors import InputError
from gpunode.core.model import Hunk, Problem, RuntimeName, Undo
from gpunode.core.undo.history import ABSENT, Change, Replayed, replay_file, replay_value
from gpunode.core.undo.journal import ROLLBACK, STATES, JournalSnapshot, PostCommit, Record, after_run, era
from gpunode.core.undo.packages import Packages, plan_package_undo

PARTS = ("driver", "fabric", "cuda", "toolkit", "runtime", "sharing")
SOURCES = ("/etc/apt/", "/etc/yum.repos.d/", "/etc/zypp/", "/etc/pki/rpm-gpg/", "/usr/share/keyrings/")
SOURCE_FILES = (".list", ".sources", ".repo")
AT_BOOT = (
    "/etc/modprobe.d/",
    "/etc/modules-load.d/",
    "/etc/dracut.conf.d/",
    "/etc/initramfs-tools/",
    "/etc/mkinitcpio",
)
UNITS = "/etc/systemd/system/"
BACKUP = "/var/lib/gpunode/backup"
BY_PACKAGES = "packages"  # in a record of files: packages made them
GPU_UNITS = (
    "nvidia-cdi-refresh.path",
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-dcgm.service",
    "dcgm.service",
    "dcgm-exporter.service",
    "nvsm.service",
)
# engines whose configuration can be rid of nvidia's entries even where lines are no longer as gpunode wrote them
_ENGINES: Mapping[str, RuntimeName] = {
    **{f"{ROWS[name].unit}.service": name for name in DAEMONS},
    "snap.docker.dockerd.service": "docker",
}
_ENABLED = ("enabled", "enabled-runtime")
_ON = (*_ENABLED, "static", "alias", "indirect", "generated")


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


@dataclass(frozen=True, kw_only=True)
class UndoPlan:
    """All that is to be done, in the order of the fields; `notes` say what stays as it is, and why."""

    stop: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    engines: tuple[FileTransaction, ...] = ()
    unload: tuple[str, ...] = ()
    installers: tuple[str, ...] = ()  # driver, cuda-VERSION: what NVIDIA's installers put there goes
    files: FileTransaction | None = None
    packages: Packages = field(default_factory=Packages)
    sources: FileTransaction | None = None  # repositories go after the packages that came from them
    exchange: tuple[str, ...] = ()  # modules to load again in the version that is installed then
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by kind, name → value
    load: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()  # units that did not run: scripts of the packages that are put back may start them
    awake: tuple[str, ...] = ()  # units that ran: they may stop them
    rebuild: bool = False  # the initramfs
    notes: tuple[str, ...] = ()
    theirs: tuple[str, ...] = ()  # files of which somebody else has written a version: their copies stay
    problems: tuple[Problem, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether the node is as it was, but for what the notes name."""
        files = (self.engines, self.files, self.sources)
        units = (self.stop, self.disable, self.enable, self.start)
        others = (self.unload, self.installers, self.settings, self.load, self.exchange)
        return not any((*files, *units, *others)) and self.packages.nothing


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What is to be undone: records, in order; `known` are all records since the last uninstall."""

    records: tuple[Record, ...]
    known: tuple[Record, ...]
    to: str = ""  # the run after which the node is to be again
    whole: bool = True  # nothing of gpunode's stays


def scope_of(recall: JournalSnapshot, *, verb: str, parts: Sequence[str] = (), to: str | None = None) -> Scope:
    """What `verb` (uninstall | rollback) is to undo.  Raises InputError for an unknown part or run."""
    for part in parts:
        if part not in PARTS:
            raise InputError(f"part {part!r}", expected=f"one of {', '.join(PARTS)}")
    known = recall.records[era(recall.records) :]
    if verb == "rollback":
        since, run = after_run(recall.records, to)
        return Scope(records=recall.records[since:], known=known, to=run, whole=False)
    mine = tuple(r for r in known if not parts or r.part in parts)
    return Scope(records=mine, known=known, whole=not parts)


def plan_undo(recall: JournalSnapshot, scope: Scope) -> UndoPlan:
    """What makes the node what it was before the records of `scope`."""
    files = _Files(recall, scope)
    packages = plan_package_undo(
        recall, scope.records, scope.known, restored=files.sources_restored(SOURCE_FILES), theirs=files.theirs
    )
    last = files.last(packages)
    states = dict(_states(recall, scope))
    booted = modules_loaded_at_boot(recall, scope.records, scope.known, set(packages.remove))
    gone = packages.remove or any(_of(states, "runfile", ABSENT)) or booted.unload
    stop = [name for kind, name, _ in _of(states, "active", "inactive")]
    unload = [name for kind, name, _ in _of(states, "module", ABSENT)]
    unload += [name for name in booted.unload if name not in unload]
    load = [name for kind, name, _ in _of(states, "module", "loaded") if booted.comes_back(name)]
    loaded = bool(recall.driver) and "nvidia" not in unload
    settings = {
        kind: {name: value for (k, name), value in states.items() if k == kind}
        for kind in ("alternative", "sysctl", "link", "initramfs", "user", "group", "kernel")
    }
    return UndoPlan(
        stop=(*stop, *(u for u in GPU_UNITS if gone and "nvidia" in unload and u not in stop)),
        disable=tuple(name for (kind, name), value in states.items() if kind == "enabled" and value not in _ON),
        engines=files.engines,
        unload=tuple(reversed(unload)),  # each was loaded upon those before
        installers=tuple(name for _, name, _ in _of(states, "runfile", ABSENT)),
        files=files.first,
        packages=packages.with_streams({n: v for (k, n), v in states.items() if k == "stream"}),
        sources=last,
        exchange=("nvidia",) if loaded and (packages.install or _left_behind(recall, scope)) else (),
        settings={kind: values for kind, values in settings.items() if values},
        load=(*load, *(name for name in booted.load if name not in load)),
        enable=tuple(name for (kind, name), value in states.items() if kind == "enabled" and value in _ENABLED),
        start=tuple(name for kind, name, _ in _of(states, "active", "active")),
        idle=tuple(name for kind, name, _ in _of(_first(scope), "active", "inactive")),
        awake=tuple(name for kind, name, _ in _of(_first(scope), "active", "active")),
        rebuild=files.at_boot or any(name.startswith(("kernel", "linux")) for name in packages.remove),
        notes=(*files.notes, *packages.notes, *_set_since(recall, scope), *_installers(scope), *_unknown(scope)),
        theirs=files.theirs,
        problems=(*files.problems, *packages.problems, *_kept_packages(recall, scope)),
    )


def _of(states: Mapping[tuple[str, str], str], kind: str, value: str) -> Iterator[tuple[str, str, str]]:
    return ((k, name, v) for (k, name), v in states.items() if k == kind and v == value)


# ---------------------------------------------------------------- units, modules, settings


def _states(recall: JournalSnapshot, scope: Scope) -> Iterator[tuple[tuple[str, str], str]]:
    """(kind, name) → the value to put back, of what has another one and got it from gpunode."""
    for (kind, name), (value, ours) in _wanted(scope).items():
        now = recall.states.get((kind, name))
        if now is None or is_again(kind, now, value):
            continue
        if kind == "link" and now not in _values(scope.known, kind, name):
            continue
        if _is_theirs(kind, now, ours):
            continue
        yield (kind, name), value


def is_again(kind: str, now: str, value: str) -> bool:
    """Whether a thing is as it is to be again."""
    if kind == "enabled":
        return (now in _ON) == (value in _ON)
    return (
        now == value
        or (kind == "initramfs" and value != ABSENT)
        or (kind == "stream" and {now, value} <= {"", "-", ABSENT})
    )


def states_before(recall: JournalSnapshot, scope: Scope) -> dict[tuple[str, str], str]:
    """(kind, name) → how it is to be again, of what gpunode alone has set."""
    remove = set(plan_package_undo(recall, scope.records, scope.known, restored=()).remove)
    booted = modules_loaded_at_boot(recall, scope.records, scope.known, remove)
    return {
        (kind, name): value
        for (kind, name), (value, ours) in _wanted(scope).items()
        if not _is_theirs(kind, recall.states.get((kind, name), ""), ours)
        and not (kind == "link" and recall.states.get((kind, name)) not in _values(scope.known, kind, name))
        and (kind != "module" or value == ABSENT or booted.comes_back(name))
    }


def _is_theirs(kind: str, now: str, ours: Iterable[str]) -> bool:
    """Whether somebody else has set it to something else than gpunode had: then it is theirs."""
    if kind not in ("sysctl", "stream") and not (kind == "alternative" and now.startswith(("manual ", "link "))):
        return False
    return not any(_same_value(kind, now, one) for one in ours)


_WHERE = {"alternative": "/usr/local/", "stream": "the stream of "}


def _set_since(recall: JournalSnapshot, scope: Scope) -> list[str]:
    return [
        f"{_WHERE.get(kind, '')}{name} stays {now or 'unset'}: somebody has set it since"
        for (kind, name), (value, ours) in _wanted(scope).items()
        if (now := recall.states.get((kind, name))) is not None and now != value and _is_theirs(kind, now, ours)
    ]


def _first(scope: Scope) -> dict[tuple[str, str], str]:
    """(kind, name) → how it was before the records."""
    return {key: value for key, (value, _) in _wanted(scope).items()}


# kinds of which the value before a change says whether somebody else has set it; a boot, or a package's script, loads
# modules and starts units, too
_SET_BY_PEOPLE = ("sysctl", "enabled", "alternative", "stream")


def _wanted(scope: Scope) -> dict[tuple[str, str], tuple[str, set[str]]]:
    """(kind, name) → (how it is to be, how gpunode has set it)."""
    mine = {id(record) for record in scope.records}
    changes: dict[tuple[str, str], list[Change]] = {}
    for r in scope.known:
        if r.op == "state":
            change = Change(id=r.id, before=r.more["from"], after=r.more["to"], mine=id(r) in mine)
            changes.setdefault((r.more["kind"], r.more["name"]), []).append(change)
    return {
        (kind, name): replay_value(found, lambda value, last, kind=kind: _same_value(kind, value, last))  # type: ignore[misc]
        for (kind, name), found in changes.items()
        if any(change.mine for change in found)
    }


def _same_value(kind: str, value: str, last: str) -> bool:
    if kind not in _SET_BY_PEOPLE:
        return True
    if kind == "enabled":
        return (value in _ON) == (last in _ON)
    if kind == "alternative":  # `auto`, `manual PATH`, `link PATH`; gpunode writes PATH
        return value.rpartition(" ")[2] == last.rpartition(" ")[2]
    none = ("", "-", ABSENT)
    return value == last or (kind == "stream" and value in none and last in none)


def _values(known: Sequence[Record], kind: str, name: str) -> set[str]:
    mine = [r.more for r in known if r.op == "state" and (r.more["kind"], r.more["name"]) == (kind, name)]
    return {more["to"] for more in mine} | {more["from"] for more in mine}


def _left_behind(recall: JournalSnapshot, scope: Scope) -> bool:
    """Whether the driver is loaded that an interrupted run has taken off already."""
    done = (r for r in scope.records if r.op == "packages" and r.phase != "intent")
    return recall.stale and any(r.more.get("changed") or r.more.get("removed") for r in done)


def _installers(scope: Scope) -> list[str]:
    """What an installer replaced, or gpunode took off, cannot be had without that installer."""
    was = [(r.more["name"], r.more["from"]) for r in scope.records if r.op == "state" and r.more["kind"] == "runfile"]
    was += [(r.more["kind"], r.more["remove"]) for r in scope.records if r.op == "runfile" and "remove" in r.more]
    gone = dict.fromkeys(pair for pair in was if pair[1] != ABSENT)
    return [f"the {name} {version} was of a runfile: run its installer to have it back" for name, version in gone]


def _unknown(scope: Scope) -> list[str]:
    kinds = {r.more["kind"] for r in scope.records if r.op == "state"} - STATES
    return [f"what the journal calls {kind} cannot be undone by this version" for kind in sorted(kinds)]


def _kept_packages(recall: JournalSnapshot, scope: Scope) -> list[Problem]:
    """The toolkit cannot go while engines are configured for it."""
    engines = {
        path
        for record in scope.known
        if record not in scope.records and record.id in recall.follow and recall.follow[record.id].unit
        for path in recall.undo.get(record.id, {})
        if recall.files.get(path, ABSENT) in _hashes(scope.known, path)[1:]
    }
    if scope.whole or scope.to or not engines or not any(r.part == "toolkit" for r in scope.records):
        return []
    what = f"the container engines are configured for the toolkit: {', '.join(sorted(engines))}"
    return [Problem(what=what, fix="undo the part runtime together with the part toolkit")]


# ---------------------------------------------------------------- files


def _file_records(records: Sequence[Record], path: str = "") -> Iterator[tuple[Record, Mapping[str, Any]]]:
    """(record, {path, before, after}) of what was written and stands, oldest first."""
    undone = {r.id for r in records if r.op == "files" and r.phase == "undone"}
    for record in records:
        if record.op == "files" and record.id not in undone:
            for file in record.more.get("files", ()):
                if not path or file["path"] == path:
                    yield record, file


def _first_records(records: Sequence[Record]) -> dict[str, Record]:
    """By path, the record that says how a file was before."""
    found: dict[str, Record] = {}
    for record, file in _file_records(records):
        found.setdefault(file["path"], record)
    return found


def _hashes(records: Sequence[Record], path: str) -> list[str]:
    """The hashes of a file that gpunode saw or wrote: the first one is from before."""
    found = list(_file_records(records, path))
    return [found[0][1]["before"], *(f["after"] for _, f in found), *(f["before"] for _, f in found)] if found else []


def files_before(recall: JournalSnapshot, scope: Scope) -> dict[str, str]:
    """By path, the hash that a file is to have again, of those of which that is known."""
    files = _Files(recall, scope)
    found = {}
    for path in _first_records(scope.records):
        if path in files.kept:
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


class _Files:
    """The files of a scope, sorted into transactions."""

    def __init__(self, recall: JournalSnapshot, scope: Scope) -> None:
        self.recall, self.scope = recall, scope
        self.notes: list[str] = []
        self.problems: list[Problem] = []
        self.theirs: tuple[str, ...] = ()
        first = _first_records(scope.records)
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
        self.at_boot = bool(at_boot & set(back)) or bool(at_boot and recall.old_initramfs)

    def last(self, packages: Packages) -> FileTransaction | None:
        """Repositories, and what packages have left behind: it goes after them, where they all go."""
        late = [*self._late, *(self._dependencies_added() if not packages.kept else ())]
        return self._together(late) if late else None

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
        now, found = self.recall.files.get(path, ABSENT), self.replayed(path)
        wanted, expect = found.wanted, "" if now == ABSENT else now
        by_lines = not wanted.exact and (found.changed_since or bool(self._unit_of(path)) or any(self._edits(path)))
        self._name(path, now, found, by_lines=by_lines)
        if by_lines:
            return self._changed_since(path, expect)
        if wanted.hash == now or (not wanted.exact and self._is_undone(path, now)):
            return None
        if wanted.hash == ABSENT:
            return FileRestore(path=path, expect=expect)
        held = self._copy_of(path, wanted.hash)
        if held or wanted.data is not None:
            return FileRestore(path=path, expect=expect, held=held, data=None if held else wanted.data)
        record = next(r for r, f in _file_records(self.scope.known, path) if f["before"] == wanted.hash)
        what = f"the copy of {path} from before {record.at} is gone"
        self.problems.append(Problem(what=what, fix="fix the file by hand, to what it was"))
        return None

    def _name(self, path: str, now: str, found: Replayed, *, by_lines: bool) -> None:
        """Notes of what somebody else has written there."""
        if found.theirs:
            self.theirs = tuple(dict.fromkeys((*self.theirs, path)))
        # where gpunode has written a file as a whole since, nothing of theirs is in it
        versions = found.aside if by_lines else (*found.aside, *found.unmerged)
        if aside := [copy for hash in versions if (copy := self._copy_of(path, hash))]:
            copies = ", ".join(f"{BACKUP}/{one}" for one in aside)
            self.notes.append(f"{path}: what somebody else wrote there, and what is not there now, is in {copies}")
        wanted, stays = found.wanted, f"{path}: somebody has changed it since; it stays as it is"
        if wanted.exact and wanted.hash == now and found.changed_since:
            self.notes.append(stays)
        elif wanted.exact and wanted.hash not in (now, ABSENT) and found.theirs:
            self.notes.append(f"{path}: somebody has changed it since; their lines stay")
        elif not wanted.exact and now != wanted.hash and self._is_undone(path, now) and not self._unit_of(path):
            self.notes.append(stays)

    def _is_undone(self, path: str, now: str) -> bool:
        """Whether an undo has left it so."""
        last = [r.part for r, f in _file_records(self.scope.known, path) if f["after"] == now][-1:]
        return bool(last) and last[0] in ("uninstall", ROLLBACK)

    def replayed(self, path: str) -> Replayed:
        mine = {id(record) for record in self.scope.records}
        now = self.recall.files.get(path, ABSENT)
        changes = [
            Change(
                id=record.id,
                before=file["before"],
                after=file["after"],
                mine=id(record) in mine and record.more.get("by") != BY_PACKAGES,
                edited=path in self.recall.undo.get(record.id, {}) or bool(self._unit_of(path)),
            )
            for record, file in _file_records(self.scope.known, path)
        ]
        return replay_file(changes, now, self._texts(path))

    def _texts(self, path: str) -> dict[str, bytes]:
        """What is known of the bytes of the file's versions, by hash."""
        found = [data for (_, p), data in self.recall.versions.items() if p == path]
        found += [self.recall.contents[path]] if path in self.recall.contents else []
        found += [
            base for undo in self.recall.undo.values() if path in undo and (base := base_of(undo[path])) is not None
        ]
        return {hashlib.sha256(data).hexdigest(): data for data in found}

    def _copy_of(self, path: str, wanted: str) -> str:
        """The earliest copy of these bytes, which has the mode and the times, too."""
        for record, file in _file_records(self.scope.known, path):
            copy = self.recall.copies.get((record.id, path))
            if file["before"] == wanted and copy and copy.kept:
                return copy.held
        return ""

    def _edits(self, path: str) -> Iterator[Any]:
        """Records of edits of the file: lines in it that are gpunode's, and others that may be a person's."""
        ids = {record.id for record, _ in _file_records(self.scope.records, path)}
        return (undo[path] for id, undo in self.recall.undo.items() if id in ids and path in undo)

    def _dependencies_added(self) -> list[FileRestore]:
        """What packages have brought goes, unless somebody has changed it: then gpunode's part of it alone does."""
        return [
            FileRestore(path=path, expect=None)
            for path in self.brought
            if path not in self.kept and self.recall.files.get(path, ABSENT) != ABSENT
        ]

    def _is_kept(self, path: str) -> bool:
        """Whether a file that packages have brought has become a person's."""
        (_, brought), *later = _file_records(self.scope.known, path)
        now = self.recall.files.get(path, ABSENT)
        if now == ABSENT or (not later and now == brought["after"]):
            return False
        if later:
            found = self.replayed(path)
            if found.wanted.exact and found.wanted.hash == brought["after"]:
                return False
        self.notes.append(f"{path}: somebody has changed it since a package brought it; it stays if it can")
        self.theirs = (*self.theirs, path)
        return True

    def _is_edited(self, path: str) -> bool:
        """Whether gpunode itself has written it, too."""
        return any(record.more.get("by") != BY_PACKAGES for record, _ in _file_records(self.scope.records, path))

    def _changed_since(self, path: str, expect: str) -> FileRestore | None:
        """Of a file that somebody has changed since, only gpunode's own lines go, where they can be found.

        What is left of nvidia's in an engine's configuration goes by its meaning: the toolkit goes as well, and the
        engine would not run any container without it.
        """
        ids = list(dict.fromkeys(record.id for record, _ in _file_records(self.scope.records, path)))
        undo = [self.recall.undo[id][path] for id in reversed(ids) if path in self.recall.undo.get(id, {})]
        data = was = self.recall.contents.get(path)
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
        ids = [record.id for record, _ in _file_records(self.scope.records, path)]
        units = [self.recall.follow[id].unit for id in ids if id in self.recall.follow]
        return next(filter(None, reversed(units)), "")

    def _follows(self, units: Any) -> dict[str, PostCommit]:
        """What follows for each unit, as its latest transaction has it."""
        found = {follow.unit: follow for _id, follow in sorted(self.recall.follow.items()) if follow.unit in set(units)}
        found.pop("", None)
        return found

    def _together(self, files: Sequence[FileRestore], follow: PostCommit | None = None) -> FileTransaction:
        paths = {file.path for file in files}
        used = dict.fromkeys(r.id for r, f in _file_records(self.scope.records) if f["path"] in paths)
        return FileTransaction(files=tuple(files), used=tuple(used), follow=follow)


# ---------------------------------------------------------------- modules that boots have loaded

DRIVER = "nvidia"
# packages that bring the module, or that are the driver by another name; not the tools and libraries around it
_DRIVER = re.compile(
    r"cuda-drivers|kmod-nvidia|dkms-nvidia|linux-(modules|objects)-nvidia|nvidia(-lts)?\Z"
    r"|nvidia-(open|driver|dkms|kernel|kmod|headless|gfxG|legacy|\d)|nvidia-.*(dkms|kmp)"
)


@dataclass(frozen=True, kw_only=True)
class Booted:
    """Modules to unload before the driver's packages go, and to load afterwards."""

    unload: tuple[str, ...] = ()
    load: tuple[str, ...] = ()
    goes: bool = False  # the driver, of which nothing was loaded before

    def comes_back(self, name: str) -> bool:
        """Whether a module that a record calls loaded is to be so again.

        An uninstall that unloads what a boot has loaded writes that down as well, and it is the first record of it.
        """
        return not (self.goes and name.startswith(DRIVER))


def modules_loaded_at_boot(
    recall: JournalSnapshot, records: Sequence[Record], known: Sequence[Record], remove: set[str]
) -> Booted:
    """Where the driver that `records` brought goes (with the packages `remove`), or has gone, and none was before."""
    baseline = next((record for record in known if record.op == "baseline"), None)
    if baseline is None or baseline.more.get("driver") != "" or not _is_removed(recall, records, remove):
        return Booted()
    own = [name for name in baseline.more.get("modules", ()) if recall.states.get(("module", name)) == ABSENT]
    return Booted(unload=(DRIVER,) if recall.driver else (), load=tuple(own), goes=True)


def _is_removed(recall: JournalSnapshot, records: Sequence[Record], remove: set[str]) -> bool:
    """Whether the records brought a driver, and nothing of one is to stay: of packages, or of NVIDIA's installer."""
    ours = {
        item["name"]
        for record in records
        if record.op == "packages" and record.phase != "intent"
        for item in record.more.get("added", ())
        if is_driver(item["name"])
    }
    installer = any(
        record.op == "state"
        and (record.more["kind"], record.more["name"], record.more["from"]) == ("runfile", "driver", ABSENT)
        for record in records
    )
    stay = [name for name in recall.packages if name not in remove and is_driver(name)]
    return bool(ours or installer) and not stay


def is_driver(name: str) -> bool:
    return bool(_DRIVER.match(name))
