"""NVIDIA's MIG manager: it gets our layouts, nodes the label that names one, and nobody else cuts the same GPUs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import yaml
from api_server import ApiServer, workloads_become_ready
from kube_cases import CASES
from kube_cluster import foreign, mutating, node, put, quick, rendered
from rows import over

from gpunode.kube.core.checks.preflight import with_nodes
from gpunode.kube.core.cluster import CLIENT_LABEL, MIG_LABEL, MIG_STATE, POOL_LABEL
from gpunode.kube.core.judge import findings
from gpunode.kube.core.marks import left_over
from gpunode.kube.core.render import render
from gpunode.kube.edge.apply import remove
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.kubeconfig import connect
from gpunode.kube.edge.reading import read
from gpunode.kube.edge.verify import ProofOptions, verify

pytest_plugins = ("kube_fixtures",)

CUT: dict[str, Any] = {"strategy": "mig", "mig": {"manager": "mig-manager", "profiles": {"1g.10gb": 7}}}
WHOLE: dict[str, Any] = {"strategy": "none", "mig": {"manager": "mig-manager", "profiles": {"1g.10gb": 0}}}


def pool(**sharing: Any) -> dict[str, Any]:
    return {"kubernetes": {"pool": "small"}, "sharing": sharing}


def labels(server: ApiServer, name: str = "n1") -> dict[str, str]:
    found = server.get("Node", name)
    assert found is not None
    return dict(found["metadata"].get("labels", {}))


def gpu_node(**given: str) -> dict[str, Any]:
    return node("n1", labels=given, allocatable={"nvidia.com/gpu": "7"})


@over([None, "all-disabled"], name=str)
def test_a_node_gets_the_label_of_its_pool_whoever_set_it_first(first: str | None) -> None:
    """The GPU Operator gives every node all-disabled, by a field manager of its own."""
    server, api = cluster()
    try:
        server.put(gpu_node())
        if first:
            put_label(server, first)
        what = rendered(pool(**CUT), n1={})
        rehearsed = put(api, what, dry_run=True)
        assert rehearsed.problems == ()
        assert labels(server).get(MIG_LABEL) == first
        assert f"+    {MIG_LABEL}: small" in next(c.diff for c in rehearsed.changes if c.key.kind == "Node")
        put(api, what, wait=False)
        assert (labels(server)[MIG_LABEL], labels(server)[CLIENT_LABEL]) == ("small", "true")
        assert {change.how for change in put(api, what).changes} == {"unchanged"}
        put(api, rendered(pool(**WHOLE), n1={}), wait=False)
        assert labels(server)[MIG_LABEL] == "all-disabled"
        put(api, rendered(pool(strategy="none"), n1={}), wait=False)
        assert {MIG_LABEL, CLIENT_LABEL} & set(labels(server)) == set()
        assert {change.how for change in put(api, rendered(pool(strategy="none"), n1={})).changes} == {"unchanged"}
        assert server.unexpected == []
    finally:
        server.close()


def cluster() -> tuple[ApiServer, Api]:
    server = ApiServer()
    server.controllers.append(workloads_become_ready)
    return server, quick(connect(str(server.kubeconfig(Path(mkdtemp()) / "k")), timeout=2))


def put_label(server: ApiServer, value: str) -> None:
    """As the operator does: a field of its own."""
    server.edit("Node", "n1", "", lambda item: item["metadata"]["labels"].update({MIG_LABEL: value}))
    key = next(key for key in server.objects if key[1] == "nodes")
    server.managers.setdefault(key, {})["gpu-operator"] = {("metadata", "labels", MIG_LABEL)}


def test_a_node_is_labelled_when_the_managers_have_its_layout(server: ApiServer, api: Api) -> None:
    """A manager that does not know the layout fails, and waits for another label."""
    server.put(gpu_node())
    put(api, rendered(pool(**CUT), n1={}), wait=False)
    order = [line.partition("?")[0] for line in mutating(server) if "mig-layouts" in line or "/nodes/" in line]
    assert order == ["PATCH /api/v1/namespaces/gpunode/configmaps/mig-layouts", "PATCH /api/v1/nodes/n1"]
    assert api.pauses.count(90.0) == 1  # type: ignore[attr-defined]
    other = {**CUT, "mig": {**CUT["mig"], "profiles": {"1g.10gb": 6}}}
    put(api, rendered(pool(**other), n1={}), wait=False)  # its label stays
    put(api, rendered(pool(**other), n1={}), wait=False)
    assert api.pauses.count(90.0) == 1  # type: ignore[attr-defined]


def test_what_remove_leaves_has_no_label_of_ours(server: ApiServer, api: Api) -> None:
    server.put(gpu_node())
    put_label(server, "all-disabled")
    put(api, rendered(pool(**CUT), n1={}), wait=False)
    remove(api, "gpunode", notify=lambda _: None)
    assert {MIG_LABEL, CLIENT_LABEL} & set(labels(server)) == set()


def test_our_pods_make_room_for_the_manager() -> None:
    sets = {i["metadata"]["name"]: i for i in rendered(pool(**CUT)).objects if i["kind"] == "DaemonSet"}
    chosen = {name: CLIENT_LABEL in i["spec"]["template"]["spec"].get("nodeSelector", {}) for name, i in sets.items()}
    assert chosen == {"nvidia-device-plugin": True, "gpu-feature-discovery": True}


def test_the_gpu_operator_gets_the_layouts_as_values() -> None:
    spec = {**pool(**CUT), "kubernetes": {"pool": "small", "install": "operator", "images": {"registry": "r.lan"}}}
    what = rendered(spec, n1={})
    assert what.problems == ()
    values = what.releases[0].values["migManager"]
    assert (values["enabled"], values["image"], values["config"]["name"]) == (True, "k8s-mig-manager", "mig-layouts")
    assert list(yaml.safe_load(values["config"]["data"]["config.yaml"])["mig-configs"]) == ["all-disabled", "small"]
    assert what.nodes[0].labels == {POOL_LABEL: "small", MIG_LABEL: "small"}
    assert rendered({"kubernetes": {"install": "operator"}}).releases[0].values["migManager"] == {"enabled": False}


MANAGER = {"containers": [{"name": "m", "image": "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.15.0"}]}


@over([("gpunode", 1), ("mig-manager", 0)], name=lambda row: row[0])
def test_a_manager_is_refused_where_hosts_cut_their_gpus(manager: str, problems: int) -> None:
    server, api = cluster()
    try:
        server.put(gpu_node())
        server.put(foreign("DaemonSet", "apps/v1", "mig", "nv", spec={"template": {"spec": MANAGER}}), "helm")
        mig = {"manager": manager, "profiles": {"1g.10gb": 7}}
        found = put(api, rendered(pool(strategy="mig", mig=mig), n1={}), wait=False).problems
        assert len(found) == problems
        if problems:
            assert found[0].what.endswith("and gpunode cuts the GPUs of pool small on the hosts")
            assert mutating(server) == []
    finally:
        server.close()


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("small", {**CUT, "mig": {**CUT["mig"], "gpus": {"1": {}}}}, "cannot say «the others»"),
    ("all-disabled", CUT, "a pool is named all-disabled"),
]


@over(REFUSED, name=lambda row: row[0])
def test_what_the_managers_file_cannot_say_is_refused(name: str, sharing: dict[str, Any], what: str) -> None:
    (problem,) = rendered({"kubernetes": {"pool": name}, "sharing": sharing}).problems
    assert what in problem.what


STATES: list[tuple[str, str, bool]] = [
    ("success", "", False),
    ("failed", f"{MIG_STATE} is failed", False),
    ("pending", f"{MIG_STATE} is pending", True),
    ("", f"{MIG_STATE} is missing: no MIG manager has answered", True),
]


@over(STATES, name=lambda row: row[0] or "none")
def test_a_layout_that_is_not_in_force_is_found_and_not_proven(state: str, text: str, passes: bool) -> None:
    server, api = cluster()
    try:
        given = {MIG_LABEL: "small", CLIENT_LABEL: "paused-for-mig-change" if state == "pending" else "true"}
        server.put(gpu_node())
        put(api, rendered(pool(**CUT), n1={}), wait=False)
        found = {MIG_STATE: state} if state else {}
        server.edit("Node", "n1", "", lambda item: item["metadata"]["labels"].update(given | found))
        what = render(with_nodes(rendered(pool(**CUT), n1={}).cluster, []))
        found_now = [(one.message, one.passing) for one in findings(read(api, what)[0]) if one.check == "kube.mig"]
        assert found_now == ([(f"the MIG layout small is not in force: {text}", passes)] if text else [])
        (result,) = verify(api, what, ProofOptions(patience=0), notify=lambda _: None)
        (check,) = [one for one in result.checks if one.id == "kube.mig"]
        assert check.status == ("failed" if text else "passed")
    finally:
        server.close()


def test_a_layout_without_a_label_is_no_business_of_ours(server: ApiServer, api: Api) -> None:
    server.put(gpu_node())
    what = rendered(pool(strategy="mig", mig={"profiles": {"1g.10gb": 7}}), n1={})
    put(api, what, wait=False)
    assert MIG_LABEL not in labels(server)
    result = verify(api, what, ProofOptions(patience=0), notify=lambda _: None)[0]
    assert "kube.mig" not in {one.id for one in result.checks}


@pytest.mark.parametrize("install", ["manifest", "helm"])
def test_whoever_runs_the_manager_is_told_where_the_layouts_are(install: str) -> None:
    spec = pool(**CUT)
    spec["kubernetes"]["install"] = install
    what = rendered(spec)
    assert [n.what for n in what.notes if "MIG" in n.what] == [
        "NVIDIA's MIG manager has to read the ConfigMap gpunode/mig-layouts"
    ]
    (config,) = [item for item in what.objects if item["metadata"]["name"] == "mig-layouts"]
    assert yaml.safe_load(config["data"]["config.yaml"])["mig-configs"]["small"] == [
        {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}
    ]


PARTED = os.environ.get("GPUNODE_MIG_PARTED", "")


@pytest.mark.skipif(not PARTED, reason="GPUNODE_MIG_PARTED names no program nvidia-mig-parted")
def test_nvidias_own_program_takes_the_layouts(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.folder.name == "mig-manager")
    (config,) = [item["data"] for item in case.render().objects if item["metadata"]["name"] == "mig-layouts"]
    file = tmp_path / "config.yaml"
    file.write_text(config["config.yaml"])
    codes = {
        name: subprocess.run([PARTED, "assert", "--valid-config", "-f", file, "-c", name], check=False).returncode
        for name in ("small", "mixed", "all-disabled", "of-no-pool")
    }
    assert codes == {"small": 0, "mixed": 0, "all-disabled": 0, "of-no-pool": 1}


def test_the_label_that_the_manager_has_changed_is_taken_off_too() -> None:
    """With another value it became the manager's: a server-side apply without it leaves it."""
    there = {"metadata": {"name": "a", "labels": {CLIENT_LABEL: "true", MIG_LABEL: "small", "other": "x"}}}
    assert left_over(there, {}, [CLIENT_LABEL, MIG_LABEL, "other"]) == [CLIENT_LABEL, MIG_LABEL]
    assert left_over(there, {CLIENT_LABEL: "true", MIG_LABEL: "small"}, [CLIENT_LABEL, MIG_LABEL]) == []
    assert left_over(there, {}, []) == [], "somebody else set them"
