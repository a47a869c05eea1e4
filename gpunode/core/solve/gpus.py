"""PCI ids → the models a driver must serve, and the driver branches each of them allows."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.core.knowledge import Branch, GpuModel, Knowledge
from gpunode.core.numbers import version_tuple
from gpunode.core.solve.case import Notes, SolveRequest


def known_gpus(ids: Sequence[str], knowledge: Knowledge, notes: Notes, *, by_hand: bool) -> tuple[GpuModel, ...]:
    """The models of the ids, each once.  `by_hand`: the user chose the branch, so an unknown id is only warned of."""
    models = []
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
            models.append(model)
        elif pci_id in knowledge.legacy:
            old = knowledge.legacy[pci_id]
            notes.refuse(
                f"{pci_id} {old.name} ({old.arch}): branch {old.last_branch} was the last to drive it, and no "
                "container software supports that",
                "take the card out, or use a GPU of 2012 or later",
            )
        elif by_hand:
            notes.warn("GPU", f"{pci_id} is not known; the driver branch was chosen by hand", "")
        else:
            notes.refuse(*_unknown(pci_id, knowledge))
    for model in models:
        capability = f", compute capability {model.compute_capability}" if model.compute_capability else ""
        notes.because(
            "GPU",
            f"{model.id} is {model.name} ({model.chip}, {model.arch}{capability})"
            + (f"; confidence {model.confidence}" if model.confidence else ""),
            f"pci.ids and NVIDIA's id tables ({model.source})",
        )
    return tuple(models)


def virtual_gpus(request: SolveRequest, knowledge: Knowledge) -> list[tuple[str, str]]:
    """The ids of GPUs that are virtual, by their own link or name or by their subsystem, each with what tells it."""
    found = dict.fromkeys(request.virtual_functions, "")
    for pci_id, _, subsystem in (both.partition(" ") for both in request.subsystems):
        known = knowledge.subsystems.get(pci_id)
        if known and subsystem in known.virtual:
            found.setdefault(pci_id, f", by its subsystem {subsystem}")
    return list(found.items())


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


def first_driver(model: GpuModel, knowledge: Knowledge) -> tuple[int, ...]:
    """The oldest driver for the model, as a branch or a whole version; () when none is known."""
    first = (knowledge.architectures[model.arch].first_branch,)
    return max(first, version_tuple(model.first_release)) if first[0] else ()


def serves(branch: Branch, model: GpuModel, knowledge: Knowledge, *, version: str = "") -> bool:
    """Whether the branch drives the model: in that version, else in the newest that is known of it."""
    first, last = first_driver(model, knowledge), knowledge.architectures[model.arch].last_branch
    if not first or branch.branch < first[0] or branch.branch > (last or 9999):
        return False
    exact = version_tuple(version or branch.latest)
    if branch.branch == first[0] and exact and exact[0] == first[0] and exact < first:
        return False
    orders = {name: arch.order for name, arch in knowledge.architectures.items()}
    low, high = orders.get(branch.min_arch, 0), orders.get(branch.max_arch, len(orders))
    return low <= orders[model.arch] <= high


def range_text(model: GpuModel, knowledge: Knowledge) -> str:
    """`Tesla P40 (Pascal) takes branches 367 to 580`; `RTX 5060 (Blackwell) takes drivers 570.153.02 and later`."""
    first, last = first_driver(model, knowledge), knowledge.architectures[model.arch].last_branch
    if not first:
        return f"{model.name} ({model.arch}): no branch is known to drive it"
    exact = model.first_release if len(first) > 1 else ""
    what = f"drivers {exact}" if exact else f"branches {first[0]}"
    return f"{model.name} ({model.arch}) takes {what} {f'to {last}' if last else 'and later'}"
