"""Settings of the host on a real kernel: nouveau in the initramfs, modules at boot, ACS of bridges, a governor.

Two P40 behind a switch, one of them bound to nouveau, on a machine that looks like one of metal (vm_hardware.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import vm_hardware as hardware
from test_vm import modules
from vm_node import MARKS, Machine

from gpunode.lab.machine import podman

pytestmark = MARKS

DRIVER = {
    "driver": {"branch": "580", "modules": "precompiled"},
    "toolkit": {"version": "none"},
    "runtimes": {"containerd": {"manage": "ignore"}},
}
ACS = {"tuning": {"acs": "off"}}
TUNING = {"acs": "off", "governor": "performance", "iommu": "passthrough", "gdrcopy": "load"}
# in place of GDRCopy's module one of the kernel's by that name, without the signature
GDRDRV = (
    "cd /lib/modules/$(uname -r) && mkdir extra && "
    "zstd -dcq $(modinfo -n parman) | LC_ALL=C sed s/parman/gdrdrv/g | head -c -28 >extra/gdrdrv.ko && depmod"
)
ARGUMENTS = "/etc/default/grub.d/t-acs.cfg"
HOLDER = "t-holder"
HOOK = "/etc/initramfs-tools/hooks/t-nouveau"
ADD = """#!/bin/sh
[ "$1" != prereqs ] || exit 0
. /usr/share/initramfs-tools/hook-functions
manual_add_modules nouveau
"""


class Server(Machine):
    """What the kernel says of the settings."""

    def become(self, data: dict[str, Any]) -> None:
        """The machine of this module, in its machine.json."""
        folder = self.node.directory / "vm"
        data["arguments"] = [*hardware.switch(), *hardware.bare(folder), *hardware.p_states(folder, data["cpus"])]
        for device in data["devices"]:
            hardware.below(device)
        hardware.for_nouveau(data["devices"][0])

    def ports(self) -> list[str]:
        """The ports above the GPUs."""
        slots = " ".join(self.bound())
        paths = self.sh(f"for s in {slots}; do dirname $(readlink -f /sys/bus/pci/devices/$s); done")
        return [path.rpartition("/")[2] for path in paths.split()]

    def redirects(self) -> list[bool]:
        """Whether the ports above the GPUs redirect, by setpci's word."""
        words = [self.sh(f"setpci -s {port} ECAP_ACS+6.w").strip() for port in self.ports()]
        return [bool(int(word, 16) & 0x2C) for word in words]

    def governors(self) -> set[str]:
        return set(self.sh("cat /sys/devices/system/cpu/cpufreq/policy*/scaling_governor").split())

    def domains(self) -> set[str]:
        """How the IOMMU treats the GPUs."""
        slots = " ".join(self.bound())
        return set(self.sh(f"for s in {slots}; do cat /sys/bus/pci/devices/$s/iommu_group/type; done").split())

    def initramfs(self) -> set[str]:
        """Names in that of the kernel that runs, by the distribution's program, which takes minutes.

        With the driver's packages there the distribution's programs leave nouveau out of it.
        """
        return set(self.sh("lsinitramfs /boot/initrd.img-$(uname -r)").split())

    def loaded(self, module: str) -> bool:
        return module in self.sh("cut -d ' ' -f 1 /proc/modules").split()


