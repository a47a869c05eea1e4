"""Values for NVIDIA's GPU Operator, from the same spec: the alternative to gpunode's own objects.

gpunode makes driver, toolkit and MIG layout on the host, so the operator is configured to leave these alone; its MIG
manager is on where `sharing.mig.manager` says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpunode.core.model import Problem
from gpunode.kube.core.cluster import Cluster, tolerations
from gpunode.kube.core.objects import image_values
from gpunode.kube.core.render.device_plugin import CONFIG, default_config, plugin_configs
from gpunode.kube.core.render.dra import memory_gates, shares_memory
from gpunode.kube.core.render.handover import handover_values
from gpunode.kube.core.render.helm import exporter_monitor
from gpunode.kube.core.render.mig import mig_values
from gpunode.kube.core.render.plugin_config import mig_strategy

NAME, MIG_MANAGER = "gpu-operator", "mig-manager"
_OPERANDS = {  # key of the values → component whose image it runs
    "operator": "gpu-operator",
    "validator": "gpu-operator",
    "devicePlugin": "nvidia-device-plugin",
    "gfd": "gpu-feature-discovery",
    "dcgmExporter": "dcgm-exporter",
    "draDriver": "dra-driver",
    "migManager": MIG_MANAGER,
}


def components(cluster: Cluster) -> tuple[str, ...]:
    """What the operator runs of what gpunode leaves to it, as components that have an image."""
    spec, dra = cluster.spec, bool(cluster.pools_of("dra"))
    on = {
        "gpu-operator": True,
        "nvidia-device-plugin": bool(cluster.plugin_pools),
        "gpu-feature-discovery": spec.feature_discovery,
        "dcgm-exporter": spec.monitoring.enabled,
        "dra-driver": dra,
        MIG_MANAGER: bool(cluster.mig_managed),
        "node-feature-discovery": spec.node_feature_discovery,
    }
    return tuple(name for name, wanted in on.items() if wanted)


def operator_problems(cluster: Cluster) -> Iterator[Problem]:
    """The operator runs a cluster by device plugin or by DRA, not by both."""
    if cluster.spec.install == "operator" and cluster.pools_of("dra") and cluster.plugin_pools:
        yield Problem(
            what="the GPU Operator has either the device plugin or DRA, and these pools need both",
            fix="choose install: manifest or helm, or one kind of sharing for all pools",
        )


def operator_values(cluster: Cluster) -> dict[str, Any]:
    spec = cluster.spec
    dra = bool(cluster.pools_of("dra"))
    plugin = bool(cluster.plugin_pools)
    strategies = {mig_strategy(pool.sharing) for pool in cluster.plugin_pools} - {"none"}
    values: dict[str, Any] = {
        **handover_values(cluster, NAME),
        "migManager": mig_values(cluster),
        "nfd": {"enabled": spec.node_feature_discovery},
        "mig": {"strategy": "mixed" if "mixed" in strategies else "single"},
        "psa": {"enabled": True},
        "daemonsets": {
            "tolerations": tolerations(cluster),
            "priorityClassName": spec.device_plugin.priority_class,
        },
        "devicePlugin": {"enabled": plugin},
        "gfd": {"enabled": spec.feature_discovery},
        "dcgmExporter": {"enabled": spec.monitoring.enabled},
        "clusterPolicy": {"deployCR": not dra},
        "gpuCluster": {"deployCR": dra},
    }
    if plugin:
        values["devicePlugin"]["config"] = {
            "create": True,
            "name": CONFIG,
            "default": default_config(cluster),
            "data": plugin_configs(cluster),
        }
    if shares_memory(cluster):
        shares = {"name": "CONSUMABLE_SHARES", "value": "memory"}
        values["draDriver"] = {"featureGates": memory_gates(cluster), "gpus": {"kubeletPlugin": {"env": [shares]}}}
    if spec.monitoring.enabled:
        values["dcgmExporter"]["serviceMonitor"] = exporter_monitor(cluster)
    if spec.images.registry or spec.images.names or spec.images.pull_secrets:
        for key, component in _OPERANDS.items():
            if component != MIG_MANAGER or cluster.mig_managed:
                values.setdefault(key, {}).update(_image(cluster, component))
        values["node-feature-discovery"] = image_values(cluster, "node-feature-discovery")
    return values


def _image(cluster: Cluster, component: str) -> dict[str, Any]:
    """The operator spells an image in three parts."""
    repository, tag = cluster.image_parts(component)
    folder, _, name = repository.rpartition("/")
    return {
        "repository": folder,
        "image": name,
        "version": tag,
        "imagePullPolicy": cluster.spec.images.pull_policy,
        "imagePullSecrets": list(cluster.spec.images.pull_secrets),
    }
