"""The whole way on a node of each container engine: from nothing to containers with GPUs, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import undo_node
from test_provision import TRACE, Node, make_it_so

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


def there_and_back(node: Node, run_gpunode: Any, tmp_path: Path, proofs: set[str], *commands: str) -> None:
    """`commands` succeed on the provisioned node; after uninstall its tree is what it was, to the byte."""
    camera = undo_node.Node(node.lab, run_gpunode, tmp_path)
    fresh = camera.photo()
    make_it_so(node, proofs)
    for command in commands:
        node.sh(command)
    done = run_gpunode("uninstall", "-i", node.lab.inventory, "--yes", "--format", "json")
    assert json.loads(done.stdout)["hosts"][0]["message"] == "as it was before gpunode"
    assert camera.differs(fresh) == ""


def test_a_node_with_containerd_goes_from_nouveau_to_proven_pods_and_back(
    lab_up: Any, run_gpunode: Any, tmp_path: Path
) -> None:
    """Debian 12, containerd 1.6 alone, one H100 that nouveau holds."""
    lab = lab_up(name="test-containerd", distro="debian:12", gpus=("h100",), nouveau=True, engines=("containerd",))
    node = Node(lab, run_gpunode, tmp_path, {"cuda": {"versions": ["12.8"]}})
    facts = node.gpunode("detect", "--format", "json").stdout
    assert "10de:2330" in facts and "nouveau" in facts
    there_and_back(
        node,
        run_gpunode,
        tmp_path,
        {"containerd.binary", "containerd.cri-nvidia", "containerd.cri-default", "cuda.nvcc-12.8"},
        f"grep -q NVIDIA_VISIBLE_DEVICES {TRACE}",
        "[ \"$(bash -lc 'command -v nvcc')\" = /usr/local/cuda/bin/nvcc ]",
        "! lsmod | grep nouveau",
    )


def test_a_node_with_docker_and_without_python_runs_containers_with_all_its_gpus_and_goes_back(
    lab_up: Any, run_gpunode: Any, tmp_path: Path
) -> None:
    """Debian 13, docker and containerd, two RTX 3090, no Python on the node."""
    lab = lab_up(name="test-docker", distro="debian:13", gpus=("10de:2204", "10de:2204"), python=False)
    there_and_back(
        Node(lab, run_gpunode, tmp_path, {"driver": {"branch": "595"}}),
        run_gpunode,
        tmp_path,
        {"docker.runtime", "docker.default", "docker.gpus-all", "docker.runtime.gpus"},
        "! ls /usr/bin | grep python3",
    )
