"""What a node should offer by its pool, and whether it does: names and least numbers of resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gpunode.core.sharing.rules import cuts, mig_profiles
from gpunode.core.spec.kubernetes import SharingSpec
from gpunode.kube.core.quantity import quantity
from gpunode.kube.core.render.dra import DRIVER
from gpunode.kube.core.render.gpushare import MEMORY
from gpunode.kube.core.render.plugin_config import mig_resource, mig_strategy, shared_resources
from gpunode.kube.core.usage import WHOLE


def expected(sharing: SharingSpec, labels: Mapping[str, str] = {}, gpus: int = 0) -> dict[str, int]:
    """Resource → the least number that a node offers which shares so; with 0 it may be there.  {}: any of GPUs.

    `labels` of the node: where GPU Feature Discovery counted GPUs or instances, as many.  `gpus` that the host has, 0
    where nobody has counted: then one.
    """
    if sharing.strategy == "gpushare":
        return {MEMORY: 1}
    if sharing.strategy == "dra":
        unit = " (MiB)" if sharing.dra.shares == "memory" else ""
        return {f"{DRIVER}/gpu{unit}": 0, f"{DRIVER}/mig{unit}": 0}
    shared = shared_resources(sharing) if sharing.replicas else ()
    least = {}
    for resource, count in _unshared(sharing, gpus).items():
        counted = resource != WHOLE or not cuts(sharing)  # of GPUs that are cut the label counts one or the other
        most = max(count, quantity(labels.get(f"{resource}.count", "0"))) if count and counted else count
        name = f"{resource}.shared" if resource in shared and sharing.rename_by_default else resource
        least[name] = most * (sharing.replicas if resource in shared else 1)
    return least


def _unshared(sharing: SharingSpec, gpus: int) -> Mapping[str, int]:
    """Resources of so many GPUs; with 0 those of the GPUs that the spec names, of one where it names none."""
    if not cuts(sharing):
        return {WHOLE: gpus or 1}
    mig = sharing.mig
    if not mig_profiles(sharing):
        return {}  # cut by somebody else
    each = [mig.gpus.get(str(index), mig.profiles) for index in range(gpus)] or mig.gpus.values() or [mig.profiles]
    layouts = list(map(Counter, each))
    instances = {name: count for name, count in sum(layouts, Counter[str]()).items() if count}
    if mig_strategy(sharing) == "single":
        return {WHOLE: sum(instances.values())}
    whole = [layout for layout in layouts if not layout.total()]
    uncut = whole or not (gpus or mig.profiles)
    others = {name: 0 for name, count in mig.profiles.items() if count}
    found = {mig_resource(name): count for name, count in {**others, **instances}.items()}
    return {**found, WHOLE: len(whole) if gpus else 0} if uncut else found


def lack(should: Mapping[str, int], there: Mapping[str, int]) -> str:
    """What a node offers that offers too little, or what its pool does not share; "" where it is right."""
    short = any(there.get(resource, 0) < least for resource, least in should.items())
    other = bool(should) and any(resource not in should for resource in there)
    if there and not short and not other:
        return ""
    amounts = [f"{least} {resource}" for resource, least in should.items() if least]
    wanted = f"at least {', '.join(amounts)}" if amounts else " or ".join(should) or "GPUs"
    offers = ", ".join(f"{count} {resource}" for resource, count in there.items()) or "no GPU"
    return f"it offers {offers}, and should offer {wanted}{' and nothing else' if other else ''}"
