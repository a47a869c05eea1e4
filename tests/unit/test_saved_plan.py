"""`provision DIR`: the plan that was read is what runs, and on nothing else; or it is refused with the difference."""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from fleet_world import KEY, KINDS
from hypothesis import given
from hypothesis import strategies as st

from gpunode.cli import provision as provision_command
from gpunode.cli.main import cli
from gpunode.core.errors import InputError, StaleError
from gpunode.core.model import Plan, Service, Step
from gpunode.core.plan import manifest
from gpunode.edge import desired, detect, saved
from gpunode.edge.ansible import ahead
from gpunode.edge.ansible.runner import Event, HostRun
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet import driver, workflow
from gpunode.edge.fleet import provision as fleet
from gpunode.edge.fleet.runs import Runs

STEP = Step(role="cuda", option="files", title="Put a file there", value={"files": []})


class Site:
    """Two fresh hosts in an inventory of the user's, with nodes and Ansible simulated; a plan of them in `review`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.review, self.inventory = folder / "review", folder / "hosts.yml"
        self.kind = "fresh"
        self.hosts("gpu1", "gpu2")
        self.probed: list[str] = []
        self.played: list[str] = []
        self.playbooks: list[str] = []
        self.inventories: list[list[str]] = []
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        monkeypatch.setattr(ahead, "begin", lambda act: act)
        monkeypatch.setattr(desired.DesiredState, "_key", lambda *words: KEY)
        for module in (detect, fleet):
            monkeypatch.setattr(module, "probe", self.probe)
        monkeypatch.setattr(driver, "run_playbook", self.run_playbook)
        monkeypatch.setattr(driver, "give_back", lambda *hosts, **more: None)

    def hosts(self, *names: str) -> None:
        self.inventory.write_text(yaml.safe_dump({"all": {"hosts": {name: {} for name in names}}}))

    def probe(self, hosts: Sequence[Detected], where: Targets, **more: Any) -> list[Detected]:
        self.probed += [host.host for host in hosts]
        return [replace(h, facts=replace(KINDS[self.kind], hostname=h.host)) for h in hosts]

    def run_playbook(
        self, folder: Path, playbook: str, *, arguments: Sequence[str], on_event: Any, inventory: Any, **more: Any
    ) -> Any:
        hosts = Path(arguments[list(arguments).index("--limit") + 1][1:]).read_text().split()
        self.played += hosts
        self.playbooks.append((folder / playbook).read_text())
        self.inventories.append([*inventory])
        self.kind = "converged"
        for host in hosts:
            on_event(Event(host=host, kind="ok", task="Load"))
        return {host: HostRun(message="played") for host in hosts}

    def plan(self, *words: str) -> None:
        words = words or ("-i", str(self.inventory))
        assert self.gpunode("plan", *words, "-o", str(self.review)).return_value == 3
        self.probed.clear()

    def gpunode(self, *words: str) -> Result:
        result = CliRunner().invoke(cli, words, standalone_mode=False)
        assert result.exception is None or isinstance(result.exception, Exception)
        return result

    def provision(self, *words: str) -> Result:
        return self.gpunode("provision", str(self.review), "--yes", *words)

    def refused(self, *says: str) -> None:
        result = self.provision()
        assert result.return_value == 3, result.output
        assert all(text in result.output for text in (*says, "plan again")), result.output
        assert not self.played


HOST_VARS: dict[str, Any] = {"ansible_host": "10.0.0.1", "ansible_user": "me", "ansible_port": 22}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ansible_host": "10.0.0.9"}, "gpu1: ansible_host was 10.0.0.1, is 10.0.0.9"),
        ({"ansible_port": 2222}, "gpu1: ansible_port was 22, is 2222"),
        ({"ansible_port": None}, "gpu1: ansible_port was 22, is not set"),
        ({"ansible_user": "root"}, "gpu1: ansible_user was me, is root"),
        ({"ansible_ssh_private_key_file": "/k"}, "gpu1: ansible_ssh_private_key_file was not set, is /k"),
        ({"ansible_connection": "local"}, "gpu1: ansible_connection was ssh, is local"),
        ({"ansible_ssh_common_args": "-J gate"}, "gpu1: ansible_ssh_args was not set, is -J gate"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_host_that_is_reached_in_another_way_is_not_the_one_that_was_reviewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], says: str
) -> None:
    site = Site(tmp_path, monkeypatch)

    def write(values: dict[str, Any]) -> None:
        given = {name: value for name, value in values.items() if value is not None}
        site.inventory.write_text(yaml.safe_dump({"all": {"hosts": {"gpu1": given}}}))

    write(HOST_VARS)
    site.plan()
    write({**HOST_VARS, **change})
    site.refused(says)
    assert not site.probed
    write({**HOST_VARS, "ansible_ssh_common_args": "-o ServerAliveInterval=5", "ansible_become": True, "more": 1})
    result = site.provision()
    assert result.return_value == 0, result.output


@pytest.mark.parametrize("same_layout", [True, False])
def test_a_plan_names_its_keys_so_that_another_machine_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_layout: bool
) -> None:
    """A repository with inventory, keys and plan is cloned elsewhere, by somebody with a home folder of their own."""
    for name in ("mine", "yours"):
        (tmp_path / name / "repo/keys").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "mine"))
    site = Site(tmp_path / "mine/repo", monkeypatch)
    own, common = "keys/id" if same_layout else "elsewhere", "-o IdentityFile=~/.ssh/id -o ProxyJump=me@gate"

    def write(repository: Path) -> None:
        key, home = repository / ("keys/id"), Path.home()
        host = {"ansible_ssh_private_key_file": str(key), "ansible_ssh_common_args": common.replace("~", str(home))}
        (repository / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"gpu1": host}}}))

    write(tmp_path / "mine/repo")
    site.plan()
    written = (site.review / "manifest.json").read_text()
    assert str(tmp_path) not in written and "keys/id" in written and "~/.ssh/id" in written
    shutil.copytree(site.review, tmp_path / "yours/repo/review")
    monkeypatch.setenv("HOME", str(tmp_path / "yours"))
    there = tmp_path / "yours/repo"
    write(there)
    if not same_layout:
        (there / "hosts.yml").write_text((there / "hosts.yml").read_text().replace("keys/id", own))
    site.review, site.inventory = there / "review", there / "hosts.yml"
    if same_layout:
        result = site.provision()
        assert result.return_value == 0, result.output
    else:
        site.refused(f"gpu1: ansible_ssh_private_key_file was {there}/keys/id, is {there}/elsewhere")


def test_a_plan_of_before_with_whole_paths_is_applied_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch)
    host = {"ansible_host": "10.0.0.1", "ansible_ssh_private_key_file": str(tmp_path / "id")}
    site.inventory.write_text(yaml.safe_dump({"all": {"hosts": {"gpu1": host}}}))
    site.plan()
    path = site.review / "manifest.json"
    data = json.loads(path.read_text())
    data["connections"]["gpu1"]["ansible_ssh_private_key_file"] = str(tmp_path / "id")
    path.write_text(json.dumps(data))
    result = site.provision()
    assert result.return_value == 0, result.output


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    with pytest.MonkeyPatch.context() as patched:
        Site(folder, patched).plan()
    return folder


@pytest.fixture
def site(planned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    shutil.copytree(planned, tmp_path, dirs_exist_ok=True)
    return Site(tmp_path, monkeypatch)


def test_a_plan_that_nothing_has_happened_to_runs_with_the_playbook_that_was_reviewed(site: Site) -> None:
    result = site.provision()
    assert result.return_value == 0, result.output
    assert site.played == ["gpu1", "gpu2"]
    assert site.playbooks == [(site.review / "playbook.yml").read_text()]


def test_a_host_with_nothing_to_do_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch)
    site.kind = "converged"
    shown = site.gpunode("provision", "-i", str(site.inventory), "--yes").output
    named = [line for line in shown.splitlines() if "gpu1" in line and "nothing to do" in line]
    assert len(named) == 1 and named[0].startswith("gpu1: ok: nothing to do"), shown
    assert "gpu1, gpu2: nothing to do" in site.gpunode("plan", "-i", str(site.inventory)).output


def test_the_folder_is_read_once_so_what_changes_while_the_question_waits_does_not_count(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tamper(hosts: Any) -> None:
        (site.review / "inventory.yml").write_text("all: {hosts: {gpu1: {ansible_connection: local}}}")

    reviewed = (site.review / "inventory.yml").read_text()
    monkeypatch.setattr(provision_command, "ask", tamper)
    assert site.gpunode("provision", str(site.review)).return_value == 0
    [[own, copied]] = site.inventories
    assert Path(own) == site.inventory and Path(copied).read_text() == reviewed


def test_hosts_of_the_command_line_are_reached_by_the_copy_of_the_reviewed_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch)
    monkeypatch.setattr(detect, "detect", lambda where, **more: site.probe(detect.find_hosts(where), where))
    monkeypatch.setattr(workflow, "detect", lambda where, **more: site.probe(detect.find_hosts(where), where))
    site.plan("ops@gpu1:2222", "gpu2")
    assert site.provision().return_value == 0
    [inventories] = site.inventories
    assert {Path(i).parent.parent.name for i in inventories} == {"runs"}
    hosts = yaml.safe_load(Path(inventories[-1]).read_text())["all"]["hosts"]
    assert hosts["gpu1"]["ansible_port"] == 2222 and set(hosts) == {"gpu1", "gpu2"}
    again = Runs().get("last").request["where"]
    assert again["inventory"] == [inventories[0]] and again["hosts"] == []


# ---------------------------------------------------------------- the folder


def edit(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(change((folder / name).read_text())) and None


EDITS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a step is added to the playbook": (
        edit("playbook.yml", lambda text: f"{text}    - name: mine\n      my.own.task:\n"), "playbook.yml: was edited"),
    "a step is taken out of the playbook": (
        edit("playbook.yml", lambda text: text[: text.rindex("    - name:")]), "playbook.yml: was edited"),
    "another connection in the inventory": (
        edit("inventory.yml", lambda text: text.replace("gpu1:", "gpu1:\n      ansible_connection: local")),
        "inventory.yml: was edited"),
    "another spec in the plan": (
        edit("plan.json", lambda text: text.replace('"spec": {', '"spec": {"reboot": "always"')), "plan.json: was"),
    "another ansible.cfg": (edit("ansible.cfg", lambda text: text.replace("True", "False")), "ansible.cfg: was edited"),
    "what was found": (edit("found.jsonl", lambda text: ""), "found.jsonl: was edited"),
    "a file is gone": (lambda folder: (folder / "playbook.yml").unlink(), "playbook.yml: is missing"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "has no manifest.json"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "says"), EDITS.values(), ids=EDITS.keys())
def test_a_folder_that_was_edited_is_refused_with_the_file(
    change: Callable[[Path], None], says: str, site: Site
) -> None:
    change(site.review)
    site.refused(says)
    assert not site.probed, "before any host is asked"


PLANTED = ("group_vars/all.yml", "host_vars/gpu1.yml", "filter_plugins/x.py", "callback_plugins/x.py", "roles/x/y.yml")


@pytest.mark.parametrize("name", [*PLANTED, "other.yml", "library/x.py", ".ansible.cfg"])
def test_what_lies_in_the_folder_unreviewed_is_refused_before_anything_reads_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, ran = Site(tmp_path, monkeypatch), tmp_path / "ran"
    monkeypatch.setattr(workflow, "detect", lambda where, **more: site.probe(detect.find_hosts(where), where))
    site.plan("gpu1")
    planted = site.review / name
    planted.parent.mkdir(exist_ok=True, parents=True)
    planted.write_text("ansible_user: \"{{ lookup('pipe', 'touch " + str(ran) + "; echo root') }}\"\n")
    site.refused(f"{name.split('/')[0]}: was not there when the plan was made")
    assert not ran.exists() and not site.probed


def test_hosts_of_the_command_line_are_found_in_the_text_that_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What appears next to the inventory after the folder was read is not read with it."""
    site, ran = Site(tmp_path, monkeypatch), tmp_path / "ran"
    monkeypatch.setattr(workflow, "detect", lambda where, **more: site.probe(detect.find_hosts(where), where))
    site.plan("gpu1")
    plan = saved.load_plan(site.review)
    (site.review / "group_vars").mkdir()
    (site.review / "group_vars/all.yml").write_text(
        "ansible_user: \"{{ lookup('pipe', 'touch " + str(ran) + "; echo root') }}\"\n"
    )
    assert [host.host for host in plan.find_hosts(plan.reach(Targets()))] == ["gpu1"]
    assert not ran.exists()


