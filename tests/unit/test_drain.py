"""Cordon, drain and uncordon against an API over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from api_server import ApiServer, Fault
from kube_cluster import node, silent

from gpunode.core.errors import GpunodeError, InputError, InterruptedByUser, RefusedError, UnreachableError
from gpunode.core.spec.rollout import DrainSpec
from gpunode.kube.core.api_error import ApiError
from gpunode.kube.core.draining import CORDONED, drain_plan, pod_name
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.drain import cordon, drain, uncordon, wait_ready

pytest_plugins = ("kube_fixtures",)

QUICK = DrainSpec(timeout=3)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpunode.kube.edge.drain.RETRY_SECONDS", 0.01)


def pod(name: str, owner: str = "ReplicaSet", **more: Any) -> dict[str, Any]:
    owners = [{"kind": owner, "name": "owner", "controller": True}] if owner else []
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "ownerReferences": owners}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata | more.pop("metadata", {}),
        "spec": {"nodeName": "gpu1", "volumes": more.pop("volumes", [])},
        "status": {"phase": more.pop("phase", "Running")},
    }  # fmt: skip


MIRROR = {"annotations": {"kubernetes.io/config.mirror": "x"}}
EMPTY = [{"name": "scratch", "emptyDir": {}}]

# pod, options, and what becomes of it
RULES: dict[str, tuple[dict[str, Any], DrainSpec, str]] = {
    "of a controller": (pod("p"), DrainSpec(), "evicted"),
    "of a daemon set": (pod("p", "DaemonSet"), DrainSpec(), "left"),
    "ended, of a daemon set that is gone": (
        pod("p", "DaemonSet", phase="Failed", metadata={"namespace": "gone"}), DrainSpec(), "evicted"),
    "of a daemon set that is gone": (pod("p", "DaemonSet", metadata={"namespace": "gone"}), DrainSpec(), "refused"),
    "of a daemon set that is gone, forced": (
        pod("p", "DaemonSet", metadata={"namespace": "gone"}), DrainSpec(force=True), "evicted"),
    "static": (pod("p", "", metadata=MIRROR), DrainSpec(), "left"),
    "with local data": (pod("p", volumes=EMPTY), DrainSpec(), "refused"),
    "with local data, allowed": (pod("p", volumes=EMPTY), DrainSpec(delete_local_data=True), "evicted"),
    "with local data, ended": (pod("p", volumes=EMPTY, phase="Succeeded"), DrainSpec(), "evicted"),
    "of nobody": (pod("p", ""), DrainSpec(), "refused"),
    "of nobody, forced": (pod("p", ""), DrainSpec(force=True), "evicted"),
    "of nobody, ended": (pod("p", "", phase="Succeeded"), DrainSpec(), "evicted"),
}  # fmt: skip


@pytest.mark.parametrize("case", RULES)
def test_a_pod_is_evicted_left_or_refused_as_kubectl_drain_does(case: str) -> None:
    item, options, expected = RULES[case]
    plan = drain_plan([item], {("team", "owner")}, options)
    found = {
        "evicted": [pod_name(p) for p in plan.evict],
        "refused": [name for _, names in plan.refused for name in names],
    }
    assert {what: names for what, names in found.items() if names} == (
        {expected: [pod_name(item)]} if expected != "left" else {}
    )


def owner(server: ApiServer) -> None:
    metadata = {"name": "owner", "namespace": "team"}
    server.put({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {}})


def test_evictions_leave_daemons_and_static_pods(server: ApiServer, api: Api) -> None:
    owner(server)
    for item in (pod("a"), pod("b"), pod("plugin", "DaemonSet"), pod("etcd", "", metadata=MIRROR)):
        server.put(item)
    server.put({**pod("elsewhere"), "spec": {"nodeName": "gpu2"}})
    assert drain(api, "gpu1", QUICK, notify=silent) == ("team/a", "team/b")
    assert server.names("Pod") == ["team/plugin", "team/etcd", "team/elsewhere"]


def test_one_pod_that_would_lose_data_stops_the_whole_drain(server: ApiServer, api: Api) -> None:
    for item in (pod("a"), pod("data", volumes=EMPTY), pod("bare", "")):
        server.put(item)
    with pytest.raises(RefusedError) as caught:
        drain(api, "gpu1", QUICK, notify=silent)
    assert "an emptyDir (delete_local_data deletes it): team/data" in caught.value.what
    assert "which nothing starts again (force deletes them): team/bare" in caught.value.what
    assert len(server.names("Pod")) == 3


def test_a_disruption_budget_is_waited_for(server: ApiServer, api: Api) -> None:
    server.put(pod("a"))
    server.put(pod("b"))
    server.budgets["team/b"] = 3
    reported: list[str] = []
    assert drain(api, "gpu1", QUICK, notify=reported.append) == ("team/a", "team/b")
    assert reported[0] == "gpu1: evicting team/a"
    waits = (
        "gpu1: waiting for team/b: Cannot evict pod as it would violate the pod's disruption budget. "
        "The disruption budget calm needs 2 healthy pods and has 2 currently "
        "(tried every 0.01 s, until 3 s have passed)"
    )
    assert reported[1:] == [waits, "gpu1: evicting team/b"], "once, however often it is tried"


def test_a_budget_that_never_allows_it_ends_at_the_timeout(server: ApiServer, api: Api) -> None:
    server.put(pod("a"))
    server.budgets["team/a"] = 10**6
    with pytest.raises(GpunodeError, match=r"not drained after 1 s: team/a Cannot evict pod"):
        drain(api, "gpu1", DrainSpec(timeout=1), notify=silent)


def test_an_api_server_that_goes_away_is_waited_for(server: ApiServer, api: Api) -> None:
    server.put(pod("a"))
    server.put(node("gpu1"))
    api.version()
    reported: list[str] = []
    long = api.patient(600, stopped=lambda: False, notify=reported.append)
    server.faults.append(Fault("/eviction", 0, times=9))  # more than a request is tried for
    assert drain(long, "gpu1", QUICK, notify=silent) == ("team/a",)
    assert len(reported) == 1 and reported[0].endswith("(it is waited for)")
    server.faults.append(Fault("^PATCH", 0, times=9))
    with pytest.raises(UnreachableError):
        cordon(api, "gpu1", mark="gpunode", over="")


def test_a_wait_ends_at_once_when_the_run_is_cancelled(server: ApiServer, api: Api) -> None:
    server.put(pod("a"))
    server.put(node("gpu1"))
    server.budgets["team/a"] = 10**6
    stops = iter([False] * 5)
    long = api.patient(60, stopped=lambda: next(stops, True), notify=silent)
    with pytest.raises(InterruptedByUser):
        drain(long, "gpu1", DrainSpec(timeout=60), notify=silent)
    with pytest.raises(InterruptedByUser):
        wait_ready(long, "gpu1", {"nvidia.com/gpu": 8}, timeout=60, notify=silent)


def test_a_pod_that_does_not_go_is_named(server: ApiServer, api: Api) -> None:
    server.put(pod("a"))
    server.stuck.add("team/a")
    with pytest.raises(GpunodeError, match=r"team/a is terminating"):
        drain(api, "gpu1", DrainSpec(timeout=1), notify=silent)
    evictions = [r for r in server.requests if r.endswith("/eviction")]
    assert len(evictions) == 1


def test_a_pod_that_has_ended_and_only_has_a_finalizer_is_not_waited_for(server: ApiServer, api: Api) -> None:
    """A Job's, whose controller is refused by a webhook that runs on this very node."""
    owner(server)
    over = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["batch.kubernetes.io/job-tracking"]}
    server.put(pod("done", "Job", phase="Failed", metadata=over))
    assert drain(api, "gpu1", QUICK, notify=silent) == ("team/done",)
    running = pod("runs", "Job", phase="Failed", metadata=over)
    running["status"]["containerStatuses"] = [{"name": "c", "state": {"running": {}}}]
    server.put(running)
    with pytest.raises(GpunodeError, match="team/runs is terminating"):
        drain(api, "gpu1", QUICK, notify=silent)


