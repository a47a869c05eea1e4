"""NVIDIA's DRA driver under a real kubelet: claims from gpunode's classes to containers, by containerd 2.x and CDI.

The folder that GPUNODE_KUBERNETES names holds the driver's program as `gpu-kubelet-plugin`.  Its chart needs Helm: the
DaemonSet here has what the chart's has for GPUs, with the values that gpunode renders for it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import FOLDER, REASON, SAMPLE, Cluster, failed, wait_for

from gpunode.lab.kubernetes.archives import write_archive

PROGRAM = Path(FOLDER, "gpu-kubelet-plugin")
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not FOLDER, reason=REASON),
    pytest.mark.skipif(not PROGRAM.exists(), reason=f"{REASON} with gpu-kubelet-plugin"),
]
NODE = "t-kube-dra-1"
SPEC: dict[str, Any] = {"kubernetes": {}, "sharing": {"strategy": "dra"}}
SHARES: dict[str, Any] = {"kubernetes": {}, "sharing": {"strategy": "dra", "dra": {"shares": "memory"}}}
RELEASE = {"name": "dra-driver-nvidia-gpu", "namespace": "gpunode"}
IMAGE = "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu:lab"
ROOT = "/opt/lab-driver"  # the driver's files without the node's C library
WHOLE = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
DRIVER_FILES = f"""set -e
mkdir -p {ROOT}/usr/lib/x86_64-linux-gnu {ROOT}/usr/bin
for library in /usr/lib/*-linux-gnu/libnvidia-ml.so.* /usr/lib/*-linux-gnu/libcuda.so.*; do
    cp -a $library {ROOT}/usr/lib/x86_64-linux-gnu/
done
cp /usr/bin/nvidia-smi {ROOT}/usr/bin/
ctr -n k8s.io images import /root/dra.tar
"""


def driver_objects(values: dict[str, Any]) -> list[dict[str, Any]]:
    """What the chart has for the kubelet's plugin for GPUs, with the rights of its ClusterRole."""
    name = "dra-driver-nvidia-gpu-kubelet-plugin"
    helm = {f"meta.helm.sh/release-{key}": value for key, value in RELEASE.items()}  # as Helm marks what it installs
    account = {"name": name, "namespace": "gpunode", "annotations": helm}
    rules = [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["get", "update", "patch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"],
         "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "update", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    ]  # fmt: skip
    folders = {"plugins": "/var/lib/kubelet/plugins", "registry": "/var/lib/kubelet/plugins_registry",
               "cdi": "/var/run/cdi", "driver-root": ROOT}  # fmt: skip
    places = {**folders, "driver-root": "/driver-root"}
    mounts = [
        {"name": key, "mountPath": path, **({"mountPropagation": "Bidirectional"} if key == "plugins" else {})}
        for key, path in places.items()
    ]
    environment = {
        "NVIDIA_DRIVER_ROOT": ROOT,
        "NVIDIA_VISIBLE_DEVICES": "void",
        "CDI_ROOT": "/var/run/cdi",
        "NVIDIA_CDI_HOOK_PATH": "/usr/bin/nvidia-cdi-hook",
        "IMAGE_NAME": IMAGE,
        "KUBELET_REGISTRAR_DIRECTORY_PATH": folders["registry"],
        "KUBELET_PLUGINS_DIRECTORY_PATH": folders["plugins"],
        "FEATURE_GATES": ",".join(f"{gate}={str(on).lower()}" for gate, on in values.get("featureGates", {}).items()),
        "CONSUMABLE_SHARES": str(values.get("consumableShares", "")),
        "LD_LIBRARY_PATH": "/driver-root/usr/lib/x86_64-linux-gnu",
    }
    fields = {"NODE_NAME": "spec.nodeName", "NAMESPACE": "metadata.namespace"}
    container = {
        "name": "gpus",
        "image": IMAGE,
        "command": ["gpu-kubelet-plugin", "-v", "4"],
        "securityContext": {"privileged": True},
        "env": [{"name": key, "value": value} for key, value in environment.items() if value]
        + [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()],
        "volumeMounts": mounts,
    }
    volumes = [{"name": key, "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for key, path in folders.items()]
    template = {"metadata": {"labels": {"app": name}},
                "spec": {"serviceAccountName": name, "containers": [container], "volumes": volumes}}  # fmt: skip
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
         "rules": rules},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
         "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "gpunode"}]},
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"},
         "spec": {"selectors": [{"cel": {"expression": WHOLE}}]}},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": account,
         "spec": {"selector": {"matchLabels": {"app": name}}, "template": template}},
    ]  # fmt: skip


def install(cluster: Cluster, spec: Path) -> None:
    """The driver with the values that gpunode renders, as `helm upgrade --install` would."""
    out = cluster.folder / "rendered"
    shutil.rmtree(out, ignore_errors=True)
    cluster.gpunode("kube", "render", "-c", spec, "--server-version", "1.36", "-o", out)
    (values,) = out.rglob("dra-driver-nvidia-gpu.yml")
    cluster.apply(*driver_objects(yaml.safe_load(values.read_text())))
    cluster.kubectl("-n", "gpunode", "rollout", "status", "ds/dra-driver-nvidia-gpu-kubelet-plugin", "--timeout=90s")
    wait_for(lambda: cluster.get("resourceslices")["items"])


@pytest.fixture(scope="module")
def cluster(
    cluster_up: Callable[..., Cluster],
) -> Cluster:
    """A node with containerd 2.x, which knows CDI, and the driver's image."""
    cluster = cluster_up(1, name="t-kube-dra", distro="ubuntu:24.04")
    (node,) = cluster.lab.nodes
    write_archive(cluster.folder / "dra.tar", [IMAGE], {"/usr/bin/gpu-kubelet-plugin": PROGRAM})
    subprocess.run(["podman", "cp", cluster.folder / "dra.tar", f"{node.container}:/root/dra.tar"], check=True)
    spec = cluster.spec(SPEC)
    cluster.gpunode("provision", "-i", cluster.lab.inventory, "-c", spec, "--yes")
    done = cluster.lab.run(node, DRIVER_FILES)
    assert done.returncode == 0, done.stderr
    cluster.kube("apply", spec)
    install(cluster, spec)
    return cluster


def claiming(name: str, claim: str = "", template: str = "") -> dict[str, Any]:
    """A pod with a claim, that says which GPUs its container sees."""
    source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
    container = {
        "name": "c",
        "image": SAMPLE,
        "command": ["sh", "-c", "ls /dev/nvidia[0-9]*; exec sleep 3600"],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container],
            "resourceClaims": [{"name": "gpu", **source}]}  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def claim(kind: str, name: str) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    spec: dict[str, Any] = {"devices": {"requests": [request]}}
    body = {"spec": spec} if kind == "ResourceClaimTemplate" else spec
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": body}


def sees(cluster: Cluster, name: str) -> list[str]:
    wait_for(lambda: cluster.get("pod", name)["status"]["phase"] == "Running", 60)
    return re.findall(r"/dev/nvidia\d+", cluster.kubectl("logs", name))


def files(cluster: Cluster) -> list[str]:
    return cluster.lab.run(NODE, "ls /var/run/cdi").stdout.split()


def test_each_claim_gives_its_container_one_gpu_and_is_given_back(cluster: Cluster) -> None:
    (item,) = cluster.get("resourceslices")["items"]
    assert {device["name"] for device in item["spec"]["devices"]} == {"gpu-0", "gpu-1"}
    cluster.apply(claim("ResourceClaimTemplate", "one"), *(claiming(name, template="one") for name in "abc"))
    wait_for(lambda: "2/2" in cluster.kube_text("status"))
    phases = {name: cluster.get("pod", name)["spec"].get("nodeName") for name in "abc"}
    placed = [name for name, node in phases.items() if node]
    assert len(placed) == 2
    assert sorted(one for name in placed for one in sees(cluster, name)) == ["/dev/nvidia0", "/dev/nvidia1"]
    (left,) = set("abc") - set(placed)
    status = cluster.kube_text("status")
    assert re.search(rf"\n{left} +default .*cannot allocate all claims", status), status
    cluster.kubectl("delete", "pod", placed[0])
    assert len(sees(cluster, left)) == 1
    cluster.kubectl("delete", "pod", *"abc", "--ignore-not-found")
    wait_for(lambda: not [one for one in files(cluster) if "claim" in one])
    wait_for(lambda: "0/2" in cluster.kube_text("status"))


def test_verify_proves_claims(cluster: Cluster) -> None:
    assert failed(cluster.checks("verify", cluster.spec(SPEC), "--smoke")) == []


def test_two_pods_share_a_claim(cluster: Cluster) -> None:
    cluster.apply(claim("ResourceClaim", "both"), claiming("x", claim="both"), claiming("y", claim="both"))
    assert sees(cluster, "x") == sees(cluster, "y") != []
    assert "1/2" in cluster.kube_text("status")
    cluster.kubectl("delete", "pod", "x", "y")
    cluster.kubectl("delete", "resourceclaim", "both")


def test_a_gpu_that_a_pod_has_by_a_claim_is_not_cut(cluster: Cluster) -> None:
    """By the kubelet's own list; the pod sleeps, and has no device file open."""
    cluster.apply(claim("ResourceClaimTemplate", "one"), claiming("idle", template="one"))
    held = sees(cluster, "idle")
    mig = {"strategy": "mig", "mig": {"strategy": "mixed", "profiles": {"1g.10gb": 2}}}
    spec = cluster.spec({"kubernetes": {}, "sharing": mig}, "mig.yml")
    done = cluster.gpunode("provision", "-i", cluster.lab.inventory, "-c", spec, "--yes", exit=5)
    assert "instances of it that would go: default/idle" in done.stdout + done.stderr
    assert sees(cluster, "idle") == held
    cluster.kubectl("delete", "pod", "idle")


def test_the_driver_and_the_kubelet_restart_under_a_claim_and_the_node_reboots(cluster: Cluster) -> None:
    """No pod holds a claim over the reboot: a pod finds the machine's own boot id in /proc, which stays in the lab, so
    that the driver would not write its CDI files again."""
    cluster.apply(claim("ResourceClaimTemplate", "one"), claiming("stays", template="one"))
    held = sees(cluster, "stays")
    cluster.kubectl("-n", "gpunode", "delete", "pod", "--all")
    cluster.lab.run(NODE, "systemctl restart kubelet")
    wait_for(lambda: cluster.ready() == {NODE: "True"})
    wait_for(lambda: "1/2" in cluster.kube_text("status"))
    assert sees(cluster, "stays") == held
    cluster.kubectl("delete", "pod", "stays")
    boot = "cat /proc/sys/kernel/random/boot_id"
    before = cluster.lab.run(NODE, boot).stdout
    cluster.lab.run(NODE, "systemctl reboot")
    wait_for(lambda: cluster.lab.run(NODE, boot).stdout not in ("", before))
    wait_for(lambda: failed(cluster.checks("verify", cluster.spec(SPEC))) == [], 150)


def test_claims_of_memory_share_a_gpu(cluster: Cluster) -> None:
    """3 and 5 GiB on one GPU, by consumable capacity: what gpushare does, counted by the scheduler itself."""
    spec = cluster.spec(SHARES, "shares.yml")
    cluster.kube("apply", spec)
    install(cluster, spec)
    wait_for(lambda: "allowMultipleAllocations" in json.dumps(cluster.get("resourceslices")))
    found = cluster.checks("verify", spec, "--smoke")
    assert failed(found) == [], found
    assert any("kube.dra-memory" in name for checks in found.values() for name, _, _ in checks)


def test_all_is_gone_after_removal(cluster: Cluster) -> None:
    cluster.kube("remove", cluster.spec(SPEC))
    left = cluster.get("deviceclasses,resourceslices")["items"]
    assert {item["kind"] for item in left if "gpunode" in json.dumps(item["metadata"].get("labels", {}))} == set()
