"""Will the GPU work after the next boot: kernels as the probe found them → checks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpunode.cli.main import cli
from gpunode.core.checks.boot import boot_checks
from gpunode.core.facts import parse_probe
from gpunode.core.model import (
    ConfigFile,
    Distro,
    DriverState,
    FirstBoot,
    InstalledPackage,
    Kernel,
    NodeFacts,
    PciDevice,
)
from gpunode.core.solve import solve
from gpunode.core.solve.case import request_of
from gpunode.core.spec import Spec
from gpunode.edge.load import load_knowledge

PROBES = Path(__file__).parents[1] / "cases/probes"
BLACKLIST = ConfigFile(path="/etc/modprobe.d/x.conf", data=b"blacklist nouveau\n")
READY = Kernel(release="6.1.0-41-amd64", image=True, headers=True, module="580.95.05", flavour="open")


def node(*kernels: Kernel, gpu: str = "10de:2330", userspace: str = "580.95.05", **more: object) -> NodeFacts:
    facts: dict[str, object] = {
        "gpus": (PciDevice(slot="0000:17:00.0", id=gpu, class_code="0302"),),
        "kernels": kernels,
        "driver": DriverState(userspace=userspace),
        "files": {BLACKLIST.path: BLACKLIST},
        **more,
    }
    return NodeFacts(**facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kernel", "gpu", "status", "printed"),
    [
        ({}, "10de:2330", "passed", "nvidia module 580.95.05, open"),
        ({"module": "570.1"}, "10de:2330", "failed", "its nvidia module is 570.1, user space is 580.95.05"),
        ({"module": "", "dkms": "built"}, "10de:2330", "failed", "DKMS has the nvidia module as built"),
        ({"module": ""}, "10de:2330", "failed", "no nvidia module"),
        ({"flavour": "proprietary"}, "10de:2901", "failed", "the proprietary module does not drive NVIDIA B200"),
        ({}, "10de:15f8", "failed", "the open module does not drive"),
    ],
)
def test_each_kernel_is_judged_by_what_stands_ready_for_it(
    kernel: dict[str, object], gpu: str, status: str, printed: str
) -> None:
    (check,) = boot_checks(node(replace(READY, **kernel), gpu=gpu), load_knowledge())  # type: ignore[arg-type]
    assert (check.id, check.status) == ("boot.6.1.0-41-amd64", status)
    assert printed in check.message
    assert bool(check.fix) is (status == "failed")


@pytest.mark.parametrize(
    ("package", "message", "fix"),
    [
        ("nvidia-dkms-580-server-open", "no nvidia module, and no headers to build one with", "installs headers"),
        ("nvidia-headless-no-dkms-580-server-open", "no nvidia module", "gpunode provision"),
    ],
)
def test_headers_are_missed_where_dkms_builds(package: str, message: str, fix: str) -> None:
    packages = {package: InstalledPackage(name=package, version="580.178.04-0ubuntu0.24.04.1")}
    bare = replace(READY, module="", headers=False)
    (check,) = boot_checks(node(bare, packages=packages), load_knowledge())
    assert (check.status, check.message) == ("failed", message) and fix in check.fix and "dkms" not in check.fix


def test_the_newest_kernel_comes_first_and_one_without_an_image_does_not_count() -> None:
    older = Kernel(release="6.1.0-9-amd64", image=True, module="580.95.05", running=True)
    gone = Kernel(release="7.0.0-1-amd64", module="580.95.05")
    checks = boot_checks(node(older, READY, gone), load_knowledge())
    assert [c.id for c in checks] == ["boot.6.1.0-41-amd64", "boot.6.1.0-9-amd64"]
    assert checks[1].message.endswith("(it runs now)")


def test_nouveau_and_secure_boot_are_warned_of() -> None:
    ids = [c.id for c in boot_checks(node(READY, files={}, secure_boot=True), load_knowledge())]
    assert ids[1:] == ["boot.nouveau", "boot.secure-boot"]
    ubuntu = boot_checks(node(READY, secure_boot=True, distro=Distro(id="ubuntu")), load_knowledge())
    assert ubuntu[-1].fix == "mokutil --test-key /var/lib/shim-signed/mok/MOK.der"
    signed = {"linux-modules-nvidia-580-server-open-generic": InstalledPackage(name="x", version="1")}
    assert len(boot_checks(node(READY, secure_boot=True, packages=signed), load_knowledge())) == 1


@pytest.mark.parametrize(("loaded", "dkms"), [("580.95.05", "installed"), ("", "installed"), ("580.95.05", "")])
def test_the_key_of_dkms_is_asked_for_until_a_module_of_its_is_loaded(loaded: str, dkms: str) -> None:
    kernel, driver = replace(READY, running=True, dkms=dkms), DriverState(userspace="580.95.05", loaded=loaded)
    facts = parse_probe((PROBES / "debian12-h100-fresh/probe.txt").read_text())
    facts = replace(facts, secure_boot=True, kernels=(kernel,), driver=driver)
    reasons = solve(request_of(facts, Spec()), load_knowledge()).reasons
    enrolled = bool(loaded and dkms)
    assert any("mokutil --import" in reason.why for reason in reasons) != enrolled
    assert any(c.id == "boot.secure-boot" for c in boot_checks(facts, load_knowledge())) != enrolled


def test_check_boot_exits_1_when_some_kernel_would_come_up_without_its_gpu() -> None:
    good, bad = (str(PROBES / f"debian12-{name}/probe.txt") for name in ("h100-provisioned", "driver-mismatch"))
    assert CliRunner().invoke(cli, ["check-boot", "--probe", good], standalone_mode=False).return_value == 0
    args = ["check-boot", "--probe", good, "--probe", bad, "--format", "json"]
    done = CliRunner().invoke(cli, args, standalone_mode=False)
    assert done.return_value == 1
    hosts = json.loads(done.stdout)["hosts"]
    assert [any(c["status"] == "failed" for c in host["checks"]) for host in hosts] == [False, True]


@pytest.mark.parametrize(
    ("flavour", "firmware", "status"),
    [
        ("open", ("580.95.05",), "passed"),
        ("open", ("570.1", "580.95.05"), "passed"),
        ("open", ("570.1",), "failed"),
        ("proprietary", ("570.1",), "passed"),
        ("open", (), "passed"),
    ],
)
def test_an_open_module_needs_firmware_of_its_version(flavour: str, firmware: tuple[str, ...], status: str) -> None:
    driver = DriverState(userspace="580.95.05", firmware=firmware)
    (check,) = boot_checks(node(replace(READY, flavour=flavour), driver=driver), load_knowledge())
    assert check.status == status


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("blacklist nvidia", "warning"),
        ("install nvidia /bin/false", "failed"),
        ("# blacklist nvidia", ""),
        ("blacklist nvidia_peermem", ""),
        ("install nvidia modprobe -i nvidia-current", ""),
    ],
)
def test_a_file_that_keeps_nvidia_out_is_named(line: str, status: str) -> None:
    path = "/etc/modprobe.d/y.conf"
    files = {BLACKLIST.path: BLACKLIST, path: ConfigFile(path=path, data=f"{line}\n".encode())}
    found = [c for c in boot_checks(node(READY, files=files), load_knowledge()) if c.id == "boot.blacklisted"]
    assert [(c.status, path in c.message) for c in found] == ([(status, True)] if status else [])


def test_a_machine_that_waits_for_its_gpu_is_judged_all_the_same() -> None:
    bare = node(READY, gpus=(), first_boot=FirstBoot(program="ab", armed=True))
    assert [c.id for c in boot_checks(bare, load_knowledge())] == ["boot.6.1.0-41-amd64"]
    assert [c.id for c in boot_checks(replace(bare, first_boot=FirstBoot()), load_knowledge())] == ["boot.gpu"]
