"""What the driver says of each GPU, judged in one place: for verify, reports and the doctor.

A field holds the driver's word, "N/A" where it says that the GPU has no such thing, "" where nothing was read: from
that no check passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from gpunode.core.grouped import grouped
from gpunode.core.late import dataclass
from gpunode.core.model import Check, NodeFacts, NvmlGpu
from gpunode.core.numbers import whole
from gpunode.core.printable import counted

if TYPE_CHECKING:
    from gpunode.core.knowledge import Knowledge

Verdict = Literal["bad", "unread", "none", "good"]
LOST, RESET = "GPU is lost", "GPU requires reset"
_DRAIN = "drain the node, then reset the GPU (nvidia-smi --gpu-reset -i INDEX) or reboot"
_LOG = "dmesg | grep -e NVRM -e Xid"
_FAULTS = {LOST: f"{_LOG}; a GPU that fell off the bus needs a cold start", RESET: _DRAIN}
_MANAGER = "systemctl status nvidia-fabricmanager; versions must be equal"
# from NVLink 5 on the switches are managed over InfiniBand
_MANAGER_OF_5 = (
    "NVLink 5 needs ib_umad, mlx5_ib and nvlsm of the driver's branch: gpunode provision, or modprobe -a ib_umad "
    "mlx5_ib; then systemctl restart nvidia-fabricmanager, whose journal names what is missing"
)
_GPUS = "{gpus}"
_ASK = "nvidia-smi -q on the node says more"


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What is wrong with one GPU; `check` is the id of the check that fails by it."""

    check: str
    gpu: int
    what: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """One question to every GPU: the verdict on its answer, with words for what is bad, unread or not there."""

    id: str
    judge: Callable[[NvmlGpu], tuple[Verdict, str]]
    good: str
    fix: Callable[[str], str]
    ask: str = _ASK


def gpu_troubles(facts: NodeFacts) -> Iterator[Trouble]:
    """Everything that is wrong with a GPU by the driver's own word."""
    for gpu in facts.nvml:
        for rule in (_FAULT, *_RULES, _SRAM, _RECOVERY, _SLOWDOWN, _FABRIC):
            verdict, words = rule.judge(gpu)
            if verdict == "bad":
                fix = _manager_fix(facts) if rule is _FABRIC else rule.fix(words)
                yield Trouble(check=rule.id, gpu=gpu.index, what=words, fix=fix)


def gpu_checks(facts: NodeFacts) -> Iterator[Check]:
    """The checks gpu.fault to gpu.slowdown, and fabric.state."""
    troubles = list(gpu_troubles(facts))
    yield from _failed(troubles, _FAULT.id)
    if any(gpu.recovery for gpu in facts.nvml):  # else this driver does not know the question
        yield from _judged(facts, troubles, _RECOVERY)
    for rule in _RULES:
        yield from _judged(facts, troubles, rule)
    if any(gpu.sram_uncorrected or gpu.sram_exceeded for gpu in facts.nvml):  # before 450 it is not asked
        yield from _judged(facts, troubles, _SRAM)
    if any(gpu.event_reasons for gpu in facts.nvml):  # else it was not asked
        yield from _judged(facts, troubles, _SLOWDOWN)
    if prohibited := [str(gpu.index) for gpu in facts.nvml if gpu.compute_mode == "Prohibited"]:
        text = f"GPU {', '.join(prohibited)}: no program can use CUDA, the compute mode is Prohibited"
        fix = "gpu.compute_mode: default, then gpunode provision; or nvidia-smi -i INDEX -c DEFAULT"
        yield Check(id="gpu.compute-mode", status="warning", message=text, fix=fix)
    if facts.nvswitches or facts.nvlink5_fabric or any(gpu.fabric_state not in ("", "N/A") for gpu in facts.nvml):
        yield from _joined(facts, troubles)


_UNFIT = ("gpu.fault", "gpu.recovery", "gpu.remap-failure")


def unfit_checks(facts: NodeFacts) -> list[Check]:
    """The failed checks with which a node is not given back to its cluster: a program that gets that GPU fails on it.

    What a reset repairs, or time (a fabric that is being set up), is for verify to say.
    """
    return [check for check in gpu_checks(facts) if check.id in _UNFIT and check.status == "failed"]


def _failed(troubles: Iterable[Trouble], check_id: str) -> Iterator[Check]:
    mine = [trouble for trouble in troubles if trouble.check == check_id]
    if mine:
        fixes = dict.fromkeys(trouble.fix for trouble in mine)
        text = _by_words((trouble.gpu, trouble.what) for trouble in mine)
        yield Check(id=check_id, status="failed", message=text, fix="; ".join(fixes))


