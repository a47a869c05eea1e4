"""Facts of a host → what a report shows of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpunode.core.checks.health import Expected, health_checks
from gpunode.core.grouped import grouped
from gpunode.core.knowledge import Knowledge
from gpunode.core.model import Check, NodeFacts, NvmlGpu, PciDevice
from gpunode.core.plan.lockfile import class_of
from gpunode.core.report.model import Gpu, ProbeSummary, ReportFinding, Versions


def see(facts: NodeFacts, knowledge: Knowledge, expected: Expected | None = None) -> ProbeSummary:
    """One host's versions, GPUs and health; `expected` are the GPUs that it should have."""
    return ProbeSummary(
        kind=class_of(facts),
        versions=_versions(facts),
        gpus=tuple(gpus_of(facts, knowledge)),
        nvswitches=len(facts.nvswitches),
        topology=facts.topology,
        links_down=facts.nvlink_inactive,
        checks=tuple(map(finding, health_checks(facts, knowledge, expected=expected))),
    )


def finding(check: Check) -> ReportFinding:
    return ReportFinding(id=check.id, status=check.status, message=check.message, fix=check.fix)


def fleet_gpus(gpus: Sequence[Gpu]) -> str:
    """ "8 × H100 SXM5 80GB", in the order of their PCI slots."""
    counts = Counter(gpu.model or gpu.id for gpu in gpus)
    return ", ".join(f"{count} × {model}" for model, count in counts.items())


def _versions(facts: NodeFacts) -> Versions:
    kubernetes = facts.kubernetes
    return Versions(
        distro=facts.distro.key,
        arch=facts.arch,
        kernel=facts.kernel,
        driver=facts.driver.loaded or facts.driver.userspace,
        flavour=facts.driver.loaded_flavour,
        cuda=facts.cuda,
        toolkit=facts.toolkit,
        engines=tuple(f"{r.distribution or r.name} {r.version}".strip() for r in facts.runtimes),
        kubernetes=f"{kubernetes.kind} {kubernetes.kubelet}".strip(),
    )


def model_of(device: PciDevice, nvml: NvmlGpu | None, knowledge: Knowledge) -> str:
    """What a GPU is called: by the driver, by the knowledge, or by the list of PCI ids; "" where none has its name."""
    known = knowledge.gpu(device.id)
    return (nvml.name if nvml else "") or (known.name if known else "") or device.label


def gpus_of(facts: NodeFacts, knowledge: Knowledge) -> Iterator[Gpu]:
    """The GPUs on PCI, with what the driver says of them."""
    by_slot = {gpu.slot: gpu for gpu in facts.nvml}
    cut = Counter(instance.gpu for instance in facts.sharing.instances)
    xids = grouped((xid.slot, xid.code) for xid in facts.xids)
    for device in facts.gpus:
        nvml = by_slot.get(device.slot)
        yield Gpu(
            slot=device.slot,
            id=device.id,
            model=model_of(device, nvml, knowledge).removeprefix("NVIDIA "),
            index=nvml.index if nvml else None,
            uuid=nvml.uuid if nvml else "",
            memory_mib=nvml.memory_mib if nvml else None,
            driver=device.driver,
            mig=nvml.mig_current if nvml and nvml.mig_current != "N/A" else "",
            mig_devices=cut[nvml.index] if nvml else 0,
            ecc_errors=nvml.ecc_uncorrected if nvml else None,
            xids=tuple(sorted(set(xids.get(device.slot, ())))),
        )
