"""gpunode on a real cluster: API server, controller manager, scheduler, kubelets and NVIDIA's device plugin.

GPUNODE_KUBERNETES names a folder with the programs of Kubernetes and etcd, and for most tests also NVIDIA's
nvidia-device-plugin, gpu-feature-discovery and mps-control-daemon, and
gpushare-sche-extender; without it this is skipped.  Not real: the GPUs, the nvidia runtime (the lab's stub) and CUDA.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import FOLDER, GPU, REASON, SAMPLE, Cluster, failed, pod, wait_for

from gpunode.core.model import ENDS

pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FOLDER, reason=REASON)]

MEMORY = "aliyun.com/gpu-mem"
ROLLOUT = {
    "waves": [1, "100%"],
    "max_unavailable": 1,
    "max_failures": 0,
    "drain": {"when": "disruptive", "timeout": 120},
}
OLD = {"kubernetes": {}, "driver": {"branch": "580"}}


@pytest.fixture(scope="module")
def cluster(
    cluster_up: Callable[..., Cluster],
) -> Cluster:
    return cluster_up(2, name="t-kube")


@pytest.fixture(scope="module")
def nodes(cluster: Cluster) -> Cluster:
    """The cluster, its nodes provisioned."""
    cluster.gpunode("provision", "-i", cluster.lab.inventory, "-c", cluster.spec(OLD), "--yes")
    return cluster


@pytest.fixture
def clean(nodes: Cluster) -> Iterator[Cluster]:
    """The provisioned cluster; what the test applied is removed afterwards."""
    yield nodes
    nodes.kube("remove", nodes.spec({"kubernetes": {}}, "remove.yml"))


# ---------------------------------------------------------------- the nodes


def test_the_lab_has_a_real_control_plane(cluster: Cluster) -> None:
    assert cluster.ready() == {"t-kube-1": "True", "t-kube-2": "True"}
    version = json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    assert (
        version in subprocess.run([f"{FOLDER}/kubelet", "--version"], capture_output=True, text=True, check=True).stdout
    )
    wait_for(lambda: "Running" in cluster.kubectl("-n", "kube-system", "get", "pod", "kube-scheduler-t-kube-1"))
    done = cluster.lab.run("t-kube-2", "ip route get 10.244.1.5")
    assert cluster.lab.nodes[0].address in done.stdout


def test_nodes_with_a_running_kubelet_are_provisioned_and_verified_again_and_again(nodes: Cluster) -> None:
    spec = nodes.spec(OLD)
    again = nodes.gpunode("provision", "-i", nodes.lab.inventory, "-c", spec, "--yes")
    assert "nothing to do" in again.stdout, again.stdout
    for _ in range(3):
        done = nodes.gpunode("verify", "-i", nodes.lab.inventory, "-c", spec, "--format", "json", exit=None)
        hosts = json.loads(done.stdout)["hosts"]
        failed = [(h["host"], c["id"], c["message"]) for h in hosts for c in h["checks"] if c["status"] in ENDS]
        assert not failed  # a pod that the kubelet took away is not proven, never failed
        assert {host["exit"] for host in hosts} == {0}


# ---------------------------------------------------------------- what the API server takes


def test_strict_validation_is_live(cluster: Cluster) -> None:
    bad = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "default"}, "dat": {}}
    words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    assert "dat" in cluster.kubectl(*words, stdin=yaml.safe_dump(bad), check=False)


# ---------------------------------------------------------------- NVIDIA's device plugin


def test_whole_gpus_from_apply_to_apod(clean: Cluster) -> None:
    spec = clean.spec({"kubernetes": {}})
    assert "5 created" in clean.kube("apply", spec).stdout
    again = clean.kube("apply", spec).stdout
    assert "nothing to do" in again
    found = clean.checks("verify", spec, "--smoke")  # at once: the kubelets may not have told of the GPUs yet
    assert failed(found) == []
    assert ("kube.gpus", "passed", f"4 {GPU}") in found["cluster"]
    assert {"node t-kube-1", "node t-kube-2"} <= set(found)
    proven = {name: message for name, _, message in found["node t-kube-1"]}
    assert proven["kube.which-gpu"].startswith("a container gets exactly one GPU: GPU-")
    assert clean.allocatable(GPU) == {"t-kube-1": "2", "t-kube-2": "2"}
    assert "0/4" in clean.kube_text("status")
    assert "nothing to do" not in clean.kube("remove", spec).stdout
    assert clean.get("namespaces", "--field-selector=metadata.name=gpunode")["items"] == []


def test_a_node_that_joins_with_the_taint_takes_pods_when_it_is_proven(clean: Cluster) -> None:
    """The kubelet registers with our taint, and with one of somebody else's, which stays."""
    node, taints = "t-kube-2", "registerWithTaints: [{key: gpunode/unproven, value: 'true', effect: NoSchedule}, %s]"
    foreign = "{key: dedicated, value: ml, effect: PreferNoSchedule}"
    clean.lab.run(node, f'systemctl stop kubelet && echo "{taints % foreign}" >>/var/lib/kubelet/config.yaml')
    clean.kubectl("delete", "node", node)
    clean.lab.run(node, "systemctl start kubelet")
    try:
        wait_for(lambda: clean.ready().get(node) == "True")
        assert {taint["key"] for taint in clean.get("node", node)["spec"]["taints"]} >= {
            "dedicated",
            "gpunode/unproven",
        }
        spec = clean.spec({"kubernetes": {"gate": True}})
        clean.kube("apply", spec)
        wait_for(lambda: clean.allocatable(GPU) == {"t-kube-1": "2", node: "2"})
        users = pod("users", {GPU: 1})
        users["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        clean.apply(users)
        wait_for(lambda: "untolerated taint" in json.dumps(clean.get("pod", "users")["status"]))
        waiting = {name: (status, text) for name, status, text in clean.checks("verify", spec)["cluster"]}["kube.gate"]
        assert waiting[0] == "not-proven" and node in waiting[1]
        found = clean.checks("verify", spec, "--smoke", "--unproven")
        assert set(found) == {"cluster", f"node {node}"} and failed(found) == []
        live = clean.get("node", node)
        assert [taint["key"] for taint in live["spec"]["taints"]] == ["dedicated"]
        assert live["metadata"]["labels"]["gpunode/proven"] == "true"
        wait_for(lambda: clean.get("pod", "users")["status"]["phase"] == "Running")
        clean.kube("remove", spec)
        live = clean.get("node", node)
        assert "gpunode/proven" not in live["metadata"]["labels"] and len(live["spec"]["taints"]) == 1
    finally:
        clean.kubectl("delete", "pod", "users", "--force", "--ignore-not-found")
        clean.kubectl("taint", "node", node, "dedicated-", "gpunode/unproven-", check=False)
        clean.lab.run(node, "sed -i /registerWithTaints/d /var/lib/kubelet/config.yaml && systemctl restart kubelet")


def plugins(cluster: Cluster) -> set[str]:
    """Pods of the device plugin that are ready, of whichever pool."""
    ready = ("Ready", "True")
    return {
        one["metadata"]["name"]
        for one in cluster.get("-n", "gpunode", "pods")["items"]
        if one["metadata"]["name"].startswith("nvidia-device-plugin-")
        and ready in {(state["type"], state["status"]) for state in one["status"].get("conditions", ())}
    }


def test_two_pools_and_a_working_pool_keeps_its_gpus(clean: Cluster) -> None:
    """Finding: with config-manager a node lost all its GPUs at every other start of the plugin's pod, for good."""
    whole = clean.spec({"kubernetes": {}})
    clean.kube("apply", whole)
    wait_for(lambda: clean.allocatable(GPU) == {"t-kube-1": "2", "t-kube-2": "2"})
    pools = {
        "whole": {"nodes": "kubernetes.io/hostname=t-kube-1"},
        "sliced": {
            "nodes": "kubernetes.io/hostname=t-kube-2",
            "sharing": {"strategy": "time-slicing", "replicas": 4},
        },
    }
    spec = clean.spec({"kubernetes": {"pools": pools}})
    clean.kube("apply", spec)
    wait_for(lambda: clean.allocatable(GPU) == {"t-kube-1": "2", "t-kube-2": "8"})
    for _ in range(10):
        before = plugins(clean)
        clean.kubectl("-n", "gpunode", "delete", "pods", "-l", "app.kubernetes.io/part-of=gpunode")
        wait_for(lambda before=before: len(plugins(clean) - before) == 2, 180)
        wait_for(lambda: clean.allocatable(GPU) == {"t-kube-1": "2", "t-kube-2": "8"}, 180)  # 0 would stay for good
    found = clean.checks("verify", spec, "--smoke")
    assert failed(found) == []
    assert ("kube.shared-gpu", "passed") in {(name, status) for name, status, _ in found["pool sliced"]}


def test_shares_of_another_name_of_which_a_pod_gets_one(clean: Cluster) -> None:
    sharing = {
        "strategy": "time-slicing",
        "replicas": 4,
        "rename_by_default": True,
        "fail_requests_greater_than_one": True,
    }
    spec = clean.spec({"kubernetes": {}, "sharing": sharing})
    clean.kube("apply", spec)
    shared = f"{GPU}.shared"
    wait_for(lambda: clean.allocatable(shared) == {"t-kube-1": "8", "t-kube-2": "8"})
    assert failed(clean.checks("verify", spec)) == []
    clean.apply(pod("greedy", {shared: 2}))
    wait_for(lambda: "maximum request size" in clean.get("pod", "greedy")["status"].get("message", ""))
    clean.kubectl("delete", "pod", "greedy", "--wait=false")


def test_a_plugin_that_cannot_start_is_told_with_the_last_line_of_its_log(clean: Cluster) -> None:
    spec = clean.spec({"kubernetes": {}})
    clean.kube("apply", spec)
    config = clean.get("-n", "gpunode", "configmap", "device-plugin-config")
    name = next(iter(config["data"]))
    broken = json.dumps({"data": {name: "version: v1\nflags: {migStrategy: bogus}\n"}})
    clean.kubectl("-n", "gpunode", "patch", "configmap", "device-plugin-config", "--type=merge", "-p", broken)
    clean.kubectl("-n", "gpunode", "delete", "pod", "--all")
    wait_for(
        lambda: (
            "CrashLoopBackOff" in clean.kubectl("-n", "gpunode", "get", "pod")
            or "Error" in clean.kubectl("-n", "gpunode", "get", "pod")
        )
    )
    found = clean.checks("verify", spec)
    ready = [message for name, status, message in found["cluster"] if name == "kube.ready" and status == "failed"]
    assert any("bogus" in message or "unknown" in message.lower() for message in ready), ready


def test_drift_and_a_node_that_lost_its_gpus_are_found(clean: Cluster) -> None:
    spec = clean.spec({"kubernetes": {}})
    clean.kube("apply", spec)
    wait_for(lambda: clean.allocatable(GPU) == {"t-kube-1": "2", "t-kube-2": "2"})
    assert failed(clean.checks("verify", spec)) == []
    patch = {"spec": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}
    name = ("daemonset", "nvidia-device-plugin")
    clean.kubectl("-n", "gpunode", "patch", *name, "--type=merge", "-p", json.dumps(patch))
    found = {check: message for check, status, message in clean.checks("verify", spec)["cluster"] if status in ENDS}
    assert "kubectl-patch at" in found["kube.drift"] and "nodeSelector" in found["kube.drift"]
    clean.kubectl("-n", "gpunode", "delete", *name)
    wait_for(lambda: clean.allocatable(GPU) == {"t-kube-1": "0", "t-kube-2": "0"}, 150)
    found = {check: message for check, status, message in clean.checks("verify", spec)["cluster"] if status in ENDS}
    assert {"kube.drift", "kube.gpus"} <= set(found)


# ---------------------------------------------------------------- kubelet

KUBELET = """
- hosts: t-kube-2
  gather_facts: false
  roles:
    - role: gpunode.node.kubelet
      vars: {gpunode_kubelet: %s}
"""


def test_the_kubelet_takes_its_settings_and_gives_them_back(nodes: Cluster, tmp_path: Path) -> None:
    files = "cat /var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env; cat /etc/default/kubelet 2>/dev/null"
    before = nodes.lab.run("t-kube-2", files).stdout
    play = tmp_path / "kubelet.yml"
    asked = {"state": "present", "node_labels": {"example.com/rack": "r7"}, "system_reserved": {"memory": "200Mi"}}
    play.write_text(KUBELET % json.dumps(asked))
    assert "changed=" in nodes.play(play)
    memory = nodes.get("node", "t-kube-2")["status"]["capacity"]["memory"]
    wait_for(lambda: nodes.get("node", "t-kube-2")["status"]["allocatable"]["memory"] != memory)
    assert nodes.lab.run("t-kube-2", files).stdout != before
    wait_for(lambda: set(nodes.ready().values()) == {"True"})
    play.write_text(KUBELET % json.dumps({"state": "absent"}))
    nodes.play(play)
    assert nodes.lab.run("t-kube-2", files).stdout == before
    wait_for(lambda: set(nodes.ready().values()) == {"True"})


# ---------------------------------------------------------------- gpushare


@pytest.fixture(scope="module")
def manifest(nodes: Cluster) -> str:
    return nodes.lab.run("t-kube-1", "cat /etc/kubernetes/manifests/kube-scheduler.yaml").stdout


@pytest.mark.skipif(not Path(FOLDER, "gpushare-sche-extender").exists(), reason=f"{REASON} with gpushare-sche-extender")
def test_gpushare_packs_pods_by_memory_and_leaves_the_scheduler_as_it_was(clean: Cluster, manifest: str) -> None:
    """Its device plugin is not built (its NVML of 2018 does not link): the nodes' capacity is written in its place."""
    spec = clean.spec({"kubernetes": {}, "sharing": {"strategy": "gpushare"}})
    clean.kube("apply", spec, "--no-wait")
    for name in ("t-kube-1", "t-kube-2"):
        capacity = {"status": {"capacity": {MEMORY: "32", "aliyun.com/gpu-count": "2"}}}
        clean.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(capacity))
    clean.play("playbooks/scheduler.yml", "-e", "gpunode_control_plane=t-kube-1", "-e", f"gpunode_config={spec}",
               "-e", json.dumps({"gpunode_scheduler": {"state": "present", "proxy_mode": "iptables"}}))  # fmt: skip
    assert clean.lab.run("t-kube-1", "cat /etc/kubernetes/manifests/kube-scheduler.yaml").stdout != manifest
    wait_for(lambda: clean.get("-n", "gpunode", "deploy")["items"][0]["status"].get("readyReplicas") == 1, 120)
    for name, memory in (("three", 3), ("five", 5), ("too-large", 17)):
        clean.apply(pod(name, {MEMORY: memory}))
    wait_for(lambda: {p["spec"].get("nodeName") is not None for p in _pods(clean, "three", "five")} == {True})
    cards = {p["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] for p in _pods(clean, "three", "five")}
    assert len(cards) == 1, "both on one GPU, as bin packing has it"
    (large,) = _pods(clean, "too-large")
    assert "nodeName" not in large["spec"]
    assert "8/16" in clean.kube_text("status")
    clean.kubectl("delete", "pod", "three", "five", "too-large", "--wait=false", "--force")
    clean.play("playbooks/scheduler.yml", "-e", "gpunode_control_plane=t-kube-1", "-e", f"gpunode_config={spec}",
               "-e", json.dumps({"gpunode_scheduler": {"state": "absent"}}))  # fmt: skip
    assert clean.lab.run("t-kube-1", "cat /etc/kubernetes/manifests/kube-scheduler.yaml").stdout == manifest
    for name in ("t-kube-1", "t-kube-2"):
        gone = [{"op": "remove", "path": f"/status/capacity/aliyun.com~1gpu-{what}"} for what in ("mem", "count")]
        clean.kubectl("patch", "node", name, "--subresource=status", "--type=json", "-p", json.dumps(gone))


# ---------------------------------------------------------------- faults


def test_a_node_that_is_not_ready_offers_nothing(clean: Cluster) -> None:
    spec = clean.spec({"kubernetes": {}})
    clean.kube("apply", spec)
    wait_for(lambda: clean.allocatable(GPU) == {"t-kube-1": "2", "t-kube-2": "2"})
    clean.lab.run("t-kube-2", "systemctl stop kubelet")
    try:
        wait_for(lambda: clean.ready()["t-kube-2"] != "True", 120)
        words = ("verify", "-c", spec, "-i", clean.lab.inventory, "--format", "json")
        done = clean.gpunode("kube", *words, exit=None)
        (host,) = json.loads(done.stdout)["hosts"]
        failing = [one["message"] for one in host["checks"] if one["status"] == "failed" and one["id"] == "kube.node"]
        assert any(message.startswith("node t-kube-2: the node is not Ready") for message in failing)
        assert "NotReady" in clean.kube_text("status")
    finally:
        clean.lab.run("t-kube-2", "systemctl start kubelet")
    wait_for(lambda: set(clean.ready().values()) == {"True"})
    wait_for(lambda: clean.allocatable(GPU) == {"t-kube-1": "2", "t-kube-2": "2"})


def test_gpus_come_back_after_a_reboot_without_a_hand(clean: Cluster) -> None:
    spec = clean.spec({"kubernetes": {}})
    clean.kube("apply", spec)
    wait_for(lambda: clean.allocatable(GPU) == {"t-kube-1": "2", "t-kube-2": "2"})
    boot = "cat /proc/sys/kernel/random/boot_id"
    before = clean.lab.run("t-kube-2", boot).stdout
    clean.lab.run("t-kube-2", "systemctl reboot")
    wait_for(lambda: clean.lab.run("t-kube-2", boot).stdout not in ("", before))
    wait_for(lambda: clean.lab.run("t-kube-2", "systemctl is-active kubelet").stdout.strip() == "active")
    wait_for(lambda: failed(clean.checks("verify", spec)) == [], 120)


def test_an_api_server_killed_in_the_middle_of_apply_loses_nothing(clean: Cluster) -> None:
    spec = clean.spec({"kubernetes": {}})
    control = "t-kube-control"
    clean.lab.run(control, "systemctl kill -s KILL kube-apiserver")
    clean.kube("apply", spec, "--no-wait", exit=None)  # while it comes back
    wait_for(lambda: "ok" in clean.kubectl("get", "--raw=/readyz", check=False))
    # Kubernetes' own: its watches that the new API server forbade at first return minutes later, and no pod is made
    clean.lab.run(control, "systemctl restart kube-controller-manager")
    clean.kube("apply", spec)
    assert "nothing to do" in clean.kube("apply", spec).stdout


# ---------------------------------------------------------------- rollout in a running cluster


def test_the_driver_of_a_running_cluster_is_upgraded_node_by_node(clean: Cluster) -> None:
    """Drain within a PodDisruptionBudget, change of the branch, GPUs back, the node given back; then the next.

    The controller is killed when it has begun; the run that resumes gives back what was taken.
    """
    spec = clean.spec({"kubernetes": {}})
    clean.kube("apply", spec)
    wait_for(lambda: clean.allocatable(GPU) == {"t-kube-1": "2", "t-kube-2": "2"})
    labels = {"app": "work"}
    container = {"name": "c", "image": SAMPLE, "command": ["sh", "-c", "exec sleep 3600"],
                 "resources": {"limits": {GPU: 1}}}  # fmt: skip
    template = {"metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}  # fmt: skip
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "work", "namespace": "default"},
                  "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}}  # fmt: skip
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
              "metadata": {"name": "work", "namespace": "default"},
              "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}}}  # fmt: skip
    clean.apply(deployment, budget)
    wait_for(lambda: clean.get("deploy", "work")["status"].get("readyReplicas") == 2)
    new = clean.spec({"kubernetes": {}, "driver": {"branch": "595"}, "rollout": ROLLOUT}, "new.yml")
    with clean.killed("provision", "-i", clean.lab.inventory, "-c", new, "--yes"):
        wait_for(lambda: [one for one in clean.get("nodes")["items"] if one["spec"].get("unschedulable")])
        time.sleep(5)
    clean.gpunode("runs", "resume", "last", "--yes")
    for node in ("t-kube-1", "t-kube-2"):
        assert " 595." in clean.lab.run(node, "cat /proc/driver/nvidia/version").stdout
        assert "unschedulable" not in clean.get("node", node)["spec"]
    wait_for(lambda: clean.get("deploy", "work")["status"].get("readyReplicas") == 2)
    assert failed(clean.checks("verify", new)) == []
    clean.kubectl("delete", "deploy,pdb", "work", "--wait=false")


# ---------------------------------------------------------------- helpers


def _pods(cluster: Cluster, *names: str) -> list[dict[str, Any]]:
    return [cluster.get("pod", name) for name in names]
