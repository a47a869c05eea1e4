"""Results of the collection's actions in plays of somebody's own: Ansible templates nothing that a node said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from journal_text import line, recall_text
from test_untemplated import probe_text

KERNEL = "6.1.0-41-amd64"  # of the probe debian12-kubeadm-two-engines
ACTION = """
from ansible_collections.gpunode.node.plugins.action.{of} import ActionModule as Real

class ActionModule(Real):
    '''With a node that answers what lies in a file.'''

    def send(self, name, request):
        with open({answer!r}, encoding="utf-8") as file:
            return file.read(), 0
"""


class Plays:
    """A folder with playbooks, an inventory of this machine, and a canary that no template may touch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.canary = folder / "canary"
        self.template = f"{{{{lookup('pipe','echo>{self.canary}')}}}}"
        (folder / "action_plugins").mkdir()

    def answers(self, action: str, text: str) -> None:
        """`hostile_ACTION` is the action on a node whose scripts print `text`."""
        answer = self.folder / f"{action}.txt"
        answer.write_text(text)
        code = ACTION.format(of=action, answer=str(answer))
        (self.folder / f"action_plugins/hostile_{action}.py").write_text(code)

    def play(self, tasks: list[dict[str, Any]], *, host: dict[str, Any] | None = None, rc: int = 0, **play: Any) -> str:
        hosts = {"node": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, **(host or {})}}
        (self.folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        playbook = [{"hosts": "all", "gather_facts": False, "tasks": tasks, **play}]
        (self.folder / "play.yml").write_text(json.dumps(playbook))
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "-v", "-i", "hosts.json", "play.yml"]
        environment = os.environ | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(self.folder / "home")}
        done = subprocess.run(command, cwd=self.folder, env=environment, text=True, capture_output=True, check=False)
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def plays(tmp_path: Path) -> Plays:
    return Plays(tmp_path)


def test_the_canary_sings_for_a_template_of_the_plays_author(plays: Plays) -> None:
    plays.play([{"debug": {"msg": plays.template}}])
    assert plays.canary.exists()


def passed_on(variable: str) -> list[dict[str, Any]]:
    """All that a play does with a registered result; it ends well where the value is still what it was."""
    text = f"{{{{ {variable} | to_json }}}}"
    return [
        {"set_fact": {"kept": f"{{{{ {variable} }}}}", "as_text": text}},
        {"debug": {"msg": ["{{ kept }}", "{{ via }}", text]}, "vars": {"via": f"{{{{ {variable} }}}}"}},
        {"debug": {"msg": "{{ item }}"}, "loop": ["{{ as_text }}"], "loop_control": {"label": "{{ item }}"}},
        {"name": "Task {{ as_text }}", "debug": {"msg": "{{ hostvars.node.kept }}"}},
        {"assert": {"that": "as_text == kept | to_json", "fail_msg": "{{ as_text }}", "success_msg": "{{ as_text }}"}},
        {"command": {"argv": ["true", "{{ as_text }}"]}, "register": "ran"},
        {"debug": {"var": "ran.cmd"}, "when": "as_text in ran.cmd[1]"},
    ]


def test_facts_and_a_plan_are_passed_on_as_they_are(plays: Plays) -> None:
    text = probe_text("debian12-kubeadm-two-engines").replace(KERNEL, f"{KERNEL}{plays.template}")
    plays.answers("facts", text)
    plays.answers("plan", text)
    tasks = [
        {"hostile_facts": {"text": True}, "register": "found"},
        *passed_on("found"),
        {"hostile_plan": {"spec": {"driver": {"branch": "none"}}}, "register": "plan", "ignore_errors": True},
        *passed_on("plan"),
    ]
    assert plays.template in plays.play(tasks)
    assert not plays.canary.exists()


