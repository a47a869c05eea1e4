"""Sharing of GPUs on a real kubelet: NVIDIA's device plugin with its MPS control daemon, one node with two GPUs.

Not real: the GPUs, the library that NVIDIA's programs ask, and nvidia-cuda-mps-control, of which the lab has a stub
with the real one's commands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import FOLDER, REASON, Cluster, wait_for

from gpunode.core.model import ENDS

_NEEDED = ("nvidia-device-plugin", "gpu-feature-discovery", "mps-control-daemon")
_LACKING = [name for name in _NEEDED if not Path(FOLDER, name).exists()]
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not FOLDER, reason=REASON),
    pytest.mark.skipif(bool(_LACKING), reason=f"{FOLDER} has no {', '.join(_LACKING)}"),
]

NODE = "t-kube-sharing-1"
GPU = "nvidia.com/gpu"
VENDOR = os.environ.get("GPUNODE_VENDOR", "")
MPS = {"strategy": "mps", "replicas": 4}
SLICED = {"strategy": "time-slicing", "replicas": 4}
_SAMPLE = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"


@pytest.fixture(scope="module")
def node(
    cluster_up: Callable[..., Cluster],
) -> Cluster:
    found = cluster_up(1, name=NODE.removesuffix("-1"), vendor=VENDOR)
    found.gpunode("provision", "-i", found.lab.inventory, "-c", found.spec({"kubernetes": {}}), "--yes")
    return found


@pytest.fixture
def clean(node: Cluster) -> Iterator[Cluster]:
    """The provisioned node; what the test applied is removed afterwards."""
    yield node
    node.kubectl("delete", "pod", "--all", "--force", "-n", "default")
    node.kube("remove", node.spec({"kubernetes": {}}, "remove.yml"))


# ---------------------------------------------------------------- MPS


def test_a_client_of_mps_gets_its_share_and_the_daemon(clean: Cluster) -> None:
    spec = _applied(clean, MPS)
    found = _verified(clean, spec)  # at once: the plugin has not found the daemon yet, and tries again later
    assert _failed(found) == []
    said = {name: message for checks in found.values() for name, _, message in checks}
    assert said["kube.gpus"] == f"8 {GPU}"
    assert "kube.shared-gpu" in said
    clean.apply(_pod("client", {GPU: 1}))
    _running(clean, "client")
    asked = "echo get_default_active_thread_percentage | nvidia-cuda-mps-control"
    seen = clean.kubectl("exec", "client", "--", "sh", "-c", f"env; cat /proc/mounts; {asked}")
    assert "CUDA_MPS_PIPE_DIRECTORY=/mps/nvidia.com/gpu/pipe" in seen
    assert "shm /dev/shm tmpfs" in seen
    assert " /mps/nvidia.com/gpu/pipe " in seen
    assert seen.splitlines()[-1] == "25.0", "the daemon on the node answers"
    limit = clean.lab.run(NODE, "cat /run/nvidia/mps/nvidia.com/gpu/pipe/limit.0").stdout.strip()
    assert limit == f"{81559 // 4}M"
    assert "1/8" in clean.kube_text("status")
    assert _compute_mode(clean) == "Exclusive_Process"
    labels = clean.lab.run(NODE, "cat /etc/kubernetes/node-feature-discovery/features.d/gfd").stdout.splitlines()
    assert {"nvidia.com/mps.capable=true", "nvidia.com/gpu.replicas=4"} <= set(labels)
    greedy = _pod("greedy", {GPU: 2})
    clean.apply(greedy)
    wait_for(lambda: "maximum request size" in clean.get("pod", "greedy")["status"].get("message", ""))


def test_from_mps_to_slices_to_whole_gpus_nothing_of_the_daemon_stays(clean: Cluster) -> None:
    """NVIDIA's daemon leaves a tmpfs and its folders on the host: they go with its pod."""
    _applied(clean, MPS)
    wait_for(lambda: clean.allocatable(GPU) == {NODE: "8"})
    assert _left(clean) != ("", "")
    spec = _applied(clean, SLICED | {"replicas": 3})
    assert _left(clean) == ("", "")
    assert _compute_mode(clean) == "Default"
    wait_for(lambda: clean.allocatable(GPU) == {NODE: "6"})
    assert _failed(_verified(clean, spec)) == []
    whole = _applied(clean, {"strategy": "none"})
    wait_for(lambda: clean.allocatable(GPU) == {NODE: "2"})
    assert _failed(_verified(clean, whole)) == []
    _applied(clean, MPS)
    wait_for(lambda: clean.allocatable(GPU) == {NODE: "8"})
    clean.kube("remove", whole)
    assert _left(clean) == ("", "")
    assert _compute_mode(clean) == "Default"


