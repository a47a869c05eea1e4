"""gpunode kube verify: what is started, what counts as proof, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from api_nodes import COUNT, MEMORY, Nodes
from api_objects import DRA
from api_server import ApiServer, Fault, workloads_become_ready
from kube_cluster import node, quick, rendered, silent

from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.model import HostResult
from gpunode.core.printable import printable
from gpunode.kube.core import usage as core_usage
from gpunode.kube.core.checks import proof_rules
from gpunode.kube.core.checks import proofs as proofs_module
from gpunode.kube.core.checks.proof_rules import devices
from gpunode.kube.core.checks.proofs import packed
from gpunode.kube.core.checks.ready import last_warning
from gpunode.kube.core.render import Rendered
from gpunode.kube.core.usage import usage_data, usage_text
from gpunode.kube.edge import verify as kube_verify
from gpunode.kube.edge.apply import apply
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.kubeconfig import connect
from gpunode.kube.edge.status import read_usage
from gpunode.kube.edge.verify import ProofOptions, verify

pytest_plugins = ("kube_fixtures",)

GPU = "nvidia.com/gpu"
GPUSHARE = {"sharing": {"strategy": "gpushare"}}
SLICES = {"sharing": {"strategy": "time-slicing", "replicas": 4}}


def prove(api: Api, spec: dict[str, Any], *, timeout: float = 5, **options: Any) -> list[HostResult]:
    what = rendered(spec)
    apply(api, what, timeout=5, notify=silent)
    return verify(api, what, smoke(timeout=timeout, **options), notify=silent)


def smoke(**options: Any) -> ProofOptions:
    return ProofOptions(**{"smoke": True, "timeout": 5, "patience": 0} | options)


def of(results: list[HostResult], host: str = "") -> dict[str, tuple[str, str]]:
    """What was proven on this host; of all pools and nodes together without one."""
    found = [result for result in results if result.host == host or (not host and result.host != "cluster")]
    return {check.id: (check.status, check.message) for result in found for check in result.checks}


def test_whole_gpus_are_proven_and_nothing_stays_behind(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "2"}))
    nodes = Nodes(server)
    results = prove(api, {})
    assert of(results) == {
        "kube.vectoradd": ("passed", "a pod adds two vectors on a GPU: Test PASSED"),
        "kube.which-gpu": ("passed", "a container gets exactly one GPU: GPU-gpu1-0 on gpu1"),
        "kube.too-many-stays-pending": (
            "passed",
            "a request of 3 nvidia.com/gpu stays Pending: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
        ),
    }
    assert {k: v[0] for k, v in of(results, "cluster").items()} == {
        "kube.drift": "passed", "kube.ready": "passed", "kube.node": "passed", "kube.gpus": "passed",
        "kube.waiting": "passed", "kube.cleaned-up": "passed",
    }  # fmt: skip
    assert [result.outcome for result in results] == ["ok", "ok", "ok"]
    assert nodes.started == ["too-many-stays-pending", "vectoradd", "which-gpu"]
    assert "gpunode-verify" not in server.names("Namespace")
    assert server.names("Pod") == []


def test_shares_are_proven_by_one_pod_more_than_gpus(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "8"}))  # two GPUs
    nodes = Nodes(server, replicas=4)
    found = of(prove(api, SLICES))
    assert found["kube.shared-gpu"] == ("passed", "3 pods on 2 GPUs: 2 of them on GPU-gpu1-0")
    assert [name for name in nodes.started if name.startswith("shared")] == [f"shared-gpu-{i}" for i in range(3)]


def test_a_request_too_large_for_its_pool_is_not_put_on_a_node_of_another_pool(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", address="10.0.0.1", allocatable={GPU: "2"}))
    server.put(node("gpu2", address="10.0.0.2", allocatable={GPU: "8"}))
    Nodes(server)
    what = rendered({}, gpu1={}, gpu2={**SLICES, "kubernetes": {"pool": "sliced"}})
    apply(api, what, timeout=5, notify=silent)
    results = verify(api, what, smoke(), notify=silent)
    for pool, asked in ("default", 3), ("sliced", 9):
        status, message = of(results, f"pool {pool}")["kube.too-many-stays-pending"]
        assert (status, message.partition(":")[0]) == ("passed", f"a request of {asked} nvidia.com/gpu stays Pending")


def test_shares_of_a_chart_that_nobody_labelled_are_known_from_the_spec(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "8"}))
    Nodes(server, replicas=4)
    found = of(prove(api, SLICES | {"kubernetes": {"install": "helm"}}))
    assert found["kube.shared-gpu"][0] == "passed"


def test_gpushare_is_proven_by_two_pods_a_request_too_large_and_a_packed_set(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", labels={"gpushare": "true"}, allocatable={MEMORY: "32", COUNT: "2", GPU: "0"}))
    Nodes(server)
    assert of(prove(api, GPUSHARE)) == {
        "kube.vectoradd": ("passed", "a pod adds two vectors on a GPU: Test PASSED"),
        "kube.which-gpu": ("passed", "a container gets exactly one GPU: GPU-gpu1-0 on gpu1"),
        "kube.gpushare-two-pods": ("passed", "pods with 3 and 5 GiB run side by side: 8 on GPU 0"),
        "kube.gpushare-too-large-stays-pending": (
            "passed", "a request of 17 aliyun.com/gpu-mem stays Pending: "
            "0/1 nodes are available: 1 Insufficient GPU Memory in one device.",
        ),
        "kube.gpushare-binpack": ("passed", "three pods of 3 GiB are packed: 3 on GPU 0"),
    }  # fmt: skip


def test_mib_are_asked_for_where_the_plugin_counts_in_mib(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={MEMORY: "16384", COUNT: "1"}))
    Nodes(server)
    found = of(prove(api, GPUSHARE | {"kubernetes": {"gpushare": {"memory_unit": "MiB"}}}))
    assert found["kube.gpushare-two-pods"][1] == "pods with 3072 and 5120 MiB run side by side: 8192 on GPU 0"


# How the cluster is broken → which check fails, and what it says
BROKEN = {
    "vectoradd": ({}, "kube.vectoradd", "cuda ended with exit status 1: Error: Failed to allocate device vector A"),
    "sees-all": ({}, "kube.which-gpu", "the container sees 8 GPUs: GPU-gpu1-0, GPU-gpu1-1"),
    "too-generous": ({}, "kube.too-many-stays-pending", "it was put on gpu1"),
    "no-extender": (GPUSHARE, "kube.gpushare-two-pods", "runs without ALIYUN_COM_GPU_MEM_IDX"),
    "spread": (GPUSHARE, "kube.gpushare-binpack", "they are spread: 2 on GPU 0, 1 on GPU 1; packed would be 3"),
}  # fmt: skip


@pytest.mark.parametrize("spoil", BROKEN)
def test_what_is_broken_is_found(spoil: str, server: ApiServer, api: Api) -> None:
    spec, check, says = BROKEN[spoil]
    offered = {MEMORY: "32", COUNT: "2"} if spec else {GPU: "8"}
    server.put(node("gpu1", allocatable=offered))
    Nodes(server, spoil=spoil)
    results = prove(api, spec)
    status, message = of(results)[check]
    assert status == "failed"
    assert says in message
    assert "failed" in {result.outcome for result in results}
    assert server.names("Pod") == []


def test_a_share_that_never_comes_is_reported_with_what_the_pod_says(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "1"}))
    Nodes(server, spoil="slow")
    status, message = of(prove(api, {}, timeout=0.2))["kube.vectoradd"]
    assert (status, message) == ("failed", "a pod adds two vectors on a GPU: vectoradd: is not started on no node")


def test_where_all_gpus_are_busy_it_stays_unproven(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "1"}))
    holder = {"nodeName": "gpu1", "containers": [{"name": "c", "resources": {"limits": {GPU: "1"}}}]}
    server.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "job", "namespace": "default"}, "spec": holder,
                "status": {"phase": "Running"}})  # fmt: skip
    Nodes(server)
    results = prove(api, {})
    found = of(results)
    assert found["kube.vectoradd"] == ("not-proven", "all nvidia.com/gpu are in use")
    assert found["kube.too-many-stays-pending"][0] == "passed"
    assert results[-1].outcome == "ok"


def test_gpus_that_a_kubelet_reports_a_little_later_are_waited_for(server: ApiServer, api: Api) -> None:
    """Also where nothing is started: right after apply the kubelet may not have told of its GPUs yet."""
    server.put(node("gpu1"))
    what = rendered({}, gpu1={})
    apply(api, what, timeout=5, notify=silent)
    pauses: list[float] = []

    def report(seconds: float) -> None:
        pauses.append(seconds)
        server.put(node("gpu1", allocatable={GPU: "8"}))

    api.pause = report
    (result,) = verify(api, what, notify=silent)
    assert pauses and of([result], "cluster")["kube.gpus"] == ("passed", f"8 {GPU}")


def test_a_list_of_gpus_that_takes_the_driver_a_while_is_waited_for(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "8"}))
    Nodes(server)
    read, late = api.log, iter(["", "", ""])

    def log(namespace: str, name: str) -> str:
        return read(namespace, name) if name != "which-gpu" else next(late, read(namespace, name))

    api.log = log  # type: ignore[assignment, method-assign]
    assert of(prove(api, {}))["kube.which-gpu"] == ("passed", "a container gets exactly one GPU: GPU-gpu1-0 on gpu1")
    assert next(late, "all read") == "all read"


# A GPU node that is left out on purpose → what is said of it
CLOSED: list[tuple[dict[str, Any], str]] = [
    ({"unschedulable": True}, "cordoned"),
    ({"taints": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]}, "taint dedicated=ml:NoSchedule"),
]


@pytest.mark.parametrize(("spec", "why"), CLOSED)
def test_a_node_that_takes_no_proof_pod_is_left_out(
    server: ApiServer, api: Api, spec: dict[str, Any], why: str
) -> None:
    """It is no fault: proof pods on it stayed Pending, and the whole run failed after ten minutes."""
    server.put(node("gpu1", allocatable={GPU: "2"}))
    server.put(node("gpu2", address="10.0.0.2", allocatable={GPU: "8"}, spec=spec))
    Nodes(server)
    results = prove(api, {})
    assert [result.host for result in results] == ["cluster", "pool default", "node gpu1"]
    assert {status for status, _ in of(results).values()} == {"passed"}
    server.gone(("v1", "nodes", "", "gpu1"))
    results = prove(api, {})
    assert of(results) == {"kube.pool-proof": ("not-proven", f"no proof pod may run: gpu2 ({why})")}
    assert {result.outcome for result in results} == {"ok"}


def test_a_taint_that_the_pods_tolerate_is_none(server: ApiServer, api: Api) -> None:
    taints = [{"key": GPU, "value": "present", "effect": "NoSchedule"}, {"key": "x", "effect": "PreferNoSchedule"}]
    server.put(node("gpu1", allocatable={GPU: "2"}, spec={"taints": taints}))
    Nodes(server)
    assert of(prove(api, {}))["kube.vectoradd"][0] == "passed"


# ---------------------------------------------------------------- kubernetes.gate

GATE = {"kubernetes": {"gate": True}}
UNPROVEN = {"key": "gpunode/unproven", "value": "true", "effect": "NoSchedule"}
FOREIGN = {"key": "dedicated", "value": "ml", "effect": "PreferNoSchedule"}


def joined(server: ApiServer, name: str = "gpu1", address: str = "10.0.0.1", **labels: str) -> None:
    """A node that its kubelet registered with our taint, and with one of somebody else's."""
    spec = {"taints": [FOREIGN, UNPROVEN]}
    server.put(node(name, address=address, allocatable={GPU: "2"}, spec=spec, labels={"mine": "yes", **labels}))


