"""Files: each as it is to be again, from a copy, without gpunode's lines, or gone; sorted into transactions."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import dropwhile

from gpunode.core.edits import RuntimeRequest, runtime_target, unconfigure_runtime
from gpunode.core.edits.target import EditTarget, Refusal, problem_of
from gpunode.core.edits.undo import NEEDED, NOT_FOUND, base_of, former, put, revert, sha256_of
from gpunode.core.edits.values import Lost
from gpunode.core.engines import DAEMONS, DISTRIBUTIONS, ENGINES, ROWS
from gpunode.core.errors import GpunodeError
from gpunode.core.facts.engines import DOTTED
from gpunode.core.grouped import grouped
from gpunode.core.items.file_history import Change, Replayed, replay_file
from gpunode.core.items.item import ABSENT, Back, Thing
from gpunode.core.items.package_undo import Packages, versions_before
from gpunode.core.late import dataclass, replace
from gpunode.core.model import Edit, Problem, RuntimeName, Undo
from gpunode.core.model.journal import FOLDER, RUN, UNDOES, JournalSnapshot, Note, PostCommit, Record, Recorded, Scope

SOURCES = ("/etc/apt/", "/etc/yum.repos.d/", "/etc/zypp/", "/etc/pki/rpm-gpg/", "/usr/share/keyrings/")
SOURCE_FILES = (".list", ".sources", ".repo")
AT_BOOT = (
    "/etc/modprobe.d/",
    "/etc/modules-load.d/",
    "/etc/dracut.conf.d/",
    "/etc/initramfs-tools/",
    "/etc/mkinitcpio",
)
_AS_IT_IS, _LINES = (f"changed since, not by gpunode; {what}" for what in ("it stays as it is", "their lines stay"))
_TOOLKIT = "nvidia-container-toolkit"  # how its packages' names begin
_RELOAD = b"verb reload\n"
BY_PACKAGES = "packages"  # in a record of files: packages made them
# engines whose configuration can be rid of nvidia's entries even where lines are no longer as gpunode wrote them: by
# unit, or the configuration of those without one
_ENGINES: Mapping[str, RuntimeName] = {
    **{f"{ROWS[name].unit}.service": name for name in DAEMONS},
    **{f"{ROWS[name].snap}.service": name for name in DAEMONS if ROWS[name].snap},
    **{ROWS[name].config: name for name in ENGINES if name not in DAEMONS},
    **{f"{unit}.service": "containerd" for row in DISTRIBUTIONS.values() for unit in row.units},
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


class FileBack(Back):
    def undo(self, journal: JournalSnapshot, scope: Scope) -> Files:
        return Files(self, journal, scope)

    def words(self, name: str, now: str, was: str) -> str:
        how = "is there, and was not" if was == ABSENT else "is gone, and was there" if now == ABSENT else ""
        return f"{name} {how or 'is another one than before'}"


def _is_source(file: FileRestore) -> bool:
    """Whether it is a repository that goes, and that packages may still be needed from."""
    return not file.held and file.data is None and file.path.startswith(SOURCES)


def _read_by(target: EditTarget, contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Those of the files that a program reads."""
    found: dict[str, bytes] = {}
    while more := {p for pattern in target.files(found) for p in fnmatch.filter(contents, pattern)} - found.keys():
        found |= {path: contents[path] for path in more}
    return found


