"""DCGM and an IMEX domain on a node with a GB200: stand-ins of the packages, the real apt and systemd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.lab import Lab

pytestmark = pytest.mark.lab

STARTED_WITH = "/run/nvidia-imex.nodes"  # the stand-in of IMEX copies there what it read


class Node:
    """One lab node, and gpunode on it."""

    def __init__(self, lab: Lab, run: Any, tmp: Path) -> None:
        self.lab, self._run = lab, run
        self.base = yaml.safe_load(lab.spec.read_text())
        self.spec = tmp / "gpunode.yml"

    def gpunode(self, verb: str, fabric: dict[str, Any], *args: str, exit: int = 0) -> dict[str, Any]:
        self.spec.write_text(yaml.safe_dump({**self.base, "toolkit": {"version": "none"}, "fabric": fabric}))
        arguments = (verb, "-i", self.lab.inventory, "-c", self.spec, *args, "--format", "json")
        [host] = json.loads(self._run(*arguments, exit=exit).stdout)["hosts"]
        return dict(host)

    def sh(self, command: str) -> str:
        done = self.lab.run(self.lab.nodes[0], command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)


@pytest.fixture(scope="module")
def node(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    lab = lab_up(distro="debian:12", gpus=("10de:2941",), engines=())
    made = Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"))
    made.sh("echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/lab")  # a machine of many tests is slow at fsync
    return made


@pytest.mark.timeout(900)
def test_dcgm_and_the_domain_come_with_the_driver(node: Node) -> None:
    fabric = {"dcgm": "4.5.3", "imex_nodes": ["10.0.7.1", "10.0.7.2"]}
    node.gpunode("provision", fabric, "--yes")
    assert node.gpunode("plan", fabric)["converged"]
    installed = node.sh("dpkg-query -W -f '${Package}=${Version}\\n' 'datacenter-gpu-manager*' nvidia-imex").split()
    assert "datacenter-gpu-manager-4-cuda13=1:4.5.3-1" in installed
    assert "datacenter-gpu-manager-4-proprietary-cuda13=1:4.5.3-1" in installed
    driver = node.sh("cat /sys/module/nvidia/version").strip()
    assert f"nvidia-imex={driver}-1" in installed
    assert node.sh("systemctl is-active nvidia-dcgm nvidia-imex; true").split() == ["active", "active"]
    assert node.sh(f"cat {STARTED_WITH}") == "10.0.7.1\n10.0.7.2\n"
    passed = [c["id"] for c in node.gpunode("verify", fabric)["checks"] if c["status"] == "passed"]
    assert "dcgm.diag" in passed


@pytest.mark.timeout(900)
def test_a_domain_that_grows_is_made_known_to_imex_and_dcgm_goes_on(node: Node) -> None:
    fabric = {"dcgm": "4.6.0", "imex_nodes": ["10.0.7.1", "10.0.7.2", "10.0.7.3"]}
    node.gpunode("provision", fabric, "--yes")
    assert node.gpunode("plan", fabric)["converged"]
    assert node.sh(f"cat {STARTED_WITH}") == "10.0.7.1\n10.0.7.2\n10.0.7.3\n"
    assert "1:4.6.0-1" in node.sh("dpkg-query -W datacenter-gpu-manager-4-core")
    assert node.sh("apt-mark showhold").split().count("datacenter-gpu-manager-4-core") == 1