def gate_of(server: ApiServer, name: str = "gpu1") -> tuple[list[str], dict[str, str]]:
    live = server.get("Node", name) or {}
    return [taint["key"] for taint in live["spec"].get("taints") or ()], live["metadata"]["labels"]


CLOSED_NODE = ["dedicated", "gpunode/unproven"]


@pytest.mark.parametrize(
    ("spoil", "gate", "before", "taints", "label"),
    [
        ("", True, "", ["dedicated"], "true"),
        ("vectoradd", True, "true", CLOSED_NODE, None),  # a label from before is no longer so
        ("busy", True, "true", CLOSED_NODE, "true"),  # nothing was proven, nor disproven
        ("", False, "", CLOSED_NODE, None),  # without the key nobody tolerates it, and nobody takes it
    ],
)
def test_a_node_is_opened_where_its_proof_passed(
    spoil: str, gate: bool, before: str, taints: list[str], label: str | None, server: ApiServer, api: Api
) -> None:
    joined(server, **({"gpunode/proven": before} if before else {}))
    Nodes(server, spoil=spoil)
    if spoil == "busy":
        holds = {"name": "c", "resources": {"limits": {GPU: "2"}}}
        metadata = {"name": "user", "namespace": "team", "uid": "u"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": "Running"}}
        server.put(pod | {"spec": {"nodeName": "gpu1", "containers": [holds]}})
    prove(api, GATE if gate else {})
    found, labels = gate_of(server)
    assert (found, labels.get("gpunode/proven"), labels["mine"]) == (taints, label, "yes")


def test_a_node_that_offers_less_than_it_has_is_not_opened(server: ApiServer, api: Api) -> None:
    joined(server)
    server.edit("Node", "gpu1", "", lambda live: live["status"].update(capacity={GPU: "4"}))
    Nodes(server)
    results = prove(api, GATE)
    assert of(results, "node gpu1")["kube.vectoradd"][0] == "passed"
    assert gate_of(server)[0] == CLOSED_NODE
    assert of(results, "cluster")["kube.gate"][0] == "not-proven"


def test_a_node_that_left_after_its_proof_was_not_opened(server: ApiServer, api: Api) -> None:
    def leaves(server: ApiServer, event: str, item: dict[str, Any]) -> None:
        if (event, item["kind"]) == ("DELETED", "Pod") and "which-gpu" in item["metadata"]["name"]:
            server.gone(("v1", "nodes", "", "gpu1"))

    joined(server)
    Nodes(server)
    server.controllers.append(leaves)
    checks = of(prove(api, GATE), "node gpu1")
    assert (checks["kube.which-gpu"][0], checks["kube.opened"][0]) == ("passed", "failed")


def test_only_the_nodes_that_have_just_joined_are_proven_where_asked(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", address="10.0.0.1", allocatable={GPU: "2"}))
    joined(server, "gpu2", "10.0.0.2")
    nodes = Nodes(server)
    results = prove(api, GATE, unproven=True)
    assert [result.host for result in results] == ["cluster", "node gpu2"]
    assert len(nodes.started) == 2 and gate_of(server, "gpu2")[0] == ["dedicated"]


def test_who_asks_for_the_nodes_of_the_gate_has_to_have_one(server: ApiServer, api: Api) -> None:
    joined(server)
    with pytest.raises(InputError, match="gate: true"):
        prove(api, {}, unproven=True)


def test_reading_opens_nothing_and_names_who_waits(server: ApiServer, api: Api) -> None:
    joined(server)
    apply(api, rendered(GATE), timeout=5, notify=silent)
    server.requests.clear()
    [result] = verify(api, rendered(GATE), ProofOptions(patience=0), notify=silent)
    assert of([result], "cluster")["kube.gate"][1].startswith("gpu1: the taint gpunode/unproven")
    assert not [request for request in server.requests if request.startswith("PATCH")]


def test_without_the_right_to_open_nodes_no_pod_is_started(server: ApiServer, api: Api) -> None:
    joined(server)
    what = rendered(GATE)
    apply(api, what, timeout=5, notify=silent)
    server.denied.append("patch nodes")
    with pytest.raises(RefusedError, match="patch nodes"):
        verify(api, what, smoke(), notify=silent)
    assert server.names("Pod") == []


def test_a_users_example_waits_for_the_proof_and_our_pods_do_not() -> None:
    what = rendered({"sharing": {"strategy": "gpushare"}, **GATE})
    tolerate = {item["kind"]: "gpunode/unproven" in str(item) for item in what.examples}
    assert tolerate and not any(tolerate.values())
    assert any("gpunode/unproven" in str(item) for item in what.objects if item["kind"] == "DaemonSet")


def test_a_request_that_stays_pending_for_another_reason_proves_nothing() -> None:
    message = "0/2 nodes are available: 1 node(s) were unschedulable."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    live = {"metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Pending", "conditions": [condition]}}
    asks = {"spec": {"containers": [{"name": "c", "resources": {"limits": {GPU: "9"}}}]}}
    proof = proof_rules.Proof(
        id="kube.x", title="9 stay Pending", until="unschedulable", rule="pending", pods=("p",), objects=(asks,)
    )
    check = proof_rules.judge(proof, proof_rules.ProofOutcome(pods=(live,), logs=("",)))
    assert (check.status, message in check.message) == ("not-proven", True)
    condition["message"] = f"0/2 nodes are available: 2 Insufficient {GPU}."
    assert proof_rules.judge(proof, proof_rules.ProofOutcome(pods=(live,), logs=("",))).status == "passed"


def test_a_scheduler_that_has_no_node_is_not_waited_for_until_the_end(server: ApiServer, api: Api) -> None:
    """A proof waited 300 s for a pod of which the scheduler had said at once that no node fits."""
    server.put(node("gpu1", allocatable={GPU: "2"}))
    Nodes(server, spoil="nowhere")
    asked: list[float] = []
    follow = api.follow

    def short(key: Any, judge: Any, seconds: float) -> Any:
        asked.append(seconds)
        return follow(key, judge, min(seconds, 0.2))

    api.follow = short  # type: ignore[method-assign]
    found = of(prove(api, {}, timeout=300))
    assert found["kube.vectoradd"][0] == "failed" and "untolerated taint" in found["kube.vectoradd"][1]
    assert max(asked) < 300


def test_each_node_is_proven_by_itself(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "8"}))
    server.put(node("gpu2", address="10.0.0.2", allocatable={GPU: "8"}))
    nodes = Nodes(server)
    results = prove(api, {})
    for name in ("gpu1", "gpu2"):
        assert of(results, f"node {name}").keys() == {"kube.vectoradd", "kube.which-gpu"}
        assert {status for status, _ in of(results, f"node {name}").values()} == {"passed"}
    assert [result.host for result in results] == ["cluster", "pool default", "node gpu1", "node gpu2"]
    assert nodes.started.count("vectoradd") == 2 and server.names("Pod") == []


