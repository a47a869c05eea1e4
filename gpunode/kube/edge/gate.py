"""The taint and label of kubernetes.gate, on nodes of a cluster."""

from __future__ import annotations

from gpunode.kube.core.cluster import Object
from gpunode.kube.core.gate import gate_patch, is_marked
from gpunode.kube.core.marks import node_key
from gpunode.kube.edge.client import Api, ApiError

_LOST_UPDATES = 5


def mark_node(api: Api, name: str, *, label: bool, taint: bool) -> bool:
    """Give or take our label, and take our taint unless it is to stay; whether that changed the node."""
    for attempt in range(1, _LOST_UPDATES + 1):
        node = api.find(api.path(node_key(name)))
        patch = gate_patch(node, label=label, taint=taint) if node else None
        if patch is None:
            return False
        try:
            api.merge(node_key(name), patch)
        except ApiError as error:
            if error.status != 409 or attempt == _LOST_UPDATES:
                raise
            continue
        return True
    return False


def marked_nodes(api: Api) -> list[str]:
    """The nodes that have our label or taint; whoever may not list nodes has marked none."""
    try:
        nodes: list[Object] = api.items("/api/v1/nodes")
    except ApiError as error:
        if error.status != 403:
            raise
        return []
    return [node["metadata"]["name"] for node in nodes if is_marked(node)]
