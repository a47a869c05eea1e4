"""A node for models of undo: files, settings and packages that gpunode and a person change, and the journal of it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from posixpath import dirname
from typing import Any, NoReturn

from journal_text import coded, line, recall_text

from gpunode.core.edits.commit import FileChange, commit_request
from gpunode.core.edits.undo import undo_data
from gpunode.core.engines import DISTRIBUTIONS, ROWS
from gpunode.core.items.file_undo import FileTransaction
from gpunode.core.model import Undo
from gpunode.core.model.journal import JournalSnapshot
from gpunode.core.remote import parse_outcome, program
from gpunode.core.undo.journal import parse_snapshot, present_request
from gpunode.core.undo.plan import UndoPlan, differences, plan_undo, without_repeats
from gpunode.core.undo.requests import close_request, parse_undo_request, undo_requests
from gpunode.core.undo.scope import scope_of
from gpunode.node import script

WANTS = "/etc/systemd/system/multi-user.target.wants"
# as by kill -9, in front of the n-th file that is put in place or removed
KILLED = """
install_all() {
  while IFS=$TAB read -r n action _ _ _ _ _ path; do
    [ "$n" -lt NTH ] || kill -9 $$
    if [ "$action" = remove ]; then rm -f "$path"; else mv -f "$(temporary "$path" "$n")" "$path"; fi
  done <"$backup/plan"
  kill -9 $$
}
"""


def sha(data: bytes | None) -> str:
    return "absent" if data is None else hashlib.sha256(data).hexdigest()


MOVED = "/srv/"


def elsewhere(path: str) -> str:
    """Where a person moves a file: the name says nothing of what is in it."""
    return f"{MOVED}{sha(path.encode())[:8]}"


class Killed(Exception):
    """The run's process is gone."""