def test_a_pod_of_the_same_name_that_came_after_is_not_waited_for(server: ApiServer, api: Api) -> None:
    server.put(pod("db-0", "StatefulSet"))

    def comes_back(found: ApiServer, event: str, item: dict[str, Any]) -> None:
        if event == "DELETED" and item["kind"] == "Pod":
            found.put({**pod("db-0", "StatefulSet", metadata={"uid": "uid-new"}), "spec": {"nodeName": "gpu2"}})

    server.controllers.append(comes_back)
    assert drain(api, "gpu1", QUICK, notify=silent) == ("team/db-0",)


def test_a_lost_answer_to_an_eviction_does_no_harm(server: ApiServer, api: Api) -> None:
    server.put(pod("a"))
    server.faults.append(Fault("/eviction", 0, after=True, times=1))
    assert drain(api, "gpu1", QUICK, notify=silent) == ("team/a",)


def test_without_the_right_to_evict_it_is_said(server: ApiServer, api: Api) -> None:
    server.put(pod("a"))
    server.faults.append(Fault("/eviction", 403, "Forbidden", "pods/eviction is forbidden", times=9))
    with pytest.raises(ApiError, match="pods/eviction is forbidden"):
        drain(api, "gpu1", QUICK, notify=silent)


# ---------------------------------------------------------------- cordon


