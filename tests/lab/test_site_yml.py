"""Playbooks as people write them, none from our generator, with the roles in them, on one node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.extended]

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "tests/site"  # playbooks of other projects, with roles of ours in place of theirs
Play = Callable[..., subprocess.CompletedProcess[str]]
DRIVER = "Install the NVIDIA driver and the headers of every kernel"
SITES = {
    "roles, facts, become at the play": """
- hosts: all
  become: true
  roles: [gpunode.node.node]
""",
    "variables of the play": """
- hosts: all
  gather_facts: false
  vars: {gpunode_driver_branch: "580", gpunode_docker_default_runtime: nvidia}
  roles: [gpunode.node.node]
""",
    "include_role with become": """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: gpunode.node.node, apply: {become: true}}
      when: inventory_hostname is defined
""",
    "block, rescue, always": """
- hosts: all
  gather_facts: false
  tasks:
    - block:
        - ansible.builtin.import_role: {name: gpunode.node.node}
      rescue:
        - ansible.builtin.fail: {msg: "{{ ansible_failed_result.fix }}"}
      always:
        - ansible.builtin.debug: {msg: "parts {{ gpunode_result.parts }}"}
""",
    "serial": """
- hosts: all
  gather_facts: false
  serial: 1
  roles: [gpunode.node.node]
""",
    "free": """
- hosts: all
  gather_facts: false
  strategy: free
  roles: [gpunode.node.node]
""",
    "parts": """
- hosts: all
  gather_facts: false
  roles: [gpunode.node.driver, gpunode.node.toolkit, gpunode.node.runtime]
""",
    "parts with tasks between": """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: gpunode.node.driver}
    - ansible.builtin.raw: "true"
    - ansible.builtin.import_role: {name: gpunode.node.runtime}
""",
}
NODE = SITES["variables of the play"]


@pytest.fixture(scope="module")
def node(lab_up: Callable[..., Lab]) -> Lab:
    lab = lab_up()
    lab.run(lab.nodes[0], "apt-get -qq update; apt-get -qqy install python3-apt")  # for apt in check mode
    return lab


@pytest.fixture(scope="module")
def play(node: Lab, tmp_path_factory: pytest.TempPathFactory) -> Play:
    return player(node, tmp_path_factory.mktemp("site"))


def player(node: Lab, folder: Path) -> Play:
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(node.inventory), "site.yml"]
    environment = os.environ | {
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_ROLES_PATH": str(SITE / "roles"),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "gpunode/collection"),
    }

    groups = {"k8s_cluster": {"hosts": {one.name: {} for one in node.nodes}}, "etcd": {}, "calico_rr": {}}
    (folder / "groups.yml").write_text(yaml.safe_dump(groups))

    def run(site: str, *arguments: str, rc: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        (folder / "site.yml").write_text(site)
        words = [*command, "-e", f"gpunode_config={node.spec}", *arguments]
        done = subprocess.run(words, cwd=folder, env=environment | more, text=True, capture_output=True, check=False)
        assert done.returncode == rc, done.stdout[-6000:] + done.stderr[-3000:]
        return done

    return run


def ran(output: str) -> dict[str, str]:
    """Title → how the task ended."""
    return dict(
        re.findall(
            r"^TASK \[(?:[\w.]+ : )?(.*?)\] \*+\n(?:(?!TASK|PLAY).*\n)*?(ok|changed|skipping|fatal):",
            output,
            re.MULTILINE,
        )
    )


def count(output: str, word: str = "changed") -> int:
    return int(re.findall(rf"{word}=(\d+)", output)[-1])


@pytest.mark.parametrize("site", SITES)
def test_check_mode_says_what_would_be_done(site: str, play: Play) -> None:
    done = play(SITES[site], "--check", "--diff", "--limit", "all")
    assert ran(done.stdout)[DRIVER] == "changed", done.stdout
    assert "Give the container engines the nvidia runtime" in ran(done.stdout)
    assert "would change: driver" in done.stderr


def test_a_tag_runs_its_part_alone(play: Play) -> None:
    found = ran(play(NODE, "--check", "--tags", "gpunode_toolkit").stdout)
    assert found["Install the NVIDIA Container Toolkit"] == "changed" and DRIVER not in found


def test_roles_one_after_the_other_are_planned_once(play: Play) -> None:
    output = play(SITES["parts"], "--check", "-v").stdout
    assert output.count("planned by gpunode.node.") == 2


SET = {
    "set_fact": "    - ansible.builtin.set_fact: {NAME: {}}\n",
    "register": "    - {ansible.builtin.raw: 'true', register: NAME}\n",
    "vars": "",
    "-e": "",
    "cacheable": "    - ansible.builtin.set_fact: {NAME: {}, cacheable: true}\n",
}


def with_variable(name: str, way: str) -> tuple[str, list[str]]:
    """The site with a variable of that name set in that way, and the words of the command line."""
    [site] = yaml.safe_load(NODE)
    before = yaml.safe_load(SET[way].replace("NAME", name)) if SET[way] else []
    variables = {**site["vars"], **({name: {}} if way == "vars" else {})}
    words = ["-e", f'{{"{name}": {{}}}}'] if way == "-e" else []
    return yaml.safe_dump([{**site, "vars": variables, "pre_tasks": before}]), words


@pytest.mark.parametrize("way", SET)
@pytest.mark.parametrize("name", ["driver_packages", "runtime_edits"])
def test_a_name_of_the_estate_changes_nothing(name: str, way: str, play: Play) -> None:
    site, words = with_variable(name, way)
    found = ran(play(site, "--check", *words).stdout)
    assert found[DRIVER] == found["Give the container engines the nvidia runtime"] == "changed"


@pytest.mark.parametrize("way", SET)
@pytest.mark.parametrize("name", ["gpunode_plan", "gpunode_done_driver_packages"])
def test_another_value_for_a_plan_is_refused_and_named(name: str, way: str, play: Play) -> None:
    site, words = with_variable(name, way)
    if name == "gpunode_plan" or way in ("-e", "cacheable"):
        assert f"{name} is" in (done := play(site, *words, rc=2)).stdout
        assert count(done.stdout) <= 1, "the raw command of the test"
    else:
        assert ran(play(site, "--check", *words).stdout)[DRIVER] == "changed"


CALLBACK = """
from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "stdout", "lines"

    def v2_runner_on_ok(self, result):
        print("{}")
