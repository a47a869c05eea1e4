"""Values that tell the charts of other programs what a provisioned host has (knowledge: `handover`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpunode.core.yaml_text import yaml_text
from gpunode.kube.core.cluster import Cluster


def handover_values(cluster: Cluster, name: str) -> dict[str, Any]:
    """The values of the chart, nested as its values.yaml is."""
    words = _words(cluster)
    values: dict[str, Any] = {}
    for row in cluster.knowledge.handovers[name].values:
        *folders, last = row.key.split(".")
        place = values
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = _filled(row.value, words)
    return values


def handover_text(cluster: Cluster, name: str) -> str:
    """The values as a file for `helm -f`, with the reason of each in front."""
    handover = cluster.knowledge.handovers[name]
    reasons = "".join(f"# {row.key}: {row.why}\n" for row in handover.values)
    return (
        f"# A host that gpunode provisioned, for {handover.chart}\n{reasons}{yaml_text(handover_values(cluster, name))}"
    )


def _words(cluster: Cluster) -> dict[str, bool | str]:
    spec = cluster.spec
    return {
        "runtime_class": spec.runtime_class.name or "nvidia",
        "pod_runtime_class": cluster.runtime_class,
        "kubelet_dir": spec.kubelet_dir.rstrip("/"),
        "cdi": spec.device_plugin.by_cdi,
        "no_toolkit": not cluster.has_toolkit,
    }


def _filled(value: bool | str, words: Mapping[str, bool | str]) -> bool | str:
    """The value with its words replaced; a word that stands alone keeps its type."""
    if isinstance(value, bool):
        return value
    alone = re.fullmatch(r"\{(\w+)\}", value)
    return words[alone[1]] if alone else value.format(**words)