def _judged(facts: NodeFacts, troubles: list[Trouble], rule: _Rule) -> Iterator[Check]:
    if not facts.nvml:
        return
    failed = list(_failed(troubles, rule.id))
    if failed:
        yield from failed
        return
    judged = [(gpu.index, *rule.judge(gpu)) for gpu in facts.nvml]
    said = grouped((verdict, (index, words)) for index, verdict, words in judged)
    none = _by_words(said.get("none", ()))
    if "unread" in said:
        yield Check(id=rule.id, status="not-proven", message=_by_words(said["unread"]), fix=rule.ask)
    else:
        good = rule.good if "good" in said else ""
        hidden = any(words == _HIDDEN for _, words in said.get("none", ()))
        text = "; ".join(filter(None, (good, none)))
        yield Check(id=rule.id, status="skipped" if hidden else "passed", message=text)


def _by_words(said: Iterable[tuple[int, str]]) -> str:
    """«GPU 0, 3: In Progress; GPU 5: Not Started»; words may have their own place for the GPUs."""
    groups = grouped((words, str(gpu)) for gpu, words in said)
    named = {words: f"GPU {', '.join(gpus)}" for words, gpus in groups.items()}
    return "; ".join(
        words.replace(_GPUS, gpus) if _GPUS in words else f"{gpus}: {words}" for words, gpus in named.items()
    )


# ---------------------------------------------------------------- the questions

_HIDDEN = "not reported while MIG is on"


def _unread(gpu: NvmlGpu) -> tuple[Verdict, str]:
    return "unread", f"not read: {gpu.fault}" if gpu.fault else "not read"


def _fault(gpu: NvmlGpu) -> tuple[Verdict, str]:
    """Good is not said: that the driver answers for a GPU, its answers show."""
    return ("bad", f"the driver says «{gpu.fault}»") if gpu.fault else ("none", "")


def fault_fix(words: str) -> str:
    """What to do where nvidia-smi says so of a GPU, or ends with it."""
    return next((fix for fault, fix in _FAULTS.items() if fault in words), f"{_LOG}; nvidia-smi -q on the node")


_FAULT = _Rule(id="gpu.fault", judge=_fault, good="", fix=fault_fix)


def _waits(field: str, words: str, *, hidden: bool = False) -> Callable[[NvmlGpu], tuple[Verdict, str]]:
    """`hidden`: with MIG on the driver says N/A, whatever there is."""

    def judge(gpu: NvmlGpu) -> tuple[Verdict, str]:
        answer = getattr(gpu, field)
        if answer == "Yes":
            return "bad", words
        if answer == "N/A":
            if hidden and not gpu.mig_current:
                return "unread", "not reported, and whether by MIG was not read"
            return "none", _HIDDEN if hidden and gpu.mig_current == "Enabled" else "reports none"
        return ("good", "") if answer == "No" else _unread(gpu)

    return judge


def _ecc(gpu: NvmlGpu) -> tuple[Verdict, str]:
    count = gpu.ecc_uncorrected
    if count is not None:
        return ("bad", f"{counted(count, 'uncorrected ECC error')} since boot") if count else ("good", "")
    if gpu.ecc_current == "Disabled":
        return "none", f"ECC is off: {_GPUS} counts no memory errors"
    return ("none", "has no ECC") if gpu.ecc_current == "N/A" else _unread(gpu)


_RULES = (
    _Rule(
        id="gpu.remap-pending",
        judge=_waits("remap_pending", "a row remap is pending", hidden=True),
        good="none",
        fix=lambda _: _DRAIN,
    ),
    _Rule(
        id="gpu.remap-failure",
        judge=_waits("remap_failure", "a row remap failed", hidden=True),
        good="none",
        fix=lambda _: "have the GPU replaced (NVIDIA RMA)",
    ),
    _Rule(
        id="gpu.retirement-pending",
        judge=_waits("retired_pending", "a page retirement is pending"),
        good="none",
        fix=lambda _: "reboot, or reset the GPU",
    ),
    _Rule(id="gpu.ecc", judge=_ecc, good="no uncorrected ECC error since boot", fix=lambda _: "dcgmi diag -r 2"),
)

_SRAM_LIMIT = 4  # scitix/sichek default_*_spec.yaml: for drivers before 580, which do not say themselves


