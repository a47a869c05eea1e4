"""Health of the GPUs from one probe, as checks with stable ids (docs/verify.md lists them)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpunode.core.cdi import made_by_ctk, stale
from gpunode.core.checks.drift import drift_checks
from gpunode.core.facts.kubelet import kubelet_checks
from gpunode.core.items.first_boot import first_boot_checks, prepared
from gpunode.core.items.gpu_containers import container_checks
from gpunode.core.items.sysctl import sysctl_checks
from gpunode.core.model import Check, NodeFacts
from gpunode.core.sharing.health import sharing_checks

# Xids where the program is at fault, not the GPU (docs.nvidia.com/deploy/xid-errors).
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 137})


def health_checks(facts: NodeFacts, revoked: Sequence[str] = (), *, driver: bool = True) -> list[Check]:
    """Checks that need no more than the probe: counts, versions, memory repair, links, Xids, fabric, the kubelet.

    `driver` says whether somebody wants one: where `driver.branch` is none, a node without it is not at fault.
    """
    first = tuple(first_boot_checks(facts))
    if prepared(facts):
        return [*first, *drift_checks(facts, revoked)]
    if not facts.gpus:
        return [Check(id="gpu.present", status="warning", message="no NVIDIA GPU on PCI", fix="lspci -d 10de:"), *first]
    gpus = (*_driver(facts, driver), *_memory(facts), *_links(facts), *_xids(facts))
    gpus = (*gpus, *drift_checks(facts, revoked), *first, *sharing_checks(facts))
    return [*gpus, *container_checks(facts), *kubelet_checks(facts), *sysctl_checks(facts), *_cdi(facts)]


def _driver(facts: NodeFacts, wanted: bool) -> Iterator[Check]:
    loaded, userspace = facts.driver.loaded, facts.driver.userspace
    if not loaded and not wanted:
        why = "no NVIDIA kernel module is loaded, and driver.branch is none"
        yield Check(id="driver.loaded", status="not-proven", message=why, fix="gpunode verify again when there is one")
        return
    if not loaded:
        yield Check(
            id="driver.loaded", status="failed", message="no NVIDIA kernel module is loaded", fix="gpunode plan"
        )
        return
    yield Check(id="driver.loaded", status="passed", message=f"NVIDIA kernel module {loaded} is loaded")
    if userspace and userspace != loaded:
        yield Check(
            id="driver.versions-match",
            status="failed",
            message=f"kernel module {loaded}, user space {userspace}: nvidia-smi and containers fail",
            fix="gpunode provision reloads the module, or reboots where it is in use",
        )
    elif userspace:
        yield Check(id="driver.versions-match", status="passed", message=f"module and user space are both {loaded}")
    seen, present = len(facts.nvml), len(facts.gpus)
    if facts.driver.smi:
        yield Check(id="gpu.count", status="failed", message=f"nvidia-smi: {facts.driver.smi}", fix="dmesg | grep NVRM")
    elif seen != present:
        missing = sorted({g.slot for g in facts.gpus} - {n.slot for n in facts.nvml})
        yield Check(
            id="gpu.count",
            status="failed",
            message=f"PCI shows {present} GPUs, the driver {seen}; missing: {', '.join(missing) or '?'}",
            fix="dmesg | grep -e NVRM -e Xid; a GPU that fell off the bus needs a cold start",
        )
    else:
        yield Check(id="gpu.count", status="passed", message=f"the driver sees all {present} GPUs of PCI")


def _memory(facts: NodeFacts) -> Iterator[Check]:
    rules = (
        (
            "gpu.remap-pending",
            "remap_pending",
            "a row remap is pending",
            "drain the node, then reset the GPU or reboot",
        ),
        ("gpu.remap-failure", "remap_failure", "a row remap failed", "have the GPU replaced (NVIDIA RMA)"),
        ("gpu.retirement-pending", "retired_pending", "a page retirement is pending", "reboot, or reset the GPU"),
    )
    for check_id, field, text, fix in rules:
        bad = [str(g.index) for g in facts.nvml if getattr(g, field).lower() in ("yes", "1")]
        if bad:
            yield Check(id=check_id, status="failed", message=f"GPU {', '.join(bad)}: {text}", fix=fix)
        elif facts.nvml:
            yield Check(id=check_id, status="passed", message="none")
    uncorrected = {g.index: g.ecc_uncorrected for g in facts.nvml if g.ecc_uncorrected}
    if uncorrected:
        text = ", ".join(f"GPU {i}: {n}" for i, n in uncorrected.items())
        yield Check(
            id="gpu.ecc", status="failed", message=f"uncorrected ECC errors since boot: {text}", fix="dcgmi diag -r 2"
        )
    elif facts.nvml:
        yield Check(id="gpu.ecc", status="passed", message="no uncorrected ECC error since boot")


def _links(facts: NodeFacts) -> Iterator[Check]:
    if facts.nvlink_inactive:
        yield Check(
            id="nvlink.down",
            status="failed",
            message=f"NVLinks inactive: {', '.join(facts.nvlink_inactive)}",
            fix="nvidia-smi nvlink -s; reseat, or have the board replaced",
        )
    fabric = {g.index: g.fabric_state for g in facts.nvml if g.fabric_state not in ("", "N/A", "Completed")}
    if facts.nvswitches and fabric:
        text = ", ".join(f"GPU {i}: {s}" for i, s in fabric.items())
        yield Check(
            id="fabric.state",
            status="failed",
            message=text,
            fix="systemctl status nvidia-fabricmanager; versions must be equal",
        )
    elif facts.nvswitches and facts.nvml:
        yield Check(id="fabric.state", status="passed", message="all GPUs have joined the NVLink fabric")


def _xids(facts: NodeFacts) -> Iterator[Check]:
    serious = Counter(x.code for x in facts.xids if x.code not in APPLICATION_XIDS)
    other = Counter(x.code for x in facts.xids if x.code in APPLICATION_XIDS)
    if serious:
        yield Check(
            id="gpu.xid", status="failed", message=f"Xids since boot: {_counted(serious)}", fix="dmesg | grep Xid"
        )
    elif other:
        yield Check(
            id="gpu.xid",
            status="warning",
            message=f"Xids of applications since boot: {_counted(other)}",
            fix="look at the programs named in dmesg",
        )
    else:
        yield Check(id="gpu.xid", status="passed", message="no Xid since boot")


def _counted(codes: Counter[int]) -> str:
    return ", ".join(f"{code} ({count}×)" for code, count in sorted(codes.items()))


def _cdi(facts: NodeFacts) -> Iterator[Check]:
    """Only where CDI may be used: a specification is there, or podman, which gets GPUs no other way."""
    if not facts.cdi.specs and not facts.runtime("podman"):
        return
    reasons = stale(facts)
    if not reasons:
        yield Check(id="cdi.fresh", status="passed", message="the CDI specification fits the driver and the GPUs")
        return
    renew = "gpunode runtime configure --runtime podman renews it"
    yield Check(
        id="cdi.fresh",
        status="failed" if facts.cdi.specs else "warning",
        message="; ".join(reasons),
        fix=renew if stale(made_by_ctk(facts)) else "mend or remove that file: nvidia-ctk did not make it",
    )