def test_a_repository_of_plans_may_have_its_own_files(site: Site) -> None:
    (site.review / "README.md").write_text("for the meeting\n")
    (site.review / ".git").mkdir()
    assert site.provision().return_value == 0


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"format": 2}', "[" * 5000])
@pytest.mark.parametrize("name", ["plan.json", "manifest.json"])
def test_a_plan_that_cannot_be_read_is_refused(text: str, name: str, site: Site) -> None:
    (site.review / name).write_text(text)
    with pytest.raises((InputError, StaleError)):
        saved.load_plan(site.review)


def test_a_plan_without_a_format_says_so_and_one_whose_inventory_stayed_behind_names_it(site: Site) -> None:
    (site.review.parent / "site").mkdir()
    moved = site.review.rename(site.review.parent / "site/review")
    done = site.gpunode("provision", str(moved), "--yes")
    assert done.return_value == 2 and "site/hosts.yml is not there: the plan in" in done.output, done.output
    (moved / "plan.json").write_text("{}")
    done = site.gpunode("provision", str(moved), "--yes")
    assert done.return_value == 2 and "plan.json: format None" in done.output, done.output


@pytest.mark.parametrize(("inside", "good"), [((), True), (("README.md", ".git"), True), (("gpunode.yml",), False)])
def test_a_plan_is_written_to_a_folder_of_its_own(site: Site, inside: tuple[str, ...], good: bool) -> None:
    folder = site.review.parent / "other"
    folder.mkdir()
    for name in inside:
        (folder / name).touch()
    done = site.gpunode("plan", "-i", str(site.inventory), "-o", str(folder))
    assert done.return_value == (3 if good else 2) and ("this folder has other files" in done.output) != good
    assert not good or "inventory.yml, manifest.json, plan.json, playbook.yml\n" in done.output, done.output


