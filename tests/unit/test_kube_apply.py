"""gpunode kube apply and remove against an API over HTTP, with the real client."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from api_server import ApiServer, Fault, workloads_become_ready
from kube_cluster import foreign, hows, inventory, mutating, node, put, quick, rendered, silent
from rows import over

from gpunode.core.errors import Exit, InterruptedByUser
from gpunode.kube.core.cluster import POOL_LABEL
from gpunode.kube.core.judge import findings
from gpunode.kube.core.marks import CONTROL_PLANE
from gpunode.kube.core.objects import thing
from gpunode.kube.core.owned import INVENTORY, ObjectKey, key_of
from gpunode.kube.core.render import Rendered
from gpunode.kube.core.usage import usage_data, usage_text
from gpunode.kube.edge.apply import apply, remove
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.kubeconfig import connect
from gpunode.kube.edge.pods import creation_denied
from gpunode.kube.edge.reading import read
from gpunode.kube.edge.status import read_usage, unready_workloads

pytest_plugins = ("kube_fixtures",)

PLUGIN = "DaemonSet gpunode/nvidia-device-plugin"
ALL = [
    "Namespace gpunode", "RuntimeClass nvidia", "ConfigMap gpunode/device-plugin-config",
    PLUGIN, "DaemonSet gpunode/gpu-feature-discovery",
]  # fmt: skip


# ---------------------------------------------------------------- the good way


def test_everything_is_created_in_order_labelled_and_recorded(server: ApiServer, api: Api) -> None:
    applied = put(api, rendered())
    assert hows(applied) == dict.fromkeys(ALL, "created") and applied.notes
    assert (applied.exit, applied.waiting, applied.problems, applied.left) == (Exit.OK, (), (), ())
    assert inventory(server) == ALL
    live = server.get("DaemonSet", "nvidia-device-plugin", "gpunode")
    assert live and live["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "gpunode"
    patched = [r.split("?")[0].split("/")[-1] for r in mutating(server)]
    assert patched == ["gpunode", INVENTORY, "nvidia", "device-plugin-config", "nvidia-device-plugin",
                       "gpu-feature-discovery", INVENTORY]  # fmt: skip


def test_a_second_apply_finds_nothing_to_do_and_changes_no_object(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    before = {key: item["metadata"]["resourceVersion"] for key, item in server.objects.items()}
    applied = put(api, rendered())
    assert set(hows(applied).values()) == {"unchanged"} and applied.notes == ()
    assert {key: item["metadata"]["resourceVersion"] for key, item in server.objects.items()} == before


def test_a_dry_run_shows_what_would_change_and_changes_nothing(server: ApiServer, api: Api) -> None:
    put(api, rendered({"sharing": {"strategy": "time-slicing", "replicas": 2}}))
    server.requests.clear()
    applied = put(api, rendered({"sharing": {"strategy": "time-slicing", "replicas": 4}}), dry_run=True)
    assert applied.exit == Exit.PENDING
    assert mutating(server) == []
    changed = {str(c.key): c for c in applied.changes if c.how != "unchanged"}
    assert {name: c.how for name, c in changed.items()} == {
        "ConfigMap gpunode/device-plugin-config": "changed", PLUGIN: "changed",
        "DaemonSet gpunode/gpu-feature-discovery": "changed",
    }  # fmt: skip
    diff = changed["ConfigMap gpunode/device-plugin-config"].diff
    assert "-          replicas: 2\n" in diff or "-      replicas: 2\n" in diff, diff


def test_a_dry_run_of_a_converged_cluster_says_so(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    assert put(api, rendered(), dry_run=True).exit == Exit.OK


def test_what_is_no_longer_wanted_goes_and_nothing_else(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    server.put({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "theirs", "namespace": "gpunode"},
                "spec": {"template": {"spec": {"containers": [{"name": "x", "image": "busybox"}]}}}})  # fmt: skip
    applied = put(api, rendered({"kubernetes": {"feature_discovery": False}}))
    assert hows(applied)["DaemonSet gpunode/gpu-feature-discovery"] == "deleted"
    assert server.names("DaemonSet") == ["gpunode/nvidia-device-plugin", "gpunode/theirs"]
    assert "DaemonSet gpunode/gpu-feature-discovery" not in inventory(server)


def earlier(what: Rendered) -> Rendered:
    """What a gpunode made that had Node Feature Discovery, the DCGM exporter, its dashboard as objects."""
    pods = {"spec": {"template": {"spec": {"containers": [{"name": "x", "image": "x"}]}}}}
    rbac = "rbac.authorization.k8s.io/v1"
    more = [
        thing("CustomResourceDefinition", "apiextensions.k8s.io/v1", "nodefeatures.nfd.k8s-sigs.io", "nfd", {}),
        thing("Role", rbac, "gpunode-nfd-worker", "nfd-worker", {"rules": []}, namespace="gpunode"),
        thing("ConfigMap", "v1", "gpunode-dashboard", "dcgm-exporter", {"data": {}}, namespace="gpunode"),
        thing("ConfigMap", "v1", "dcgm-counters", "dcgm-exporter", {"data": {}}, namespace="gpunode"),
        thing("Service", "v1", "dcgm-exporter", "dcgm-exporter", {"spec": {}}, namespace="gpunode"),
        *(
            thing("DaemonSet", "apps/v1", name, name, pods, namespace="gpunode")
            for name in ("dcgm-exporter", "nfd-worker")
        ),
    ]
    return replace(what, objects=(*what.objects, *more))


MOVED = {"kubernetes": {"node_feature_discovery": True, "monitoring": {"enabled": True}}}


@pytest.mark.parametrize("how", ["apply", "remove"])
def test_objects_of_an_earlier_gpunode_that_come_by_charts_now_go(server: ApiServer, api: Api, how: str) -> None:
    """By apply, which then says helm's commands for them, and by remove."""
    old = earlier(rendered(MOVED))
    put(api, old)
    moved = {str(key_of(item)) for item in old.objects} - {str(key_of(item)) for item in rendered(MOVED).objects}
    applied = put(api, rendered(MOVED)) if how == "apply" else remove(api, "gpunode", notify=silent)
    assert {key for key, done in hows(applied).items() if done == "deleted"} >= moved and len(moved) == 7
    assert server.names("CustomResourceDefinition") == server.names("Role") == []
    if how == "apply":
        releases = [note.split()[8] for note in applied.notes if note.startswith("helm is yours to run: ")]
        assert releases == ["node-feature-discovery", "dcgm-exporter"]
        assert put(api, rendered(MOVED)).exit == Exit.OK


