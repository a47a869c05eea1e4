"""The life of MIG layouts on a node of a real cluster: real kubelet, device plugin and feature discovery.

Not real: the GPUs and the library that NVIDIA's programs ask.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import FOLDER, GPU, REASON, SAMPLE, Cluster, failed, wait_for

_NEEDED = ("nvidia-device-plugin", "gpu-feature-discovery")
_LACKING = [name for name in _NEEDED if not Path(FOLDER, name).exists()]
pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(not FOLDER, reason=REASON),
    pytest.mark.skipif(bool(_LACKING), reason=f"{FOLDER} has no {', '.join(_LACKING)}"),
]

NODE = "t-kmig-1"
SMALL, MIDDLE, LARGE = (f"nvidia.com/mig-{profile}" for profile in ("1g.10gb", "2g.20gb", "3g.40gb"))
DRAINED = {"drain": {"when": "disruptive", "ready_timeout": 120}}


@pytest.fixture(scope="module")
def node(cluster_up: Callable[..., Cluster]) -> Cluster:
    found = cluster_up(1, name=NODE.removesuffix("-1"))
    provision(found, file(found, {}))
    return found


def mixed(**counts: int) -> dict[str, Any]:
    """`a1g10gb=2`: two of 1g.10gb, of each GPU."""
    profiles = {f"{name[1:3]}.{name[3:]}": count for name, count in counts.items()}
    return {"strategy": "mig", "mig": {"strategy": "mixed", "profiles": profiles}}


def file(node: Cluster, sharing: dict[str, Any], **more: Any) -> Path:
    return node.spec({"kubernetes": {}, "sharing": sharing} | more)


def provision(node: Cluster, spec: Path, exit: int = 0) -> str:
    done = node.gpunode("provision", "-i", node.lab.inventory, "-c", spec, "--yes", exit=exit)
    return done.stdout + done.stderr


def offered(node: Cluster) -> dict[str, str]:
    there = node.get("node", NODE)["status"]["allocatable"]
    return {name: count for name, count in there.items() if name.startswith("nvidia.com/") and count != "0"}


def proven(node: Cluster, spec: Path, offers: dict[str, str]) -> None:
    """What the node offers, and no finding; pods have used what it offers."""
    wait_for(lambda: offered(node) == offers, 120)
    assert failed(node.checks("verify", spec, "-i", node.lab.inventory, "--smoke")) == []


def tenant(resource: str) -> dict[str, Any]:
    """A pod that sleeps in its instance, has no device file open, and starts again elsewhere."""
    container = {
        "name": "c", "image": SAMPLE, "command": ["sh", "-c", "exec sleep 3600"],
        "resources": {"limits": {resource: 1}},
    }  # fmt: skip
    labels = {"app": "tenant"}
    template = {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "tenant", "namespace": "default"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip


def test_a_node_is_cut_and_cut_otherwise_and_whole_again_and_no_tenant_loses_an_instance(node: Cluster) -> None:
    # the plugin runs before anything is cut, and offers what was; provision has it see the instances
    first = file(node, mixed(a1g10gb=2, a2g20gb=1))
    waits = node.kube("apply", first, "-i", node.lab.inventory, "--timeout", 20, exit=1)
    assert f"offers 2 {GPU}, and should offer 4 {SMALL}, 2 {MIDDLE}" in waits.stderr
    assert "still to do" not in provision(node, first)
    proven(node, first, {SMALL: "4", MIDDLE: "2"})

    # an idle tenant keeps its instance, whoever wants to take it: by the host, by the cluster
    node.apply(tenant(MIDDLE))
    wait_for(lambda: node.get("deploy", "tenant")["status"].get("readyReplicas") == 1)
    seen = node.kubectl("exec", "deploy/tenant", "--", "nvidia-smi", "-L")
    other = file(node, mixed(a3g40gb=2))
    assert "instances of it that would go: default/tenant-" in provision(node, other, exit=5)
    assert "pods hold them: default/tenant-" in node.kube("apply", other, "-i", node.lab.inventory, exit=5).stderr
    assert node.kubectl("exec", "deploy/tenant", "--", "nvidia-smi", "-L") == seen
    assert offered(node) == {SMALL: "4", MIDDLE: "2"}

    # an instance that no pod holds may go next to it
    provision(node, file(node, mixed(a1g10gb=1, a2g20gb=1)))
    wait_for(lambda: offered(node) == {SMALL: "2", MIDDLE: "2"}, 120)
    assert node.kubectl("exec", "deploy/tenant", "--", "nvidia-smi", "-L").count("MIG-") == 1

    # drained, the node is given back when it offers the new layout
    drained = file(node, mixed(a3g40gb=2), rollout=DRAINED)
    provision(node, drained)
    assert offered(node) == {LARGE: "4"} and "unschedulable" not in node.get("node", NODE)["spec"]
    node.kubectl("delete", "deploy", "tenant")
    node.kube("apply", drained, "-i", node.lab.inventory)
    proven(node, drained, {LARGE: "4"})

    # instances outlive no reboot: they are made again before the kubelet starts
    boot = "cat /proc/sys/kernel/random/boot_id"
    before = node.lab.run(NODE, boot).stdout
    node.lab.run(NODE, "systemctl reboot")
    wait_for(lambda: node.lab.run(NODE, boot).stdout not in ("", before))
    wait_for(lambda: node.ready() == {NODE: "True"}, 120)
    proven(node, drained, {LARGE: "4"})

    # shares of instances, instances as GPUs, and whole GPUs
    halves = {"strategy": "time-slicing", "replicas": 2, "mig": mixed(a3g40gb=2)["mig"]}
    sevenths = {"strategy": "mig", "mig": {"strategy": "single", "profiles": {"1g.10gb": 7}}}
    for sharing, offers in ((halves, {LARGE: "8"}), (sevenths, {GPU: "14"}), ({"strategy": "none"}, {GPU: "2"})):
        spec = file(node, sharing, rollout=DRAINED)
        node.kube("apply", spec, "-i", node.lab.inventory, "--no-wait")
        provision(node, spec)
        proven(node, spec, offers)


def test_a_driver_is_upgraded_under_pods_that_have_instances(node: Cluster) -> None:
    """Drained, the instances are made again by the new driver, and the pods come back to them."""
    layout = mixed(a1g10gb=2)
    node.kube("apply", file(node, layout), "-i", node.lab.inventory, "--no-wait")
    provision(node, file(node, layout, rollout=DRAINED))
    wait_for(lambda: offered(node) == {SMALL: "4"}, 120)
    node.apply(tenant(SMALL))
    wait_for(lambda: node.get("deploy", "tenant")["status"].get("readyReplicas") == 1)
    new = file(node, layout, rollout=DRAINED, driver={"branch": "595"})
    assert "still to do" not in provision(node, new)
    assert " 595." in node.lab.run(NODE, "cat /proc/driver/nvidia/version").stdout
    assert offered(node) == {SMALL: "4"} and "unschedulable" not in node.get("node", NODE)["spec"]
    wait_for(lambda: node.get("deploy", "tenant")["status"].get("readyReplicas") == 1)
    assert node.kubectl("exec", "deploy/tenant", "--", "nvidia-smi", "-L").count("MIG 1g.10gb") == 1
    node.kubectl("delete", "deploy", "tenant")
    proven(node, new, {SMALL: "4"})


def test_a_kubelet_with_another_folder_offers_instances_and_its_tenants_keep_them(node: Cluster) -> None:
    flags, folder = "/var/lib/kubelet/kubeadm-flags.env", "/data/kubelet"
    layout = file(node, mixed(a1g10gb=2), kubernetes={"kubelet_dir": folder}, driver={"branch": "595"})
    node.lab.run(NODE, f"sed -i.old 's|=\"|=\"--root-dir={folder} |' {flags} && systemctl restart kubelet")
    try:
        node.kube("apply", layout, "-i", node.lab.inventory, "--no-wait")
        provision(node, layout)
        proven(node, layout, {SMALL: "4"})
        node.apply(tenant(SMALL))
        wait_for(lambda: node.get("deploy", "tenant")["status"].get("readyReplicas") == 1)
        assert node.lab.run(NODE, f"ls {folder}/pods").stdout
        other = file(node, mixed(a3g40gb=2), kubernetes={"kubelet_dir": folder}, driver={"branch": "595"})
        assert "instances of it that would go: default/tenant-" in provision(node, other, exit=5)
    finally:
        node.kubectl("delete", "deploy", "tenant", "--ignore-not-found")
        node.lab.run(NODE, f"mv {flags}.old {flags} && systemctl restart kubelet")
