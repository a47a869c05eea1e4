"""What takes gpunode back: from a journal and a present to packages, files and settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from journal_text import OLD, OURS, THEIRS, back, coded, line, packages, recall_text, state, undo_row, wrote

import gpunode.node
from gpunode.core.errors import InputError
from gpunode.core.items.file_undo import FileRestore
from gpunode.core.items.sharing import MIG_PROGRAM
from gpunode.core.plan.steps import KINDS
from gpunode.core.undo.journal import parse_snapshot
from gpunode.core.undo.plan import UndoPlan, differences, plan_undo
from gpunode.core.undo.requests import UndoRequest, compared, diffs, parse_undo_request, undo_requests
from gpunode.core.undo.scope import scope_of

# ---------------------------------------------------------------- files


def file_back(before: str, now: str, *, kept: bool = True) -> UndoPlan:
    copies = [("t1", "/etc/x")] if kept else []
    return back(recall_text(wrote("t1", ("/etc/x", before, OURS)), files={"/etc/x": now}, kept=copies))


@pytest.mark.parametrize(
    ("before", "now", "file"),
    [
        ("absent", OURS, FileRestore(path="/etc/x", expect=OURS)),
        (OLD, OURS, FileRestore(path="/etc/x", expect=OURS, held="t1/0.old")),
        (OLD, "absent", None),
        (OLD, OLD, None),
        ("absent", "absent", None),
        (OLD, THEIRS, None),
    ],
    ids=["made", "written", "removed by somebody", "back already", "gone already", "somebody else's"],
)
def test_a_file_is_put_back_unless_it_is_back_or_somebody_elses(
    before: str, now: str, file: FileRestore | None
) -> None:
    found = file_back(before, now)
    assert (found.files.files if found.files else ()) == ((file,) if file else ())
    assert found.nothing == (file is None)
    assert bool(found.notes) == (now not in (before, OURS))


def test_a_file_whose_copy_is_gone_is_a_problem() -> None:
    assert [p.what for p in file_back(OLD, OURS, kept=False).problems] == [
        "the copy of /etc/x from before 2026-11-22T01:00:00Z is gone"
    ]


def test_of_several_writes_the_first_one_says_how_it_was() -> None:
    journal = [*wrote("t1", ("/etc/x", OLD, OURS)), *wrote("t2", ("/etc/x", OURS, "4" * 64))]
    found = back(recall_text(journal, files={"/etc/x": "4" * 64}, kept=[("t1", "/etc/x"), ("t2", "/etc/x")]))
    assert found.files and found.files.files == (FileRestore(path="/etc/x", expect="4" * 64, held="t1/0.old"),)
    assert found.files.used == ("t1", "t2")


def test_what_was_undone_at_once_counts_for_nothing() -> None:
    journal = wrote("t1", ("/etc/x", "absent", OURS))
    journal[1]["phase"] = "undone"
    assert back(recall_text(journal, files={"/etc/x": THEIRS})) == UndoPlan()


def test_a_file_that_is_made_again_and_again_goes_whatever_it_says_now() -> None:
    found = back(
        recall_text(wrote("t1", ("/run/cdi/nvidia.yaml", "absent", "any")), files={"/run/cdi/nvidia.yaml": THEIRS})
    )
    assert found.files and found.files.files == (FileRestore(path="/run/cdi/nvidia.yaml", expect=THEIRS),)


def test_of_an_edited_file_that_somebody_has_changed_since_only_our_lines_go() -> None:
    before, after = b"a\nb\nc\nd\n", b"a\nb\nours\nc\nd\n"
    text = recall_text(
        wrote("t1", ("/etc/x", OLD, OURS)),
        files={"/etc/x": THEIRS},
        kept=[("t1", "/etc/x")],
        more=[undo_row("t1", "/etc/x", before, after), ("content", "/etc/x", coded(b"theirs\n" + after))],
    )
    found = back(text)
    assert found.files and found.files.files == (FileRestore(path="/etc/x", expect=THEIRS, data=b"theirs\n" + before),)
    assert found.notes == ("/etc/x: changed since, not by gpunode; their lines stay",)


def test_a_file_without_our_lines_is_not_taken_for_ours_although_an_uninstall_wrote_it() -> None:
    rest = "e" * 64
    journal = [*wrote("t1", ("/etc/x", OLD, OURS)), *wrote("t2", ("/etc/x", THEIRS, rest), part="uninstall")]
    before, after = b"a\nb\nc\nd\n", b"a\nb\nours\nc\nd\n"
    more = [undo_row("t1", "/etc/x", before, after), ("content", "/etc/x", coded(b"theirs\n" + before))]
    assert back(recall_text(journal, files={"/etc/x": rest}, kept=[("t1", "/etc/x")], more=more)).nothing


@pytest.mark.parametrize(
    ("unit", "path", "theirs", "left"),
    [
        (
            "docker.service",
            "/etc/docker/daemon.json",
            b'{"log-level":"info","runtimes":{"nvidia":{"path":"/usr/bin/nvidia-container-runtime","runtimeArgs":[]}},'
            b'"default-runtime":"nvidia"}',
            {"log-level": "info"},
        ),
        ("some.service", "/etc/some.json", b'{"log-level":"info","default-runtime":"nvidia"}', {"log-level": "info"}),
    ],
)
def test_an_engine_does_not_stay_with_a_runtime_that_goes(unit: str, path: str, theirs: bytes, left: Any) -> None:
    before = b'{"log-level":"warn"}'
    text = recall_text(
        wrote("t1", (path, OLD, OURS)),
        files={path: THEIRS},
        kept=[("t1", path)],
        more=[
            undo_row("t1", path, before, theirs.replace(b"info", b"warn")),
            ("content", path, coded(theirs)),
            ("follow", "t1", coded(f"unit {unit}\nverb restart\n".encode())),
        ],
    )
    found = back(text)
    data = [file.data for files in found.engines for file in files.files]
    assert [json.loads(one or b"") for one in data] == ([left] if left else [])
    assert found.notes == (
        f"{path}: changed since, not by gpunode; {'their lines stay' if left else 'it stays as it is'}",
    )


@pytest.mark.parametrize(
    ("unit", "path", "data", "why"),
    [
        ("docker.service", "/etc/docker/daemon.json", b'{"log-level": "info",,}', "/etc/docker/daemon.json:1:22"),
        ("containerd.service", "/etc/containerd/config.toml", b"version = = 2\n", "/etc/containerd/config.toml:1"),
        ("crio.service", "/etc/crio/crio.conf", b"[crio\n", "/etc/crio/crio.conf:1"),
    ],
)
def test_an_engines_file_that_cannot_be_read_stays_and_everything_else_is_undone(
    unit: str, path: str, data: bytes, why: str
) -> None:
    text = recall_text(
        [*wrote("t1", (path, OLD, OURS)), *wrote("t2", ("/etc/x", "absent", OURS)), packages("p", added={"a": "1"})],
        files={path: THEIRS, "/etc/x": OURS},
        kept=[("t1", path)],
        installed={"a": "1"},
        more=[
            undo_row("t1", path, b"old\n", b"old\nours\n"),
            ("content", path, coded(data)),
            ("follow", "t1", coded(f"unit {unit}\nverb restart\n".encode())),
        ],
    )
    found = back(text)
    [note] = found.notes
    assert note.startswith(f"{path}: changed since, not by gpunode; it stays as it is, because {why}")
    assert not found.engines and not found.problems and found.packages.remove == ("a",)
    assert found.files and [file.path for file in found.files.files] == ["/etc/x"]


def test_an_engines_files_go_first_and_what_followed_follows_again() -> None:
    after = b"unit docker.service\nverb restart\nhandlers nvidia\nplugin_was ok\nsettle 3\n"
    health = b"docker\tinfo\t--format\t{{nvidia}}\ndocker\tversion\n"
    text = recall_text(
        [
            *wrote("t1", ("/etc/docker/daemon.json", "absent", OURS)),
            *wrote("t2", ("/etc/profile.d/cuda.sh", "absent", OURS)),
        ],
        files={"/etc/docker/daemon.json": OURS, "/etc/profile.d/cuda.sh": OURS},
        more=[
            ("follow", "t1", coded(after), coded(b"dockerd\n--validate\n"), coded(health)),
            ("follow", "t2", coded(b"plugin_was ok\n")),
        ],
    )
    asks = undo_requests(back(text))
    assert [(ask.script, ask.request.get("after", b"")) for ask in asks] == [
        ("commit.sh", b"unit docker.service\nverb restart\nsettle 3\n"),
        ("commit.sh", b""),
    ]
    assert asks[0].request["validate"] == b"dockerd\n--validate\n"
    assert asks[0].request["health"] == b"docker\tversion\n", (
        "that it knows the nvidia runtime is no sign of health now"
    )
    assert asks[0].request["used"] == b"t1\n"
    assert asks[0].request["changes"] == f"0\tremove\t0644\t{OURS}\t-\t/etc/docker/daemon.json\n".encode()


def test_repositories_and_what_packages_left_go_after_the_packages() -> None:
    source, left = "/etc/apt/sources.list.d/n.sources", "/etc/nvidia/config.toml"
    text = recall_text(
        [
            *wrote("t1", (source, "absent", OURS)),
            *wrote("t2", (left, "absent", OURS), by="packages"),
            packages("p1", added={"toolkit": "1"}),
        ],
        files={source: OURS, left: OURS},
        installed={"toolkit": "1"},
    )
    found = back(text)
    assert found.files is None and found.sources
    assert [(f.path, f.expect) for f in found.sources.files] == [(source, OURS), (left, None)]
    assert [ask.script for ask in undo_requests(found)] == ["packages.sh", "commit.sh"]


def test_a_repository_goes_first_where_the_one_comes_back_whose_place_it_took() -> None:
    old, new, key = (
        "/etc/apt/sources.list.d/cuda.list",
        "/etc/apt/sources.list.d/n.sources",
        "/usr/share/keyrings/n.asc",
    )
    text = recall_text(
        [
            *wrote("t1", (old, OLD, "absent"), (new, "absent", OURS), (key, "absent", OURS)),
            packages("p1", added={"toolkit": "1"}),
        ],
        files={new: OURS, key: OURS},
        kept=[("t1", old)],
        installed={"toolkit": "1"},
    )
    found = back(text)
    assert found.files and not found.sources
    assert {(f.path, bool(f.held)) for f in found.files.files} == {(old, True), (new, False), (key, False)}


def test_a_file_that_a_package_brought_is_not_put_back_when_it_has_gone_with_what_packages_left() -> None:
    left = "/etc/nvidia/config.toml"
    journal = [*wrote("t1", (left, "absent", OURS), by="packages"), *wrote("t2", (left, OURS, "absent"), part="undo")]
    assert back(recall_text(journal, files={left: "absent"}, kept=[("t2", left)])).nothing


PIN, PIN_580, PIN_595 = "/etc/apt/preferences.d/nvidia-driver-pin", "nvidia-pin-580", "nvidia-pin-595"


@pytest.mark.parametrize(
    ("ours", "owner", "goes", "noted"),
    [
        (True, PIN_595, True, False),
        (True, "", False, True),
        (False, PIN_595, False, False),
        (False, "", False, True),
    ],
    ids=["another package of gpunode's", "a person's bytes", "a person's package", "a person's bytes in theirs"],
)
def test_a_file_of_a_package_that_another_one_replaced_is_not_a_persons(
    ours: bool, owner: str, goes: bool, noted: bool
) -> None:
    upgraded = packages("p2", added={PIN_595: "595"}, removed={PIN_580: "580"})
    journal = [
        *wrote("t1", (PIN, "absent", OURS), by="packages"),
        packages("p1", added={PIN_580: "580"}),
        *([upgraded] if ours else []),
    ]
    more = [("unchanged", owner, PIN)] if owner else []
    text = recall_text(journal, files={PIN: THEIRS}, installed={PIN_595: "595"}, more=more)
    found = back(text)
    assert (found.sources is not None and [one.path for one in found.sources.files] == [PIN]) is goes
    assert any(PIN in note for note in found.notes) is noted
    assert (PIN in found.theirs) is noted
    recall = parse_snapshot(text)
    assert any(PIN in one for one in differences(recall, scope_of(recall, verb="uninstall"))) is goes


def test_a_file_that_a_package_brought_and_gpunode_edited_goes_after_the_package() -> None:
    left = "/etc/containerd/config.toml"
    journal = [*wrote("t1", (left, "absent", OLD), by="packages"), *wrote("t2", (left, OLD, OURS))]
    text = recall_text(
        journal, files={left: OURS}, kept=[("t2", left)], more=[("follow", "t2", coded(b"unit containerd.service\n"))]
    )
    found = back(text)
    assert found.engines == () and found.sources
    assert found.sources.files == (FileRestore(path=left, expect=None),)


@pytest.mark.parametrize("between", [False, True], ids=["by gpunode alone", "by a person, too"])
def test_a_file_that_gpunode_restored_and_that_went_with_its_package_is_not_called_changed(between: bool) -> None:
    left = "/etc/containerd/config.toml"
    found = THEIRS if between else OURS
    journal = [
        *wrote("t1", (left, "absent", OLD), by="packages"),
        *wrote("t2", (left, OLD, OURS)),
        *wrote("t3", (left, found, OLD), part="undo"),
    ]
    more = [("follow", id, coded(b"unit containerd.service\n")) for id in ("t2", "t3")]
    text = recall_text(journal, files={left: "absent"}, kept=[("t2", left), ("t3", left)], more=more)
    assert back(text).nothing and bool(back(text).notes) is between
    assert (left in back(text).theirs) is between


@pytest.mark.parametrize(
    ("path", "now", "old", "rebuild"),
    [
        ("/etc/modprobe.d/x.conf", OURS, False, True),
        ("/etc/modprobe.d/x.conf", "absent", True, True),
        ("/etc/modprobe.d/x.conf", "absent", False, False),
        ("/etc/profile.d/x.sh", "absent", True, False),
    ],
    ids=["to be done", "cut off before it", "done", "nothing of gpunode's in it"],
)
def test_the_initramfs_is_rebuilt_after_what_goes_into_it(path: str, now: str, old: bool, rebuild: bool) -> None:
    text = recall_text(wrote("t1", (path, "absent", OURS)), files={path: now}, more=[("old_initramfs",)] if old else [])
    assert back(text).rebuild == rebuild


def test_what_happens_to_files_is_shown_as_diffs_without_secrets() -> None:
    text = recall_text(
        [
            *wrote("t1", ("/etc/x", OLD, OURS)),
            *wrote("t2", ("/etc/y", "absent", OURS)),
            *wrote("t3", ("/etc/z", OLD, "absent")),
            *wrote("t4", ("/etc/large", OLD, OURS)),
        ],
        files={"/etc/x": OURS, "/etc/y": OURS, "/etc/z": "absent", "/etc/large": OURS},
        kept=[("t1", "/etc/x"), ("t3", "/etc/z"), ("t4", "/etc/large")],
    )
    found = back(text)
    copies = [f"/var/lib/gpunode/backup/{id}/0.old" for id in ("t1", "t3", "t4")]
    assert compared(found) == sorted(["/etc/large", "/etc/x", "/etc/y", "/etc/z", *copies])
    there = {"/etc/x": b"b\n", "/etc/y": b"password: abc\n", copies[0]: b"a\n", copies[1]: b"z\n", copies[2]: b"1\n"}
    assert diffs(found, there) == [
        "--- /etc/x\n+++ /etc/x\n@@ -1 +1 @@\n-b\n+a\n",
        "--- /etc/y\n+++ /dev/null\n@@ -1 +0,0 @@\n-password: ********\n",
        "--- /dev/null\n+++ /etc/z\n@@ -0,0 +1 @@\n+z\n",
    ]


# ---------------------------------------------------------------- units, modules, settings


def test_units_modules_and_settings_are_put_back_where_gpunode_made_them_so() -> None:
    text = recall_text(
        [
            state("module", "nouveau", "loaded", "absent"),
            state("module", "nvidia", "absent", "loaded"),
            state("module", "nvidia_uvm", "absent", "loaded"),
            state("active", "nvidia-persistenced.service", "inactive", "active"),
            state("enabled", "nvidia-persistenced.service", "disabled", "enabled"),
            state("enabled", "other.service", "static", "enabled"),
            state("active", "gpunode-mig.service", "active", "inactive"),
            state("enabled", "gpunode-mig.service", "enabled", "disabled"),
            state("sysctl", "net.ipv4.ip_forward", "0", "1"),
            state("sysctl", "vm.swappiness", "60", "10"),
            state("alternative", "cuda", "auto", "/usr/local/cuda-12.8"),
            state("user", "nvidia-persistenced", "absent", "present"),
            state("cdi", "/var/run/cdi/nvidia.yaml", "absent", "present"),
            state("runes", "x", "absent", "present"),
        ],
        states={
            ("module", "nouveau"): "absent",
            ("module", "nvidia"): "loaded",
            ("module", "nvidia_uvm"): "loaded",
            ("active", "nvidia-persistenced.service"): "active",
            ("enabled", "nvidia-persistenced.service"): "enabled",
            ("enabled", "other.service"): "enabled",
            ("active", "gpunode-mig.service"): "inactive",
            ("enabled", "gpunode-mig.service"): "",
            ("sysctl", "net.ipv4.ip_forward"): "1",
            ("sysctl", "vm.swappiness"): "30",
            ("alternative", "cuda"): "manual /usr/local/cuda-12.8",
            ("user", "nvidia-persistenced"): "present",
            ("cdi", "/var/run/cdi/nvidia.yaml"): "present",
        },
    )
    found = back(text)
    assert found.stop == ("nvidia-persistenced.service",)
    assert found.disable == ("nvidia-persistenced.service",)
    assert found.unload == ("nvidia_uvm", "nvidia")
    assert found.load == ("nouveau",)
    assert (found.enable, found.start) == (("gpunode-mig.service",), ("gpunode-mig.service",))
    assert found.settings == {
        "alternative": {"cuda": "auto"},
        "sysctl": {"net.ipv4.ip_forward": "0"},
        "cdi": {"/var/run/cdi/nvidia.yaml": "absent"},
        "user": {"nvidia-persistenced": "absent"},
    }
    assert found.notes == (
        "vm.swappiness stays 30: set since, not by gpunode",
        "what the journal calls runes cannot be undone by this version",
    )
    assert [ask.script for ask in undo_requests(found)] == ["restore.sh", "activate.sh", "restore.sh"]


@pytest.mark.parametrize(
    ("kind", "name", "before", "now", "note"),
    [
        ("enabled", "g.service", "disabled", "static", "g.service stays static, and was disabled: its file has no"),
        (
            "group",
            "g",
            "absent",
            "members ann,bob",
            "the group g stays members ann,bob, and was absent: it has members",
        ),
    ],
)
def test_what_no_script_can_change_is_named_and_not_waited_for(
    kind: str, name: str, before: str, now: str, note: str
) -> None:
    made = {"enabled": "enabled", "group": "present"}[kind]
    recall = parse_snapshot(recall_text([state(kind, name, before, made)], states={(kind, name): now}))
    scope = scope_of(recall, verb="uninstall")
    found = plan_undo(recall, scope)
    assert found.nothing and [one.startswith(note) for one in found.notes] == [True], found.notes
    assert differences(recall, scope, found.noted) == []


def test_a_note_that_a_file_stays_names_the_copy_of_what_it_was() -> None:
    journal = [*wrote("t1", ("/etc/x", OLD, OURS)), *wrote("t2", ("/etc/x", THEIRS, "4" * 64))]
    undo = undo_row("t2", "/etc/x", b"1\n2\n3\n4\n", b"1\n2\ng\n3\n4\n")
    more = [undo, ("content", "/etc/x", coded(b"other\n"))]
    found = back(recall_text(journal, files={"/etc/x": "5" * 64}, kept=[("t1", "/etc/x")], more=more))
    assert found.nothing
    [note] = [note for note in found.notes if "stays as it is" in note]
    assert note.endswith("; the one before gpunode: /var/lib/gpunode/backup/t1/0.old")


def test_the_driver_that_is_loaded_is_exchanged_when_an_upgrade_is_undone() -> None:
    text = recall_text(
        [packages("p1", run="r1"), packages("p2", run="r2", changed={"driver": ("1", "2")})],
        installed={"driver": "2"},
        available={"driver": ["1"]},
        more=[("driver", "2")],
    )
    found = back(text, "rollback")
    assert found.exchange == ("nvidia",)
    assert [ask.script for ask in undo_requests(found)] == ["packages.sh", "activate.sh"]


@pytest.mark.parametrize(
    ("journal", "stale", "exchange"),
    [
        (packages("p2", changed={"driver": ("1", "2")}), True, ("nvidia",)),
        (packages("p2", changed={"driver": ("1", "2")}), False, ()),
        (packages("p2", phase="failed", removed={"driver": "2"}), False, ()),
        (packages("p2", added={"other": "1"}), True, ()),
    ],
    ids=["cut off between packages and modules", "exchanged", "failed", "was so before"],
)
def test_a_driver_is_exchanged_where_an_interrupted_run_did_not_come_to_it(
    journal: dict[str, Any], stale: bool, exchange: tuple[str, ...]
) -> None:
    more = [("driver", "2"), *([("stale",)] if stale else [])]
    installed = {"driver": "1" if journal.get("changed") else "2"}
    assert back(recall_text([journal], installed=installed, more=more)).exchange == exchange


@pytest.mark.parametrize(
    ("before", "now", "installers", "notes"),
    [
        ("absent", "present", ("driver",), ()),
        ("absent", "absent", (), ()),
        ("570.1", "present", (), ("the driver 570.1 was of a runfile: run its installer to have it back",)),
    ],
)
def test_what_an_installer_put_there_is_taken_off(
    before: str, now: str, installers: tuple[str, ...], notes: tuple[str, ...]
) -> None:
    found = back(recall_text([state("runfile", "driver", before, "595.1")], states={("runfile", "driver"): now}))
    assert (found.installers, found.notes) == (installers, notes)
    asked = [ask for ask in undo_requests(found) if ask.script == "runfile.sh"]
    assert [ask.request["mode"] for ask in asked] == [b"uninstall\n"] * len(installers)


BASELINE = line("baseline", id="b", driver="", modules=["nouveau"], kernel="6.1")
CAME = packages("p1", added={"nvidia-open": "595.1", "nvidia-modprobe": "595.1"})


@pytest.mark.parametrize(
    ("journal", "installed", "driver", "unload", "load"),
    [
        ([BASELINE, CAME], {"nvidia-open": "595.1"}, "595.1", ("nvidia",), ("nouveau",)),
        ([BASELINE, CAME], {}, "595.1", ("nvidia",), ("nouveau",)),
        ([BASELINE, CAME, state("module", "nvidia", "loaded", "absent", part="uninstall")], {}, "", (), ("nouveau",)),
        ([BASELINE, CAME], {"nvidia-cuda-toolkit": "12"}, "595.1", ("nvidia",), ("nouveau",)),
        ([BASELINE, CAME], {"nvidia-open": "595.1"}, "", (), ("nouveau",)),
        ([BASELINE, CAME], {"nvidia-driver-580": "580.1"}, "580.1", (), ()),
        ([BASELINE | {"driver": "580.1"}, CAME], {"nvidia-open": "595.1"}, "595.1", (), ()),
        ([BASELINE, packages("p1", added={"nvidia-container-toolkit": "1"})], {}, "595.1", (), ()),
        ([CAME], {"nvidia-open": "595.1"}, "595.1", (), ()),
        ([BASELINE, state("runfile", "driver", "absent", "595.1")], {}, "595.1", ("nvidia",), ("nouveau",)),
    ],
    ids=[
        "a boot has loaded it",
        "its packages have gone already, and it was in use",
        "this uninstall has unloaded it",
        "with a person's tools beside",
        "not loaded",
        "another driver by now, of somebody else",
        "one was loaded before gpunode",
        "only the toolkit goes",
        "a tree of another machine",
        "of a runfile",
    ],
)
def test_a_driver_that_a_boot_has_loaded_is_unloaded_where_it_goes_and_none_was_before(
    journal: list[dict[str, Any]],
    installed: dict[str, str],
    driver: str,
    unload: tuple[str, ...],
    load: tuple[str, ...],
) -> None:
    more = [("driver", driver)] if driver else []
    states = {("module", "nvidia"): "loaded" if driver else "absent", ("module", "nouveau"): "absent"}
    found = back(recall_text(journal, installed=installed, states=states, more=more))
    assert (found.unload, found.load) == (unload, load)
    assert found.nothing is not bool(unload or load or found.packages.remove)
    assert ("nvidia-persistenced.service" in found.stop) is bool(unload), "what holds the module stops first"
    assert found.exchange == ()


# ---------------------------------------------------------------- scope


def test_parts_are_undone_alone_and_the_toolkit_not_under_an_engine() -> None:
    journal = [
        packages("p1", added={"driver": "1"}, part="driver"),
        packages("p2", added={"toolkit": "1"}, part="toolkit"),
        *wrote("t1", ("/etc/docker/daemon.json", "absent", OURS), part="runtime"),
    ]
    text = recall_text(
        journal,
        installed={"driver": "1", "toolkit": "1"},
        files={"/etc/docker/daemon.json": OURS},
        more=[
            ("follow", "t1", coded(b"unit docker.service\n")),
            undo_row("t1", "/etc/docker/daemon.json", None, b"{}\n"),
        ],
    )
    assert back(text, parts=("driver",)).packages.value == {"remove": ["driver"], "purge": ["driver"]}
    assert [p.fix for p in back(text, parts=("toolkit",)).problems] == [
        "undo the part runtime together with the part toolkit"
    ]
    assert back(text, parts=("toolkit", "runtime")).problems == ()


@pytest.mark.parametrize(
    "value",
    [
        {"verb": "destroy"},
        {"parts": ["drivers"]},
        {"verb": "rollback", "parts": ["driver"]},
        {"to": "r1"},
        {"all": True},
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        parse_undo_request(value)


def test_what_can_be_asked() -> None:
    assert parse_undo_request({"verb": "rollback", "to": "r1"}) == UndoRequest(verb="rollback", to="r1")
    assert parse_undo_request({"parts": ["driver"]}) == UndoRequest(parts=("driver",))


def test_an_empty_journal_has_nothing_to_undo() -> None:
    assert back(recall_text([])) == UndoPlan()
    assert undo_requests(UndoPlan()) == []


def test_undo_knows_each_kind_of_thing_that_a_script_records() -> None:
    scripts = Path(gpunode.node.__file__).parent.rglob("*.sh")
    kinds = {kind for path in scripts for kind in re.findall(r"\bprior ([a-z]+) ", path.read_text())}
    assert {"link", "module"} <= kinds <= set(KINDS)


# ---------------------------------------------------------------- MIG

SLOT = "0000:17:00.0"
CUT = [*wrote("t1", (MIG_PROGRAM, "absent", OURS)), state("mig", SLOT, "on 3g.40gb:0 3g.40gb:4", "on 1g.10gb 1g.10gb")]
BEFORE = {SLOT: "on 3g.40gb:0 3g.40gb:4"}


@pytest.mark.parametrize(
    ("now", "mig", "note"),
    [
        ("on 1g.10gb:2 1g.10gb:0", BEFORE, ""),
        ("on 1g.10gb:0", BEFORE, ""),
        ("on", BEFORE, ""),
        ("off", BEFORE, ""),
        ("on 3g.40gb:4 3g.40gb:0", {}, ""),
        (
            "on 3g.40gb:4 3g.40gb:0 waits",
            {},
            "the MIG layout of GPU 0000:17:00.0 stays on 3g.40gb:4 3g.40gb:0 waits",
        ),
        ("on 7g.80gb:0", {}, "the MIG layout of GPU 0000:17:00.0 stays on 7g.80gb:0: set since, not by gpunode"),
        (None, {}, "the MIG layout of GPU 0000:17:00.0 stays unread, and was on 3g.40gb:0 3g.40gb:4: no driver runs"),
    ],
    ids=["as cut", "half cut", "booted", "booted without the mode", "back", "waits", "somebody else's", "no driver"],
)
def test_the_instances_before_the_first_cut_come_back_unless_somebody_has_cut_since(
    now: str | None, mig: dict[str, str], note: str
) -> None:
    states = {("mig", SLOT): now} if now is not None else {}
    found = back(recall_text(CUT, files={MIG_PROGRAM: OURS}, states=states))
    assert found.mig == mig
    assert len(found.notes) == bool(note) and all(one.startswith(note) for one in found.notes)
    asks = {ask.script: ask.request for ask in undo_requests(found)}
    gpus = b"0000:17:00.0 on 3g.40gb/3g.40gb:0 3g.40gb/3g.40gb:4\n"
    assert asks.get("mig.sh") == ({"gpus": gpus, "remove": b"1\n"} if mig else None)


def test_an_undo_that_has_put_the_instances_back_needs_no_driver_any_more() -> None:
    journal = [*CUT, state("mig", SLOT, "on 1g.10gb:0", "on 3g.40gb 3g.40gb", part="uninstall")]
    assert back(recall_text(journal, files={MIG_PROGRAM: "absent"})).nothing


def test_of_compute_instances_it_is_said_which_do_not_come_back() -> None:
    journal = [state("mig", SLOT, "on 3g.40gb:0/1c.3g.40gb,2c.3g.40gb 1g.10gb:4/-", "off")]
    found = back(recall_text(journal, states={("mig", SLOT): "off"}))
    assert found.notes == (
        "the MIG layout of GPU 0000:17:00.0: 3g.40gb:0 had 1c.3g.40gb,2c.3g.40gb, 1g.10gb:4 had no compute instance: "
        "gpunode makes one compute instance of each whole instance",
    )
    [ask] = undo_requests(found)
    assert ask.request == {"gpus": b"0000:17:00.0 on 3g.40gb/3g.40gb:0 1g.10gb/1g.10gb:4\n"}


def test_of_an_older_journal_it_is_said_that_the_instances_stay() -> None:
    found = back(recall_text(CUT[:2], files={MIG_PROGRAM: OURS}))
    assert found.mig == {} and found.notes == (
        "MIG instances stay as they are until the next boot: no record has those that were there before",
    )


def test_what_mig_sh_has_not_written_is_refused() -> None:
    found = back(recall_text([state("mig", "a/e;id", "on x", "off")], states={("mig", "a/e;id"): "off"}))
    with pytest.raises(InputError, match="slot"):
        undo_requests(found)
