"""Objects of a Kubernetes cluster as plain data: made from the spec."""

from gpunode.kube.core.cluster import cluster_of
from gpunode.kube.core.render import Rendered, render

__all__ = ["Rendered", "cluster_of", "render"]
