"""Every image that a cluster's objects, charts and proofs run: what has to be in a registry that it reaches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.kube.core.checks.proofs import IMAGE as PROOF
from gpunode.kube.core.render import Rendered
from gpunode.kube.core.render.operator_values import NAME as OPERATOR
from gpunode.kube.core.render.operator_values import components


def images_of(rendered: Rendered) -> tuple[str, ...]:
    """The images, each once, in order: of objects, of releases, and of the pods of `gpunode kube verify`."""
    images = {rendered.cluster.image(PROOF)}
    for item in rendered.objects:
        images.update(_of_containers(item))
    for release in rendered.releases:
        if release.chart.name == OPERATOR:
            images.update(map(rendered.cluster.image, components(rendered.cluster)))
        else:
            images.update(_of_values(release.values))
    return tuple(sorted(images))


def _of_containers(value: Any) -> Iterator[str]:
    """Every image that a container of an object names."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in ("containers", "initContainers"):
                yield from (one["image"] for one in inner if "image" in one)
            yield from _of_containers(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _of_containers(inner)


def _of_values(values: Mapping[str, Any]) -> Iterator[str]:
    """The `image` of a chart and of its subcharts that are on."""
    if values.get("enabled") is False:
        return
    image = values.get("image")
    if isinstance(image, Mapping) and "repository" in image:
        yield f"{image['repository']}:{image['tag']}"
    for inner in values.values():
        if isinstance(inner, Mapping):
            yield from _of_values(inner)
