"""Fixtures of the tests on real engines."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import FOLDER, OTHERS, Cluster
from daemon_node import DISTROS, DaemonNode
from provisioned import Provisioned

from gpunode.lab import Lab

# Left to `make test-all`: what takes long.
EXTENDED = {
    f"test_{name}"
    for name in "air_gap driver_settings fabric_node families fleet_faults fleet_kill golden_image hostile_node "
    "aarch64 how_to migration package_faults rollback runfile selftest settling sharing "
    "gpu_payload ubuntu unattended_upgrades uninstall".split()
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        module = getattr(getattr(item, "module", None), "__name__", "").rpartition(".")[2]
        if module in EXTENDED or module.startswith("test_kubernetes"):
            item.add_marker("extended")


@pytest.fixture(scope="module", params=DISTROS)
def daemons(request: pytest.FixtureRequest, lab_up: Callable[..., Lab]) -> Iterator[DaemonNode]:
    """A node of each distribution in turn, with containerd, Docker and the container toolkit; one at a time."""
    stem = request.module.__name__.removeprefix("test_").replace("_", "-")
    name = f"t-{stem}-{request.param.partition(':')[2].replace('+', '-')}"
    with lab_up(1, name=name, distro=request.param, gpus=("h100", "h100")) as lab:
        node = DaemonNode(lab)
        node.install_toolkit()
        yield node


@pytest.fixture(scope="module")
def provisioned(
    lab_up: Callable[..., Lab], run_gpunode: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Lab]:
    """`provisioned(spec, distro=…)`: as `lab_up` for one node, on which `gpunode provision` has nothing left to do."""
    return Provisioned(lab_up, run_gpunode, tmp_path_factory.mktemp("provisioned")).up


@pytest.fixture(scope="module")
def cluster_up(
    lab_up: Callable[..., Lab],
    run_gpunode: Callable[..., subprocess.CompletedProcess[str]],
    controller: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Cluster]:
    """A lab cluster of so many nodes, each with two GPUs and containerd, until the module's tests are over."""

    def up(count: int, **options: Any) -> Cluster:
        shape = {"kubernetes": FOLDER, "gpus": ("h100", "h100"), "engines": ("containerd",), **options}
        folder = tmp_path_factory.mktemp("kube")
        return Cluster(lab=lab_up(count, **shape), folder=folder, run_gpunode=run_gpunode, controller=controller)

    return up


@pytest.fixture(scope="module", params=[FOLDER, *OTHERS], ids=lambda folder: Path(folder).name)
def cluster(request: pytest.FixtureRequest, cluster_up: Callable[..., Cluster]) -> Iterator[Cluster]:
    """A cluster of one node, of each release of Kubernetes that is at hand; one at a time."""
    stem, release = request.module.__name__.rpartition("_")[2], Path(request.param).name.replace(".", "-")
    made = cluster_up(1, name=f"t-{stem}-{release}", kubernetes=request.param)
    with made.lab:
        yield made