@dataclass
class Fake:
    """All in memory: what commit.sh, packages.sh and activate.sh do, as far as the journal tells of it."""

    files: dict[str, bytes] = field(default_factory=dict)
    states: dict[tuple[str, str], str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)  # NAME → VERSION, or VERSION hold
    manual: set[str] = field(default_factory=set)  # packages that count as asked for
    keys: set[str] = field(default_factory=set)  # in rpm's keyring
    needs: set[tuple[str, str]] = field(default_factory=set)  # (package, another one that it needs)
    scripts: dict[str, str] = field(default_factory=dict)  # package → a file that its scripts write
    journal: list[dict[str, Any]] = field(default_factory=list)
    copies: dict[tuple[str, str], bytes] = field(default_factory=dict)  # by id and path
    written: dict[tuple[str, str], bytes] = field(default_factory=dict)
    undo: dict[str, dict[str, Undo]] = field(default_factory=dict)
    meant: dict[str, dict[str, Undo]] = field(default_factory=dict)
    uses: dict[str, tuple[str, ...]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)  # of transactions
    forever: set[str] = field(default_factory=set)  # ids whose copies an uninstall has left
    links: dict[str, str] = field(default_factory=dict)  # where a person has moved a file
    led: dict[str, str] = field(default_factory=dict)  # where links led that are none any more
    unfinished: Callable[[Mapping[str, str]], None] | None = None  # finishes a package transaction
    engine: str = ""  # what its engine says of its version
    verb: str = "restart"  # what its edits do to it
    others: set[str] = field(default_factory=set)  # files of engines that gpunode has not edited
    dies: int | None = None  # after how many more records the process is gone
    count: int = 0

    def new_id(self, kind: str) -> str:
        self.count += 1
        return f"20261122T010000Z-{kind}-{self.count:06d}"

    def line(self, op: str, **more: Any) -> None:
        self.journal.append(line(op, **more))
        self.counts()

    def counts(self) -> None:
        if self.dies is not None:
            self.dies -= 1
            if self.dies < 0:
                self.dies = None
                raise Killed

    def journal_of(self, run: str) -> bool:
        """Whether the last record is of that run: then its end is written down."""
        return bool(self.journal) and self.journal[-1]["run"] == run

    def read(self, path: str) -> bytes | None:
        return self.files.get(self.links.get(path, path))

    def person_writes(self, path: str, data: bytes | None) -> None:
        self._set(path, data)

    def person_moves(self, path: str) -> None:
        """The file is elsewhere, and its path leads there."""
        if path in self.files:
            self.links[path] = elsewhere(path)
            self.files[self.links[path]] = self.files.pop(path)

    def person_replaces_link(self, path: str, data: bytes) -> None:
        """As `sed -i` does: a file is in its place, and the one behind it stays as it is."""
        self.led[path] = self.links.pop(path)
        self.files[path] = data

    def _set(self, path: str, data: bytes | None) -> None:
        place = self.links.get(path, path)
        if data is None:
            self.files.pop(place, None)
        else:
            self.files[place] = data

    def commit(
        self,
        changes: Mapping[str, bytes | None],
        *,
        undo: Mapping[str, Undo] | None = None,
        unit: str = "",
        used: Sequence[str] = (),
        killed: int | None = None,
        who: Mapping[str, str] = {},
    ) -> None:
        """One transaction; `killed` is after how many files of it the process goes."""
        self.recover(who)
        changes = {self.links.get(path, path): data for path, data in changes.items()}
        todo = {path: data for path, data in changes.items() if self.files.get(path) != data}
        if not todo:
            return
        id = self.new_id("files")
        listed = [{"path": p, "before": sha(self.files.get(p)), "after": sha(data)} for p, data in todo.items()]
        for path, data in todo.items():
            if path in self.files:
                self.copies[id, path] = self.files[path]
            if data is not None:
                self.written[id, path] = data
        if unit:
            self.units[id] = unit
        if undo:
            self.meant[id] = dict(undo)
        self.uses[id] = tuple(used)
        self.line("files", id=id, phase="intent", files=listed, unit=unit, **who)
        for n, (path, data) in enumerate(todo.items()):
            if killed == n:
                raise Killed
            self._set(path, data)
        if killed is not None:
            raise Killed
        self.accept(id, undo, used, **who)

    def accept(self, id: str, undo: Mapping[str, Undo] | None, used: Sequence[str], **who: str) -> None:
        if undo:
            self.undo[id] = dict(undo)
        for other in used:
            self.undo.pop(other, None)
        self.line("files", id=id, **who)

    def recover(self, who: Mapping[str, str] = {}) -> None:
        """As commit.sh does: what is in place is finished, the rest undone; what somebody has changed since stays.

        As packages.sh does: a transaction of packages is finished, and `who` does it says what came of it.
        """
        if self.unfinished:
            self.unfinished(who)
        phases = {one["id"]: one for one in self.journal if one["op"] == "files" and one["phase"] == "intent"}
        for one in self.journal:
            if one["phase"] != "intent":
                phases.pop(one["id"], None)
        for id, one in phases.items():
            if all(sha(self.files.get(f["path"])) == f["after"] for f in one["files"]):
                self.accept(id, self.meant.get(id), self.uses[id], **who)
                continue
            phase = "undone"
            for f in one["files"]:
                if sha(self.files.get(f["path"])) == f["after"]:
                    self._set(f["path"], self.copies.get((id, f["path"])))
                elif sha(self.files.get(f["path"])) != f["before"]:
                    phase = "failed"
            self.line("files", id=id, phase=phase, **who)

    def set_state(self, kind: str, name: str, value: str, **who: str) -> None:
        now = self.states.get((kind, name), "absent")
        if now != value:
            plain = value.rpartition(" ")[2] if kind == "alternative" else value
            self.line("state", id=self.new_id("state"), kind=kind, name=name, **{"from": now, "to": plain}, **who)
            self.states[kind, name] = value

    def run_installer(self, before: str, version: str, **who: str) -> None:
        more = {"from": before or "absent", "to": version}
        self.line("state", id=self.new_id("state"), kind="runfile", name="driver", **more, **who)
        self.states["runfile", "driver"] = "present"

    def take_runfile_off(self, version: str, **who: str) -> None:
        """As packages that come in its place have it."""
        self.line("runfile", id=self.new_id("runfile"), remove=version, kind="driver", **who)
        self.states["runfile", "driver"] = "absent"

    def set_packages(
        self, wanted: Mapping[str, str | None], keys: Sequence[str] = (), automatic: Sequence[str] = (), **who: str
    ) -> None:
        """NAME → VERSION [hold], or None; what is named counts as asked for, unless it is `automatic`."""
        before, marks = dict(self.packages), self.marks()

        def act() -> None:
            for name, version in wanted.items():
                if version is None:
                    self.packages.pop(name, None)
                    self.manual.discard(name)
                else:
                    if before.get(name, "").removesuffix(" hold") != version.removesuffix(" hold"):
                        self.manual.add(name)
                    self.packages[name] = version
            self.manual -= set(automatic)
            self.keys |= set(keys)

        def finish(phase: str, who: Mapping[str, str]) -> None:
            for name in sorted(self.packages.keys() - before):
                self.came_along(name, **who)
            self.unfinished = None
            self.line("packages", id=id, phase=phase, **self._changes(before, marks), **who)

        def later(who: Mapping[str, str]) -> None:
            act()
            finish("failed", who)

        was = dict(before), set(self.manual), set(self.keys)
        act()
        unchanged = (before, marks) == (self.packages, self.marks())
        self.packages, self.manual, self.keys = was
        if unchanged:
            return
        id = self.new_id("packages")
        self.unfinished = later
        self.line("packages", id=id, phase="intent", **who)
        act()
        finish("done", who)

    def _changes(self, before: Mapping[str, str], marks: set[str]) -> dict[str, Any]:
        """What is another way now, in the words of the journal."""
        bare = {n: v.removesuffix(" hold") for n, v in before.items()}
        now = {n: v.removesuffix(" hold") for n, v in self.packages.items()}
        held, holds = ({n for n, v in some.items() if v.endswith(" hold")} for some in (before, self.packages))
        return {
            "added": [{"name": n, "version": now[n]} for n in sorted(now.keys() - bare)],
            "changed": [
                {"name": n, "from": bare[n], "to": now[n]} for n in sorted(now.keys() & bare) if bare[n] != now[n]
            ],
            "removed": [{"name": n, "version": bare[n]} for n in sorted(bare.keys() - now)],
            "held": sorted(holds - held),
            "unheld": sorted(held - holds),
            "marks": sorted(self.marks() - marks),
            "unmarked": sorted(m for m in marks - self.marks() if m.startswith("manual ")),
        }

    def marks(self) -> set[str]:
        return {f"manual {name}" for name in self.manual} | {f"key {key}" for key in self.keys}

    def came_along(self, name: str, **who: str) -> None:
        """What a package's scripts make, and leave when it goes."""
        for kind, made in (
            ("user", name),
            ("group", name),
            ("kernel", f"6.1-{name}"),
            ("initramfs", f"/boot/initrd.img-{name}"),
            ("link", f"{WANTS}/{name}"),
        ):
            if (kind, made) in self.states and self.states[kind, made] == "absent":
                self.set_state(kind, made, "present", **who)
        path = self.scripts.get(name, "")
        if path and self.read(path) is None:
            self._set(path, b"made by a script\n")
            listed = [{"path": path, "before": "absent", "after": sha(self.read(path))}]
            self.line("files", id=self.new_id("files"), by="packages", files=listed, unit="", **who)

    def versions(self, name: str) -> list[str]:
        """That ever were: no repository has lost one."""
        items = [i for one in self.journal for k in ("added", "changed", "removed") for i in one.get(k, ())]
        return [text for i in items if i["name"] == name for key, text in i.items() if key != "name"]

    def snapshot(self) -> JournalSnapshot:
        paths = {f["path"] for one in self.journal for f in one.get("files", ())} | self.others
        more: list[Sequence[str]] = []
        for id, undo in self.undo.items():
            more.append(("undo", id, coded(json.dumps({"label": "x", **undo_data(undo)}).encode())))
            wrote = {f["path"] for one in self.journal if one["id"] == id for f in one.get("files", ())}
            more += [("leads", path, self.links.get(path, path)) for path in undo.keys() - wrote]
            paths |= undo.keys()
        for id, undo in self.meant.items():
            folders = {dirname(row.config): row.config for row in (*ROWS.values(), *DISTRIBUTIONS.values())}
            config = next((folders[top] for path in undo for top in folders if path.startswith(f"{top}/")), "")
            words = {"unit": self.units.get(id, ""), "verb": self.verb, "config": config}
            after = "".join(f"{key} {word}\n" for key, word in words.items() if word)
            more.append(("follow", id, coded(after.encode()), coded(f"{self.engine}\n".encode()), ""))
            paths |= {path for path in self.files if config and path.startswith(f"{dirname(config)}/")}
        more += [("engine", self.engine, self.engine)] if self.engine else []
        more += [("content", p, coded(data)) for p in sorted(paths) if (data := self.read(p)) is not None]
        more += self.rows()
        more += [("version", f"{id}/0.old", p, coded(data)) for (id, p), data in self.copies.items()]
        more += [("version", f"{id}/0.new", p, coded(data)) for (id, p), data in self.written.items()]
        names = {
            item["name"] for one in self.journal for key in ("added", "changed", "removed") for item in one.get(key, ())
        }
        states = {(one["kind"], one["name"]) for one in self.journal if one["op"] == "state"}
        text = recall_text(
            self.journal,
            files={path: sha(self.read(path)) for path in paths},
            kept=list(self.copies),
            states={key: self.states.get(key, "absent") for key in states},
            installed=self.packages,
            available={name: self.versions(name) for name in names},
            more=more,
        )
        return parse_snapshot(text)

    def rows(self) -> list[Sequence[str]]:
        rows: list[Sequence[str]] = [("mark", one) for one in sorted(self.marks() | {"manual base"})]
        rows += [("needs", name, word) for name, word in sorted(self.needs)]
        rows += [("mention", name, path) for name, path in sorted(self.scripts.items())]
        return [*rows, *(("gives", word, word) for _, word in sorted(self.needs))]

    def apply(self, back: UndoPlan, who: Mapping[str, str]) -> None:
        undo_requests(back)  # that it can be asked for
        for files in (*back.engines, back.files):
            self._restore(files, who)
        value = back.packages.value
        wanted: dict[str, str | None] = {
            str(item["name"]): f"{item['version']}{' hold' if item['hold'] else ''}"
            for item in value.get("install", ())
        }
        wanted |= dict.fromkeys(value.get("remove", ()))
        wanted |= {
            n: self.packages[n].removesuffix(" hold")
            for n in value.get("unhold", ())
            if n in self.packages and n not in wanted
        }
        self.set_packages(wanted, automatic=value.get("automatic", ()), **who)
        self.keys -= set(value.get("keys", ()))
        self._restore(back.sources, who)
        for name in back.installers:
            self.states["runfile", name] = "absent"
        for kind, values in back.settings.items():
            for name, setting in values.items():
                self.set_state_back(kind, name, setting)
        for name in back.enable:
            self.set_state_back("enabled", name, "enabled")
        for name in back.disable:
            self.set_state_back("enabled", name, "disabled")
        for name in back.stop:
            self.set_state_back("active", name, "inactive")
        for name in back.start:
            self.set_state_back("active", name, "active")
        for name in back.unload:  # a boot may have loaded it
            self.set_state("module", name, "absent", **who)
        for name in back.load:
            self.set_state_back("module", name, "loaded")
        for module, _, stream in (text.partition(":") for text in value.get("streams", ())):
            self.set_state_back("stream", module, "absent" if stream == "-" else stream)

    def set_state_back(self, kind: str, name: str, value: str) -> None:
        if (kind, name) in self.states:
            self.states[kind, name] = value

    def _restore(self, files: FileTransaction | None, who: Mapping[str, str]) -> None:
        if not files:
            return
        changes: dict[str, bytes | None] = {}
        for file in files.files:
            assert file.expect is None or file.expect == (
                "" if self.read(file.path) is None else sha(self.read(file.path))
            )
            id = file.held.partition("/")[0]
            target = self.led.get(file.path, file.path)
            place = target if (id, target) in self.copies else file.path
            changes[file.path] = self.copies[id, place] if file.held else file.data
        self.commit(changes, used=files.used, who=who)

    def close(self, verb: str, to: str, *, keep: bool) -> None:
        if verb == "uninstall":
            self.line("uninstall", id=self.new_id("uninstall"), part=verb)
            self.forever |= {id for id, _ in self.copies} if keep else set()
            self.copies = {key: data for key, data in self.copies.items() if key[0] in self.forever}
            if not keep:
                self.written, self.undo, self.units, self.meant = {}, {}, {}, {}
        else:
            self.line("rollback", id=self.new_id("rollback"), part=verb, to=to)

    def kept(self) -> list[bytes]:
        """The bytes of all copies that are left."""
        return [*self.copies.values()]


