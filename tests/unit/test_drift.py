"""What has drifted since a node was set up: from one probe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.core.checks.health import drift_checks
from gpunode.core.items.repository import revoked_files
from gpunode.core.knowledge import RepositoryKey
from gpunode.core.model import ConfigFile, DriverState, InstalledPackage, Kernel, NodeFacts, PciDevice, Service
from gpunode.core.openpgp import fingerprints
from gpunode.edge.load import load_knowledge

KEY = next(iter(sorted((Path(__file__).parents[1] / "cases/keys").glob("*.asc")))).read_bytes()


def node(**more: object) -> NodeFacts:
    return NodeFacts(driver=DriverState(loaded="580.95.05"), **more)  # type: ignore[arg-type]


def packages(**versions: str) -> dict[str, InstalledPackage]:
    return {n.replace("_", "-"): InstalledPackage(name=n.replace("_", "-"), version=v) for n, v in versions.items()}


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
def test_the_fabric_manager_and_packages_like_it_have_the_version_of_the_driver(
    name: str, version: str, ids: list[str]
) -> None:
    assert [c.id for c in drift_checks(node(packages=packages(**{name: version})))] == ids


def test_a_kernel_that_would_come_up_without_the_module_is_named() -> None:
    kernels = (Kernel(release="6.1-1", image=True, module="580.95.05"), Kernel(release="6.1-2", image=True))
    (check,) = drift_checks(node(kernels=kernels))
    assert (check.id, check.status) == ("boot.modules", "warning")
    assert "6.1-2" in check.message


def test_a_driver_that_is_not_held_is_reported_where_unattended_upgrades_run() -> None:
    service = {"unattended-upgrades": Service(name="unattended-upgrades", active="active")}
    loose = node(packages=packages(nvidia_open="595.91.07-1"), services=service)
    assert [c.id for c in drift_checks(loose)] == ["driver.held"]
    assert [c.id for c in drift_checks(node(packages=packages(nvidia_open="595.91.07-1")))] == []


def test_a_driver_that_unattended_upgrades_pass_by_needs_no_hold() -> None:
    path = "/etc/apt/apt.conf.d/52gpunode-unattended-upgrades"
    fence = ConfigFile(path=path, data=b'Unattended-Upgrade::Package-Blacklist {\n  "nvidia-";\n};\n')
    service = {"unattended-upgrades": Service(name="unattended-upgrades", active="active")}
    some = packages(nvidia_driver_open="595.91.07-1", cuda_drivers="595.91.07-1")
    (check,) = drift_checks(node(packages=some, services=service, files={path: fence}))
    assert "cuda-drivers is not held" in check.message and "nvidia-driver-open" not in check.message


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


B200 = PciDevice(slot="0000:17:00.0", id="10de:2901", class_code="0302")
RUNNING = Kernel(release="6.1-1", image=True, running=True, module="580.95.05", flavour="open")


@pytest.mark.parametrize(
    ("other", "name", "why"),
    [
        ({"module": "580.178.04"}, "boot.versions", "its nvidia module is 580.178.04, user space is 580.95.05"),
        ({"dkms": "built"}, "boot.modules", "DKMS has the nvidia module as built, not installed"),
        (
            {"module": "580.95.05", "flavour": "proprietary"},
            "boot.versions",
            "the proprietary module does not drive NVIDIA B200",
        ),
        ({"module": "580.95.05", "flavour": "open"}, "", ""),
        ({"running": True}, "", ""),
        ({"image": False}, "", ""),
    ],
)
def test_a_kernel_that_check_boot_finds_at_fault_is_named_before_it_runs(
    other: dict[str, object], name: str, why: str
) -> None:
    kernel = Kernel(**{"release": "6.1-2", "image": True, **other})  # type: ignore[arg-type]
    driver = DriverState(loaded="580.95.05", userspace="580.95.05")
    facts = NodeFacts(driver=driver, kernels=(RUNNING, kernel), gpus=(B200,))
    found = [*drift_checks(facts, load_knowledge())]
    assert [(one.id, one.status) for one in found] == ([(name, "warning")] if name else [])
    assert all(one.message.startswith("under kernel 6.1-2: ") and why in one.message for one in found)


def test_dnf_automatic_is_as_good_as_unattended_upgrades() -> None:
    timer = {"dnf-automatic.timer": Service(name="dnf-automatic.timer", active="active")}
    (check,) = drift_checks(node(packages=packages(nvidia_driver="580.95.05-1.el9"), services=timer))
    assert check.id == "driver.held" and "dnf-automatic.timer runs" in check.message


def test_a_revoked_key_is_reported_where_its_fingerprint_is_known() -> None:
    path = "/etc/apt/trusted.gpg.d/cuda.asc"
    facts = node(files={path: ConfigFile(path=path, data=KEY)})
    knowledge = replace(
        load_knowledge(),
        keys={"own": RepositoryKey(id="own", url="", source="", fingerprint=fingerprints(KEY)[0], state="revoked")},
    )
    (check,) = drift_checks(facts, knowledge)
    assert (check.id, check.status, path in check.message) == ("repository.key-revoked", "failed", True)
    assert list(drift_checks(facts, load_knowledge())) == []


CUDA = "developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"
ONE_LINE = f"deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] https://{CUDA}/ /\n"
DEB822 = f"Types: deb\nURIs: https://{CUDA}\nSuites: /\nSigned-By: /usr/share/keyrings/gpunode-nvidia-cuda.asc\n"


@pytest.mark.parametrize(
    ("texts", "twice"),
    [
        ({"a.list": ONE_LINE}, False),
        ({"a.list": ONE_LINE, "b.sources": DEB822}, True),
        ({"a.list": f"# {ONE_LINE}", "b.sources": DEB822}, False),
        ({"a.list": ONE_LINE, "a.list.save": ONE_LINE}, False),
        ({"a.list": ONE_LINE.replace("debian12", "debian11"), "b.sources": DEB822}, False),
        ({"a.list": "deb https://deb.debian.org/debian bookworm main\n" + ONE_LINE, "b.sources": DEB822}, True),
    ],
)
def test_a_repository_that_two_files_set_up_is_reported(texts: dict[str, str], twice: bool) -> None:
    folder = "/etc/apt/sources.list.d"
    files = {f"{folder}/{n}": ConfigFile(path=f"{folder}/{n}", data=text.encode()) for n, text in texts.items()}
    found = list(drift_checks(node(files=files)))
    assert [check.id for check in found] == ["repository.twice"] * twice
    assert all(CUDA in check.message and f"{folder}/a.list and {folder}/b.sources" in check.message for check in found)