class Files:
    """The files of a scope, sorted into transactions."""

    def __init__(self, kind: Back, journal: JournalSnapshot, scope: Scope) -> None:
        self.kind, self.journal, self.scope = kind, journal, scope
        self.notes: list[Note] = []
        self.problems: list[Problem] = []
        self._theirs: dict[str, None] = {}
        self._changed: dict[str, str] = {}  # what somebody has changed since → why it stays, and more
        self._resumed: set[str] = set()  # of which this undo took gpunode's part before it was interrupted
        self._known: dict[str, _Known] = {}
        self._needed: set[str] = set()  # records of edits of which something stays as gpunode wrote it
        first = {path: ones[0].record for path, ones in scope.own_files.items()}
        # what a service of the packages writes again and again is there or not, whatever is in it
        generated = {r.more["name"] for r in scope.known if r.op == "state" and r.more["kind"] == "cdi"}
        self.others = {*generated, *(path for path, one in first.items() if self._is_taken(path, one))}
        first = {path: one for path, one in first.items() if path not in self.others}
        self.brought = {path: None for path, record in first.items() if record.more.get("by") == BY_PACKAGES}
        self.kept = {path: None for path in self.brought if self._is_kept(path)}
        # by gpunode itself, too
        edited = {p for p in self.kept if any(x.record.more.get("by") != BY_PACKAGES for x in scope.own_files[p])}
        own = [p for p in first if p not in self.brought or p in edited]
        back = {path: one for path in own if (one := self._file(path))}
        units = {path: self.at(path).unit for path in back} | self._settle(back)
        for path, more in self._changed.items():
            known, gone = self.at(path), path in back or path in self._resumed
            held = "" if gone else known.copies.get(known.own[0].before, "")
            copy = f"; the one before gpunode: {FOLDER}/{held}" if held else ""
            self._note(path, f"{_LINES if gone else _AS_IT_IS}{more}{copy}")
        self._name_what_an_undo_found()
        for path in (path for path in back if path in journal.moved):
            self._note(path, f"it was a link to {journal.moved[path]}, and is a file by now: both are undone")
        by_unit = grouped((units[path], file) for path, file in back.items())
        plain = by_unit.pop("", [])
        self.engines = tuple(self._together(by_unit[unit], follow) for unit, follow in self._follows(by_unit))
        records = {id(first[file.path]): first[file.path] for file in plain if _is_source(file)}
        # not one whose transaction took another's place that comes back now: apt refuses to have both
        again = (path for path, one in back.items() if one.held and path.startswith(SOURCES))
        self.sources_restored = tuple(path for path in again if path.endswith(SOURCE_FILES))
        back_again = set(self.sources_restored)
        late = {key for key, one in records.items() if back_again.isdisjoint(f["path"] for f in one.more["files"])}
        self._late = [file for file in plain if _is_source(file) and id(first[file.path]) in late]
        rest = [file for file in plain if not (_is_source(file) and id(first[file.path]) in late)]
        self.first = self._together(rest) if rest else None
        at_boot = {path for path in first if path.startswith(AT_BOOT)}
        self.at_boot = bool(at_boot & set(back)) or bool(at_boot and journal.old_initramfs)

    @property
    def theirs(self) -> tuple[str, ...]:
        return tuple(self._theirs)

    @property
    def things(self) -> Iterator[Thing[Back]]:
        """Those of which it is known how they were."""
        for path in self.scope.own_files:
            wanted = self.at(path).replayed.wanted
            brought = path in self.brought
            if path not in self.kept and path not in self.others and (brought or wanted.exact):
                now = self.journal.files.get(path, ABSENT)
                yield Thing(kind=self.kind, name=path, was=ABSENT if brought else wanted.hash, now=now)

    def at(self, path: str) -> _Known:
        if path not in self._known:
            self._known[path] = _Known(path, self.journal, self.scope, path in self.brought)
        return self._known[path]

    def last(self, packages: Packages) -> FileTransaction | None:
        """Repositories, and what packages have left behind: it goes after them."""
        late = [*self._late, *(f for f in self._dependencies_added() if not packages.made(f.path, self.journal))]
        return self._together(late) if late else None

    def left_by(self, packages: Packages) -> list[tuple[str, str]]:
        """What scripts of packages that stay wrote."""
        return [("", file.path) for file in self._dependencies_added() if packages.made(file.path, self.journal)]

    def _file(self, path: str) -> FileRestore | None:
        now, known = self.journal.files.get(path, ABSENT), self.at(path)
        found = known.replayed
        wanted, expect = found.wanted, "" if now == ABSENT else now
        inexact = not wanted.exact and (found.changed_since or bool(known.unit) or bool(known.edits))
        here = (now, path if now == ABSENT else "")
        left_so = found.theirs and here in self._left_so
        left = not known.edits and bool(left_so or (known.follow.after and (*here, self.scope.verb) in self._left_so))
        self._name(path, now, known, by_lines=inexact or left)
        if left:
            self._resumed.add(path)
            if wanted.exact and now != wanted.hash and not found.theirs:
                self._note(path, NEEDED)
            return None
        if inexact:
            return self._changed_since(known, expect)
        if wanted.hash == now or (not wanted.exact and known.is_undone(now)):
            return None
        if wanted.hash == ABSENT:
            return FileRestore(path=path, expect=expect)
        held = known.copies.get(wanted.hash, "")
        if held or wanted.data is not None:
            return FileRestore(path=path, expect=expect, held=held, data=None if held else wanted.data)
        at = next(one.record.at for one in known.all if one.before == wanted.hash)
        what = f"the copy of {path} from before {at} is gone"
        self.problems.append(Problem(what=what, fix="fix the file by hand, to what it was"))
        return None

    def _settle(self, back: dict[str, FileRestore]) -> dict[str, str]:
        """Whether all files of an engine together are as they are to be, or else by path its unit.

        What others have written there, in whatever file, stays in force and works without gpunode.
        """
        found: dict[str, str] = {}
        goes = any(name.startswith(_TOOLKIT) and was == ABSENT for name, was in self._packages.items())
        for engine, (follow, ours) in self._engines().items():
            version = DOTTED.search(self.journal.engines.get(follow.binary, ""))
            request = RuntimeRequest(runtime=engine, version=version[1] if version else "", config=follow.config)
            target = runtime_target(request)
            try:
                files = _read_by(target, self.journal.contents)
                after = put(files, {path: known.left(back.get(known.path)) for path, known in ours.items()})
                was = put(files, {p: former(known.edits[0], files.get(p)) for p, known in ours.items()})
                undo = [{path: one} for path, known in ours.items() for one in known.edits[::-1]]
                edit = target.settled(files, after, was, undo) if ours else Edit()
                wanted = put(files, edit.changes)
                named = [*target.stranded(wanted, {p: was[p] for p in ours if p in was})] if goes else []
            except (GpunodeError, Refusal, LookupError):
                continue  # broken files, or bytes that a copy alone has: each file for itself has to do
            if edit.problems:
                self._note(follow.config, f"others need what goes, and {edit.problems[0].what}")
                continue
            for path in (path for path in {*files, *after} if wanted.get(path) != after.get(path)):
                place, data = ours[path].path if path in ours else path, wanted.get(path)
                back.pop(place, None)
                found[place] = follow.unit
                if data == files.get(path):
                    self._needed |= {one.record.id for one in self.scope.own_files.get(place, ())}
                else:
                    back[place] = FileRestore(path=place, expect=sha256_of(files.get(path)), data=data)
            for reason in (*(one for one in edit.reasons if one.level == "stays"), *named):
                self._note(reason.what, reason.why)
        return found

    def _name(self, path: str, now: str, known: _Known, *, by_lines: bool) -> None:
        """Notes of what somebody else has written there."""
        found = known.replayed
        if found.theirs:
            self._theirs[path] = None
        # where gpunode has written a file as a whole since, nothing of theirs is in it
        versions = found.aside if by_lines else (*found.aside, *found.unmerged)
        if aside := [known.copies[hash] for hash in versions if hash in known.copies]:
            copies = ", ".join(f"{FOLDER}/{one}" for one in aside)
            self._note(path, f"what others wrote there, and is not there now, is in {copies}")
        wanted = found.wanted
        if (
            (found.changed_since if wanted.hash == now else found.theirs and wanted.hash != ABSENT)
            if wanted.exact
            else now != wanted.hash and known.is_undone(now) and not known.unit and not by_lines
        ):
            self._changed[path] = ""

    def _note(self, path: str, text: str) -> None:
        self.notes.append(Note(f"{path}: {text}", (path,)))

    @cached_property
    def _by_undo(self) -> list[Mapping[str, str]]:
        """The files that this undo, which has no end yet, has written."""
        records = self.journal.records
        # an uninstall of some parts ends as a run does
        began = max((n + 1 for n, r in enumerate(records) if r.op in (*UNDOES, RUN) and r.phase == "done"), default=0)
        return [{**file, "part": r.part} for r in records[began:] if r.undoes for file in r.more.get("files", ())]

    @cached_property
    def _left_so(self) -> frozenset[tuple[str, ...]]:
        """(hash, path) of files as it has left them; "" for the path of bytes, and again with the verb behind it."""
        left = [(one["after"], one["path"] if one["after"] == ABSENT else "", one["part"]) for one in self._by_undo]
        return frozenset((*left, *(one[:2] for one in left)))

    def _name_what_an_undo_found(self) -> None:
        """What others had written where an undo began that died before it said so: by now a link may lead elsewhere."""
        own = (one for ones in self.scope.own_files.values() for one in ones if not one.record.undoes)
        ours = {ABSENT, *(hash for one in own for hash in (one.before, one.after))}
        ours |= {file["after"] for file in self._by_undo}
        for file in self._by_undo:
            if file["before"] not in ours:
                self._note(file["path"], _LINES)

    def _dependencies_added(self) -> list[FileRestore]:
        """What packages have brought goes, unless somebody has changed it: then gpunode's part of it alone does."""
        return [
            FileRestore(path=path, expect=None)
            for path in self.brought
            if path not in self.kept and self.journal.files.get(path, ABSENT) != ABSENT
        ]

    @cached_property
    def _packages(self) -> Mapping[str, str]:
        """Those that gpunode changed, and how each was before."""
        return versions_before(self.scope.records)

    def _is_taken(self, path: str, first: Record) -> bool:
        """Whether a file that packages have brought is by now, as it is, that of another package, which stays."""
        owners = self.journal.unchanged.get(path, frozenset()) & self.journal.packages.keys()
        return first.more.get("by") == BY_PACKAGES and bool(owners - self._packages.keys())

    def _is_kept(self, path: str) -> bool:
        """Whether a file that packages have brought has become a person's."""
        # not what an earlier run wrote there, which is gone, or stays
        brought, *later = dropwhile(lambda one: not one.mine, self.scope.files[path])
        now = self.journal.files.get(path, ABSENT)
        by_packages_alone = all(one.record.more.get("by") == BY_PACKAGES for one in later)
        # another package may have come in the place of that one, with a file of its own there
        if by_packages_alone and (now in (ABSENT, brought.after) or path in self.journal.unchanged):
            return False
        if later:
            found = self.at(path).replayed
            if found.wanted.exact and found.wanted.hash == brought.after:
                return False
            if now == ABSENT and found.wanted.exact and found.wanted.hash == ABSENT:
                return bool(found.theirs.keys() - {ABSENT})  # it may have gone with its package
        self._note(path, "it is no longer what its package brought; it stays where possible")
        self._theirs[path] = None
        return True

    def _changed_since(self, known: _Known, expect: str) -> FileRestore | None:
        """Of a file that somebody has changed since, only gpunode's own lines go, where they can be found.

        What is left of nvidia's in an engine's configuration goes by its meaning: the toolkit goes as well, and the
        engine would not run any container without it.
        """
        path, undo = known.path, known.edits[::-1]
        data = was = self.journal.contents.get(path)
        lost: list[Lost] = []
        why = ""
        for one in undo:
            data, left = revert(data, one, known.called)
            lost += left
        engine = _ENGINES.get(known.unit)
        if engine and was is not None:
            request = RuntimeRequest(runtime=engine, config=known.called)
            try:
                edit = unconfigure_runtime({known.called: was}, request, [{known.called: one} for one in undo])
            except GpunodeError as error:
                edit = Edit(problems=(problem_of(error),))
            if known.called in edit.changes and not edit.problems:
                data = edit.changes[known.called]
                lost = [one if one.theirs else Lost(f"{one.text}: removed") for one in lost if one not in NOT_FOUND]
            why += "".join(f", because {problem.what}" for problem in edit.problems[:1])
        why += "".join(f"; {one.text}" for one in dict.fromkeys(lost))
        self._changed[path] = why
        return None if data == was else FileRestore(path=path, expect=expect, data=data)

    def _engines(self) -> dict[RuntimeName, tuple[PostCommit, dict[str, _Known]]]:
        """What follows for each, and its files that are undone, by their paths for it: none where none was edited."""
        found: dict[RuntimeName, tuple[PostCommit, dict[str, _Known]]] = {}
        for known in map(self.at, self.scope.own_files):
            engine = _ENGINES.get(known.unit or known.follow.config) if known.edits else None
            if engine:
                ours = found.setdefault(engine, (known.follow, {}))[1]
                ours[known.called] = self.at(known.called) if known.called in self.scope.own_files else known
        standing = (one.id for one in self.scope.known if one.id in self.journal.undo and one.id in self.journal.follow)
        edited = {_ENGINES.get(one.unit or one.config) for one in map(self.journal.follow.__getitem__, standing)}
        return {**{engine: (PostCommit(after=b""), {}) for engine in ENGINES if engine not in edited}, **found}

    def _follows(self, units: Mapping[str, Sequence[FileRestore]]) -> Iterator[tuple[str, PostCommit]]:
        """What follows for each unit, as its latest transaction has it; a restart where a reload would not do."""
        found = {follow.unit: follow for _id, follow in sorted(self.journal.follow.items(), key=lambda one: one[0])}
        for unit in found.keys() & units.keys():
            after = found[unit].after
            if _RELOAD in after and not all(map(self._reloaded, units[unit])):
                found[unit] = replace(found[unit], after=after.replace(_RELOAD, b"verb restart\n"))
        return ((unit, follow) for unit, follow in found.items() if unit in units)

    def _reloaded(self, back: FileRestore) -> bool:
        """Whether Docker, which alone is reloaded, takes up so what the file will say."""
        from gpunode.core.edits.engines.docker import is_reloaded

        try:
            return is_reloaded(self.journal.contents[back.path], self.at(back.path).left(back) or b"")
        except LookupError:
            return False

    def _together(self, files: Sequence[FileRestore], follow: PostCommit | None = None) -> FileTransaction:
        own = (one for path in dict.fromkeys(f.path for f in files) for one in self.scope.own_files.get(path, ()))
        ids = (one.record.id for one in sorted(own, key=lambda one: one.at))
        used = dict.fromkeys(id for id in ids if id not in self._needed)
        return FileTransaction(files=tuple(files), used=tuple(used), follow=follow)