class Real(Fake):
    """The same with the shell scripts, on files below a folder; settings and packages as in the model."""

    def __init__(self, root: Path, keep: int = 20) -> None:
        super().__init__()
        self.root, self.state, self.dying = root, root / "state", False
        shutil.rmtree(root, ignore_errors=True)
        (root / "etc").mkdir(parents=True)
        self.texts = {"commit.sh": re.sub("^KEEP=20", f"KEEP={keep}", script("commit.sh"), flags=re.M)}

    def run(self, name: str, request: Mapping[str, bytes], **who: str) -> str:
        words = {key: f"{value}\n".encode() for key, value in who.items() if value}
        text = program(self.texts.get(name, script(name)), {"state": f"{self.state}\n".encode(), **words, **request})
        done = subprocess.run(
            ["dash", "-s"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "/usr/bin:/bin", "TMPDIR": str(self.root)},
        )
        outcome = parse_outcome(done.stdout, done.returncode)
        assert (done.returncode == -9) if self.dying else outcome.status in ("changed", "unchanged"), (
            outcome,
            done.stderr,
        )
        return done.stdout

    def run_killed(self, request: Mapping[str, bytes], nth: int, **who: str) -> NoReturn:
        """commit.sh as by kill -9, in front of the n-th file that is put in place or removed."""
        whole = self.texts["commit.sh"]
        begins = '[ -e "$GPUNODE_IN/changes" ] || :'
        self.texts["commit.sh"] = whole.replace(begins, KILLED.replace("NTH", str(nth)) + begins, 1)
        self.dying = True
        self.run("commit.sh", request, **who)
        self.dying, self.texts["commit.sh"] = False, whole
        raise Killed

    def person_moves(self, path: str) -> None:
        target = Path(f"{self.root}{elsewhere(path)}")
        target.parent.mkdir(exist_ok=True)
        Path(path).rename(target)
        Path(path).symlink_to(target)

    def person_replaces_link(self, path: str, data: bytes) -> None:
        Path(path).unlink()
        Path(path).write_bytes(data)

    def read(self, path: str) -> bytes | None:
        place = Path(path)
        return place.read_bytes() if place.exists() else None

    def _set(self, path: str, data: bytes | None) -> None:
        if data is None:
            Path(path).unlink(missing_ok=True)
        else:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(data)

    def commit(
        self,
        changes: Mapping[str, bytes | None],
        *,
        undo: Mapping[str, Undo] | None = None,
        unit: str = "",
        used: Sequence[str] = (),
        killed: int | None = None,
        who: Mapping[str, str] = {},
    ) -> None:
        request = commit_request([FileChange(path=path, data=data) for path, data in changes.items()])
        if undo:
            request |= {"undo": json.dumps({"label": "x", **undo_data(undo)}).encode()}
        if used:
            request |= {"used": "".join(f"{one}\n" for one in used).encode()}
        if killed is not None:
            self.run_killed(request, killed, **who)
        self.run("commit.sh", request, **who)

    def recover(self, who: Mapping[str, str] = {}) -> None:
        if self.unfinished:
            self.unfinished(who)
        self.run("commit.sh", commit_request(), **who)

    def line(self, op: str, **more: Any) -> None:
        self.state.mkdir(exist_ok=True)
        with (self.state / "journal.jsonl").open("a") as file:
            file.write(json.dumps(line(op, **more), separators=(",", ":")) + "\n")
        self.counts()

    def journal_of(self, run: str) -> bool:
        path = self.state / "journal.jsonl"
        return path.exists() and f'"run":"{run}"' in path.read_text().splitlines()[-1]

    def snapshot(self) -> JournalSnapshot:
        journal = parse_snapshot(self.run("read_journal.sh", {}))
        self.journal = [{**r.more, "op": r.op} for r in journal.records]
        request = present_request(journal.records)
        files = parse_snapshot(self.run("read_journal.sh", {"states": b"", "paths": request["paths"]}))
        states = {(r.more["kind"], r.more["name"]) for r in journal.records if r.op == "state"}
        names = {i["name"] for r in self.journal for key in ("added", "changed", "removed") for i in r.get(key, ())}
        installed = {n: v.removesuffix(" hold") for n, v in self.packages.items()}
        return replace(
            files,
            states={key: self.states.get(key, "absent") for key in states},
            manager="apt",
            packages={n: (v, "hold" if self.packages[n].endswith(" hold") else "-") for n, v in installed.items()},
            marks=frozenset(self.marks() | {"manual base"}),
            needs=tuple((name, frozenset({word})) for name, word in sorted(self.needs)),
            gives={word: frozenset({word}) for _, word in self.needs},
            mentions={
                path: frozenset(n for n, one in self.scripts.items() if one == path) for path in self.scripts.values()
            },
            available={name: frozenset(self.versions(name)) for name in names},
            driver="",
            stale=False,
            old_initramfs=False,
        )

    def _restore(self, files: FileTransaction | None, who: Mapping[str, str]) -> None:
        if files:
            plan = UndoPlan(files=files)
            [ask] = undo_requests(plan)
            if self.dies is not None:
                nth, self.dies = self.dies, None
                self.run_killed(ask.request, nth, **who)
            self.run("commit.sh", ask.request, **who)

    def close(self, verb: str, to: str, *, keep: bool) -> None:
        asked = parse_undo_request({"verb": verb})
        self.run("restore.sh", close_request(asked, to, keep=keep), part=verb)

    def kept(self) -> list[bytes]:
        return [path.read_bytes() for path in self.state.glob("backup/*/*.old")]