def _sram(gpu: NvmlGpu) -> tuple[Verdict, str]:
    """Against the limit from which on NVIDIA replaces a GPU; drivers from 580 on say it themselves."""
    count = gpu.sram_uncorrected
    if gpu.sram_exceeded == "Yes":
        return "bad", "more uncorrected SRAM errors than NVIDIA's limit for a replacement"
    if gpu.sram_exceeded == "No":
        return "good", ""
    if gpu.ecc_current in ("Disabled", "N/A") or "N/A" in (gpu.sram_exceeded, count):
        return "none", "counts no SRAM errors"
    if not (count.isascii() and count.isdigit()):
        return _unread(gpu)
    if whole(count) > _SRAM_LIMIT:
        return "bad", f"{count} uncorrected SRAM errors, and more than {_SRAM_LIMIT} are reason for a replacement"
    return "good", ""


_SRAM = _Rule(
    id="gpu.sram",
    judge=_sram,
    good="fewer uncorrected SRAM errors than NVIDIA's limit",
    fix=lambda _: "have the GPU replaced (NVIDIA RMA)",
)

# what the driver recommends (nvidia-smi --help-query-gpu, gpu_recovery_action; Xid 154 tells of each change) → the way
_ACTIONS = {
    "Reset": _DRAIN,
    "GPU Reset": _DRAIN,
    "GPU Reset Required": _DRAIN,
    "Reboot": "drain the node, then reboot it",
    "Node Reboot Required": "drain the node, then reboot it",
    "Drain P2P": "stop the programs that use NVLink or peer-to-peer on this GPU; what still runs may end by itself",
    "OS Reboot": "drain the node, then reboot it",
    "System Reboot": "drain the node, then reboot it",
    "Bus Reset": "drain the node, then reset the GPU's PCIe bus (nvidia-smi -r bus -i INDEX) or reboot",
    "Recover IMEX Domain": "drain the nodes of its IMEX domain, then restart nvidia-imex.service on each of them",
    "Drain and Reset": f"let what runs come to an end and start nothing new; {_DRAIN}",
}


def _recovery(gpu: NvmlGpu) -> tuple[Verdict, str]:
    if gpu.recovery in ("", "N/A"):
        return _unread(gpu) if not gpu.recovery else ("none", "reports none")
    return ("good", "") if gpu.recovery == "None" else ("bad", f"the driver recommends «{gpu.recovery}»")


def recovery_fix(action: str) -> str:
    """What to do where the driver recommends that action, by nvidia-smi or by Xid 154."""
    return "nothing" if action == "None" else _ACTIONS.get(action, f"drain the node; {_LOG}")


_RECOVERY = _Rule(
    id="gpu.recovery",
    judge=_recovery,
    good="the driver recommends no reset and no reboot",
    fix=lambda words: recovery_fix(words.partition("«")[2].removesuffix("»")),
)


# nvml.h, nvmlClocksEventReason…: what the board itself does to protect itself; idle clocks, a power cap and settings
# are no faults
SLOWDOWNS = {0x40: "HW thermal slowdown", 0x80: "HW power brake slowdown", 0x08: "HW slowdown"}


def _slowdown(gpu: NvmlGpu) -> tuple[Verdict, str]:
    reasons = gpu.event_reasons
    if reasons == "N/A":
        return "none", "does not report it"
    try:
        mask = int(reasons, 16)
    except ValueError:
        return _unread(gpu)
    named = [words for bit, words in SLOWDOWNS.items() if mask & bit]
    return ("bad", ", ".join(named)) if named else ("good", "")


_SLOWDOWN = _Rule(
    id="gpu.slowdown",
    judge=_slowdown,
    good="no clock is held down by heat or by the power supply",
    fix=lambda _: "nvidia-smi -q shows its reasons and temperatures; fans, airflow, power cables and supply",
)


def _fabric(gpu: NvmlGpu) -> tuple[Verdict, str]:
    """NVML's state counts only where its status is success."""
    state, status = gpu.fabric_state, gpu.fabric_status
    if state == "N/A":
        return "none", "reports no fabric state"
    if not state:
        return _unread(gpu)
    if state != "Completed":
        return "bad", state if status in ("", "N/A", "Success") else f"{state}, {status}"
    if status in ("", "N/A"):
        return "unread", "Completed, and whether with success was not read"
    return ("good", "") if status == "Success" else ("bad", f"Completed without success: {status}")


_FABRIC = _Rule(id="fabric.state", judge=_fabric, good="all GPUs have joined the NVLink fabric", fix=lambda _: _MANAGER)