def test_the_budget_of_failed_nodes_ends_the_tour(server: ApiServer, api: Api) -> None:
    for number in (1, 2, 3):
        server.put(node(f"gpu{number}", address=f"10.0.0.{number}", allocatable={GPU: "1"}))
    Nodes(server, spoil="slow")
    results = {result.host: result for result in prove(api, {}, timeout=0.1, max_failures=1)}
    assert [results[f"node gpu{number}"].outcome for number in (1, 2, 3)] == ["failed", "failed", "ok"]
    [left] = results["node gpu3"].checks
    assert (left.status, left.message) == ("not-proven", "not tried: 2 nodes failed before (--max-failures 1)")


def test_a_read_only_account_is_enough_without_smoke(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "8"}))
    what = rendered({})
    apply(api, what, timeout=5, notify=silent)
    server.requests.clear()
    results = verify(api, what, notify=silent)
    assert [(result.host, result.outcome) for result in results] == [("cluster", "ok")]
    assert not [line for line in server.requests if not line.startswith("GET")]


def test_what_nobody_lets_us_read_is_not_proven_and_no_failure(server: ApiServer, api: Api) -> None:
    """Finding: «nothing found», and exit code 1."""
    server.put(node("gpu1", allocatable={GPU: "8"}))
    what = rendered({})
    apply(api, what, timeout=5, notify=silent)
    server.faults.append(Fault("^GET .*/daemonsets", 403, "Forbidden", "no right", times=99))
    (result,) = verify(api, what, notify=silent)
    assert result.outcome == "ok"
    found = {(check.id, check.status) for check in result.checks}
    assert ("kube.unread", "not-proven") in found and ("kube.gpus", "passed") in found
    assert not found & {("kube.drift", "passed"), ("kube.ready", "passed")}


