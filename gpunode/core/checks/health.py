"""Health of the GPUs from one probe, as checks with stable ids (docs/checks.md lists them)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from gpunode.core.checks.boot import other_kernels, waiting_gpus, why_unloaded
from gpunode.core.checks.gpus import LOST, fault_fix, gpu_checks, kernel_log_checks
from gpunode.core.checks.host import host_checks
from gpunode.core.checks.nvlink import nvlink_checks
from gpunode.core.checks.pcie import pcie_checks, peer_checks
from gpunode.core.checks.rdma import port_checks
from gpunode.core.engines import BY_CDI
from gpunode.core.facts.cdi import of_others, stale, twice, unproven
from gpunode.core.facts.vet import LOOK
from gpunode.core.items.activation import engine_checks
from gpunode.core.items.driver import fenced
from gpunode.core.items.first_boot import first_boot_checks, prepared
from gpunode.core.items.gpu_containers import container_checks
from gpunode.core.items.kubelet import kubelet_checks
from gpunode.core.items.package import lost_programs
from gpunode.core.items.repository import revoked_files, set_up_twice
from gpunode.core.items.sharing import MIG_UNIT, MPS_UNIT, layout_words
from gpunode.core.items.sysctl import sysctl_checks
from gpunode.core.knowledge import Knowledge
from gpunode.core.late import dataclass, field, regex
from gpunode.core.model import NO_GPU, Check, NodeFacts, NvmlGpu
from gpunode.core.printable import counted
from gpunode.core.sharing.host import MIG_MANAGER
from gpunode.core.spec import VerifySpec

_PROVISION = "gpunode provision"
_BY_SMI = ("gpu.count", "sharing.mig", "cdi.fresh")  # which rest on what nvidia-smi says


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The GPUs that a node should have: what gpunode.yml says, and what a run that ended well found there."""

    spec: VerifySpec | None = None  # None: nothing says so
    run: str = ""  # the last run of the journal that this host ended well
    before: Mapping[str, str] = field(default_factory=dict)  # the GPUs of that run: PCI slot → PCI id
    unknown: str = ""  # why the journal does not say


def presence_checks(facts: NodeFacts, expected: Expected) -> list[Check]:
    """Whether the GPUs are there: any at all, as many as are expected, all that a run before has found.

    A number that is given counts for more than the journal: GPUs are taken out on purpose, too.
    """
    spec, found = expected.spec or VerifySpec(), len(facts.gpus)
    checks = []
    if not found and spec.without_gpu and not facts.has_gpu:
        checks.append(Check(id="gpu.present", status="skipped", message=f"{NO_GPU}, as is allowed"))
    elif not found:
        required = bool(expected.spec) and not facts.has_gpu
        fix = "; ".join(filter(None, ("lspci -d 10de:", spec.allowing if required else "")))
        status: Literal["pending", "warning"] = "pending" if required else "warning"
        checks.append(Check(id="gpu.present", status=status, message=NO_GPU, fix=fix))
    if spec.expect_gpus is not None:
        if found != spec.expect_gpus and not (facts.has_gpu and not found):
            text = f"{counted(found, 'GPU')} on PCI, and {spec.expect_gpus} expected (verify.expect_gpus)"
            checks.append(Check(id="gpu.expected", status="failed", message=text, fix=_LOST))
        return checks
    gone = Counter(expected.before.values()) - Counter(gpu.id for gpu in facts.gpus)
    if gone:
        now = {gpu.slot for gpu in facts.gpus}
        slots = sorted(slot for slot, pci_id in expected.before.items() if pci_id in gone and slot not in now)
        which = ", ".join(slots or sorted(gone))
        text = f"{counted(gone.total(), 'GPU')} gone since run {expected.run}: {which}"
        fix = f"{_LOST}; if they were removed on purpose: --expect-gpus {found}, or verify.expect_gpus: {found}"
        checks.append(Check(id="gpu.gone", status="failed", message=text, fix=fix))
    elif expected.unknown:
        text = f"which GPUs there were before is not known: {expected.unknown}"
        checks.append(Check(id="gpu.gone", status="not-proven", message=text))
    return checks


_LOST = fault_fix(LOST)


def sharing_checks(facts: NodeFacts) -> Iterator[Check]:
    """One check each for MIG and MPS: what is wrong, or what there is."""
    if facts.sharing.mig_program or any(gpu.mig_current == "Enabled" for gpu in facts.nvml):
        yield _mig(facts)
    if facts.sharing.mps_daemons or _enabled(facts, MPS_UNIT):
        yield _mps(facts)


