"""What is wrong with a cluster by one reading of it, and that nothing but reading is done."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from api_server import ApiServer, Fault, workloads_become_ready
from hypothesis import given
from hypothesis import strategies as st
from kube_cases import CASES, Case
from kube_cluster import mutating, node, put, quick, rendered
from rows import over

from gpunode.core.model import HostResult
from gpunode.kube.core import Rendered, render
from gpunode.kube.core.checks.preflight import with_nodes
from gpunode.kube.core.cluster import POOL_LABEL
from gpunode.kube.core.judge import (
    ClusterFinding,
    ClusterReading,
    additions,
    checks_of,
    differences,
    findings,
    metrics,
    not_offering,
)
from gpunode.kube.core.owned import INVENTORY, key_of
from gpunode.kube.core.render import node_wishes
from gpunode.kube.core.usage import GpuUse, NodeUse, Usage, Use, Waiting, usage
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.kubeconfig import connect
from gpunode.kube.edge.reading import read
from gpunode.kube.edge.status import unready_workloads

pytest_plugins = ("kube_fixtures",)

GPU = "nvidia.com/gpu"
NO_POD = "DaemonSet nvidia-device-plugin has no pod on it"
COUNT = "nvidia.com/gpu.count"
PLUGIN = "nvidia-device-plugin"


def gpu_node(name: str = "gpu1", capacity: str = "4", allocatable: str = "4", **labels: str) -> dict[str, Any]:
    address = f"10.0.0.{name[-1]}" if name[-1].isdigit() else "10.0.0.1"
    found = node(name, address=address, labels=labels, allocatable={GPU: allocatable})
    found["status"]["capacity"] = {GPU: capacity, "cpu": "8"}
    return found


class Watched:
    """A cluster that is read and judged again and again."""

    def __init__(self, api: Api, what: Rendered) -> None:
        self.api, self.what = api, what
        self.unread: tuple[str, ...] = ()
        self.last: ClusterReading | None = None

    def findings(self) -> tuple[ClusterFinding, ...]:
        self.last, self.unread = read(self.api, self.what)
        return findings(self.last)


def watcher(api: Api, spec: dict[str, Any] | None = None) -> Watched:
    what = rendered(spec)
    put(api, what)
    return Watched(api, what)


def seen(watched: Watched) -> dict[tuple[str, str], str]:
    return {(one.check, one.about): one.message for one in watched.findings()}


def plugin_set(server: ApiServer, name: str = PLUGIN) -> dict[str, Any]:
    found = server.get("DaemonSet", name, "gpunode")
    assert found is not None
    return found


# ---------------------------------------------------------------- findings


def test_a_cluster_as_it_should_be_has_no_finding_and_is_only_read(server: ApiServer, api: Api) -> None:
    server.put(gpu_node(**{COUNT: "4"}))
    watched = watcher(api)
    server.requests.clear()
    assert seen(watched) == {}
    assert watched.unread == ()
    assert mutating(server) == []
    assert not [line for line in server.requests if not line.startswith("GET")]


def test_what_was_changed_or_deleted_by_hand_is_drift(server: ApiServer, api: Api) -> None:
    server.put(gpu_node())
    watched = watcher(api)
    live = plugin_set(server)
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "evil\x1b[31m:1"
    live["spec"]["template"]["spec"]["containers"].append({"name": "sidecar", "image": "mesh:1"})
    server.put(live)
    server.gone(("node.k8s.io/v1", "runtimeclasses", "", "nvidia"))
    found = seen(watched)
    assert found[("kube.drift", "RuntimeClass nvidia")] == "it is gone"
    drift = found[("kube.drift", f"DaemonSet gpunode/{PLUGIN}")]
    assert "image: evil" in drift and "\x1b" not in drift and "sidecar" not in drift


SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
TWO = {"1g.10gb": 2, "2g.20gb": 1}
MIXED = {"strategy": "mig", "mig": {"strategy": "mixed", "profiles": TWO}}
SINGLE = {"strategy": "mig", "mig": {"profiles": {"1g.10gb": 7}}}
RENAMED = {"strategy": "time-slicing", "replicas": 5, "rename_by_default": True}
MPS = {"strategy": "mps", "replicas": 10}
BY_MEMORY = {"strategy": "gpushare"}
OVERRIDDEN = {**MIXED, "mig": {"strategy": "mixed", "profiles": {"1g.10gb": 4}, "gpus": {"0": {"2g.20gb": 1}}}}


def offering(capacity: dict[str, int], allocatable: dict[str, int] | None = None, **labels: str) -> dict[str, Any]:
    """A node whose kubelet reports so; what can be allocated is all of it without `allocatable`."""
    found = node("gpu1", labels=labels, allocatable={k: str(v) for k, v in (allocatable or capacity).items()})
    found["status"]["capacity"] = {k: str(v) for k, v in capacity.items()} | {"cpu": "8"}
    return found


# by the pool's sharing what a node offers → what is said of it, "" for nothing
NODES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("whole", {}, offering({GPU: 4}), ""),
    ("whole, and counted", {}, offering({GPU: 4}, **{COUNT: "4"}), ""),
    ("one is ill", {}, offering({GPU: 4}, {GPU: 3}), "3 of 4 nvidia.com/gpu can be allocated"),
    ("fewer than counted", {}, offering({GPU: 4}, **{COUNT: "8"}), "should offer at least 8"),
    ("no GPU", {}, node("gpu1"), "it offers no GPU, and should offer at least 1 nvidia.com/gpu"),
    ("a number that is none", {}, offering({GPU: 4}, **{COUNT: "1e999999999"}), "*"),
    ("whole in place of shares", RENAMED, offering({GPU: 2}), "offers 2 nvidia.com/gpu, and should offer at least 5"),
    ("shares, and whole GPUs of before", RENAMED,
     offering({GPU: 2, f"{GPU}.shared": 10}, {GPU: 0, f"{GPU}.shared": 10}), ""),
    ("shares and whole GPUs", RENAMED, offering({GPU: 2, f"{GPU}.shared": 10}), "gpu.shared and nothing else"),
    ("MPS, shares of before", MPS, offering({f"{GPU}.shared": 10}), "offers 10 nvidia.com/gpu.shared, and"),
    ("MPS, whole GPUs of before", MPS, offering({GPU: 2}), "offers 2 nvidia.com/gpu, and should offer at least 10"),
    ("MPS", MPS, offering({GPU: 20}, **{COUNT: "2"}), ""),
    ("MPS of one GPU of two", MPS, offering({GPU: 10}, **{COUNT: "2"}), "should offer at least 20 nvidia.com/gpu"),
    ("MIG, plugin of before the cut", MIXED, offering({GPU: 2}),
     f"offers 2 nvidia.com/gpu, and should offer at least 2 {SMALL}, 1 {LARGE} and nothing else"),
    ("MIG", MIXED, offering({SMALL: 4, LARGE: 2}), ""),
    ("MIG, of which the kubelet remembers shares", MIXED,
     offering({SMALL: 4, LARGE: 2, GPU: 2, f"{GPU}.shared": 10}, {SMALL: 4, LARGE: 2, GPU: 0, f"{GPU}.shared": 0}), ""),
    ("MIG without one profile", MIXED, offering({SMALL: 4}), "offers 4 nvidia.com/mig-1g.10gb, and should offer"),
    ("MIG of fewer instances than counted", MIXED, offering({SMALL: 2, LARGE: 2}, **{f"{SMALL}.count": "4"}),
     "should offer at least 4 nvidia.com/mig-1g.10gb"),
    ("MIG of one GPU, the other whole", {"strategy": "mig", "mig": {"strategy": "mixed", "gpus": {"0": TWO}}},
     offering({SMALL: 2, LARGE: 1, GPU: 1}), ""),
    ("MIG of single", SINGLE, offering({GPU: 14}, **{COUNT: "14"}), ""),
    ("MIG of single, plugin of before the cut", SINGLE, offering({GPU: 2}), "should offer at least 7 nvidia.com/gpu"),
    ("shares of instances", {**MIXED, "strategy": "time-slicing", "replicas": 2}, offering({SMALL: 8, LARGE: 4}), ""),
    ("instances in place of their shares", {**MIXED, "strategy": "time-slicing", "replicas": 8},
     offering({SMALL: 4, LARGE: 2}), "should offer at least 16 nvidia.com/mig-1g.10gb"),
    ("all GPUs cut by their numbers, of which the kubelet remembers whole ones",
     {"strategy": "mig", "mig": {"strategy": "mixed", "gpus": {"0": TWO, "1": TWO}}},
     offering({SMALL: 4, LARGE: 2, GPU: 2}, {SMALL: 4, LARGE: 2, GPU: 0}), ""),
    ("all GPUs cut by their numbers, one ill", {"strategy": "mig", "mig": {"strategy": "mixed", "gpus": {"0": TWO}}},
     offering({SMALL: 2, LARGE: 1, GPU: 3}, {SMALL: 2, LARGE: 1, GPU: 2}), f"2 of 3 {GPU} can be allocated"),
    ("a profile that no GPU has any more", OVERRIDDEN, offering({LARGE: 1, SMALL: 4}, {LARGE: 1, SMALL: 0}), ""),
    ("more than Feature Discovery counts of one model of several", {}, offering({GPU: 3}, **{COUNT: "1"}), ""),
    ("whole, and labels of the instances of before", {}, offering(
        {GPU: 2}, **{COUNT: "14", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"}), ""),
    ("by memory", BY_MEMORY, offering({"aliyun.com/gpu-mem": 160, "aliyun.com/gpu-count": 2}), ""),
    ("by memory, and nothing but what was", BY_MEMORY, offering({GPU: 2, SMALL: 4}, {GPU: 0, SMALL: 0}),
     "it offers no GPU, and should offer at least 1 aliyun.com/gpu-mem"),
]  # fmt: skip


def reading(sharing: dict[str, Any], item: dict[str, Any], *pods: dict[str, Any], **more: Any) -> ClusterReading:
    marks = tuple(node_wishes(rendered({"sharing": sharing}, gpu1={}).cluster))
    return ClusterReading(
        **{"wanted": {}, "live": {}, "pods": {}, **more}, nodes=[item], usage=usage([item], pods), marks=marks
    )


@over(NODES, name=lambda row: row[0])
def test_what_a_node_offers_is_compared_with_what_its_pool_shares(
    _name: str, sharing: dict[str, Any], item: dict[str, Any], message: str
) -> None:
    found = [one.message for one in findings(reading(sharing, item)) if one.check == "kube.gpus"]
    assert message == "*" or (len(found), message in "".join(found)) == (bool(message), True), found


@pytest.mark.parametrize(
    ("sharing", "item", "message"),
    [
        ({}, offering({GPU: 7}), "it offers 7 nvidia.com/gpu, and should offer 8"),
        ({}, offering({GPU: 8}), ""),
        ({}, offering({GPU: 9}, **{COUNT: "9"}), ""),  # one was added since
        ({}, offering({GPU: 80}), "it offers 80 nvidia.com/gpu, and should offer 8 nvidia.com/gpu"),
        ({}, offering({GPU: 80}, {GPU: 8}), "8 of 80 nvidia.com/gpu can be allocated"),
        (MPS, offering({GPU: 70}), "should offer 80 nvidia.com/gpu"),
        ({**MPS, "replicas": 4}, offering({GPU: 80}), "offers 80 nvidia.com/gpu, and should offer 32"),
        (MIXED, offering({SMALL: 14, LARGE: 7}), f"should offer 16 {SMALL}, 8 {LARGE}"),
        (MIXED, offering({SMALL: 16, LARGE: 8}), ""),
        (MIXED, offering({SMALL: 16, LARGE: 16}), f"should offer 16 {SMALL}, 8 {LARGE}"),
        (OVERRIDDEN, offering({SMALL: 28, LARGE: 1}), ""),
        (SINGLE, offering({GPU: 49}), "should offer 56 nvidia.com/gpu"),
        ({}, offering({GPU: 56}, **{COUNT: "56", "nvidia.com/gpu.product": "H-MIG-1g.10gb"}), "should offer 8"),
        (BY_MEMORY, offering({"aliyun.com/gpu-mem": 1}), ""),
    ],
)
def test_what_a_provisioned_host_offers_is_counted_without_feature_discovery(
    sharing: dict[str, Any], item: dict[str, Any], message: str
) -> None:
    found = [one.message for one in findings(reading(sharing, item, gpus={"gpu1": 8})) if one.check == "kube.gpus"]
    assert (len(found), message in "".join(found)) == (bool(message), True), found


def test_what_pods_hold_of_a_resource_of_before_is_found() -> None:
    asks = [{"name": "c", "resources": {"limits": {SMALL: "1"}}}]
    pod = {"metadata": {"name": "a", "namespace": "team"}, "spec": {"nodeName": "gpu1", "containers": asks}}
    found = [one.message for one in findings(reading({}, offering({GPU: 2, SMALL: 4}, {GPU: 2, SMALL: 0}), pod))]
    assert found[-1] == f"its pods hold 1 of 0 {SMALL}"


def refusal(message: str, at: str = "2026-11-28T10:00:00Z", reason: str = "UnexpectedAdmissionError") -> dict[str, Any]:
    """As a kubelet writes it."""
    return {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"job-1.{len(message)}", "namespace": "team"},
        "type": "Warning", "reason": reason, "lastTimestamp": at, "message": message,
        "source": {"component": "kubelet", "host": "gpu1"},
        "involvedObject": {"kind": "Pod", "namespace": "team", "name": "job-1"},
    }  # fmt: skip


GONE = (
    "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: {}, Available: 0, "
    "which is unexpected"
)
UNREGISTERED = (
    "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver compute-domain.nvidia.com is not "
    "registered"
)


@pytest.mark.parametrize(
    ("message", "at", "held", "found"),
    [
        (GONE.format(1), "10:00:00", 0, "(nvidia.com/gpu: asked for 1, 0 available), though no pod holds 2: it still"),
        (GONE.format(2), "10:00:00", 0, "(nvidia.com/gpu: asked for 2, 0 available), though no pod holds 2: it still"),
        (GONE.format(2), "10:00:00", 1, ""),  # a pod has one of them now
        (GONE.format(1), "09:40:00", 0, ""),  # long ago
        (GONE.format(1).replace("nvidia.com/gpu", "example.com/nic"), "10:00:00", 0, ""),
        (UNREGISTERED, "10:00:00", 2, "has no DRA driver compute-domain.nvidia.com registered: pod team/job-1 cannot"),
        (UNREGISTERED.replace("compute-domain.nvidia.com", "dra.net"), "10:00:00", 0, ""),
        ("gpu.nvidia.com not found in the list of registered DRA plugins", "10:00:00", 0, "DRA driver gpu.nvidia.com"),
    ],
)
def test_what_a_kubelet_refuses_though_it_is_there_is_found(message: str, at: str, held: int, found: str) -> None:
    asks = [{"name": "c", "resources": {"limits": {GPU: held}}}]
    pods = [{"metadata": {"name": "a", "namespace": "team"}, "spec": {"nodeName": "gpu1", "containers": asks}}] * bool(
        held
    )
    events = [refusal(message, f"2026-11-28T{at}Z")]
    look = reading({}, offering({GPU: 2}, {GPU: 2}), *pods, refusals=events, recently="2026-11-28T09:50:00Z")
    said = [one.message for one in findings(look) if one.check == "kube.gpus" and "kubelet" in one.message]
    assert (len(said), found in "".join(said)) == (bool(found), True), said


def test_a_kubelets_refusals_are_read_where_one_may(server: ApiServer, api: Api) -> None:
    server.put(gpu_node())
    server.put(refusal(GONE.format(1), "2099-01-01T00:00:00Z"))
    watched = watcher(api)
    assert "still counts those of pods that are gone" in seen(watched)[("kube.gpus", "node gpu1")]
    server.faults.append(Fault(r"GET /api/v1/events", status=403, reason="Forbidden", times=9))
    assert "refused" not in seen(watched).get(("kube.gpus", "node gpu1"), "")


@pytest.mark.parametrize(
    ("clock", "found"),
    [
        ("Wed, 01 Jan 2020 20:00:19 GMT", True),  # though this machine's clock is years ahead
        ("Wed, 01 Jan 2020 20:00:20 GMT", False),
        ("", False),
        ("Wed, 01 Jan 2020 24:00:19 GMT", False),
        ("Sat, 31 Feb 2015 00:00:00 GMT", False),  # no time: this machine's counts
        ("Mon, 01 Jan 0001 00:00:00 GMT", False),
    ],
)
def test_a_node_whose_plugin_has_just_started_may_not_offer_its_gpus_yet(
    clock: str, found: bool, server: ApiServer, api: Api
) -> None:
    """Where nobody names the nodes a plugin also runs on those that have no GPU; the server's clock counts."""
    server.date = clock
    watched = watcher(api, {"kubernetes": {"feature_discovery": False}})
    server.put(gpu_node())
    server.put(node("gpu2"))
    labels = plugin_set(server)["spec"]["selector"]["matchLabels"]
    server.put({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p-2", "namespace": "gpunode", "labels": labels},
        "spec": {"nodeName": "gpu2", "containers": []},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "c", "ready": True, "state": {"running": {"startedAt": "2020-01-01T20:00:00Z"}}}]},
    })  # fmt: skip
    assert (("kube.gpus", "node gpu2") in seen(watched)) == found
    assert all(one.passing for one in watched.findings() if one.check == "kube.gpus")