def test_a_daemon_that_is_replaced_serves_the_plugin_that_stayed(clean: Cluster) -> None:
    _applied(clean, MPS)
    wait_for(lambda: clean.allocatable(GPU) == {NODE: "8"})
    clean.kubectl("-n", "gpunode", "delete", "pod", "-l", "app.kubernetes.io/name=mps-control-daemon")
    wait_for(lambda: "1/1" in clean.kubectl("-n", "gpunode", "get", "ds", "mps-control-daemon", "-o", _READY))
    clean.kubectl("-n", "gpunode", "exec", "ds/nvidia-device-plugin", "--", "sh", "-c", "kill -HUP 1")
    clean.apply(_pod("client", {GPU: 1}))
    _running(clean, "client")
    wait_for(lambda: clean.allocatable(GPU) == {NODE: "8"})


def test_without_an_inventory_the_daemon_is_where_the_labels_say_that_mps_is(clean: Cluster) -> None:
    """Finding: the plugin took MPS as the configuration of unmarked nodes, and no daemon ever came there."""
    spec = clean.spec({"kubernetes": {}, "sharing": MPS})
    clean.kube("apply", spec, "--no-wait")
    clean.kubectl("label", "node", NODE, "nvidia.com/mps.capable=true")  # what NFD makes of GFD's file
    try:
        wait_for(lambda: clean.allocatable(GPU) == {NODE: "8"})
        assert _failed(clean.checks("verify", spec)) == []
    finally:
        clean.kubectl("label", "node", NODE, "nvidia.com/mps.capable-")


def test_a_node_changes_its_pool_and_with_it_how_its_gpus_are_shared(clean: Cluster) -> None:
    pools = {
        "whole": {"nodes": "kind=whole"},
        "sliced": {"nodes": "kind=sliced", "sharing": SLICED | {"rename_by_default": True}},
        "mps": {"nodes": "kind=mps", "sharing": MPS | {"replicas": 5, "fail_requests_greater_than_one": True}},
    }
    spec = clean.spec({"kubernetes": {"pools": pools}})
    offered = {"mps": (GPU, "10"), "sliced": (f"{GPU}.shared", "8"), "whole": (GPU, "2")}
    for pool in ("mps", "sliced", "mps", "whole"):
        clean.kubectl("label", "--overwrite", "node", NODE, f"kind={pool}")
        clean.kube("apply", spec)
        resource, count = offered[pool]
        wait_for(lambda resource=resource, count=count: clean.allocatable(resource) == {NODE: count}, 120)  # type: ignore[misc]
        wait_for(lambda pool=pool: (_left(clean) == ("", "")) == (pool != "mps"))  # type: ignore[misc]
    found = clean.checks("verify", spec)
    assert [check for check in _failed(found) if check[1] in ENDS] == []
    clean.kubectl("label", "node", NODE, "kind-")


# ---------------------------------------------------------------- without CDI


def test_gpus_by_cdi_are_refused_on_an_engine_without_cdi(clean: Cluster) -> None:
    """containerd 1.6: its containers would get no GPUs, and nothing would say so."""
    plugin = {"device_plugin": {"device_list_strategy": ["cdi-cri"]}}
    spec = clean.spec({"kubernetes": plugin})
    for words in ((), ("-i", clean.lab.inventory)):
        refused = clean.kube("apply", spec, *words, exit=5)
        assert f"{NODE} cannot: containerd 1.6" in refused.stdout + refused.stderr
    planned = clean.gpunode("plan", "-i", clean.lab.inventory, "-c", spec, exit=None)
    assert planned.returncode != 0
    assert "has no CDI" in planned.stdout + planned.stderr


# ---------------------------------------------------------------- helpers

_READY = "jsonpath={.status.numberReady}/{.status.desiredNumberScheduled}"


def _applied(cluster: Cluster, sharing: dict[str, Any], **kubernetes: Any) -> Path:
    spec = cluster.spec({"kubernetes": kubernetes, "sharing": sharing})
    cluster.kube("apply", spec, "-i", cluster.lab.inventory)
    return spec


def _verified(cluster: Cluster, spec: Path) -> dict[str, list[tuple[str, str, str]]]:
    return cluster.checks("verify", spec, "-i", cluster.lab.inventory, "--smoke")


def _left(cluster: Cluster) -> tuple[str, str]:
    """What is mounted and what lies below the daemon's folder on the node."""
    mounted = cluster.lab.run(NODE, "grep /run/nvidia/mps /proc/mounts || true").stdout
    return mounted, cluster.lab.run(NODE, "find /run/nvidia/mps -mindepth 1 2>/dev/null || true").stdout


def _compute_mode(cluster: Cluster) -> str:
    return cluster.lab.run(NODE, "nvidia-smi --query-gpu=compute_mode --format=csv,noheader").stdout.split()[0]


def _failed(found: dict[str, list[tuple[str, str, str]]]) -> list[tuple[str, str, str]]:
    return [check for checks in found.values() for check in checks if check[1] != "passed"]


def _pod(name: str, limits: dict[str, int], **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": _SAMPLE, "command": ["sh", "-c", "exec sleep 3600"],
                 "resources": {"limits": limits}}  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec}}  # fmt: skip


def _running(cluster: Cluster, name: str) -> None:
    wait_for(lambda: cluster.get("pod", name)["status"]["phase"] == "Running")
