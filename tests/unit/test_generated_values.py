"""The values of a generated play, which its inventory has by group: whoever else sets the variable is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpunode.core.plan.playbook import dump
from gpunode.core.plan.steps import VALUES

COLLECTIONS = Path(__file__).parents[2] / "gpunode/collection"
EMPTY = {"runtime_cdi": {}}  # the action is called, and asks nothing of its host
OTHER = {"runtime_cdi": {"refresh": True}}
WAYS = {  # host → what a playbook of the estate does before the play
    "untouched": [],
    "set_fact": [{"ansible.builtin.set_fact": {VALUES: OTHER}}],
    "cacheable": [{"ansible.builtin.set_fact": {VALUES: OTHER, "cacheable": True}}],
    "include_vars": [{"ansible.builtin.include_vars": "other.yml"}],
    "of_the_host": [],
    "of_a_group": [],
    "of_group_vars": [],
}
TASK = {"gpunode.node.cdi": {"cdi": "{{ gpunode_values.runtime_cdi | default({}) }}"}}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    other = {VALUES: OTHER}
    ours = {"hosts": {name: {} for name in WAYS}, "vars": {VALUES: EMPTY}}
    groups = {"gpunode_runtime_as_x": ours, "z_pool": {"hosts": {"of_a_group": {}}, "vars": other}}
    groups["racks"] = {"hosts": {"of_group_vars": {}}}
    hosts = {name: other if name == "of_the_host" else {} for name in WAYS}
    tasks = [task | {"when": f"inventory_hostname == '{host}'"} for host, tasks in WAYS.items() for task in tasks]
    play = {"hosts": "all", "gather_facts": False, "ignore_errors": True, "tasks": [*tasks, TASK]}
    (tmp_path / "group_vars").mkdir()
    files = {"hosts.yml": {"all": {"hosts": hosts, "children": groups}}, "site.yml": [play], "other.yml": other}
    for name, data in {**files, "group_vars/racks.yml": other}.items():
        (tmp_path / name).write_text(dump(data).replace("!unsafe ", ""))
    return tmp_path


def refused(site: Path, *arguments: str) -> set[str]:
    """The hosts on which the action refuses the values, by their name."""
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_NOCOLOR": "1"}
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "hosts.yml", "-c", "local", "site.yml"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=site,
        env=environment | {"ANSIBLE_HOME": str(site / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "PLAY RECAP" in done.stdout, done.stdout + done.stderr
    return set(re.findall(rf'^fatal: \[([\w-]+)\]: .*"{VALUES} is ', done.stdout, re.MULTILINE))


def test_whoever_else_sets_the_values_is_refused_by_name(site: Path) -> None:
    assert refused(site) == WAYS.keys() - {"untouched"}


@pytest.mark.parametrize("way", ["-e", "vars", "register"])
def test_what_is_set_for_every_host_is_refused_on_every_host(way: str, site: Path) -> None:
    [play] = yaml.safe_load((site / "site.yml").read_text())
    play |= {"vars": {VALUES: OTHER}} if way == "vars" else {}
    if way == "register":
        play["tasks"].insert(0, {"ansible.builtin.debug": {}, "register": VALUES})
    (site / "site.yml").write_text(yaml.safe_dump([play]))
    assert refused(site, *(["-e", f'{{"{VALUES}": {{}}}}'] if way == "-e" else [])) == WAYS.keys()
