"""Objects of a Kubernetes cluster as plain data: made from the spec."""

from gpunode.core.kube.cluster import Cluster, Object, Pool, cluster_of, parse_server
from gpunode.core.kube.render import NodeWish, Rendered, render
from gpunode.core.kube.render.helm import Release
from gpunode.core.kube.render.plugin_config import check_sharing, plugin_config

__all__ = [
    "Cluster",
    "NodeWish",
    "Object",
    "Pool",
    "Release",
    "Rendered",
    "check_sharing",
    "cluster_of",
    "parse_server",
    "plugin_config",
    "render",
]