TAINT = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
CREATED = {"metadata": {"name": "p-1"}, "spec": {"nodeName": "gpu1"}, "status": {"phase": "Running"}}
ENDS = {**CREATED, "metadata": {"name": "p-0", "deletionTimestamp": "2026-11-30T08:00:00Z"}}
BACK_OFF = {"name": "c", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
LOOPS = {**CREATED, "metadata": {"name": "p-3"}, "status": {"phase": "Pending", "containerStatuses": [BACK_OFF]}}
WAITS = {"metadata": {"name": "p-2"}, "spec": {"affinity": {"nodeAffinity": {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu1"]}]}]}}}},
    "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cpu"}]},
}  # fmt: skip
Plugin = dict[str, Any]
# what is so of the node, the live DaemonSet, its pods, and whether they are denied → why there is none, and what to do
WHY: list[tuple[str, dict[str, Any], Plugin, list[Plugin], bool, str, str]] = [
    ("tainted", {"taints": [TAINT]}, {}, [], False, "does not tolerate its taint dedicated=ml:NoSchedule",
     "kubernetes.tolerations"),
    ("a taint that is tolerated", {"taints": [{**TAINT, "key": GPU}]}, {}, [], False, "has no pod on it", "describe"),
    ("taints that every DaemonSet tolerates", {"unschedulable": True, "taints": [
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}, {}, [], False, "has no pod", "describe"),
    ("a node selector of somebody else's", {}, {"nodeSelector": {"disk": "ssd"}}, [], False,
     "does not select it by its label disk=ssd", "kube apply --dry-run"),
    ("denied", {}, {}, [], True, "the pods of DaemonSet nvidia-device-plugin are denied", "describe daemonset"),
    ("there, and finds none", {}, {}, [CREATED], True, "pod p-1: is Running", "logs p-1"),
    ("one that ends, and its successor", {}, {}, [ENDS, LOOPS], False, "pod p-3: c: CrashLoopBackOff", "pod p-3"),
    ("one that ends", {}, {}, [ENDS], False, "pod p-0: is being deleted", "describe pod p-0"),
    ("there, and waits", {}, {}, [WAITS], False, "pod p-2: 0/1 nodes: Insufficient cpu", "describe pod p-2"),
]  # fmt: skip


@over(WHY, name=lambda row: row[0])
def test_why_no_pod_of_the_plugin_serves_a_node_is_said_by_the_objects(
    _name: str, spec: Plugin, template: Plugin, pods: list[Plugin], denied: bool, why: str, fix: str
) -> None:
    wanted = next(item for item in rendered({}, gpu1={}).objects if item["metadata"]["name"] == PLUGIN)
    live = deepcopy(wanted)
    live["spec"]["template"]["spec"] |= template
    item = node("gpu1", labels={POOL_LABEL: "default"}, allocatable={GPU: "0"}, spec=spec)
    key = key_of(wanted)
    look = reading(
        {}, item, wanted={key: wanted}, live={key: live}, pods={key: pods}, denied={key: "no"} if denied else {}
    )
    (found,) = (one for one in findings(look) if one.check == "kube.gpus")
    assert why in found.message and fix in found.fix, found
    assert not_offering(look) == (found,) * ("are denied" not in why), "the denial itself is said once"


def test_a_denial_is_said_of_the_first_workload_and_the_others_name_that(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    server.controllers.clear()
    unready = {"desiredNumberScheduled": 1, "updatedNumberScheduled": 0, "numberAvailable": 0}
    for number, name in enumerate((PLUGIN, "gpu-feature-discovery")):
        server.edit("DaemonSet", name, "gpunode", lambda item: item["status"].update(unready))
        server.put({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"e{number}", "namespace": "gpunode"},
            "type": "Warning", "reason": "FailedCreate", "lastTimestamp": "2026",
            "message": ("", "(combined from similar events): ")[number]
            + f'Error creating: pods "{name}-x7k2p" is forbidden: exceeded quota: one',
            "involvedObject": {"kind": "DaemonSet", "name": name},
        })  # fmt: skip
    ready = [one for (check, _), one in seen(Watched(api, rendered())).items() if check == "kube.ready"]
    assert sorted(ready) == [
        f'0 of 1 pods; FailedCreate: Error creating: pods "{PLUGIN}-x7k2p" is forbidden: exceeded quota: one',
        f"0 of 1 pods; denied as the pods of DaemonSet gpunode/{PLUGIN} are",
    ]
    lines, _ = unready_workloads(api)
    (waiting, once) = put(api, rendered()).waiting
    assert sum("exceeded quota" in line for line in lines) == 1 and "exceeded quota" in waiting
    assert once == (
        "DaemonSet gpunode/gpu-feature-discovery is not ready: 0 of 1 pods; denied as the pods of DaemonSet "
        f"gpunode/{PLUGIN} are"
    )


def test_a_node_that_offers_none_any_more_or_is_not_ready_is_found(server: ApiServer, api: Api) -> None:
    server.put(gpu_node(**{POOL_LABEL: "default"}))
    watched = watcher(api)
    assert seen(watched) == {}
    server.put(gpu_node(capacity="0", allocatable="0", **{POOL_LABEL: "default"}))
    assert seen(watched) == {
        ("kube.gpus", "node gpu1"): f"it offers no GPU, and should offer at least 1 {GPU} (pool default): {NO_POD}",
    }
    down = gpu_node()
    down["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting"}]
    server.put(down)
    assert ("kube.node", "node gpu1") in seen(watched)


def test_what_a_renamed_node_has_left_is_told_with_the_way_to_be_rid_of_it(server: ApiServer, api: Api) -> None:
    server.put(gpu_node("gpu2"))
    watched = watcher(api)
    lost = [{"type": "Ready", "status": "Unknown"}]
    server.edit("Node", "gpu2", "", lambda item: item["status"].update(conditions=lost))
    (alone,) = (one for one in watched.findings() if one.check == "kube.node")
    server.put(gpu_node("rack2"))
    (left,) = (one for one in watched.findings() if one.check == "kube.node")
    assert (alone.about, alone.fix.split(";")[0]) == ("node gpu2", "kubectl describe node gpu2")
    told = "node rack2 has its address now; if the machine was renamed: kubectl delete node gpu2"
    assert (left.about, left.fix) == ("node gpu2", told)


def test_pods_that_wait_for_what_nobody_has_free(server: ApiServer, api: Api) -> None:
    server.put(gpu_node(capacity="1", allocatable="1"))
    watched = watcher(api)
    for name, resource in (("a", GPU), ("b", GPU), ("c", GPU), ("d", "nvidia.com/mig-1g.5gb")):
        limits = {"limits": {resource: "1"}, "requests": {resource: "1"}}
        placed = {"nodeName": "gpu1"} if name == "a" else {}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"containers": [{"name": "c", "resources": limits}], **placed},
            "status": {"phase": "Running" if name == "a" else "Pending"},
        }
        server.put(pod)
    found = seen(watched)
    assert (
        found[("kube.waiting", GPU)] == "2 pods wait for it, and no node that takes pods has any free: team/b, team/c"
    )
    assert found[("kube.waiting", "nvidia.com/mig-1g.5gb")] == "1 pod waits for it, and no node offers it: team/d"


