"""What is read off live objects: whose they are, whether they are ready, what ails their pods, taints, quantities."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_cluster import node
from kubernetes.utils import parse_quantity

from gpunode.core.errors import RefusedError
from gpunode.kube.core.checks.preflight import node_names
from gpunode.kube.core.checks.ready import deletion_waits_for, pod_trouble, readiness
from gpunode.kube.core.judge import serves_as_ours
from gpunode.kube.core.marks import parse_taint, taints_patch
from gpunode.kube.core.owned import (
    Inventory,
    NodeMarks,
    ObjectKey,
    inventory_object,
    owner_words,
    parse_inventory,
)
from gpunode.kube.core.quantity import quantity

# ---------------------------------------------------------------- the inventory

NAMES = st.text(st.characters(categories=("Ll", "Nd"), include_characters="-./"), min_size=1, max_size=20)
KEYS = st.builds(ObjectKey, NAMES, NAMES, NAMES | st.just(""), NAMES)
MARKS = st.builds(
    NodeMarks, labels=st.lists(NAMES, max_size=3).map(tuple), taints=st.lists(NAMES, max_size=3).map(tuple)
)
INVENTORIES = st.builds(
    Inventory,
    objects=st.lists(KEYS, max_size=5, unique=True).map(tuple),
    nodes=st.dictionaries(NAMES, MARKS, max_size=3),
)


@given(INVENTORIES)
def test_an_inventory_comes_back_as_it_was_written(inventory: Inventory) -> None:
    assert parse_inventory(inventory_object(inventory, "gpunode")) == inventory


@given(INVENTORIES, INVENTORIES)
def test_two_inventories_together_forget_nothing(one: Inventory, two: Inventory) -> None:
    both = one + two
    assert set(both.objects) == {*one.objects, *two.objects}
    for part in (one, two):
        for name, marks in part.nodes.items():
            assert set(marks.labels) <= set(both.nodes[name].labels)
            assert set(marks.taints) <= set(both.nodes[name].taints)


def test_an_object_in_another_version_of_its_api_is_the_same_object() -> None:
    old = ObjectKey("node.k8s.io/v1beta1", "RuntimeClass", "", "nvidia")
    assert Inventory(objects=(old,)).without([ObjectKey("node.k8s.io/v1", "RuntimeClass", "", "nvidia")]) == ()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "objects": [{}], "nodes": {}}'])
def test_an_inventory_that_somebody_broke_is_refused(text: str) -> None:
    live = inventory_object(Inventory(), "gpunode") | {"data": {"inventory.json": text}}
    with pytest.raises(RefusedError, match="ConfigMap gpunode/gpunode-inventory cannot be read"):
        parse_inventory(live)


# ---------------------------------------------------------------- whose an object is


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"annotations": {"meta.helm.sh/release-name": "nvdp"}}, "helm's release nvdp"),
        ({"annotations": {"objectset.rio.cattle.io/owner-name": "runtimes"}}, "k3s"),
        ({"labels": {"app.kubernetes.io/managed-by": "Helm"}}, "Helm"),
        ({"managedFields": [{"manager": "kubectl"}, {"manager": "kubectl"}, {"manager": "argo"}]}, "kubectl, argo"),
        ({}, "another program"),
    ],
)
def test_who_looks_after_a_foreign_object(metadata: dict[str, Any], words: str) -> None:
    assert owner_words({"metadata": metadata}) == words


WANTED = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia", "labels": {"app.kubernetes.io/managed-by": "gpunode"}},
    "handler": "nvidia",
}


@pytest.mark.parametrize(
    ("live", "serves"),
    [
        ({"handler": "nvidia"}, True),
        ({"handler": "nvidia", "overhead": {"podFixed": {"cpu": "1"}}}, True),
        ({"handler": "runc"}, False),
        ({}, False),
    ],
)
def test_a_foreign_object_serves_when_it_says_all_that_ours_would(live: dict[str, Any], serves: bool) -> None:
    item = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, **live}
    assert serves_as_ours(WANTED, item) is serves


# ---------------------------------------------------------------- ready


def workload(kind: str, spec: dict[str, Any], generation: int = 2, **status: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "metadata": {"generation": generation},
        "spec": spec,
        "status": {"observedGeneration": 2, **status},
    }


SETS = {"desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2}
STUCK = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}]


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        (workload("DaemonSet", {}, **SETS), (True, "2 of 2 pods", False)),
        (workload("DaemonSet", {}, 3, **SETS), (False, "its controller has not seen it yet", False)),
        (workload("DaemonSet", {}, **SETS | {"updatedNumberScheduled": 1}), (False, "1 of 2 pods", False)),
        (workload("DaemonSet", {}), (True, "0 of 0 pods", False)),
        (workload("Deployment", {"replicas": 1}), (False, "0 of 1 pods", False)),
        (workload("Deployment", {}, updatedReplicas=1, availableReplicas=1, replicas=1), (True, "1 of 1 pods", False)),
        (workload("Deployment", {}, updatedReplicas=1, availableReplicas=1, replicas=2), (False, "1 of 1 pods", False)),
        (workload("Deployment", {"replicas": 1}, conditions=STUCK), (False, "gave up: timed out", True)),
        (workload("StatefulSet", {"replicas": 3}, updatedReplicas=3, readyReplicas=3), (True, "3 of 3 pods", False)),
        (None, (False, "is gone", True)),
    ],
)
def test_readiness_is_what_kubectl_rollout_status_says(live: Any, expected: tuple[bool, str, bool]) -> None:
    found = readiness(live)
    assert (found.ready, found.text, found.failed) == expected


def pod(phase: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": {"phase": phase, **status}}


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "c", "state": state}]


@pytest.mark.parametrize(
    ("live", "says"),
    [
        (pod("Running", containerStatuses=container(running={})), ""),
        (pod("Pending", containerStatuses=container(waiting={"reason": "ContainerCreating"})), ""),
        (pod("Pending", containerStatuses=container(waiting={"reason": "ErrImagePull", "message": "no such\n  host"})),
         "c: ErrImagePull: no such host"),
        (pod("Running", initContainerStatuses=container(waiting={"reason": "CrashLoopBackOff"})),
         "c: CrashLoopBackOff"),
        (pod("Pending"), "no scheduler has seen it: is kube-scheduler running?"),
        (pod("Failed", reason="UnexpectedAdmissionError", message="Allocate failed"),
         "UnexpectedAdmissionError: Allocate failed"),
        (pod("Failed", containerStatuses=container(terminated={"exitCode": 127, "reason": "Error"})),
         "c ended with exit status 127: Error"),
        (pod("Succeeded", containerStatuses=container(terminated={"exitCode": 0, "reason": "Completed"})), ""),
        ({"metadata": {"name": "p"}}, ""),
    ],
)  # fmt: skip
def test_what_ails_a_pod(live: dict[str, Any], says: str) -> None:
    assert pod_trouble(live) == says


def test_of_a_long_error_the_cause_at_its_end_is_shown() -> None:
    """As containerd 1.6 and a kubelet 1.36 say it of a registry that wants a password."""
    image = "localhost:5000/nvidia/k8s-device-plugin:v0.20.1"
    says = (
        f'Back-off pulling image "{image}": ErrImagePull: failed to pull and unpack image "{image}": failed to resolve '
        f'reference "{image}": pulling from host localhost:5000 failed with status code [manifests v0.20.1]: 401 '
        "Unauthorized"
    )
    waiting = {"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": says}}}
    text = pod_trouble({"status": {"phase": "Pending", "containerStatuses": [waiting]}})
    assert text.startswith(f'c: ImagePullBackOff: Back-off pulling image "{image}"') and len(text) < 330
    assert text.endswith("failed with status code [manifests v0.20.1]: 401 Unauthorized")


# ---------------------------------------------------------------- nodes


GPU = "nvidia.com/gpu=present:NoSchedule"


@pytest.mark.parametrize(
    ("there", "add", "remove", "after"),
    [
        ([], [GPU], [], [GPU]),
        ([GPU], [GPU], [], None),
        (["a=1:NoExecute"], [GPU], [], ["a=1:NoExecute", GPU]),
        (["nvidia.com/gpu=old:NoSchedule"], [GPU], [], [GPU]),
        (["nvidia.com/gpu=old:NoExecute"], [GPU], [], ["nvidia.com/gpu=old:NoExecute", GPU]),
        ([GPU, "a:NoExecute"], [], [GPU], ["a:NoExecute"]),
        (["a:NoExecute"], [], [GPU], None),
        ([], [], [], None),
    ],
)
def test_taints_come_and_go_one_by_one(there: list[str], add: list[str], remove: list[str], after: Any) -> None:
    live = node("n", spec={"taints": [parse_taint(t) for t in there]})
    patch = taints_patch(live, add, remove)
    if after is None:
        assert patch is None
    else:
        wanted = [parse_taint(taint) for taint in after]
        assert patch == {"spec": {"taints": wanted}}


def test_hosts_are_found_by_name_hostname_label_and_address() -> None:
    nodes = [
        node("ip-10-0-0-1.ec2.internal", labels={"kubernetes.io/hostname": "gpu1"}, address="10.0.0.1"),
        node("gpu2", address="10.0.0.2"),
    ]
    found, problems = node_names(["gpu1", "10.0.0.2", "ip-10-0-0-1.ec2.internal", "gpu22"], nodes)
    assert found == {
        "gpu1": "ip-10-0-0-1.ec2.internal", "10.0.0.2": "gpu2",
        "ip-10-0-0-1.ec2.internal": "ip-10-0-0-1.ec2.internal",
    }  # fmt: skip
    assert [(p.what, p.fix) for p in problems] == [
        ("gpu22 of the inventory: no node of this cluster has that name or address", "did you mean 'gpu2'?")
    ]


# ---------------------------------------------------------------- quantities


@given(
    st.decimals(min_value=0, max_value=10**9, places=3).map(lambda d: f"{d:f}"),
    st.sampled_from(["", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"]),
)
def test_quantities_are_those_of_the_official_client(number: str, suffix: str) -> None:
    assert quantity(number + suffix) == math.ceil(parse_quantity(number + suffix))


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_nothing(text: str) -> None:
    assert isinstance(quantity(text), int)


# https://kubernetes.io/docs/concepts/overview/working-with-objects/namespaces: conditions as a server writes them
KEPT = [
    {"type": "NamespaceDeletionDiscoveryFailure", "status": "False", "message": "All resources discovered"},
    {"type": "NamespaceContentRemaining", "status": "True",
     "message": "Some resources are remaining: configmaps. has 1 resource instances"},
    {"type": "NamespaceFinalizersRemaining", "status": "True",
     "message": "Some content in the namespace has finalizers remaining: example.com/stuck in 1 resource instances"},
]  # fmt: skip


def test_what_a_deletion_waits_for_is_said_by_conditions_else_by_finalizers() -> None:
    space = {"metadata": {"name": "gpunode"}, "spec": {"finalizers": ["kubernetes"]}}
    assert deletion_waits_for(space) == "kubernetes"
    says = deletion_waits_for({**space, "status": {"conditions": KEPT}})
    assert says == f"{KEPT[1]['message']}; {KEPT[2]['message']}"
    assert deletion_waits_for({"metadata": {"finalizers": ["a/b", "c/d"]}}) == "a/b, c/d"


def test_a_container_that_ends_is_explained_by_the_last_line_of_its_log() -> None:
    last = "error opening config file: open /config/config.yaml: no such file or directory"
    ended = {"exitCode": 1, "reason": "Error", "message": f"I1122 starting\n{last}\n"}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
    status = {"name": "plugin", "state": {"waiting": waiting}, "lastState": {"terminated": ended}}
    text = pod_trouble({"status": {"phase": "Running", "containerStatuses": [status]}})
    assert text == f"plugin: CrashLoopBackOff: {last}"
    text = pod_trouble(
        {"status": {"phase": "Failed", "containerStatuses": [{"name": "plugin", "state": {"terminated": ended}}]}}
    )
    assert text == f"plugin ended with exit status 1: {last}"
