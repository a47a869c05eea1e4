"""The taint and label of kubernetes.gate, on nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable

from gpunode.kube.core.api_error import DeniedError
from gpunode.kube.core.cluster import PROVEN, UNPROVEN, Object
from gpunode.kube.core.gate import gate_patch, is_marked
from gpunode.kube.core.marks import node_key
from gpunode.kube.edge.client import Api


def mark_node(api: Api, name: str, *, label: bool, taint: bool) -> bool:
    """Give or take our label, and take our taint unless it is to stay; whether there is such a node."""
    return api.change(node_key(name), lambda node: gate_patch(node, label=label, taint=taint)) is not None


def marked_nodes(api: Api, notify: Callable[[str], None]) -> list[str]:
    """The nodes that have our label or taint; without the right to list nodes none, and a notice that they stay."""
    try:
        nodes: list[Object] = api.items("/api/v1/nodes")
    except DeniedError:
        notify(f"nodes may not be listed: those with the taint {UNPROVEN} or the label {PROVEN} keep it")
        return []
    return [node["metadata"]["name"] for node in nodes if is_marked(node)]