# ---------------------------------------------------------------- comparing

ALIKE: list[tuple[str, Any, Any]] = [
    ("defaults", {"a": 1}, {"a": 1, "b": 2}),
    ("quantity", {"cpu": "0.5"}, {"cpu": "500m"}),
    ("left out when empty", {"a": "", "b": [], "c": {}, "d": False, "e": 0}, {}),
    ("list by name", [{"name": "a", "v": 1}], [{"name": "x"}, {"name": "a", "v": 1, "w": 2}]),
    ("other version", {"apiVersion": "a/v1"}, {"apiVersion": "a/v2"}),
]
UNLIKE: list[tuple[str, Any, Any, list[str]]] = [
    ("value", {"a": {"b": "x"}}, {"a": {"b": "y"}}, ["a.b: y, not x"]),
    ("type", {"a": {"b": 1}}, {"a": "text"}, ["a: text, not {'b': 1}"]),
    ("gone item", [{"name": "a"}], [], ["[a]: gone"]),
    ("length", {"a": ["x"]}, {"a": ["x", "y"]}, ["a: ['x', 'y'], not ['x']"]),
    ("number", {"a": "8"}, {"a": "9"}, ["a: 9, not 8"]),
    ("a line", {"a": "x\ny\nz\n"}, {"a": "x\nv\nz\n"}, ["a, line 2: v, not y"]),
    ("its end", {"a": "x\n"}, {"a": "x"}, ["a, line 2: nothing, not "]),
    ("nothing", {"a": 1}, None, [": nothing, not {'a': 1}"]),
    ("true", {"a": True}, {}, ["a: nothing, not True"]),
]


