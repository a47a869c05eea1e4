"""A machine that boots: Ubuntu 24.04 under Secure Boot, its real kernel, and Canonical's signed driver on a GPU's ids.

The GPU is a program (gpunode/lab/vm/pci.py).  NVIDIA's real module binds to it and waits in vain for its firmware.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from vm_node import Machine

pytestmark = [
    pytest.mark.lab,
    pytest.mark.vm,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not shutil.which("podman"), reason="needs podman: QEMU is in an image of the lab's"),
]

SPEC = {
    "driver": {"branch": "580", "modules": "precompiled"},
    "toolkit": {"version": "none"},
    "runtimes": {"containerd": {"manage": "ignore"}},
}


@pytest.fixture(scope="module")
def machine(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With an H100."""
    lab = lab_up(distro="ubuntu:24.04", machine="vm", engines=("containerd",), gpus=("h100",), name="t-vm")
    yield Machine(lab, run_gpunode, tmp_path_factory.mktemp("spec"), SPEC)


@pytest.fixture(scope="module")
def before(machine: Machine) -> set[str]:
    """The modules; with lists of packages, without which a plan does not know what the archive lacks (cloud-init)."""
    machine.sh("apt-get update -qq")
    return modules(machine)


def modules(machine: Machine) -> set[str]:
    """Which of the modules that fight for a GPU are loaded."""
    return {"nouveau", "nvidia", "nova_core"} & set(machine.sh("cut -d' ' -f1 /proc/modules").split())


def test_it_boots_by_the_distributions_own_chain_under_secure_boot(machine: Machine, before: set[str]) -> None:
    assert machine.sh("mokutil --sb-state").strip() == "SecureBoot enabled"
    assert "[integrity]" in machine.sh("cat /sys/kernel/security/lockdown")
    assert "GH100 [H100 SXM5 80GB]" in machine.sh("lspci -d 10de:") and list(machine.bound().values()) == [""]
    assert "[size=128G]" in machine.sh("lspci -v -d 10de:2330")


def test_a_module_that_is_not_signed_is_refused_by_the_kernel(machine: Machine) -> None:
    machine.sh("zstd -qdf $(modinfo -n nouveau) -o /root/x.ko; strip --strip-debug /root/x.ko 2>/dev/null || :")
    machine.sh("head -c -40 /root/x.ko >/root/unsigned.ko; rm /root/x.ko")
    assert "Key was rejected by service" in machine.sh("insmod /root/unsigned.ko 2>&1 || rm /root/unsigned.ko")


def test_from_nothing_to_canonicals_signed_module_on_the_gpu(machine: Machine, before: set[str]) -> None:
    assert before == {"nouveau"}
    with machine.timed("provision"):
        done = machine.json("provision", "--yes", exit=None)
    failed = [check["id"] for check in done["checks"] if check["status"] == "failed"]
    assert failed == ["driver.smi"], f"the GPU has no firmware that starts; all else works: {done}"
    assert set(machine.bound().values()) == {"nvidia"}
    assert "Canonical" in machine.signer("nvidia")
    assert re.search(r"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64 +580\.", machine.sh("dmesg"))


def test_after_a_reboot_the_module_is_there_and_a_second_run_changes_nothing(machine: Machine) -> None:
    machine.reboot()
    assert set(machine.bound().values()) == {"nvidia"}
    with machine.timed("second run"):
        assert machine.json("provision", "--yes", exit=None)["changed"] == []


def test_after_a_power_cut_it_boots_from_its_journal(machine: Machine) -> None:
    machine.sh("for n in $(seq 300); do echo $n >/root/cut.$n; done; sync; rm /root/cut.*")
    machine.cut_power()
    said = machine.sh("dmesg; cat /run/initramfs/fsck.log 2>/dev/null || :")  # by the kernel, or by fsck before it
    assert "recovery complete" in said or "recovering journal" in said
    assert machine.sh("systemctl --failed --no-legend") == ""


def test_an_uninstall_and_a_reboot_give_the_gpu_back_to_nouveau(machine: Machine, before: set[str]) -> None:
    with machine.timed("uninstall"):
        machine.gpunode("uninstall", "--yes", exit=None)
    machine.reboot()
    assert modules(machine) == before
