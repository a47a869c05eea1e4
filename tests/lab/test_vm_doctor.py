"""doctor on a machine that boots, broken in ways that its real kernel and NVIDIA's real driver put into words.

Of the one GPU, whose firmware never starts, doctor always speaks: what is compared is what comes on top of that.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from vm_node import MARKS, Machine, driver_alone

from gpunode.lab.vm import devices

pytestmark = MARKS

UNLOAD = (
    "systemctl stop nvidia-persistenced; for m in nvidia_uvm nvidia_drm nvidia_modeset nvidia; "
    "do rmmod $m 2>/dev/null || :; done; test ! -e /sys/module/nvidia; dmesg -C; "
)
LOAD = "modprobe nvidia; systemctl reset-failed nvidia-persistenced; systemctl start nvidia-persistenced || :"
TRY = "modprobe nvidia 2>&1 | logger -t modprobe; nvidia-smi >/dev/null 2>&1 || :"
MODULES = "/lib/modules/$(uname -r)"
UNSIGN = "f=$(modinfo -n nvidia); cp -p $f /root/signed; head -c -40 /root/signed >$f; "
NEWER = (
    "mkdir -p /root/n; cd /root/n; apt-get -q download libnvidia-compute-595-server >/dev/null 2>&1; "
    "dpkg -x libnvidia-compute-595*.deb .; "
)
# what is broken → how, how it is repaired, the words of kernel or driver, doctor's root
BROKEN: dict[str, tuple[str, str, str, str]] = {
    "the module is not loaded": (UNLOAD, LOAD, "", "module-not-loaded"),
    "modprobe.d keeps it out": (
        f"{UNLOAD} echo 'install nvidia /bin/false' >/etc/modprobe.d/zz-no.conf; {TRY}",
        f"rm /etc/modprobe.d/zz-no.conf; {LOAD}",
        "", "modprobe-blocked",
    ),
    "the kernel has no module": (
        f"{UNLOAD} mkdir /root/k; find {MODULES}/ -name 'nvidia*.ko*' >/root/k.list; "
        f"tar -cPf /root/k.tar -T /root/k.list; xargs rm </root/k.list; depmod; {TRY}",
        f"tar -xPf /root/k.tar; rm -r /root/k /root/k.*; depmod; {LOAD}",
        "Module nvidia not found", "modprobe-not-found",
    ),
    "its signature is gone": (
        f"{UNLOAD} {UNSIGN} {TRY}",
        f"cp -p /root/signed $(modinfo -n nvidia); {LOAD}",
        "Key was rejected by service", "modprobe-key-rejected",
    ),
    "a parameter that it does not have": (
        f"{UNLOAD} echo 'options nvidia NVreg_NoSuch=1' >/etc/modprobe.d/zz-no.conf; {LOAD}",
        f"rm /etc/modprobe.d/zz-no.conf; {UNLOAD} {LOAD}",
        "nvidia: unknown parameter 'NVreg_NoSuch' ignored", "modprobe-unknown-symbol",
    ),
    "a program brings the library of another driver": (
        f"{NEWER} LD_LIBRARY_PATH=$(dirname $(find /root/n -name libnvidia-ml.so.1)) nvidia-smi || :",
        f"rm -r /root/n; {UNLOAD} {LOAD}",
        "NVRM: API mismatch: the client 'nvidia-smi'", "nvml-version-mismatch",
    ),
    "its daemon has crashed": (
        "systemctl kill -s SEGV nvidia-persistenced; sleep 3", LOAD, "", "persistenced-fail",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def machine(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    lab = lab_up(distro="ubuntu:24.04", machine="vm", engines=("containerd",), gpus=("h100",), name="t-vm-doctor")
    made = Machine(lab, run_gpunode, tmp_path_factory.mktemp("spec"), driver_alone())
    with made.timed("provision"):
        made.gpunode("provision", "--yes", exit=None)
    return made


def roots(machine: Machine) -> set[str]:
    with machine.timed("doctor"):
        said = machine.json("doctor", exit=None)
    return {one["id"] for one in said["findings"] if one["root"]}


def words(machine: Machine) -> str:
    return machine.sh("dmesg; journalctl -b --no-pager -n 300")


def test_of_a_gpu_that_does_not_start_it_says_so(machine: Machine) -> None:
    assert roots(machine) == {"gsp-cannot-init"}


@pytest.mark.parametrize("name", BROKEN)
def test_the_cause_is_named(machine: Machine, name: str) -> None:
    how, back, said, root = BROKEN[name]
    machine.sh(how)
    try:
        found = roots(machine)
        assert said in words(machine)
        assert root in found
    finally:
        machine.sh(back)


def test_another_card_in_the_slot_that_these_modules_do_not_know(machine: Machine) -> None:
    """A GTX 1080, which has no GSP: NVIDIA's open modules refuse it."""
    path = machine.node.directory / "vm/machine.json"
    data = json.loads(path.read_text()) | {"devices": devices.describe(("10de:1b80",))}
    path.write_text(json.dumps(data))
    machine.cut_power()
    assert "is not supported by open" in machine.sh("dmesg")
    assert "nvrm-needs-proprietary" in roots(machine)