def test_what_helm_made_of_our_releases_is_looked_at_where_it_is_there(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "8"}))
    what = rendered({"kubernetes": {"monitoring": {"enabled": True}}})
    apply(api, what, timeout=5, notify=silent)

    def ready() -> tuple[str, str]:
        return of(verify(api, what, ProofOptions(patience=0), notify=silent), "cluster")["kube.ready"]

    assert ready()[0] == "passed" and "dcgm-exporter" not in ready()[1]
    pods = {"spec": {"containers": [{"name": "x", "image": "x"}]}}
    for name, release in (("dcgm-exporter", "dcgm-exporter"), ("theirs", "another")):
        metadata = {"name": name, "namespace": "gpunode", "annotations": {"meta.helm.sh/release-name": release}}
        made = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {"template": pods}}
        server.put(made, "helm")
    status, message = ready()
    assert status == "passed" and "DaemonSet gpunode/dcgm-exporter" in message and "theirs" not in message
    server.controllers.clear()
    server.edit("DaemonSet", "dcgm-exporter", "gpunode", lambda item: item["status"].update(numberAvailable=0))
    status, message = ready()
    assert status == "failed" and message.startswith("DaemonSet gpunode/dcgm-exporter: 0 of 1 pods")


def test_differences_from_the_spec_alone_are_exit_code_3(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "8"}))
    apply(api, rendered(), timeout=5, notify=silent)
    less = rendered({"kubernetes": {"feature_discovery": False}})
    (result,) = verify(api, less, ProofOptions(patience=0), notify=silent)
    assert result.outcome == "pending"
    status, message = of([result], "cluster")["kube.drift"]
    assert (status, message.startswith("DaemonSet gpunode/gpu-feature-discovery")) == ("pending", True)


