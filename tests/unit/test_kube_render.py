"""What a cluster gets: recorded files, objects that every supported server takes, and what is refused.

GPUNODE_WRITE_CASES=1 writes tests/cases/kube/CASE/expected/ again, to be read before it is committed.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
import yaml
from kube_cases import CASES, KNOWN, Case, complaint
from kube_cluster import rendered

from gpunode.core.spec import parse_spec
from gpunode.core.yaml_text import yaml_text
from gpunode.kube.core import cluster_of, render
from gpunode.kube.core.render import ORDER, Rendered
from gpunode.kube.core.render.files import files_of

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder.name)


@by_name
def test_a_case_gives_the_recorded_files(case: Case) -> None:
    files = files_of(case.render())
    folder = case.folder / "expected"
    if os.environ.get("GPUNODE_WRITE_CASES"):
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            path.unlink()
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    recorded = {str(p.relative_to(folder)): p.read_text(encoding="utf-8") for p in folder.rglob("*") if p.is_file()}
    assert files == recorded


@by_name
def test_every_object_fits_the_schema_of_every_server(case: Case) -> None:
    wrong = []
    for server in case.servers:
        rendered = case.render(server)
        assert rendered.problems == ()
        wrong += [reported for item in (*rendered.objects, *rendered.examples) if (reported := complaint(item, server))]
    assert wrong == []


@by_name
def test_objects_come_after_what_they_need_and_say_whose_they_are(case: Case) -> None:
    objects = case.render().objects
    kinds = [ORDER.index(item["kind"]) for item in objects]
    assert kinds == sorted(kinds)
    assert {item["metadata"]["labels"]["app.kubernetes.io/managed-by"] for item in objects} == {"gpunode"}
    keys = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects]
    assert len(keys) == len(set(keys))


@by_name
def test_files_hold_the_objects_and_nothing_else(case: Case) -> None:
    rendered = case.render()
    texts = {name: text for name, text in files_of(rendered).items() if "/" not in name and name.endswith(".yml")}
    read = [item for name in sorted(texts) for item in yaml.safe_load_all(texts[name])]
    key = str
    assert sorted(read, key=key) == sorted(rendered.objects, key=key)


POOLS = {
    "whole": {"kubernetes": {"pool": "whole"}},
    "sliced": {"kubernetes": {"pool": "sliced"}, "sharing": {"strategy": "time-slicing", "replicas": 4}},
    "mps": {"kubernetes": {"pool": "mps"}, "sharing": {"strategy": "mps", "replicas": 2}},
    "memory": {"kubernetes": {"pool": "memory"}, "sharing": {"strategy": "gpushare"}},
}


def _pods_on(objects: Any, labels: dict[str, str]) -> dict[str, str]:
    """The DaemonSets whose pods run on a node with these labels, each with the pool's file that it reads."""

    def fits(one: dict[str, Any]) -> bool:
        return (labels.get(one["key"]) in one["values"]) is (one["operator"] == "In")

    found = {}
    for item in objects:
        if item["kind"] != "DaemonSet" or not item["metadata"]["name"].startswith(("nvidia-", "gpu-", "mps-")):
            continue
        spec = item["spec"]["template"]["spec"]
        rules = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
        terms = rules["nodeSelectorTerms"] if rules else [{"matchExpressions": []}]
        if any(all(map(fits, term["matchExpressions"])) for term in terms):
            (config,) = [one["configMap"] for one in spec["volumes"] if "configMap" in one]
            found[item["metadata"]["name"]] = config["items"][0]["key"]
    return found


@pytest.mark.parametrize(
    ("pool", "workloads"),
    [
        ("whole", {"nvidia-device-plugin-whole": "whole", "gpu-feature-discovery-whole": "whole"}),
        ("sliced", {"nvidia-device-plugin-sliced": "sliced", "gpu-feature-discovery-sliced": "sliced"}),
        (
            "mps",
            {"nvidia-device-plugin-mps": "mps", "gpu-feature-discovery-mps": "mps", "mps-control-daemon-mps": "mps"},
        ),
        ("", {}),
    ],
)
def test_a_node_has_the_pods_of_its_pool_alone(pool: str, workloads: dict[str, str]) -> None:
    labels = {"nvidia.com/device-plugin.config": pool} if pool else {}
    assert _pods_on(rendered({}, **POOLS).objects, labels) == workloads