def spec_of(server: ApiServer, name: str) -> tuple[Any, list[str]]:
    live = server.get("Node", name)
    assert live is not None
    return live["spec"].get("unschedulable"), sorted(live["metadata"].get("annotations") or {})


def test_cordon_and_uncordon_come_and_go_without_a_trace(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1"))
    assert cordon(api, "gpu1", mark="run 1", over="") is True
    assert spec_of(server, "gpu1") == (True, [CORDONED])
    assert cordon(api, "gpu1", mark="run 2", over="run 1") is True  # again, after an interrupted run
    assert uncordon(api, "gpu1", mark="run 1") is False
    assert uncordon(api, "gpu1", mark="run 2") is True
    assert spec_of(server, "gpu1") == (None, [])
    assert uncordon(api, "gpu1", mark="run 2") is False


def test_a_node_that_somebody_else_cordoned_stays_so(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", spec={"unschedulable": True}))
    assert cordon(api, "gpu1", mark="gpunode", over="") is False
    assert uncordon(api, "gpu1", mark="gpunode") is False
    assert spec_of(server, "gpu1") == (True, [])


def test_a_change_of_the_node_at_the_same_time_is_not_lost(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1"))
    server.faults.append(Fault("^PATCH", 409, "Conflict", "the object has been modified", times=2))
    assert cordon(api, "gpu1", mark="gpunode", over="") is True
    assert spec_of(server, "gpu1") == (True, [CORDONED])


def test_a_node_that_is_not_there_is_an_input_error(server: ApiServer, api: Api) -> None:
    with pytest.raises(InputError, match="there is no node gpu9"):
        cordon(api, "gpu9", mark="gpunode", over="")


# ---------------------------------------------------------------- back in use


def test_it_waits_for_the_boot_the_kubelet_and_the_gpus(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", allocatable={"nvidia.com/gpu": "8"}))
    server.edit("Node", "gpu1", "", lambda o: o["status"].update(nodeInfo={"bootID": "one"}))
    old = "one"
    down = [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]
    up = [{"type": "Ready", "status": "True"}]
    two = {"bootID": "two"}
    states = [
        {"conditions": down},
        {"conditions": up, "nodeInfo": two, "allocatable": {}},
        {"conditions": up, "nodeInfo": two, "allocatable": {"nvidia.com/gpu": "8"}},
    ]
    for i, state in enumerate(states, 1):
        server.later(0.2 * i, lambda state=state: server.edit("Node", "gpu1", "", lambda o: o["status"].update(state)))
    reported: list[str] = []
    wait_ready(api, "gpu1", {"nvidia.com/gpu": 8}, stale=old, timeout=10, notify=reported.append)
    assert reported == ["gpu1: has not booted yet", "gpu1: offers 0 nvidia.com/gpu, not 8", "gpu1: ready"]


def test_what_a_kubelet_said_before_its_device_plugin_started_again_is_no_word_of_now(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpunode.kube.edge.drain.SETTLED", 2.0)
    mig = "nvidia.com/mig-1g.10gb"
    server.put(node("gpu1", allocatable={mig: "4"}))

    def offers(count: str) -> None:
        server.edit("Node", "gpu1", "", lambda o: o["status"].update(allocatable={mig: count}))

    reported: list[str] = []

    def notify(text: str) -> None:
        reported.append(text.partition(",")[0])
        server.later(0.1, lambda: offers("4"))

    server.later(0.3, lambda: offers("0"))
    wait_ready(api, "gpu1", {mig: range(4, 5)}, timeout=60, notify=notify)
    assert reported == ["gpu1: it offers no GPU", "gpu1: ready"]


@pytest.mark.parametrize(
    ("allocatable", "ready", "says"),
    [
        ({"nvidia.com/gpu": "7"}, "True", "offers 7 nvidia.com/gpu, not 8"),
        ({"nvidia.com/gpu": "8"}, "False", "the node is not Ready: it says nothing"),
    ],
)
def test_what_is_missing_is_said_at_the_timeout(
    server: ApiServer, api: Api, allocatable: dict[str, str], ready: str, says: str
) -> None:
    server.put(node("gpu1", allocatable=allocatable))
    server.edit("Node", "gpu1", "", lambda o: o["status"].update(conditions=[{"type": "Ready", "status": ready}]))
    with pytest.raises(GpunodeError, match=says):
        wait_ready(api, "gpu1", {"nvidia.com/gpu": 8}, timeout=0.1, notify=silent)
