"""gpunode.yml, `tuning`: settings of a host that decide how fast its GPUs are.  Nothing is set by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gpunode.core.errors import InputError
from gpunode.core.grammar import SETTING, SYSCTL
from gpunode.core.late import dataclass, fields
from gpunode.core.spec.option import option

NEVER: Mapping[str, str] = {
    "isolcpus": "takes CPUs from the scheduler for good: the kubelet and every program lose them",
    "mitigations": "turns off what protects programs from each other; no training was shown to gain by it",
    "selinux": "turns off the access control of the host, containers included",
}


@dataclass(frozen=True, kw_only=True)
class TuningSpec:
    """Settings of the host, each off by default; docs/tuning.md has evidence and risk of each."""

    iommu: Literal["keep", "passthrough"] = option(
        "keep", "passthrough: iommu=pt (iommu.passthrough=1 on Arm) on the kernel's command line; takes a reboot"
    )
    acs: Literal["keep", "off"] = option(
        "keep", "off: no ACS redirect between GPUs and network cards behind one PCIe switch, at once and at each boot"
    )
    governor: Literal["keep", "performance"] = option(
        "keep", "frequency governor of all CPUs, at once and at each boot"
    )
    memlock: Literal["keep", "unlimited"] = option(
        "keep", "unlimited: what the container engine's and the kubelet's processes may lock; restarts both"
    )
    inotify: Literal["keep", "raised"] = option("keep", "raised: 65535 inotify instances and 524288 watches of a user")
    init_on_alloc: Literal["keep", "off"] = option(
        "keep", "off: memory is not cleared when it is given out (Grace only); takes a reboot"
    )
    numa_balancing: Literal["keep", "off"] = option("keep", "off: no automatic NUMA balancing (Grace only)")
    peermem: Literal["keep", "load"] = option(
        "keep", "load: the driver's nvidia-peermem, at once and at each boot, for programs that cannot use DMA-BUF"
    )
    gdrcopy: Literal["keep", "load"] = option(
        "keep", "load: GDRCopy's module gdrdrv, at once and at each boot, where it is installed"
    )
    sysctl: Mapping[str, str] = option(
        {},
        "net.… and vm.nr_hugepages (huge pages of the kernel's default size), such as {net.core.rmem_max: '536870912'}",
    )

    @property
    def given(self) -> tuple[str, ...]:
        """The keys of settings that are asked for, without `sysctl`."""
        return tuple(one.name for one in fields(self) if one.name != "sysctl" and getattr(self, one.name) != "keep")


def check_tuning(tuning: TuningSpec) -> None:
    """Raises InputError for a kernel setting that is none of these."""
    for key, value in tuning.sysctl.items():
        if not (SYSCTL.fits(key) and (key.startswith("net.") or key == "vm.nr_hugepages")):
            raise InputError.of(
                "tuning.sysctl",
                f"has {key!r}",
                expected="net.… or vm.nr_hugepages",
                fix="others are not gpunode's: put them in a file of your own in /etc/sysctl.d",
            )
        if not (value and SETTING.fits(value)):
            raise InputError.of(f"tuning.sysctl.{key}", f"is {value!r}", expected="words or numbers, one blank between")
