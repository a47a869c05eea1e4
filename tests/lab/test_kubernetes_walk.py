"""A walk through GPUs on Kubernetes, on each release at hand: a pod that adds vectors, time-slicing,
MPS, and MIG instances, one after the other on the same node, and nothing of it afterwards.

Real: Kubernetes, containerd, NVIDIA's device plugin and MPS control daemon.  Not real: the GPUs and their driver.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster import FOLDER, GPU, REASON, SAMPLE, Cluster, failed, pod, wait_for

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(not Path(FOLDER, "nvidia-device-plugin").exists(), reason=f"{REASON} with nvidia-device-plugin"),
]
SHARED, SMALL, MIDDLE = f"{GPU}.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
SLICED = {
    "strategy": "time-slicing", "replicas": 5, "rename_by_default": True, "fail_requests_greater_than_one": True,
}  # fmt: skip
CUT = {"strategy": "mig", "mig": {"strategy": "mixed", "gpus": {"0": {"1g.10gb": 2, "2g.20gb": 2}}}}


def shared(node: Cluster, sharing: dict[str, Any], offers: dict[str, str]) -> None:
    """The hosts, then the cluster, then pods: three commands, and the node offers this and nothing else."""
    spec = node.spec({"kubernetes": {}, "sharing": sharing})
    node.gpunode("provision", "-i", node.lab.inventory, "-c", spec, "--yes")
    node.kube("apply", spec, "-i", node.lab.inventory)
    (item,) = node.get("nodes")["items"]
    there = item["status"]["allocatable"].items()
    assert {name: count for name, count in there if name.startswith("nvidia.com/") and count != "0"} == offers
    assert failed(node.checks("verify", spec, "-i", node.lab.inventory, "--smoke")) == []


def phase(node: Cluster, name: str) -> tuple[str, str]:
    status = node.get("pod", name)["status"]
    return status["phase"], status.get("reason", "")


def ran(node: Cluster, name: str, limits: dict[str, int], command: list[str] | None = None) -> str:
    """What a pod has written when it has ended well."""
    item = pod(name, limits)
    item["spec"] |= {"restartPolicy": "Never"}
    item["spec"]["containers"][0] |= {"image": SAMPLE, "command": command}
    node.apply(item)
    wait_for(lambda: phase(node, name)[0] == "Succeeded")
    said = node.kubectl("logs", name)
    node.kubectl("delete", "pod", name)
    return said


def test_from_whole_gpus_to_shares_to_instances_and_back(cluster: Cluster) -> None:
    shared(cluster, {"strategy": "none"}, {GPU: "2"})
    assert "Test PASSED" in ran(cluster, "gpu-pod", {GPU: 1})

    shared(cluster, SLICED, {SHARED: "10"})
    cluster.apply(*(pod(f"slice-{number}", {SHARED: 1}) for number in range(3)), pod("greedy", {SHARED: 2}))
    wait_for(lambda: [phase(cluster, f"slice-{number}")[0] for number in range(3)] == ["Running"] * 3)
    wait_for(lambda: phase(cluster, "greedy") == ("Failed", "UnexpectedAdmissionError"))
    assert "3/10" in cluster.kube_text("status")
    cluster.kubectl("delete", "pod", "--all", "--grace-period=1")

    shared(cluster, {"strategy": "mps", "replicas": 10}, {GPU: "20"})
    assert "Test PASSED" in ran(cluster, "mps-pod", {GPU: 1})

    shared(cluster, CUT, {SMALL: "2", MIDDLE: "2", GPU: "1"})
    listed = ran(cluster, "mig-pod", {MIDDLE: 1}, ["nvidia-smi", "-L"])
    assert listed.count("MIG 2g.20gb") == 1 and listed.count("(UUID: MIG-") == 1

    shared(cluster, {"strategy": "none"}, {GPU: "2"})
    cluster.kube("remove", cluster.spec({"kubernetes": {}}))
    assert cluster.get("namespaces", "--field-selector=metadata.name=gpunode")["items"] == []
