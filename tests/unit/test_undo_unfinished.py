"""An undo that did not come to its end is continued, and never itself undone: its records say nothing of «before»."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from journal_text import OLD, OURS, back, line, packages, recall_text, state, wrote
from undo_model import Fake, Killed, take_back

from gpunode.core.edits import RuntimeRequest, configure_runtime
from gpunode.core.edits.undo import record
from gpunode.core.undo.journal import parse_snapshot, standing
from gpunode.core.undo.plan import differences
from gpunode.core.undo.scope import scope_of

EDITED, WHOLE, DAEMON, SCRIPT = "/etc/edited.conf", "/etc/whole.conf", "/etc/docker/daemon.json", "/etc/script.conf"
RUNTIME = RuntimeRequest(runtime="docker", version="28.5.2", config=DAEMON, default_runtime="nvidia")


@dataclass
class Watched(Fake):
    """A node on which an uninstall puts nothing that was not there at first."""

    at_first: Mapping[str, Any] = field(default_factory=dict)
    undoing: bool = False

    def photo(self) -> dict[str, Any]:
        files = {path: self.read(path) for path in (EDITED, WHOLE, DAEMON, SCRIPT)}
        return {**files, "packages": dict(self.packages), "manual": set(self.manual), **dict(self.states)}

    def recover(self, who: Mapping[str, str] = {}) -> None:
        """What an interrupted run had begun is finished first, also by an undo."""
        self.undoing, undoing = False, self.undoing
        super().recover(who)
        self.undoing = undoing

    def _set(self, path: str, data: bytes | None) -> None:
        own = next((own for own, place in self.links.items() if place == path), path)
        assert not self.undoing or data in (None, self.at_first[own]), (path, data)
        super()._set(path, data)

    def set_packages(self, wanted: Mapping[str, str | None], *args: Any, **more: Any) -> None:
        was = self.at_first.get("packages", {})
        assert not self.undoing or {n: v for n, v in wanted.items() if v}.items() <= was.items(), wanted
        super().set_packages(wanted, *args, **more)

    def set_state_back(self, kind: str, name: str, value: str) -> None:
        assert not self.undoing or value == self.at_first[kind, name], (kind, name, value)
        super().set_state_back(kind, name, value)


def edits(node: Watched, who: Mapping[str, str], n: int) -> None:
    was = node.read(EDITED)
    now = (was or b"") + b"g%d\n" % n
    node.commit({EDITED: now}, undo={EDITED: record(was, now)}, who=who)


def writes(node: Watched, who: Mapping[str, str], n: int) -> None:
    node.commit({WHOLE: b"g%d\n" % n if n else None}, who=who)


def configures(node: Watched, who: Mapping[str, str], n: int) -> None:
    data = node.read(DAEMON)
    edit = configure_runtime({} if data is None else {DAEMON: data}, RUNTIME)
    node.commit(dict(edit.changes), undo=edit.undo, unit="docker.service", who=who)


def installs(node: Watched, who: Mapping[str, str], n: int) -> None:
    node.set_packages({"ab"[n % 2]: f"{n + 2}{' hold' if n % 3 else ''}"}, **who)


def removes(node: Watched, who: Mapping[str, str], n: int) -> None:
    node.set_packages({"a": None}, **who)


def sets(node: Watched, who: Mapping[str, str], n: int) -> None:
    for key in [("sysctl", "net.a"), ("enabled", "a.service"), ("module", "nouveau"), ("active", "a.service")][: n + 1]:
        value = {"sysctl": "1", "enabled": "enabled", "module": "absent", "active": "active"}[key[0]]
        node.set_state(*key, value, **who)


DEEDS = {one.__name__: one for one in (edits, writes, configures, installs, removes, sets)}
Deeds = Sequence[tuple[str, int]]


def node_after(first: Mapping[str, bool], deeds: Deeds, moved: Sequence[str], dies: int | None) -> Watched:
    """A node that gpunode changed, the last run killed after `dies` records; a person has moved files of it then."""
    files = {EDITED: b"p1\np2\n", WHOLE: b"p3\n", DAEMON: b'{"debug": true}\n'}
    node = Watched(files={path: data for path, data in files.items() if first[path]}, scripts={"b": SCRIPT})
    node.packages = {"a": "1"} if first["a"] else {}
    node.states = {
        ("sysctl", "net.a"): "0",
        ("enabled", "a.service"): "disabled",
        ("active", "a.service"): "inactive",
        ("module", "nouveau"): "loaded",
        ("user", "b"): "absent",
        ("group", "b"): "absent",
        ("kernel", "6.1-b"): "absent",
        ("initramfs", "/boot/initrd.img-b"): "absent",
    }
    node.at_first = node.photo()
    for at, (deed, n) in enumerate(deeds):
        who = {"run": f"r{at}", "part": "runtime", "controller": "c"}
        node.recover(who)
        last = at == len(deeds) - 1
        node.dies = dies if last else None
        with contextlib.suppress(Killed):
            DEEDS[deed](node, who, n)
            if node.journal_of(f"r{at}") and not (last and dies is not None):
                node.line("run", id=node.new_id("run"), run=f"r{at}", controller="c")
        node.dies = None
    for path in moved:
        node.person_moves(path)
    return node


def undo(node: Watched, verb: str, dies: int | None) -> bool:
    """Whether it came to its end."""
    node.dies, node.undoing = dies, verb == "uninstall"
    try:
        take_back(node, verb, run=f"u{node.count}")
    except Killed:
        return False
    finally:
        node.dies, node.undoing = None, False
    return True


DEED = st.tuples(st.sampled_from(list(DEEDS)), st.integers(0, 5))
UNDO = st.tuples(st.sampled_from(["uninstall", "uninstall", "rollback"]), st.none() | st.integers(0, 12))


NONE = dict.fromkeys((EDITED, WHOLE, DAEMON, "a"), False)


@example(NONE, [("edits", 0), ("installs", 0)], [], None, [("uninstall", 1), ("rollback", 1)])
@example(NONE, [("configures", 0), ("installs", 0)], [], None, [("uninstall", 1), ("rollback", 1)])
@given(
    first=st.fixed_dictionaries({path: st.booleans() for path in (EDITED, WHOLE, DAEMON, "a")}),
    deeds=st.lists(DEED, min_size=1, max_size=6),
    moved=st.lists(st.sampled_from([EDITED, WHOLE, DAEMON]), unique=True),
    dies=st.none() | st.integers(0, 3),
    between=st.lists(UNDO, max_size=2),
)
@settings(
    max_examples=int(os.environ.get("GPUNODE_UNDO_SEQUENCES", "40")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_an_uninstall_killed_at_any_record_is_continued_by_the_next(
    first: Mapping[str, bool],
    deeds: Deeds,
    moved: Sequence[str],
    dies: int | None,
    between: Sequence[tuple[str, int | None]],
) -> None:
    ended, at = False, 0
    while not ended:  # killed at each record, and for the last time at none
        node = node_after(first, deeds, moved, dies)
        for verb, when in between:
            if verb == "uninstall" or standing(node.snapshot().records):
                undo(node, verb, when)
        ended = undo(node, "uninstall", at)
        at += 1
        assert undo(node, "uninstall", None)
        assert node.photo() == node.at_first
        assert not scope_of(node.snapshot(), verb="uninstall").records


# ---------------------------------------------------------------- one thing each

LINK, TARGET = "/etc/docker/daemon.json", "/srv/cm/daemon.json"
UNDOES = {"run": "u", "part": "uninstall"}


def test_a_file_that_an_undo_wrote_behind_a_link_is_not_written_again() -> None:
    """A person had moved the file: the transaction of the undo is the first one that names its new place."""
    journal = [*wrote("t1", (LINK, OLD, OURS), part="runtime"), *wrote("t2", (TARGET, OURS, OLD), **UNDOES)]
    text = recall_text(journal, files={LINK: OLD, TARGET: OLD}, kept=[("t1", LINK), ("t2", TARGET)])
    assert back(text).nothing and back(text).notes == ()
    recall = parse_snapshot(text)
    assert differences(recall, scope_of(recall, verb="uninstall")) == []


@pytest.mark.parametrize(
    ("one", "present"),
    [
        (packages("p2", removed={"other": "1"}, unheld=["other"], unmarked=["manual other"], **UNDOES), {}),
        (state("user", "other", "present", "absent", **UNDOES), {("user", "other"): "absent"}),
        (state("module", "nvidia", "loaded", "absent", **UNDOES), {("module", "nvidia"): "absent"}),
        (state("sysctl", "net.b", "1", "0", **UNDOES), {("sysctl", "net.b"): "0"}),
    ],
    ids=["package", "user", "module", "setting"],
)
def test_what_an_undo_alone_has_changed_is_not_changed_back(
    one: dict[str, Any], present: dict[tuple[str, str], str]
) -> None:
    journal = [state("sysctl", "net.a", "0", "1"), one]
    states = {("sysctl", "net.a"): "0", **present}
    assert back(recall_text(journal, states=states, available={"other": ["1"]})).nothing


def test_what_an_undo_finishes_of_a_run_is_of_that_run() -> None:
    """dpkg was killed with the run; the undo finishes it first, and says what the scripts had made."""
    run = {"run": "r1", "part": "driver", "controller": "c"}
    journal = [
        packages("p1", phase="intent", **run),
        state("user", "b", "absent", "present", **UNDOES),
        line("files", id="f1", by="packages", files=[{"path": SCRIPT, "before": "absent", "after": OURS}], **UNDOES),
        packages("p1", phase="failed", added={"b": "1"}, **UNDOES),
        state("module", "nvidia", "loaded", "absent", **UNDOES),
    ]
    text = recall_text(journal, installed={"b": "1"}, files={SCRIPT: OURS}, states={("user", "b"): "present"})
    assert [(r.run, r.part) for r in parse_snapshot(text).records] == [("r1", "driver")] * 4 + [("u", "uninstall")]
    found = back(text)
    assert found.settings == {"user": {"b": "absent"}} and found.packages.remove == ("b",)
    assert found.sources and [file.path for file in found.sources.files] == [SCRIPT]


C = {"controller": "c"}
RUNS = [
    packages("p1", added={"a": "1"}, run="r1", **C),
    line("run", id="e1", run="r1", **C),
    packages("p2", added={"b": "1"}, run="r2", **C),
    line("run", id="e2", run="r2", **C),
]


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ([packages("p3", removed={"b": "1"}, run="u", part="uninstall", **C)], ["r1", "r2"]),
        ([packages("p3", removed={"b": "1"}, part="uninstall")], ["r1", "r2"]),
        (
            [
                packages("p3", removed={"b": "1"}, run="u", part="uninstall", **C),
                line("run", id="e3", run="u", phase="failed", **C),
            ],
            ["r1", "r2"],
        ),
        (
            [
                packages("p3", removed={"b": "1"}, run="u", part="uninstall", **C),
                line("run", id="e3", run="u", **C),
            ],
            ["r1", "r2", "u"],
        ),
    ],
    ids=["killed", "killed, of a playbook", "failed", "of some parts, and ended"],
)
def test_an_uninstall_that_did_not_end_is_no_run_that_a_rollback_undoes(
    more: list[dict[str, Any]], names: list[str]
) -> None:
    assert [run.name for run in standing(parse_snapshot(recall_text([*RUNS, *more])).records)] == names


def test_a_rollback_after_a_killed_uninstall_undoes_the_last_run_and_no_uninstall() -> None:
    text = recall_text(
        [*RUNS, packages("p3", removed={"b": "1"}, run="u", part="uninstall", **C)], installed={"a": "1"}
    )
    assert back(text, verb="rollback").nothing
