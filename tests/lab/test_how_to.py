"""The examples of the guide, followed word for word on lab nodes.

An example calls its nodes gpu1, ws1 or k1; files of variables beside its inventory lead these to lab nodes and their
package repositories.  Where a page means the reader's own machine, or a program of it, a lab node stands for it.
The cluster is the API of tests/unit/api_server.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grub import put_grub
from page import Reader, section

from gpunode.lab import Lab

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/unit"))

from api_nodes import Nodes  # noqa: E402
from api_server import ApiServer, workloads_become_ready  # noqa: E402
from kube_cluster import node as cluster_node  # noqa: E402
from test_kube_nodes import K3S, KUBELET  # noqa: E402

pytestmark = pytest.mark.lab
LabUp = Callable[..., Lab]


class Site:
    """A folder in which an example is followed, and lab nodes for the hosts that it names."""

    def __init__(self, folder: Path, state: Path, lab_up: LabUp) -> None:
        self.folder, self._up = folder, lab_up
        self.labs: list[Lab] = []
        self.environment = {
            **os.environ,
            "PATH": f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(state),
        }
        program = folder / "bin/gpunode"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpunode "$@"\n')
        program.chmod(0o755)

    def host(self, name: str, up: LabUp | None = None, **shape: Any) -> Lab:
        """A node that the page calls `name`."""
        lab = (up or self._up)(name=f"t-{self.folder.parent.name[:12].replace('_', '-')}-{name}", **shape)
        self.labs.append(lab)
        found = yaml.safe_load(lab.inventory.read_text())["all"]
        variables = found["vars"] | {"ansible_host": lab.nodes[0].address, "ansible_connection": "ssh"}
        variables["gpunode_spec"] = yaml.safe_load(lab.spec.read_text())
        (self.folder / "host_vars").mkdir(exist_ok=True)
        (self.folder / f"host_vars/{name}.yml").write_text(yaml.safe_dump(variables))
        return lab

    def follow(self, page: str, title: str, instead: dict[str, str] | None = None) -> None:
        """Follow one section of a page."""
        reader = Reader(self.folder, self.environment, instead=instead or {})
        try:
            assert reader.follow(section((ROOT / "docs" / page).read_text(), title)) > 0
        finally:
            reader.close()


@pytest.fixture
def site(tmp_path: Path, lab_up: LabUp) -> Iterator[Site]:
    found = Site(tmp_path / "site", tmp_path / "state", lab_up)
    yield found
    for lab in found.labs:
        lab.down()


@pytest.fixture
def cluster(site: Site) -> Iterator[ApiServer]:
    """A cluster that the page's kubeconfig leads to."""
    server = ApiServer()
    server.controllers.append(workloads_become_ready)
    Nodes(server)
    site.environment["KUBECONFIG"] = str(server.kubeconfig(site.folder / "kubeconfig"))
    yield server
    server.close()
    assert server.unexpected == []


def at(lab: Lab, command: str) -> str:
    done = lab.run(lab.nodes[0], command)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return str(done.stdout)


def on(lab: Lab, program: str) -> str:
    """A program of the node's, as a command of this machine."""
    return f"ssh -F {lab.ssh_config} {lab.nodes[0].name} {program}"


def test_docker_workstation(site: Site) -> None:
    lab = site.host("localhost", distro="debian:12", gpus=("h100",), nouveau=True)
    site.follow(
        "provision.md",
        "One machine with Docker",
        {"plan --local": "plan -i hosts.yml", "provision --local": "provision -i hosts.yml",
         "verify --local": "verify -i hosts.yml", "docker info --format": on(lab, "docker info --format"),
         "'{{.": "\"'{{.", "}}'": "}}'\""},
    )  # fmt: skip
    assert "nvidia-container-runtime" in at(lab, "cat /etc/docker/daemon.json")


