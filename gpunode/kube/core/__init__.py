"""Objects of a Kubernetes cluster as plain data: made from the spec."""

from gpunode.kube.core.cluster import Cluster, Object, Pool, cluster_of, parse_server
from gpunode.kube.core.render import NodeWish, Rendered, render
from gpunode.kube.core.render.helm import Release
from gpunode.kube.core.render.plugin_config import check_sharing, plugin_config

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