def test_a_node_of_gpushare_has_none_of_them() -> None:
    assert _pods_on(rendered({}, **POOLS).objects, {"gpushare": "true"}) == {}


@by_name
def test_no_configuration_is_exchanged_while_a_pod_runs(case: Case) -> None:
    """config-manager makes the plugin register twice: the kubelet may lose all GPUs by that, for good."""
    for item in case.render().objects:
        spec = item["spec"]["template"]["spec"] if item["kind"] == "DaemonSet" else {}
        assert "config-manager" not in yaml.safe_dump(spec)
        assert "shareProcessNamespace" not in spec


def test_names_of_pools_that_no_object_may_have() -> None:
    names = ("A_b", "a.b", "a-b", "A" * 63)
    hosts = {f"h{n}": {"kubernetes": {"pool": name}} for n, name in enumerate(names)}
    found = [item["metadata"]["name"] for item in rendered({}, **hosts).objects if item["kind"] == "DaemonSet"]
    assert len(set(found)) == 2 * len(names)
    assert all(re.fullmatch("[a-z0-9-]{1,63}", name) for name in found)
    assert "nvidia-device-plugin-a-b" in found


@by_name
def test_what_a_service_sends_to_is_ready_when_it_answers(case: Case) -> None:
    """A pod without a probe is ready before it serves."""
    objects = case.render().objects
    for service in (item for item in objects if item["kind"] == "Service"):
        chosen = service["spec"]["selector"].items()
        served = [
            item["spec"]["template"]["spec"]
            for item in objects
            if item["kind"] in ("Deployment", "DaemonSet")
            and chosen <= item["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert [any("readinessProbe" in one for one in pod["containers"]) for pod in served] == [True]


MPS = {"sharing": {"strategy": "mps", "replicas": 4}}


def _terms(objects: Any) -> list[list[str]]:
    """Keys of the node selector terms of the MPS control daemon's pod."""
    (daemon,) = [item for item in objects if item["metadata"]["name"].startswith("mps-control-daemon")]
    affinity = daemon["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [[one["key"] for one in term["matchExpressions"]] for term in terms]


def test_unmarked_nodes_get_the_mps_daemon_where_no_pool_names_its_nodes() -> None:
    label = "nvidia.com/device-plugin.config"
    assert _terms(rendered(MPS).objects) == [[label], ["nvidia.com/mps.capable"]]
    assert _terms(rendered(MPS, a={}).objects) == [[label]]
    assert _terms(rendered({}, a=MPS, b={"kubernetes": {"pool": "other"}}).objects) == [[label]]


@pytest.mark.parametrize("how", ["inventory", "selector"])
def test_a_node_that_the_only_pool_does_not_name_gets_no_pod(how: str) -> None:
    by_label = {"kubernetes": {"pools": {"default": {"nodes": "kubernetes.io/hostname in (n1,n2)"}}}}
    objects = (rendered({}, n1={}, n2={}) if how == "inventory" else rendered(by_label)).objects
    whole = {"nvidia-device-plugin": "default", "gpu-feature-discovery": "default"}
    assert (_pods_on(objects, {}), _pods_on(objects, {"nvidia.com/device-plugin.config": "default"})) == ({}, whole)
    assert _pods_on(rendered({}).objects, {}) == whole


def test_the_mps_daemons_pod_takes_what_it_mounted_on_the_host_away() -> None:
    (daemon,) = [item for item in rendered(MPS).objects if item["metadata"]["name"] == "mps-control-daemon"]
    pod = daemon["spec"]["template"]["spec"]
    mounts, ends = pod["initContainers"][0], pod["containers"][-1]
    assert (mounts["name"], ends["name"]) == ("mount-shm", "clean-up")
    assert mounts["volumeMounts"] == ends["volumeMounts"], "what it unmounts, it unmounts on the host"


GPUSHARE = {"sharing": {"strategy": "gpushare"}}


@pytest.mark.parametrize("strategy", ["none", "gpushare"])
def test_device_plugins_are_where_every_kubelet_looks_for_them(strategy: str) -> None:
    """Its folder of them is the same with --root-dir (pluginapi.DevicePluginPath)."""
    found = rendered({"kubernetes": {"kubelet_dir": "/var/lib/k0s/kubelet"}, "sharing": {"strategy": strategy}})
    pods = [item["spec"]["template"]["spec"] for item in found.objects if item["kind"] == "DaemonSet"]
    paths = {
        volume["hostPath"]["path"] for pod in pods for volume in pod["volumes"] if volume["name"] == "device-plugins"
    }
    assert paths == {"/var/lib/kubelet/device-plugins"}


def test_the_older_role_of_control_planes_which_servers_warn_of_is_not_named() -> None:
    text = json.dumps([item for item in rendered(GPUSHARE).objects if item["kind"] == "Deployment"])
    assert text.count("node-role.kubernetes.io/control-plane") == 2 and "node-role.kubernetes.io/master" not in text


def test_the_note_on_feature_discovery_comes_with_what_renders_it_alone() -> None:
    note = "GPU Feature Discovery writes files that only Node Feature Discovery turns into labels"
    feature_discovery = {"kubernetes": {"feature_discovery": True}}
    assert note in [reason.what for reason in rendered(feature_discovery).notes]
    assert note not in [reason.what for reason in rendered({**feature_discovery, **GPUSHARE}).notes]


MEMORY = {"sharing": {"strategy": "dra", "dra": {"shares": "memory"}}}


def of_pools(server: str, **pools: dict[str, Any]) -> Rendered:
    specs = {name: parse_spec({**spec, "kubernetes": {"pool": name}}) for name, spec in pools.items()}
    return render(cluster_of(specs, server, KNOWN))


@pytest.mark.parametrize(("server", "off"), [("1.34", True), ("1.35", True), ("1.36", False), ("1.37", False)])
def test_where_shares_of_memory_are_off_by_default_a_note_says_what_turns_them_on(server: str, off: bool) -> None:
    found = of_pools(server, a=MEMORY)
    notes = {note.what: note.why for note in found.notes}
    assert found.problems == ()
    assert ("--feature-gates=DRAConsumableCapacity=true" in " ".join(notes.values())) is off
    assert "DRA counts memory, and limits no container" in notes


def test_all_pools_of_dra_share_alike() -> None:
    dra = {"sharing": {"strategy": "dra"}}
    assert of_pools("1.36", a=MEMORY, b=MEMORY, c={}).problems == ()
    (problem,) = of_pools("1.36", a=MEMORY, b=dra).problems
    assert problem.what.startswith("sharing.dra.shares is memory for some pools, and none for b: ")


@pytest.mark.parametrize("tag", ["v0.5.0", "0.5.1", "v0.5.0-rc.1", "v1.0.0", "latest", "main-2026"])
def test_a_driver_that_may_have_shares_of_memory_is_taken(tag: str) -> None:
    names = {"images": {"names": {"dra-driver": f"r.lan/dra:{tag}"}}}
    assert render(cluster_of({"": parse_spec({**MEMORY, "kubernetes": names})}, "1.36", KNOWN)).problems == ()


@pytest.mark.parametrize("text", ["y", "N", "12e4", "-1E3", ".5e1", "1.e3", "00e1", "1e3_0", "0o7", "-0O7"])
def test_a_text_that_kubectl_would_read_as_something_else_has_quotes(text: str) -> None:
    assert yaml_text({"name": text}) == f"name: '{text}'\n"


@pytest.mark.parametrize("text", ["yy", "1e", "0o9", "v1", "n1", "e4"])
def test_a_text_that_kubectl_reads_as_a_text_has_none(text: str) -> None:
    assert yaml_text({"name": text}) == f"name: {text}\n"
