"""A node that is out for its controller: whatever it says, no command of it is run there."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpunode.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parent.parent.parent
# the environment says where the canary is: some of what a node names cannot have a slash in it
COMMAND = "lookup('pipe','id>$ANSIBLE_CANARY')"
TEMPLATE, STATEMENT = f"{{{{{COMMAND}}}}}", f"{{%set\tx={COMMAND}%}}"
CUDA_LIST = "deb https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /"
# what a node says → how it comes to say so
PRINTED = {
    "a kernel release": 'sed -i "s/-amd64/$word&/" /lab/kernel',
    "a distribution": 'sed -i "s/^VERSION_CODENAME=.*/&$word/; s/^PRETTY_NAME=\\"/&$word/" /usr/lib/os-release',
    "a version of a distribution": 'sed -i "s/^VERSION_ID=.*/VERSION_ID=\\"12$word\\"/" /usr/lib/os-release',
    "versions of packages": 'sed -i "s/^Version: .*/&$word/" /var/lib/dpkg/status',
    "names and texts of files": f"echo '{CUDA_LIST}' >\"/etc/apt/sources.list.d/cuda-$word.list\"; "
    'echo "# $word" >>/etc/containerd/config.toml',
    "names of units": 'printf "[Service]\\nExecStart=/bin/sleep 9\\n" >"/etc/systemd/system/nvidia-$word.service"; '
    "systemctl daemon-reload",
}
CHANGED = ("/lab/kernel", "/usr/lib/os-release", "/var/lib/dpkg/status", "/etc/containerd/config.toml")
MADE = "/etc/apt/sources.list.d/cuda-*lookup* /etc/systemd/system/nvidia-*lookup*"
JOURNAL = "/var/lib/gpunode/journal.jsonl"


class Node:
    """A lab node, and a canary of the controller that no command may touch."""

    def __init__(self, lab: Lab, run: Any, folder: Path) -> None:
        self.lab, self._run, self.folder = lab, run, folder
        self.canary = folder / "canary"
        self.environment = {"ANSIBLE_CANARY": str(self.canary), "XDG_STATE_HOME": str(folder / "state")}

    def sh(self, command: str) -> str:
        done = self.lab.run(self.lab.nodes[0], command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    def say(self, what: str, word: str = TEMPLATE) -> None:
        self.write("/root/word", word)
        self.sh(f"word=$(cat /root/word); {PRINTED[what]}")

    def write(self, path: str, text: str, *, to: str = ">") -> None:
        """The text into the file; `to` >> : at its end."""
        self.sh(f"echo {base64.b64encode(text.encode()).decode()} | base64 -d {to}{path}")

    def keep(self, *paths: str) -> None:
        self.sh("".join(f"[ ! -e {path} ] || cp -a {path} {path}.mine; " for path in paths))

    def put_back(self, *paths: str) -> None:
        """Their content alone: some are mounts."""
        self.sh("".join(f"[ ! -e {path}.mine ] || cat {path}.mine >{path}; " for path in paths) + f"rm -f {MADE}")

    def gpunode(self, verb: str, *words: object) -> None:
        """Any end is right but a bug's, and a canary that was touched."""
        config = () if verb in ("uninstall", "rollback", "detect") else ("-c", self.lab.spec)
        done = self._run(verb, "-i", self.lab.inventory, *config, *words, exit=None, env=self.environment)
        self._fine(verb, done)

    def ansible(self, folder: Path, *words: object) -> str:
        command = [str(Path(sys.executable).with_name("ansible-playbook")), *map(str, words)]
        done = subprocess.run(
            command, cwd=folder, env=os.environ | self.environment, capture_output=True, text=True, check=False
        )
        self._fine("ansible-playbook", done)
        return done.stdout

    def _fine(self, what: str, done: subprocess.CompletedProcess[str]) -> None:
        assert not self.canary.exists(), f"{what}\n{done.stdout}\n{done.stderr}"
        assert 0 <= done.returncode < 8, f"{what}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr, f"{what}\n{done.stdout}\n{done.stderr}"
        assert "report it" not in done.stderr, f"{what}\n{done.stderr}"