def test_an_object_that_somebody_took_over_is_not_pruned(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    server.edit("DaemonSet", "gpu-feature-discovery", "gpunode", lambda o: o["metadata"]["labels"].clear())
    applied = put(api, rendered({"kubernetes": {"feature_discovery": False}}))
    assert hows(applied)["DaemonSet gpunode/gpu-feature-discovery"] == "kept"
    assert server.get("DaemonSet", "gpu-feature-discovery", "gpunode") is not None


def test_another_namespace_takes_the_place_of_the_old_one(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    put(api, rendered({"kubernetes": {"namespace": "gpus"}}))
    assert server.names("Namespace") == ["default", "kube-system", "gpus"]
    assert server.names("DaemonSet") == ["gpus/nvidia-device-plugin", "gpus/gpu-feature-discovery"]
    assert server.names("ConfigMap") == ["gpus/gpunode-inventory", "gpus/device-plugin-config"]


def test_an_old_namespace_that_holds_something_else_stays_and_stays_on_record(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    server.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs", "namespace": "gpunode"}})
    applied = put(api, rendered({"kubernetes": {"namespace": "gpus"}}))
    kept = next(c for c in applied.changes if str(c.key) == "Namespace gpunode")
    assert (kept.how, kept.why) == ("kept", "it holds what is not gpunode's: Secret gpunode/theirs")
    assert "Namespace gpunode" in inventory(server, "gpus")


def test_what_somebody_changed_in_our_objects_is_put_right(server: ApiServer, api: Api) -> None:
    put(api, rendered())

    def edit(item: dict[str, Any]) -> None:
        item["handler"] = "runc"

    server.edit("RuntimeClass", "nvidia", "", edit, "kubectl-edit")
    assert hows(put(api, rendered()))["RuntimeClass nvidia"] == "changed"
    live = server.get("RuntimeClass", "nvidia")
    assert live and live["handler"] == "nvidia"


def test_what_somebody_added_to_our_pods_stays_and_is_told(server: ApiServer, api: Api) -> None:
    """Finding: a variable that was added survived apply, which said «nothing to do»."""
    put(api, rendered())
    container = {'k:{"name":"nvidia-device-plugin"}': {"f:env": {'k:{"name":"PASS_DEVICE_SPECS"}': {}}}}
    theirs = {"f:spec": {"f:template": {"f:spec": {"f:containers": container}}}}
    mine = {"f:spec": {"f:template": {"f:spec": {"f:containers": {next(iter(container)): {}}}}}}

    item = server.objects[("apps/v1", "daemonsets", "gpunode", "nvidia-device-plugin")]
    item["metadata"]["managedFields"] = [
        {"manager": "gpunode", "operation": "Apply", "fieldsV1": mine},
        {"manager": "kubectl-set", "operation": "Update", "time": "2026-11-24T20:00:00Z", "fieldsV1": theirs},
    ]
    (note,) = apply(api, rendered(), dry_run=True, notify=silent).notes
    assert note == (
        "DaemonSet gpunode/nvidia-device-plugin: kubectl-set at 2026-11-24T20:00:00Z added nvidia-device-plugin.env "
        "PASS_DEVICE_SPECS, which stays; kubectl -n gpunode delete daemonset nvidia-device-plugin; gpunode kube apply "
        "makes it again"
    )


def account_of_plugin(server: ApiServer) -> str:
    live = server.get("DaemonSet", "nvidia-device-plugin", "gpunode")
    assert live
    return str(live["spec"]["template"]["spec"]["serviceAccountName"])


# ---------------------------------------------------------------- nodes


def test_labels_and_taints_come_to_the_hosts_of_the_inventory_and_go_again(server: ApiServer, api: Api) -> None:
    theirs = {"key": "other", "effect": "NoExecute"}
    server.put(node("gpu1", labels={"zone": "a"}, spec={"taints": [theirs]}))
    server.put(node("gpu2", address="10.0.0.2"))
    spec = {"kubernetes": {"taint": True, "node_selector": {"gpu": "true"}}}
    applied = put(api, rendered(spec, **{"gpu1": {}, "10.0.0.2": {}}))
    assert applied.problems == ()
    gpu1 = server.get("Node", "gpu1")
    assert gpu1 and gpu1["metadata"]["labels"] == {"zone": "a", "gpu": "true", POOL_LABEL: "default"}
    assert gpu1["spec"]["taints"] == [theirs, {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    assert hows(applied)["Node gpu2"] == "changed"
    assert set(hows(put(api, rendered(spec, **{"gpu1": {}, "10.0.0.2": {}}))).values()) == {"unchanged"}

    put(api, rendered(spec, gpu1={}))  # gpu2 left the inventory
    gpu2 = server.get("Node", "gpu2")
    assert gpu2 and (gpu2["metadata"]["labels"], gpu2["spec"]["taints"]) == ({}, [])

    remove(api, "gpunode", notify=silent)
    gpu1 = server.get("Node", "gpu1")
    assert gpu1 and (gpu1["metadata"]["labels"], gpu1["spec"]["taints"]) == ({"zone": "a"}, [theirs])


def test_a_label_that_somebody_else_manages_with_another_value_is_a_conflict(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1", labels={"gpu": "false"}), "kubelet")
    applied = put(api, rendered({"kubernetes": {"node_selector": {"gpu": "true"}}}, gpu1={}))
    (problem,) = applied.problems
    assert problem.what.startswith("Node gpu1: ")
    assert 'conflict with "kubelet": .metadata.labels.gpu' in problem.what
    assert mutating(server) == []


def test_a_taint_set_at_the_same_time_is_not_lost(server: ApiServer, api: Api) -> None:
    server.put(node("gpu1"))
    other = {"key": "maintenance", "effect": "NoSchedule"}
    once = [1]

    def somebody(found: ApiServer, event: str, item: dict[str, Any]) -> None:
        if item["kind"] == "Node" and item["metadata"]["labels"] and once:
            once.clear()
            found.edit("Node", "gpu1", "", lambda o: o["spec"].update(taints=[other]))

    server.controllers.append(somebody)
    put(api, rendered({"kubernetes": {"taint": True, "node_selector": {"gpu": "yes"}}}, gpu1={}))
    live = server.get("Node", "gpu1")
    assert live and [t["key"] for t in live["spec"]["taints"]] == ["maintenance", "nvidia.com/gpu"]


# ---------------------------------------------------------------- faults

PASSING = {
    "429 with Retry-After": Fault(r"^PATCH .*/runtimeclasses/nvidia\?", 429, headers={"Retry-After": "3"}, times=2),
    "500": Fault(r"^PATCH .*/daemonsets/nvidia-device-plugin\?", 500, times=2),
    "503 everywhere": Fault(r".", 503, times=4),
    "a lost update": Fault(r"^PATCH .*/configmaps/device-plugin-config\?", 409, "Conflict", times=3),
    "a cut connection": Fault(r"^PATCH .*/daemonsets/", 0, times=2),
    "an answer that is lost after the work": Fault(r"^PATCH (?!.*dryRun).*/daemonsets/", 0, times=2, after=True),
    "a slow answer": Fault(r"^GET .*/runtimeclasses/", 0, delay=3.0),
}


@pytest.mark.parametrize("fault", PASSING)
def test_what_may_pass_is_tried_again(fault: str, server: ApiServer, api: Api) -> None:
    server.faults.append(replace(PASSING[fault]))
    applied = put(api, rendered())
    assert (applied.exit, set(hows(applied))) == (Exit.OK, set(ALL))
    assert server.faults[0].times <= 0
    if "Retry-After" in fault:
        assert api.pauses[:2] == [3.0, 3.0]  # type: ignore[attr-defined]


def test_when_it_breaks_halfway_it_says_what_is_done_and_the_next_run_goes_on(server: ApiServer, api: Api) -> None:
    server.faults.append(
        Fault(r"^PATCH (?!.*dryRun).*/daemonsets/nvidia-device-plugin\?", 500, "InternalError", times=99)
    )
    applied = put(api, rendered())
    assert applied.exit == Exit.FAILED
    assert hows(applied) == dict.fromkeys(ALL[:3], "created")
    assert [str(key) for key in applied.left] == ALL[3:]
    assert applied.error and applied.error.what.startswith("DaemonSet gpunode/nvidia-device-plugin: the API server")
    assert inventory(server) == ALL  # recorded before it was applied
    server.faults.clear()
    again = put(api, rendered())
    assert (again.exit, [str(c.key) for c in again.changes if c.how == "created"]) == (Exit.OK, ALL[3:])


@pytest.mark.parametrize(
    "fault",
    [
        Fault(
            r"^PATCH .*/clusterrolebindings/.*dryRun", 404, "NotFound", 'clusterroles "gpunode-x" not found', times=9
        ),
        Fault("dryRun", 400, "BadRequest", 'admission webhook "w" does not support dry run', times=99),
    ],
)
def test_what_cannot_be_rehearsed_is_applied_all_the_same(fault: Fault, server: ApiServer, api: Api) -> None:
    server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": "gpunode", "labels": {"app.kubernetes.io/managed-by": "gpunode"}}})  # fmt: skip
    server.faults.append(replace(fault))
    applied = put(api, rendered({"sharing": {"strategy": "gpushare"}}))
    assert (applied.problems, applied.exit) == ((), Exit.OK)
    assert "gpunode-gpushare-extender" in server.names("ClusterRoleBinding")


def test_an_interrupt_is_reported_like_a_break(server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    real = api.apply

    def interrupted(key: ObjectKey, *args: Any, **options: Any) -> Any:
        if key.kind == "ConfigMap" and key.name == "device-plugin-config" and not options.get("dry_run"):
            raise KeyboardInterrupt
        return real(key, *args, **options)

    monkeypatch.setattr(api, "apply", interrupted)
    applied = put(api, rendered())
    assert isinstance(applied.error, InterruptedByUser)
    assert applied.exit == Exit.INTERRUPTED
    assert [str(key) for key in applied.left] == ALL[2:]


def test_a_server_that_goes_away_while_waiting_leaves_the_list_of_what_is_done(server: ApiServer, api: Api) -> None:
    server.controllers.clear()
    server.faults.append(Fault(r"^GET .*/daemonsets\?fieldSelector", 503, "ServiceUnavailable", times=99))
    applied = put(api, rendered())
    assert set(hows(applied)) == set(ALL)
    assert (applied.exit, applied.left) == (Exit.FAILED, ())
    assert applied.error and "(503)" in applied.error.what


def test_not_ready_in_time_says_which_pod_and_why(server: ApiServer, api: Api) -> None:
    server.controllers.clear()
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "plugin-x", "namespace": "gpunode", "labels": {
            "app.kubernetes.io/name": "nvidia-device-plugin", "app.kubernetes.io/instance": "gpunode"}},
        "spec": {"containers": [{"name": "nvidia-device-plugin"}]},
        "status": {"phase": "Pending", "containerStatuses": [{"name": "nvidia-device-plugin", "state": {"waiting": {
            "reason": "ImagePullBackOff", "message": "Back-off pulling image"}}}]},
    }  # fmt: skip
    put_namespace = {"apiVersion": "v1", "kind": "Pod", **pod}
    server.put(put_namespace)
    applied = apply(api, rendered(), timeout=0.2, notify=silent)
    assert applied.exit == Exit.FAILED
    assert applied.waiting, applied
    assert applied.waiting[0] == (
        f"{PLUGIN} is not ready: its controller has not seen it yet; "
        "pod plugin-x: nvidia-device-plugin: ImagePullBackOff: Back-off pulling image"
    )


def ready_later(server: ApiServer, name: str, seconds: float) -> None:
    def become(item: dict[str, Any]) -> None:
        item["status"] = {"observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2,
                          "numberAvailable": 2}  # fmt: skip

    server.later(seconds, lambda: server.edit("DaemonSet", name, "gpunode", become))


@pytest.mark.parametrize("breaks", [0, 3])
def test_it_waits_until_all_is_ready_also_when_watches_drop(server: ApiServer, api: Api, breaks: int) -> None:
    server.controllers.clear()
    server.watch_breaks = breaks

    def on_created(found: ApiServer, event: str, item: dict[str, Any]) -> None:
        if event == "ADDED" and item["kind"] == "DaemonSet":
            ready_later(found, item["metadata"]["name"], 0.3)

    server.controllers.append(on_created)
    reported: list[str] = []
    applied = apply(api, rendered(), timeout=10, notify=reported.append)
    assert (applied.exit, applied.waiting) == (Exit.OK, ())
    assert [line for line in reported if line.startswith(PLUGIN)] == [
        f"{PLUGIN}: applying", f"{PLUGIN}: its controller has not seen it yet", f"{PLUGIN}: 2 of 2 pods",
    ]  # fmt: skip
    assert any("watch=true" in request for request in server.requests)


def test_a_workload_that_is_deleted_meanwhile_is_not_waited_for(server: ApiServer, api: Api) -> None:
    server.controllers.clear()

    def on_created(found: ApiServer, event: str, item: dict[str, Any]) -> None:
        if event == "ADDED" and item["metadata"]["name"] == "nvidia-device-plugin":
            found.later(0.3, lambda: found.gone(("apps/v1", "daemonsets", "gpunode", "nvidia-device-plugin")))

    server.controllers.append(on_created)
    applied = apply(api, rendered({"kubernetes": {"feature_discovery": False}}), timeout=10, notify=silent)
    assert applied.waiting == (f"{PLUGIN} is not ready: is gone",)


# ---------------------------------------------------------------- remove


def test_remove_takes_everything_and_nothing_else(server: ApiServer, api: Api) -> None:
    server.put(foreign("RuntimeClass", "node.k8s.io/v1", "gvisor", handler="runsc"))
    before = dict(server.objects)
    put(api, rendered())
    removed = remove(api, "gpunode", notify=silent)
    assert (removed.exit, removed.left) == (Exit.OK, ())
    assert [c.how for c in removed.changes] == ["deleted"] * 6
    assert server.objects == before
    assert remove(api, "gpunode", notify=silent).changes == ()


def test_remove_opens_nodes_that_nobody_would_prove_any_more(server: ApiServer, api: Api) -> None:
    foreign_taint = {"key": "dedicated", "effect": "NoSchedule"}
    mine = {"key": "gpunode/unproven", "value": "true", "effect": "NoSchedule"}
    server.put(node("gpu1", spec={"taints": [foreign_taint, mine]}, labels={"theirs": "yes"}))
    server.put(node("gpu2", address="10.0.0.2", labels={"gpunode/proven": "true"}))
    put(api, rendered())
    assert hows(remove(api, "gpunode", dry_run=True, notify=silent))["Node gpu1"] == "changed"
    remove(api, "gpunode", notify=silent)
    one, two = (server.get("Node", name) or {} for name in ("gpu1", "gpu2"))
    assert (one["spec"]["taints"], one["metadata"]["labels"]) == ([foreign_taint], {"theirs": "yes"})
    assert not two["metadata"].get("labels")


def test_who_may_not_list_nodes_hears_which_taint_remove_leaves(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    server.faults.append(Fault(r"GET /api/v1/nodes(\?|$)", status=403, reason="Forbidden"))
    heard: list[str] = []
    assert remove(api, "gpunode", notify=heard.append).exit == Exit.OK
    assert any("gpunode/unproven" in line for line in heard)


def test_remove_keeps_a_namespace_that_holds_something_else(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    server.put(foreign("PersistentVolumeClaim", "v1", "data", "gpunode"))
    server.put(foreign("ConfigMap", "v1", "kube-root-ca.crt", "gpunode"))
    removed = remove(api, "gpunode", notify=silent)
    assert hows(removed)["Namespace gpunode"] == "kept"
    assert server.names("Namespace") == ["default", "kube-system", "gpunode"]
    assert server.names("DaemonSet") == []


def test_a_dry_run_of_remove_changes_nothing(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    server.requests.clear()
    assert remove(api, "gpunode", dry_run=True, notify=silent).exit == Exit.PENDING
    assert mutating(server) == []


def test_a_second_remove_while_the_first_goes_on_waits_for_it(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    server.edit(
        "Namespace", "gpunode", "", lambda o: o["metadata"].update(deletionTimestamp="2026-11-22T00:00:00Z")
    )  # fmt: skip
    server.later(0.5, lambda: server.gone(("v1", "namespaces", "", "gpunode")))
    assert remove(api, "gpunode", notify=silent, timeout=10).exit == Exit.OK
    assert "gpunode" not in server.names("Namespace")


def test_remove_says_what_a_finalizer_holds(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    server.stuck.add("gpunode/nvidia-device-plugin")
    server.stuck.add("/gpunode")
    removed = remove(api, "gpunode", timeout=0.2, notify=silent)
    assert removed.exit == Exit.FAILED
    assert removed.error and "it waits for example.com/stuck" in removed.error.what


def test_remove_without_the_right_to_delete_is_refused_as_a_whole(server: ApiServer, api: Api) -> None:
    put(api, rendered())
    server.requests.clear()
    server.denied.append("^delete daemonsets")
    assert [p.what for p in remove(api, "gpunode", notify=silent).problems] == [
        "here may not delete daemonsets.apps in gpunode"
    ]
    assert mutating(server) == []


def test_an_inventory_of_a_newer_gpunode_is_not_guessed_at(server: ApiServer, api: Api) -> None:
    from gpunode.core.errors import RefusedError

    put(api, rendered())
    server.edit(
        "ConfigMap", INVENTORY, "gpunode", lambda o: o["data"].update({"inventory.json": json.dumps({"format": 9})})
    )
    with pytest.raises(RefusedError, match="has format 9"):
        remove(api, "gpunode", notify=silent)


def test_a_selector_that_chooses_no_node_is_named(server: ApiServer, api: Api) -> None:
    """Its nodes may come later; or it is misspelt."""
    server.put(node("gpu1", labels={"accelerator": "nvidia-gpu"}))

    def notes(label: str) -> str:
        spec = {"kubernetes": {"node_selector": {label: "nvidia-gpu"}}}
        return "\n".join(apply(api, rendered(spec), dry_run=True, notify=silent).notes)

    assert "kubernetes.node_selector: no node is chosen by 'acelerator=nvidia-gpu' now" in notes("acelerator")
    assert "no node is chosen" not in notes("accelerator")


def test_a_node_that_offers_no_gpu_is_waited_for_and_named(server: ApiServer, api: Api) -> None:
    """Ready pods prove nothing: a device plugin that found no GPU is ready as well."""
    chosen = {"feature.node.kubernetes.io/pci-10de.present": "true"}
    for name, count in (("gpu1", "8"), ("gpu2", "0")):
        server.put(node(name, labels=chosen, allocatable={"nvidia.com/gpu": count}))
    spec = {"kubernetes": {"node_selector": chosen, "feature_discovery": False}}
    applied = apply(api, rendered(spec), timeout=0.2, notify=silent)
    assert applied.exit == Exit.FAILED
    (text,) = applied.waiting
    lacks = "node gpu2: it offers no GPU, and should offer at least 1 nvidia.com/gpu (pool default)"
    assert text.startswith(f"{lacks}: DaemonSet nvidia-device-plugin has no pod on it (kubectl -n gpunode describe")

    def offer(item: dict[str, Any]) -> None:
        item["status"]["allocatable"] = {"nvidia.com/gpu": "8"}

    server.later(0.3, lambda: server.edit("Node", "gpu2", "", offer))
    applied = apply(api, rendered(spec), timeout=600, notify=silent)
    assert (applied.exit, applied.waiting) == (Exit.OK, ())
    assert apply(api, rendered(spec), wait=False, notify=silent).exit == Exit.OK


TEN, FOUR = ({"strategy": "mps", "replicas": count} for count in (10, 4))
SLICED = {"strategy": "time-slicing", "replicas": 4, "rename_by_default": True}
GPU = "nvidia.com/gpu"
# sharing of before and now → what a node offers by it
NUMBERS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, str], dict[str, str]]] = [
    ("shares to whole", TEN, {}, {GPU: "20"}, {GPU: "2"}),
    ("fewer shares", TEN, FOUR, {GPU: "20"}, {GPU: "8"}),
    ("more shares", FOUR, TEN, {GPU: "8"}, {GPU: "20"}),
    ("whole to shares", {}, FOUR, {GPU: "8"}, {GPU: "32"}),
    ("as many", {**FOUR, "strategy": "time-slicing"}, FOUR, {GPU: "8"}, {GPU: "8"}),
    ("another name, fewer", SLICED, FOUR, {f"{GPU}.shared": "8"}, {GPU: "8"}),
    ("shares to instances of single", TEN, {"strategy": "mig", "mig": {"profiles": {"1g.10gb": 7}}}, {GPU: "20"},
     {GPU: "14"}),
]  # fmt: skip


@over(NUMBERS, name=lambda row: row[0])
def test_a_node_is_waited_for_until_it_offers_other_numbers_though_no_program_counted_its_gpus(
    _name: str, before: dict[str, Any], now: dict[str, Any], former: dict[str, str], then: dict[str, str]
) -> None:
    """By what it offered before it is known how many GPUs it has."""

    server = ApiServer()
    server.controllers.append(workloads_become_ready)
    try:
        with TemporaryDirectory() as folder:
            api = quick(connect(str(server.kubeconfig(Path(folder) / "k"))))
            server.put(node("gpu1"))
            apply(api, rendered({"sharing": before}), wait=False, notify=silent)
            offer(server, former, former)
            applied = apply(api, rendered({"sharing": now}), timeout=600, notify=offering_when_waited_for(server, then))
            live = server.get("Node", "gpu1")
    finally:
        server.close()
    assert (applied.exit, applied.waiting) == (Exit.OK, ())
    assert live and live["status"]["allocatable"] == then, "it does not end before"


def offer(server: ApiServer, allocatable: dict[str, str], capacity: dict[str, str], name: str = "gpu1") -> None:
    status = {"allocatable": allocatable, "capacity": capacity}
    server.edit("Node", name, "", lambda item: item["status"].update(status))


def offering_when_waited_for(server: ApiServer, amounts: dict[str, str], name: str = "gpu1") -> Callable[[str], None]:
    """As the kubelet of a node, some time after its new device plugin is ready."""
    begins = f"waiting for node {name}: "
    return lambda text: offer(server, amounts, amounts, name) if text.startswith(begins) else None


@pytest.mark.parametrize("renamed", [False, True])
def test_the_nodes_of_two_pools_offer_what_they_share_when_apply_ends(
    renamed: bool, server: ApiServer, api: Api
) -> None:
    for name in ("gpu1", "gpu2"):
        server.put(node(name, address=f"10.0.0.{name[-1]}"))
        offer(server, {GPU: "4"}, {GPU: "4"}, name)
    assert apply(api, rendered({}, gpu1={}, gpu2={}), timeout=600, notify=silent).exit == Exit.OK
    sliced = {"strategy": "time-slicing", "replicas": 3, "rename_by_default": renamed}
    pools = {"gpu1": {"kubernetes": {"pool": "whole"}}, "gpu2": {"kubernetes": {"pool": "sliced"}, "sharing": sliced}}
    then = {f"{GPU}.shared" if renamed else GPU: "12"}
    applied = apply(api, rendered({}, **pools), timeout=600, notify=offering_when_waited_for(server, then, "gpu2"))
    assert (applied.exit, applied.waiting) == (Exit.OK, ())
    found = [server.get("Node", name) for name in ("gpu1", "gpu2")]
    assert [one and one["status"]["allocatable"] for one in found] == [{GPU: "4"}, then]


def test_gpus_that_are_ill_are_counted_too(server: ApiServer, api: Api) -> None:
    """A device plugin that starts again offers them until they fail again."""
    server.put(node("gpu1"))
    apply(api, rendered({"sharing": TEN}), wait=False, notify=silent)
    offer(server, {GPU: "70"}, {GPU: "80"})
    again = offering_when_waited_for(server, {GPU: "32"})
    assert apply(api, rendered({"sharing": FOUR}), timeout=600, notify=again).waiting == ()


def test_a_device_plugin_whose_pods_no_node_takes_is_named_with_the_taint(server: ApiServer, api: Api) -> None:
    """Its controller wants none: ready by its own count, and no log to look at."""
    server.put(node("gpu1", allocatable={"nvidia.com/gpu": "8"}))
    put(api, rendered({"kubernetes": {"feature_discovery": False}}, gpu1={}))
    server.controllers.clear()
    none = {"desiredNumberScheduled": 0, "updatedNumberScheduled": 0, "numberAvailable": 0}
    server.edit("DaemonSet", "nvidia-device-plugin", "gpunode", lambda item: item["status"].update(none))
    gone = {"allocatable": {"nvidia.com/gpu": "0"}, "capacity": {"nvidia.com/gpu": "8"}}
    server.edit("Node", "gpu1", "", lambda item: item["status"].update(gone))
    tainted = {"taints": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]}
    server.edit("Node", "gpu1", "", lambda item: item.update(spec=tainted))
    spec = rendered({"kubernetes": {"feature_discovery": False}}, gpu1={})
    said: list[str] = []
    (lost,) = apply(api, spec, timeout=5, notify=said.append).waiting
    why = "DaemonSet nvidia-device-plugin does not tolerate its taint dedicated=ml:NoSchedule"
    lacks = f"node gpu1: 0 of 8 nvidia.com/gpu can be allocated (pool default): {why}"
    assert lost.startswith(f"{lacks} (tolerate it by kubernetes.tolerations, or take it off: kubectl taint nodes gpu1")
    assert f"waiting for {lacks}" in said, "no fix while it may pass"


def test_a_first_apply_on_nodes_that_are_all_tainted_names_the_taints(server: ApiServer, api: Api) -> None:
    """No inventory, no selector, no GPU ever offered: no node is known to be of the pool."""
    server.controllers.clear()

    def no_node_takes_it(server: ApiServer, event: str, item: dict[str, Any]) -> None:
        status = {"observedGeneration": item["metadata"].get("generation"), "desiredNumberScheduled": 0}
        if item["kind"] == "DaemonSet" and event != "DELETED" and item.get("status") != status:
            server.put({**item, "status": status})

    server.controllers.append(no_node_takes_it)
    spec = rendered({"kubernetes": {"feature_discovery": False}})
    assert put(api, spec).waiting == (), "without a node there is nothing to say"
    server.put(node("control", spec={"taints": [{"key": CONTROL_PLANE, "effect": "NoSchedule"}]}))
    assert put(api, spec).waiting == (), "nor with a control plane alone: its workers are still to come"
    for name, key in (("gpu1", "dedicated"), ("gpu2", "team")):
        server.put(node(name, spec={"taints": [{"key": key, "effect": "NoSchedule"}]}))
    said: list[str] = []
    first, second = apply(api, spec, timeout=3, notify=said.append).waiting
    why = "it offers no GPU, and should offer at least 1 nvidia.com/gpu (pool default): DaemonSet nvidia-device-plugin "
    why += "does not tolerate its taint"
    fix = "tolerate it by kubernetes.tolerations, or take it off: kubectl taint nodes gpu1 dedicated:NoSchedule-"
    assert first == f"node gpu1: {why} dedicated:NoSchedule ({fix})"
    assert second.startswith(f"node gpu2: {why} team:NoSchedule")
    assert f"waiting for node gpu1: {why} dedicated:NoSchedule" in said
    found = [f"{one.about}: {one.message}" for one in findings(read(api, spec)[0]) if one.check != "kube.drift"]
    assert found == [f"node gpu1: {why} dedicated:NoSchedule", f"node gpu2: {why} team:NoSchedule"]
    chosen = rendered({"kubernetes": {"feature_discovery": False, "node_selector": {"gpu": "yes"}}})
    assert put(api, chosen).waiting == (), "a pool of a cloud may have no node for now"


def test_a_policy_that_denies_the_plugins_pods_is_named_once_and_no_node_is_blamed(server: ApiServer, api: Api) -> None:
    for name in ("gpu1", "gpu2"):
        server.put(node(name, allocatable={"nvidia.com/gpu": "0"}))
    spec = rendered({"kubernetes": {"feature_discovery": False}}, gpu1={}, gpu2={})
    put(api, spec)
    server.controllers.clear()
    wanted = {"desiredNumberScheduled": 2, "updatedNumberScheduled": 0, "numberAvailable": 0}
    server.edit("DaemonSet", "nvidia-device-plugin", "gpunode", lambda item: item["status"].update(wanted))
    policy = 'pods "x" is forbidden: ValidatingAdmissionPolicy no-host-paths denied request'
    server.put({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "gpunode"}, "type": "Warning",
        "reason": "FailedCreate", "message": policy, "lastTimestamp": "2026",
        "involvedObject": {"kind": "DaemonSet", "name": "nvidia-device-plugin"},
    })  # fmt: skip
    said: list[str] = []
    (text,) = apply(api, spec, timeout=2, notify=said.append).waiting
    assert text == f"{PLUGIN} is not ready: 0 of 2 pods; FailedCreate: {policy}"
    assert "node gpu" not in "".join(said)


CUT: dict[str, Any] = {
    "sharing": {"strategy": "mig", "mig": {"strategy": "mixed", "profiles": {"1g.10gb": 7}}},
    "kubernetes": {"feature_discovery": False},
}


# by the sharing of before and of now what a pod holds → whether apply is refused
SWITCHES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, str], str]] = [
    ("whole to shares of the same name", {}, {"strategy": "time-slicing", "replicas": 5}, {"nvidia.com/gpu": "1"}, "1"),
    ("whole to MIG", {}, CUT["sharing"], {"nvidia.com/gpu": "2"}, "2"),
    ("another layout", CUT["sharing"], {"strategy": "mig", "mig": {"strategy": "mixed", "profiles": {"3g.40gb": 2}}},
     {"nvidia.com/mig-1g.10gb": "1"}, "1"),
    ("by memory", {}, {"strategy": "gpushare"}, {"nvidia.com/gpu": "1"}, "1"),
    ("leaves its pool", {}, {}, {"nvidia.com/gpu": "2"}, "2"),
    ("leaves its pool, and holds none", {}, {}, {"cpu": "2"}, ""),
    ("leaves its pool of instances", CUT["sharing"], CUT["sharing"], {"nvidia.com/mig-1g.10gb": "1"}, "1"),
    ("nothing is changed", CUT["sharing"], CUT["sharing"], {"nvidia.com/mig-1g.10gb": "1"}, ""),
    ("no GPU is held", {}, {"strategy": "time-slicing", "replicas": 5}, {"cpu": "1"}, ""),
]  # fmt: skip


@over(SWITCHES, name=lambda row: row[0])
def test_pods_that_hold_what_their_node_would_share_otherwise_are_named_and_nothing_is_changed(
    name: str, before: dict[str, Any], now: dict[str, Any], holds: dict[str, str], refused: str
) -> None:
    server = ApiServer()
    try:
        with TemporaryDirectory() as folder:
            api = quick(connect(str(server.kubeconfig(Path(folder) / "k"))))
            server.put(node("gpu1", allocatable={"nvidia.com/gpu": "2", "nvidia.com/mig-1g.10gb": "7"}))
            server.put(node("gpu2", address="10.0.0.2"))
            apply(api, rendered({"sharing": before}, gpu1={}, gpu2={}), wait=False, notify=silent)
            holder = {"name": "c", "resources": {"limits": holds}}
            server.put({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "team", "uid": "u"},
                "spec": {"nodeName": "gpu1", "containers": [holder]}, "status": {"phase": "Running"},
            })  # fmt: skip
            server.requests.clear()
            leaves = name.startswith("leaves")
            what = rendered({"sharing": now}, gpu2={}, **({} if leaves else {"gpu1": {}}))
            tried = apply(api, what, dry_run=True, notify=silent)
            assert mutating(server) == []
            applied = apply(api, what, wait=False, notify=silent)
            changed = mutating(server)
    finally:
        server.close()
    (resource,) = holds
    how = "no more" if leaves else "otherwise"
    text = f"node gpu1: its GPUs would be shared {how}, and pods hold them: team/a ({refused} {resource})"
    assert [problem.what for problem in applied.problems] == [text] * bool(refused)
    assert tried.problems == applied.problems
    assert bool(changed) != bool(refused)


def test_status_says_why_pods_are_not_there(server: ApiServer, api: Api) -> None:
    put(api, rendered({"kubernetes": {"feature_discovery": False}}))
    assert unready_workloads(api) == ((), ())
    server.controllers.clear()

    def become(item: dict[str, Any]) -> None:
        item["status"] = {"observedGeneration": 9, "desiredNumberScheduled": 2}

    server.edit("DaemonSet", "nvidia-device-plugin", "gpunode", become)
    server.put({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "gpunode"}, "type": "Warning",
        "reason": "FailedCreate", "message": "pods is forbidden: exceeded quota: none",
        "involvedObject": {"kind": "DaemonSet", "name": "nvidia-device-plugin"},
    })  # fmt: skip
    why = f"{PLUGIN}: 0 of 2 pods; FailedCreate: pods is forbidden: exceeded quota: none"
    found = replace(read_usage(api), unready=unready_workloads(api)[0])
    assert found.unready == (why,)
    assert f"Not ready:\n  {why}" in usage_text(found) and usage_data(found)["unready"] == [why]


