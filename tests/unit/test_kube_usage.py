"""Usage of GPUs from nodes, pods, slices and claims: numbers, the known layout, and the command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from api_objects import DRA
from api_server import ApiServer, Fault
from click.testing import CliRunner, Result
from kube_cluster import node

from gpunode.cli.main import cli
from gpunode.kube.core.quantity import quantity
from gpunode.kube.core.usage import asked, usage, usage_data, usage_text

pytest_plugins = ("kube_fixtures",)

MEM, COUNT, GPU = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "nvidia.com/gpu"


def pod(name: str, on: str, limits: dict[str, str], *, index: int | None = None, **more: Any) -> dict[str, Any]:
    annotations = {} if index is None else {"ALIYUN_COM_GPU_MEM_IDX": str(index)}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": more.pop("namespace", "default"), "annotations": annotations},
        "spec": {"nodeName": on, "containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": "Running", **more.pop("status", {})},
    }  # fmt: skip


ARCH = node("archlinux", address="192.168.8.100", allocatable={MEM: "16", COUNT: "1"})


@pytest.mark.parametrize(
    ("pods", "used", "percent"),
    [
        ([], 0, 0),
        ([pod("a", "archlinux", {MEM: "3"}, index=0)], 3, 18),
        ([pod("a", "archlinux", {MEM: "3"}, index=0), pod("b", "archlinux", {MEM: "5"}, index=0)], 8, 50),
    ],
)
def test_gpushare_looks_as_kubectl_inspect_gpushare_shows_it(pods: list[Any], used: int, percent: int) -> None:
    assert usage_text(usage([ARCH], pods)).splitlines() == [
        "NAME       IPADDRESS      GPU0(Allocated/Total)  GPU Memory(GiB)",
        f"archlinux  192.168.8.100  {used}/16" + " " * 19 + f"{used}/16",
        "-" * 64,
        "Allocated/Total GPU Memory In Cluster:",
        f"{used}/16 ({percent}%)",
    ]


def test_eight_gpus_of_a_node_have_a_column_each() -> None:
    found = usage(
        [node("dev-server-153", address="192.168.0.153", allocatable={MEM: "184", COUNT: "8"})],
        [pod("a", "dev-server-153", {MEM: "3"}, index=7)],
    )
    head, row, *_ = usage_text(found).splitlines()
    assert head.split()[2:10] == [f"GPU{i}(Allocated/Total)" for i in range(8)]
    assert row.split() == ["dev-server-153", "192.168.0.153", *["0/23"] * 7, "3/23", "3/184"]


def test_details_name_the_pods_and_what_they_hold_of_which_gpu() -> None:
    two = node("n1", allocatable={MEM: "32", COUNT: "2"})
    pods = [pod("binpack-0", "n1", {MEM: "3"}, index=1), pod("new", "n1", {MEM: "5"}, namespace="team")]
    assert usage_text(usage([two], pods), details=True).splitlines() == [
        "NAME:       n1",
        "IPADDRESS:  10.0.0.1",
        "RESOURCE:   aliyun.com/gpu-mem",
        "",
        "NAME       NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  Pending(Allocated)",
        "binpack-0  default    0                3                0",
        "new        team       0                0                5",
        "Allocated : 8 (25%)",
        "Total :     32",
        "-" * 74,
        "Allocated/Total GPU Memory In Cluster:",
        "8/32 (25%)",
    ]


def test_memory_in_mib_is_known_by_its_size() -> None:
    (found,) = usage([node("n1", allocatable={MEM: "16384", COUNT: "1"})], []).nodes
    assert found.uses[0].unit == "MiB"


def test_a_node_whose_gpus_are_all_ill_is_shown() -> None:
    there = node("n1", allocatable={GPU: "0"})
    assert usage([there], []).nodes == (), "its plugin went, and the kubelet forgets it when it restarts"
    there["status"]["capacity"] = {GPU: "8"}
    (found,) = usage([there], []).nodes
    assert [(use.resource, use.total) for use in found.uses] == [(GPU, 0)]


# (labels and allocatable of a node, its pods' limits) → (kind, resource, allocated, total, shares per GPU)
KINDS = {
    "whole GPUs": ({}, {GPU: "8"}, [{GPU: "1"}, {GPU: "4"}, {"cpu": "2"}], [("gpu", GPU, 5, 8, 1)]),
    "shares by Feature Discovery's label": (
        {"nvidia.com/gpu.replicas": "4"}, {GPU: "8"}, [{GPU: "1"}], [("slices", GPU, 1, 8, 4)]),
    "shares that were renamed": (
        {"nvidia.com/gpu.replicas": "10"}, {f"{GPU}.shared": "20", GPU: "0"}, [{f"{GPU}.shared": "1"}] * 3,
        [("slices", f"{GPU}.shared", 3, 20, 10)]),
    "shares that nobody labelled": ({}, {f"{GPU}.shared": "4"}, [], [("slices", f"{GPU}.shared", 0, 4, 1)]),
    "MIG": (
        {}, {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "2"}, [{"nvidia.com/mig-1g.10gb": "2"}],
        [("mig", "nvidia.com/mig-1g.10gb", 2, 7, 1), ("mig", "nvidia.com/mig-3g.40gb", 0, 2, 1)]),
    "a zero that a plugin left behind": ({}, {GPU: "0", MEM: "16", COUNT: "1"}, [], [("gpushare", MEM, 0, 16, 1)]),
    "GPUs that are lost while a pod holds one": ({}, {GPU: "0"}, [{GPU: "1"}], [("gpu", GPU, 1, 0, 1)]),
    "no GPUs": ({}, {"cpu": "8"}, [{"cpu": "1"}], []),
}  # fmt: skip


@pytest.mark.parametrize("case", KINDS)
def test_what_is_counted(case: str) -> None:
    labels, allocatable, limits, expected = KINDS[case]
    pods = [pod(f"p{i}", "n1", limit) for i, limit in enumerate(limits)]
    found = usage([node("n1", labels=labels, allocatable=allocatable)], pods)
    assert [(u.kind, u.resource, u.allocated, u.total, u.replicas) for n in found.nodes for u in n.uses] == expected


def box(limits: dict[str, str], **more: str) -> dict[str, Any]:
    return {"name": "x", "resources": {"limits": limits}, **more}


@pytest.mark.parametrize(
    ("containers", "init", "expected"),
    [
        ([{GPU: "1"}, {GPU: "2"}], [], 3),
        ([{GPU: "1"}], [box({GPU: "4"})], 4),
        ([{GPU: "1"}], [box({GPU: "2"}, restartPolicy="Always"), box({GPU: "1"})], 3),
        ([{GPU: "1"}], [box({GPU: "2"}, restartPolicy="Always"), box({GPU: "3"})], 5),
        ([{}], [], 0),
    ],
)
def test_a_pod_asks_for_what_the_scheduler_counts(containers: list[Any], init: list[Any], expected: int) -> None:
    spec = {"containers": [box(c) for c in containers], "initContainers": init}
    assert asked({"spec": spec}, GPU) == expected


@pytest.mark.parametrize(("phase", "counted"), [("Running", 1), ("Pending", 1), ("Succeeded", 0), ("Failed", 0)])
def test_a_pod_that_has_ended_holds_nothing(phase: str, counted: int) -> None:
    (found,) = usage([node("n1", allocatable={GPU: "1"})], [pod("p", "n1", {GPU: "1"}, status={"phase": phase})]).nodes
    assert found.uses[0].allocated == counted


def test_pods_without_a_node_are_reported_with_the_schedulers_reason() -> None:
    why = "0/3 nodes are available: 3 Insufficient GPU Memory in one device."
    conditions = [{"type": "PodScheduled", "status": "False", "message": why}]
    waits = pod("big", "", {MEM: "24"}, status={"phase": "Pending", "conditions": conditions})
    assert usage_text(usage([ARCH], [waits])).splitlines()[-3:] == [
        "Waiting for GPUs: 1 pods",
        "NAME  NAMESPACE  ASKS FOR               WHY",
        f"big   default    24 aliyun.com/gpu-mem  {why}",
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("1k", 1000), ("1Ki", 1024), ("2e3", 2000), ("0.5", 1), ("-1", -1), ("nonsense", 0), ("", 0)],
)
def test_quantities(text: str, value: int) -> None:
    assert quantity(text) == value


# ---------------------------------------------------------------- DRA


def resource_slice(on: str, generation: int, devices: dict[str, str], *, old: bool = False) -> dict[str, Any]:
    """`old`: as v1beta1 writes devices."""
    items = []
    for name, kind in devices.items():
        body = {"attributes": {"type": {"string": kind}}}
        items.append({"name": name, **({"basic": body} if old else body)})
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{on}-{generation}"},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": on, "pool": {"name": on, "generation": generation},
                 "devices": items},
    }  # fmt: skip


def claim(name: str, pool: str, device: str, *pods: str, driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "status": {
            "allocation": {"devices": {"results": [{"driver": driver, "pool": pool, "device": device}]}},
            "reservedFor": [{"resource": "pods", "name": p} for p in pods],
        },
    }  # fmt: skip


@pytest.mark.parametrize("old", [False, True])
def test_dra_devices_are_known_one_by_one(old: bool) -> None:
    slices = [
        resource_slice("n1", 1, {"gone": "gpu"}),
        resource_slice("n1", 2, {"gpu-0": "gpu", "gpu-1": "gpu", "gpu-2-mig-1g10gb-0": "mig"}, old=old),
    ]
    claims = [
        claim("shared", "n1", "gpu-0", "a", "b"), claim("reserved", "n1", "gpu-2-mig-1g10gb-0"),
        claim("else", "n1", "gpu-1", "c", driver="net.example.com"), claim("far", "n2", "gpu-1", "d"),
    ]  # fmt: skip
    (found,) = usage([node("n1")], [], slices=slices, claims=claims).nodes
    gpus, mig = found.uses
    assert [(g.name, g.allocated, g.total) for g in gpus.gpus] == [("gpu-0", 1, 1), ("gpu-1", 0, 1)]
    assert [(p.name, dict(p.gpus)) for p in gpus.pods] == [("a", {"gpu-0": 1}), ("b", {"gpu-0": 1})]
    assert (mig.resource, mig.allocated, [p.name for p in mig.pods]) == ("gpu.nvidia.com/mig", 1, ["(claim reserved)"])


@pytest.mark.parametrize("details", [False, True])
def test_a_gpu_whose_pods_hold_more_than_it_has_is_named(details: bool) -> None:
    there = node("n1", allocatable={MEM: "32", "aliyun.com/gpu-count": "2"})
    pods = [pod(name, "n1", {MEM: "9"}) for name in ("ending", "new")]
    for one in pods:
        one["metadata"]["annotations"] = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
    text = usage_text(usage([there], pods), details=details)
    assert text.splitlines()[-1] == "Over-committed: GPU0 of n1, 18 of 16 GiB"
    assert "Over-committed" not in usage_text(usage([there], pods[:1]), details=details)


def test_devices_stand_in_the_order_of_their_numbers_however_the_driver_lists_them() -> None:
    slices = [resource_slice("n1", 1, {f"gpu-{number}": "gpu" for number in (10, 2, 0, 1)})]
    (found,) = usage([node("n1")], [], slices=slices, claims=[claim("a", "n1", "gpu-2", "p")]).nodes
    assert [(gpu.name, gpu.allocated) for gpu in found.uses[0].gpus] == [
        ("gpu-0", 0), ("gpu-1", 0), ("gpu-2", 1), ("gpu-10", 0),
    ]  # fmt: skip


def test_shares_of_memory_are_counted_by_gpu() -> None:
    slices = [resource_slice("n1", 1, {"gpu-0": "gpu", "gpu-1": "gpu", "gpu-2": "gpu"})]
    for device in slices[0]["spec"]["devices"]:
        device |= {"capacity": {"memory": {"value": "16Gi"}}, "allowMultipleAllocations": device["name"] != "gpu-2"}
    claims = [claim("a", "n1", "gpu-0", "p"), claim("b", "n1", "gpu-0", "q", "r"), claim("c", "n1", "gpu-1", "s")]
    amounts: list[dict[str, Any]] = [{"memory": "3Gi"}, {"gpu.nvidia.com/memory": "5Gi"}, {}]
    for one, amount in zip(claims, amounts, strict=True):
        one["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = amount
    found = usage([node("n1")], [], slices=slices, claims=claims)
    whole, shared = found.nodes[0].uses
    assert (whole.kind, whole.allocated, whole.total) == ("dra", 0, 1)
    assert (shared.kind, shared.allocated, shared.total, shared.unit) == ("dra-memory", 24 * 1024, 32 * 1024, "MiB")
    assert [(g.name, g.allocated) for g in shared.gpus] == [("gpu-0", 8192), ("gpu-1", 16384)]
    assert {p.name: dict(p.gpus) for p in shared.pods} == {
        "p": {"gpu-0": 3072}, "q": {"gpu-0": 5120}, "r": {"gpu-0": 5120}, "s": {"gpu-1": 16384},
    }  # fmt: skip
    assert "n1    10.0.0.1   gpu.nvidia.com/gpu  8192/16384             16384/16384            24576/32768" in (
        usage_text(found)
    )


def test_every_kind_in_one_cluster_has_a_table_and_a_total() -> None:
    nodes = [
        node("a", allocatable={GPU: "8"}, spec={"unschedulable": True}),
        node("b", allocatable={GPU: "8"}, labels={"nvidia.com/gpu.replicas": "2", "nvidia.com/gpu.product": "T4"}),
        node("c", allocatable={"nvidia.com/mig-1g.10gb": "7"}), ARCH, node("d"), node("web"),
    ]  # fmt: skip
    pods = [pod("p", "a", {GPU: "2"}), pod("q", "c", {"nvidia.com/mig-1g.10gb": "1"})]
    found = usage(
        nodes, pods, slices=[resource_slice("d", 1, {"gpu-0": "gpu"})], claims=[claim("x", "d", "gpu-0", "r")]
    )
    text = usage_text(found)
    assert "a     10.0.0.1   2/8  Ready,SchedulingDisabled" in text
    assert usage_data(found)["cluster"] == [
        {"kind": "dra", "resource": "gpu.nvidia.com/gpu", "unit": "", "allocated": 1, "total": 1},
        {"kind": "gpu", "resource": GPU, "unit": "", "allocated": 2, "total": 8},
        {"kind": "gpushare", "resource": MEM, "unit": "GiB", "allocated": 0, "total": 16},
        {"kind": "mig", "resource": "nvidia.com/mig-1g.10gb", "unit": "", "allocated": 1, "total": 7},
        {"kind": "slices", "resource": GPU, "unit": "", "allocated": 0, "total": 8},
    ]
    assert [line for line in text.splitlines() if line.startswith("Allocated/Total")] == [
        f"Allocated/Total {what} In Cluster:"
        for what in ("GPUs", "Shares of GPUs", "MIG instances", "GPU Memory", "GPUs by DRA")
    ]


def test_nodes_of_several_pools_say_which() -> None:
    pool = "nvidia.com/device-plugin.config"
    nodes = [node("a", labels={pool: "train"}, allocatable={GPU: "8"}), node("b", allocatable={GPU: "8"})]
    found = usage(nodes, [])
    assert usage_text(found).splitlines()[:3] == [
        "NAME  IPADDRESS  POOL   GPUs(Allocated/Total)",
        "a     10.0.0.1   train  0/8",
        "b     10.0.0.1   -      0/8",
    ]
    assert [one["pool"] for one in usage_data(found)["nodes"]] == ["train", ""]
    assert "POOL" not in usage_text(usage(nodes[1:], []))


# ---------------------------------------------------------------- the command


def status(server: ApiServer, tmp_path: Path, *words: str) -> Result:
    config = server.kubeconfig(tmp_path / "kubeconfig")
    return CliRunner(env={"KUBECONFIG": str(config)}).invoke(cli, ["kube", "status", *words], standalone_mode=False)


def test_the_command_reads_a_cluster_in_chunks(tmp_path: Path) -> None:
    server = ApiServer(resources=DRA)
    try:
        for i in range(1203):
            server.put(node(f"gpu{i:04}", allocatable={GPU: "8"}))
        server.put(pod("p", "gpu0007", {GPU: "3"}))
        server.put(resource_slice("gpu0001", 1, {"gpu-0": "gpu"}))
        ran = status(server, tmp_path, "--format", "json")
        assert (ran.return_value, ran.stderr) == (0, "")
        data = json.loads(ran.stdout)
        assert {c["kind"]: (c["allocated"], c["total"]) for c in data["cluster"]} == {"gpu": (3, 9624), "dra": (0, 1)}
        assert [r for r in server.requests if "/nodes?" in r] == [
            "GET /api/v1/nodes?limit=500", "GET /api/v1/nodes?limit=500&continue=500",
            "GET /api/v1/nodes?limit=500&continue=1000",
        ]  # fmt: skip
        assert server.unexpected == []
    finally:
        server.close()


@pytest.mark.parametrize("claims", [[], [{"name": "gpu", "resourceClaimName": "c"}]], ids=["no claim", "a claim"])
def test_claims_that_may_not_be_read_are_missed_where_a_pod_has_one(claims: list[Any], tmp_path: Path) -> None:
    server = ApiServer(resources=DRA)
    try:
        holder = pod("p", "archlinux", {})
        holder["spec"]["resourceClaims"] = claims
        server.put(ARCH)
        server.put(holder)
        server.faults.append(Fault("^GET /apis/resource.*/resource", 403, "Forbidden", "no resourceslices", times=3))
        ran = status(server, tmp_path)
        assert ran.return_value == (1 if claims else 0)
        assert ("Not read, and missing above:" in ran.stdout) == ("resourceslices" in ran.stdout) == bool(claims)
    finally:
        server.close()


def test_a_node_that_is_not_there_is_said(server: ApiServer, tmp_path: Path) -> None:
    server.put(ARCH)
    ran = status(server, tmp_path, "archlinx")
    assert ran.return_value == 2
    assert "there is no node archlinx" in ran.stderr and "archlinux" in ran.stderr


@pytest.mark.slow
def test_kubectl_runs_it_as_a_plugin(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("needs kubectl")
    plugin = tmp_path / "bin" / "kubectl-gpunode"
    plugin.parent.mkdir()
    plugin.write_text(f"#!{sys.executable}\nfrom gpunode.cli.main import kubectl\nkubectl()\n")
    plugin.chmod(0o755)
    monkeypatch.setenv("PATH", f"{plugin.parent}:{os.environ['PATH']}")
    server.put(ARCH)
    config = server.kubeconfig(tmp_path / "kubeconfig")
    ran = subprocess.run(
        [kubectl, "gpunode", "status"], env={**os.environ, "KUBECONFIG": str(config)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "0/16 (0%)"), ran.stderr


def test_a_pod_that_waits_for_its_claim_is_listed() -> None:
    """By what its claims ask for: devices of NVIDIA's classes, MiB of gpunode's; other drivers' are not counted."""
    requests = [
        {"name": "a", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}},
        {"name": "b", "deviceClassName": "mig.nvidia.com"},  # as v1beta1 has it
        {"name": "c", "exactly": {"deviceClassName": "fpga.example.com"}},
    ]
    memory = {"requests": {"memory": "3Gi"}}
    shares = [{"name": "a", "exactly": {"deviceClassName": "gpu-memory.gpunode", "capacity": memory}}]
    claims = [
        {"metadata": {"namespace": "team", "name": name}, "spec": {"devices": {"requests": asked}}}
        for name, asked in (("made-x7", requests), ("other", requests))
    ]
    claims.append({"metadata": {"namespace": "team", "name": "mine"}, "spec": {"devices": {"requests": shares}}})
    condition = {"type": "PodScheduled", "status": "False", "message": "cannot allocate all claims"}

    def pod(name: str, **claim: str) -> dict[str, Any]:
        made = [{"name": "gpu", "resourceClaimName": "made-x7"}]
        return {
            "metadata": {"namespace": "team", "name": name},
            "spec": {"containers": [], "resourceClaims": [{"name": "gpu", **claim}]},
            "status": {"phase": "Pending", "conditions": [condition], "resourceClaimStatuses": made},
        }

    pods = [
        pod("a", resourceClaimTemplateName="t"),
        pod("b", resourceClaimName="mine"),
        pod("c", resourceClaimName="?"),
    ]
    found = usage([], pods, claims=claims).waiting
    assert [(one.name, dict(one.asks), one.why) for one in found] == [
        ("a", {"gpu.nvidia.com/gpu": 2, "gpu.nvidia.com/mig": 1}, "cannot allocate all claims"),
        ("b", {"gpu.nvidia.com/gpu (MiB)": 3072}, "cannot allocate all claims"),
    ]


