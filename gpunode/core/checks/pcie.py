"""PCIe links of GPUs and network cards, judged, and what stands between two of them.

What hardware should reach and does not is a failure, what a setting of the host slows down is a warning.  A GPU's own
link sleeps with it, so its generation counts only while it works; its width always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gpunode.core.facts.pcie import PcieTree, redirects
from gpunode.core.model import Check, NodeFacts, PciLink
from gpunode.core.numbers import whole
from gpunode.core.printable import few

_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # GT/s; 5 GT/s of older kernels
_WORKS = ("P0", "P1", "P2")
_RESEAT = "reseat the card, its riser and cables; compare with lspci -vv (LnkCap, LnkSta)"


def pcie_checks(facts: NodeFacts) -> Iterator[Check]:
    """pcie.width, pcie.generation, pcie.errors."""
    tree = PcieTree.of(facts)
    if any(gpu.pcie_width for gpu in facts.nvml):  # else this driver was not asked
        yield _widths(facts, tree)
        yield _generations(facts, tree)
    yield from _errors(tree)


def _widths(facts: NodeFacts, tree: PcieTree) -> Check:
    bad, unread, words = [], [], []
    ids = {gpu.slot: gpu.id for gpu in facts.gpus}
    for gpu in facts.nvml:
        now, most, name = whole(gpu.pcie_width), whole(gpu.pcie_width_max), f"GPU {gpu.index}"
        if gpu.pcie_width == "N/A":
            words.append(f"{name} reports none")
        elif not now or not most:
            unread.append(f"{name}: not read")
        elif now < most:
            port = tree.above(gpu.slot)
            reach = min(most, port.max_width) if port and port.max_width else 0
            like = [whole(o.pcie_width) for o in facts.nvml if ids.get(o.slot) == ids.get(gpu.slot)]
            if reach > now:
                bad.append(f"{name} has x{now}, and its slot and it can x{reach}")
            elif not reach and max(like) > now:
                bad.append(f"{name} has x{now}, and others of its model x{max(like)}")
            elif not reach:
                unread.append(f"{name} has x{now} of x{most}, and what its slot has is not seen")
            else:
                words.append(f"{name} has x{now}, all that its slot has")
    narrow, unknown = _cards(facts, tree, lambda link: (link.width or 0, link.max_width or 0))
    bad += [f"{slot} has x{now}, and its slot and it can x{reach}" for slot, now, reach in narrow]
    unread += [f"{slot}: its lanes were not read" for slot in unknown]
    return _checked("pcie.width", bad, unread, "; ".join(["PCIe links are as wide as they can be", *words]), _RESEAT)


def _generations(facts: NodeFacts, tree: PcieTree) -> Check:
    bad, unread, asleep, words = [], [], [], []
    for gpu in facts.nvml:
        now, most, name = whole(gpu.pcie_generation), whole(gpu.pcie_generation_max), f"GPU {gpu.index}"
        if gpu.pcie_generation == "N/A":
            words.append(f"{name} reports none")
        elif not now or not most:
            unread.append(f"{name}: not read")
        elif now < most and gpu.pstate in _WORKS:
            bad.append(f"{name} runs at Gen {now}, and its slot and it can Gen {most}")
        elif now < most and gpu.pstate in ("", "N/A"):
            unread.append(f"{name} is at Gen {now} of {most}, and whether it sleeps was not read")
        elif now < most:
            asleep.append(f"{name} sleeps ({gpu.pstate}) at Gen {now} of {most}: its link counts while it works")
    slow, unknown = _cards(facts, tree, lambda link: (_generation(link.speed), _generation(link.max_speed)))
    bad += [f"{slot} runs at Gen {now}, and its slot and it can Gen {reach}" for slot, now, reach in slow]
    unread += [f"{slot}: its speed was not read" for slot in unknown]
    check = _checked(
        "pcie.generation", bad, unread, "; ".join(["PCIe links are as fast as they can be", *words]), _RESEAT
    )
    if asleep and check.status == "passed":
        return Check(id=check.id, status="skipped", message="; ".join(asleep))
    return check


def _checked(check_id: str, bad: list[str], unread: list[str], good: str, fix: str) -> Check:
    if bad:
        return Check(id=check_id, status="failed", message="; ".join(bad), fix=fix)
    if unread:
        return Check(
            id=check_id, status="not-proven", message="; ".join(unread), fix="nvidia-smi -q; lspci -vv as root"
        )
    return Check(id=check_id, status="passed", message=good)


def _cards(
    facts: NodeFacts, tree: PcieTree, ability: Callable[[PciLink], tuple[int, int]]
) -> tuple[list[tuple[str, int, int]], list[str]]:
    """((slot, now, what both ends can) of network cards and switches with less, slots of those that were not read)."""
    gpus, less = {gpu.slot for gpu in facts.gpus}, []
    unknown = [port.slot for port in facts.rdma if port.slot and tree.bare and port.slot not in tree.links]
    for below, above in tree.cables():
        (now, most), (_, most_above) = ability(below), ability(above)
        if below.slot in gpus:
            continue
        if not now or not most or not most_above:
            unknown.append(below.slot)
        elif now < min(most, most_above):
            less.append((below.slot, now, min(most, most_above)))
    if facts.pcie and not facts.virtualization:
        unknown.append("all (whether this is a guest was not read)")
    return less, unknown


def _generation(speed: str) -> int:
    return _GENERATIONS.get(speed if "." in speed else f"{speed}.0", 0)


def _errors(tree: PcieTree) -> Iterator[Check]:
    """AER counters since boot; correctable ones have no limit that a vendor names, and are said only."""
    counted = [link for link in tree.links.values() if link.fatal is not None or link.nonfatal is not None]
    if not counted:
        return  # the kernel has none: the firmware keeps AER, or the machine has no PCI Express
    fatal = [f"{link.slot} {link.fatal} fatal" for link in counted if link.fatal]
    other = [f"{link.slot} {link.nonfatal} uncorrected" for link in counted if link.nonfatal]
    unread = [link.slot for link in counted if link.fatal is None or link.nonfatal is None]
    text = f"PCIe errors since boot: {', '.join([*fatal, *other])}"
    if fatal or other:
        yield Check(id="pcie.errors", status="failed" if fatal else "warning", message=text, fix=f"dmesg; {_RESEAT}")
    elif unread:
        yield Check(id="pcie.errors", status="not-proven", message=f"not read of {', '.join(unread)}")
    else:
        corrected = sum(link.correctable or 0 for link in counted)
        more = f" ({corrected} that were corrected)" if corrected else ""
        yield Check(id="pcie.errors", status="passed", message=f"no uncorrected PCIe error since boot{more}")


# ---------------------------------------------------------------- what stands between two devices


def peer_checks(facts: NodeFacts) -> Iterator[Check]:
    """pcie.acs and iommu.mode, where two of the GPUs and RDMA devices are behind the same PCIe switch.

    Sources: docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html (PCI Access Control Services), Linux
    Documentation/ABI/testing/sysfs-kernel-iommu_groups.
    """
    tree = PcieTree.of(facts)
    between, devices = tree.between(facts), tree.peers(facts)
    if not between:
        return
    if any(gpu.driver == "vfio-pci" for gpu in facts.gpus):
        text = "GPUs are given to guests (vfio-pci): ACS and IOMMU keep these apart"
        yield Check(id="pcie.acs", status="skipped", message=text)
        return
    words = {slot: tree.links[slot].acs for slot in between}
    bad = [slot for slot, word in words.items() if redirects(word)]
    unread = [slot for slot, word in words.items() if not word]
    if bad:
        text = f"ACS sends what GPUs and network cards say to each other through the CPU: {', '.join(sorted(bad))}"
        fix = "ACS off in the firmware, or at each boot: tuning.acs: off; by hand: setpci -s SLOT ECAP_ACS+6.w=0:2c"
        yield Check(id="pcie.acs", status="warning", message=text, fix=fix)
    elif unread:
        text = f"the ACS of {', '.join(sorted(unread))} was not read"
        yield Check(id="pcie.acs", status="not-proven", message=text, fix="probe as root")
    else:
        text = "no bridge between GPUs, or them and network cards, redirects"
        yield Check(id="pcie.acs", status="passed", message=text)
    yield _iommu({slot: tree.links[slot].iommu for slot in devices if slot in tree.links})


def _iommu(modes: Mapping[str, str]) -> Check:
    translated = sorted(slot for slot, mode in modes.items() if mode.startswith("DMA"))
    unread = sorted(slot for slot, mode in modes.items() if not mode)
    if translated:
        text = f"the IOMMU translates every access of {few(translated, 4)}"
        return Check(id="iommu.mode", status="warning", message=text, fix="tuning.iommu: passthrough")
    if unread:
        return Check(id="iommu.mode", status="not-proven", message=f"the IOMMU's mode of {few(unread, 4)} was not read")
    how = ", ".join(sorted(set(modes.values())))
    return Check(id="iommu.mode", status="passed", message=f"the IOMMU translates nothing ({how})")
