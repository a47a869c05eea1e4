"""NVIDIA's own charts with our values, by helm's library, where GPUNODE_CHARTS names a folder with them.

Folders or archives, each chart with its dependencies: helm pull --untar, or deployments/helm of the repositories.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from kube_cases import CASES, Case, complaint

from gpunode.core.errors import RefusedError
from gpunode.core.kube import Release
from gpunode.edge.kube import chart_name, template

FOLDER = os.environ.get("GPUNODE_CHARTS", "")
FOREIGN = ("ClusterPolicy", "GPUCluster", "NVIDIADriver", "ServiceMonitor", "CustomResourceDefinition")  # of no server

RELEASES = [(case, release) for case in CASES for release in case.render().releases]


@pytest.fixture(scope="module")
def charts() -> dict[str, Path]:
    if not FOLDER:
        pytest.skip("GPUNODE_CHARTS names no folder with NVIDIA's charts")
    found = [path.parent for path in Path(FOLDER).rglob("Chart.yaml") if "charts" not in path.relative_to(FOLDER).parts]
    return {chart_name(path): path for path in [*found, *Path(FOLDER).glob("*.tgz")]}


def rendered(charts: dict[str, Path], release: Release) -> list[dict[str, Any]]:
    if release.chart.name not in charts:
        pytest.skip(f"no chart {release.chart.name} in {FOLDER}")
    try:
        return template(charts[release.chart.name], release)
    except RefusedError as error:
        if "--api-versions" in error.what:  # the library cannot say what a cluster serves
            pytest.skip(error.what)
        raise


def ident(value: Any) -> str:
    return value.folder.name if isinstance(value, Case) else value.name


@pytest.mark.parametrize(("case", "release"), RELEASES, ids=ident)
def test_the_chart_makes_objects_that_a_server_takes(charts: dict[str, Path], case: Case, release: Release) -> None:
    objects = rendered(charts, release)
    wrong = [complaint(item, case.server) for item in objects if item["kind"] not in FOREIGN]
    assert [reported for reported in wrong if reported] == []


def test_the_device_plugin_of_the_chart_gets_the_pools(charts: dict[str, Path]) -> None:
    case = next(case for case in CASES if case.folder.name == "helm-pools")
    release = next(one for one in case.render().releases if one.name == "nvidia-device-plugin")
    objects = rendered(charts, release)
    config = next(item for item in objects if item["kind"] == "ConfigMap")
    assert sorted(config["data"]) == ["default", "mps"]
    images = {
        container["image"]
        for item in objects
        if item["kind"] == "DaemonSet"
        for container in item["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"registry.lan:5000/nvidia/k8s-device-plugin:v0.20.1"}


def test_the_exporter_of_the_chart_collects_what_the_alerts_read(charts: dict[str, Path]) -> None:
    case = next(case for case in CASES if case.folder.name == "helm")
    release = next(one for one in case.render().releases if one.name == "dcgm-exporter")
    config = next(item for item in rendered(charts, release) if item["kind"] == "ConfigMap")
    assert "DCGM_FI_DEV_ROW_REMAP_PENDING, gauge, " in config["data"]["metrics"]


def test_the_dra_driver_of_the_chart_is_asked_for_shares_of_memory(charts: dict[str, Path]) -> None:
    case = next(case for case in CASES if case.folder.name == "dra-memory")
    (release,) = case.render().releases
    asked = [
        {one["name"]: one.get("value") for one in container.get("env", [])}
        for item in rendered(charts, release)
        if item["kind"] == "DaemonSet"
        for container in item["spec"]["template"]["spec"]["containers"]
        if container["name"] == "gpus"
    ]
    assert [(env["CONSUMABLE_SHARES"], env["FEATURE_GATES"]) for env in asked] == [("memory", "ConsumableShares=true,")]