def test_what_makes_provision_refuse_a_plan_is_not_beside_the_plan_that_takes_its_place(site: Site) -> None:
    again = ("plan", "-i", str(site.inventory), "-o", str(site.review))
    assert site.gpunode(*again).return_value == 3
    (site.review / "group_vars").mkdir()
    done = site.gpunode(*again)
    assert done.return_value == 2 and "has other files: group_vars" in done.output, done.output


# ---------------------------------------------------------------- the hosts


def test_of_a_plan_with_a_limit_the_other_hosts_are_neither_probed_nor_planned_nor_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch)
    site.plan("-i", str(site.inventory), "--limit", "gpu1")
    assert site.provision().return_value == 0
    assert set(site.probed) == {"gpu1"} and site.played == ["gpu1"]
    assert [row.host for row in Runs().hosts(Runs().get("last").name)] == ["gpu1"]
    assert Runs().get("last").request["where"]["limit"] == "gpu1", "and `runs resume` means the same"


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (["gpu1", "gpu2", "gpu3"], "added to the inventory after the plan was made: gpu3"),
        (["gpu2"], "not in the inventory any more: gpu1"),
    ],
    ids=["added", "left out"],
)
def test_another_inventory_is_refused_with_the_hosts(now: list[str], says: str, site: Site) -> None:
    site.hosts(*now)
    site.refused(says)
    assert not site.probed


