"""What Slurm takes: a result as the one line of a reason to drain a node, GPUs as lines of gres.conf."""

from __future__ import annotations

import re

from gpunode.core.grouped import grouped
from gpunode.core.model import ENDS, HostResult, NodeFacts

LIMIT = 200  # characters: squeue and sinfo -R cut longer ones


def slurm_line(result: HostResult) -> str:
    """ "gpunode: gpu.gone: …" of the first check that is not well, and how many are; "gpunode: ok" where none is."""
    failed = [check for check in result.checks if check.status in ENDS]
    if not failed:
        return "gpunode: ok" if result.ok else _line(result.outcome, result.message)
    # what a program fails on comes before what is other than the spec
    worst = min(failed, key=lambda check: check.status != "failed")
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return _line(worst.id, worst.message, more)


def _line(what: str, text: str, more: str = "") -> str:
    """Within the limit, and without what a shell or scontrol would read as its own."""
    plain = " ".join(re.sub(r"[\"'`$\\|;&<>\x00-\x1f]", " ", text).split())
    head = f"gpunode: {what}: "
    return f"{head}{plain[: LIMIT - len(head) - len(more)]}{more}"


def gres_text(host: str, facts: NodeFacts) -> str:
    """Lines of gres.conf, one for each model of GPU; a comment where the probe does not say it.

    Types are named as Slurm's own AutoDetect=nvml names them: in small letters, spaces as _.
    """
    minors = {gpu.uuid: gpu for gpu in facts.cdi.gpus if gpu.uuid}
    if any(gpu.mig_devices for gpu in facts.cdi.gpus) or any(gpu.mig_current == "Enabled" for gpu in facts.nvml):
        return f"# {host}: MIG is on, whose devices only AutoDetect=nvml can name"
    if not facts.nvml or any(gpu.uuid not in minors or not gpu.name for gpu in facts.nvml):
        return f"# {host}: the driver does not name its GPUs and their device files"
    kinds = (re.sub(r"[^a-z0-9_.-]", "_", gpu.name.lower()) for gpu in facts.nvml)
    files = grouped(zip(kinds, (minors[gpu.uuid].minor for gpu in facts.nvml), strict=True))
    return "\n".join(
        f"NodeName={host} Name=gpu Type={kind} File=/dev/nvidia{_ranges(sorted(numbers))}"
        for kind, numbers in files.items()
    )


def _ranges(numbers: list[int]) -> str:
    """As Slurm's host lists write them: 3, [0-7], [0-2,5]."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return parts[0] if len(numbers) == 1 else f"[{','.join(parts)}]"
