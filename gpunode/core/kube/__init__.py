"""Objects of a Kubernetes cluster as plain data: made from the spec, checked, and old ones brought to today's form."""

from gpunode.core.kube.cluster import Cluster, Object, Pool, cluster_of, parse_server
from gpunode.core.kube.render import NodeWish, Rendered, render
from gpunode.core.kube.render.helm import Release, check_values
from gpunode.core.kube.render.plugin_config import check_plugin_config, check_sharing, plugin_config

__all__ = [
    "Cluster",
    "NodeWish",
    "Object",
    "Pool",
    "Release",
    "Rendered",
    "check_plugin_config",
    "check_sharing",
    "check_values",
    "cluster_of",
    "parse_server",
    "plugin_config",
    "render",
]