@pytest.fixture(scope="module")
def machine(lab_up: Any, run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    shape = {"machine": "vm", "engines": ("containerd",), "gpus": ("p40", "p40")}
    lab = lab_up(distro="ubuntu:24.04", name="t-vm-settings", **shape)
    made = Server(lab, run_gpunode, tmp_path_factory.mktemp("spec"), DRIVER)
    made.alter(made.become)
    yield made


def test_under_secure_boot_acs_is_refused_with_the_argument_that_works(machine: Server) -> None:
    assert machine.sh("systemd-detect-virt || :").strip() == "none"
    assert "[integrity]" in machine.sh("cat /sys/kernel/security/lockdown")
    assert machine.redirects() == [True, True], "the kernel has turned it on for the IOMMU"
    tried = machine.sh(f"setpci -s {machine.ports()[0]} ECAP_ACS+6.w=0:2c 2>&1 || :")
    assert "Operation not permitted" in tried and machine.redirects() == [True, True]

    machine.set({"driver": {"method": "preinstalled"}, **ACS, "toolkit": {"version": "none"}})
    refused = [text for text in machine.json("plan", exit=None)["problems"] if "tuning.acs" in str(text)]
    assert len(refused) == 1 and "the kernel is locked down" in str(refused[0]), refused
    argument = f"pci=disable_acs_redir={';'.join(machine.ports())}"
    assert f"'{argument}'" in str(refused[0])

    line = f"GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX '{argument}'\""
    assert not machine.lab.run(machine.node, f"cat >{ARGUMENTS} && update-grub", stdin=line).returncode
    machine.reboot()
    assert argument in machine.sh("cat /proc/cmdline").split() and machine.redirects() == [False, False]
    assert not [text for text in machine.json("plan", exit=None)["problems"] if "tuning.acs" in str(text)]
    machine.sh(f"rm {ARGUMENTS} && update-grub && sync")  # the power is cut next


@pytest.fixture(scope="module")
def server(machine: Server) -> Server:
    """Without Secure Boot, with GDRCopy, and with nouveau in the initramfs, whose udev loads what fits."""
    machine.sh(GDRDRV)
    hook = machine.lab.run(machine.node, f"cat >{HOOK} && chmod 755 {HOOK} && update-initramfs -u && sync", stdin=ADD)
    assert not hook.returncode, hook
    podman("exec", machine.node.container, "cp", hardware.FIRMWARE, "/vm/variables.fd")
    machine.cut_power()
    assert "[none]" in machine.sh("cat /sys/kernel/security/lockdown")
    return machine


def untouched(machine: Server) -> None:
    """As the kernel has it all by itself; nouveau is there before the file system of root."""
    assert sorted(machine.bound().values()) == ["", "nouveau"] and modules(machine) == {"nouveau"}
    said = machine.sh("journalctl -k -b -o cat | grep -o -e 'NVIDIA GP102' -e 'EXT4-fs (vda2): mounted'").splitlines()
    assert said[0] == "NVIDIA GP102", "nouveau comes from the initramfs"
    assert machine.redirects() == [True, True] and machine.domains() == {"DMA"}
    assert machine.governors() == {"schedutil"} and not machine.loaded("gdrdrv")


def test_nouveau_in_use_and_all_settings_come_by_a_reboot(server: Server) -> None:
    machine = server
    untouched(machine)
    machine.sh(f"systemd-run -q --unit {HOLDER} sh -c 'exec sleep infinity </dev/dri/card0'; sleep 2")
    was = machine.boot_id()
    machine.set({**DRIVER, "tuning": TUNING})
    with machine.timed("provision, with a reboot"):
        done = machine.json("provision", "--yes", exit=None)
    assert machine.failed(done) == ["driver.smi"], done
    assert any("rebooted: " in text and "nouveau is in use" in text for text in done["changed"]), done["changed"]
    assert machine.boot_id() != was
    in_force(machine)
    machine.reboot()
    in_force(machine)
    assert "etc/modprobe.d/gpunode-nouveau.conf" in machine.initramfs()
    with machine.timed("second run"):
        assert machine.json("provision", "--yes", exit=None)["changed"] == []


def in_force(machine: Server) -> None:
    assert set(machine.bound().values()) == {"nvidia"} and modules(machine) == {"nvidia"}
    assert machine.redirects() == [False, False] and machine.governors() == {"performance"}
    assert machine.domains() == {"identity"} and machine.loaded("gdrdrv")


def test_an_uninstall_restores_acs_and_governor_at_once_and_the_rest_by_a_reboot(server: Server) -> None:
    with server.timed("uninstall"):
        server.gpunode("uninstall", "--yes", exit=None)
    assert server.redirects() == [True, True] and server.governors() == {"schedutil"}
    server.reboot()
    untouched(server)


def test_nouveau_that_nobody_uses_goes_without_a_reboot(server: Server) -> None:
    was = server.boot_id()
    server.set(DRIVER)
    with server.timed("provision"):
        done = server.json("provision", "--yes", exit=None)
    assert server.failed(done) == ["driver.smi"] and "unloaded nouveau" in "\n".join(done["changed"]), done
    assert server.boot_id() == was
    assert set(server.bound().values()) == {"nvidia"} and modules(server) == {"nvidia"}
