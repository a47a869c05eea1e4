"""The GPUs of a pool against each other: what one machine alone cannot show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpunode.core.grouped import grouped
from gpunode.core.late import dataclass
from gpunode.core.model import Check, NodeFacts
from gpunode.core.spec.rollout import RolloutSpec

_FIX = "gpunode detect shows every GPU; firmware comes from the vendor of the machine, the driver by gpunode provision"


@dataclass(frozen=True, kw_only=True)
class _PoolGpu:
    host: str
    index: int
    model: tuple[str, str]  # PCI id, and that of the board
    vbios: str
    driver: str


def pool_checks(nodes: Mapping[str, tuple[RolloutSpec, NodeFacts]]) -> dict[str, list[Check]]:
    """Host → gpu.alike: other firmware or drivers than most GPUs of its model in its pool, other models than a pool
    with a name has.  Nothing for GPUs that have no like."""
    pools: dict[RolloutSpec, dict[str, NodeFacts]] = {}
    for host, (rollout, facts) in nodes.items():
        pools.setdefault(rollout, {})[host] = facts
    return {host: found for rollout, pool in pools.items() for host, found in _pool(rollout.pool, pool).items()}


def _pool(name: str, pool: Mapping[str, NodeFacts]) -> dict[str, list[Check]]:
    by_model = grouped((gpu.model, gpu) for host, facts in pool.items() for gpu in _gpus(host, facts))
    different: dict[str, list[str]] = {}
    unread: dict[str, list[str]] = {}
    alike: dict[str, list[str]] = {}
    for gpus in (gpus for gpus in by_model.values() if len(gpus) > 1):
        for gpu, words in _others(gpus):
            different.setdefault(gpu.host, []).append(words)
        for gpu in gpus:
            alike.setdefault(gpu.host, [])
            if not gpu.vbios or not gpu.driver:
                unread.setdefault(gpu.host, []).append(f"GPU {gpu.index}")
    for host, words in _other_models(pool) if name else ():
        different.setdefault(host, []).append(words)
        alike.setdefault(host, [])
    return {host: [_check(different.get(host, []), unread.get(host, []))] for host in alike}


def _check(different: Sequence[str], unread: Sequence[str]) -> Check:
    if different:
        return Check(id="gpu.alike", status="warning", message="; ".join(different), fix=_FIX)
    if unread:
        text = f"VBIOS or driver not read: {', '.join(unread)}"
        return Check(id="gpu.alike", status="not-proven", message=text, fix="nvidia-smi -q on the node")
    return Check(id="gpu.alike", status="passed", message="VBIOS and driver as most GPUs of the model in the pool")


def _gpus(host: str, facts: NodeFacts) -> Iterator[_PoolGpu]:
    models = {gpu.slot: (gpu.id, gpu.subsystem) for gpu in facts.gpus}
    for gpu in facts.nvml:
        if gpu.slot in models:
            yield _PoolGpu(
                host=host, index=gpu.index, model=models[gpu.slot], vbios=gpu.vbios, driver=facts.driver.loaded
            )


def _others(gpus: Sequence[_PoolGpu]) -> Iterator[tuple[_PoolGpu, str]]:
    """(GPU, in words what it has and as many or more of its model have not)."""
    for what, values in (("VBIOS", [gpu.vbios for gpu in gpus]), ("driver", [gpu.driver for gpu in gpus])):
        for gpu, value in zip(gpus, values, strict=True):
            if other := _more_common(value, values):
                yield gpu, f"GPU {gpu.index} has {what} {value}, and {other} of its model in the pool"


def _other_models(pool: Mapping[str, NodeFacts]) -> Iterator[tuple[str, str]]:
    models = {
        host: ", ".join(f"{count} × {pci_id}" for pci_id, count in sorted(Counter(g.id for g in facts.gpus).items()))
        for host, facts in pool.items()
    }
    for host, mine in models.items():
        if other := _more_common(mine, list(models.values())):
            yield host, f"its GPUs are {mine}, and {other} in the pool"


def _more_common(mine: str, values: Sequence[str]) -> str:
    """«3 have X», where at least as many have X as have mine; "" where they have not, or mine was not read."""
    counts = Counter(filter(None, values))
    best = max(((count, value) for value, count in counts.items() if value != mine), default=(0, ""))
    has = "has" if best[0] == 1 else "have"
    return f"{best[0]} {has} {best[1]}" if mine and best[0] >= counts[mine] else ""