def _mig(facts: NodeFacts) -> Check:
    name, state = "sharing.mig", facts.sharing
    if state.mig_status == "failed":
        fix = f"journalctl -u {MIG_UNIT} on the node; then {_PROVISION}"
        return Check(id=name, status="failed", message=f"the GPUs could not be cut: {state.mig_message}", fix=fix)
    wrong = [text for _, text in mig_faults(facts)]
    if unknown := _unread(facts) if not wrong else "":
        return Check(id=name, status="not-proven", message=unknown, fix="nvidia-smi has to work; probe as root")
    if wrong:
        fix = f"{_PROVISION}; a mode that waits takes a reboot, or nvidia-smi --gpu-reset"
        return Check(id=name, status="failed", message="; ".join(wrong), fix=fix)
    words = "; ".join(f"GPU {gpu.index}: {_now(facts, gpu)}" for gpu in facts.nvml)
    if not state.instances:
        return Check(id=name, status="passed", message="MIG is off")
    in_cluster = facts.kubernetes.gpu_operator  # whose MIG manager cuts the GPUs again
    if not in_cluster and not _enabled(facts, MIG_UNIT) and not _enabled(facts, f"{MIG_MANAGER}.service"):
        text = f"{words}; nothing makes these instances again at the next boot"
        return Check(
            id=name, status="warning", message=text, fix="set sharing.mig in gpunode.yml, then gpunode provision"
        )
    return Check(id=name, status="passed", message=words)


def _unread(facts: NodeFacts) -> str:
    """What was not read of the GPUs' modes and instances; "" where all was."""
    unread = [str(gpu.index) for gpu in facts.nvml if not gpu.mig_current or not gpu.mig_pending]
    if unread or not facts.nvml:
        return f"the MIG mode of GPU {', '.join(unread)} was not read" if unread else "no GPU's MIG mode was read"
    on = any(gpu.mig_current == "Enabled" for gpu in facts.nvml)
    if on and "sharing" in facts.unread:
        return "the MIG instances were not read"
    return ""


def mig_faults(facts: NodeFacts) -> Iterator[tuple[str, str]]:
    """(the fault that the doctor knows it by, or "", what is wrong) with how GPUs are cut."""
    for gpu in facts.nvml:
        if gpu.mig_pending and gpu.mig_current and gpu.mig_pending != gpu.mig_current:
            yield "mig-pending", f"GPU {gpu.index}: MIG is {gpu.mig_current}, and {gpu.mig_pending} after a reset"
        found = [instance for instance in facts.sharing.instances if instance.gpu == gpu.index]
        if gpu.mig_current == "Enabled" and not found and "sharing" not in facts.unread:
            yield "dp-mig-none", f"GPU {gpu.index}: MIG is on without an instance, so no program can use it"
        for instance in found:
            if not instance.computes:
                yield "", f"GPU {gpu.index}: instance {instance.id} ({instance.profile}) has no compute instance"


def _now(facts: NodeFacts, gpu: NvmlGpu) -> str:
    profiles = [instance.profile for instance in facts.sharing.instances if instance.gpu == gpu.index]
    return layout_words(profiles) if gpu.mig_current == "Enabled" else "whole"


def _mps(facts: NodeFacts) -> Check:
    name, daemons = "sharing.mps", facts.sharing.mps_daemons
    if not daemons:
        text = f"{MPS_UNIT} is enabled, and no MPS control daemon runs"
        return Check(id=name, status="failed", message=text, fix=f"journalctl -u {MPS_UNIT} on the node")
    if len(daemons) > 1:
        text = f"{len(daemons)} MPS control daemons run (PIDs {', '.join(daemons)})"
        return Check(
            id=name, status="warning", message=text, fix="one is enough for all GPUs of a user: end the others"
        )
    share = f", {facts.sharing.mps_threads} % of a GPU's threads a client" if facts.sharing.mps_threads else ""
    return Check(id=name, status="passed", message=f"the MPS control daemon runs (PID {daemons[0]}){share}")


def _enabled(facts: NodeFacts, unit: str) -> bool:
    service = facts.service(unit)
    return bool(service and service.enabled == "enabled")


_FABRIC = regex(r"(nvidia-fabric-?manager|libnvidia-nscq|nvidia-imex)(-\d{3})?\Z")
_DRIVER = regex(r"(nvidia-driver|nvidia-open|cuda-drivers|linux-modules-nvidia)\b")
_AUTOMATIC = ("unattended-upgrades", "dnf-automatic.timer")  # units that install what is new by themselves