class _Known:
    """What the journal and the node say of one file; `brought` where packages made it."""

    def __init__(self, path: str, journal: JournalSnapshot, scope: Scope, brought: bool) -> None:
        self.path, self.called, self._journal, self._brought = path, journal.called.get(path, path), journal, brought
        self.all: Sequence[Recorded] = scope.files.get(path, ())
        self.own: Sequence[Recorded] = scope.own_files.get(path, ())

    @cached_property
    def edits(self) -> list[Undo]:
        """Records of its edits, oldest first: lines in it that are gpunode's, and others that may be a person's."""
        edits = self._journal.edits.get(self.path, {})
        return [edits[id] for id in dict.fromkeys(one.record.id for one in self.own) if id in edits]

    @cached_property
    def unit(self) -> str:
        """The unit that reads it."""
        return self.follow.unit

    @cached_property
    def follow(self) -> PostCommit:
        """What followed the last transaction that has a unit, or else a configuration."""
        found = [one for own in reversed(self.own) if (one := self._journal.follow.get(own.record.id))]
        return max(found, key=lambda one: (bool(one.unit), bool(one.config)), default=PostCommit(after=b""))

    def left(self, back: FileRestore | None) -> bytes | None:
        """What is in it then; LookupError where only a copy on the node has that."""
        data = self._journal.contents.get(self.path)
        if not back or not back.held:
            return back.data if back else data
        for one in self.edits[::-1]:
            data, _ = revert(data, one, self.called)
        return {**self.texts, sha256_of(data): data}[self.replayed.wanted.hash]

    @cached_property
    def copies(self) -> Mapping[str, str]:
        """By hash, the earliest copy of these bytes, which has the mode and the times, too."""
        found: dict[str, str] = {}
        for one in self.all:
            if copy := self._journal.copies.get((one.record.id, self.path)):
                found.setdefault(one.before, copy)
        return found

    @cached_property
    def replayed(self) -> Replayed:
        edits = self._journal.edits.get(self.path, {})
        # of parts the records of earlier undos are not asked for, and what they did to these files is no person's
        began = self.own[0].at if self.own else float("inf")
        changes = (
            Change(
                id=one.record.id,
                before=one.before,
                after=one.after,
                mine=(one.mine or (one.record.undoes and one.at > began))
                and not (self._brought and one.record.more.get("by") == BY_PACKAGES),
                edited=one.record.id in edits or bool(self.unit),
            )
            for one in self.all
        )
        return replay_file(changes, self._journal.files.get(self.path, ABSENT), self.texts, self.called)

    @cached_property
    def texts(self) -> dict[str, bytes]:
        """What is known of the bytes of the file's versions, by hash."""
        journal, path = self._journal, self.path
        found = [*journal.bytes_of.get(path, ()), *([journal.contents[path]] if path in journal.contents else ())]
        bases = (base_of(undo) for undo in journal.edits.get(path, {}).values())
        return {sha256_of(data): data for data in (*found, *bases) if data is not None}

    def is_undone(self, now: str) -> bool:
        """Whether an undo has left it so."""
        return next((one.record.undoes for one in reversed(self.all) if one.after == now), False)
