"""Checks of MIG and MPS from one probe: sharing.mig and sharing.mps; nothing where neither is in use."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.core.items.sharing import MIG_UNIT, MPS_UNIT, layout_words
from gpunode.core.model import Check, NodeFacts, NvmlGpu
from gpunode.core.sharing.host import MIG_MANAGER

_PROVISION = "gpunode provision"


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
    wrong = [text for gpu in facts.nvml for text in _wrong(facts, gpu)]
    if wrong:
        fix = f"{_PROVISION}; a mode that waits takes a reboot, or nvidia-smi --gpu-reset"
        return Check(id=name, status="failed", message="; ".join(wrong), fix=fix)
    words = "; ".join(f"GPU {gpu.index}: {_now(facts, gpu)}" for gpu in facts.nvml)
    if not state.instances:
        return Check(id=name, status="passed", message="MIG is off")
    if not _enabled(facts, MIG_UNIT) and not _enabled(facts, f"{MIG_MANAGER}.service"):
        text = f"{words}; nothing makes these instances again at the next boot"
        return Check(
            id=name, status="warning", message=text, fix="set sharing.mig in gpunode.yml, then gpunode provision"
        )
    return Check(id=name, status="passed", message=words)


def _wrong(facts: NodeFacts, gpu: NvmlGpu) -> Iterator[str]:
    if gpu.mig_pending and gpu.mig_pending != gpu.mig_current:
        yield f"GPU {gpu.index}: MIG is {gpu.mig_current}, and {gpu.mig_pending} after a reset"
    found = [instance for instance in facts.sharing.instances if instance.gpu == gpu.index]
    if gpu.mig_current == "Enabled" and not found:
        yield f"GPU {gpu.index}: MIG is on without an instance, so no program can use it"
    for instance in found:
        if not instance.computes:
            yield f"GPU {gpu.index}: instance {instance.id} ({instance.profile}) has no compute instance"


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
    service = facts.services.get(unit.removesuffix(".service"))
    return bool(service and service.enabled == "enabled")
