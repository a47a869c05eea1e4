"""PCI ids → the models a driver must serve, and the driver branches each of them allows."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.core.knowledge import Branch, GpuModel, Knowledge
from gpunode.core.solve.case import Notes


def known_gpus(ids: Sequence[str], knowledge: Knowledge, notes: Notes, *, by_hand: bool) -> tuple[GpuModel, ...]:
    """The models of the ids, each once.  `by_hand`: the user chose the branch, so an unknown id is only warned of."""
    found = []
    for pci_id in dict.fromkeys(i.lower() for i in ids):
        model = knowledge.gpu(pci_id)
        if (model and model.kind == "not-a-gpu") or pci_id in knowledge.nvswitches:
            notes.because("GPU", f"{pci_id} is a bridge, not a GPU: left out", model.source if model else "")
        elif model and model.kind == "tegra":
            notes.refuse(
                f"{pci_id} {model.name} is an embedded GPU: its driver is part of JetPack or DRIVE OS",
                "use NVIDIA's image for the board; gpunode serves PCI GPUs of servers and workstations",
            )
        elif model:
            found.append(model)
        elif pci_id in knowledge.legacy:
            old = knowledge.legacy[pci_id]
            notes.refuse(
                f"{pci_id} {old.name} is older than Kepler: branch {old.last_branch} was the last to drive it, and no "
                "container software supports it",
                "take the card out, or use a GPU of 2012 or later",
            )
        elif by_hand:
            notes.because("warning: GPU", f"{pci_id} is not known; the driver branch was chosen by hand", "")
        else:
            notes.refuse(*_unknown(pci_id, knowledge))
    for model in found:
        capability = f", compute capability {model.compute_capability}" if model.compute_capability else ""
        notes.because(
            "GPU",
            f"{model.id} is {model.name} ({model.chip}, {model.arch}{capability})"
            + (f"; confidence {model.confidence}" if model.confidence else ""),
            f"pci.ids and NVIDIA's id tables ({model.source})",
        )
    return tuple(found)


def _unknown(pci_id: str, knowledge: Knowledge) -> tuple[str, str]:
    if not pci_id.startswith("10de:"):
        return f"{pci_id} is not an NVIDIA device (vendor 10de)", "gpunode sets up NVIDIA GPUs only"
    near = sorted(knowledge.gpus.values(), key=lambda m: abs(_number(m.id) - _number(pci_id)))[:2]
    known = " and ".join(f"{m.id} {m.name} ({m.arch})" for m in near)
    return (
        f"GPU {pci_id} is not known; nearest known ids: {known}",
        "update gpunode, or set driver.branch by hand (--driver BRANCH): it is then taken with a warning",
    )


def _number(pci_id: str) -> int:
    try:
        return int(pci_id.partition(":")[2], 16)
    except ValueError:
        return 0


def window(model: GpuModel, knowledge: Knowledge) -> tuple[int, int]:
    """First and last branch (9999: no last one) that drive the model; first 9999 when none is known."""
    arch = knowledge.architectures[model.arch]
    named = int(model.first_release.partition(".")[0]) if model.first_release else 0
    # 515.43.04 is the first release there is: to be named in it says nothing about older drivers
    first = max(arch.first_branch, named if named > 515 else 0)
    return (first if arch.first_branch else 9999), (arch.last_branch or 9999)


def serves(branch: Branch, model: GpuModel, knowledge: Knowledge) -> bool:
    """Whether the branch drives the model."""
    first, last = window(model, knowledge)
    orders = {name: arch.order for name, arch in knowledge.architectures.items()}
    low, high = orders.get(branch.min_arch, 0), orders.get(branch.max_arch, len(orders))
    return first <= branch.branch <= last and low <= orders[model.arch] <= high


def range_text(model: GpuModel, knowledge: Knowledge) -> str:
    """`Tesla P40 (Pascal) takes branches 367 to 580`."""
    first, last = window(model, knowledge)
    if first == 9999:
        return f"{model.name} ({model.arch}): no branch is known to drive it"
    return f"{model.name} ({model.arch}) takes branches {first} {'and later' if last == 9999 else f'to {last}'}"
