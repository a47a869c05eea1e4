"""What a node should offer by its pool, and whether it does: names and numbers of resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gpunode.core.plain import mapping, mappings
from gpunode.core.sharing.rules import cuts, mig_profiles
from gpunode.core.spec.kubernetes import SharingSpec
from gpunode.kube.core.cluster import Object
from gpunode.kube.core.quantity import quantity
from gpunode.kube.core.render.dra import DRIVER
from gpunode.kube.core.render.gpushare import MEMORY
from gpunode.kube.core.render.plugin_config import mig_resource, mig_strategy, shared_resources, sharing_of
from gpunode.kube.core.usage import WHOLE, resources_of

MANY = 1 << 62


def expected(sharing: SharingSpec, labels: Mapping[str, str] = {}, gpus: int = 0) -> dict[str, range]:
    """Resource → how many a node offers that shares so; from 0 on: it may be there.  {}: any of GPUs.

    `gpus` that the host has: as many and no more; 0 where nobody has counted: then those of one GPU at least.
    `labels` of the node: by GPU Feature Discovery at least as many, since of several models it counts one.
    """
    if sharing.strategy == "gpushare":
        return {MEMORY: range(1, MANY)}
    if sharing.strategy == "dra":
        unit = " (MiB)" if sharing.dra.shares == "memory" else ""
        return {f"{DRIVER}/gpu{unit}": range(MANY), f"{DRIVER}/mig{unit}": range(MANY)}
    shared = shared_resources(sharing) if sharing.replicas else ()
    # labels may be of a former layout: of instances of `single` the product is MODEL-MIG-PROFILE
    old = gpus if cuts(sharing) else "-MIG-" in labels.get("nvidia.com/gpu.product", "")
    found = {}
    for resource, count in _unshared(sharing, gpus).items():
        counted = count and not old and (resource != WHOLE or not cuts(sharing))  # of cut GPUs it counts one or other
        most = max(count, quantity(labels.get(f"{resource}.count", "0"))) if counted else count
        name = f"{resource}.shared" if resource in shared and sharing.rename_by_default else resource
        least = most * (sharing.replicas if resource in shared else 1)
        found[name] = range(least, least + 1 if gpus else MANY)
    return found


def _unshared(sharing: SharingSpec, gpus: int) -> Mapping[str, int]:
    """Resources of so many GPUs; with 0 those of the GPUs that the spec names, of one where it names none."""
    if not cuts(sharing):
        return {WHOLE: gpus or 1}
    mig = sharing.mig
    if not mig_profiles(sharing):
        return {}  # cut by somebody else
    each = [mig.gpus.get(str(index), mig.profiles) for index in range(gpus)] or mig.gpus.values() or [mig.profiles]
    layouts = list(map(Counter, each))
    instances = sum(layouts, Counter[str]())  # without those of 0
    if mig_strategy(sharing) == "single":
        return {WHOLE: sum(instances.values())}
    whole = [layout for layout in layouts if not layout.total()]
    uncut = whole or not (gpus or mig.profiles)
    others = {} if gpus else {name: 0 for name, count in mig.profiles.items() if count}
    found = {mig_resource(name): count for name, count in {**others, **instances}.items()}
    return {**found, WHOLE: len(whole) if gpus else 0} if uncut else found


def gpus_of(text: str, node: Object) -> int:
    """How many GPUs a node has whose device plugin has such a file; 0 where that does not say, or some are ill."""
    sharing, strategy = sharing_of(text)
    way = mapping(sharing, *mapping(sharing))
    name = f"{WHOLE}.shared" if way.get("renameByDefault") else WHOLE
    most, total = (resources_of(node, what).get(name, 0) for what in ("capacity", "allocatable"))
    replicas = max([1, *(quantity(str(one.get("replicas"))) for one in mappings(way, "resources"))])
    return total // replicas if strategy == "none" and total == most else 0


def lack(should: Mapping[str, range], there: Mapping[str, int]) -> str:
    """What a node offers that offers too little or too much, or what its pool does not share; "" where it is right."""
    wrong = any(there.get(resource, 0) not in amounts for resource, amounts in should.items())
    other = bool(should) and any(resource not in should for resource in there)
    if there and not wrong and not other:
        return ""
    least = "at least " if any(amounts.stop == MANY for amounts in should.values()) else ""
    amounts = ", ".join(f"{amounts.start} {resource}" for resource, amounts in should.items() if amounts.start)
    wanted = f"{least}{amounts}" if amounts else " or ".join(should) or "GPUs"
    offers = ", ".join(f"{count} {resource}" for resource, count in there.items()) or "no GPU"
    return f"it offers {offers}, and should offer {wanted}{' and nothing else' if other else ''}"
