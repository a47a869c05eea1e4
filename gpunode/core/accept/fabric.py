"""What joins the GPUs of a machine, by the probe: floors hold for one of these classes."""

from __future__ import annotations

from collections import Counter

from gpunode.core.accept.floors import Machine
from gpunode.core.model import NodeFacts


def machine_of(facts: NodeFacts) -> Machine:
    """`fabric`: nvswitch, nvlink (each GPU to each), nvlink-some (bridged pairs, two quads), pcie, none (one GPU)."""
    models = Counter(gpu.id for gpu in facts.gpus)
    model = next(iter(models)) if len(models) == 1 else ""
    return Machine(model=model, gpus=len(facts.gpus), fabric=_fabric(facts))


def _fabric(facts: NodeFacts) -> str:
    if len(facts.gpus) < 2:
        return "none"
    if facts.nvswitches or facts.nvlink5_fabric or any(g.fabric_state == "Completed" for g in facts.nvml):
        return "nvswitch"
    names = facts.topology.names
    gpus = [number for number, name in enumerate(names) if name.startswith("GPU")]
    joined = [facts.topology.links[a][b].startswith("NV") for a in gpus for b in gpus if a != b]
    if not joined:
        return "unknown"
    return "nvlink" if all(joined) else "nvlink-some" if any(joined) else "pcie"
