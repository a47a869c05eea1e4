"""A machine that boots gets another branch of the driver, and another kernel by apt, under Secure Boot.

Its kernels are Ubuntu 24.04's own: the release's, then the newest of the hardware line that has its signed modules.
"""

from __future__ import annotations

from typing import Any

import pytest
from vm_node import MARKS, Machine, driver_alone

from gpunode.lab import machine as host
from gpunode.lab.packages_ubuntu import read_index
from gpunode.lab.vm import kernels

pytestmark = MARKS


@pytest.fixture(scope="module")
def machine(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """With an H100 and 580 on the kernel of the release."""
    lab = lab_up(distro="ubuntu:24.04", machine="vm", engines=("containerd",), gpus=("h100",), name="t-vm-kernels")
    made = Machine(lab, run_gpunode, tmp_path_factory.mktemp("spec"), driver_alone("580"))
    with made.timed("provision"):
        made.gpunode("provision", "--yes", exit=None)
    bound(made, "580")
    return made


@pytest.fixture(scope="module")
def newer(machine: Machine) -> str:
    """A kernel that is newer than the one that runs; apt passes by those whose modules the archive lists and lacks."""
    archive = host.archive().ubuntu

    def there(name: str) -> bool:
        return kernels.is_there(f"{archive}/{name}")

    release, lacking = kernels.choose(read_index(archive, "noble"), there, "linux-image-generic-hwe-24.04")
    machine.lab.run(machine.node, "cat >/etc/apt/preferences.d/t-newer", stdin=kernels.preferences(lacking))
    with machine.timed(f"apt brings {release}"):
        machine.sh(f"apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get -qq -y install linux-image-{release}")
    return release


def boots(machine: Machine) -> dict[str, tuple[str, str]]:
    """What check-boot says of each kernel."""
    checks = machine.json("check-boot", exit=None)["checks"]
    return {one["id"]: (one["status"], one["message"]) for one in checks}


def converged(machine: Machine) -> None:
    with machine.timed("second run"):
        done = machine.json("provision", "--yes", exit=None)
    assert done["message"] == "nothing to do", done


def bound(machine: Machine, version: str) -> None:
    assert set(machine.bound().values()) == {"nvidia"} and "Canonical" in machine.signer("nvidia")
    assert f" {version}." in machine.sh("cat /proc/driver/nvidia/version")


def test_another_branch_is_bound_after_a_reboot_and_the_former_after_a_rollback_and_a_reboot(machine: Machine) -> None:
    machine.set(driver_alone("595"))
    with machine.timed("switch to 595"):
        done = machine.json("provision", "--yes", exit=None)
    assert machine.failed(done) == ["driver.smi"], done
    machine.reboot()
    bound(machine, "595")
    converged(machine)

    with machine.timed("rollback"):
        machine.gpunode("rollback", "--yes", exit=None)
    machine.reboot()
    bound(machine, "580")
    machine.set(driver_alone("580"))
    converged(machine)


def test_before_the_boot_it_is_told_that_the_newer_kernel_has_no_module(machine: Machine, newer: str) -> None:
    running = machine.sh("uname -r").strip()
    said = boots(machine)
    assert said[f"boot.{running}"][0] == "passed" and "(it runs now)" in said[f"boot.{running}"][1]
    assert said[f"boot.{newer}"][0] == "failed" and said[f"boot.{newer}"][1].startswith("no nvidia module")


def test_a_run_brings_the_module_for_it_and_the_machine_boots_it_with_the_gpu_bound(
    machine: Machine, newer: str
) -> None:
    with machine.timed("provision for the newer kernel"):
        done = machine.json("provision", "--yes", exit=None)
    assert f"linux-modules-nvidia-580-server-open-{newer}" in "\n".join(done["changed"])
    assert boots(machine)[f"boot.{newer}"][0] == "passed"
    machine.reboot()
    assert machine.sh("uname -r").strip() == newer and machine.sh("mokutil --sb-state").strip() == "SecureBoot enabled"
    bound(machine, "580")
    converged(machine)