def test_a_claim_is_proven_where_gpus_are_shared_by_dra(tmp_path: Path) -> None:
    server = ApiServer(resources=DRA)
    try:
        server.controllers.append(workloads_become_ready)
        server.put(node("gpu1"))
        server.put(
            {
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"},
                "spec": {"driver": "gpu.nvidia.com", "nodeName": "gpu1", "pool": {"name": "gpu1", "generation": 1},
                         "devices": [{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}]},
            }
        )  # fmt: skip
        Nodes(server)
        api = quick(connect(str(server.kubeconfig(tmp_path / "kubeconfig"))))
        found = of(prove(api, {"sharing": {"strategy": "dra"}}))
        assert found["kube.dra-claim"] == ("passed", "a pod gets a GPU by a claim: Test PASSED")
        assert server.names("ResourceClaimTemplate") == []
        assert server.unexpected == []
    finally:
        server.close()


def memory_slice(name: str = "gpu1") -> dict[str, Any]:
    device = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "16Gi"}}}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": name, "pool": {"name": name, "generation": 1},
                 "devices": [{**device, "allowMultipleAllocations": True}]},
    }  # fmt: skip


SHARES = {"sharing": {"strategy": "dra", "dra": {"shares": "memory"}}}


@pytest.mark.parametrize("spoil", ["", "whole"])
def test_shares_of_memory_are_proven_by_three_and_five_gib_and_one_too_many(
    spoil: str, server: ApiServer, api: Api
) -> None:
    server.resources |= DRA
    server.put(node("gpu1"))
    server.put(memory_slice())
    nodes = Nodes(server, spoil=spoil)
    found = of(prove(api, SHARES))
    assert found == {
        "kube.dra-claim": ("passed", "a pod gets a GiB of a GPU by a claim: Test PASSED"),
        "kube.dra-memory-two-pods": ("passed", "pods with 3 and 5 GiB run side by side: 8 GiB on gpu-0")
        if not spoil
        else (
            "failed",
            "pods with 3 and 5 GiB run side by side: "
            "the claim of dra-memory-two-pods-3 takes a whole device of gpu-0, not 3 GiB",
        ),
        "kube.dra-memory-too-large-stays-pending": (
            "passed", "a claim for 17 GiB stays Pending: 0/1 nodes are available: 1 cannot allocate all claims.",
        ),
    }  # fmt: skip
    assert nodes.started == [
        "dra-memory-two-pods-3", "dra-memory-two-pods-5", "dra-memory-too-large-stays-pending-17", "dra-claim",
    ]  # fmt: skip
    assert (server.names("ResourceClaim"), server.names("ResourceClaimTemplate")) == ([], [])


ESCAPES = "\x1b]0;owned\x07"


class Unprepared(Nodes):
    """Kubelets that cannot prepare any pod, and report it by events."""

    def run(self, pod: dict[str, Any], node: dict[str, Any], cards: list[int]) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        pod["spec"]["nodeName"] = node["metadata"]["name"]
        self.server.put({**pod, "status": {"phase": "Pending"}}, "kubelet")
        rows = [
            ("a", "Normal", "Scheduled", "assigned", "2026-11-23T12:00:09Z", name),
            ("b", "Warning", "FailedPrepareDynamicResources", f"no driver{ESCAPES}", "2026-11-23T12:00:02Z", name),
            ("c", "Warning", "FailedMount", "earlier", "2026-11-23T12:00:01Z", name),
            ("d", "Warning", "Other", "of another pod", "2026-11-23T12:00:09Z", "other"),
        ]
        for key, kind, reason, message, at, about in rows:
            metadata = {"name": f"{name}.{key}", "namespace": namespace}
            pod_of = {"kind": "Pod", "namespace": namespace, "name": about}
            self.server.put(
                {
                    "apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": pod_of,
                    "type": kind, "reason": reason, "message": message, "lastTimestamp": at,
                }
            )  # fmt: skip


