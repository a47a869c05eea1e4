"""uninstall and rollback on real nodes: afterwards the tree is what it was before, to the byte."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.lab

DAEMON = "/etc/docker/daemon.json"
TREE = (Path(__file__).parent / "tree.sh").read_text()
STATES = (
    "lsmod | cut -d ' ' -f 1 | sort; apt-mark showhold; apt-mark showmanual; systemctl list-units --type=service "
    "--state=active --no-legend --plain | cut -d ' ' -f 1 | grep -E 'nvidia|containerd|docker'"
)
KILL = (
    "for p in /proc/[0-9]*; do "
    "tr '\\0' '\\n' < $p/environ 2>/dev/null | grep -q ^GPUNODE_IN= && kill -9 ${p#/proc/}; done; "
    "pkill -KILL -x -f 'sh -s'; true"
)


class Node:
    """One lab node, its spec, and gpunode on it."""

    def __init__(self, lab: Any, run: Any, tmp: Path, spec: dict[str, Any]) -> None:
        self.lab, self._run = lab, run
        self.spec = tmp / f"{lab.name}.yml"
        self.set(spec)
        self.before: list[str] = []

    def set(self, spec: dict[str, Any]) -> None:
        self.spec.write_text(yaml.safe_dump(yaml.safe_load(self.lab.spec.read_text()) | spec))

    def provision(self) -> dict[str, Any]:
        return self.json("provision", "-c", self.spec, "--yes")

    def json(self, verb: str, *args: object, exit: int = 0) -> dict[str, Any]:
        done = self._run(verb, "-i", self.lab.inventory, *args, "--format", "json", exit=exit)
        [host] = json.loads(done.stdout)["hosts"]
        return dict(host)

    def sh(self, command: str) -> str:
        done = self.lab.run(self.lab.nodes[0], command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    def tree(self) -> list[str]:
        return self.sh(TREE).splitlines()

    def differs(self, before: list[str]) -> list[str]:
        """The lines of the tree that are not as before, of both."""
        return sorted(set(before) ^ set(self.tree()))


def removed(result: dict[str, Any]) -> set[str]:
    return {line for line in result["changed"] if line.startswith(("removes ", "rewrites ", "stop ", "disable "))}


@pytest.fixture(scope="module")
def node(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Debian 12 with containerd and Docker, nouveau on the GPU; a person has set Docker up."""
    lab = lab_up(name="t-uninstall", gpus=("h100",), nouveau=True)
    node = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), {"cuda": {"versions": ["12.8"]}})
    node.sh(f'mkdir -p /etc/docker; printf \'{{"log-level":"warn"}}\' >{DAEMON}; chmod 640 {DAEMON}')
    node.sh(f"chown root:docker {DAEMON}; systemctl restart docker")
    node.before = node.tree()
    return node


@pytest.mark.timeout(1200)
def test_after_uninstall_the_tree_is_what_it_was(node: Node) -> None:
    states = node.sh(STATES)
    done = node.provision()
    assert done["changed"]
    checked = node.json("uninstall", "--check", exit=3)
    assert "nvidia" in node.sh("lsmod"), "check mode changes nothing"
    taken = node.json("uninstall", "--yes")
    assert node.differs(node.before) == []
    assert node.sh(STATES) == states
    assert removed(taken) <= removed(checked), "some files go with their package"
    assert node.json("uninstall", "--yes")["changed"] == []


@pytest.mark.timeout(1800)
def test_an_upgrade_is_rolled_back_and_the_former_driver_is_loaded_again(node: Node) -> None:
    node.set({"driver": {"version": "580.95.05"}, "cuda": {"versions": []}})
    first = node.provision()["extra"]["run"]
    old, states = node.tree(), node.sh(STATES)
    node.set({"driver": {"version": "580.178.04"}, "cuda": {"versions": []}})
    second = node.provision()["extra"]["run"]
    assert node.sh("cat /sys/module/nvidia/version") == "580.178.04\n"
    assert [run["name"] for run in node.json("rollback", "--list")["runs"]] == [first, second]
    node.json("rollback", "--yes")
    assert node.sh("cat /sys/module/nvidia/version") == "580.95.05\n"
    assert node.sh("apt-mark showhold | grep -c nvidia") != "0\n"
    assert node.differs(old) == []
    assert node.sh(STATES) == states
    assert [run["name"] for run in node.json("rollback", "--list")["runs"]] == [first]


@pytest.mark.timeout(1800)
def test_an_uninstall_that_is_killed_is_finished_by_the_next_one(node: Node) -> None:
    assert node.differs(node.before), "the test before has left a driver"
    for seconds in (6, 25):
        command = [sys.executable, "-m", "gpunode", "uninstall", "-i", str(node.lab.inventory), "--yes"]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        running.send_signal(signal.SIGKILL)
        running.wait()
        node.sh(KILL)
    node.json("uninstall", "--yes")
    assert node.differs(node.before) == []


@pytest.mark.timeout(1800)
def test_what_somebody_has_changed_since_stays_and_is_named(node: Node) -> None:
    node.set({"cuda": {"versions": ["12.8"]}})
    node.provision()
    node.sh(f"sed -i s/warn/info/ {DAEMON}")
    node.sh("echo '# mine' >>/etc/profile.d/cuda.sh")
    done = node.json("uninstall", "--yes")
    notes = "\n".join(done["extra"]["notes"])
    assert "/etc/docker/daemon.json: somebody has changed it since; their lines stay" in notes
    assert "/etc/profile.d/cuda.sh: somebody has changed it since; it stays as it is" in notes
    assert json.loads(node.sh("cat /etc/docker/daemon.json")) == {"log-level": "info"}
    left = {line.split(" ")[0] for line in node.differs(node.before)}
    assert left == {"./etc/docker/daemon.json", "./etc/profile.d/cuda.sh"}