@over(ALIKE, name=lambda row: row[0])
def test_what_is_no_difference(_name: str, wanted: Any, live: Any) -> None:
    assert differences(wanted, live) == []


@over(UNLIKE, name=lambda row: row[0])
def test_what_is_a_difference(_name: str, wanted: Any, live: Any, found: list[str]) -> None:
    assert differences(wanted, live) == found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(JSON, JSON)
def test_comparing_never_raises_and_is_printable(wanted: Any, live: Any) -> None:
    assert differences(wanted, wanted) == []
    assert all("\x1b" not in one and "\n" not in one for one in differences(wanted, live))


def as_stored(item: Any) -> Any:
    """What an API server makes of an object: defaults are there, what is empty is not."""
    if isinstance(item, list):
        return [as_stored(one) for one in item]
    if not isinstance(item, dict):
        return item
    found = {k: as_stored(v) for k, v in item.items() if v not in ("", None, False, 0, {}, []) or k == "emptyDir"}
    if "image" in found and "name" in found:
        found |= {"terminationMessagePath": "/dev/termination-log"}
    if "containerPort" in found:
        found["protocol"] = "TCP"
    if "containers" in found:
        found = {"securityContext": {}} | found | {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
    return found


@over(CASES, name=lambda case: case.folder.name)
def test_an_object_as_servers_store_it_is_no_difference(case: Case) -> None:
    objects = case.render().objects
    assert [differences(item, as_stored(item)) for item in objects] == [[]] * len(objects)


def test_a_volume_that_is_mounted_twice_is_compared_by_path() -> None:
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]}
    assert differences(mounts, mounts, "c") == []
    live = {"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "w", "mountPath": "/b"}]}
    assert differences(mounts, live, "c") == ["c.volumeMounts[/b].name: w, not v"]


def test_what_apply_keeps_of_somebody_else_is_no_drift_and_a_rival_is(server: ApiServer, api: Api) -> None:
    """k3s makes a RuntimeClass nvidia of its own."""
    server.put(gpu_node())
    foreign = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    server.put({**foreign, "handler": "nvidia"}, "k3s")
    watched = watcher(api)
    assert seen(watched) == {}
    owner = {"objectset.rio.cattle.io/owner-name": "x"}
    server.put({**foreign, "metadata": {"name": "nvidia", "annotations": owner}, "handler": "other"}, "k3s")
    assert seen(watched) == {("kube.drift", "RuntimeClass nvidia"): "it is not gpunode's but k3s's"}
    server.edit(
        "DaemonSet", PLUGIN, "gpunode", lambda d: d["metadata"].update(deletionTimestamp="2026-11-23T12:00:00Z")
    )
    assert seen(watched)[("kube.drift", f"DaemonSet gpunode/{PLUGIN}")] == "it is being deleted, and waits for ?"


def test_an_object_of_no_kubernetes_is_named_and_the_rest_is_looked_at(server: ApiServer, api: Api) -> None:
    server.put(gpu_node(allocatable="3"))
    watched = watcher(api)
    server.edit("DaemonSet", PLUGIN, "gpunode", lambda d: d["spec"]["selector"].update(matchLabels="\x1b[31m"))
    assert seen(watched) == {("kube.gpus", "node gpu1"): f"3 of 4 {GPU} can be allocated (pool default)"}
    assert [one.partition(": ")[0] for one in watched.unread] == [
        f"DaemonSet gpunode/{PLUGIN}",
        "who else hands out GPUs",
    ]
    assert "\x1b" not in str(watched.unread)


def test_a_single_pool_without_labels_that_lost_its_gpus_is_found_at_the_first_look(
    server: ApiServer, api: Api
) -> None:
    """The kubelet keeps the resource of a device plugin that went, with 0, until it restarts."""
    server.put(gpu_node(capacity="0", allocatable="0"))
    server.put(node("cpu1"))
    watched = watcher(api)
    assert seen(watched) == {
        ("kube.gpus", "node gpu1"): f"it offers no GPU, and should offer at least 1 {GPU} (pool default): {NO_POD}",
    }


def test_a_node_that_no_device_plugin_of_ours_selects_may_have_lost_its_gpus(server: ApiServer, api: Api) -> None:
    spec = {"kubernetes": {"node_selector": {"gpu": "yes"}}}
    server.put(gpu_node(capacity="0", allocatable="0"))
    server.put(gpu_node("gpu2", gpu="yes"))
    assert seen(watcher(api, spec)) == {}


def test_a_node_of_a_pool_that_never_offered_a_gpu_is_found(server: ApiServer, api: Api) -> None:
    """The other nodes of its pool do: the pool as a whole is well."""
    for name in ("gpu1", "gpu2"):
        server.put(gpu_node(name) if name == "gpu1" else node(name))
    what = rendered({"kubernetes": {"pools": {"a": {"nodes": "kubernetes.io/os!=windows"}}}})
    watched = Watched(api, what)
    put(api, what)
    assert seen(watched) == {
        ("kube.gpus", "node gpu2"): f"it offers no GPU, and should offer at least 1 {GPU} (pool a): {NO_POD}"
    }
    down = node("gpu2")
    down["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]
    server.put(down)
    assert ("kube.node", "node gpu2") in seen(watched)


LOOPS: list[tuple[str, dict[str, Any], bool]] = [
    ("lately", {"restartCount": 3, "at": "2026-11-23T11:55:00Z"}, True),
    ("long ago", {"restartCount": 30, "at": "2026-11-23T11:40:00Z"}, False),
    ("once", {"restartCount": 1, "at": "2026-11-23T11:55:00Z"}, False),
    ("by a reboot, after restarts for new layouts", {"restartCount": 3, "at": "2026-11-23T11:55:00Z",
     "reason": "Unknown"}, False),
]  # fmt: skip


@over(LOOPS, name=lambda row: row[0])
def test_a_container_that_runs_between_two_crashes_is_found(_name: str, given: dict[str, Any], found: bool) -> None:
    plugin = next(item for item in rendered().objects if item["metadata"]["name"] == PLUGIN)
    key = key_of(plugin)
    ended = {"exitCode": 1, "message": "a\nno \x1b[31mNVML\n", "finishedAt": given["at"]}
    ended["reason"] = given.get("reason", "Error")
    status = {"name": "c", "state": {"running": {}}, "lastState": {"terminated": ended}}
    pod = {
        "metadata": {"name": "p"},
        "status": {"containerStatuses": [{**status, "restartCount": given["restartCount"]}]},
    }
    live = {**plugin, "status": {"numberAvailable": 1, "desiredNumberScheduled": 1, "updatedNumberScheduled": 1}}
    look = ClusterReading(
        wanted={key: plugin}, live={key: live}, pods={key: [pod]}, nodes=[], usage=Usage(nodes=(), waiting=()),
        recently="2026-11-23T11:50:00Z",
    )  # fmt: skip
    text = "pod p: c ends again and again, with exit status 1: no \\x1b[31mNVML"
    assert [(one.message, one.passing) for one in findings(look) if one.check == "kube.ready"] == [
        (text, False)
    ] * found


def test_labels_and_taints_that_somebody_took_off_are_drift(server: ApiServer, api: Api) -> None:
    what = rendered({"kubernetes": {"taint": True, "node_selector": {"gpu": "yes"}}}, gpu1={}, gpu2={})
    for name in ("gpu1", "gpu2"):
        server.put({**gpu_node(name), "spec": {"taints": [{"key": "other", "effect": "NoExecute"}]}})
    put(api, what)
    watched = Watched(api, what)
    assert seen(watched) == {}
    server.edit("Node", "gpu1", "", lambda item: item["metadata"]["labels"].update(gpu="\x1b[31m"))
    server.edit("Node", "gpu1", "", lambda item: item.update(spec={}))
    server.gone(("v1", "nodes", "", "gpu2"))
    found = seen(watched)
    assert found[("kube.drift", "node gpu1")] == (
        "the label gpu is \\x1b[31m, not yes; the taint nvidia.com/gpu=present:NoSchedule is missing"
    )
    assert found[("kube.node", "host gpu2")] == "no node of this cluster has that name or address"


STALE = "applied earlier, and no longer in gpunode.yml: "
PLAIN: dict[str, Any] = {"kubernetes": {"taint": True}}
GPUSHARE = {"sharing": {"strategy": "gpushare"}}


def test_what_was_applied_and_is_not_rendered_any_more_is_drift_until_it_is_gone(server: ApiServer, api: Api) -> None:
    """The same objects and marks that apply would take away."""
    server.put(gpu_node())
    put(api, rendered(PLAIN, gpu1={}))
    what = rendered(GPUSHARE, gpu1={})
    server.edit("Node", "gpu1", "", lambda item: item["metadata"].update(labels={"gpushare": "true"}))
    watched = Watched(api, what)
    server.requests.clear()
    found = {about for (_, about), text in seen(watched).items() if text.startswith(STALE)}
    assert found == {
        "DaemonSet gpunode/gpu-feature-discovery",
        f"DaemonSet gpunode/{PLUGIN}",
        "ConfigMap gpunode/device-plugin-config",
        "marks of node gpu1",
    }
    assert mutating(server) == []
    removed = {str(change.key) for change in put(api, what, dry_run=True).changes if change.how == "deleted"}
    assert found - {"marks of node gpu1"} == removed
    server.edit("DaemonSet", PLUGIN, "gpunode", lambda item: item["metadata"].update(labels={}))  # taken over
    server.gone(("v1", "configmaps", "gpunode", "device-plugin-config"))
    left = {about for (_, about), text in seen(watched).items() if text.startswith(STALE)}
    assert left == {"DaemonSet gpunode/gpu-feature-discovery", "marks of node gpu1"}
    server.gone(("apps/v1", "daemonsets", "gpunode", PLUGIN))
    assert put(api, what).problems == ()
    assert not [text for text in seen(watched).values() if text.startswith(STALE)]


def test_an_inventory_of_another_namespace_is_found_as_apply_finds_it(server: ApiServer, api: Api) -> None:
    server.put(gpu_node())
    put(api, rendered({"kubernetes": {"namespace": "old"}}))
    watched = Watched(api, rendered())
    assert f"DaemonSet old/{PLUGIN}" in {about for _, about in seen(watched)}


def test_an_inventory_that_cannot_be_read_is_named_and_the_rest_is_looked_at(server: ApiServer, api: Api) -> None:
    server.put(gpu_node(allocatable="3"))
    watched = watcher(api)
    server.edit("ConfigMap", INVENTORY, "gpunode", lambda item: item.update(data={"inventory.json": "{"}))
    assert seen(watched) == {("kube.gpus", "node gpu1"): f"3 of 4 {GPU} can be allocated (pool default): {NO_POD}"}
    assert [text.split(":")[0] for text in watched.unread] == ["what apply recorded"]


BY_LABEL: dict[str, Any] = {
    "kubernetes": {
        "pools": {"a": {"nodes": "team=a"}, "b": {"nodes": "team=b", "sharing": {"strategy": "mps", "replicas": 2}}},
    }
}


def test_pools_by_label_are_judged_by_the_nodes_of_now(server: ApiServer, api: Api) -> None:
    """A node that joins, one that is in no pool any more, one of two pools, and a pool without any."""
    what = rendered(BY_LABEL)
    server.put(gpu_node("n1", team="a"))
    shares = gpu_node("n2", team="b")
    shares["metadata"]["labels"]["nvidia.com/gpu.replicas"] = "2"
    server.put(shares)
    nodes = [server.get("Node", name) or {} for name in ("n1", "n2")]
    put(api, render(with_nodes(what.cluster, nodes)))
    watched = Watched(api, what)
    assert seen(watched) == {}
    server.put(gpu_node("n3", team="a"))
    server.edit("Node", "n2", "", lambda item: item["metadata"]["labels"].update(team="c"))
    assert seen(watched) == {
        ("kube.drift", "node n3"): f"the label {POOL_LABEL} is nothing, not a",
        ("kube.drift", "marks of node n2"): f"{STALE}the label {POOL_LABEL}",
    }
    unproven = [check.message for check in checks_of(*judged(watched)) if check.status == "not-proven"]
    assert unproven == ["pool b: no node of the cluster is chosen by 'team=b'"]


def judged(watched: Watched) -> tuple[ClusterReading, tuple[ClusterFinding, ...]]:
    found = watched.findings()
    assert watched.last is not None
    return watched.last, found


def test_a_node_that_gets_into_a_second_pool_is_found(server: ApiServer, api: Api) -> None:
    both = {"kubernetes": {"pools": {"a": {"nodes": "team=a"}, "b": {"nodes": "gpu=b"}}}}
    what = rendered(both)
    server.put(gpu_node("n1", team="a", gpu="b"))
    watched = Watched(api, what)
    assert seen(watched)[("kube.node", "node n1")] == "it is in the pools a and b"


def test_a_gpu_whose_pods_hold_more_than_it_has_is_found(server: ApiServer, api: Api) -> None:
    memory = {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "2"}
    server.put(node("gpu1", allocatable=memory))
    for name, amount in (("a", "9"), ("b", "8"), ("c", "16")):
        asks = {"limits": {"aliyun.com/gpu-mem": amount}}
        server.put({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "team",
                         "annotations": {"ALIYUN_COM_GPU_MEM_IDX": "1" if name == "c" else "0"}},
            "spec": {"nodeName": "gpu1", "containers": [{"name": "c", "resources": asks}]},
            "status": {"phase": "Running"},
        })  # fmt: skip
    found = seen(Watched(api, rendered(GPUSHARE)))
    assert found[("kube.gpus", "GPU 0 of node gpu1")] == "its pods hold 17 of 16 GiB"


def test_memory_that_claims_wait_for_is_compared_with_memory_and_devices_with_devices() -> None:
    gpus = (GpuUse(name="gpu-0", allocated=70000, total=81920), GpuUse(name="gpu-1", allocated=1, total=81920))
    use = Use(kind="dra-memory", resource="gpu.nvidia.com/gpu", allocated=70001, total=163840, gpus=gpus, unit="MiB")
    there = NodeUse(name="gpu1", address="", product="", state="Ready", uses=(use,))

    def found(asks: dict[str, int]) -> list[str]:
        waiting = Waiting(namespace="team", name="p", asks=asks, why="")
        look = ClusterReading(wanted={}, live={}, pods={}, nodes=(), usage=Usage(nodes=(there,), waiting=(waiting,)))
        return [one.message for one in findings(look) if one.check == "kube.waiting"]

    assert found({"gpu.nvidia.com/gpu (MiB)": 3072}) == []
    assert found({"gpu.nvidia.com/gpu": 1}) == ["1 pod waits for it, and no node that takes pods has any free: team/p"]


# ---------------------------------------------------------------- healthy and broken states of one cluster

POOLS: dict[str, Any] = {
    "gpu1": {"kubernetes": {"pool": "whole"}},
    "gpu2": {"kubernetes": {"pool": "sliced"}, "sharing": {"strategy": "time-slicing", "replicas": 2}},
}
SLICED = f"{PLUGIN}-sliced"
Change = Callable[[ApiServer], object]


def shared_node(name: str, allocatable: str = "8", **labels: str) -> dict[str, Any]:
    return gpu_node(name, "8", allocatable, **{POOL_LABEL: "sliced", "nvidia.com/gpu.replicas": "2"}, **labels)


def plugin(change: Callable[[dict[str, Any]], object], name: str = SLICED) -> Change:
    return lambda server: server.edit("DaemonSet", name, "gpunode", change)


def on_node(change: Callable[[dict[str, Any]], object], name: str = "gpu2") -> Change:
    return lambda server: server.edit("Node", name, "", change)


def full(server: ApiServer) -> None:
    asks = {"limits": {GPU: "4"}, "requests": {GPU: "4"}}
    server.put({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "all", "namespace": "team"},
        "spec": {"containers": [{"name": "c", "resources": asks}], "nodeName": "gpu1"}, "status": {"phase": "Running"},
    })  # fmt: skip


