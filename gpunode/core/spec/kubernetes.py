"""The sections `sharing` and `kubernetes` of gpunode.yml: how GPUs are shared, and what the cluster gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from gpunode.core.late import dataclass
from gpunode.core.spec.option import option

Strategy = Literal["none", "time-slicing", "mps", "mig", "gpushare", "dra"]


class Mode(NamedTuple):
    """A way of sharing GPUs: what every part of gpunode has to know of one.

    `words` say what its name does not.  `most` is how many shares a GPU may have, 0 where it has none by number, and
    `limit` why.  `no_mig` says why it does not go with MIG instances, "" where it does.  `on_host`: provision does it,
    which needs the driver; `in_cluster`: there is none without Kubernetes, nor by NVIDIA's device plugin.
    """

    words: str = ""
    most: int = 0
    limit: str = ""
    no_mig: str = "it cuts no GPU"
    on_host: bool = False
    in_cluster: bool = False


MODES: Mapping[Strategy, Mode] = {
    "none": Mode("whole GPUs"),
    "time-slicing": Mode(most=1000, limit="no program would get on", no_mig=""),
    "mps": Mode(  # Volta and newer: https://docs.nvidia.com/deploy/mps/
        most=48,
        limit="a GPU has at most 48 MPS clients",
        no_mig="MPS does not work on MIG instances",
        on_host=True,
    ),
    "mig": Mode(no_mig="", on_host=True),
    "gpushare": Mode("by memory", in_cluster=True),
    "dra": Mode(in_cluster=True),
}
SHARED = tuple(name for name, mode in MODES.items() if mode.most)
*_FIRST, _LAST = (f"{name} ({mode.words})" if mode.words else name for name, mode in MODES.items())


@dataclass(frozen=True, kw_only=True)
class MigSpec:
    """Multi-Instance GPU: which instances a GPU is cut into."""

    strategy: Literal["single", "mixed"] = option(
        "single", "how instances are offered: single as nvidia.com/gpu (all alike), mixed as nvidia.com/mig-PROFILE"
    )
    manager: Literal["gpunode", "mig-manager"] = option(
        "gpunode",
        "who makes the instances: gpunode on the host, or NVIDIA's MIG manager in the cluster, by node labels",
    )
    profiles: Mapping[str, int] = option({}, "instances of every GPU, profile to count, such as {1g.10gb: 7}")
    gpus: Mapping[str, Mapping[str, int]] = option(
        {}, "instances of single GPUs in place of profiles, by index, such as {'0': {3g.40gb: 2}, '1': {}}"
    )


@dataclass(frozen=True, kw_only=True)
class DraSpec:
    """Dynamic Resource Allocation: what a claim gets."""

    shares: Literal["none", "memory"] = option(
        "none",
        "none: a claim has a device of its own; memory: it has the memory it asks for, and several share a GPU. "
        "The same for all pools with dra",
    )


@dataclass(frozen=True, kw_only=True)
class SharingSpec:
    """How several containers share one GPU, the same for all GPUs of a node."""

    strategy: Strategy = option("none", f"{', '.join(_FIRST)}, or {_LAST}")
    replicas: int = option(0, f"shares of a GPU, at least 2, for {' and '.join(SHARED)}")
    rename_by_default: bool = option(
        False, "offer shares as nvidia.com/gpu.shared, in addition to whole nvidia.com/gpu"
    )
    fail_requests_greater_than_one: bool = option(
        True, "refuse a container that asks for several shares: time-slicing gives it no more time for them"
    )
    mig: MigSpec = option(MigSpec(), "Multi-Instance GPU, for mig, and for time-slicing of its instances")
    dra: DraSpec = option(DraSpec(), "Dynamic Resource Allocation, for dra")

    @property
    def mode(self) -> Mode:
        return MODES[self.strategy]


@dataclass(frozen=True, kw_only=True)
class TolerationSpec:
    key: str = option("", "taint to tolerate; empty with Exists tolerates every taint")
    operator: Literal["Exists", "Equal"] = option("Exists", "Exists (any value) or Equal")
    value: str = option("", "value of the taint, for Equal")
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = option("", "effect; empty means every one")

    @property
    def given(self) -> dict[str, str]:
        """As Kubernetes wants it: without the empty fields."""
        found = {"key": self.key, "operator": self.operator, "value": self.value, "effect": self.effect}
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, kw_only=True)
class RuntimeClassSpec:
    name: str = option("nvidia", "name of the RuntimeClass; empty renders none")
    handler: str = option("nvidia", "name of the runtime in the engine's configuration")
    node_selector: Mapping[str, str] = option(
        {}, "labels that nodes must carry for pods of this class: without them the pods stay Pending"
    )
    use: Literal["auto", "always", "never"] = option(
        "auto", "pods that need the driver name the class: auto does where an engine's default is not nvidia"
    )


@dataclass(frozen=True, kw_only=True)
class ImagesSpec:
    registry: str = option("", "private registry put in place of every image's own, such as registry.lan:5000/gpu")
    names: Mapping[str, str] = option(
        {}, "whole image by component (nvidia-device-plugin, gpushare-extender …), such as NAME@sha256:…"
    )
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = option("IfNotPresent", "imagePullPolicy of every pod")
    pull_secrets: tuple[str, ...] = option((), "names of Secrets with registry credentials")


@dataclass(frozen=True, kw_only=True)
class DevicePluginSpec:
    enabled: bool | None = option(
        None, "NVIDIA's device plugin, which offers nvidia.com/gpu; null: where a pool's sharing needs it"
    )
    device_list_strategy: tuple[Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"], ...] = option(
        ("envvar",), "how a container learns of its GPUs: envvar, volume-mounts, cdi-annotations, cdi-cri"
    )
    device_id_strategy: Literal["uuid", "index"] = option("uuid", "how GPUs are named to the container")
    fail_on_init_error: bool = option(
        False, "fail on a node without a GPU; false waits there, so that the pods may run on every node"
    )
    pass_device_specs: bool = option(False, "give device files to the kubelet too, for its static CPU manager")
    priority_class: str = option("system-node-critical", "PriorityClass of the pods; empty for none")

    @property
    def by_cdi(self) -> bool:
        """Whether some containers learn of their GPUs by CDI; the plugin writes CDI specifications then."""
        return any(strategy.startswith("cdi-") for strategy in self.device_list_strategy)

    @property
    def by_cdi_alone(self) -> bool:
        """Whether an engine without CDI would give containers no GPUs, or those that their image asks for."""
        return all(strategy.startswith("cdi-") for strategy in self.device_list_strategy)


@dataclass(frozen=True, kw_only=True)
class GpushareSpec:
    memory_unit: Literal["GiB", "MiB"] = option(
        "GiB", "unit of aliyun.com/gpu-mem; MiB is for small GPUs: each unit is one device of the kubelet"
    )
    health_check: bool = option(False, "mark a GPU unhealthy after an Xid error")
    node_port: int = option(32766, "NodePort of the extender's Service, which kube-scheduler calls")
    kube_proxy: Literal["iptables", "ipvs", "nftables", "none"] = option(
        "iptables", "kube-proxy's mode: only with iptables does 127.0.0.1:PORT lead to the extender"
    )
    extender_url: str = option(
        "", "URL by which kube-scheduler reaches the extender, where kube-proxy's mode is not iptables"
    )


@dataclass(frozen=True, kw_only=True)
class MonitoringSpec:
    enabled: bool = option(False, "DCGM exporter by its helm chart")
    prometheus_operator: bool = option(False, "ServiceMonitor; needs the Prometheus operator's resource definitions")
    labels: Mapping[str, str] = option({}, "labels by which Prometheus selects them, such as {release: prometheus}")
    interval: str = option("30s", "how often Prometheus asks the exporter")


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """A node pool whose nodes are chosen by their labels, without an inventory."""

    nodes: str = option(
        "", "label selector of its nodes, such as 'cloud.google.com/gke-nodepool=gpu' or 'gpu in (a, b)'"
    )
    sharing: SharingSpec | None = option(None, "how its nodes share GPUs, in place of the file's `sharing`")


@dataclass(frozen=True, kw_only=True)
class KubernetesSpec:
    """What the cluster gets.  All but `pool` is the same for every pool."""

    pool: str = option("default", "name of the node pool this sharing is for; set it in an inventory group")
    pools: Mapping[str, PoolSpec] = option({}, "node pools by label, by name, in addition to those of an inventory")
    server_version: str = option("", "Kubernetes MAJOR.MINOR of the API server, such as '1.34'")
    install: Literal["manifest", "helm", "operator"] = option(
        "manifest", "render objects, values for NVIDIA's helm charts, or values for the GPU Operator"
    )
    namespace: str = option("gpunode", "namespace of all objects; made unless it is kube-system or default")
    kubelet_dir: str = option("/var/lib/kubelet", "the kubelet's folder (its --root-dir); k0s: /var/lib/k0s/kubelet")
    node_selector: Mapping[str, str] = option({}, "labels of GPU nodes; empty runs the pods on every node")
    tolerations: tuple[TolerationSpec, ...] = option((), "taints that GPU pods tolerate besides nvidia.com/gpu")
    taint: bool = option(False, "taint GPU nodes nvidia.com/gpu=present:NoSchedule, which keeps other pods away")
    gate: bool = option(
        False,
        "nodes that join with the taint gpunode/unproven lose it when the pods of kube verify --smoke passed there",
    )
    runtime_class: RuntimeClassSpec = option(RuntimeClassSpec(), "RuntimeClass")
    images: ImagesSpec = option(ImagesSpec(), "images")
    device_plugin: DevicePluginSpec = option(DevicePluginSpec(), "NVIDIA device plugin")
    feature_discovery: bool = option(True, "GPU Feature Discovery; its labels need Node Feature Discovery")
    node_feature_discovery: bool = option(False, "Node Feature Discovery by its helm chart; it labels nodes")
    gpushare: GpushareSpec = option(GpushareSpec(), "gpushare, for sharing.strategy gpushare")
    monitoring: MonitoringSpec = option(MonitoringSpec(), "monitoring")
