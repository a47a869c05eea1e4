"""A machine that boots: Ubuntu 24.04 under Secure Boot, its real kernel, and Canonical's signed driver on a GPU's ids.

The GPU is a program (gpunode/lab/vm/pci.py).  NVIDIA's real module binds to it and waits in vain for its firmware.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from undo_node import TREE
from vm_node import MARKS, UP, Machine

pytestmark = MARKS

SPEC = {
    "driver": {
        "branch": "580",
        "modules": "precompiled",
        "module_parameters": {"nvidia": {"NVreg_PreserveVideoMemoryAllocations": 1}},
    },
    "tuning": {"iommu": "passthrough", "inotify": "raised", "sysctl": {"net.core.somaxconn": "8192"}},
    "toolkit": {"version": "none"},
    "runtimes": {"containerd": {"manage": "ignore"}},
}
# what is in force: the kernel's arguments and settings, the driver's parameters
IN_FORCE = (
    "tr ' ' '\\n' </proc/cmdline | grep ^iommu; sysctl net.core.somaxconn fs.inotify.max_user_instances; "
    "grep -s PreserveVideoMemory /proc/driver/nvidia/params; :"
)
APT = "[a]pt-get .*-y install"
# processes of a provision at which the power is cut, as they come
CUTS = (
    *("[a]pt-get .* update", "[a]pt-get .*--download-only", "[d]pkg .*--unpack", "[d]pkg .*--configure", "[d]epmod"),
    *("[u]pdate-initramfs", "[m]kinitramfs", "[z]std", "[m]odprobe", "[g]rub-mkconfig"),
)


@pytest.fixture(scope="module")
def machine(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With an H100."""
    lab = lab_up(distro="ubuntu:24.04", machine="vm", engines=("containerd",), gpus=("h100",), name="t-vm")
    yield Machine(lab, run_gpunode, tmp_path_factory.mktemp("spec"), SPEC)


@pytest.fixture(scope="module")
def before(machine: Machine) -> dict[str, set[str]]:
    """With an initramfs that the machine itself has made; the image has that of another one."""
    machine.sh("update-initramfs -u -k all")
    return state(machine)


def state(machine: Machine) -> dict[str, set[str]]:
    """What an undo has to bring back: all but the bytes of an initramfs, which has times in it."""
    images = re.compile(r"\./boot/initrd\.img-")
    return {
        "tree": {line for line in machine.sh(TREE).splitlines() if not images.match(line)},
        "initramfs": set(machine.sh("lsinitramfs /boot/initrd.img-$(uname -r)").splitlines()),
        "in force": set(machine.sh(IN_FORCE).splitlines()),
        "modules": modules(machine),
    }


def modules(machine: Machine) -> set[str]:
    """Which of the modules that fight for a GPU are loaded."""
    return {"nouveau", "nvidia", "nova_core"} & set(machine.sh("cut -d' ' -f1 /proc/modules").split())


def test_it_boots_by_the_distributions_own_chain_under_secure_boot(
    machine: Machine, before: dict[str, set[str]]
) -> None:
    assert machine.sh("mokutil --sb-state").strip() == "SecureBoot enabled"
    assert "[integrity]" in machine.sh("cat /sys/kernel/security/lockdown")
    assert "GH100 [H100 SXM5 80GB]" in machine.sh("lspci -d 10de:") and list(machine.bound().values()) == [""]
    assert "[size=128G]" in machine.sh("lspci -v -d 10de:2330")


def test_a_module_that_is_not_signed_is_refused_by_the_kernel(machine: Machine) -> None:
    machine.sh("zstd -qdf $(modinfo -n nouveau) -o /root/x.ko; strip --strip-debug /root/x.ko 2>/dev/null || :")
    machine.sh("head -c -40 /root/x.ko >/root/unsigned.ko; rm /root/x.ko")
    assert "Key was rejected by service" in machine.sh("insmod /root/unsigned.ko 2>&1 || rm /root/unsigned.ko")


def test_a_plan_of_a_machine_that_has_never_read_the_archive_is_resolved_and_reads_nothing_into_it(
    machine: Machine,
) -> None:
    with machine.timed("plan, with all lists to read"):
        plan = machine.json("plan", exit=3)
    assert not [text for text in plan["warnings"] if "not resolved" in text]
    assert machine.sh("ls /var/lib/apt/lists").split() == ["lock", "partial"]


def test_from_nothing_to_canonicals_signed_module_on_the_gpu_though_ssh_is_lost_on_the_way(
    machine: Machine, before: dict[str, set[str]]
) -> None:
    assert before["modules"] == {"nouveau"}
    with machine.timed("provision"), machine.during(APT, "kill -9 $(pgrep -f '[s]shd: root@notty')") as started:
        done = machine.json("provision", "--yes", exit=None)
    assert started.is_set(), "the sessions were ended while packages came"
    assert machine.failed(done) == ["driver.smi"], f"the GPU has no firmware that starts; all else works: {done}"
    changes = "\n".join(done["changed"])
    assert "installed nvidia-utils-580-server 580." in changes and "unloaded nouveau" in changes
    assert set(machine.bound().values()) == {"nvidia"} and modules(machine) == {"nvidia"}
    assert "Canonical" in machine.signer("nvidia")
    assert re.search(r"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64 +580\.", machine.sh("dmesg"))


def test_after_a_reboot_all_is_in_force_and_a_second_run_changes_nothing(machine: Machine) -> None:
    machine.reboot()
    assert set(machine.bound().values()) == {"nvidia"} and modules(machine) == {"nvidia"}
    assert machine.sh(IN_FORCE).splitlines() == [
        "iommu=pt",
        "net.core.somaxconn = 8192",
        "fs.inotify.max_user_instances = 65535",
        "PreserveVideoMemoryAllocations: 1",
    ]
    assert "etc/modprobe.d/gpunode-nouveau.conf" in machine.sh("lsinitramfs /boot/initrd.img-$(uname -r)")
    with machine.timed("second run"):
        assert machine.json("provision", "--yes", exit=None)["changed"] == []


def test_after_a_power_cut_it_boots_from_its_journal(machine: Machine) -> None:
    machine.sh("for n in $(seq 300); do echo $n >/root/cut.$n; done; sync; rm /root/cut.*")
    machine.cut_power()
    said = machine.sh("dmesg; cat /run/initramfs/fsck.log 2>/dev/null || :")  # by the kernel, or by fsck before it
    assert "recovery complete" in said or "recovering journal" in said
    assert machine.sh("systemctl --failed --no-legend") == ""


def test_an_uninstall_and_a_reboot_leave_the_machine_as_it_was(machine: Machine, before: dict[str, set[str]]) -> None:
    with machine.timed("uninstall"):
        machine.gpunode("uninstall", "--yes", exit=None)
    machine.reboot()
    after = state(machine)
    assert {name: sorted(after[name] ^ before[name])[:40] for name in before if after[name] != before[name]} == {}


def test_wherever_the_power_is_cut_the_machine_boots_and_the_next_run_converges(machine: Machine) -> None:
    for point in CUTS:
        was = machine.boot_id()
        with machine.timed(f"power cut at {point}, and up again"):
            with machine.during(point, "", machine.cut) as cut:
                machine.gpunode("provision", "--yes", exit=None)
            assert cut.is_set(), f"no provision came to {point}"
            machine.wait_for_boot(was, UP)
    with machine.timed("the run after all"):
        done = machine.json("provision", "--yes", exit=None)
    assert machine.failed(done) == ["driver.smi"], done
    assert set(machine.bound().values()) == {"nvidia"}
    assert machine.json("provision", "--yes", exit=None)["changed"] == []