def test_status_names_the_workloads_that_it_may_not_read(server: ApiServer, api: Api) -> None:
    put(api, rendered({"kubernetes": {"feature_discovery": False}}))
    server.faults.append(Fault("^GET /apis/apps/v1/daemonsets", 403, "Forbidden", "daemonsets.apps is forbidden"))
    ready, unread = unready_workloads(api)
    assert (ready, [("daemonsets" in line, "(fix: " in line) for line in unread]) == ((), [(True, True)])


@pytest.mark.parametrize(("second", "said"), [(2, "FailedCreate: pods is forbidden"), (4, "")])
def test_what_denied_pods_until_one_was_created_denies_none_now(
    second: int, said: str, server: ApiServer, api: Api
) -> None:
    for reason, kind, at in (("FailedCreate", "Warning", 3), ("SuccessfulCreate", "Normal", second)):
        server.put({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": reason.lower(), "namespace": "gpunode"},
            "type": kind, "reason": reason, "message": "pods is forbidden",
            "lastTimestamp": f"2026-11-29T10:00:0{at}Z",
            "involvedObject": {"kind": "DaemonSet", "name": "nvidia-device-plugin"},
        })  # fmt: skip
    assert creation_denied(api, ObjectKey("apps/v1", "DaemonSet", "gpunode", "nvidia-device-plugin"), {}) == said