def test_hosts_in_another_order_are_the_same_hosts(site: Site) -> None:
    site.hosts("gpu2", "gpu1")
    assert site.provision().return_value == 0 and site.played == ["gpu1", "gpu2"]


def test_a_host_that_could_not_be_planned_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch)
    whole = workflow.detect

    def detect_one(where: Targets, **more: Any) -> list[Detected]:
        first, second = whole(where, **more)
        return [first, replace(second, facts=None, error=InputError("gpu2: no route"))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workflow, "detect", detect_one)
        result = site.gpunode("plan", "-i", str(site.inventory), "-o", str(site.review))
    assert result.return_value, result.output
    site.probed.clear()
    assert site.provision().return_value == 0
    assert set(site.probed) == {"gpu1"} and site.played == ["gpu1"]


@pytest.mark.parametrize("words", [("--limit", "gpu1"), ("--lock-file", "gpunode.lock")])
def test_a_part_of_a_plan_is_not_run(words: tuple[str, ...], site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site.review.parent)
    Path("gpunode.lock").write_text("format = 1\n")
    result = site.provision(*words)
    assert "is run as a whole" in str(result.exception or result.output) and not site.played


# ---------------------------------------------------------------- the steps


def planning(change: Callable[[tuple[Step, ...]], tuple[Step, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on gpunode plans other steps of the same facts, as another version or other knowledge may."""
    make_plan = desired.make_plan

    def other(*words: Any, **more: Any) -> Plan:
        plan = make_plan(*words, **more)
        return replace(plan, steps=change(plan.steps))

    monkeypatch.setattr(desired, "make_plan", other)


def other_value(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(replace(s, value={"other": 1}) if s.id == "driver.packages" else s for s in steps)


STEPS: dict[str, tuple[Callable[[tuple[Step, ...]], tuple[Step, ...]], str]] = {
    "a step more": (lambda steps: (*steps, STEP), "step added: Put a file there (cuda.files)"),
    "a step less": (lambda steps: tuple(s for s in steps if s.id != "driver.packages"), "step removed: Install"),
    "other packages": (other_value, "step changed: Install the NVIDIA driver"),
    "another order": (lambda steps: (steps[0], *reversed(steps[1:])), "the steps have another order"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "says"), STEPS.values(), ids=STEPS.keys())
def test_a_gpunode_that_plans_other_steps_is_refused_with_the_step_and_its_hosts(
    change: Callable[[tuple[Step, ...]], tuple[Step, ...]], says: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    planning(change, monkeypatch)
    monkeypatch.setattr(saved, "__version__", "9.9")
    site.refused(f"gpu1, gpu2: {says}", "made the plan, this is 9.9")


def test_a_gpunode_that_writes_other_plays_for_the_same_steps_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = saved.make_playbook
    monkeypatch.setattr(saved, "make_playbook", lambda plans: [{**play, "strategy": "linear"} for play in make(plans)])
    site.refused("playbook.yml: this gpunode would run other plays")


def test_another_version_that_plans_the_same_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "__version__", "9.9")
    assert site.provision().return_value == 0


@pytest.mark.parametrize("known", [True, False])
def test_a_node_whose_facts_changed_is_refused_with_the_difference(
    site: Site, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """A plan of an older gpunode has no states: that one cannot say it."""
    found, hashes = site.review / "found.jsonl", site.review / "manifest.json"
    if not known:
        text = "".join(line for line in found.read_text().splitlines(keepends=True) if "facts_hash" not in line)
        old, new = manifest.hash_of(found.read_text()), manifest.hash_of(text)
        hashes.write_text(hashes.read_text().replace(old, new))
        found.write_text(text)
    services = {"nvidia-persistenced": Service(name="nvidia-persistenced", active="failed")}
    monkeypatch.setitem(KINDS, "fresh", replace(KINDS["fresh"], services=services))
    site.refused("services nvidia-persistenced: none → failed" if known else "packages, kernels, GPUs or services")


def test_a_node_that_changed_is_refused_as_before(site: Site) -> None:
    site.kind = "drifted"
    site.refused("gpu1: changed since the plan was made")


def test_a_locked_plan_is_planned_with_its_lock_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = site.review.parent / "gpunode.lock"
    assert site.gpunode("lock", "-i", str(site.inventory), "-o", str(lock)).return_value == 0
    result = site.gpunode("plan", "-i", str(site.inventory), "--lock-file", str(lock), "-o", str(site.review))
    assert result.return_value == 3
    text = lock.read_text()
    lock.unlink()
    assert saved.load_plan(site.review).manifest["lock"] == text
    assert site.provision().return_value == 0 and site.played


PLANS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(0, 2)), max_size=6, unique_by=lambda step: step[0]
).map(lambda rows: tuple(Step(role="r", option=o, title=f"Do {o}", value={"v": v}) for o, v in rows))


@given(old=PLANS, new=PLANS)
def test_two_plans_differ_exactly_when_their_steps_do(old: tuple[Step, ...], new: tuple[Step, ...]) -> None:
    recorded = manifest.make_manifest([Plan(host="h", steps=old)], [], {}, gpunode="1", limit="", lock=None)
    recorded = json.loads(json.dumps(recorded))
    assert bool(manifest.changed_steps(recorded, [Plan(host="h", steps=new)])) == (old != new)
    words = [replace(step, diff="+ other", disruptive="restarts", title=step.title) for step in old]
    assert not manifest.changed_steps(recorded, [Plan(host="h", steps=tuple(words))])


@pytest.mark.slow
def test_folder_and_inventory_can_be_moved_together(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a clone elsewhere: plain Ansible finds the inventory from any place, and gpunode does."""
    site.plan()
    config = configparser.ConfigParser()
    config.read(site.review / "ansible.cfg")
    assert config["defaults"]["inventory"] == "../hosts.yml,inventory.yml"
    elsewhere = tmp_path / "clone"
    elsewhere.mkdir()
    shutil.move(site.review, elsewhere / "review")
    shutil.move(site.inventory, elsewhere / "hosts.yml")
    monkeypatch.setattr(site, "review", elsewhere / "review")
    assert site.provision().return_value == 0
    command = ["ansible-playbook", "--list-hosts", "playbook.yml"]
    done = subprocess.run(command, cwd=elsewhere / "review", capture_output=True, text=True, check=False)
    assert "gpu1" in done.stdout and "gpu2" in done.stdout, done.stdout + done.stderr
