"""Labels and taints of nodes: what apply puts there, and takes away again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpunode.kube.core.cluster import CLIENT_LABEL, MIG_LABEL, Object
from gpunode.kube.core.owned import ObjectKey

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"  # taint and label of its nodes
_TAKEN = (MIG_LABEL,)


def node_key(name: str) -> ObjectKey:
    return ObjectKey("v1", "Node", "", name)


def node_labels(node: Object, labels: dict[str, str]) -> Object:
    """What to apply so that exactly these labels are ours.  With the uid no node can come into being by it."""
    metadata = {"name": node["metadata"]["name"], "uid": node["metadata"]["uid"], "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def overwritten(node: Object, labels: Mapping[str, str]) -> dict[str, str]:
    """Our labels that another has set to another value, and that are ours to set: which MIG layout a node has.

    The GPU Operator gives every node a first value of it.
    """
    there = node["metadata"].get("labels") or {}
    return {key: value for key, value in labels.items() if key in _TAKEN and there.get(key, value) != value}


def left_over(node: Object, labels: Mapping[str, str], before: Sequence[str]) -> list[str]:
    """Such labels that we set once and do not set any more: no apply takes them away, as a patch set them.

    That which pauses pods is the MIG manager's since it changed it.
    """
    there = node["metadata"].get("labels") or {}
    return [key for key in before if key in (*_TAKEN, CLIENT_LABEL) and key in there and key not in labels]


def taints_patch(node: Object, add: Sequence[str], remove: Sequence[str]) -> Object | None:
    """A merge patch (the list of taints is one field); None when nothing changes.

    Taints are written KEY=VALUE:EFFECT; one of the same key and effect is replaced.
    """
    there = list((node.get("spec") or {}).get("taints") or [])
    new = list(map(parse_taint, add))
    gone = {_identity(taint) for taint in (*new, *map(parse_taint, remove))}
    wanted = [taint for taint in there if _identity(taint) not in gone] + new
    if all(taint in there for taint in wanted) and len(wanted) == len(there):
        return None
    return {"spec": {"taints": wanted}}


def parse_taint(text: str) -> dict[str, str]:
    """
    >>> parse_taint("nvidia.com/gpu=present:NoSchedule")
    {'key': 'nvidia.com/gpu', 'value': 'present', 'effect': 'NoSchedule'}
    """
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


def _identity(taint: Object) -> tuple[str, str]:
    return (taint["key"], taint.get("effect", ""))