def drift_checks(facts: NodeFacts, knowledge: Knowledge | None = None) -> Iterator[Check]:
    """Versions that are unequal, kernels without the module, locks that are lost, repositories that rival.

    Without `knowledge` nothing is said of GPUs that a kernel's module does not drive, and of keys that were revoked.
    """
    yield from _fabric(facts)
    yield from other_kernels(facts, knowledge)
    yield from _locks(facts)
    yield from _repositories(facts, knowledge.revoked_keys() if knowledge else ())


def _fabric(facts: NodeFacts) -> Iterator[Check]:
    loaded = facts.driver.loaded
    for name, package in facts.packages.items():
        version = package.version.rpartition(":")[2]
        if _FABRIC.match(name) and loaded and not re.match(rf"{re.escape(loaded)}(?![\d.])", version):
            yield Check(
                id="fabric.version",
                status="failed",
                message=f"{name} is {version}, the loaded driver {loaded}: unequal, GPUs do not join NVLink",
                fix="gpunode provision installs the driver's own version",
            )


def _locks(facts: NodeFacts) -> Iterator[Check]:
    units = [facts.services[name] for name in _AUTOMATIC if name in facts.services]
    running = [unit.name for unit in units if unit.active == "active"]
    kept = fenced(facts) if running == ["unattended-upgrades"] else re.compile("(?!)")
    loose = sorted(n for n, p in facts.packages.items() if not p.held and _DRIVER.match(n) and not kept.match(n))
    if running and loose and facts.driver.loaded:
        yield Check(
            id="driver.held",
            status="warning",
            message=f"{', '.join(running)} runs, and {', '.join(loose)} is not held: a new driver may come by itself",
            fix="driver.hold: true, then gpunode provision",
        )


def _repositories(facts: NodeFacts, revoked: Sequence[str]) -> Iterator[Check]:
    for path in revoked_files(facts, revoked):
        yield Check(
            id="repository.key-revoked",
            status="failed",
            message=f"{path} holds a key that its vendor has revoked: with it, others can sign packages for this node",
            fix=f"gpunode provision removes it, or: rm {path}",
        )
    for url, paths in set_up_twice(facts).items():
        yield Check(
            id="repository.twice",
            status="warning",
            message=f"{url} is set up by {' and '.join(paths)}: with two keys apt refuses both",
            fix="gpunode provision removes files that name nothing else; take it out of one of these",
        )


def lost_checks(facts: NodeFacts) -> Iterator[Check]:
    yield from (
        Check(id="packages.lost", status="failed", message=one.what, fix=one.fix) for one in lost_programs(facts)
    )


def health_checks(
    facts: NodeFacts, knowledge: Knowledge, *, driver: bool = True, expected: Expected | None = None
) -> list[Check]:
    """Checks that need no more than the probe: counts, versions, memory repair, links, Xids, fabric, the kubelet.

    `driver` says whether somebody wants one: where `driver.branch` is none, a node without it is not at fault.
    """
    lost = [*lost_checks(facts)]
    # values of one thing among others that are none: nothing was judged by them
    left_out = "; ".join(map(str, facts.invalid))
    values = [Check(id="probe.values", status="not-proven", message=left_out, fix=LOOK)] if left_out else []
    first = (*values, *first_boot_checks(facts), *lost)
    drift = drift_checks(facts, knowledge)
    if prepared(facts):
        return [*first, *drift]
    present = presence_checks(facts, expected or Expected())
    if not facts.gpus:
        return [*present, *first]
    gpus = (
        *present,
        *_driver(facts, driver, knowledge),
        *gpu_checks(facts),
        *pcie_checks(facts),
        *nvlink_checks(facts, knowledge),
        *port_checks(facts),
        *peer_checks(facts),
        *host_checks(facts, knowledge),
        *kernel_log_checks(facts, knowledge),
    )
    gpus = (*gpus, *drift, *first, *sharing_checks(facts))
    found = (
        *gpus,
        *engine_checks(facts),
        *container_checks(facts),
        *kubelet_checks(facts),
        *sysctl_checks(facts),
        *_cdi(facts),
    )
    asked = not (lost and "/usr/bin/nvidia-smi" in facts.lost_programs)
    return [one for one in found if asked or one.id not in _BY_SMI]