"""


@pytest.mark.parametrize("callback", ["lines", "ansible.posix.jsonl"])
def test_a_callback_whose_reader_is_a_program_gets_nothing_else(callback: str, play: Play, tmp_path: Path) -> None:
    if callback != "lines":
        pytest.importorskip("ansible_collections.ansible.posix", reason="the package ansible has it")
    (tmp_path / "lines.py").write_text(CALLBACK)
    asked = {"ANSIBLE_STDOUT_CALLBACK": callback, "ANSIBLE_CALLBACK_PLUGINS": str(tmp_path)}
    done = play(NODE, "--check", "--diff", **asked)
    assert {line[:1] for line in done.stdout.splitlines() if line.strip()} == {"{"}
    assert "because:" in done.stderr


def test_a_host_that_is_not_reached_is_left_out(play: Play) -> None:
    site = NODE.replace("gather_facts: false", "gather_facts: false\n  ignore_unreachable: true")
    done = play(site, "-e", "ansible_port=1", "-e", "ansible_ssh_retries=0")
    assert "gpunode_plan" not in done.stdout and DRIVER not in ran(done.stdout)
    assert count(done.stdout, "failed") == 0 and ran(done.stdout)["Say what was done"] == "skipping"


def test_a_flat_variable_wins_over_gpunode_spec_and_both_are_named(play: Play) -> None:
    site = NODE.replace("vars: {", "vars: {gpunode_spec: {driver: {branch: '595'}}, gpunode_driver_brnach: x, ")
    done = play(site, "--check", "-e", "gpunode_driver_branch=580", "--tags", "gpunode_driver")
    said = " ".join((done.stdout + done.stderr).split())
    assert "gpunode_driver_branch (580) wins over driver.branch (595)" in said
    assert "did you mean gpunode_driver_branch?" in said


def test_a_real_run_its_result_its_handlers_and_a_second_run(play: Play) -> None:
    [site] = yaml.safe_load(NODE)
    site |= {
        "handlers": [{"name": "Mine", "listen": "gpunode driver changed", "ansible.builtin.debug": {"msg": "heard"}}],
        "post_tasks": [
            {"ansible.builtin.debug": {"msg": "{{ gpunode_result.parts | join(' ') }} {{ gpunode_result.engines }}"}},
            {"ansible.builtin.assert": {"that": "gpunode_result.driver.startswith('580.')"}},
        ],
    }
    text = yaml.safe_dump([site])
    first = play(text).stdout
    assert "heard" in first and "driver toolkit runtime ['containerd', 'docker']" in first
    second = play(text)
    assert count(second.stdout) == 0 and "; no change" in second.stderr and "heard" not in second.stdout
    assert "Prove it with real use of the GPU" not in ran(second.stdout) and count(second.stdout, "ok") == 5
    daily = play(text, "-e", "gpunode_verify=always")
    assert ran(daily.stdout)["Prove it with real use of the GPU"] == "ok" and "checks passed" in daily.stderr


def test_a_file_that_another_role_has_written_is_named(node: Lab, play: Play) -> None:
    node.run(node.nodes[0], "printf '{}\\n' >/etc/docker/daemon.json")
    done = play(NODE)
    said = " ".join((done.stdout + done.stderr).split())
    assert "/etc/docker/daemon.json: changed, not by gpunode, since its edit" in said


KEYWORDS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    # of the play, of the role; where all is done, and where the toolkit is installed, when the second host's fails
    "none": ({}, {}, "13", "13"),
    "throttle": ({}, {"throttle": 1}, "13", "13"),
    "free": ({"strategy": "free"}, {}, "13", "13"),
    "serial": ({"serial": 1}, {}, "1", "1"),
    "half may fail": ({"max_fail_percentage": 50}, {}, "13", "13"),
    "none may fail": ({"max_fail_percentage": 0}, {}, "", "13"),
    "any error is fatal": ({"any_errors_fatal": True}, {}, "", "13"),
}
FAILS = "/etc/apt/apt.conf.d/zz-fails"


@pytest.fixture(scope="module")
def three(lab_up: Callable[..., Lab]) -> Lab:
    return lab_up(3, name="t-three", engines=("containerd",))


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_step_that_fails_on_one_host_ends_the_others_as_the_play_says(
    keyword: str, three: Lab, tmp_path: Path, run_gpunode: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    of_play, of_role, done, installed = KEYWORDS[keyword]
    after = {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} has {{ gpunode_result.parts }}"}}
    roles = [{"role": "gpunode.node.node", "gpunode_driver_branch": "none", **of_role}]
    text = yaml.safe_dump([{"hosts": "all", "gather_facts": False, "roles": roles, "tasks": [after], **of_play}])

    def there(command: str) -> str:
        return "".join(str(i) for i, one in enumerate(three.nodes, 1) if not three.run(one, command).returncode)

    three.run(three.nodes[1], f"printf 'DPkg::Pre-Invoke {{\"exit 7\";}};' >{FAILS}")
    play = player(three, tmp_path)
    first = play(text, rc=2).stdout
    assert ran(first)["Install the NVIDIA Container Toolkit"] and "exit 7" in first
    assert "".join(sorted(re.findall(r"t-three-(\d) has \['toolkit', 'runtime'\]", first))) == done, first
    assert there("command -v nvidia-ctk") == installed
    three.run(three.nodes[1], f"rm {FAILS}")
    second = play(text).stdout
    assert len(re.findall(r"t-three-\d has", second)) == 3 and count(second, "failed") == 0
    assert there("command -v nvidia-ctk") == "123" and "changed=0" in play(text).stdout
    run_gpunode("uninstall", "-i", three.inventory, "--yes")
    assert there("command -v nvidia-ctk") == ""


@pytest.mark.parametrize("name", ["geerlingguy", "deepops", "kubespray"])
def test_a_site_of_another_project_changes_nothing_at_its_second_run(name: str, play: Play) -> None:
    site = (SITE / f"{name}.yml").read_text()
    words = ["-i", "groups.yml", "-e", '{"proxy_disable_env": {}}']
    play(site, *words, "--check", "--diff")
    play(site, *words)
    again = play(site, *words)
    changed = {task for task, ended in ran(again.stdout).items() if ended == "changed"}
    assert changed <= {"Update apt cache."}, again.stdout
    assert "; no change" in again.stderr