def test_a_pod_that_waits_on_its_node_is_reported_with_the_event_that_says_why(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "1"}))
    Unprepared(server)
    status, message = of(prove(api, {}, timeout=0.3))["kube.vectoradd"]
    assert status == "failed"
    assert printable(message) == (
        "a pod adds two vectors on a GPU: vectoradd: is Pending on gpu1: FailedPrepareDynamicResources: "
        "no driver\\x1b]0;owned\\x07"
    )


def test_whoever_may_not_read_events_is_told_the_rest(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "1"}))
    Unprepared(server)
    server.faults.append(Fault("GET .*/events", 403, "Forbidden", times=99))
    _, message = of(prove(api, {}, timeout=0.3))["kube.vectoradd"]
    assert message.endswith("vectoradd: is Pending on gpu1")


@pytest.mark.parametrize(
    ("events", "reported"),
    [
        ([], ""),
        ([{"type": "Normal", "reason": "Pulled"}], ""),
        ([{"type": "Warning", "reason": "A", "message": "b\nc"}], "A: b c"),
        ([{"type": "Warning"}], ""),
        (
            [
                {"type": "Warning", "reason": "New", "eventTime": "2026-11-23T12:00:01.5Z"},
                {"type": "Warning", "reason": "Old", "lastTimestamp": "2026-11-23T12:00:01Z"},
                {"type": "Warning", "reason": "Series", "eventTime": "2026-11-23T11:00:00Z",
                 "series": {"lastObservedTime": "2026-11-23T12:00:02Z"}},
            ],
            "Series",
        ),
    ],
)  # fmt: skip
def test_the_latest_event_that_warns_counts(events: list[dict[str, Any]], reported: str) -> None:
    assert last_warning(events) == reported


# ---------------------------------------------------------------- cleaning up


def test_the_leftovers_of_a_killed_run_go_first(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "8"}))
    Nodes(server)
    labels = {"app.kubernetes.io/managed-by": "gpunode"}
    server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpunode-verify", "labels": labels}})
    server.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "old", "namespace": "gpunode-verify"}})
    assert of(prove(api, {}))["kube.vectoradd"][0] == "passed"
    assert server.names("Secret") == []


def test_proof_pods_pull_by_the_secrets_of_the_plugins_namespace(server: ApiServer, api: Api) -> None:
    """Which a pod of another namespace cannot name; they go with the proofs."""
    server.put(node("gpu1", allocatable={GPU: "2"}))
    secret = {"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "e30="}}
    metadata = {"name": "lan", "namespace": "gpunode", "uid": "u"}
    server.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, **secret})
    there: list[dict[str, Any]] = []
    Nodes(server)

    def started(server: ApiServer, event: str, item: dict[str, Any]) -> None:
        if (event, item["kind"]) == ("ADDED", "Pod") and item["metadata"]["namespace"] == "gpunode-verify":
            there.append(server.get("Secret", "lan", "gpunode-verify") or {})

    server.controllers.append(started)
    spec = {"kubernetes": {"images": {"pull_secrets": ["lan", "never-made"]}}}
    assert of(prove(api, spec))["kube.vectoradd"][0] == "passed"
    assert there and all(secret.items() <= found.items() for found in there)
    assert server.names("Secret") == ["gpunode/lan"]


def test_who_may_not_read_the_secrets_is_told_before_anything_is_started(server: ApiServer, api: Api) -> None:
    server.denied += ["^get secrets"]
    with pytest.raises(RefusedError, match="here may not get secrets in gpunode"):
        verify(api, rendered({"kubernetes": {"images": {"pull_secrets": ["lan"]}}}), smoke(), notify=silent)


def test_leftovers_that_are_going_are_waited_for(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "8"}))
    Nodes(server)
    metadata = {"name": "gpunode-verify", "labels": {"app.kubernetes.io/managed-by": "gpunode"},
                "deletionTimestamp": "2026-11-22T00:00:00Z"}  # fmt: skip
    server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    server.later(0.5, lambda: server.gone(("v1", "namespaces", "", "gpunode-verify")))
    assert of(prove(api, {}))["kube.vectoradd"][0] == "passed"


def test_a_foreign_namespace_of_that_name_is_refused(server: ApiServer, api: Api) -> None:
    server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpunode-verify"}})
    with pytest.raises(RefusedError, match="the namespace gpunode-verify is not gpunode's"):
        prove(api, {})
    assert "gpunode-verify" in server.names("Namespace")


def test_missing_rights_are_reported_before_anything_is_started(server: ApiServer, api: Api) -> None:
    server.denied += ["^create namespaces", "^get pods/log"]
    with pytest.raises(RefusedError, match="here may not create namespaces; get pods/log in gpunode-verify"):
        verify(api, rendered(), smoke(), notify=silent)


