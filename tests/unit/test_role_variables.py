"""Variables of an estate that have the names by which a plan is handed over: each is refused before a node is touched.

The host is this machine, by a local connection, in check mode; the spec asks for no driver and nothing else.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_role_tags import play

from gpunode.core.model import Plan, Step
from gpunode.core.plan.playbook import make_inventory, make_playbook

SPEC = {"gpunode_driver_branch": "none", "gpunode_toolkit_version": "none"}
WAYS = ("set_fact", "register", "vars", "-e", "cacheable")


def site(name: str, way: str, **more: Any) -> tuple[dict[str, Any], list[str]]:
    """A play in which somebody sets a variable of that name, and the words of the command line."""
    tasks = {
        "set_fact": {"ansible.builtin.set_fact": {name: {}}},
        "cacheable": {"ansible.builtin.set_fact": {name: {}, "cacheable": True}},
        "register": {"ansible.builtin.raw": "true", "register": name, "check_mode": False},
    }
    made = {"hosts": "all", "gather_facts": False, "vars": {**SPEC, **({name: {}} if way == "vars" else {})}}
    before = [tasks[way]] if way in tasks else []
    return made | {"pre_tasks": before} | more, ["-e", f'{{"{name}": {{}}}}'] if way == "-e" else []


def ran(folder: Path, one: dict[str, Any], words: list[str]) -> subprocess.CompletedProcess[str]:
    (folder / "site.yml").write_text(yaml.safe_dump([one]))
    return play(folder, "--check", *words)


@pytest.mark.parametrize("way", WAYS)
def test_another_value_for_the_plan_is_refused_and_named(way: str, tmp_path: Path) -> None:
    done = ran(tmp_path, *site("gpunode_plan", way, roles=["gpunode.node.node"]))
    assert done.returncode != 0 and "gpunode_plan is " in done.stdout
    assert "Make sure that this is the node" not in done.stdout


@pytest.mark.parametrize("way", ["-e", "cacheable"])
def test_another_result_of_a_step_is_refused_and_named(way: str, tmp_path: Path) -> None:
    done = ran(tmp_path, *site("gpunode_done_driver_packages", way, roles=["gpunode.node.driver"]))
    assert done.returncode != 0 and "gpunode_done_driver_packages is " in done.stdout


@pytest.mark.parametrize("way", WAYS)
def test_a_name_that_an_estate_may_well_have_is_none_of_ours(way: str, tmp_path: Path) -> None:
    done = ran(tmp_path, *site("driver_packages", way, roles=["gpunode.node.driver"]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no change" in done.stderr


@pytest.mark.parametrize("way", ["set_fact", "register", "-e", "cacheable"])
def test_what_a_generated_play_expects_of_a_host_is_what_its_inventory_says(way: str, tmp_path: Path) -> None:
    expect = Step(role="preflight", option="expect", title="Compare", value={"distro": "none:0"})
    plan = Plan(host="localhost", steps=(expect, Step(role="cuda", option="files", title="Write", value=[])))
    [made] = make_playbook([plan])
    variables = make_inventory([plan])["all"]["hosts"]["localhost"]
    inventory = {"all": {"hosts": {"localhost": {"ansible_connection": "local", **variables}}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    generated = {**yaml.safe_load(yaml.safe_dump(_plain(made))), "hosts": "localhost"}
    one, words = site("gpunode_expect", way)
    one = {**generated, "pre_tasks": one["pre_tasks"]}
    assert "the plan expects none:0" in ran(tmp_path, generated, ["-i", "hosts.yml"]).stdout
    done = ran(tmp_path, one, [*words, "-i", "hosts.yml"])
    assert done.returncode != 0 and "gpunode_expect is " in done.stdout


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, str) else value


def test_a_host_that_was_not_reached_goes_through_the_role_untouched(tmp_path: Path) -> None:
    one, _words = site("x", "", roles=["gpunode.node.node"], ignore_unreachable=True)
    words = ["-e", "ansible_connection=ssh", "-e", "ansible_port=1", "-e", "ansible_ssh_retries=0"]
    done = ran(tmp_path, one, words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "UNREACHABLE" in done.stdout and "failed=0" in done.stdout and "Error while" not in done.stdout


@pytest.mark.parametrize("name", ["gpunode_driver_branch", "gpunode_spec"])
def test_a_wrong_value_is_named_with_its_file_and_line(name: str, tmp_path: Path) -> None:
    value = "58" if name == "gpunode_driver_branch" else {"driver": {"branch": "58"}}
    one, _words = site("x", "", roles=["gpunode.node.node"], vars={name: value})
    done = ran(tmp_path, one, [])
    assert done.returncode != 0 and "driver.branch is '58'" in done.stdout
    said = " ".join(done.stdout.replace("\\n", " ").split())
    assert f"set by: {name}" in said and "site.yml:" in said, said


def test_run_once_is_refused_where_there_are_other_hosts(tmp_path: Path) -> None:
    """Ansible registers its result on all hosts of the batch: they would seem done, and nothing has touched them."""
    role = {"ansible.builtin.import_role": {"name": "gpunode.node.node"}, "run_once": True}
    one, _words = site("x", "", tasks=[role])
    done = ran(tmp_path, one, ["-i", "other,"])
    assert done.returncode != 0 and "run_once: True" in done.stdout
    assert "Make sure that this is the node" not in done.stdout
    assert ran(tmp_path, one | {"hosts": "localhost"}, []).returncode == 0, "it is its own batch"


KEYWORDS: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [  # of the play, of the role; the hosts that go on
    ({}, {}, ["a", "c"]),
    ({}, {"throttle": 1}, ["a", "c"]),
    ({"strategy": "free"}, {}, ["a", "c"]),
    ({"serial": 1}, {}, ["a"]),
    ({"max_fail_percentage": 50}, {}, ["a", "c"]),
    ({"max_fail_percentage": 0}, {}, []),
    ({"any_errors_fatal": True}, {}, []),
]


@pytest.mark.slow
@pytest.mark.parametrize(("of_play", "of_role", "going_on"), KEYWORDS, ids=lambda value: str(value))
def test_where_a_host_is_refused_the_others_go_on_as_the_play_says(
    of_play: dict[str, Any], of_role: dict[str, Any], going_on: list[str], tmp_path: Path
) -> None:
    hosts = {name: {**SPEC, "ansible_connection": "local"} for name in "abc"}
    hosts["b"]["gpunode_driver_branch"] = "58"
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    after = {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} is {{ gpunode_result.parts }}"}}
    roles = [{"role": "gpunode.node.node", **of_role}]
    one = {"hosts": "a,b,c", "gather_facts": False, "roles": roles, "tasks": [after], **of_play}
    (tmp_path / "site.yml").write_text(yaml.safe_dump([one]))
    done = play(tmp_path, "--check", "-i", "hosts.yml")
    assert done.returncode == 2 and "driver.branch is '58'" in done.stdout
    assert sorted(set(re.findall(r'"msg": "(\w) is ', done.stdout))) == going_on, done.stdout
