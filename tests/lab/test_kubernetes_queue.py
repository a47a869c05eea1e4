"""gpunode with Kueue: what Kueue has is left in peace, and its scheduling gates are named.

GPUNODE_KUEUE names a folder with `kueue.yml`, the objects of its release, and `image.tar`, the image that they name.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from cluster import FOLDER, GPU, REASON, SAMPLE, Cluster, failed, pod, wait_for

KUEUE = os.environ.get("GPUNODE_KUEUE", "")
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not FOLDER, reason=REASON),
    pytest.mark.skipif(not KUEUE, reason="GPUNODE_KUEUE names no folder with Kueue"),
]
QUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}
API = "kueue.x-k8s.io/v1beta2"
OLD = {"kubernetes": {}, "driver": {"branch": "580"}}
QUEUES = (
    {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "any"}},
    {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": "gpus"},
     "spec": {"namespaceSelector": {}, "resourceGroups": [
         {"coveredResources": [GPU], "flavors": [{"name": "any", "resources": [{"name": GPU, "nominalQuota": 2}]}]}]}},
    {"apiVersion": API, "kind": "LocalQueue", "metadata": {"name": "gpus", "namespace": "default"},
     "spec": {"clusterQueue": "gpus"}},
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster(
    cluster_up: Callable[..., Cluster],
) -> Cluster:
    """A node with two GPUs that gpunode has set up, and Kueue with a queue of two GPUs."""
    cluster = cluster_up(1, name="t-kube-queue")
    (node,) = cluster.lab.nodes
    subprocess.run(["podman", "cp", f"{KUEUE}/image.tar", f"{node.container}:/root/kueue.tar"], check=True)
    assert cluster.lab.run(node, "ctr -n k8s.io images import /root/kueue.tar && rm /root/kueue.tar").returncode == 0
    spec = cluster.spec(OLD)
    cluster.gpunode("provision", "-i", cluster.lab.inventory, "-c", spec, "--yes")
    cluster.kube("apply", spec)
    cluster.kubectl("apply", "--server-side", "-f", f"{KUEUE}/kueue.yml")
    wait_for(lambda: kueue_is_up(cluster), 180)
    wait_for(lambda: "error" not in cluster.kubectl("apply", "-f", "-", stdin=texts(QUEUES), check=False).lower(), 60)
    return cluster


def test_status_and_apply_beside_queued_jobs(cluster: Cluster) -> None:
    spec = cluster.spec(OLD)
    before = generations(cluster)
    cluster.apply(*(job(f"train-{number}") for number in range(3)), pod("queued", {GPU: 1}, labels=QUEUE))
    wait_for(lambda: suspended(cluster) == [False, False, True])
    wait_for(lambda: "2/2" in cluster.kube_text("status"))
    (condition,) = cluster.get("pod", "queued")["status"]["conditions"]
    assert condition["reason"] == "SchedulingGated"
    status = cluster.kube_text("status")
    assert "queued" in status and "kueue.x-k8s.io/admission" in status, status
    assert "nothing to do" in cluster.kube("apply", spec).stdout
    cluster.kube("remove", spec)
    cluster.kube("apply", spec)
    assert suspended(cluster) == [False, False, True]
    assert generations(cluster) == before
    cluster.kubectl("delete", "job", "--all")
    wait_for(lambda: cluster.get("pod", "queued")["spec"].get("nodeName"))  # its turn
    cluster.kubectl("delete", "pod", "queued", "--force")
    assert failed(cluster.checks("verify", spec)) == []


def test_a_driver_upgrade_drains_what_kueue_has_admitted_and_gives_it_back(cluster: Cluster) -> None:
    """Kueue itself runs on the node: its webhooks, which refuse pods when they are down, are away for a while."""
    before = generations(cluster)
    cluster.apply(job("long"))
    wait_for(lambda: running(cluster) == 1)
    drain = {"when": "disruptive", "delete_local_data": True}  # Kueue's pod has an emptyDir
    new = cluster.spec({**OLD, "driver": {"branch": "595"}, "rollout": {"drain": drain}}, "new.yml")
    cluster.gpunode("provision", "-i", cluster.lab.inventory, "-c", new, "--yes")
    (node,) = cluster.get("nodes")["items"]
    assert "unschedulable" not in node["spec"]
    wait_for(lambda: running(cluster) == 1, 180)
    assert generations(cluster) == before
    cluster.kubectl("delete", "job", "long")
    wait_for(lambda: failed(cluster.checks("verify", new)) == [], 120)


def test_proof_pods_that_kueue_holds_back_are_told_as_gated(cluster: Cluster) -> None:
    """manageJobsWithoutQueueName: every pod needs a queue, gpunode's own too."""
    name = "controller_manager_config.yaml"
    config = cluster.get("-n", "kueue-system", "configmap", "kueue-manager-config")["data"][name]
    ours = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "kueue-system"]}
    away = json.dumps({"matchExpressions": [ours]})
    strict = f"{config}\nmanageJobsWithoutQueueName: true\nmanagedJobsNamespaceSelector: {away}\n"
    configure(cluster, {name: strict})
    try:
        spec = cluster.spec({"kubernetes": {}, "driver": {"branch": "595"}})
        found = failed(cluster.checks("verify", spec, "--smoke"))
        assert found
        assert any("kueue.x-k8s.io/admission" in message for _, _, message in found), found
    finally:
        configure(cluster, {name: config})


# ---------------------------------------------------------------- helpers


def kueue_is_up(cluster: Cluster) -> bool:
    deployment = cluster.get("-n", "kueue-system", "deploy", "kueue-controller-manager")
    status = deployment["status"]
    return bool(
        status.get("observedGeneration") == deployment["metadata"]["generation"]
        and status.get("readyReplicas") == status.get("updatedReplicas") == status.get("replicas") == 1
    )


def configure(cluster: Cluster, data: dict[str, str]) -> None:
    space = ("-n", "kueue-system")
    change = json.dumps({"data": data})
    cluster.kubectl(*space, "patch", "configmap", "kueue-manager-config", "--type=merge", "-p", change)
    cluster.kubectl(*space, "rollout", "restart", "deploy/kueue-controller-manager")
    cluster.kubectl(*space, "rollout", "status", "deploy/kueue-controller-manager", "--timeout=180s")


def generations(cluster: Cluster) -> dict[str, Any]:
    """What Kueue's objects ask for, as a change of any would show; its own status aside."""
    found = cluster.get("-A", "deploy,svc,cm,clusterqueues,localqueues,resourceflavors",
                        "-l", "app.kubernetes.io/name=kueue")["items"]  # fmt: skip
    found += cluster.get("-A", "clusterqueues,localqueues,resourceflavors")["items"]
    return {
        f"{item['kind']}/{item['metadata']['name']}": item.get("spec", item.get("data"))
        for item in found
        if item["kind"] != "Lease"
    }


def suspended(cluster: Cluster) -> list[bool]:
    return sorted(bool(one["spec"].get("suspend")) for one in cluster.get("jobs")["items"])


def running(cluster: Cluster) -> int:
    return sum(
        one["status"].get("active", 0) == 1 == one["status"].get("ready") for one in cluster.get("jobs")["items"]
    )


def job(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": SAMPLE, "command": ["sh", "-c", "exec sleep 3600"],
                 "resources": {"limits": {GPU: 1}}}  # fmt: skip
    template = {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}}
    metadata = {"name": name, "namespace": "default", "labels": QUEUE}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}


def texts(objects: tuple[dict[str, Any], ...]) -> str:
    return "\n---\n".join(map(json.dumps, objects))
