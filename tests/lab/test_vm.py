"""A machine that boots: Ubuntu 24.04 under Secure Boot, its real kernel, and Canonical's signed driver on a GPU's ids.

The GPU is a program (gpunode/lab/vm/pci.py).  NVIDIA's real module binds to it and waits in vain for its firmware.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from vm_node import TREE, Machine

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
def before(machine: Machine) -> dict[str, Any]:
    return {"tree": machine.sh(TREE), "modules": modules(machine), "kernel": machine.sh("uname -r").strip()}


@pytest.fixture(scope="module")
def archive(machine: Machine, before: dict[str, Any]) -> None:
    """During an update an archive may name files that it does not have yet."""
    wanted = "linux-modules-nvidia-580-server-open-generic"
    machine.sh("apt-get update -qq")
    done = machine.lab.run(machine.node, f"apt-get install -y -qq --download-only {wanted} 2>&1")
    if "404 " in done.stdout:
        pytest.skip(f"needs an archive with the files that its index names: {done.stdout.strip().splitlines()[0]}")


def modules(machine: Machine) -> set[str]:
    """Which of the modules that fight for a GPU are loaded."""
    return {"nouveau", "nvidia", "nova_core"} & set(machine.sh("cut -d' ' -f1 /proc/modules").split())


def test_it_boots_by_the_distributions_own_chain_under_secure_boot(machine: Machine, before: dict[str, Any]) -> None:
    assert machine.sh("mokutil --sb-state").strip() == "SecureBoot enabled"
    assert "[integrity]" in machine.sh("cat /sys/kernel/security/lockdown")
    assert "GH100 [H100 SXM5 80GB]" in machine.sh("lspci -d 10de:") and list(machine.bound().values()) == [""]
    assert "[size=128G]" in machine.sh("lspci -v -d 10de:2330")


def test_a_module_that_is_not_signed_is_refused_by_the_kernel(machine: Machine) -> None:
    machine.sh("zstd -qdf $(modinfo -n nouveau) -o /root/x.ko; strip --strip-debug /root/x.ko 2>/dev/null || :")
    machine.sh("head -c -40 /root/x.ko >/root/unsigned.ko; rm /root/x.ko")
    assert "Key was rejected by service" in machine.sh("insmod /root/unsigned.ko 2>&1 || rm /root/unsigned.ko")


@pytest.mark.usefixtures("archive")
def test_from_nothing_to_canonicals_signed_module_on_the_gpu(machine: Machine) -> None:
    with machine.timed("provision"):
        done = machine.json("provision", "--yes", exit=None)
    print(
        done["message"],
        [f"{check['id']}: {check['message']}" for check in done["checks"] if check["status"] == "failed"],
    )
    assert machine.bound() == dict.fromkeys(machine.bound(), "nvidia"), done
    assert "Canonical" in machine.signer("nvidia")
    assert re.search(r"NVRM: loading NVIDIA UNIX Open Kernel Module +580\.", machine.sh("dmesg"))


@pytest.mark.usefixtures("archive")
def test_after_a_reboot_the_module_is_there_and_a_second_run_changes_nothing(machine: Machine) -> None:
    machine.reboot()
    assert set(machine.bound().values()) == {"nvidia"}
    with machine.timed("second run"):
        assert machine.json("provision", "--yes", exit=None)["changed"] == []


def test_after_a_power_cut_it_boots_from_its_journal(machine: Machine) -> None:
    machine.cut_power()
    assert "recovery complete" in machine.sh("dmesg") and machine.sh("systemctl --failed --no-legend") == ""


@pytest.mark.usefixtures("archive")
def test_an_uninstall_and_a_reboot_leave_the_machine_as_it_was(machine: Machine, before: dict[str, Any]) -> None:
    with machine.timed("uninstall"):
        machine.gpunode("uninstall", "--yes", exit=None)
    machine.reboot()
    assert modules(machine) == before["modules"]
    assert machine.sh(TREE) == before["tree"]