@dataclass(frozen=True)
class Undone:
    plan: UndoPlan
    notes: tuple[str, ...]
    kept: bool


def take_back(node: Fake, verb: str, to: str | None = None, run: str = "undo", parts: tuple[str, ...] = ()) -> Undone:
    """As the action plugin does it: what was cut off first, then the plan, then a look whether all is so."""
    node.recover({"run": run, "part": verb})
    recall = node.snapshot()
    scope = scope_of(recall, verb=verb, parts=parts, to=to)
    plan = plan_undo(recall, scope)
    assert plan.problems == ()
    node.apply(plan, {"run": run, "part": verb})
    recall = node.snapshot()
    again = plan_undo(recall, scope_of(recall, verb=verb, parts=parts, to=scope.to if verb == "rollback" else None))
    if again.by_scripts_alone:
        node.apply(again, {"run": run, "part": verb})
        recall = node.snapshot()
        again = plan_undo(recall, scope_of(recall, verb=verb, parts=parts, to=scope.to if verb == "rollback" else None))
    assert again.nothing, again
    scope = scope_of(recall, verb=verb, parts=parts, to=scope.to if verb == "rollback" else None)
    assert differences(recall, scope, plan.noted | again.noted) == []
    notes = tuple(without_repeats((*plan.notes, *again.notes)))
    keep = bool(notes or plan.theirs or again.theirs)
    if scope.records and not parts:
        node.close(verb, scope.to, keep=keep)
    return Undone(plan=plan, notes=notes, kept=keep)