def test_claims_of_classes_of_any_name_are_of_gpus_by_their_selectors() -> None:
    def selectors(driver: str) -> list[Any]:
        return [{"cel": {"expression": f"device.driver == '{driver}'"}}]

    classes = [
        {"metadata": {"name": name}, "spec": {"selectors": selectors(driver)}}
        for name, driver in (("mine", "gpu.nvidia.com"), ("nic", "nic.nvidia.com"))
    ]
    asked = {
        "own": {"deviceClassName": "mine"},
        "by-request": {"deviceClassName": "any", "selectors": selectors("gpu.nvidia.com")},
        "nic": {"deviceClassName": "nic"},
        "unknown": {"deviceClassName": "unknown"},
    }
    claims = [
        {"metadata": {"namespace": "team", "name": name},
         "spec": {"devices": {"requests": [{"name": "a", "exactly": request}]}}}
        for name, request in asked.items()
    ]  # fmt: skip
    pods = [
        {"metadata": {"namespace": "team", "name": name}, "status": {"phase": "Pending"},
         "spec": {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}}
        for name in asked
    ]  # fmt: skip
    found = usage([], pods, claims=claims, classes=classes).waiting
    assert [(one.name, dict(one.asks)) for one in found] == [
        ("own", {"gpu.nvidia.com/gpu": 1}), ("by-request", {"gpu.nvidia.com/gpu": 1}),
    ]  # fmt: skip


def test_devices_and_memory_that_a_pod_waits_for_are_not_added_up() -> None:
    memory = {"capacity": {"requests": {"memory": "3Gi"}}}
    requests = [{"name": "whole", "exactly": {"deviceClassName": "gpu.nvidia.com"}},
                {"name": "part", "exactly": {"deviceClassName": "gpu-memory.gpunode", **memory}}]  # fmt: skip
    claim = {"metadata": {"namespace": "team", "name": "c"}, "spec": {"devices": {"requests": requests}}}
    pod = {"metadata": {"namespace": "team", "name": "p"}, "status": {"phase": "Pending"},
           "spec": {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}}  # fmt: skip
    (found,) = usage([], [pod], claims=[claim]).waiting
    assert found.asks == {"gpu.nvidia.com/gpu": 1, "gpu.nvidia.com/gpu (MiB)": 3072}
