"""Node Feature Discovery as objects: applied, refused beside another, and as its own chart has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from api_server import ApiServer
from kube_cases import CASES
from kube_cluster import foreign, hows, mutating, put, rendered
from rows import over

from gpunode.core.knowledge.kubernetes import Server
from gpunode.core.spec import parse_spec
from gpunode.edge.load import load_kube_knowledge
from gpunode.kube.core import cluster_of, render
from gpunode.kube.edge.apply import remove
from gpunode.kube.edge.client import Api

pytest_plugins = ("kube_fixtures",)

OBJECTS: dict[str, Any] = {"kubernetes": {"node_feature_discovery": True, "node_feature_discovery_install": "manifest"}}
CHART: dict[str, Any] = {"kubernetes": {"node_feature_discovery": True}}
WORKLOADS = ("nfd-master", "nfd-worker", "nfd-gc")


def workloads(objects: Any) -> dict[str, dict[str, Any]]:
    return {
        item["metadata"]["name"]: item["spec"]["template"]["spec"]
        for item in objects
        if item["kind"] in ("Deployment", "DaemonSet") and item["metadata"]["name"].startswith("nfd-")
    }


def test_it_is_applied_before_what_it_serves_and_removed_again(server: ApiServer, api: Api) -> None:
    what = rendered(OBJECTS)
    assert list(what.releases) == []
    done = hows(put(api, what))
    keys = list(done)
    crd = "CustomResourceDefinition nodefeatures.nfd.k8s-sigs.io"
    assert keys.index(crd) < keys.index("Deployment gpunode/nfd-master")
    assert set(hows(put(api, what)).values()) == {"unchanged"}
    assert hows(remove(api, "gpunode", notify=lambda _: None))[crd] == "deleted"


@over([("manifest", {}), ("helm", {}), ("operator", {})], name=lambda row: row[0])
def test_it_comes_once_whoever_installs_the_rest(install: str, _more: dict[str, Any]) -> None:
    """As objects or by a chart, never by both."""
    by_objects = rendered({"kubernetes": {**OBJECTS["kubernetes"], "install": install}})
    by_chart = rendered({"kubernetes": {**CHART["kubernetes"], "install": install}})
    assert set(workloads(by_objects.objects)) == set(WORKLOADS)
    assert not workloads(by_chart.objects)
    values = {release.name: release.values for release in by_objects.releases}
    assert "node-feature-discovery" not in values
    assert all(value["nfd"]["enabled"] is False for value in values.values() if "nfd" in value)
    charts = {release.name: release.values for release in by_chart.releases}
    assert "node-feature-discovery" in charts or any(v.get("nfd", {}).get("enabled") for v in charts.values())


def test_another_one_in_the_cluster_is_not_fought(server: ApiServer, api: Api) -> None:
    worker = {"containers": [{"name": "worker", "command": ["nfd-worker"], "image": "nfd:1"}]}
    server.put(foreign("DaemonSet", "apps/v1", "nfd", "nfd", spec={"template": {"spec": worker}}), "helm")
    (problem,) = put(api, rendered(OBJECTS)).problems
    assert problem.what.startswith("Node Feature Discovery runs here already: DaemonSet nfd/nfd, helm")
    assert mutating(server) == []
    assert put(api, rendered()).problems == ()


def test_servers_before_its_own_oldest_are_refused() -> None:
    known = load_kube_knowledge()
    chart = replace(known.charts["node-feature-discovery"], kube=Server(1, 30))
    newer = replace(known, charts={**known.charts, "node-feature-discovery": chart})
    (problem,) = render(cluster_of({"": parse_spec(OBJECTS)}, "1.29", newer)).problems
    assert problem.what == "Node Feature Discovery 0.19.0 needs Kubernetes 1.30, this is 1.29"


def test_what_gpu_feature_discovery_writes_is_what_the_worker_reads_and_the_master_publishes() -> None:
    what = rendered(OBJECTS)
    found = workloads(what.objects)
    discovery = next(i for i in what.objects if i["metadata"]["name"] == "gpu-feature-discovery")
    writes = {v["hostPath"]["path"] for v in discovery["spec"]["template"]["spec"]["volumes"] if "hostPath" in v}
    reads = {v["hostPath"]["path"] for v in found["nfd-worker"]["volumes"] if v["name"] == "features"}
    assert reads <= writes
    assert "-extra-label-ns=nvidia.com" in found["nfd-master"]["containers"][0]["args"]
    assert not any("NodeFeature" in note.what or "turns into labels" in note.what for note in what.notes)


def test_pods_select_by_its_labels_and_its_worker_by_none() -> None:
    """A worker that waited for the label that it makes would never start."""
    chosen = {"feature.node.kubernetes.io/pci-10de.present": "true"}
    what = rendered({"kubernetes": {**OBJECTS["kubernetes"], "node_selector": chosen}})
    assert all("nodeSelector" not in spec for spec in workloads(what.objects).values())


def test_images_and_secrets_are_those_of_the_private_registry() -> None:
    case = next(case for case in CASES if case.folder.name == "discovery")
    for spec in workloads(case.render().objects).values():
        image = spec["containers"][0]["image"]
        assert image == "registry.lan:5000/gpu/nfd/node-feature-discovery:v0.19.0"
        assert spec["imagePullSecrets"] == [{"name": "registry-lan"}]