def test_a_namespace_that_does_not_go_is_a_failed_check(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpunode.kube.edge.verify.GONE_SECONDS", 0.2)
    server.put(node("gpu1", allocatable={GPU: "8"}))
    Nodes(server)
    server.stuck.add("/gpunode-verify")
    status, message = of(prove(api, {}), "cluster")["kube.cleaned-up"]
    assert status == "failed"
    assert "it waits for example.com/stuck" in message


def test_an_error_in_the_middle_leaves_nothing_behind(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={GPU: "8"}))
    Nodes(server)
    server.faults.append(Fault("^PATCH .*/pods/which-gpu", 403, "Forbidden", "exceeded quota", times=9))
    found = of(prove(api, {}))
    assert found["kube.which-gpu"][0] == "failed" and "exceeded quota" in found["kube.which-gpu"][1]
    assert found["kube.vectoradd"][0] == "passed"
    assert server.names("Pod") == []


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_cleans_up(server: ApiServer, tmp_path: Path, stop: signal.Signals) -> None:
    server.put(node("gpu1", allocatable={GPU: "8"}))
    Nodes(server, spoil="slow")
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig(tmp_path / "kubeconfig"))}
    run = subprocess.Popen(
        [sys.executable, "-m", "gpunode", "kube", "verify", "--smoke"],
        cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # background jobs ignore it
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while server.get("Pod", "too-many-stays-pending", "gpunode-verify") is None and run.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run.send_signal(stop)
    _, stderr = run.communicate(timeout=90)
    assert run.returncode == 130, stderr
    assert "gpunode-verify" not in server.names("Namespace") and b"Traceback" not in stderr


def test_a_service_manager_that_asks_again_and_again_gets_no_traceback(server: ApiServer, tmp_path: Path) -> None:
    """SIGTERM at any moment, that of Ansible's cleanup at exit too: the inventory has loaded it."""
    server.put(node("gpu1", allocatable={GPU: "8"}))
    Nodes(server, spoil="slow")
    (tmp_path / "hosts.yml").write_text("all: {hosts: {gpu1: {}}}\n")
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig(tmp_path / "kubeconfig"))}
    run = subprocess.Popen(
        [sys.executable, "-m", "gpunode", "kube", "verify", "--smoke", "-i", "hosts.yml"],
        cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while server.get("Pod", "too-many-stays-pending", "gpunode-verify") is None and run.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while run.poll() is None and time.monotonic() < deadline:
        run.terminate()
        time.sleep(0.01)
    _, stderr = run.communicate(timeout=90)
    assert run.returncode in (130, -signal.SIGTERM) and b"Traceback" not in stderr, stderr
    assert "gpunode-verify" not in server.names("Namespace")


def test_the_command_reports_as_gpunode_verify_does(server: ApiServer, tmp_path: Path) -> None:
    server.put(node("gpu1", allocatable={GPU: "8"}))
    Nodes(server)
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig(tmp_path / "kubeconfig"))}
    words = [sys.executable, "-m", "gpunode", "kube"]
    applied = subprocess.run(
        [*words, "apply"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert applied.returncode == 0, applied.stderr
    assert "DaemonSet gpunode/nvidia-device-plugin: created" in applied.stdout
    ran = subprocess.run(
        [*words, "verify", "--smoke", "--format", "json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    hosts = json.loads(ran.stdout)["hosts"]
    assert [(host["host"], host["exit"]) for host in hosts] == [("cluster", 0), ("pool default", 0), ("node gpu1", 0)]


# ---------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        ({"0": 16}, (3,)), ({"0": 16, "1": 16}, (3,)), ({"0": 5, "1": 16}, (2, 1)),
        ({"0": 3, "1": 3, "2": 4}, (1, 1, 1)),
        ({"0": 8}, ()), ({}, ()),
    ],
)  # fmt: skip
def test_packing_fills_the_fullest_card_first(free: dict[str, int], expected: tuple[int, ...]) -> None:
    assert packed(free, 3, 3) == expected


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5d5ba0d6)\n", ["GPU-5d5ba0d6"]),
        ("GPU 0: A (UUID: GPU-1)\n  MIG 1g.10gb  Device  0: (UUID: MIG-2)\n  MIG 1g.10gb  Device  1: (UUID: MIG-3)\n",
         ["MIG-2", "MIG-3"]),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", []),
        ("sh: nvidia-smi: not found", []),
    ],
)  # fmt: skip
def test_devices_in_a_log(log: str, expected: list[str]) -> None:
    assert devices(log) == expected


# ---------------------------------------------------------------- one odd object or pool, and the others


EMPTY: dict[str, Any] = {}
HUGE = "n" * 1_000_000
HOSTILE = [
    {"metadata": {"name": 3}},
    {"metadata": {"name": "gpu2", "uid": "u", "resourceVersion": "1"}, "status": {"allocatable": {GPU: [1]}}},
    {"metadata": {"name": "\x1b[31mgpu2\x1b]0;x\x07", "uid": "u", "resourceVersion": "1"}, "status": 1},
    {"metadata": {"name": HUGE, "uid": "u", "resourceVersion": "1"}, "spec": {"unschedulable": "yes"}},
]


def answering(api: Api, monkeypatch: pytest.MonkeyPatch, path: str, *more: Any) -> None:
    """The API with these objects as well in its answers to a list."""
    request = api.request

    def asked(method: str, at: str, **how: Any) -> Any:
        found = request(method, at, **how)
        return {**found, "items": [*found["items"], *more]} if (method, at) == ("GET", path) else found

    monkeypatch.setattr(api, "request", asked)


