"""Runs on a provisioned node, over SSH, with the command a user calls; test_engines.py has the way there and back."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.core.model import ENDS

pytestmark = pytest.mark.lab

TRACE = "/var/log/nvidia-container-runtime.trace"
# everything gpunode may touch, and what it must leave alone; logs, caches and engine data aside
TREE = (
    "find /etc /usr/share/keyrings /boot /lib/modules /var/lib/dkms /var/lib/gpunode -xdev -type f "
    "-not -name '*.trace' -not -path '/etc/machine-id' -not -name lock "
    "-printf '%p %m %u %T@ ' -exec sh -c 'sha256sum < \"$1\"' _ {} \\; | sort"
)


# every process that a node script started, dpkg among them, and the shells that read the scripts
KILL = (
    "for p in /proc/[0-9]*; do "
    "tr '\\0' '\\n' < $p/environ 2>/dev/null | grep -q ^GPUNODE_IN= && kill -9 ${p#/proc/}; done; "
    "pkill -KILL -x -f '(/bin/)?sh -s'; true"
)


class Node:
    """One lab node and gpunode on it."""

    def __init__(self, lab: Any, run: Any, tmp: Path, spec: dict[str, Any]) -> None:
        self.lab, self._run = lab, run
        self.spec = tmp / f"{lab.name}.yml"
        self.set(spec)

    def set(self, spec: dict[str, Any]) -> None:
        base = yaml.safe_load(self.lab.spec.read_text())
        self.spec.write_text(yaml.safe_dump(base | spec))

    def gpunode(self, verb: str, *args: object, exit: int | None = 0) -> subprocess.CompletedProcess[str]:
        config = () if verb in ("detect", "doctor", "check-boot") else ("-c", self.spec)
        return self._run(verb, "-i", self.lab.inventory, *config, *args, exit=exit)

    def json(self, verb: str, *args: object, exit: int | None = 0) -> dict[str, Any]:
        answer = json.loads(self.gpunode(verb, *args, "--format", "json", exit=exit).stdout)
        [host] = answer["hosts"]
        return dict(host)

    def sh(self, command: str) -> str:
        done = self.lab.run(self.lab.nodes[0], command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    def boot_id(self) -> str:
        return self.sh("cat /proc/sys/kernel/random/boot_id").strip()

    def reboot(self, seconds: float = 120) -> None:
        """Back with another boot id, and its units started."""
        before = self.boot_id()
        self.lab.run(self.lab.nodes[0], "systemctl reboot")
        self.wait_for_boot(before, seconds)

    def wait_for_boot(self, before: str, seconds: float) -> None:
        [machine] = self.lab.nodes
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = self.lab.run(machine, "cat /proc/sys/kernel/random/boot_id; systemctl is-system-running")
            if answer.stdout.split()[:1] not in ([], [before]) and not answer.stdout.endswith("starting\n"):
                return
            time.sleep(1)
        raise AssertionError("the node does not come back")


@pytest.fixture(scope="module")
def docker(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Debian 13, docker and containerd, two RTX 3090, no Python on the node; provisioned."""
    lab = lab_up(distro="debian:13", gpus=("10de:2204", "10de:2204"), python=False)
    node = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), {"driver": {"branch": "595"}})
    node.gpunode("provision", "--yes")
    return node


def failed(host: dict[str, Any]) -> list[str]:
    return [f"{c['id']}: {c['message']}" for c in host["checks"] if c["status"] in ENDS]


def passed(host: dict[str, Any]) -> set[str]:
    return {c["id"] for c in host["checks"] if c["status"] == "passed"}


def make_it_so(node: Node, proofs: set[str]) -> None:
    """The whole way once: what plan says, check mode says and provision does; the second run does nothing."""
    before = node.sh(TREE)
    plan = node.json("plan", exit=3)
    assert plan["steps"] and all(s["reasons"] for s in plan["steps"] if s["role"] not in ("preflight", "verify"))
    checked = node.json("provision", "--check", exit=3)
    assert node.sh(TREE) == before, "plan and check mode change nothing"
    done = node.json("provision", "--yes")
    assert not failed(done)
    said = node.json("doctor")
    assert (said["findings"], said["xids"]) == ([], []), "the doctor has nothing to say of a fresh node"
    assert len(done["changed"]) >= len(checked["changed"])
    after = node.sh(TREE)
    assert after != before
    assert node.json("plan")["converged"]
    again = node.json("provision", "--yes")
    assert again["changed"] == [] and "nothing to do" in again["message"]
    assert node.sh(TREE) == after, "a second run changes no file, not even its time"
    verified = node.json("verify")
    assert not failed(verified)
    assert proofs <= passed(verified)


def test_verify_without_smoke_starts_nothing(docker: Node) -> None:
    lines = docker.sh(f"wc -l < {TRACE}")
    verified = docker.json("verify", "--no-smoke")
    assert not failed(verified)
    assert docker.sh(f"wc -l < {TRACE}") == lines