def _driver(facts: NodeFacts, wanted: bool, knowledge: Knowledge) -> Iterator[Check]:
    loaded, userspace = facts.driver.loaded, facts.driver.userspace
    if not loaded and not wanted:
        why = "no NVIDIA kernel module is loaded, and driver.branch is none"
        yield Check(id="driver.loaded", status="not-proven", message=why, fix="gpunode verify again when there is one")
        return
    if not loaded:
        why = next(filter(None, why_unloaded(facts).values()), "") if waiting_gpus(facts) else ""
        message = f"no NVIDIA kernel module is loaded{f': {why}' if why else ''}"
        yield Check(id="driver.loaded", status="failed", message=message, fix="gpunode plan")
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
    if facts.hidden and seen != present:
        text = (
            f"this session may not open {', '.join(facts.hidden)}: its device cgroup hides them (DeviceAllow of sshd)"
        )
        fix = "systemctl show ssh sshd -p DeviceAllow; log in where all GPUs may be opened"
        yield Check(id="gpu.count", status="not-proven", message=text, fix=fix)
    elif facts.driver.smi or seen != present:
        smi = f"nvidia-smi: {facts.driver.smi.removeprefix('nvidia-smi: ')}" if facts.driver.smi else ""
        text = "; ".join(filter(None, (smi, _missing(facts, knowledge))))
        yield Check(
            id="gpu.count",
            status="failed",
            message=text,
            fix=fault_fix(facts.driver.smi) if facts.driver.smi else _LOST,
        )
    else:
        seen_all = "the GPU" if present == 1 else f"all {present} GPUs"
        yield Check(id="gpu.count", status="passed", message=f"the driver sees {seen_all} of PCI")


def _missing(facts: NodeFacts, knowledge: Knowledge) -> str:
    """The GPUs of PCI that the driver does not list, each with its model and the driver's last words; "" for none."""
    seen = {gpu.slot for gpu in facts.nvml}
    missing = [gpu for gpu in facts.gpus if gpu.slot not in seen]
    if not missing and len(facts.nvml) == len(facts.gpus):
        return ""
    said = {xid.slot: xid.line.partition("NVRM: ")[2] for xid in facts.xids if xid.code not in knowledge.cleanup_xids}
    said |= {one.slot or (missing[0].slot if len(missing) == 1 else ""): one.words for one in facts.not_started}
    said |= {gpu.slot: f"{gpu.driver or 'no driver'} has taken it" for gpu in missing if gpu.driver != "nvidia"}
    said |= {link.slot: "no answer on PCI: it has fallen off the bus" for link in facts.pcie if link.silent}
    if not facts.nvml:  # of one that did not start nvidia-smi may say nothing of the others either
        missing = [gpu for gpu in missing if said.get(gpu.slot)] or missing
    named = []
    for gpu in missing:
        model = knowledge.gpu(gpu.id)
        name = f"{gpu.slot} ({model.name if model else gpu.label or gpu.id})"
        named.append(f"{name}: «{said[gpu.slot]}»" if said.get(gpu.slot) else name)
    both = f"PCI shows {counted(len(facts.gpus), 'GPU')}, the driver {len(facts.nvml)}"
    return f"{both}; missing: {', '.join(named) or '?'}"


def _cdi(facts: NodeFacts) -> Iterator[Check]:
    """Only where CDI may be used: a specification is there, or an engine that gets GPUs no other way."""
    if not facts.cdi.specs and not any(map(facts.runtime, BY_CDI)):
        return
    reasons = stale(facts)
    if not reasons and (paths := twice(facts)):
        message = f"{' and '.join(paths)} are both there: after a new driver only the second one is renewed by itself"
        fix = f"remove {paths[0]}, unless something of your own renews it"
        yield Check(id="cdi.fresh", status="warning", message=message, fix=fix)
        return
    if not reasons and (unknown := unproven(facts)):
        text = f"not known: {', '.join(unknown)}"
        yield Check(id="cdi.fresh", status="not-proven", message=text, fix="nvidia-smi has to work; probe as root")
        return
    if not reasons:
        yield Check(id="cdi.fresh", status="passed", message="the CDI specification fits the driver and the GPUs")
        return
    engine = next(filter(facts.runtime, BY_CDI), "")
    renew = f"gpunode {f'runtime configure --runtime {engine}' if engine else 'provision'} renews it"
    yield Check(
        id="cdi.fresh",
        status="failed" if facts.cdi.specs else "warning",
        message="; ".join(reasons),
        fix="fix or remove that file: nvidia-ctk did not make it" if of_others(facts) else renew,
    )
