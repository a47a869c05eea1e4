"""What has drifted since a node was set up: from one probe."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.core.drift import drift_checks
from gpunode.core.model import ConfigFile, DriverState, Kernel, NodeFacts, Package, Service
from gpunode.core.openpgp import fingerprints
from gpunode.core.sources import revoked_files
from gpunode.edge.load import load_knowledge

KEY = next(iter(sorted((Path(__file__).parents[1] / "cases/keys").glob("*.asc")))).read_bytes()


def node(**more: object) -> NodeFacts:
    return NodeFacts(driver=DriverState(loaded="580.95.05"), **more)  # type: ignore[arg-type]


def packages(**versions: str) -> dict[str, Package]:
    return {n.replace("_", "-"): Package(name=n.replace("_", "-"), version=v) for n, v in versions.items()}


@pytest.mark.parametrize(
    ("name", "version", "ids"),
    [
        ("nvidia_fabricmanager", "580.95.05-1", []),
        ("nvidia_fabricmanager", "3:580.95.05-1.el9", []),
        ("nvidia_fabricmanager", "580.95.051-1", ["fabric.version"]),
        ("nvidia_fabricmanager_580", "580.178.04-0ubuntu1", ["fabric.version"]),
        ("libnvidia_nscq", "570.1-1", ["fabric.version"]),
        ("nvlsm", "1.2-3", []),
    ],
)
def test_the_fabric_manager_and_its_kin_have_the_version_of_the_driver(name: str, version: str, ids: list[str]) -> None:
    assert [c.id for c in drift_checks(node(packages=packages(**{name: version})))] == ids


def test_a_kernel_that_would_come_up_without_the_module_is_named() -> None:
    kernels = (Kernel(release="6.1-1", image=True, module="580.95.05"), Kernel(release="6.1-2", image=True))
    (check,) = drift_checks(node(kernels=kernels))
    assert (check.id, check.status) == ("boot.modules", "warning")
    assert "6.1-2" in check.message


def test_a_driver_that_is_not_held_is_told_where_unattended_upgrades_run() -> None:
    service = {"unattended-upgrades": Service(name="unattended-upgrades", active="active")}
    loose = node(packages=packages(nvidia_open="595.91.07-1"), services=service)
    assert [c.id for c in drift_checks(loose)] == ["driver.held"]
    assert [c.id for c in drift_checks(node(packages=packages(nvidia_open="595.91.07-1")))] == []


def test_only_files_whose_keys_are_all_revoked_go() -> None:
    (own,) = fingerprints(KEY)
    files = {
        path: ConfigFile(path=path, data=data)
        for path, data in {
            "/etc/apt/trusted.gpg.d/cuda.asc": KEY,
            "/etc/apt/trusted.gpg.d/other.asc": b"no key",
            "/etc/apt/sources.list.d/cuda.asc": KEY,
        }.items()
    }
    assert revoked_files(NodeFacts(files=files), [own]) == ("/etc/apt/trusted.gpg.d/cuda.asc",)
    assert revoked_files(NodeFacts(files=files), ["0" * 40]) == ()


def test_the_key_that_nvidia_revoked_in_2022_is_known() -> None:
    assert load_knowledge().revoked_keys() == ("AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80",)
