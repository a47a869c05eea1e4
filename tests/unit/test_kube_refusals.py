"""gpunode kube apply: what is refused before anything is changed, and what is no obstacle."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from api_objects import DRA, OPERATOR
from api_server import ApiServer, Fault
from kube_cluster import foreign, hows, inventory, mutating, node, put, quick, rendered, silent
from urllib3.util.ssl_ import create_urllib3_context

from gpunode.core.errors import Exit, RefusedError
from gpunode.kube.core.cluster import required_affinity
from gpunode.kube.edge.apply import remove
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.kubeconfig import connect
from gpunode.kube.edge.verify import verify

pytest_plugins = ("kube_fixtures",)

PLUGIN = "DaemonSet gpunode/nvidia-device-plugin"


REFUSED = {
    "a foreign RuntimeClass of the same name": (
        [foreign("RuntimeClass", "node.k8s.io/v1", "nvidia", handler="nvidia-legacy")], {},
        "RuntimeClass nvidia is there already, and is not gpunode's but somebody's",
    ),
    "another device plugin": (
        [foreign("DaemonSet", "apps/v1", "nvidia-device-plugin-daemonset", "kube-system", spec={"template": {"spec": {
            "containers": [{"name": "ctr", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.14.0"}]}}})], {},
        "DaemonSet kube-system/nvidia-device-plugin-daemonset hands out GPUs already",
    ),
    "the GPU Operator": (
        [foreign("ClusterPolicy", "nvidia.com/v1", "cluster-policy", spec={})], {},
        "NVIDIA's GPU Operator runs here (ClusterPolicy cluster-policy)",
    ),
    "a spec for another version": (
        [], {"kubernetes": {"server_version": "1.31"}}, "kubernetes.server_version is 1.31, and http",
    ),
    "a kind that the server does not serve": (
        [], {}, "the server does not serve RuntimeClass of node.k8s.io/v1",
    ),
    "an object that is still being deleted": (
        [{"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": "gpunode", "deletionTimestamp": "2026-11-22T00:00:00Z"}}], {},
        "Namespace gpunode is being deleted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_changed(case: str, tmp_path: Path) -> None:
    objects, spec, what = REFUSED[case]
    server = ApiServer(resources=OPERATOR)
    if case == "a kind that the server does not serve":
        del server.resources["node.k8s.io/v1"]
    try:
        for item in objects:
            server.put(item)
        api = quick(connect(str(server.kubeconfig(tmp_path / "kubeconfig"))))
        applied = put(api, rendered(spec, version="1.34"))
        assert applied.exit == Exit.REFUSED
        assert [p.what for p in applied.problems if what in p.what] == [p.what for p in applied.problems]
        assert applied.problems and all(p.fix for p in applied.problems)
        if case == "a spec for another version":
            with pytest.raises(RefusedError, match=what):
                verify(api, rendered(spec, version="1.34"), notify=print)
        assert mutating(server) == []
        assert server.unexpected == []
    finally:
        server.close()


@pytest.mark.parametrize("operator", ["NotIn", "In"])
def test_another_device_plugin_is_let_be_where_its_affinity_keeps_it_off_our_nodes(
    operator: str, server: ApiServer, api: Api
) -> None:
    server.put(node("gpu1", labels={"team": "ml"}, allocatable={"nvidia.com/gpu": "1"}))
    theirs = {
        "containers": [{"name": "ctr", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.14.0"}],
        "affinity": required_affinity({"matchExpressions": [{"key": "team", "operator": operator, "values": ["ml"]}]}),
    }
    server.put(foreign("DaemonSet", "apps/v1", "theirs", "web", spec={"template": {"spec": theirs}}))
    problems = put(api, rendered({}, gpu1={})).problems
    assert ["hands out GPUs already" in one.what for one in problems] == [True] * (operator == "In")


def node_of(engine: str, kubelet: str = "v1.34.1", name: str = "gpu1") -> dict[str, Any]:
    found = node(name)
    found["status"]["nodeInfo"] = {"containerRuntimeVersion": engine, "kubeletVersion": kubelet}
    return found


CDI: dict[str, tuple[str, str, list[str], str]] = {
    "an engine before CDI": ("containerd://1.6.20~ds1", "v1.34.1", ["cdi-cri"], "containerd 1.6.20~ds1 has no CDI"),
    "annotations, too": ("containerd://1.6.20", "v1.34.1", ["cdi-annotations"], "containerd 1.6.20 has no CDI"),
    "an old kubelet": ("containerd://1.7.24", "v1.27.3", ["cdi-cri"], "its kubelet v1.27.3 passes no CDI devices on"),
    "an old kubelet passes annotations on": ("containerd://1.7.24", "v1.27.3", ["cdi-annotations"], ""),
    "a variable beside it": ("containerd://1.6.20", "v1.34.1", ["cdi-cri", "envvar"], ""),
    "an engine with CDI": ("containerd://2.1.4", "v1.34.1", ["cdi-cri"], ""),
    "an engine that is not known": ("youki://0.1", "v1.34.1", ["cdi-cri"], ""),
}


@pytest.mark.parametrize("hosts", [{"gpu1": {}}, {}], ids=["inventory", "no inventory"])
@pytest.mark.parametrize("case", CDI)
def test_gpus_by_cdi_are_refused_where_a_node_has_none(
    case: str, hosts: dict[str, Any], server: ApiServer, api: Api
) -> None:
    """Nothing tells later: containers get no GPUs, or all that their image asks for."""
    engine, kubelet, strategies, why = CDI[case]
    server.put(node_of(engine, kubelet))
    spec = {"kubernetes": {"device_plugin": {"device_list_strategy": strategies}}}
    problems = [problem.what for problem in put(api, rendered(spec, **hosts)).problems]
    assert len(problems) == bool(why)
    assert all(f"takes CDI, and gpu1 cannot: {why}" in what for what in problems)


def test_of_unknown_nodes_one_with_cdi_is_enough(server: ApiServer, api: Api) -> None:
    server.put(node_of("containerd://1.6.20"))
    server.put(node_of("containerd://1.7.24", name="gpu2"))
    spec = {"kubernetes": {"device_plugin": {"device_list_strategy": ["cdi-cri"]}}}
    assert put(api, rendered(spec)).problems == ()
    assert len(put(api, rendered(spec, gpu1={}, gpu2={})).problems) == 1


def test_hosts_that_are_no_nodes_tell_of_the_wrong_context(server: ApiServer, api: Api) -> None:
    server.put(node("web1"))
    applied = put(api, rendered({"kubernetes": {"node_selector": {"gpu": "true"}}}, gpu1={}, gpu2={}))
    (problem,) = applied.problems
    assert problem.what == "gpu1, gpu2 of the inventory: no node of this cluster has that name or address"
    assert "--context" in problem.fix and "web1" in problem.fix


def test_all_missing_rights_are_reported_at_once(server: ApiServer, api: Api) -> None:
    server.denied += [r"^(create|patch) runtimeclasses", r"^patch daemonsets gpunode"]
    applied = put(api, rendered())
    (problem,) = applied.problems
    assert problem.what == (
        "here may not create runtimeclasses.node.k8s.io; patch runtimeclasses.node.k8s.io; "
        "patch daemonsets.apps in gpunode"
    )
    assert mutating(server) == []


def test_who_may_not_read_configmaps_sees_all_that_is_lacking(server: ApiServer, api: Api) -> None:
    server.faults.append(Fault("^GET .*/configmaps", 403, "Forbidden", "configmaps is forbidden", times=99))
    server.denied += ["^get configmaps", "^create daemonsets"]
    (problem,) = put(api, rendered()).problems
    assert "get configmaps in gpunode" in problem.what and "create daemonsets.apps in gpunode" in problem.what
    (problem,) = remove(api, "gpunode", notify=silent).problems
    assert problem.what == "here may not get configmaps in gpunode"
    assert mutating(server) == []


@pytest.mark.parametrize(
    ("status", "text", "fix"),
    [
        (400, 'admission webhook "policy.lan" denied the request: no hostPath', "a policy of this cluster forbids it"),
        (500, 'failed calling webhook "policy.lan": connection refused', "the webhook does not answer"),
    ],
)
def test_what_a_webhook_refuses_is_not_reported_as_changed(
    status: int, text: str, fix: str, server: ApiServer, api: Api
) -> None:
    server.faults.append(Fault("^PATCH .*/runtimeclasses/.*dryRun", status, "Denied", text, times=99))
    applied = put(api, rendered())
    (problem,) = applied.problems
    assert text in problem.what and fix in problem.fix
    assert applied.changes == () and mutating(server) == []


def without_amounts(item: dict[str, Any]) -> None:
    """What kube-apiserver does to a claim while the gate DRAConsumableCapacity is off."""
    if item["kind"] == "ResourceClaim":
        for request in item["spec"]["devices"]["requests"]:
            request["exactly"].pop("capacity", None)


def test_shares_of_memory_are_refused_where_the_server_drops_the_amounts(server: ApiServer, api: Api) -> None:
    spec = {"sharing": {"strategy": "dra", "dra": {"shares": "memory"}}}
    server.resources |= DRA
    assert put(api, rendered(spec)).problems == ()
    server.drop = without_amounts
    (problem,) = put(api, rendered(spec)).problems
    assert problem.what.endswith("its feature gate DRAConsumableCapacity is off")
    assert server.names("ResourceClaim") == []  # asked by a dry run


def test_shares_of_memory_are_refused_where_the_server_has_no_claims(server: ApiServer, api: Api) -> None:
    (problem,) = put(api, rendered({"sharing": {"strategy": "dra", "dra": {"shares": "memory"}}})).problems
    assert problem.what == "the server does not serve ResourceClaim of resource.k8s.io/v1"


def test_who_may_make_no_claims_is_not_asked_about_them(server: ApiServer, api: Api) -> None:
    server.resources |= DRA
    server.faults.append(Fault("^PATCH .*/resourceclaims/", 403, "Forbidden", "resourceclaims is forbidden", times=9))
    spec = {"sharing": {"strategy": "dra", "dra": {"shares": "memory"}}}
    assert put(api, rendered(spec)).problems == ()


def test_dra_next_to_a_device_plugin_of_somebody_else_is_refused(server: ApiServer, api: Api) -> None:
    server.resources["resource.k8s.io/v1"] = DRA["resource.k8s.io/v1"]
    server.put(node("gpu1"))
    server.put(other_plugin("p"))
    (problem,) = put(api, rendered({"sharing": {"strategy": "dra"}}, gpu1={})).problems
    assert "DaemonSet kube-system/p hands out GPUs already" in problem.what


def test_what_the_server_finds_invalid_stops_the_rest(server: ApiServer, api: Api) -> None:
    server.reject["RuntimeClass nvidia"] = "handler: Invalid value: field is immutable"
    applied = put(api, rendered())
    (problem,) = applied.problems
    assert "RuntimeClass nvidia: the API server refuses" in problem.what
    assert problem.fix == "it cannot be changed in place: delete RuntimeClass nvidia, and apply again"
    assert mutating(server) == []


def test_a_foreign_object_that_is_as_needed_is_used_and_left_alone(server: ApiServer, api: Api) -> None:
    k3s = foreign("RuntimeClass", "node.k8s.io/v1", "nvidia", handler="nvidia")
    server.put(k3s, "deploy@k3s")
    applied = put(api, rendered())
    assert hows(applied)["RuntimeClass nvidia"] == "kept"
    live = server.get("RuntimeClass", "nvidia")
    assert live and "labels" not in live["metadata"]
    assert "RuntimeClass nvidia" not in inventory(server)
    remove(api, "gpunode", notify=silent)
    assert server.names("RuntimeClass") == ["nvidia"]


def other_plugin(name: str, **more: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "x", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"}], **more.pop("pod", {})}
    item = foreign("DaemonSet", "apps/v1", name, "kube-system", spec={"template": {"spec": pod}}, **more)
    return item | {"metadata": item["metadata"] | {"annotations": more.get("annotations", {})}}


# Another device plugin that does not meet ours: it, and the spec
APART = {
    "on other nodes": (other_plugin("p", pod={"nodeSelector": {"gpu": "a100"}}), {}),
    "of a chart that the spec asks for": (
        other_plugin("dra-driver-nvidia-gpu-kubelet-plugin",
                     annotations={"meta.helm.sh/release-name": "dra-driver-nvidia-gpu"}),
        {"sharing": {"strategy": "dra"}}),
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_a_device_plugin_on_other_nodes_is_no_obstacle(case: str, server: ApiServer, api: Api) -> None:
    plugin, second = APART[case]
    server.resources["resource.k8s.io/v1"] = DRA["resource.k8s.io/v1"]
    server.put(node("gpu1"))
    server.put(node("gpu2", address="10.0.0.2", labels={"gpu": "a100"}))
    server.put(plugin)
    pools = {"gpu1": {"kubernetes": {"pool": "one"}}, "gpu2": {"kubernetes": {"pool": "two"}, **second}}
    chosen = pools if second else {"gpu1": pools["gpu1"]}
    assert put(api, rendered({}, **chosen)).problems == ()


def test_a_device_plugin_that_runs_nowhere_is_no_obstacle(server: ApiServer, api: Api) -> None:
    plugin = other_plugin("p")
    server.controllers.clear()
    server.put({**plugin, "status": {"desiredNumberScheduled": 0}})
    assert put(api, rendered(), wait=False).problems == ()


def test_certificates_are_verified_but_not_as_strictly_as_python_3_13_would(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates of many clusters have no Authority Key Identifier: kubectl takes them, Python 3.13 does not."""

    def strict(**options: Any) -> ssl.SSLContext:
        context = create_urllib3_context(**options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr("urllib3.util.ssl_.create_urllib3_context", strict)
    api = connect(str(server.kubeconfig(tmp_path / "kubeconfig")))
    context = api._client.rest_client.pool_manager.connection_pool_kw["ssl_context"]
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.verify_mode == ssl.CERT_REQUIRED


def test_a_tightened_pod_security_is_not_overruled(server: ApiServer, api: Api) -> None:
    put(api, rendered())

    def tighten(item: dict[str, Any]) -> None:
        item["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "restricted"

    server.edit("Namespace", "gpunode", "", tighten)
    before = mutating(server)
    for dry_run in (True, False):
        (problem,) = put(api, rendered(), dry_run=dry_run).problems
        assert "Namespace gpunode is labelled pod-security.kubernetes.io/enforce=restricted" in problem.what
    assert mutating(server) == before