def test_a_gpu_that_requires_a_reset_is_named(docker: Node) -> None:
    hardware = docker.lab.nodes[0].hardware
    slot = sorted(d.name for d in (hardware / "sys/bus/pci/devices").iterdir())[-1]
    health = hardware / "standin-health"
    health.write_text(f"{slot}\treset\tYes\n")
    try:
        host = docker.json("verify", "--no-smoke", exit=1)
    finally:
        health.unlink()
    assert "gpu.fault" in {text.split(":")[0] for text in failed(host)}


def test_a_reviewed_plan_is_run_as_it_is_and_refused_when_the_node_has_changed(
    docker: Node, run_gpunode: Any, tmp_path: Path
) -> None:
    docker.sh("rm -f /etc/modprobe.d/gpunode-nouveau.conf")
    folder = tmp_path / "review"
    docker.gpunode("plan", "-o", folder, exit=3)
    docker.sh("echo '# somebody else was here' >> /etc/containerd/config.toml")
    stale = run_gpunode("provision", folder, "--yes", exit=3)
    assert "/etc/containerd/config.toml" in stale.stderr
    assert "gpunode plan" in stale.stderr
    docker.gpunode("plan", "-o", folder, exit=3)
    run_gpunode("provision", folder, "--yes")
    assert "blacklist nouveau" in docker.sh("cat /etc/modprobe.d/gpunode-nouveau.conf")
    assert "somebody else" in docker.sh("cat /etc/containerd/config.toml"), "a user's comment stays"


def test_the_written_playbook_runs_by_ansible_playbook_alone(docker: Node, tmp_path: Path) -> None:
    docker.sh("rm -f /etc/modprobe.d/gpunode-nouveau.conf; mv /etc/docker/daemon.json /tmp/kept.json")
    docker.gpunode("plan", "-o", tmp_path / "review", exit=3)
    page = (Path(__file__).parents[2] / "docs/ansible.md").read_text()
    [command] = [line.strip() for line in page.splitlines() if line.startswith("    (cd DIR && ")]
    for changed in (True, False):
        done = subprocess.run(
            ["sh", "-c", command.replace("DIR", "review")], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and " ok=" in done.stdout, done.stdout + done.stderr
        assert ("changed=0 " in done.stdout) is not changed, "the second run finds what the first one has written"
    assert docker.json("plan")["converged"]


def test_without_a_terminal_and_without_yes_nothing_is_touched(docker: Node) -> None:
    docker.sh("rm -f /etc/modprobe.d/gpunode-nouveau.conf")
    before = docker.sh(TREE)
    done = docker.gpunode("provision", exit=2)
    assert "--yes" in done.stderr
    assert docker.sh(TREE) == before
    docker.gpunode("provision", "--yes")


def test_a_broken_configuration_is_refused_with_its_place_and_left_as_it_is(docker: Node) -> None:
    docker.sh(
        "cp -a /etc/docker/daemon.json /root/good; printf '{\\n \"runtimes\": {,}\\n}\\n' > /etc/docker/daemon.json"
    )
    before = docker.sh("sha256sum /etc/docker/daemon.json")
    host = docker.json("plan", exit=5)
    assert "/etc/docker/daemon.json:2" in host["problems"][0]["what"]
    docker.gpunode("provision", "--yes", exit=5)
    assert docker.sh("sha256sum /etc/docker/daemon.json") == before
    docker.sh("cp -a /root/good /etc/docker/daemon.json")


@pytest.mark.parametrize(
    ("source", "exit", "printed"),
    [
        ({"fingerprint": "1" * 40}, 5, "has the fingerprint"),
        ({"fingerprint": ""}, 5, "fingerprint"),
        ({"key": "http://127.0.0.1:9/no"}, 1, "127.0.0.1:9"),
    ],
    ids=["wrong fingerprint", "no fingerprint", "key out of reach"],
)
def test_a_key_that_cannot_be_trusted_stops_everything_before_the_node_is_touched(
    docker: Node, source: dict[str, str], exit: int, printed: str
) -> None:
    base = yaml.safe_load(docker.lab.spec.read_text())["sources"]
    docker.sh("mv /usr/share/keyrings/gpunode-nvidia-cuda.asc /root/")
    before = docker.sh(TREE)
    docker.set({"sources": base | {"nvidia-cuda": base["nvidia-cuda"] | source}, "driver": {"branch": "595"}})
    try:
        done = docker.gpunode("provision", "--yes", exit=exit)
        assert printed in done.stdout + done.stderr
        assert docker.sh(TREE) == before
    finally:
        docker.set({"driver": {"branch": "595"}})
        docker.sh("mv /root/gpunode-nvidia-cuda.asc /usr/share/keyrings/")


def test_a_repository_that_is_down_fails_clearly_and_leaves_the_packages_alone(docker: Node) -> None:
    base = yaml.safe_load(docker.lab.spec.read_text())["sources"]
    packages = docker.sh("dpkg-query -W")
    away = base | {"nvidia-cuda": base["nvidia-cuda"] | {"url": base["nvidia-cuda"]["url"] + "/gone"}}
    docker.set({"sources": away, "cuda": {"versions": ["13.1"]}, "driver": {"branch": "595"}})
    try:
        host = docker.json("provision", "--yes", exit=1)
        assert "gone" in host["message"] or "nvidia-cuda" in host["message"]
        assert docker.sh("dpkg-query -W") == packages
    finally:
        docker.set({"driver": {"branch": "595"}})
        docker.gpunode("provision", "--yes")


def test_a_run_that_was_killed_is_finished_by_the_next(docker: Node, controller: dict[str, str]) -> None:
    """SIGKILL on everything that runs on the node, again and again; then one quiet run."""
    docker.set({"driver": {"branch": "595"}, "runtimes": {"containerd": {"default_runtime": "nvidia"}}})
    command = ["gpunode", "provision", "-i", str(docker.lab.inventory), "-c", str(docker.spec), "--yes"]
    for delay in (1.5, 2.5, 3.5, 5.0):
        with subprocess.Popen(command, env=controller, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            time.sleep(delay)
            docker.sh(KILL)
            run.kill()
    done = docker.json("provision", "--yes")
    assert not failed(done)
    assert docker.json("plan")["converged"]
    assert not failed(docker.json("verify"))
    assert "default_runtime_name" in docker.sh("cat /etc/containerd/config.toml")


def test_a_user_without_root_sees_the_driver(docker: Node, run_gpunode: Any, tmp_path: Path) -> None:
    """What the kernel shows to all, in the lab as elsewhere; what only root may read is named as unseen."""
    inventory = yaml.safe_load(docker.lab.inventory.read_text())
    inventory["all"]["vars"] |= {"ansible_user": "admin", "ansible_become": False}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump(inventory))
    (host,) = json.loads(run_gpunode("detect", "-i", path, "--format", "json").stdout)["hosts"]
    assert host["facts"]["driver"]["loaded"].startswith("595.")
    assert not host["facts"]["root"]


def test_hosts_that_cannot_be_reached_do_not_hold_up_the_others(docker: Node, run_gpunode: Any, tmp_path: Path) -> None:
    inventory = yaml.safe_load(docker.lab.inventory.read_text())
    inventory["all"]["hosts"] = {"gone": {"ansible_host": "127.0.0.1", "ansible_port": 9}}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump(inventory))
    done = run_gpunode("plan", "-i", path, "-c", docker.spec, "--format", "json", exit=4)
    hosts = {h["host"]: h for h in json.loads(done.stdout)["hosts"]}
    assert "error" in hosts["gone"]
    assert len(hosts) == 2


