"""aarch64: an emulated Debian, NVIDIA's repository for servers (sbsa), the way to proven pods and back."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from test_provision import Node, make_it_so

from gpunode.lab import emulation, labs

pytestmark = [pytest.mark.lab, pytest.mark.timeout(2700)]

PACKAGES = "dpkg-query -W -f '${db:Status-Abbrev}${Package} ${Architecture}\\n' | grep ^ii"


@pytest.fixture(scope="module")
def node(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Node:
    lab = lab_up(distro="debian:12+arm64", engines=("containerd",), name="t-arm64", python=False)
    return Node(lab, run_gpunode, tmp_path_factory.mktemp("spec"), {"cuda": {"versions": ["12.8"]}})


def test_a_node_is_an_aarch64_to_all_that_asks(node: Node) -> None:
    assert node.sh("uname -m; dpkg --print-architecture").split() == ["aarch64", "arm64"]
    assert {line.split()[-1] for line in node.sh(PACKAGES).splitlines()} == {"arm64", "all"}
    assert node.sh("su admin -c 'sudo -n id -u'").strip() == "0"
    [host] = json.loads(node.gpunode("detect", "--format", "json").stdout)["hosts"]
    assert host["facts"]["arch"] == "aarch64"


def test_from_nvidias_repository_for_servers_to_proven_pods_and_back(node: Node, run_gpunode: Any) -> None:
    before = node.sh(PACKAGES)
    make_it_so(node, {"driver.smi", "containerd.binary", "containerd.cri-nvidia", "cuda.nvcc-12.8"})
    sources = node.sh("cat /etc/apt/sources.list.d/*nvidia*")
    assert "/debian12/sbsa" in sources and "stable/deb/arm64" in sources and "x86_64" not in sources
    assert "aarch64" in node.sh("cat /proc/driver/nvidia/version")
    assert "aarch64" in node.sh("file=$(modinfo -n nvidia); od -An -tx1 -j18 -N2 $file | grep -q 'b7 00' && uname -m")
    undone = run_gpunode("uninstall", "-i", node.lab.inventory, "--yes", "--format", "json")
    [host] = json.loads(undone.stdout)["hosts"]
    assert host["changed"]
    left = set(node.sh(PACKAGES).splitlines()) - set(before.splitlines())
    assert not [line for line in left if "nvidia" in line or "cuda" in line]
    assert "nvidia" not in node.sh("lsmod; ls /etc/apt/sources.list.d /etc/containerd/conf.d 2>/dev/null || true")


def test_with_the_last_node_the_emulation_ends(node: Node) -> None:
    folder: Path = emulation._folder()
    assert folder.is_mount()
    labs.down([node.lab.nodes[0].name], log=lambda _: None)
    others = [one for one in labs.nodes.load_nodes() if one.distro.endswith("+arm64")]
    deadline = time.monotonic() + 600  # where another lab is making an image, it ends with that
    while folder.is_mount() != bool(others) and time.monotonic() < deadline:
        time.sleep(1)
    assert folder.is_mount() == bool(others)
