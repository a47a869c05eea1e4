"""gpunode kube watch: what counts as a finding, what is reported once, and that nothing but reading is done."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from api_objects import DRA
from api_server import ApiServer, Fault, workloads_become_ready
from api_store import Refusal
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from kube_cases import CASES, Case
from kube_cluster import mutating, node, put, quick, rendered
from rows import over

from gpunode.cli.kube import kube
from gpunode.core.kube import render
from gpunode.core.kube.checks.preflight import with_nodes
from gpunode.core.kube.cluster import POOL_LABEL
from gpunode.core.kube.marks import node_key
from gpunode.core.kube.owned import INVENTORY, key_of
from gpunode.core.kube.plain import yaml_documents
from gpunode.core.kube.render import node_wishes
from gpunode.core.kube.render.watch import plural
from gpunode.core.kube.usage import GpuUse, NodeUse, Usage, Use, Waiting
from gpunode.core.kube.watching import CHECKS, Finding, Look, differences, findings, settled, turns
from gpunode.edge.kube.client import Api
from gpunode.edge.kube.kubeconfig import connect
from gpunode.edge.kube.watch import Metrics, Watcher, read_marks, read_objects, serving, wanted_objects

pytest_plugins = ("kube_fixtures",)

GPU = "nvidia.com/gpu"
COUNT = "nvidia.com/gpu.count"
PLUGIN = "nvidia-device-plugin"


def gpu_node(name: str = "gpu1", capacity: str = "4", allocatable: str = "4", **labels: str) -> dict[str, Any]:
    found = node(name, labels=labels, allocatable={GPU: allocatable})
    found["status"]["capacity"] = {GPU: capacity, "cpu": "8"}
    return found


def watcher(api: Api, spec: dict[str, Any] | None = None, **options: Any) -> Watcher:
    what = rendered(spec)
    put(api, what)
    return Watcher(api=api, wanted=wanted_objects(what.objects), **options)


def seen(watched: Watcher) -> dict[tuple[str, str], str]:
    watched.round(once=True)
    return {one.name: one.message for one in watched.found}


def plugin_set(server: ApiServer) -> dict[str, Any]:
    found = server.get("DaemonSet", PLUGIN, "gpunode")
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


def test_a_plugin_that_crashes_is_found_at_once_and_a_rollout_after_a_second_look(server: ApiServer, api: Api) -> None:
    server.put(gpu_node())
    watched = watcher(api)
    server.controllers.clear()
    live = plugin_set(server)
    live["status"] |= {"numberAvailable": 0, "desiredNumberScheduled": 1, "updatedNumberScheduled": 1}
    server.put(live)
    assert watched.round() == ()
    (turn,) = watched.round()
    assert (turn.state, turn.finding.check, turn.finding.message) == ("found", "kube.ready", "0 of 1 pods")
    assert watched.round() == ()
    labels = live["spec"]["selector"]["matchLabels"]
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "plugin-x", "namespace": "gpunode", "labels": labels},
            "spec": {"containers": [{"name": "c"}], "nodeName": "gpu1"},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "c", "state": waiting, "lastState": {"terminated": {"exitCode": 1, "message": "a\nno NVML"}}},
            ]},
        }
    )  # fmt: skip
    (turn,) = watched.round()
    assert "CrashLoopBackOff: no NVML" in turn.finding.message
    fresh = Watcher(api=api, wanted=watched.wanted)
    assert [one.finding.check for one in fresh.round()] == ["kube.ready"]


def shared_before(allocatable: str) -> dict[str, Any]:
    """A node whose GPUs were offered as shares of another name before."""
    item = gpu_node(allocatable=allocatable)
    for amounts in (item["status"]["capacity"], item["status"]["allocatable"]):
        amounts["nvidia.com/gpu.shared"] = "0" if amounts is item["status"]["allocatable"] else "16"
    return item


NODES: list[tuple[str, dict[str, Any], str]] = [
    ("offered under another name now", shared_before("4"), ""),
    (
        "and lost since",
        shared_before("0"),
        "0 of 4 nvidia.com/gpu can be allocated; 0 of 16 nvidia.com/gpu.shared can be allocated",
    ),
    ("unhealthy", gpu_node(capacity="4", allocatable="3"), "3 of 4 nvidia.com/gpu can be allocated"),
    ("fewer than counted", gpu_node(**{COUNT: "8"}), "4 nvidia.com/gpu are offered, and 8 GPUs are counted there"),
    (
        "fewer shares",
        gpu_node(**{COUNT: "4", "nvidia.com/gpu.replicas": "4"}),
        "4 nvidia.com/gpu are offered, and 4 GPUs are counted there with 4 shares each",
    ),
    ("sound", gpu_node(**{COUNT: "4"}), ""),
    ("no GPU node", node("cpu1"), ""),
    (
        "cut by MIG",
        gpu_node(capacity="0", allocatable="0", **{COUNT: "1", "nvidia.com/gpu.product": "H100-MIG-1g.10gb"}),
        "",
    ),
    ("hostile numbers", gpu_node(**{COUNT: "1e999999999"}), "*"),
]


@over(NODES, name=lambda row: row[0])
def test_nodes_that_lost_gpus(_name: str, item: dict[str, Any], message: str) -> None:
    look = Look(wanted={}, live={}, pods={}, nodes=[item], usage=Usage(nodes=(), waiting=()))
    found = [one.message for one in findings(look) if one.check == "kube.gpus"]
    assert message == "*" or found == ([message] if message else [])


def test_a_node_that_offers_none_any_more_or_is_not_ready_is_found(server: ApiServer, api: Api) -> None:
    server.put(gpu_node(**{POOL_LABEL: "default"}))
    watched = watcher(api)
    assert watched.round() == ()
    server.put(gpu_node(capacity="0", allocatable="0", **{POOL_LABEL: "default"}))
    messages = {turn.finding.check: turn.finding.message for turn in watched.round()}
    assert messages["kube.gpus"] == "no nvidia.com/gpu any more (4 before)"
    assert messages["kube.pool"] == "none of its nodes offers a GPU: gpu1"
    down = gpu_node()
    down["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting"}]
    server.put(down)
    states = [(turn.state, turn.finding.check) for turn in watched.round()]
    assert ("found", "kube.node") in states and ("gone", "kube.gpus") in states


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
    assert found[("kube.waiting", GPU)] == "2 pods wait for it, and 0 are free: team/b, team/c"
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
    assert seen(watched)[("kube.drift", f"DaemonSet gpunode/{PLUGIN}")] == "it is being deleted"


def test_an_object_of_no_kubernetes_is_named_and_the_rest_is_looked_at(server: ApiServer, api: Api) -> None:
    server.put(gpu_node(allocatable="3"))
    watched = watcher(api)
    server.edit("DaemonSet", PLUGIN, "gpunode", lambda d: d["spec"]["selector"].update(matchLabels="\x1b[31m"))
    assert seen(watched) == {("kube.gpus", "node gpu1"): "3 of 4 nvidia.com/gpu can be allocated"}
    (unread,) = watched.unread
    assert unread.startswith(f"DaemonSet gpunode/{PLUGIN}: ")
    assert "\x1b" not in unread


def test_a_single_pool_without_labels_that_lost_its_gpus_is_found_at_the_first_look(
    server: ApiServer, api: Api
) -> None:
    """The kubelet keeps the resource of a device plugin that went, with 0, until it restarts."""
    server.put(gpu_node(capacity="0", allocatable="0"))
    server.put(node("cpu1"))
    watched = watcher(api)
    assert seen(watched) == {
        ("kube.gpus", "node gpu1"): "no nvidia.com/gpu any more",
        ("kube.pool", "the cluster"): "no node that is Ready offers a GPU",
    }
    shared = gpu_node(capacity="0", allocatable="0")
    for what in ("capacity", "allocatable"):
        shared["status"][what]["nvidia.com/gpu.shared"] = "8"
    server.put(shared)
    assert seen(watched) == {}


def test_a_node_that_no_device_plugin_of_ours_selects_may_have_lost_its_gpus(server: ApiServer, api: Api) -> None:
    spec = {"kubernetes": {"node_selector": {"gpu": "yes"}}}
    server.put(gpu_node(capacity="0", allocatable="0"))
    server.put(gpu_node("gpu2", gpu="yes"))
    assert seen(watcher(api, spec)) == {}


def test_a_node_of_a_pool_that_never_offered_a_gpu_is_found_when_that_lasts(server: ApiServer, api: Api) -> None:
    """The other nodes of its pool do: the pool as a whole is well."""
    for name in ("gpu1", "gpu2"):
        server.put(gpu_node(name) if name == "gpu1" else node(name))
    what = rendered({"kubernetes": {"pools": {"a": {"nodes": "kubernetes.io/os!=windows"}}}})
    watched = Watcher(api=api, wanted=wanted_objects(what.objects), marks=tuple(node_wishes(what.cluster)))
    put(api, what)
    assert watched.round() == ()
    (turn,) = watched.round()
    assert (turn.finding.about, turn.finding.message) == ("node gpu2", "it is in the pool a, and offers no GPU")
    down = node("gpu2")
    down["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]
    server.put(down)
    assert ("kube.node", "node gpu2") in {turn.finding.name for turn in watched.round()}


def test_devices_of_a_dra_driver_that_go_are_found(tmp_path: Path) -> None:
    server = ApiServer(resources=DRA)
    try:
        api = quick(connect(str(server.kubeconfig(tmp_path / "k"))))
        server.put(node("gpu1"))
        watched = Watcher(api=api, wanted={})
        found = []
        for count in (2, 1, 1, 0, 2):
            devices = [{"name": f"gpu-{i}", "attributes": {"type": {"string": "gpu"}}} for i in range(count)]
            pool = {"name": "gpu1", "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": "gpu.nvidia.com", "nodeName": "gpu1", "pool": pool, "devices": devices}
            server.put({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"},
                        "spec": spec})  # fmt: skip
            found.append([turn.finding.message for turn in watched.round() if turn.state == "found"])
    finally:
        server.close()
    lost = "{} of {} gpu.nvidia.com/gpu are offered"
    assert found == [[], [lost.format(1, 2)], [], [lost.format(0, 2)], []]


def test_instances_are_compared_with_what_is_counted_of_their_profile() -> None:
    mig = "nvidia.com/mig-1g.10gb"
    item = node("gpu1", labels={f"{mig}.count": "7", f"{mig}.replicas": "2", COUNT: "1"}, allocatable={mig: "12"})
    item["status"]["capacity"] = {mig: "12"}
    look = Look(wanted={}, live={}, pods={}, nodes=[item], usage=Usage(nodes=(), waiting=()))
    assert [one.message for one in findings(look)] == [f"12 {mig} are offered, and 14 are counted there"]


LOOPS: list[tuple[str, dict[str, Any], bool]] = [
    ("lately", {"restartCount": 3, "at": "2026-11-23T11:55:00Z"}, True),
    ("long ago", {"restartCount": 30, "at": "2026-11-23T11:40:00Z"}, False),
    ("once", {"restartCount": 1, "at": "2026-11-23T11:55:00Z"}, False),
]


@over(LOOPS, name=lambda row: row[0])
def test_a_container_that_runs_between_two_crashes_is_found(_name: str, given: dict[str, Any], found: bool) -> None:
    plugin = next(item for item in rendered().objects if item["metadata"]["name"] == PLUGIN)
    key = key_of(plugin)
    ended = {"exitCode": 1, "reason": "Error", "message": "a\nno \x1b[31mNVML\n", "finishedAt": given["at"]}
    status = {"name": "c", "state": {"running": {}}, "lastState": {"terminated": ended}}
    pod = {
        "metadata": {"name": "p"},
        "status": {"containerStatuses": [{**status, "restartCount": given["restartCount"]}]},
    }
    live = {**plugin, "status": {"numberAvailable": 1, "desiredNumberScheduled": 1, "updatedNumberScheduled": 1}}
    look = Look(
        wanted={key: plugin}, live={key: live}, pods={key: [pod]}, nodes=[], usage=Usage(nodes=(), waiting=()),
        recently="2026-11-23T11:50:00Z",
    )  # fmt: skip
    text = "pod p: c ends again and again, with exit status 1: no \\x1b[31mNVML"
    assert [(one.message, one.passing) for one in findings(look) if one.check == "kube.ready"] == [
        (text, False)
    ] * found


def one(check: str = "kube.gpus", about: str = "node a", message: str = "m", *, passing: bool = False) -> Finding:
    return Finding(check=check, about=about, message=message, fix="f", key=node_key("a"), passing=passing)


def test_only_changes_are_turns() -> None:
    assert turns([one()], [one()]) == ()
    assert [turn.state for turn in turns([one()], [one(message="other")])] == ["found"]
    assert [turn.state for turn in turns([one()], [])] == ["gone"]
    assert settled([one(passing=True)], []) == ()
    assert settled([one(passing=True)], [one(passing=True)]) == (one(passing=True),)


# ---------------------------------------------------------------- Events, metrics, rights


def test_events_are_written_when_something_is_found_and_when_it_is_gone(server: ApiServer, api: Api) -> None:
    server.put(gpu_node(allocatable="3"))
    watched = watcher(api, events=True)
    watched.round()
    watched.round()
    server.put(gpu_node())
    watched.round()
    events = [server.get("Event", name.split("/")[1], "default") for name in server.names("Event")]
    written = sorted((e["type"], e["reason"], e["involvedObject"]["name"], e["message"]) for e in events if e)
    assert written == [
        ("Normal", "GpunodeGpus", "gpu1", "node gpu1: no longer: 3 of 4 nvidia.com/gpu can be allocated"),
        ("Warning", "GpunodeGpus", "gpu1", "node gpu1: 3 of 4 nvidia.com/gpu can be allocated"),
    ]
    server.put(gpu_node(allocatable="2"))
    server.faults.append(Fault("POST .*events", status=403, reason="Forbidden", times=9))
    assert [turn.state for turn in watched.round()] == ["found"]
    assert "no Event for node gpu1" in watched.unread[-1]


def test_an_event_is_written_again_before_the_server_forgets_it_while_the_finding_lasts(
    server: ApiServer, api: Api
) -> None:
    server.put(gpu_node(allocatable="3"))
    now = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
    watched = watcher(api, events=True, clock=lambda: now)
    counts = []
    for minutes in (0, 30, 30, 1, 60):
        now += timedelta(minutes=minutes)
        watched.round()
        counts.append(len(server.names("Event")))
    assert counts == [1, 1, 2, 2, 3]
    server.put(gpu_node())
    watched.round()
    now += timedelta(hours=2)
    watched.round()
    assert len(server.names("Event")) == 4  # that it is over, once


def test_metrics_say_what_was_found_and_whether_the_cluster_can_be_read(server: ApiServer, api: Api) -> None:
    server.put(gpu_node('gpu"1\\', allocatable="3"))
    watched = watcher(api)
    metrics = Metrics(watched)
    with serving(metrics, "127.0.0.1:0") as port:

        def read() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                text: bytes = answer.read()
                return text.decode()

        assert "gpunode_kube_watch_up 0.0" in read() and "gpunode_kube_findings" not in read()
        watched.round()
        metrics.up = True
        text = read()
    assert "gpunode_kube_watch_up 1.0" in text
    assert 'gpunode_kube_findings{check="kube.gpus"} 1.0' in text
    assert all(f'gpunode_kube_findings{{check="{check}"}}' in text for check in CHECKS)
    assert 'gpunode_kube_node_resource_total{node="gpu\\"1\\\\",resource="nvidia.com/gpu"} 3.0' in text


WATCH = {"kubernetes": {"watch": {"image": "registry.lan/gpunode:1"}}}


def test_the_deployment_has_no_right_to_change_anything(server: ApiServer, api: Api) -> None:
    objects = rendered(WATCH).objects
    roles = [
        item for item in objects if item["kind"] in ("Role", "ClusterRole") and "watch" in item["metadata"]["name"]
    ]
    rules = [found for role in roles for found in role["rules"]]
    writes = [(found["resources"], found["verbs"]) for found in rules if set(found["verbs"]) - {"get", "list"}]
    assert writes == [(["events"], ["create"])]
    listed = [found["resources"] for found in rules if "list" in found["verbs"]]
    assert listed == [["nodes", "pods"]]
    data = next(item for item in objects if item["metadata"]["name"] == "watch-objects")["data"]["objects.yaml"]
    watched = {(item["kind"], item["metadata"]["name"]) for item in yaml.safe_load_all(data)}
    assert ("DaemonSet", PLUGIN) in watched and not any("watch" in name for _, name in watched)
    allowed = {
        (resource, name)
        for found in rules
        for resource in found["resources"]
        for name in found.get("resourceNames", ())
    }
    assert {(plural(kind), name) for kind, name in watched} | {("configmaps", INVENTORY)} == allowed


class Authorizer:
    """Answers 403 to what the rendered roles do not grant; `used` are the rules that somebody needed."""

    def __init__(self, server: ApiServer, objects: Sequence[dict[str, Any]]) -> None:
        self.rules = [
            (item["metadata"].get("namespace", ""), number, found)
            for item in objects
            if item["kind"] in ("Role", "ClusterRole") and item["metadata"]["name"] == "gpunode-watch"
            for number, found in enumerate(item["rules"])
        ]
        self.used: set[tuple[str, int, str]] = set()
        self.read: set[tuple[str, str]] = set()
        route = server.route

        def authorized(http: Any, path: str, query: dict[str, str], body: Any) -> Any:
            found = re.fullmatch(r"/(?:api/v1|apis/([^/]+)/[^/]+)(?:/namespaces/([^/]+))?/([a-z]+)(?:/([^/]+))?", path)
            if found and not self.may(http.command, *(part or "" for part in found.groups())):
                raise Refusal(403, "Forbidden", f"{http.command} {path}")
            return route(http, path, query, body)

        server.route = authorized  # type: ignore[method-assign]

    def may(self, method: str, group: str, namespace: str, resource: str, name: str) -> bool:
        verb = {"GET": "get" if name else "list", "POST": "create"}.get(method, method)
        for place, number, found in self.rules:
            granted = verb in found["verbs"] and group in found["apiGroups"] and resource in found["resources"]
            if granted and name in found.get("resourceNames", [name]) and place in ("", namespace):
                self.used.add((place, number, verb))
                self.read.add((resource, name))
                return True
        return False


WATCHED = {"kubernetes": {"watch": {"image": "registry.lan/gpunode:1"}}}
POOLED = {"a": {}, "b": {"kubernetes": {"pool": "shared"}, "sharing": {"strategy": "time-slicing", "replicas": 4}}}


SPECS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("plain", {}, {}),
    ("gpushare", {"sharing": {"strategy": "gpushare"}}, {}),
    ("dra", {"sharing": {"strategy": "dra"}}, {}),
    ("two pools", {}, POOLED),
]


@over(SPECS, name=lambda row: row[0])
def test_a_look_takes_all_the_rights_of_the_deployment_and_no_other(
    _name: str, spec: dict[str, Any], pools: dict[str, Any]
) -> None:
    server = ApiServer(resources=DRA)
    server.controllers.append(workloads_become_ready)
    try:
        what = rendered({**WATCHED, **spec}, **pools)
        for name in pools or ("a",):
            server.put(gpu_node(name, allocatable="3"))
        with TemporaryDirectory() as folder:
            put(quick(connect(str(server.kubeconfig(Path(folder) / "k")))), what)
            api = quick(connect(str(server.kubeconfig(Path(folder) / "k"))))
        config = next(item for item in what.objects if item["metadata"]["name"] == "watch-objects")
        text = config["data"]["objects.yaml"]
        authorizer = Authorizer(server, what.objects)
        watched = Watcher(api=api, wanted=wanted_objects(yaml.safe_load_all(text)), events=True)
        watched.round(once=True)
        assert watched.unread == ()
        assert ("kube.gpus", "node a") in {found.name for found in watched.found}
        assert authorizer.used == {
            (place, number, verb) for place, number, found in authorizer.rules for verb in found["verbs"]
        }
        named = {
            (resource, name)
            for _, _, found in authorizer.rules
            for resource in found["resources"]
            for name in found.get("resourceNames", ())
        }
        assert named - authorizer.read == set()
        assert {verb for _, _, found in authorizer.rules for verb in found["verbs"]} == {"get", "list", "create"}
        assert server.unexpected == []
    finally:
        server.close()


def test_labels_and_taints_that_somebody_took_off_are_drift(server: ApiServer, api: Api) -> None:
    what = rendered({"kubernetes": {"taint": True, "node_selector": {"gpu": "yes"}}}, gpu1={}, gpu2={})
    for name in ("gpu1", "gpu2"):
        server.put({**gpu_node(name), "spec": {"taints": [{"key": "other", "effect": "NoExecute"}]}})
    put(api, what)
    watched = Watcher(api=api, wanted=wanted_objects(what.objects), marks=what.nodes)
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
    watched = Watcher(api=api, wanted=wanted_objects(what.objects), marks=what.nodes, namespace="gpunode")
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


def test_an_apply_that_is_going_on_is_no_drift_at_the_first_look(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    wanted = wanted_objects(rendered({"kubernetes": {"feature_discovery": False}}).objects)
    server.put(gpu_node())
    watched = Watcher(api=api, wanted=wanted, namespace="gpunode")
    assert watched.round() == ()
    (turn,) = watched.round()
    assert turn.finding.about == "DaemonSet gpunode/gpu-feature-discovery"


def test_an_inventory_of_another_namespace_is_found_as_apply_finds_it(server: ApiServer, api: Api) -> None:
    server.put(gpu_node())
    put(api, rendered({"kubernetes": {"namespace": "old"}}))
    watched = watcher_of(api, rendered())
    assert f"DaemonSet old/{PLUGIN}" in {about for _, about in seen(watched)}


def watcher_of(api: Api, what: Any) -> Watcher:
    wanted = wanted_objects(what.objects)
    return Watcher(api=api, wanted=wanted, marks=what.nodes, namespace=what.cluster.spec.namespace)


def test_an_inventory_that_cannot_be_read_is_named_and_the_rest_is_looked_at(server: ApiServer, api: Api) -> None:
    server.put(gpu_node(allocatable="3"))
    watched = watcher(api)
    server.edit("ConfigMap", INVENTORY, "gpunode", lambda item: item.update(data={"inventory.json": "{"}))
    assert seen(watched) == {("kube.gpus", "node gpu1"): "3 of 4 nvidia.com/gpu can be allocated"}
    assert [text.split(":")[0] for text in watched.unread] == ["what apply recorded"]


def test_the_deployment_finds_orphans_by_the_record_alone_and_never_itself(server: ApiServer, api: Api) -> None:
    """It may read the record, and only the objects that are wanted: what it may not read is believed to be there."""
    server.put(gpu_node())
    put(api, rendered(WATCHED))
    put(api, rendered({"kubernetes": {**WATCHED["kubernetes"], "feature_discovery": False}}), wait=False)
    objects = rendered({"kubernetes": {**WATCHED["kubernetes"], "feature_discovery": False}}).objects
    config = next(item for item in objects if item["metadata"]["name"] == "watch-objects")
    server.edit("ConfigMap", INVENTORY, "gpunode", _record_discovery)
    Authorizer(server, objects)
    watched = Watcher(api=api, wanted=wanted_objects(yaml.safe_load_all(config["data"]["objects.yaml"])))
    assert {about for _, about in seen(watched)} == {"DaemonSet gpunode/gpu-feature-discovery"}
    assert watched.unread == ()


def _record_discovery(item: dict[str, Any]) -> None:
    """As an apply that was killed leaves it."""
    data = json.loads(item["data"]["inventory.json"])
    data["objects"].append(
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "namespace": "gpunode", "name": "gpu-feature-discovery"}
    )
    item["data"]["inventory.json"] = json.dumps(data)


BY_LABEL: dict[str, Any] = {
    "kubernetes": {
        "watch": WATCH["kubernetes"]["watch"],
        "pools": {"a": {"nodes": "team=a"}, "b": {"nodes": "team=b", "sharing": {"strategy": "mps", "replicas": 2}}},
    }
}


@over([False, True], name=str)
def test_pools_by_label_are_judged_by_the_nodes_of_now(in_the_cluster: bool) -> None:
    """A node that joins, one that is in no pool any more, one of two pools, and a pool without any."""
    server = ApiServer()
    server.controllers.append(workloads_become_ready)
    try:
        what = rendered(BY_LABEL)
        with TemporaryDirectory() as folder:
            api = quick(connect(str(server.kubeconfig(Path(folder) / "k"))))
            for name, team in (("n1", "a"), ("n2", "b")):
                server.put(gpu_node(name, team=team))
            nodes = [server.get("Node", name) or {} for name in ("n1", "n2")]
            put(api, render(with_nodes(what.cluster, nodes)))
            config = server.get("ConfigMap", "watch-objects", "gpunode")
            assert config is not None
            for name, text in config["data"].items():
                (Path(folder) / name).write_text(text)
            marks = read_marks(Path(folder)) if in_the_cluster else tuple(node_wishes(what.cluster))
            watched = Watcher(api=api, wanted=wanted_objects(what.objects), marks=marks)
            assert seen(watched) == {}
            server.put(gpu_node("n3", team="a"))
            server.edit("Node", "n2", "", lambda item: item["metadata"]["labels"].update(team="c"))
            missing = f"the label {POOL_LABEL} is nothing, not a"
            stale = f"{STALE}the label {POOL_LABEL}"
            assert seen(watched) == {
                ("kube.drift", "node n3"): missing,
                ("kube.drift", "marks of node n2"): stale,
                ("kube.pool", "pool b"): "no node of the cluster is chosen by 'team=b'",
            }
    finally:
        server.close()


def test_a_node_that_gets_into_a_second_pool_is_found(server: ApiServer, api: Api) -> None:
    both = {"kubernetes": {"pools": {"a": {"nodes": "team=a"}, "b": {"nodes": "gpu=b"}}}}
    what = rendered(both)
    server.put(gpu_node("n1", team="a", gpu="b"))
    watched = Watcher(api=api, wanted={}, marks=tuple(node_wishes(what.cluster)))
    assert seen(watched)[("kube.node", "node n1")] == "it is in the pools a and b"


@over(["", "[1]", "{}", '[{"pool": "a"}]', "[" * 100_000], name=lambda text: text[:9])
def test_a_file_of_marks_that_is_none_is_bad_input(text: str) -> None:
    from gpunode.core.errors import InputError

    with TemporaryDirectory() as folder:
        (Path(folder) / "nodes.json").write_text(text)
        if text == "{}":
            assert read_marks(Path(folder)) == ()
            return
        with pytest.raises(InputError):
            read_marks(Path(folder))


def test_no_image_is_no_deployment_and_a_wrong_one_is_refused() -> None:
    assert not [item for item in rendered().objects if item["metadata"]["name"] == "watch"]
    with pytest.raises(Exception, match=r"kubernetes\.watch\.image"):
        rendered({"kubernetes": {"watch": {"image": "not an image"}}})


# ---------------------------------------------------------------- the command


@pytest.fixture
def config(server: ApiServer, tmp_path: Path) -> str:
    return str(server.kubeconfig(tmp_path / "kubeconfig"))


def run(*words: str) -> Any:
    return CliRunner().invoke(kube, ["watch", *words], standalone_mode=False)


def test_once_is_for_pipelines(server: ApiServer, api: Api, config: str, tmp_path: Path) -> None:
    what = rendered()
    put(api, what)
    (tmp_path / "objects.yml").write_text(yaml_documents(what.objects))
    server.put(gpu_node())
    words = ("--kubeconfig", config, "--objects", str(tmp_path / "objects.yml"), "--once")
    done = run(*words)
    assert (done.return_value, done.output) == (0, f"nothing found: {len(what.objects)} objects, 1 nodes with GPUs\n")
    server.put(gpu_node(allocatable="1"))
    done = run(*words, "--format", "json")
    assert done.return_value == 1
    (found,) = json.loads(done.output)["findings"]
    assert found["check"] == "kube.gpus" and found["about"] == "node gpu1"


def test_it_goes_on_until_a_signal_and_says_what_it_could_not_read(
    server: ApiServer, api: Api, config: str, tmp_path: Path
) -> None:
    what = rendered()
    put(api, what)
    folder = tmp_path / "cluster"
    folder.mkdir()
    (folder / "objects.yaml").write_text(yaml_documents(what.objects))
    server.put(gpu_node())
    command = [sys.executable, "-m", "gpunode", "kube", "watch", "--kubeconfig", config, "--objects", str(folder)]
    with subprocess.Popen(
        [*command, "--interval", "1", "--format", "json"], stdout=subprocess.PIPE, text=True
    ) as going:
        assert going.stdout is not None
        assert json.loads(going.stdout.readline())["state"] == "watching"
        server.put(gpu_node(allocatable="1"))
        assert json.loads(going.stdout.readline())["state"] == "found"
        going.send_signal(signal.SIGTERM)
        assert going.wait(20) == 0


@over(["", "[", "a: 1", "- 1", "kind: 5"], name=repr)
def test_objects_that_are_none_are_bad_input(text: str) -> None:
    import tempfile

    from gpunode.core.errors import InputError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.yaml"
        path.write_text(text)
        with pytest.raises(InputError):
            read_objects(path)


@over([":http", "9405", "[::1]:70000", "a:b:"], name=str)
def test_addresses_that_are_none_are_bad_input(listen: str) -> None:
    from gpunode.core.errors import InputError

    with pytest.raises(InputError), serving(Metrics(Watcher(api=None, wanted={})), listen):  # type: ignore[arg-type]
        pass


def test_a_gpu_whose_pods_hold_more_than_it_has_is_found_when_that_lasts(server: ApiServer, api: Api) -> None:
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
    watched = Watcher(api=api, wanted={})
    assert watched.round() == ()
    (turn,) = watched.round()
    assert (turn.finding.about, turn.finding.message) == ("GPU 0 of node gpu1", "its pods hold 17 of 16 GiB")
    server.objects.clear()
    assert [turn.state for turn in watched.round()] == ["gone"]


def test_memory_that_claims_wait_for_is_compared_with_memory_and_devices_with_devices() -> None:
    gpus = (GpuUse(name="gpu-0", allocated=70000, total=81920), GpuUse(name="gpu-1", allocated=1, total=81920))
    use = Use(kind="dra-memory", resource="gpu.nvidia.com/gpu", allocated=70001, total=163840, gpus=gpus, unit="MiB")
    there = NodeUse(name="gpu1", address="", product="", state="Ready", uses=(use,))

    def found(asks: dict[str, int]) -> list[str]:
        waiting = Waiting(namespace="team", name="p", asks=asks, why="")
        look = Look(wanted={}, live={}, pods={}, nodes=(), usage=Usage(nodes=(there,), waiting=(waiting,)))
        return [one.message for one in findings(look) if one.check == "kube.waiting"]

    assert found({"gpu.nvidia.com/gpu (MiB)": 3072}) == []
    assert found({"gpu.nvidia.com/gpu": 1}) == ["1 pod waits for it, and 0 are free: team/p"]
