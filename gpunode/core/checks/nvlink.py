"""The NVLinks of GPUs, judged by the number and the speed that their model has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpunode.core.checks.gpus import Verdict
from gpunode.core.grouped import grouped
from gpunode.core.knowledge import Knowledge, NvLinks
from gpunode.core.model import Check, NodeFacts, NvmlGpu

_SLOW = 0.9  # of the speed that an NVLink has by the knowledge


def nvlink_checks(facts: NodeFacts, knowledge: Knowledge) -> Iterator[Check]:
    """nvlink.down: by the number that its model has; of an unknown one those that are down while others are up."""
    models = {gpu.slot: model for gpu in facts.gpus if (model := knowledge.nvlinks.get(gpu.id))}
    if models and len(facts.nvml) > 1 and facts.driver.parameters.get("NvLinkDisable") == "1":
        text = "NVLinks are switched off: the nvidia module has NVreg_NvLinkDisable=1"
        guest = facts.virtualization != "none"  # as it has to be in one that gets GPUs without their NVSwitches
        fix = "grep -r NvLinkDisable /etc/modprobe.d /proc/cmdline; without it the links come up with the module"
        yield Check(id="nvlink.down", status="skipped" if guest else "warning", message=text, fix="" if guest else fix)
        return
    several = facts.nvml if models and len(facts.nvml) > 1 else ()
    judged = [(str(gpu.index), *_of_model(facts, gpu, models)) for gpu in several]
    by_verdict = grouped((verdict, words) for _, verdict, words in judged)
    known = {index for index, verdict, _ in judged if verdict in ("bad", "good")}
    bad = by_verdict.get("bad", [])
    if down := [one for one in facts.nvlink_inactive if _down(one)[0] not in known]:
        bad = [*bad, f"NVLinks inactive: {', '.join(down)}"]
    if bad:
        fix = "nvidia-smi nvlink -s; reseat, or have the board replaced"
        yield Check(id="nvlink.down", status="failed", message="; ".join(bad), fix=fix)
    elif "unread" in by_verdict or (len(facts.nvml) > 1 and "nvlink" in facts.unread):
        unread = by_verdict.get("unread", []) if "nvlink" not in facts.unread else []
        text = "; ".join(unread) or "the state of the NVLinks was not read"
        yield Check(id="nvlink.down", status="not-proven", message=text, fix="nvidia-smi nvlink -s on the node")
    elif "good" in by_verdict:
        text = f"NVLinks up of each GPU: {', '.join(dict.fromkeys(by_verdict['good']))}"
        yield Check(id="nvlink.down", status="passed", message=text)


def _of_model(facts: NodeFacts, gpu: NvmlGpu, models: Mapping[str, NvLinks]) -> tuple[Verdict, str]:
    name, model = f"GPU {gpu.index}", models.get(gpu.slot)
    if model is None:
        return ("none", "") if gpu.slot else ("unread", f"{name}: its slot was not read")
    if gpu.nvlinks_up is None:
        return "unread", f"{name}: not read"
    if not gpu.nvlinks_up and (facts.virtualization != "none" or gpu.mig_current == "Enabled" or model.bridged):
        return "unread", f"{name}: all are down; without {_joiner(facts, gpu, model.bridged)} that is right"
    if gpu.nvlinks_up < model.up:
        return "bad", f"{name} has {gpu.nvlinks_up} of {model.up} NVLinks up{_which(facts, gpu)}"
    if model.speed and not gpu.nvlink_speed:
        return "unread", f"{name}: the speed of its NVLinks was not read"
    if model.speed and float(gpu.nvlink_speed) < model.speed * _SLOW:
        return "bad", f"{name} has an NVLink at {gpu.nvlink_speed} of {model.speed:g} GB/s"
    return "good", f"{gpu.nvlinks_up} of {model.up}"


def _joiner(facts: NodeFacts, gpu: NvmlGpu, bridged: bool) -> str:
    if bridged:
        return "a bridge"
    return "MIG off" if gpu.mig_current == "Enabled" and facts.virtualization == "none" else "NVSwitches for this guest"


def _down(text: str) -> tuple[str, str]:
    """GPU and link of «GPU 3 link 4»; no link of «GPU 3: all links»."""
    _, gpu, *link = text.split(" ")
    return gpu.removesuffix(":"), link[1] if link[0] == "link" else ""


def _which(facts: NodeFacts, gpu: NvmlGpu) -> str:
    downs = map(_down, facts.nvlink_inactive)
    links = [link for index, link in downs if index == str(gpu.index) and link]
    return f" (down: {', '.join(links)})" if links else ""
