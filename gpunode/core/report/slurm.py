"""A host's result as the one line that Slurm takes for a reason to drain a node (`scontrol update … reason=…`)."""

from __future__ import annotations

import re

from gpunode.core.model import HostResult

LIMIT = 200  # characters: squeue and sinfo -R cut longer ones


def slurm_line(result: HostResult) -> str:
    """ "gpunode: gpu.gone: …" of the first failed check, and how many there are; "gpunode: ok" where none is."""
    failed = [check for check in result.checks if check.status == "failed"]
    if not failed:
        return "gpunode: ok" if result.ok else _line(result.outcome, result.message)
    # what a program fails on comes before what is other than the spec
    worst = min(failed, key=lambda check: check.id.startswith("plan."))
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return _line(worst.id, worst.message, more)


def _line(what: str, text: str, more: str = "") -> str:
    """Within the limit, and without what a shell or scontrol would read as its own."""
    plain = " ".join(re.sub(r"[\"'`$\\|;&<>\x00-\x1f]", " ", text).split())
    head = f"gpunode: {what}: "
    return f"{head}{plain[: LIMIT - len(head) - len(more)]}{more}"
