"""RuntimeClass and Namespace."""

from __future__ import annotations

from gpunode.core.kube.cluster import Cluster, Object
from gpunode.core.kube.objects import labels, thing

PRESENT = ("kube-system", "default", "kube-public")  # in every cluster


def namespace(cluster: Cluster) -> list[Object]:
    """The namespace, where it is our own; device plugins mount host paths, which pod security would refuse."""
    name = cluster.spec.namespace
    if name in PRESENT:
        return []
    found = thing("Namespace", "v1", name, "namespace", {})
    found["metadata"]["labels"] = {**labels("namespace"), "pod-security.kubernetes.io/enforce": "privileged"}
    return [found]


def runtime_class(cluster: Cluster) -> list[Object]:
    """The RuntimeClass; it selects nodes only where the spec says so, as its selector is merged into every pod."""
    spec = cluster.spec.runtime_class
    api = cluster.knowledge.api("RuntimeClass", cluster.server)
    if not spec.name or not api:
        return []
    selects = {"scheduling": {"nodeSelector": dict(spec.node_selector)}} if spec.node_selector else {}
    return [thing("RuntimeClass", api, spec.name, "runtime-class", {"handler": spec.handler, **selects})]
