"""The whole way on one node of a real cluster, with each generation of containerd that the lab has."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import FOLDER, REASON, Cluster

from gpunode.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FOLDER, reason=REASON)]


@pytest.mark.parametrize(
    ("distro", "release"),
    [("ubuntu:22.04", "containerd://"), ("ubuntu:24.04", "containerd://2.")],
)
def test_from_a_new_node_to_a_pod_with_a_gpu(
    distro: str,
    release: str,
    lab_up: Callable[..., Lab],
    run_gpunode: Callable[..., subprocess.CompletedProcess[str]],
    controller: dict[str, str],
    tmp_path: Path,
) -> None:
    name = "t-kube-" + distro.partition(":")[2].replace(".", "").replace("+", "-")
    with lab_up(1, name=name, distro=distro, kubernetes=FOLDER, engines=("containerd",)) as lab:
        cluster = Cluster(lab=lab, folder=tmp_path, run_gpunode=run_gpunode, controller=controller)
        (node,) = cluster.get("nodes")["items"]
        assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith(release)
        spec = cluster.spec({"kubernetes": {}})
        cluster.gpunode("provision", "-i", lab.inventory, "-c", spec, "--yes")
        cluster.kube("apply", spec)
        found = cluster.checks("verify", spec, "--smoke")
        assert [one for checks in found.values() for one in checks if one[1] != "passed"] == []
        assert "nothing to do" in cluster.gpunode("provision", "-i", lab.inventory, "-c", spec, "--yes").stdout
