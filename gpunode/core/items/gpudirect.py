"""Kernel modules for GPUDirect beside DMA-BUF, which needs none: nvidia-peermem and GDRCopy's gdrdrv, only where asked.

Source of what nvidia-peermem needs: github NVIDIA/open-gpu-kernel-modules 595.45.04, kernel-open/nvidia-peermem: built
without the RDMA stack's peer memory it is a stub that cannot be loaded, and fails at each boot.  Which kernels have it:
Module.symvers of Ubuntu 5.15.0-97-generic (ib_uverbs exports it); not Ubuntu 6.8.0-151-generic, Debian 6.1.0-50-amd64.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.core.items.activation import Module
from gpunode.core.items.file import file_if
from gpunode.core.items.item import Found, Question
from gpunode.core.model import NodeFacts, Problem
from gpunode.core.numbers import version_tuple

CONF = "/etc/modules-load.d/gpunode-gpudirect.conf"
_HEAD = "# written by gpunode: modules for GPUDirect that gpunode.yml asks for\n"
_DMABUF_SINCE = (5, 12)  # the first Linux whose RDMA takes a DMA-BUF


def wanted(question: Question) -> Found:
    """The modules, at once and at each boot; without any a file that is there goes."""
    modules = question.solution.tuning.modules
    text = _HEAD + "".join(f"{name}\n" for name in modules) if modules else ""
    yield from file_if(question.facts, text, role="fabric", path=CONF)
    if question.spec.image.load:
        yield from (Module(role="fabric", module=name) for name in modules)


def impossible(module: str, facts: NodeFacts) -> Iterator[Problem]:
    """Why a module cannot be had on a node; what was not read forbids nothing."""
    state = facts.tuning
    if module in facts.modules or "tuning" in facts.unread:
        return
    if module == "gdrdrv":
        if not state.gdrdrv:
            yield Problem(
                what="tuning.gdrcopy: GDRCopy's module gdrdrv is not on this node, and no repository that gpunode "
                "knows has it",
                fix="install gdrdrv-dkms (rpm: gdrcopy-kmod) of https://github.com/NVIDIA/gdrcopy on it, or leave "
                "tuning.gdrcopy out",
            )
    elif why := _without_peermem(facts):
        yield Problem(what=f"tuning.peermem: {why}", fix="leave tuning.peermem out: open kernel modules use DMA-BUF")


def _without_peermem(facts: NodeFacts) -> str:
    state, stack = facts.tuning, facts.tuning.ofed or "the RDMA stack"
    if not facts.rdma:
        return "" if "links" in facts.unread else "this node has no RDMA device"
    if state.peer_memory == "no":
        return f"{stack} of the kernel has no peer memory (DOCA-OFED's has), without which nvidia-peermem does not load"
    if state.peermem == "stub":
        return (
            f"the driver's nvidia-peermem was built without peer memory, and does not load: have its modules built "
            f"again (dkms), now that {stack} is there"
        )
    return "the loaded driver has no nvidia-peermem" if facts.driver.loaded and state.peermem == "absent" else ""


def dmabuf_lacks(facts: NodeFacts) -> list[str]:
    """What DMA-BUF needs and this node has not, as far as it was read.

    Sources: docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html; siderolabs/talos 12021.
    """
    return [
        *(["the open kernel modules of NVIDIA"] if facts.driver.loaded_flavour == "proprietary" else []),
        *(["Linux 5.12 or later"] if facts.kernel and version_tuple(facts.kernel)[:2] < _DMABUF_SINCE else []),
        *(["a kernel with CONFIG_PCI_P2PDMA"] if facts.tuning.kernel_options.get("PCI_P2PDMA") == "n" else []),
    ]


def dmabuf_unread(facts: NodeFacts) -> str:
    """What would have to be read to say whether DMA-BUF works; "" where all was."""
    if "PCI_P2PDMA" not in facts.tuning.kernel_options:
        return "the kernel's options"
    return "" if facts.driver.loaded_flavour and facts.kernel else "the driver's flavour or the kernel's release"
