"""Undo against a model: runs, kills, a person's changes, rollbacks and uninstalls in any order.

What has to hold: no byte of a person is lost (it is in the file, or in a copy that a message names), no byte of gpunode
is left (or a message names the file), and where nobody else has written anything, all is as it was, and no word more.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from undo_model import WANTS, Fake, Killed, Real, Undone, take_back

from gpunode.core.edits import RuntimeRequest, configure_runtime, unconfigure_runtime
from gpunode.core.edits.undo import record
from gpunode.core.model import Edit
from gpunode.core.undo.journal import standing
from gpunode.core.undo.plan import plan_undo
from gpunode.core.undo.scope import scope_of

EDITED, WHOLE, DAEMON, BROUGHT = "edited.conf", "whole.conf", "daemon.json", "brought.conf"
TOKEN = re.compile(rb"[pg]\d+(?:_\d+)?\b")
SEQUENCES = {"fake": 0, "real": 0}
KEYS = (b"data-root", b"exec-root", b"pidfile", b"group", b"cgroup-parent", b"bridge", b"userns-remap")
PLACES = st.integers(0, 6)


def tokens(data: bytes | None, kind: bytes) -> set[bytes]:
    return {token for token in TOKEN.findall(data or b"") if token.startswith(kind)}


class Machine(RuleBasedStateMachine):
    """`alive` are a person's tokens by file; `touched` files, settings and packages that a person has changed."""

    world = "fake"
    root: Any = None

    def __init__(self) -> None:
        super().__init__()
        SEQUENCES[self.world] += 1
        self.node = Fake() if self.world == "fake" else Real(self.root, keep=4)
        base = "/etc/" if self.world == "fake" else f"{self.root}/etc/"
        self.edited, self.whole, self.daemon, self.brought = (base + n for n in (EDITED, WHOLE, DAEMON, BROUGHT))
        self.paths = (self.edited, self.whole, self.daemon, self.brought)
        self.count = self.runs = 0
        self.alive: dict[str, set[bytes]] = {path: set() for path in self.paths}
        self.given_up: set[bytes] = set()
        self.nvidia_stays = False
        self.photos: dict[str, Any] = {}
        self.partial: set[str] = set()  # runs that took a part back
        self.stayed: set[str] = set()  # packages that an uninstall left, as others need them
        self.killed = False

    @initialize(
        edited=st.none() | st.integers(0, 4),
        whole=st.none() | st.integers(1, 3),
        daemon=st.booleans(),
        package=st.none() | st.integers(0, 5),
        asked=st.booleans(),
        runfile=st.booleans(),
        cuda=st.sampled_from(["auto", "absent", "link /opt/cuda"]),
        user=st.booleans(),
    )
    def begin(
        self,
        edited: int | None,
        whole: int | None,
        daemon: bool,
        package: int | None,
        asked: bool,
        runfile: bool,
        cuda: str,
        user: bool,
    ) -> None:
        for path, count in ((self.edited, edited), (self.whole, whole)):
            if count is not None:
                self.person_has(path, b"".join(self.line() for _ in range(count)))
        if daemon:
            self.person_has(self.daemon, b'{"data-root": "/%s"}\n' % self.token())
        self.node.states = {
            ("sysctl", "net.a"): "0",
            ("enabled", "a.service"): "disabled",
            ("alternative", "cuda"): cuda,
            ("module", "nouveau"): "loaded",
            ("module", "nvidia"): "absent",
            ("active", "a.service"): "inactive",
            ("stream", "nvidia-driver"): "absent",
            ("runfile", "driver"): "present" if runfile else "absent",
            ("user", "b"): "present" if user else "absent",
            ("group", "b"): "absent",
            ("link", "/dev/char/195:0"): "absent",
            ("kernel", "6.1-b"): "absent",
            ("initramfs", "/boot/initrd.img-b"): "absent",
            ("link", f"{WANTS}/b"): "absent",
        }
        self.runfile = "570.1" if runfile else ""
        self.node.scripts = {"b": self.brought} | ({"a": self.whole} if package is None else {})
        if package is not None:
            self.node.packages = {"a": str(2 * package + 1)}
            self.node.manual = {"a"} if asked else set()
        self.new_era()

    def new_era(self) -> None:
        self.before = {path: self.node.read(path) for path in self.paths}
        self.states_before = dict(self.node.states)
        self.expected = dict(self.node.states)
        self.packages_before = dict(self.node.packages)
        self.packages_expected = dict(self.node.packages)
        self.manual_expected, self.keys_expected = set(self.node.manual), set(self.node.keys)
        self.held_by_gpunode: set[str] = set()
        self.keys_of_gpunode: set[str] = set()
        self.runfile_before, self.runfile_gone = self.runfile, False
        self.touched: set[str] = set()
        self.set_by_gpunode: dict[tuple[str, str], str] = {}
        self.photos = {}

    def token(self) -> bytes:
        self.count += 1
        return b"p%d" % self.count

    def line(self) -> bytes:
        return self.token() + b"\n"

    def ours(self) -> bytes:
        self.count += 1
        return b"g%d_%d\n" % (self.runs, self.count)

    def person_has(self, path: str, data: bytes | None) -> None:
        """A person has written this: what is of theirs in it lives, what was there and is not any more does not."""
        gone = tokens(self.node.read(path), b"p") - tokens(data, b"p")
        self.alive[path] = (self.alive[path] | tokens(data, b"p")) - gone
        self.node.person_writes(path, data)
        if hasattr(self, "touched"):
            self.touched.add(path)

    # ---------------------------------------------------------------- gpunode

    def begin_run(self) -> dict[str, str]:
        self.runs += 1
        self.node.recover()
        return {"run": f"r{self.runs}", "part": "runtime", "controller": "c1"}

    def end_run(self) -> None:
        if self.node.journal_of(f"r{self.runs}"):
            self.node.line("run", id=self.node.new_id("run"), run=f"r{self.runs}", controller="c1")
        self.photos[f"r{self.runs}"] = (
            {path: self.node.read(path) for path in self.paths},
            dict(self.node.states),
            (dict(self.node.packages), set(self.node.manual), set(self.node.keys)),
        )

    def edit_of(self, data: bytes | None, places: list[int], replace: bool) -> bytes:
        lines = (data or b"").splitlines(keepends=True)
        for place in places:
            at = place % (len(lines) + 1)
            lines[at : at + (replace and at < len(lines))] = [self.ours()]
        return b"".join(lines)

    @rule(places=st.lists(PLACES, min_size=1, max_size=2), replace=st.booleans(), killed=st.none() | st.integers(0, 1))
    def edits(self, places: list[int], replace: bool, killed: int | None) -> None:
        who = self.begin_run()
        was = self.node.read(self.edited)
        now = self.edit_of(was, places, replace)
        self.commit({self.edited: now}, undo={self.edited: record(was, now)}, killed=killed, who=who)

    @rule(lines=st.integers(0, 2), other=st.booleans(), killed=st.none() | st.integers(0, 2))
    def writes(self, lines: int, other: bool, killed: int | None) -> None:
        """A file as a whole (or it goes), in one transaction with another file."""
        who = self.begin_run()
        whole = b"".join(self.ours() for _ in range(lines)) or None
        self.commit({self.whole: whole} | ({self.whole + "2": b"g0\n"} if other else {}), killed=killed, who=who)

    def runtime(
        self, edit: Edit, who: dict[str, str], used: list[str] | None = None, killed: int | None = None
    ) -> None:
        if edit.problems or not edit.changes:
            return
        self.commit(
            dict(edit.changes),
            undo=edit.undo if used is None else None,
            used=used or (),
            unit="" if self.world == "real" else "docker.service",
            killed=killed,
            who=who,
        )

    def request(self, default: bool = False) -> RuntimeRequest:
        return RuntimeRequest(
            runtime="docker", version="28.5.2", config=self.daemon, default_runtime="nvidia" if default else "keep"
        )

    def seen(self) -> dict[str, bytes]:
        data = self.node.read(self.daemon)
        return {} if data is None else {self.daemon: data}

    @precondition(lambda self: self.world == "fake")
    @rule(default=st.booleans(), killed=st.none() | st.integers(0, 1))
    def configures(self, default: bool, killed: int | None) -> None:
        who = self.begin_run()
        self.runtime(configure_runtime(self.seen(), self.request(default)), who, killed=killed)

    @precondition(lambda self: self.world == "fake")
    @rule()
    def unconfigures(self) -> None:
        who = self.begin_run()
        ids = [id for id, undo in self.node.undo.items() if self.daemon in undo]
        edit = unconfigure_runtime(self.seen(), self.request(), [self.node.undo[id] for id in reversed(ids)])
        self.runtime(edit, who, used=ids)
        self.end_run()

    @rule(
        key=st.sampled_from(["sysctl net.a 1", "sysctl net.a 2", "enabled a.service enabled", "module nouveau absent",
                             "alternative cuda manual /g/cuda", "alternative cuda link /g/link",
                             "module nvidia loaded", "link /dev/char/195:0 ../nvidia0",
                             "active a.service active", "stream nvidia-driver g1"])
    )  # fmt: skip
    def sets(self, key: str) -> None:
        who = self.begin_run()
        kind, name, value = key.split(" ", 2)
        self.node.set_state(kind, name, value, **who)
        self.set_by_gpunode[kind, name] = value
        self.end_run()

    @rule(
        name=st.sampled_from("ab"),
        version=st.none() | st.integers(0, 40),
        hold=st.booleans(),
        key=st.sampled_from(["", "", "gpg-pubkey-1-1", "gpg-pubkey-2-2"]),
    )
    def installs(self, name: str, version: int | None, hold: bool, key: str) -> None:
        if version is None and (name in self.stayed or any(word == name for _, word in self.node.needs)):
            return  # refused: the package manager would remove what needs it; or an uninstall had to leave it
        who = self.begin_run()
        wanted = None if version is None else f"{2 * version}{' hold' if hold else ''}"
        keys = {key} - {""}
        self.held_by_gpunode |= {name} if hold and not self.node.packages.get(name, "").endswith(" hold") else set()
        self.keys_of_gpunode |= keys - self.node.keys
        self.node.set_packages({name: wanted}, keys=sorted(keys), **who)
        self.end_run()

    @rule(version=st.integers(580, 620))
    def runs_an_installer(self, version: int) -> None:
        who = self.begin_run()
        self.node.run_installer(self.runfile, f"{version}.1", **who)
        self.runfile_gone, self.runfile = True, f"{version}.1"
        self.end_run()

    @rule()
    def takes_a_runfile_off(self) -> None:
        if self.runfile:
            who = self.begin_run()
            self.node.take_runfile_off(self.runfile, **who)
            self.runfile_gone, self.runfile = True, ""
            self.end_run()

    def commit(self, changes: dict[str, bytes | None], killed: int | None = None, **more: Any) -> None:
        try:
            self.node.commit(changes, killed=killed, **more)
        except Killed:
            return
        self.end_run()

    # ---------------------------------------------------------------- a person

    @rule(
        which=st.sampled_from([0, 0, 1, 1]),
        at=PLACES,
        how=st.sampled_from(["add", "add", "append", "change", "remove"]),
    )
    def person_edits(self, which: int, at: int, how: str) -> None:
        path = self.paths[which]
        lines = (self.node.read(path) or b"").splitlines(keepends=True)
        place = len(lines) if how == "append" else at % (len(lines) + 1)
        lines[place : place + (how in ("change", "remove"))] = [] if how == "remove" else [self.line()]
        self.person_has(path, b"".join(lines))

    @rule()
    def person_adds_a_key(self) -> None:
        data = self.node.read(self.daemon) or b"{}"
        comma = b"" if re.fullmatch(rb"\s*\{\s*\}\s*", data) else b","
        key = next((key for key in KEYS if b'"%s"' % key not in data), None)
        if key:
            self.person_has(self.daemon, data.replace(b"{", b'{\n  "%s": "/%s"%s' % (key, self.token(), comma), 1))

    @rule(which=st.sampled_from([0, 1, 2]))
    def person_removes(self, which: int) -> None:
        if self.node.read(self.paths[which]) is not None:
            self.person_has(self.paths[which], None)

    @rule()
    def boots(self) -> None:
        """Links in /dev are gone."""
        self.node.states["link", "/dev/char/195:0"] = self.expected["link", "/dev/char/195:0"] = "absent"
        self.touched.add("link")

    @rule()
    def person_links(self) -> None:
        """One that is there points elsewhere."""
        for states in (self.node.states, self.expected):
            states["link", "/dev/char/195:0"] = "../theirs"
        self.touched.add("link")

    @rule()
    def person_edits_what_a_script_wrote(self) -> None:
        if (data := self.node.read(self.brought)) is not None:
            self.person_has(self.brought, data + self.line())

    @rule()
    def person_installs(self) -> None:
        """A package that needs another one, which therefore stays."""
        if "b" in self.node.packages and "c" not in self.node.packages:
            self.node.packages["c"] = self.packages_expected["c"] = "1"
            self.node.manual.add("c")
            self.manual_expected.add("c")
            self.node.needs.add(("c", "b"))
            self.touched.add("package c")

    @rule()
    def person_removes_it(self) -> None:
        if self.node.packages.pop("c", ""):
            del self.packages_expected["c"]
            for some in (self.node.manual, self.manual_expected):
                some.discard("c")
            self.node.needs.clear()
            self.touched.add("package c")

    @rule(name=st.sampled_from("ab"), asked=st.booleans())
    def person_marks(self, name: str, asked: bool) -> None:
        """As with apt-mark manual and auto."""
        if name in self.node.packages and (name in self.node.manual) != asked:
            for some in (self.node.manual, self.manual_expected):
                some.add(name) if asked else some.discard(name)
            self.manual_expected &= {*self.packages_expected}  # a mark goes with its package
            self.touched.add(f"package {name}")

    @rule(name=st.sampled_from("ab"))
    def person_holds(self, name: str) -> None:
        version = self.node.packages.get(name, " hold")
        if not version.endswith(" hold") and name not in self.held_by_gpunode:
            self.node.packages[name] = f"{version} hold"
            if name in self.packages_expected:
                self.packages_expected[name] += " hold"
            self.touched.add(f"package {name}")

    @rule(key=st.sampled_from(["gpg-pubkey-1-1", "gpg-pubkey-2-2"]))
    def person_trusts(self, key: str) -> None:
        if key not in self.node.keys | self.keys_of_gpunode:
            for some in (self.node.keys, self.keys_expected):
                some.add(key)
            self.touched.add(key)

    @rule(key=st.sampled_from(["sysctl net.a", "alternative cuda", "enabled a.service", "stream nvidia-driver"]))
    def person_sets(self, key: str) -> None:
        kind, name = key.split(" ")
        if kind == "enabled":
            value = "disabled"
        else:
            self.count += 1
            how = "link" if self.count % 2 else "manual"
            value = f"{how} /p/{self.count}" if kind == "alternative" else str(self.count + 10)
        if kind == "stream" and (kind, name) not in self.set_by_gpunode:
            return
        self.node.states[kind, name] = value
        self.expected[kind, name] = value
        self.touched.add(f"{kind} {name}")

    @rule(name=st.sampled_from("ab"), more=st.integers(0, 9))
    def person_upgrades(self, name: str, more: int) -> None:
        """A package that is there gets a version that gpunode would not choose."""
        if name in self.node.packages:
            self.count += 1
            hold = " hold" if self.node.packages[name].endswith(" hold") else ""
            self.node.packages[name] = f"{2 * self.count + 1001}{hold}"
            if name in self.packages_before:
                plain = " hold" if self.packages_expected[name].endswith(" hold") else ""
                self.packages_expected[name] = f"{2 * self.count + 1001}{plain}"
            self.touched.add(f"package {name}")

    # ---------------------------------------------------------------- back

    @rule()
    def rollback(self) -> None:
        self.roll_back(-1)

    @rule(at=st.integers(0, 9))
    def roll_back(self, at: int) -> None:
        self.node.recover()
        kept = standing(self.node.snapshot().records)
        names = [run.name for run in kept]
        if not names:
            return
        to = ([*names[:-1], ""] if len(names) == 1 else names[:-1])[at % max(1, len(names) - 1)] if at >= 0 else None
        target = (names[-2] if len(names) > 1 else "") if to is None else to
        recall = self.node.snapshot()
        if plan_undo(recall, scope_of(recall, verb="rollback", to=to)).problems:
            assert self.partial & {name for run in kept for name in run.names}
            return
        self.runs += 1
        done = take_back(self.node, "rollback", to=to, run=f"r{self.runs}")
        stays = {name for run in kept[: names.index(target) + 1] for name in run.names} if target else set()
        for path in self.paths:
            self.nothing_lost(path, done, uninstall=False)
            left = {t for t in tokens(self.node.read(path), b"g") if f"r{int(t[1:].split(b'_')[0])}" not in stays}
            self.left_over(path, left, done)
        if not self.touched and (photo := self.photos.get(target)):
            files, states, packages = photo
            assert {path: self.node.read(path) for path in self.paths} == files
            assert {k: v for k, v in self.node.states.items() if k[0] != "runfile"} == {
                k: v for k, v in states.items() if k[0] != "runfile"
            }
            assert (self.node.packages, self.node.manual, self.node.keys) == packages
            assert [note for note in done.notes if "of a runfile" not in note] == []
        self.runfile = self.runfile if self.node.states["runfile", "driver"] == "present" else ""

    @rule()
    def uninstall(self) -> None:
        done = take_back(self.node, "uninstall")
        for path in self.paths:
            self.nothing_lost(path, done, uninstall=True)
            self.left_over(path, tokens(self.node.read(path), b"g"), done)
            left = [note for note in done.notes if path in note and "left as long as they do" in note]
            assert not left or "b stays: c needs it" in done.notes
            if path not in self.touched and not left:
                assert self.node.read(path) == self.before[path]
                assert not [note for note in done.notes if path in note]
        data = self.node.read(self.daemon) or b""
        assert b"nvidia" not in data or [note for note in done.notes if self.daemon in note], data
        self.runfile = self.runfile if self.node.states["runfile", "driver"] == "present" else ""
        installers = [note for note in done.notes if "of a runfile" in note]
        assert len(installers) == (self.runfile_gone and self.runfile_before != "")
        assert not installers or self.runfile_before in installers[0]
        self.expected["runfile", "driver"] = self.node.states["runfile", "driver"] if self.runfile_before else "absent"
        kept = [note for note in done.notes if note == "b stays: c needs it"]
        if kept:  # with all that it has made
            self.stayed.add("b")
            now = self.node.packages["b"]
            self.packages_expected["b"] = now.removesuffix(" hold") if "b" in self.held_by_gpunode else now
            self.manual_expected |= {"b"} & self.node.manual
            self.expected |= {key: value for key, value in self.node.states.items() if key[1].endswith("b")}
        assert self.node.states.items() ^ self.expected.items() == set()
        assert (self.node.packages, self.node.manual) == (self.packages_expected, self.manual_expected)
        assert self.node.keys == self.keys_expected
        if not self.touched:
            assert done.notes == (*installers,)
        self.new_era()

    @precondition(lambda self: not self.touched)
    @rule()
    def uninstall_a_part(self) -> None:
        """All that there is, and the records stay open: it is a run that can be rolled back."""
        self.runs += 1
        done = take_back(self.node, "uninstall", run=f"r{self.runs}", parts=("runtime",))
        self.photos, self.partial = {}, {*self.partial, f"r{self.runs}"}
        self.end_run()
        assert {path: self.node.read(path) for path in self.paths} == self.before
        assert (self.node.packages, self.node.manual) == (self.packages_before, self.manual_expected)
        assert [note for note in done.notes if "of a runfile" not in note] == []

    def nothing_lost(self, path: str, done: Undone, *, uninstall: bool) -> None:
        live = self.node.read(path) or b""
        missing = self.alive[path] - tokens(live, b"p")
        copies = b"\n".join(self.node.kept())
        assert missing <= tokens(copies, b"p"), (missing, live, done.notes)
        notes = [note for note in done.notes if path in note]
        if uninstall and missing - self.given_up:
            assert notes, (missing, live)
            self.given_up |= missing

    def left_over(self, path: str, left: set[bytes], done: Undone) -> None:
        notes = [note for note in done.notes if path in note and ("stay" in note or "no longer in it" in note)]
        assert left <= self.given_up or notes, (path, left, self.node.read(path), done.notes)
        self.given_up |= left


@pytest.mark.slow
def test_no_byte_of_a_person_is_lost_and_none_of_gpunode_is_left() -> None:
    count = int(os.environ.get("GPUNODE_UNDO_SEQUENCES", "300"))
    how = settings(max_examples=count, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Machine, settings=how)
    assert SEQUENCES["fake"] >= count


@pytest.mark.slow
def test_the_same_holds_for_the_scripts(tmp_path: Any) -> None:
    machine = type("OnScripts", (Machine,), {"world": "real", "root": tmp_path / "node"})
    count = int(os.environ.get("GPUNODE_UNDO_SEQUENCES", "80")) // 10
    how = settings(max_examples=count, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=how)
