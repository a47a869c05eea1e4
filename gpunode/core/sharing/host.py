"""How a host shares its GPUs by itself: facts + spec + what MIG can do → SharingChoice.

MIG is cut on the host, with Kubernetes too, whose device plugin only offers what is there.  MPS is the host's own
without Kubernetes; with it the plugin brings the daemon.  Time-slicing needs nothing on a host: programs take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpunode.core.errors import GpunodeError
from gpunode.core.knowledge import Knowledge
from gpunode.core.model import MigLayout, MigPlace, NodeFacts, PciDevice, Problem, Reason, SharingChoice
from gpunode.core.numbers import version_tuple
from gpunode.core.sharing.mig import Product, find_profile, product_of
from gpunode.core.sharing.pack import place, why_not
from gpunode.core.sharing.rules import cuts, mig_profiles, sharing_problems
from gpunode.core.spec.kubernetes import SharingSpec

MIG_MANAGER = "nvidia-mig-manager"  # NVIDIA's own unit that restores MIG at boot
VOLTA = (7, 0)  # from it on MPS parts threads and memory: https://docs.nvidia.com/deploy/mps/


def choose_sharing(
    facts: NodeFacts, sharing: SharingSpec, products: Sequence[Product], knowledge: Knowledge, *, driver: str
) -> SharingChoice:
    """What the host has to do for `sharing`; problems where that cannot be.  `driver` is the version it will have."""
    problems = list(sharing_problems(sharing, "sharing"))
    is_cut = cuts(sharing)
    if sharing.strategy == "mig" and not mig_profiles(sharing) and not sharing.mig.gpus:
        problems.append(
            Problem(
                what="sharing.strategy is mig, and sharing.mig names no profile",
                fix="set sharing.mig.profiles, such as {1g.10gb: 7} (gpunode sharing profiles); none takes MIG off",
            )
        )
    if not is_cut and sharing.strategy != "mps":
        return SharingChoice(problems=tuple(problems))
    if is_cut and sharing.mig.manager != "gpunode":
        why = "sharing.mig.manager is mig-manager: gpunode kube apply gives it the layout, and nodes the label"
        reason = Reason(what="no MIG by gpunode on the host", why=why)
        return SharingChoice(problems=tuple(problems), reasons=() if problems else (reason,))
    if sharing.strategy == "mps":
        return _mps(facts, sharing, knowledge, problems)
    problems += _conflicts(facts)
    layouts = []
    for found in _layouts(facts, sharing, products, knowledge, driver):
        if isinstance(found, Problem):
            problems.append(found)
        else:
            layouts.append(found)
    off = sum(not layout.instances for layout in layouts)
    if facts.kubernetes.present and sharing.mig.strategy == "single" and 0 < off < len(layouts):
        what = f"{off} of {len(layouts)} GPUs stay whole, and sharing.mig.strategy is single"
        problems.append(Problem(what=what, fix="set sharing.mig.strategy: mixed; single wants every GPU cut alike"))
    if problems:
        return SharingChoice(problems=tuple(problems))
    return SharingChoice(mig=tuple(layouts), reasons=_reasons(layouts, products, facts))


def _reasons(layouts: Sequence[MigLayout], products: Sequence[Product], facts: NodeFacts) -> tuple[Reason, ...]:
    ids = {gpu.slot: gpu.id for gpu in facts.gpus}
    cut = {p.name: p for layout in layouts if layout.instances for p in products if ids[layout.slot] in p.ids}
    return tuple(
        Reason(
            what=f"MIG of {p.name}",
            why=f"no instance outlives a reboot, {'only the mode does' if p.mode == 'kept' else 'nor the mode'}: "
            "a unit cuts the GPUs at every boot",
            source=p.source,
        )
        for p in cut.values()
    )


def _mps(facts: NodeFacts, sharing: SharingSpec, knowledge: Knowledge, problems: Sequence[Problem]) -> SharingChoice:
    found = [*problems]
    for gpu in facts.gpus:
        model = knowledge.gpu(gpu.id)
        if model and model.compute_capability and version_tuple(model.compute_capability) < VOLTA:
            what = f"{model.name} has compute capability {model.compute_capability}: MPS parts nothing before 7.0"
            found.append(Problem(what=what, fix="share it by time-slicing"))
    if found:
        return SharingChoice(problems=tuple(found))
    if facts.kubernetes.present:
        why = "a kubelet is here, and the device plugin brings the MPS control daemon"
        return SharingChoice(reasons=(Reason(what="no MPS on the host", why=why),))
    return SharingChoice(mps=sharing.replicas)


def _conflicts(facts: NodeFacts) -> Iterator[Problem]:
    unit = facts.services.get(MIG_MANAGER)
    if unit and unit.enabled == "enabled":
        yield Problem(
            what=f"{MIG_MANAGER}.service cuts the GPUs at boot, by its own configuration",
            fix=f"systemctl disable --now {MIG_MANAGER}.service, or take sharing.mig out of gpunode.yml",
        )
    if facts.kubernetes.gpu_operator:
        yield Problem(
            what="the GPU Operator is on this node, and its MIG manager cuts the GPUs",
            fix="set sharing.mig.manager: mig-manager (gpunode kube apply then labels the node for it), or take "
            "sharing.mig out of gpunode.yml",
        )


def _layouts(
    facts: NodeFacts, sharing: SharingSpec, products: Sequence[Product], knowledge: Knowledge, driver: str
) -> Iterator[MigLayout | Problem]:
    """A layout or a problem for each GPU, in nvidia-smi's order."""
    gpus = sorted(facts.gpus, key=lambda gpu: gpu.slot)
    memory = {gpu.slot: gpu.memory_mib for gpu in facts.nvml}
    for number in sharing.mig.gpus:
        if number.isdecimal() and int(number) >= len(gpus):
            what = f"sharing.mig.gpus names GPU {number}, and the node has {len(gpus)}"
            yield Problem(what=what, fix=f"number them from 0 to {len(gpus) - 1}" if gpus else "take it out")
    for index, gpu in enumerate(gpus):
        counts = sharing.mig.gpus.get(str(index), sharing.mig.profiles)
        request = {profile: count for profile, count in counts.items() if count}  # 0 unsets what a parent group says
        if not request:
            yield MigLayout(slot=gpu.slot)
            continue
        try:
            product = product_of(gpu.id, products, knowledge, memory_mib=memory.get(gpu.slot))
            yield _layout(gpu, index, product, request, driver)
        except GpunodeError as error:
            yield Problem(what=f"GPU {index} ({gpu.slot}): {error.what}", fix=error.fix)