def test_static_playbooks_decide_by_the_same_core(docker: Node, tmp_path: Path) -> None:
    """Ansible alone, on the example's playbook; a node that has converged is changed in nothing."""
    spec = yaml.safe_load(docker.spec.read_text())
    variables = tmp_path / "vars.yml"
    variables.write_text(yaml.safe_dump({"gpunode_spec": spec}))
    root = Path(__file__).parents[2]
    for playbook in ("detect", "provision", "verify"):
        command = ["ansible-playbook", "-i", docker.lab.inventory, "-e", f"@{variables}", f"playbooks/{playbook}.yml"]
        done = subprocess.run(list(map(str, command)), cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "changed=0" in done.stdout, done.stdout


@pytest.mark.parametrize("distro", ["debian:13", pytest.param("ubuntu:24.04", marks=pytest.mark.extended)])
def test_engines_that_are_not_there_are_installed_when_the_spec_asks_for_them(
    distro: str, lab_up: Any, run_gpunode: Any, tmp_path: Path
) -> None:
    """And again after an uninstall: Ubuntu's docker.io leaves its socket behind, with which Docker does not start."""
    install = {"containerd": {"manage": "install"}, "docker": {"manage": "install"}}
    lab = lab_up(distro=distro, engines=())
    node = Node(lab, run_gpunode, tmp_path, {"runtimes": install})
    done = node.json("provision", "--yes")
    assert not failed(done)
    assert {"containerd.cri-default", "docker.default"} <= passed(done)
    assert node.json("provision", "--yes")["changed"] == []
    assert "overlay" in node.sh("cat /etc/modules-load.d/gpunode.conf")
    node.json("uninstall", "--yes")
    assert node.sh("systemctl list-units --plain --no-legend --state=active | grep not-found || true") == ""
    assert not failed(node.json("provision", "--yes"))