def test_what_scripts_print_is_passed_on_as_it_is(plays: Plays) -> None:
    word = plays.template
    outcome = f"gpunode\tchanged\tpackage\t{word}\t\t{word}\tinstalled {word}\n"
    outcome += f"gpunode\tnote\t{word}\ngpunode\tmessage\t{word}\n"
    plays.answers("edit_file", f"{outcome}gpunode\tfix\t{word}\ngpunode\tstatus\tfailed\n{word}\n")
    plays.answers("packages", f"{outcome}gpunode\tstatus\tchanged\n")
    check = f"gpunode\tcheck\tgpu.{word}|failed|{word}|{word}"
    plays.answers("smoke", f"{check}\ngpunode\tstatus\tunchanged\n")
    journal = [line("state", id="s", kind="unit", name=word, run=word, **{"from": word, "to": word})]
    plays.answers("undo", recall_text(journal, states={("unit", word): word}, installed={word: word}))
    arguments: dict[str, dict[str, Any]] = {
        "edit_file": {"recover": True},
        "packages": {"packages": {"install": [{"name": "a", "version": "1", "hold": False}]}},
        "smoke": {"smoke": {"gpus": 1}},
        "undo": {"what": {"verb": "uninstall"}},
    }
    for action, given in arguments.items():
        task = {f"hostile_{action}": given, "register": "result", "ignore_errors": True}
        output = plays.play([task, *passed_on("result")])
        assert not plays.canary.exists(), action
        assert action == "undo" or word in output


def test_preflight_compares_before_anything_is_templated_and_shows_the_text(plays: Plays) -> None:
    """The check of a plan: what is expected is what an earlier probe said."""
    text = probe_text("debian12-kubeadm-two-engines")
    plays.answers("facts", text.replace("hostname ", f"hostname {plays.template}"))
    compare = {"gpunode.node.preflight": {"expect": {"kernel": "{{ found.probe }}"}}}
    output = plays.play([{"hostile_facts": {"text": True}, "register": "found"}, compare], rc=2)
    assert f"the plan expects #: gpunode-probe 1\\\\n#: system\\\\n| hostname {plays.template}" in output
    assert not plays.canary.exists()


FACTS_MODULE = """#!/usr/bin/python
import json
print(json.dumps({{"changed": False, "ansible_facts": {facts!r}}}))
"""


@pytest.mark.parametrize("name", ["gpunode_spec", "gpunode_config", "gpunode_driver_branch", "gpunode_plan"])
def test_a_node_that_answers_a_module_with_variables_of_ours_is_refused(name: str, plays: Plays) -> None:
    """Facts hold before an inventory's variables, and gpunode_config is a path on the controller."""
    (plays.folder / "library").mkdir()
    secret = plays.folder / "secret.yml"
    secret.write_text("a secret\n")
    facts = {name: str(secret) if name == "gpunode_config" else {"proxy": plays.template}}
    (plays.folder / "library/answers.py").write_text(FACTS_MODULE.format(facts=facts))
    tasks: list[dict[str, Any]] = [{"answers": {}}, {"import_role": {"name": "gpunode.node.node"}}]
    output = plays.play(tasks, host={"gpunode_spec": {"driver": {"branch": "none"}}}, rc=2)
    assert f"{name} is a fact of this host" in output
    assert "a secret" not in output and not plays.canary.exists()


def test_a_spec_in_an_inventory_is_a_template_of_its_author(plays: Plays) -> None:
    plays.answers("plan", probe_text("debian12-no-gpu"))
    host = {"word": "nonsense", "gpunode_spec": {"driver": {"branch": "{{ word }}"}}}
    assert "'nonsense'" in plays.play([{"hostile_plan": {}, "ignore_errors": True}], host=host)


def test_a_node_that_never_stops_printing_fails_its_task_alone(tmp_path: Path, plays: Plays) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\ncat >/dev/null\nexec tr '\\0' x </dev/zero\n")  # it reads what it is sent
    ssh.chmod(0o755)
    host = {"ansible_connection": "ssh", "ansible_ssh_executable": str(ssh), "ansible_pipelining": True}
    printed = plays.play([{"gpunode.node.facts": {}}], host=host, rc=2)
    assert "printed more than any node has to say" in printed