def denied(server: ApiServer) -> None:
    """A quota: the DaemonSet's pods are not created, and only its own event says why."""
    unready = {"desiredNumberScheduled": 1, "updatedNumberScheduled": 0, "numberAvailable": 0}
    server.edit("DaemonSet", SLICED, "gpunode", lambda item: item["status"].update(unready))
    server.put({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "gpunode"}, "type": "Warning",
        "reason": "FailedCreate", "message": 'pods "x" is forbidden: exceeded quota: one', "lastTimestamp": "2026",
        "involvedObject": {"kind": "DaemonSet", "name": SLICED, "namespace": "gpunode"},
    })  # fmt: skip


def denied_alike(server: ApiServer) -> None:
    """The same event of a DaemonSet whose name begins as ours does; ours has a pod that an event alone explains."""
    denied(server)
    server.edit("Event", "e", "gpunode", lambda item: item["involvedObject"].update(name=f"{SLICED}-of-theirs"))
    labels = plugin_set(server, SLICED)["spec"]["selector"]["matchLabels"]
    server.put({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "gpunode", "labels": labels},
        "spec": {"nodeName": "gpu2", "containers": [{"name": "c"}]}, "status": {"phase": "Pending"},
    })  # fmt: skip
    server.put({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "m", "namespace": "gpunode"}, "type": "Warning",
        "reason": "FailedMount", "message": "hostPath type check failed", "lastTimestamp": "2026",
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "gpunode"},
    })  # fmt: skip