def _manager_fix(facts: NodeFacts) -> str:
    if not facts.nvlink5_fabric:
        return _MANAGER
    return _MANAGER_OF_5 if "ib_umad" in facts.modules else f"ib_umad is not loaded; {_MANAGER_OF_5}"


def _joined(facts: NodeFacts, troubles: list[Trouble]) -> Iterator[Check]:
    """«All» only where each GPU said so: A100s behind NVSwitches say nothing of it."""
    failed = list(_failed(troubles, _FABRIC.id))
    if failed or not facts.nvml:
        yield from failed
        return
    said = [(gpu.index, *_fabric(gpu)) for gpu in facts.nvml]
    open_ = [(gpu, words) for gpu, verdict, words in said if verdict != "good"]
    manager = facts.services.get("nvidia-fabricmanager")
    if manager and manager.active == "active" and all(verdict == "none" for _, verdict, _ in said):
        text = f"{_by_words(open_)}; nvidia-fabricmanager runs"
        yield Check(id=_FABRIC.id, status="skipped", message=text)
    elif open_:
        yield Check(id=_FABRIC.id, status="not-proven", message=_by_words(open_), fix=_manager_fix(facts))
    else:
        yield Check(id=_FABRIC.id, status="passed", message=_FABRIC.good)


_SHOW = "dmesg | grep -e NVRM -e Xid -e blocked"
# kind of KernelFault → (status, what it means, what to do)
_KERNEL_FAULTS: dict[str, tuple[Literal["failed", "warning"], str, str]] = {
    "gsp": ("failed", "a GPU's firmware (GSP) does not answer", f"{_DRAIN}; the newest driver of its branch"),
    "reset": ("failed", "the driver refuses work until a GPU is reset", _DRAIN),
    "hung": (
        "warning",
        "a GPU, or a task in the driver, hung",
        f"{_SHOW}; ps axo stat,pid,comm | grep ^D: hangs still: reboot",
    ),
}


def kernel_log_checks(facts: NodeFacts, knowledge: Knowledge) -> Iterator[Check]:
    """gpu.xid and driver.kernel-log; without a driver nobody writes any of it."""
    count: dict[bool, Counter[int]] = {False: Counter(), True: Counter()}
    for xid in facts.xids:
        if xid.code not in knowledge.cleanup_xids:
            count[xid.code in knowledge.application_xids][xid.code] += xid.count
    if serious := count[False]:
        text = f"Xids since boot: {_codes(serious)}"
        yield Check(id="gpu.xid", status="failed", message=text, fix="dmesg | grep Xid")
    elif other := count[True]:
        text = f"Xids of applications since boot: {_codes(other)}"
        yield Check(id="gpu.xid", status="warning", message=text, fix="look at the programs named in dmesg")
    else:
        after = Counter({xid.code: xid.count for xid in facts.xids})
        but = f" but {_codes(after)}, which only follows the end of a program" if after else ""
        yield from _of_whole_log(facts, "gpu.xid", f"no Xid since boot{but}")
    found = [(one, *_KERNEL_FAULTS[one.kind]) for one in facts.kernel_faults if one.kind in _KERNEL_FAULTS]
    if found:
        # a reset leaves no line in the log; the driver's word for each GPU is newer than an assertion
        over = all(gpu.recovery == "None" for gpu in facts.nvml) and bool(facts.nvml)
        bad = any(status == "failed" and not (over and one.kind == "reset") for one, status, _, _ in found)
        text = "; ".join(f"{words} ({one.count}×): {one.line}" for one, _, words, _ in found)
        fix = "; ".join(fix for _, _, _, fix in found)
        yield Check(id="driver.kernel-log", status="failed" if bad else "warning", message=text, fix=fix)
    else:
        yield from _of_whole_log(facts, "driver.kernel-log", "no firmware timeout, required reset or hung task")


def _of_whole_log(facts: NodeFacts, check_id: str, good: str) -> Iterator[Check]:
    """That there is nothing only a log says that was read whole."""
    if not facts.driver.loaded:
        return
    if "xids" in facts.unread:
        text = "the kernel log was not read, or has lost a part"
        yield Check(id=check_id, status="not-proven", message=text, fix=f"probe as root: {_SHOW}")
    else:
        yield Check(id=check_id, status="passed", message=good)


def _codes(codes: Counter[int]) -> str:
    return ", ".join(f"{code} ({count}×)" for code, count in sorted(codes.items()))