def test_kubeadm_and_then_awx(site: Site, cluster: ApiServer) -> None:
    lab = site.host("gpu1", distro="debian:12", gpus=("h100",), nouveau=True)
    at(lab, re.sub(r"v1\.30\.14", "v1.34.2", KUBELET))
    cluster.put(cluster_node("gpu1", address=lab.nodes[0].address, allocatable={"nvidia.com/gpu": "1"}))
    site.follow("cluster.md", "kubeadm with containerd")
    site.follow("ansible.md", "AWX and Automation Platform")
    assert "cuda-12.8" in at(lab, "ls /usr/local")


def test_k3s(site: Site, cluster: ApiServer) -> None:
    lab = site.host("k1", distro="debian:12", gpus=("h100",), engines=("containerd",))
    at(lab, K3S.replace("v1.31.5", "v1.34.2"))
    cluster.put(cluster_node("k1", address=lab.nodes[0].address, allocatable={"nvidia.com/gpu": "1"}))
    site.follow("cluster.md", "k3s and RKE2")
    assert "default-runtime: nvidia" in at(lab, "cat /etc/rancher/k3s/config.yaml")


def test_mixed_fleet(site: Site) -> None:
    training = site.host("gpu1", distro="debian:12", gpus=("h100", "h100"), engines=("containerd",))
    workstation = site.host("ws1", distro="debian:12", gpus=("10de:2204",))
    site.follow("fleet.md", "Example: a mixed fleet")
    assert "cuda-12.8" in at(workstation, "ls /usr/local")
    assert "cuda" not in at(training, "ls /usr/local")


def test_mig(site: Site) -> None:
    lab = site.host("gpu1", distro="debian:12", gpus=("h100",), engines=("containerd",))
    site.follow("sharing.md", "Example: MIG on one node", {"ssh root@gpu1": on(lab, "")})
    assert at(lab, "systemctl is-enabled gpunode-mig.service").strip() == "enabled"


RECORDS = ROOT / "tests/cases/accept"
TOOLS = {
    "dcgmi": "dcgm-3-8-gpus-with-a-warning-before",
    "nvbandwidth": "nvbandwidth-0.10-8-h100",
    "all_reduce_perf": "nccl-h100-8-nvls",
    "gpu-fryer": "gpu-fryer-8-h100",
    "ib_write_bw": "ib-write-bw-200g",
}


def test_tune_a_training_pool(site: Site, provisioned: LabUp) -> None:
    lab = site.host("gpu1", provisioned, distro="debian:13", gpus=("h100",), engines=("containerd",))
    put_grub(lab)
    site.follow("tuning.md", "Tune a training pool")
    assert "iommu=pt" in at(lab, "cat /proc/cmdline")
    assert at(lab, "cat /proc/sys/net/core/somaxconn").strip() == "8192"


def test_accept_a_new_rack(site: Site) -> None:
    """On nodes with eight stub GPUs, and tools that print what real ones printed."""
    for name in ("gpu1", "gpu2"):
        lab = site.host(name, distro="debian:12", gpus=("h100",) * 8, engines=("containerd",))
        (site.folder / f"{name}.yml").write_text(f"all: {{hosts: {{{name}: }}}}\n")
        provision = ["gpunode", "provision", "-i", f"{name}.yml", "--yes"]
        subprocess.run(provision, cwd=site.folder, env=site.environment, check=True)
        for tool, case in TOOLS.items():
            printed = (RECORDS / f"{case}.case").read_text().partition("---\n")[2]
            body = f"#!/bin/sh\ncat <<'END'\n{printed}END\n"
            at(lab, f"cat >/usr/local/bin/{tool} <<'STUB'\n{body}STUB\nchmod 755 /usr/local/bin/{tool}")
    site.follow("acceptance.md", "Accept a new rack")
    page = (site.folder / "rack7/report.html").read_text()
    assert "8 × 10de:2330 (nvswitch)" in page
    record = json.loads((site.folder / "rack7/records/gpu1.json").read_text())
    checks = {check["id"]: check["status"] for check in record["checks"]}
    assert (checks["accept.h2d"], checks["accept.allreduce.way"], checks["accept.allreduce"]) == (
        "passed", "passed", "not-proven",
    )  # fmt: skip
    assert {stage["stage"] for stage in record["stages"]} >= {"inventory", "dcgm", "nccl", "gemm", "soak", "pair"}
