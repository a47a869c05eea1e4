"""Values for NVIDIA's helm charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpunode.core.knowledge.kubernetes import Chart
from gpunode.core.late import dataclass
from gpunode.kube.core.cluster import Cluster, tolerations
from gpunode.kube.core.objects import image_values
from gpunode.kube.core.render.device_plugin import PLUGIN, default_config, plugin_affinity, plugin_configs
from gpunode.kube.core.render.dra import dra_values

PCI = {"deviceClassWhitelist": ["02", "03"], "deviceLabelFields": ["vendor"]}
LABELS = "nvidia.com"  # the names of labels that may come from features.d, besides those of Node Feature Discovery


@dataclass(frozen=True, kw_only=True)
class Release:
    """A helm release: `helm upgrade --install NAME CHART --version … --namespace … -f values`."""

    name: str
    chart: Chart
    namespace: str
    values: Mapping[str, Any]

    @property
    def command(self) -> str:
        """What installs it, from the folder of the values file."""
        oci = self.chart.repository.startswith("oci://")
        source = f"{self.chart.repository}/{self.chart.name}" if oci else f"{self.chart.name}"
        repo = "" if oci else f" --repo {self.chart.repository}"
        return (
            f"helm upgrade --install {self.name} {source}{repo} --version {self.chart.version} "
            f"--namespace {self.namespace} --create-namespace -f {self.name}.yml"
        )


def releases(cluster: Cluster) -> list[Release]:
    """Where no operator brings them: the device plugin's with `install: helm`, and what has no manifest of ours."""
    charts = []
    if cluster.spec.install == "helm" and cluster.plugin_pools:
        charts.append(release_of(cluster, PLUGIN, device_plugin_values(cluster)))
    elif cluster.spec.node_feature_discovery:
        charts.append(release_of(cluster, "node-feature-discovery", discovery_values(cluster)))
    if cluster.pools_of("dra"):
        charts.append(release_of(cluster, "dra-driver-nvidia-gpu", dra_values(cluster)))
    if cluster.spec.monitoring.enabled:
        charts.append(release_of(cluster, "dcgm-exporter", exporter_values(cluster)))
    return charts


def device_plugin_values(cluster: Cluster) -> dict[str, Any]:
    spec = cluster.spec
    nested = discovery_values(cluster) if spec.node_feature_discovery else {}
    return {
        **image_values(cluster, PLUGIN),
        **({"nvidiaDriverRoot": "/"} if cluster.spec.device_plugin.by_cdi else {}),
        "config": {"map": plugin_configs(cluster), "default": default_config(cluster)},
        "runtimeClassName": cluster.runtime_class or None,
        "priorityClassName": spec.device_plugin.priority_class,
        "nodeSelector": cluster.gpu_selector,
        "affinity": plugin_affinity(*cluster.plugin_pools),
        "tolerations": tolerations(cluster),
        "gfd": {"enabled": spec.feature_discovery},
        # the chart's condition would bring Node Feature Discovery with GFD
        "nfd": {"enabled": spec.node_feature_discovery, **nested},
    }


def discovery_values(cluster: Cluster) -> dict[str, Any]:
    """Node Feature Discovery: publish nvidia.com labels, look at display and 3D controllers."""
    return {
        **image_values(cluster, "node-feature-discovery"),
        "master": {"config": {"extraLabelNs": [LABELS]}},
        "worker": {"config": {"sources": {"pci": PCI}}, "tolerations": tolerations(cluster)},
    }


def exporter_values(cluster: Cluster) -> dict[str, Any]:
    return {
        **image_values(cluster, "dcgm-exporter"),
        "runtimeClassName": cluster.runtime_class,
        "priorityClassName": cluster.spec.device_plugin.priority_class,
        "nodeSelector": cluster.gpu_selector,
        "tolerations": tolerations(cluster),
        "kubeletPath": f"{cluster.spec.kubelet_dir}/pod-resources",
        "serviceMonitor": exporter_monitor(cluster),
    }


def exporter_monitor(cluster: Cluster) -> dict[str, Any]:
    """The values of the exporter's ServiceMonitor, in its own chart and in the operator's."""
    watched = cluster.spec.monitoring
    return {
        "enabled": watched.prometheus_operator,
        "interval": watched.interval,
        "honorLabels": True,  # pod and namespace are those of the program on the GPU
        "additionalLabels": dict(watched.labels),
    }


def release_of(cluster: Cluster, name: str, values: Mapping[str, Any]) -> Release:
    """The release of a known chart."""
    return Release(name=name, chart=cluster.knowledge.charts[name], namespace=cluster.spec.namespace, values=values)
