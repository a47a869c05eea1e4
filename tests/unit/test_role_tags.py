"""A playbook of somebody else's that holds the role gpunode.node.node, run with tags and from a task in the middle.

The host is this machine, by a local connection; the spec asks for no driver and nothing else, so that no step follows.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.gpunode.node.plugins.action.plan import ActionModule

from gpunode.core.model import Plan, Step
from gpunode.core.plan.playbook import dump, make_playbook
from gpunode.core.plan.steps import ROLES

ROOT = Path(__file__).parents[2]
NAMES = [role.name for role in ROLES]
SITE = """
- name: Somebody's own
  hosts: all
  gather_facts: false
  tasks:
    - name: Base
      ansible.builtin.debug: {msg: base}
      tags: [base]
- name: GPUs
  hosts: all
  gather_facts: false
  vars:
    gpunode_spec: {driver: {branch: none}, toolkit: {version: none}}
  pre_tasks:
    - name: Before
      ansible.builtin.debug: {msg: before}
      tags: [base]
  roles:
    - {role: gpunode.node.node, tags: [gpu]}
"""
PLAN = "plan: Probe the node and plan it on the controller"
READY = "plan: Make the node ready for its plan"
PARTS = set(NAMES) - {"preflight"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site.yml").write_text(SITE)
    return tmp_path


def play(site: Path, *arguments: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    collections = ROOT / "gpunode/collection"
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_HOME": str(site / "ansible"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(collections)]),
    }
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local", "site.yml"]
    return subprocess.run(
        [*command, *arguments], cwd=site, env=environment, input=answers, capture_output=True, text=True, check=False
    )


def ran(done: subprocess.CompletedProcess[str], *, skipped: bool = True) -> list[str]:
    """The titles of the tasks, without validation of arguments; a part with nothing to do is among the skipped ones."""
    assert done.returncode == 0, done.stdout + done.stderr
    but = "" if skipped else "(?!skipping)"
    found = re.findall(rf"^TASK \[(?:gpunode\.node\.(\w+) : )?(.*?)\] \**\n{but}", done.stdout, re.MULTILINE)
    titles = [f"{role}: {title}" if role else title for role, title in found]
    return [title for title in titles if "Validating arguments" not in title]


def parts_of(titles: list[str]) -> set[str]:
    return {found[1] for title in titles if (found := re.fullmatch("Run the part (.*) of the plan", title))}


def test_a_tag_of_somebody_elses_runs_nothing_of_the_role(site: Path) -> None:
    assert ran(play(site, "--tags", "base"), skipped=False) == ["Base", "Before"]


@pytest.mark.parametrize("tag", ["driver", "gpunode_drivers"])
def test_a_tag_that_is_nearly_one_of_the_parts_says_which_there_are(tag: str, site: Path) -> None:
    done = play(site, "--tags", tag)
    assert ran(done, skipped=False) == ["plan: Say which tags there are where none of them was chosen"]
    assert f"--tags {tag} runs no part of gpunode, whose tags are gpunode_preflight, gpunode_driver, " in done.stdout
    (site / "site.yml").write_text(SITE.replace("tags: [gpu]", f"tags: [{tag}]"))
    assert PLAN in ran(own := play(site, "--tags", tag)) and "runs no part" not in own.stdout, "a tag of your own"


def test_a_tag_that_is_none_is_named_beside_those_that_are(site: Path) -> None:
    done = play(site, "--tags", "gpunode_driver,toolkit,base", "--skip-tags", "gpunode_verfy")
    assert parts_of(ran(done)) == {"driver"}
    said = " ".join(done.stderr.split())
    assert "no part of gpunode has the tag toolkit: did you mean 'gpunode_toolkit'?" in said
    assert "no part of gpunode has the tag gpunode_verfy: did you mean 'gpunode_verify'?" in said
    assert said.count("no part of gpunode") == 2
    (site / "site.yml").write_text(SITE.replace("tags: [gpu]", "tags: [toolkit]"))
    assert "no part of gpunode" not in play(site, "--tags", "toolkit").stderr, "a tag of your own"


def test_a_misspelt_variable_behind_e_is_refused_before_anything_is_done(site: Path) -> None:
    for playbook in ("detect", "provision", "verify"):
        (site / "site.yml").write_text(f"- ansible.builtin.import_playbook: gpunode.node.{playbook}\n")
        done = play(site, "-e", "gpunode_host=localhost")
        assert done.returncode == 2 and done.stdout.count("TASK [") <= 2
        assert "gpunode_host is no variable of gpunode: did you mean gpunode_hosts?" in done.stdout


def test_a_tag_of_the_whole_role_runs_all_of_it_and_nothing_else(site: Path) -> None:
    titles = ran(play(site, "--tags", "gpu"))
    assert "Base" not in titles and titles.count(PLAN) == 1
    assert parts_of(titles) == PARTS


def test_a_part_alone_is_planned_and_checked_first(site: Path) -> None:
    titles = ran(play(site, "--tags", "gpunode_driver", "--check"))
    assert titles[:2] == [PLAN, READY] and parts_of(titles) == {"driver"}


def test_a_part_that_is_left_out_takes_neither_the_plan_nor_the_check_along(site: Path) -> None:
    titles = ran(play(site, "--skip-tags", "gpunode_driver"))
    assert titles.count(PLAN) == titles.count(READY) == 1 and titles.index(READY) < titles.index("Before") + 4
    assert parts_of(titles) == PARTS - {"driver"}
    assert "Base" in titles


def test_the_tasks_can_be_started_at_the_plan_and_nowhere_behind_it(site: Path) -> None:
    titles = ran(play(site, "--start-at-task", PLAN.partition(": ")[2]))
    assert titles[0] == PLAN and parts_of(titles) == PARTS
    behind = play(site, "--start-at-task", "Keep nouveau off the GPU")
    assert ran(behind) == [] and "No matching task" in behind.stderr


def test_the_tasks_can_be_confirmed_one_by_one_but_not_without_the_plan(site: Path) -> None:
    base = "n\n" * 2
    assert ran(play(site, "--step", answers=f"{base}y\nc\n"))[0] == PLAN
    without = play(site, "--step", answers=f"{base}n\nc\n")
    assert without.returncode != 0 and "«Probe the node and plan it on the controller»" in without.stdout


def test_the_parts_and_their_tags_can_be_listed(site: Path) -> None:
    listed = play(site, "--list-tags").stdout
    assert all(f"gpunode_{role}" in listed for role in NAMES)
    tasks = play(site, "--list-tasks", "--tags", "gpunode_toolkit").stdout
    assert "Run the part toolkit" in tasks and "Run the part driver" not in tasks


PARAMETERS = {  # of a role → what is printed, in less than the documentation of all that there are
    "gpunode_driver_brnach: '580'": "gpunode_driver_brnach is no variable of gpunode: did you mean gpunode_driver_bran",
    "gpunode_driver: {branch: '580'}": "gpunode_driver is no variable of gpunode: did you mean gpunode_driver_branch?",
    "driver_branch: '580'": "driver_branch is no parameter of gpunode's roles: did you mean gpunode_driver_branch?",
    "driver_brnch: '580'": "driver_brnch is no parameter of gpunode's roles: did you mean gpunode_driver_branch?",
    "owner: me": "owner is no parameter of gpunode's roles: their names begin with gpunode_",
    "gpunode_verify: sometimes": "gpunode_verify is 'sometimes'",
    "gpunode_verify: alway": "did you mean 'always'?",
    "gpunode_timeout: abc": "gpunode_timeout is 'abc'",
    "gpunode_spec: driver": "gpunode_spec is no mapping",
    "gpunode_spec: []": "gpunode_spec is no mapping",
}


@pytest.mark.parametrize("given", PARAMETERS)
def test_a_wrong_parameter_takes_a_line(given: str, site: Path) -> None:
    (site / "site.yml").write_text(SITE.replace("tags: [gpu]", given))
    done = play(site)
    assert done.returncode == 2 and PARAMETERS[given] in " ".join(done.stdout.split())
    assert len(done.stdout + done.stderr) < 4000 and "Probe the node" in done.stdout


def test_the_parts_of_a_plan_folder_are_chosen_by_the_same_tags_and_the_check_of_the_node_stays(site: Path) -> None:
    steps = (
        Step(role="preflight", option="expect", title="t", value={}),
        Step(role="driver", option="packages", title="t", value={}),
        Step(role="toolkit", option="packages", title="t", value={}),
    )
    plan = Plan(host="localhost", steps=steps)
    (site / "site.yml").write_text(dump(make_playbook([plan])).replace("hosts: gpunode_", "hosts: all # "))

    def chosen(*arguments: str) -> set[str]:
        listed = play(site, "--list-tasks", *arguments).stdout
        return {tag for part in re.findall(r"TAGS: \[(.*)\]$", listed, re.MULTILINE) for tag in part.split(", ") if tag}

    always = {"always", "gpunode_preflight"}
    assert chosen() == {*always, "gpunode_driver", "gpunode_toolkit"}
    assert chosen("--tags", "gpunode_driver") == {*always, "gpunode_driver"}
    assert chosen("--skip-tags", "gpunode_driver") == {*always, "gpunode_toolkit"}
    assert chosen("--tags", "gpunode_preflight") == always


ALONE = {  # a task with one action → what it says
    "gpunode.node.plan: {}": "wrong.yml: unknown key 'drivers'",  # gpunode_config counts without a role, too
    "gpunode.node.facts: {sections: [nonsense]}": "value of sections must be one or more of: system, os_release",
}


@pytest.mark.parametrize("task", ALONE)
def test_an_action_alone_reads_the_variables_and_refuses_what_it_does_not_know(task: str, site: Path) -> None:
    (site / "wrong.yml").write_text("drivers: {}\n")
    (site / "site.yml").write_text(f"- hosts: all\n  gather_facts: false\n  tasks:\n    - {task}\n")
    done = play(site, "-e", "gpunode_config=wrong.yml")
    assert done.returncode == 2 and ALONE[task] in done.stdout, done.stdout


@pytest.mark.parametrize(("words", "hosts"), [((), 0), (("--limit", "gpu1"), 1), (("-e", "gpunode_hosts=gpu1"), 1)])
def test_uninstall_asks_for_its_hosts(words: tuple[str, ...], hosts: int, site: Path) -> None:
    (site / "site.yml").write_text("- ansible.builtin.import_playbook: gpunode.node.uninstall\n")
    words = ("-i", "gpu1,", "-e", '{"gpunode_undo": {}}', *words)  # which undoes nothing
    assert f"hosts ({hosts})" in play(site, "--list-hosts", *words).stdout.partition("Undo what")[2]
    done = play(site, *words)
    assert ("name the hosts to undo gpunode on, by --limit" in done.stdout) == (not hosts)
    assert done.returncode == (0 if hosts else 2), done.stdout
    misspelt = play(site, "-i", "gpu1,", "-e", '{"gpunode_undo": {}}', "-e", "gpunode_hosts=gpuu")
    assert misspelt.returncode == 2 and "gpunode_hosts is gpuu, and no host or group" in misspelt.stdout


@pytest.mark.parametrize(
    ("roles", "run", "skip", "parts"),
    [
        (["gpunode.node.node"], ["all"], [], PARTS),
        (["gpunode.node.node"], ["gpunode_driver", "gpunode_cuda"], [], {"driver", "cuda"}),
        (["gpunode.node.node"], ["gpu"], [], PARTS),  # a tag of somebody else's on the role
        (["gpunode.node.node"], ["all"], ["gpunode_driver"], PARTS - {"driver"}),
        (["gpunode.node.runtime"], ["all"], [], {"runtime"}),
        (["gpunode.node.toolkit", "gpunode.node.runtime"], ["all"], [], {"toolkit", "runtime"}),
        (["gpunode.node.toolkit", "other", "gpunode.node.runtime"], ["all"], [], {"toolkit"}),
        (["gpunode.node.plan"], ["all"], [], PARTS),
    ],
)
def test_a_plan_knows_which_parts_are_carried_out(
    roles: list[str], run: list[str], skip: list[str], parts: set[str]
) -> None:
    made = [SimpleNamespace(_parents=[], get_name=lambda name=name: name) for name in roles]
    action = object.__new__(ActionModule)
    action._task = SimpleNamespace(_role=made[0], play=SimpleNamespace(roles=made))
    action._vars = {"ansible_run_tags": run, "ansible_skip_tags": skip}
    assert PARTS - action._apart() == parts