def _layout(
    gpu: PciDevice, index: int, product: Product, counts: Mapping[str, int], driver: str
) -> MigLayout | Problem:
    """Raises InputError for a profile that the product has not."""
    where = f"GPU {index} ({gpu.slot}, {product.name})"
    profiles = {find_profile(name, product): count for name, count in counts.items()}
    for profile, count in profiles.items():
        if count < 1:
            return Problem(what=f"{where}: {count} × {profile.name}", fix="write a number from 0")
        if driver and profile.since and version_tuple(driver)[0] < profile.since:
            what = f"{where}: {profile.name} came with driver branch {profile.since}, and {driver} is wanted"
            return Problem(what=what, fix=f"take a branch from {profile.since} on, or another profile")
    if driver and version_tuple(driver) < version_tuple(product.driver):
        what = f"{where}: driver {driver} cannot cut it"
        return Problem(what=what, fix=f"take a driver from {product.driver} on")
    names = {profile.name: count for profile, count in profiles.items()}
    placements = place(product, names)
    if placements is None:
        words = ", ".join(f"{count} × {name}" for name, count in names.items())
        return Problem(
            what=f"{where} cannot be cut into {words}: {why_not(product, names)}",
            fix=f"of each alone fit: {', '.join(f'{p.most} × {p.name}' for p in product.profiles if p.plain)}; "
            "gpunode sharing profiles --gpu ID shows where each may lie",
        )
    return MigLayout(
        slot=gpu.slot, instances=tuple(MigPlace(profile=p.profile, id=p.id, start=p.start) for p in placements)
    )
