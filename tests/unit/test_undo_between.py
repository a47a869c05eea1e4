"""What somebody wrote between two runs is theirs: it is in the file after an undo, or in a copy that a note names."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from journal_text import THEIRS, back, line, packages, recall_text, state, wrote
from undo_model import Fake, Real, take_back

from gpunode.core.edits import RuntimeRequest, configure_runtime
from gpunode.core.edits.undo import record
from gpunode.core.items.file_history import Change, replay_file
from gpunode.core.remote import signature
from gpunode.core.undo.journal import after_run, parse_snapshot, standing
from gpunode.core.undo.plan import differences, plan_undo
from gpunode.core.undo.scope import scope_of
from gpunode.core.undo.summary import summary

DAEMON, CONFIG = "/etc/docker/daemon.json", "/etc/containerd/config.toml"
WHO = {"run": "r1", "part": "runtime"}


def configure(node: Fake, request: RuntimeRequest, unit: str) -> None:
    path = request.config
    data = node.read(path)
    edit = configure_runtime({} if data is None else {path: data}, request)
    node.commit(dict(edit.changes), undo=edit.undo, unit=unit, who=WHO)


def docker(default: str) -> RuntimeRequest:
    return RuntimeRequest(runtime="docker", version="28.5.2", config=DAEMON, default_runtime=default)  # type: ignore[arg-type]


def test_settings_that_an_administrator_made_between_two_runs_stay_in_daemon_json() -> None:
    node = Fake()
    configure(node, docker("keep"), "docker.service")
    theirs = b'"registry-mirrors": ["https://mirror.example"], "log-opts": {"max-size": "10m"}, '
    node.person_writes(DAEMON, (node.read(DAEMON) or b"").replace(b"{", b"{" + theirs, 1))
    configure(node, docker("nvidia"), "docker.service")
    done = take_back(node, "uninstall")
    assert json.loads(node.read(DAEMON) or b"") == {
        "registry-mirrors": ["https://mirror.example"],
        "log-opts": {"max-size": "10m"},
    }
    assert done.plan.notes == (f"{DAEMON}: changed since, not by gpunode; their lines stay",)
    assert done.kept and node.kept()


def test_what_a_partial_undo_has_restored_was_nobody_elses_change() -> None:
    """Its record stays in the journal, and so do those before it."""
    before = {CONFIG: b'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "pause"\n'}
    node = Fake(files=dict(before), engine="1.7.34")
    request = RuntimeRequest(runtime="containerd", version="1.7.34", config=CONFIG, default_runtime="keep")
    for _again in range(3):
        configure(node, request, "containerd.service")
        assert take_back(node, "uninstall", parts=("runtime",)).notes == ()
        assert node.files == before
    node = Fake()
    for n in (1, 2):
        node.commit(
            {DAEMON: b"g%d\n" % n}, undo={DAEMON: record(node.read(DAEMON), b"g%d\n" % n)}, who={**WHO, "run": f"r{n}"}
        )
    assert take_back(node, "rollback").notes == () and node.read(DAEMON) == b"g1\n"
    assert take_back(node, "uninstall", parts=("runtime",)).notes == () and node.files == {}


def test_what_an_uninstall_of_parts_took_is_not_brought_again_by_a_rollback() -> None:
    """Of units and settings an undo writes down nothing."""
    node = Fake()
    node.commit({CONFIG: b"g1\n"}, who=WHO)
    node.line("run", id=node.new_id("run"), run="r1", controller="c1")
    take_back(node, "uninstall", run="r2", parts=("runtime",))
    node.line("run", id=node.new_id("run"), run="r2", controller="c1")
    recall = node.snapshot()
    [problem] = plan_undo(recall, scope_of(recall, verb="rollback")).problems
    assert problem.what.startswith("run r2 uninstalled some parts") and "gpunode provision" in problem.fix
    node.commit({DAEMON: b"{}\n"}, who={**WHO, "run": "r3"})
    node.line("run", id=node.new_id("run"), run="r3", controller="c1")
    assert take_back(node, "rollback", run="r4").notes == () and node.files == {}
    assert take_back(node, "uninstall").notes == ()


def test_a_mark_that_a_person_set_after_a_rollback_stays() -> None:
    node = Fake(packages={"a": "1"})
    node.set_packages({"a": None}, **WHO)
    take_back(node, "rollback")
    node.manual.add("a")
    take_back(node, "uninstall")
    assert (node.packages, node.manual) == ({"a": "1"}, {"a"})


@pytest.mark.parametrize(
    ("was", "reloaded"),
    [
        (None, False),
        (b'{\n  "debug": true\n}\n', False),  # runtimes go as a key
        (b'{"default-runtime": "runc", "runtimes": {"crun": {"path": "/usr/bin/crun"}}}\n', True),
        (b'{"runtimes": {"crun": {"path": "/usr/bin/crun"}}}\n', False),  # the default
    ],
)
def test_docker_is_restarted_where_a_reload_leaves_in_force_what_goes(was: bytes | None, reloaded: bool) -> None:
    node = Fake(files={} if was is None else {DAEMON: was}, verb="reload")
    configure(node, docker("nvidia"), "docker.service")
    recall = node.snapshot()
    [engine] = plan_undo(recall, scope_of(recall, verb="uninstall")).engines
    assert engine.follow and b"\nverb %s\n" % (b"reload" if reloaded else b"restart") in engine.follow.after


def test_a_file_of_a_person_comes_back_where_a_package_has_come_to_write_one() -> None:
    node = Fake(scripts={"a": CONFIG})
    node.person_writes(CONFIG, b"mine\n")
    node.commit({CONFIG: None}, who=WHO)
    node.set_packages({"a": "1"}, **WHO)
    assert node.read(CONFIG) == b"made by a script\n"
    assert take_back(node, "uninstall").notes == ()
    assert node.read(CONFIG) == b"mine\n"


def test_what_gpunode_wrote_over_is_named_though_somebody_has_removed_the_file_since() -> None:
    node = Fake()
    node.commit({CONFIG: b"g1\n"}, who=WHO)
    node.person_writes(CONFIG, b"g1\nmine\n")
    node.commit({CONFIG: b"g2\n"}, who=WHO)
    node.person_writes(CONFIG, None)
    [note] = take_back(node, "uninstall").notes
    assert note.startswith(f"{CONFIG}: what others wrote there, and is not there now, is in ")
    assert b"g1\nmine\n" in node.kept()


def test_a_difference_is_named_though_a_note_speaks_of_what_begins_with_its_name() -> None:
    journal = [packages("p", added={"nvidia-open": "1", "nvidia-open-580": "1"})]
    recall = parse_snapshot(recall_text(journal, installed={"nvidia-open": "1", "nvidia-open-580": "1"}))
    scope = scope_of(recall, verb="uninstall")
    assert differences(recall, scope, {"nvidia-open-580"}) == ["nvidia-open is 1, and was not there"]


def test_a_file_that_has_nothing_of_gpunode_any_more_is_not_removed() -> None:
    node = Fake()
    configure(node, docker("keep"), "docker.service")
    theirs = b'{\n  "log-opts": {"max-size": "10m"}\n}\n'
    node.person_writes(DAEMON, theirs)
    configure(node, docker("nvidia"), "docker.service")
    node.person_writes(DAEMON, theirs)
    take_back(node, "uninstall")
    assert node.read(DAEMON) == theirs


def test_a_registry_that_an_administrator_added_between_two_runs_stays_in_containerd() -> None:
    before = b'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "pause"\n'
    theirs = b'\n[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/containerd/certs.d"\n'
    node = Fake(files={CONFIG: before})
    request = RuntimeRequest(runtime="containerd", version="1.7.34", config=CONFIG, default_runtime="keep")
    configure(node, request, "containerd.service")
    first = node.read(CONFIG) or b""
    node.person_writes(CONFIG, first.replace(b"/usr/bin/nvidia", b"/opt/nvidia") + theirs)
    configure(node, request, "containerd.service")
    done = take_back(node, "uninstall")
    left = tomllib.loads((node.read(CONFIG) or b"").decode())["plugins"]["io.containerd.grpc.v1.cri"]
    assert left["registry"] == {"config_path": "/etc/containerd/certs.d"}
    # what an administrator has set since is theirs, though gpunode had set it once more; without runc next to it
    # containerd 1.x does not load its CRI plugin
    assert left["containerd"]["runtimes"].keys() == {"nvidia", "runc"}
    assert left["containerd"]["runtimes"]["nvidia"]["options"]["BinaryName"].startswith("/opt/nvidia")
    assert [note for note in done.notes if "runtimes.nvidia is {" in note] and done.kept


def test_lines_beside_a_file_that_gpunode_wrote_as_a_whole_stay() -> None:
    path = "/etc/modprobe.d/gpunode.conf"
    node = Fake()
    node.commit({path: b"blacklist nouveau\n"}, who=WHO)
    node.person_writes(path, b"blacklist nouveau\noptions nvidia NVreg_X=1\n")
    done = take_back(node, "uninstall")
    assert node.read(path) == b"options nvidia NVreg_X=1\n"
    assert done.notes == (f"{path}: changed since, not by gpunode; their lines stay",)


def test_a_version_that_gpunode_wrote_over_is_in_a_copy_that_is_named_and_kept() -> None:
    path = "/etc/modprobe.d/gpunode.conf"
    node = Fake()
    node.commit({path: b"a\nb\n"}, who=WHO)
    node.person_writes(path, b"a\nmine\nb\n")
    node.commit({path: b"a\nc\n"}, who=WHO)
    done = take_back(node, "uninstall")
    assert node.read(path) is None
    [note] = done.notes
    assert "files-000002/0.old" in note and b"a\nmine\nb\n" in node.kept()


def test_a_value_that_somebody_set_between_two_runs_comes_back() -> None:
    key = ("sysctl", "net.ipv4.ip_forward")
    journal = [state(*key, "0", "1"), state(*key, "5", "1")]
    assert back(recall_text(journal, states={key: "1"})).settings == {"sysctl": {key[1]: "5"}}


def test_a_version_that_somebody_installed_between_two_runs_comes_back() -> None:
    journal = [packages("p1", changed={"a": ("1", "2")}), packages("p2", changed={"a": ("3", "4")})]
    found = back(recall_text(journal, installed={"a": "4"}, available={"a": ["1", "3"]}))
    assert [item["version"] for item in found.packages.install] == ["3"]


def test_configuration_that_somebody_and_gpunode_have_edited_is_not_purged_with_its_package() -> None:
    path = "/etc/a.conf"
    journal = [packages("p1", added={"a": "1"}), *wrote("t1", (path, "1" * 64, "2" * 64))]
    text = recall_text(journal, files={path: THEIRS}, installed={"a": "1"}, more=[("edited", "a", path)])
    assert back(text).packages.value == {"remove": ["a"], "keep": [path]}


@pytest.mark.slow
def test_copies_that_an_uninstall_has_left_are_left_by_the_next_one(tmp_path: Path) -> None:
    node = Real(tmp_path / "node", keep=2)
    path = f"{node.root}/etc/whole.conf"
    node.commit({path: b"a\nb\n"}, who=WHO)
    node.person_writes(path, b"a\nmine\nb\n")
    for n in range(6):  # more transactions than copies are kept of
        node.commit({path: b"a\n%d\n" % n}, who=WHO)
    take_back(node, "uninstall")
    assert b"a\nmine\nb\n" in node.kept()
    node.commit({path: b"a\n"}, who=WHO)
    take_back(node, "uninstall")
    assert b"a\nmine\nb\n" in node.kept()


@pytest.mark.slow
def test_scripts_take_a_persons_lines_out_of_an_edit_of_two_runs(tmp_path: Path) -> None:
    node = Real(tmp_path / "node")
    path = f"{node.root}/etc/edited.conf"
    node.person_writes(path, b"1\n2\n3\n4\n5\n6\n")
    for old, new in ((b"2\n", b"2\ngpunode a\n"), (b"5\n", b"5\ngpunode b\n")):
        was = node.read(path) or b""
        now = was.replace(old, new)
        node.commit({path: now}, undo={path: record(was, now)}, who=WHO)
        node.person_writes(path, now.replace(b"6\n", b"6\nmine\n"))
    done = take_back(node, "uninstall")
    assert node.read(path) == b"1\n2\n3\n4\n5\n6\nmine\nmine\n"
    assert done.notes == (f"{path}: changed since, not by gpunode; their lines stay",)


# ---------------------------------------------------------------- runs

C = {"controller": "c1"}
PIECES = [
    packages("p1", added={"nvidia-open": "580.178.04-1"}, run="r1", **C),
    line("run", id="e1", run="r1"),
    packages("p2", phase="failed", changed={"nvidia-open": ("580.178.04-1", "595.91.07-1")}, run="r2", **C),
    state("module", "nvidia", "loaded", "absent", run="r3", **C),
    state("module", "nvidia", "absent", "loaded", run="r4", **C),
    line("run", id="e2", run="r4"),
]


def test_a_run_that_was_cut_off_and_those_that_went_on_are_one_run() -> None:
    records = parse_snapshot(recall_text(PIECES)).records
    first, second = standing(records)
    assert (first.name, second.names, second.name, second.state) == ("r1", ("r2", "r3", "r4"), "r4", "done")
    assert after_run(records, None) == (first.last + 1, "r1")
    assert {after_run(records, name)[1] for name in ("r2", "r3", "r4")} == {"r4"}, "no half of it is gone back to"
    assert summary(records[second.first : second.last + 1]) == ("driver 580.178.04 → 595.91.07, 1 package, 1 setting")


@pytest.mark.parametrize(
    ("lines", "state"),
    [(PIECES[:3], "interrupted"), ([*PIECES[:3], line("run", id="e", phase="failed", run="r2")], "failed")],
)
def test_a_run_without_a_good_end_is_named_so(lines: list[dict[str, object]], state: str) -> None:
    assert standing(parse_snapshot(recall_text(lines)).records)[-1].state == state


def test_playbooks_that_say_no_end_are_runs_of_their_own() -> None:
    lines = [packages("p1", added={"a": "1"}, run="r1"), packages("p2", added={"b": "1"}, run="r2")]
    assert [run.name for run in standing(parse_snapshot(recall_text(lines)).records)] == ["r1", "r2"]


def test_the_beginning_of_a_name_will_do() -> None:
    names = ("20261124T184019Z-aa0000", "20261124T184624Z-07e559")
    records = parse_snapshot(recall_text([packages(f"p{n}", added={"a": "1"}, run=n) for n in names])).records
    assert after_run(records, "20261124T1840")[1] == names[0]
    with pytest.raises(Exception, match="several runs of this node begin with '20261124T18'"):
        after_run(records, "20261124T18")


def test_what_a_later_run_finishes_belongs_to_the_run_that_began_with_it() -> None:
    lines = [*wrote("t1", ("/etc/x", "absent", "2" * 64), run="r1")]
    lines[1] |= {"run": "r2", "part": "rollback"}
    [run] = standing(parse_snapshot(recall_text(lines)).records)
    assert run.name == "r1"


@pytest.mark.parametrize(
    ("journal", "ended", "written"),
    [
        ('{"v":1,"id":"p1","op":"packages","phase":"done","run":"r1"}', "done", "done"),
        ('{"v":1,"id":"p1","op":"packages","phase":"done","run":"r1"}', "failed", "failed"),
        ('{"v":1,"id":"p1","op":"packages","phase":"done","run":"r1"}', "", ""),
        ('{"v":1,"id":"p1","op":"packages","phase":"done","run":"r0"}', "done", ""),
        ('{"v":1,"id":"u1","op":"uninstall","phase":"done","run":"r1"}', "done", ""),
    ],
    ids=["done", "failed", "cut off", "changed nothing here", "after an uninstall a baseline comes"],
)
def test_the_end_of_a_run_is_in_the_journal_of_a_node_that_it_changed(
    journal: str, ended: str, written: str, tmp_path: Path
) -> None:
    node = Real(tmp_path / "node")
    node.state.mkdir()
    (node.state / "journal.jsonl").write_text(f"{journal}\n")
    node.run("release.sh", signature(run="r1", controller="c1", generation="7", ended=ended))
    lines = [json.loads(text) for text in (node.state / "journal.jsonl").read_text().splitlines()]
    assert [one["phase"] for one in lines[1:]] == ([written] if written else [])
    assert all((one["op"], one["run"], one["controller"]) == ("run", "r1", "c1") for one in lines[1:])


def test_a_file_that_scripts_of_packages_alone_have_changed_stays_as_it_is() -> None:
    """On Ubuntu a switch of branch that was cut off left only such records of a file."""
    changes = [Change(id="1", before="a", after="b", mine=False, edited=False)]
    found = replay_file(changes, "c", {})
    assert (found.wanted.hash, found.wanted.exact, dict(found.theirs)) == ("c", True, {})


@pytest.mark.parametrize("removed_again", [False, True])
def test_a_dependency_that_gpunode_removed_and_installed_again_is_one_afterwards(removed_again: bool) -> None:
    node = Fake(packages={"a": "1"})
    node.set_packages({"a": None}, **WHO)
    node.set_packages({"a": "2"}, **WHO)
    assert node.manual == {"a"}
    if removed_again:
        node.set_packages({"a": None}, **WHO)
    take_back(node, "uninstall")
    assert (node.packages, node.manual) == ({"a": "1"}, set())


def test_what_an_uninstall_leaves_of_a_file_that_an_edit_made_is_left_at_the_second_look() -> None:
    node = Fake()
    path = "/etc/made.conf"
    first, theirs, second = b"g1\n", b"g1\np1\n", b"g1\ng2\ng3\np1\n"
    node.commit({path: first}, undo={path: record(None, first)}, who={"run": "r1", "part": "runtime"})
    node.person_writes(path, theirs)
    node.commit({path: second}, undo={path: record(theirs, second)}, who={"run": "r2", "part": "runtime"})
    done = take_back(node, "uninstall")
    assert node.read(path) == theirs
    assert "lines that gpunode wrote are no longer in it" in done.notes[0]


def test_a_file_of_a_script_goes_where_gpunode_had_one_before_it() -> None:
    """The earlier run, which is undone already, wrote other bytes there."""
    node = Fake(scripts={"a": CONFIG})
    node.commit({CONFIG: b"g1\n"}, who=WHO)
    take_back(node, "rollback", to="")
    node.run_installer("", "580.1", run="r2", part="driver")
    node.set_packages({"a": "0"}, run="r3", part="driver")
    assert node.read(CONFIG) == b"made by a script\n"
    assert take_back(node, "rollback", run="r4").notes == ()
    assert node.read(CONFIG) is None


def test_what_a_package_that_comes_back_brings_again_goes_again() -> None:
    """gpunode had removed it, and later the package: the file is not there after a rollback to the time between."""
    node = Fake(scripts={"a": CONFIG})
    node.set_packages({"a": "0"}, run="r1", part="driver")
    node.commit({CONFIG: None}, who={"run": "r2", "part": "driver"})
    node.set_packages({"a": None}, run="r3", part="driver")
    assert take_back(node, "rollback", run="r4").notes == ()
    assert (node.read(CONFIG), node.packages) == (None, {"a": "0"})


def test_what_somebody_wrote_into_a_file_of_a_script_comes_back_where_gpunode_removed_it() -> None:
    node = Fake(scripts={"a": CONFIG})
    node.set_packages({"a": "0"}, **WHO)
    node.person_writes(CONFIG, b"mine\nmade by a script\n")
    node.commit({CONFIG: None}, who=WHO)
    done = take_back(node, "uninstall")
    assert node.read(CONFIG) == b"mine\nmade by a script\n"
    assert [note for note in done.notes if CONFIG in note]


def test_a_rollback_leaves_at_the_second_look_what_it_has_left_at_the_first() -> None:
    node = Fake()
    first, theirs, second = b"g1\n", b"p1\ng1\n", b"g2\np1\ng1\n"
    node.set_packages({"a": "0"}, run="r1", part="driver")
    node.commit({CONFIG: first}, undo={CONFIG: record(None, first)}, who={"run": "r2", "part": "runtime"})
    node.person_writes(CONFIG, theirs)
    node.commit({CONFIG: second}, undo={CONFIG: record(theirs, second)}, who={"run": "r3", "part": "runtime"})
    done = take_back(node, "rollback", to="r1", run="r4")
    assert b"p1\n" in (node.read(CONFIG) or b"")
    assert "lines that gpunode wrote are no longer in it" in done.notes[0]


def test_a_specification_that_its_service_has_written_again_is_nobody_elses() -> None:
    path = "/var/run/cdi/nvidia.yaml"
    node = Fake()
    node.person_writes(path, b"of the service\n")
    node.set_state("cdi", path, "present", **WHO)
    node.commit({path: b"of gpunode\n"}, who=WHO)
    node.person_writes(path, b"of the service again\n")
    assert take_back(node, "uninstall").notes == ()
    assert node.states["cdi", path] == "absent"


LINKED = b"a = 1\nb = 2\n", b"a = 1\nb = 3\n"  # before and after an edit


def linked(folder: Path) -> tuple[Real, str, str]:
    """A node whose configuration is a link, edited by gpunode; the link, and the file behind it."""
    node = Real(folder / "node")
    target, path = (f"{node.root}/{name}" for name in ("srv/c.toml", "etc/config.toml"))
    node.person_writes(target, LINKED[0])
    Path(path).symlink_to(target)
    node.commit({path: LINKED[1]}, undo={path: record(LINKED[0], LINKED[1])}, who=WHO)
    return node, path, target


def test_a_link_that_has_become_a_file_since_is_undone_where_it_is_in_force_and_where_it_led(tmp_path: Path) -> None:
    """`sed -i` on a link writes a file in its place."""
    node, path, target = linked(tmp_path)
    Path(path).unlink()
    node.person_writes(path, LINKED[1] + b"# mine\n")
    done = take_back(node, "uninstall")
    assert (node.read(path), node.read(target)) == (LINKED[0] + b"# mine\n", LINKED[0])
    assert [note for note in done.notes if "it was a link to" in note]


def test_a_link_before_gpunode_is_no_change_of_a_person(tmp_path: Path) -> None:
    node, path, target = linked(tmp_path)
    node.person_writes(target, b"# mine\n" + LINKED[1])
    done = take_back(node, "uninstall")
    assert Path(path).is_symlink() and node.read(target) == b"# mine\n" + LINKED[0]
    assert [note for note in done.notes if "stays as it is" in note] == []


def test_a_link_that_a_person_made_of_a_new_file_does_not_lead_nowhere(tmp_path: Path) -> None:
    node = Real(tmp_path / "node")
    path, target = f"{node.root}/etc/daemon.json", f"{node.root}/srv/daemon.json"
    node.commit({path: b"{}\n"}, undo={path: record(None, b"{}\n")}, who=WHO)
    Path(target).parent.mkdir()
    Path(path).rename(target)
    Path(path).symlink_to(target)
    take_back(node, "uninstall")
    assert not Path(path).is_symlink() and node.read(target) is None
