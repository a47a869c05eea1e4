"""What a cluster gets: recorded files, objects that every supported server takes, and what is refused.

GPUNODE_WRITE_CASES=1 writes tests/cases/kube/CASE/expected/ again, to be read before it is committed.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import yaml
from kube_cases import CASES, KNOWN, Case, complaint
from kube_cluster import rendered
from kube_links import dangling_links, pods_in, unfed_readers

from gpunode.core.kube import cluster_of, render
from gpunode.core.kube.plain import yaml_text
from gpunode.core.kube.render import ORDER, Rendered
from gpunode.core.kube.render.files import files_of
from gpunode.core.spec import parse_spec

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


@by_name
def test_who_reads_the_link_that_config_manager_makes_mounts_what_it_points_into(case: Case) -> None:
    rendered = case.render()
    wrong = [
        f"{item['kind']} {item['metadata']['name']}: {reported}"
        for item in (*rendered.objects, *rendered.examples)
        for pod in pods_in(item)
        for reported in (*dangling_links(pod), *unfed_readers(pod))
    ]
    assert wrong == []


def test_several_pools_have_config_manager_in_every_pod_that_reads_a_configuration() -> None:
    (case,) = [case for case in CASES if case.folder.name == "six-pools"]
    managed = {
        item["metadata"]["name"]
        for item in case.render().objects
        for pod in pods_in(item)
        if any(one.get("command") == ["config-manager"] for one in pod["containers"])
    }
    assert managed == {"nvidia-device-plugin", "gpu-feature-discovery", "mps-control-daemon"}


def test_a_container_without_the_folder_behind_the_link_is_found() -> None:
    manager = {
        "name": "config-init",
        "env": [
            {"name": "CONFIG_FILE_SRCDIR", "value": "/all"},
            {"name": "CONFIG_FILE_DST", "value": "/one/config.yaml"},
        ],
        "volumeMounts": [{"name": "all", "mountPath": "/all"}, {"name": "one", "mountPath": "/one"}],
    }
    link = {"name": "one", "mountPath": "/config"}
    reads = {"name": "plugin", "env": [{"name": "CONFIG_FILE", "value": "/config/config.yaml"}]}

    def with_mounts(*mounts: dict[str, str]) -> dict[str, object]:
        return {"initContainers": [manager], "containers": [{**reads, "volumeMounts": list(mounts)}]}

    assert dangling_links(with_mounts(link, {"name": "all", "mountPath": "/all"})) == []
    assert len(dangling_links(with_mounts(link))) == 1
    assert len(dangling_links(with_mounts(link, {"name": "all", "mountPath": "/elsewhere"}))) == 1
    assert unfed_readers(with_mounts(link)) == []
    assert len(unfed_readers(with_mounts())) == 1


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
    (daemon,) = [item for item in objects if item["metadata"]["name"] == "mps-control-daemon"]
    affinity = daemon["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [[one["key"] for one in term["matchExpressions"]] for term in terms]


def test_unmarked_nodes_get_the_mps_daemon_where_their_configuration_is_mps() -> None:
    label = "nvidia.com/device-plugin.config"
    assert _terms(rendered(MPS).objects) == [[label], ["nvidia.com/mps.capable"]]
    mps = MPS | {"kubernetes": {"pool": "mps"}}
    assert _terms(rendered({}, a={}, b=mps).objects) == [[label]], "they get the pool default, which has whole GPUs"
    other = {"kubernetes": {"pool": "other"}}
    assert _terms(rendered({}, a=MPS, b=other).objects) == [[label], ["nvidia.com/mps.capable", label]]


def test_the_mps_daemons_pod_takes_what_it_mounted_on_the_host_away() -> None:
    (daemon,) = [item for item in rendered(MPS).objects if item["metadata"]["name"] == "mps-control-daemon"]
    pod = daemon["spec"]["template"]["spec"]
    mounts, ends = pod["initContainers"][0], pod["containers"][-1]
    assert (mounts["name"], ends["name"]) == ("mount-shm", "clean-up")
    assert mounts["volumeMounts"] == ends["volumeMounts"], "what it unmounts, it unmounts on the host"


GPUSHARE = {"sharing": {"strategy": "gpushare"}}


@pytest.mark.parametrize(("version", "names"), [("1.24", 2), ("1.34", 1)])
def test_servers_that_warn_of_the_older_role_get_the_newer_alone(version: str, names: int) -> None:
    text = json.dumps([item for item in rendered(GPUSHARE, version).objects if item["kind"] == "Deployment"])
    assert text.count("node-role.kubernetes.io/") == 2 * names


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
    assert "DRA counts memory and limits nobody" in notes


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
