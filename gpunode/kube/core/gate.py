"""kubernetes.gate: nodes join with a taint, and lose it when proof pods have run on them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpunode.core.model import Check
from gpunode.core.printable import few
from gpunode.kube.core.cluster import PROVEN, UNPROVEN, Object
from gpunode.kube.core.marks import taints_patch

TAINT = f"{UNPROVEN}=true:NoSchedule"


def has_taint(node: Object) -> bool:
    """Whether it waits for its proof."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return any((one["key"], one.get("effect")) == (UNPROVEN, "NoSchedule") for one in taints)


def gate_patch(node: Object, *, label: bool, taint: bool) -> Object | None:
    """A merge patch after which the node has our label or not; `taint`: it keeps the taint.  None where it is so."""
    there = (node["metadata"].get("labels") or {}).get(PROVEN)
    wanted = "true" if label else None
    patch = {} if taint else taints_patch(node, (), (TAINT,)) or {}
    return patch | ({"metadata": {"labels": {PROVEN: wanted}}} if there != wanted else {}) or None


def waiting_check(nodes: Sequence[Object], opened: Collection[str] = ()) -> Check:
    """Which nodes are closed to other pods until they are proven."""
    waiting = [n["metadata"]["name"] for n in nodes if has_taint(n) and n["metadata"]["name"] not in opened]
    if not waiting:
        return Check(id="kube.gate", status="passed", message="no node has the taint gpunode/unproven")
    text = f"{few(waiting, 8)}: the taint {UNPROVEN} keeps other pods away until proof pods have run"
    return Check(id="kube.gate", status="not-proven", message=text, fix="gpunode kube verify --smoke")
