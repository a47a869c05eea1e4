"""What a cluster needs of a bundle: the one way from there to gpunode.kube, loaded where --cluster is given."""

from __future__ import annotations

from gpunode.core.errors import RefusedError
from gpunode.core.knowledge.kubernetes import Chart
from gpunode.core.late import dataclass, replace
from gpunode.core.spec import Spec


@dataclass(frozen=True, kw_only=True)
class ClusterNeeds:
    charts: tuple[Chart, ...]
    images: tuple[str, ...]


def cluster_needs(spec: Spec) -> ClusterNeeds:
    """The charts and images of what `gpunode kube render` makes, images as their makers name them.

    Raises RefusedError.
    """
    from gpunode.edge.load import load_kube_knowledge
    from gpunode.kube.core import cluster_of, render
    from gpunode.kube.core.images import images_of

    public = replace(spec.kubernetes, images=replace(spec.kubernetes.images, registry=""))
    rendered = render(cluster_of({"": replace(spec, kubernetes=public)}, "", load_kube_knowledge()))
    if rendered.problems:
        raise RefusedError(rendered.problems[0].what, fix=rendered.problems[0].fix)
    return ClusterNeeds(charts=tuple(release.chart for release in rendered.releases), images=images_of(rendered))