def waits_for(resource: str, amount: str, of: Change = lambda server: None) -> Change:
    def change(server: ApiServer) -> None:
        of(server)
        server.put({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w", "namespace": "team"},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {resource: amount}}}]},
            "status": {"phase": "Pending"},
        })  # fmt: skip

    return change


def another_plugin(server: ApiServer) -> None:
    template = {"spec": {"containers": [{"name": "c", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.1"}]}}
    server.put({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "nvdp", "namespace": "kube-system"},
        "spec": {"template": template},
    })  # fmt: skip


def all_cordoned(server: ApiServer) -> None:
    for name in ("gpu1", "gpu2"):
        on_node(lambda item: item.update(spec={"unschedulable": True}), name)(server)


def no_pods(server: ApiServer) -> None:
    """Somebody's node selector: no node fits any more, and the controller wants 0 pods."""
    none = {"observedGeneration": 99, "desiredNumberScheduled": 0, "updatedNumberScheduled": 0, "numberAvailable": 0}
    server.edit("DaemonSet", SLICED, "gpunode", lambda item: item["status"].update(none))
    selects = {"nodeSelector": {"disk": "ssd"}}
    server.edit("DaemonSet", SLICED, "gpunode", lambda item: item["spec"]["template"]["spec"].update(selects))
    server.put(shared_node("gpu2", "0"))


def deleted(server: ApiServer) -> None:
    server.gone(("apps/v1", "daemonsets", "gpunode", SLICED))
    server.put(shared_node("gpu2", "0"))


def unseen(server: ApiServer) -> None:
    denied_alike(server)
    server.edit("Pod", "p", "gpunode", lambda item: item["spec"].pop("nodeName", None))


def mirrored(item: dict[str, Any]) -> None:
    item["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror.lan/plugin:1"
    item["status"]["observedGeneration"] = 99


STATES: list[tuple[str, Change, dict[str, str]]] = [
    ("idle", lambda server: None, {}),
    ("one full", full, {}),
    ("one cordoned", on_node(lambda item: item.update(spec={"unschedulable": True})), {}),
    (
        "a taint of its own",
        on_node(
            lambda item: item.update(spec={"taints": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]})
        ),
        {},
    ),
    (
        "images rewritten on their way by a policy",
        plugin(mirrored),
        {},
    ),
    (
        "instances of before, of which the kubelet still tells",
        on_node(lambda item: item["status"]["capacity"].update({"nvidia.com/mig-1g.10gb": "16"})),
        {},
    ),
    (
        "a runtime that its engine lists",
        on_node(lambda item: item["status"].update(runtimeHandlers=[{"name": ""}, {"name": "nvidia"}])),
        {},
    ),
    (
        "a pool's GPUs are gone",
        lambda server: server.put(shared_node("gpu2", "0")),
        {"kube.gpus": "0 of 8 nvidia.com/gpu can be allocated"},
    ),
    ("a quota denies pods", denied, {"kube.ready": "FailedCreate: pods"}),
    ("a pod waits for a volume", denied_alike, {"kube.ready": "1 pods; pod p: FailedMount: hostPath type check"}),
    ("another plugin came later", another_plugin, {"kube.pool": "DaemonSet kube-system/nvdp hands out GPUs already"}),
    ("a pod waits for a node that it chose", waits_for(GPU, "1"), {}),
    ("a pod waits for what other hardware has", waits_for("amd.com/gpu", "1"), {}),
    ("a resource's name is mistyped", waits_for("nvidia.com/gpus", "1"), {"kube.waiting": "no node offers it: team/w"}),
    ("more than a node has", waits_for(GPU, "12"), {"kube.waiting": "no node that takes pods has more than 8 free"}),
    ("all are cordoned", waits_for(GPU, "1", all_cordoned), {"kube.waiting": "no node that takes pods has any free"}),
    (
        "no node fits",
        no_pods,
        {"kube.gpus": "does not select it by its label disk=ssd"},
    ),
    (
        "the engine lost its runtime",
        on_node(lambda item: item["status"].update(runtimeHandlers=[{"name": ""}, {"name": "runc"}])),
        {"kube.node": "no runtime nvidia"},
    ),
    (
        "the plugin is deleted",
        deleted,
        {"kube.drift": "it is gone", "kube.gpus": f"DaemonSet gpunode/{SLICED} is gone"},
    ),
    ("the scheduler is dead", unseen, {"kube.ready": "pod p: no scheduler has seen it"}),
    (
        "a kubelet is dead",
        on_node(lambda item: item["status"].update(conditions=[{"type": "Ready", "status": "Unknown"}])),
        {"kube.node": "the node is not Ready"},
    ),
    (
        "whole GPUs in place of shares",
        lambda server: server.put(gpu_node("gpu2", "1", "1", **{POOL_LABEL: "sliced"})),
        {"kube.gpus": "offers 1 nvidia.com/gpu, and should offer at least 2"},
    ),
]


@over(STATES, name=lambda row: row[0])
def test_a_healthy_cluster_raises_no_alarm_and_a_broken_one_is_told(
    _name: str, change: Change, expected: dict[str, str]
) -> None:
    server = ApiServer()
    server.controllers.append(workloads_become_ready)
    try:
        with TemporaryDirectory() as folder:
            api = quick(connect(str(server.kubeconfig(Path(folder) / "k"))))
            server.put(gpu_node("gpu1", **{POOL_LABEL: "whole"}))
            server.put(shared_node("gpu2"))
            what = rendered({"runtimes": {"containerd": {"default_runtime": "runc"}}}, **POOLS)
            put(api, what)
            server.controllers.clear()
            change(server)
            own_all(server)
            found = seen(Watched(api, what))
    finally:
        server.close()
    assert {check for check, _ in found} == set(expected), found
    for check, text in expected.items():
        assert any(text in message for (one, _), message in found.items() if one == check), found


def own_all(server: ApiServer) -> None:
    """As a real server tells: what gpunode applied is its own, also where a policy rewrote it on its way."""
    for key, item in server.objects.items():
        if key[1] in ("daemonsets", "deployments"):
            entry = {"manager": "gpunode", "operation": "Apply", "fieldsV1": fields_of(item["spec"], "spec")}
            item["metadata"]["managedFields"] = [entry]


def fields_of(value: Any, name: str) -> dict[str, Any]:
    """managedFields as a server writes them: maps by key, lists of named items by name, all else as a whole."""

    def inner(value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            return {f"f:{key}": inner(one) for key, one in value.items()}
        if isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
            return {f'k:{{"name":"{one["name"]}"}}': inner(one) for one in value}
        return {}

    return {f"f:{name}": inner(value)}


def test_what_somebody_else_added_to_our_pods_is_named() -> None:
    item = next(one for one in rendered().objects if one["metadata"]["name"] == PLUGIN)
    template = {"nodeSelector": {"disk": "ssd"}, "containers": item["spec"]["template"]["spec"]["containers"]}
    theirs = {"f:spec": {"f:template": {"f:spec": {
        "f:nodeSelector": {".": {}, "f:disk": {}},
        "f:containers": {
            f'k:{{"name":"{PLUGIN}"}}': {"f:env": {'k:{"name":"PASS_DEVICE_SPECS"}': {}}},
            'k:{"name":"mesh"}': {"f:env": {}, "f:image": {}},
        },
    }}}}  # fmt: skip
    managed = [
        {"manager": "gpunode", "operation": "Apply", "fieldsV1": fields_of(item["spec"], "spec")},
        {"manager": "kubectl-patch", "operation": "Update", "time": "2026-11-24T20:00:00Z", "fieldsV1": theirs},
        {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status",
         "fieldsV1": {"f:status": {}}},
    ]  # fmt: skip
    live = {
        **item,
        "metadata": {**item["metadata"], "managedFields": managed},
        "spec": {"template": {"spec": template}},
    }
    assert additions(live) == [
        f"kubectl-patch at 2026-11-24T20:00:00Z added nodeSelector disk, {PLUGIN}.env PASS_DEVICE_SPECS"
    ]


def test_an_object_that_is_rendered_otherwise_now_is_drift_though_gpunode_owns_it(server: ApiServer, api: Api) -> None:
    server.put(gpu_node())
    put(api, rendered())
    own_all(server)
    changed = rendered({"kubernetes": {"images": {"registry": "mirror.lan"}}})
    found = seen(Watched(api, changed))
    assert "mirror.lan" in found[("kube.drift", f"DaemonSet gpunode/{PLUGIN}")]


def test_the_checks_of_a_reading_say_what_is_right(server: ApiServer, api: Api) -> None:
    server.put(gpu_node(**{COUNT: "4"}))
    watched = watcher(api)
    found = {check.id: (check.status, check.message) for check in checks_of(*judged(watched))}
    assert found["kube.gpus"] == ("passed", "4 nvidia.com/gpu")
    assert found["kube.drift"][0] == found["kube.ready"][0] == "passed"
    results = [HostResult(host="cluster", checks=tuple(checks_of(*judged(watched))))]
    assert 'gpunode_kube_check{about="cluster",check="kube.gpus"} 1\n' in metrics(results)