@pytest.mark.parametrize("odd", HOSTILE, ids=["number", "list", "escapes", "1 MB"])
def test_one_odd_node_is_named_and_the_others_are_shown(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch, odd: Any
) -> None:
    server.put(node("gpu1", allocatable={GPU: "2"}))
    answering(api, monkeypatch, "/api/v1/nodes", odd)
    found = read_usage(api)
    assert [(one.name, one.uses[0].total) for one in found.nodes] == [("gpu1", 2)]
    [error] = found.errors
    assert error.startswith("nodes ") and "answers with what is no Kubernetes object" in error
    text = printable(usage_text(found))
    assert "gpu1" in text and len(text) < 3000 and "\x1b" not in text
    assert len(usage_data(found)["errors"]) == 1


def test_a_name_without_end_is_cut_in_tables(server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    long = node(HUGE, allocatable={GPU: "2"}, address=HUGE)
    long["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    answering(api, monkeypatch, "/api/v1/nodes", long, *({**long} for _ in range(50)))
    assert len(usage_text(read_usage(api))) < 60 * 1000
    assert len(usage_text(read_usage(api), details=True)) < 60 * 2000


def test_a_list_without_end_is_no_list(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "request", lambda *_, **__: {"items": [], "metadata": {"continue": "again"}})
    with pytest.raises(GpunodeError, match="has no end"):
        api.items("/api/v1/nodes")


def test_a_bug_met_on_one_node_or_pod_is_its_own(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    server.put(node("gpu1", allocatable={GPU: "2"}))
    server.put(node("gpu2", allocatable={GPU: "4"}))
    known = core_usage._node_use

    def met(found: Any, uses: Any) -> Any:
        return known(found, uses) if found["metadata"]["name"] == "gpu2" else EMPTY["bug"]

    monkeypatch.setattr(core_usage, "_node_use", met)
    found = read_usage(api)
    assert [one.name for one in found.nodes] == ["gpu2"]
    [error] = found.errors
    assert error.startswith("node gpu1: unexpected KeyError") and "report it as" in error
    [report] = tmp_path.rglob("traceback-*.txt")
    assert report.stat().st_mode & 0o777 == 0o600


def two_pools(server: ApiServer) -> Rendered:
    server.put(node("gpu1", address="10.0.0.1", allocatable={GPU: "2"}))
    server.put(node("gpu2", address="10.0.0.2", allocatable={GPU: "4"}))
    a, b = ({"kubernetes": {"pool": name}} for name in ("one", "two"))
    return rendered({}, gpu1=a, gpu2=b)


def test_what_goes_wrong_in_one_pool_is_its_result(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    Nodes(server)
    what = two_pools(server)
    apply(api, what, timeout=5, notify=silent)
    answering(api, monkeypatch, "/api/v1/nodes", *HOSTILE[:2])
    known = proofs_module.pool_proofs

    def met(cluster: Any, pool: Any, *more: Any) -> Any:
        return known(cluster, pool, *more) if pool.name == "two" else iter([EMPTY["bug"]])

    monkeypatch.setattr(kube_verify, "pool_proofs", lambda *args: _later(met, *args))
    results = {result.host: result for result in verify(api, what, smoke(), notify=silent)}
    assert list(results) == ["cluster", "pool one", "pool two", "node gpu1", "node gpu2"]
    [error] = results["pool one"].checks
    assert error.message.startswith("pool one: unexpected KeyError") and "report it as" in error.fix
    assert results["pool two"].outcome == "ok"
    odd = [check.message for check in results["cluster"].checks if check.id == "kube.unread"]
    assert len(odd) == 2 and "gpunode-verify" not in server.names("Namespace")


def _later(call: Any, *args: Any) -> Any:
    yield from call(*args)


def test_a_bug_met_in_one_proof_is_its_own_and_its_pods_go(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    server.put(node("gpu1", allocatable={GPU: "2"}))
    Nodes(server)
    known = proof_rules.judge
    monkeypatch.setattr(
        kube_verify, "judge", lambda proof, seen: known(proof, seen) if proof.id != "kube.which-gpu" else EMPTY["bug"]
    )
    found = of(prove(api, {}))
    assert found["kube.which-gpu"][0] == "failed" and "unexpected KeyError" in found["kube.which-gpu"][1]
    assert found["kube.too-many-stays-pending"][0] == "passed"
    assert server.names("Pod") == []


@pytest.mark.parametrize("rule", ["passed", "pending"])
def test_a_pod_that_a_gate_holds_back_proves_nothing(rule: proof_rules.Rule) -> None:
    """It is not scheduled either, and was once taken for the proof that too large a request stays Pending."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    held = {
        "metadata": {"name": "p"},
        "spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
        "status": {"phase": "Pending", "conditions": [condition]},
    }
    until: proof_rules.Until = "unschedulable" if rule == "pending" else "ended"
    assert not proof_rules.is_done(until, held)
    proof = proof_rules.Proof(id="kube.x", title="a pod runs", until=until, rule=rule, pods=("p",))
    check = proof_rules.judge(proof, proof_rules.ProofOutcome(pods=(held,), logs=("",)))
    assert check.status == "not-proven"
    assert "scheduling gate kueue.x-k8s.io/admission" in check.message
    assert "gpunode-verify" in check.fix