@pytest.fixture(scope="module")
def node(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(lab_up(engines=("containerd",)), run_gpunode, tmp_path_factory.mktemp("hostile"))


def test_the_canary_sings_for_a_template_of_the_controllers_own(node: Node, tmp_path: Path) -> None:
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [{"debug": {"msg": TEMPLATE}}]}]
    (tmp_path / "play.yml").write_text(json.dumps(play))
    with pytest.raises(AssertionError, match="ansible-playbook"):
        node.ansible(tmp_path, "play.yml")
    node.canary.unlink()


@pytest.mark.parametrize("what", PRINTED)
def test_what_a_node_says_runs_nothing_on_the_controller(what: str, node: Node, tmp_path: Path) -> None:
    node.keep(*CHANGED)
    try:
        node.say(what, STATEMENT if what == "versions of packages" else TEMPLATE)
        node.gpunode("provision", "--check")
        node.gpunode("plan", "-o", tmp_path / "plan")
        if (tmp_path / "plan/playbook.yml").exists():
            node.ansible(tmp_path / "plan", "playbook.yml", "--check")
            node.gpunode("provision", tmp_path / "plan", "--check")
        node.ansible(ROOT, *static(node), "playbooks/detect.yml", "playbooks/provision.yml", "--check")
        node.gpunode("verify")
    finally:
        node.put_back(*CHANGED)


def test_a_provision_of_such_a_node_and_its_uninstall_run_nothing_there(node: Node, tmp_path: Path) -> None:
    node.keep("/lab/kernel", "/etc/containerd/config.toml")
    node.say("a kernel release")
    node.say("names and texts of files")
    node.gpunode("plan", "-o", tmp_path / "plan")
    if (tmp_path / "plan/playbook.yml").exists():
        node.ansible(tmp_path / "plan", "playbook.yml")
    node.gpunode("provision", "--yes")
    node.gpunode("uninstall", "--yes")
    node.put_back("/lab/kernel", "/etc/containerd/config.toml")


def test_what_a_node_prints_when_its_gpu_is_used_runs_nothing(node: Node) -> None:
    node.gpunode("provision", "--yes")
    node.sh("real=$(command -v nvidia-smi); mv $real $real.real; ln -s /root/nvidia-smi $real")
    for text in (TEMPLATE, "NVIDIA-SMI has failed: " + STATEMENT):
        node.write("/root/nvidia-smi", f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit 1\n")
        node.sh("chmod +x /root/nvidia-smi")
        node.ansible(ROOT, *static(node), "playbooks/verify.yml")
        node.gpunode("verify")
        node.gpunode("provision", "--yes")
    node.sh("real=$(command -v nvidia-smi); mv -f $real.real $real")


def test_what_the_journal_of_a_node_says_runs_nothing(node: Node) -> None:
    node.gpunode("provision", "--yes")
    record = {
        "v": 1,
        "id": "x",
        "at": "2026-11-22T01:00:00Z",
        "op": "state",
        "phase": "done",
        "run": "r",
        "part": "driver",
    }
    state = {"kind": "unit", "name": TEMPLATE, "from": TEMPLATE, "to": TEMPLATE}
    journals = (
        [record | state],
        [record | state | {"kind": TEMPLATE, "run": TEMPLATE, "part": TEMPLATE, "id": TEMPLATE}],
        [record | {"op": "packages", "added": [{"name": TEMPLATE, "version": TEMPLATE}]}],
        [record | {"op": "files", "files": [{"path": f"/etc/{TEMPLATE}", "before": TEMPLATE, "after": TEMPLATE}]}],
        [record | {"op": TEMPLATE, "phase": TEMPLATE, "at": TEMPLATE}],
    )
    for lines in journals:
        node.keep(JOURNAL)
        node.write(JOURNAL, "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in lines), to=">>")
        node.gpunode("rollback", "--list")
        node.gpunode("rollback", "--check")
        node.gpunode("uninstall", "--check")
        node.ansible(ROOT, *static(node), "playbooks/uninstall.yml", "--check")
        node.put_back(JOURNAL)
    node.write(JOURNAL, "".join(json.dumps(lines[0], separators=(",", ":")) + "\n" for lines in journals), to=">>")
    node.gpunode("uninstall", "--yes")
    node.put_back(JOURNAL)
    node.gpunode("uninstall", "--yes")


def static(node: Node) -> tuple[object, ...]:
    return "-i", node.lab.inventory, "-e", f"gpunode_config={node.lab.spec}"
