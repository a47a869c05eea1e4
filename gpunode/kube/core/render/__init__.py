"""Spec → everything a cluster needs: objects in the order in which they can be applied, releases, nodes, notes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gpunode.core.knowledge.support import untried
from gpunode.core.late import dataclass
from gpunode.core.model import Problem, Reason
from gpunode.core.sharing.mig import ALL_DISABLED
from gpunode.core.sharing.rules import cuts, sharing_problems
from gpunode.kube.core.cluster import (
    CLIENT_LABEL,
    GPUSHARE_LABEL,
    MIG_LABEL,
    POD_SECURITY,
    POOL_LABEL,
    Cluster,
    Object,
    Pool,
)
from gpunode.kube.core.objects import labels, thing
from gpunode.kube.core.render.device_plugin import MPS_LABEL, PLUGIN, device_plugin
from gpunode.kube.core.render.dra import dra_examples, dra_notes, dra_problems
from gpunode.kube.core.render.gpushare import EXTENDER, PORT, extender_url, gpushare, gpushare_examples
from gpunode.kube.core.render.helm import Release, release_of, releases
from gpunode.kube.core.render.mig import LAYOUTS, mig_objects, mig_problems
from gpunode.kube.core.render.operator_values import NAME, operator_problems, operator_values

PRESENT = ("kube-system", "default", "kube-public")  # in every cluster


def namespace(cluster: Cluster) -> list[Object]:
    """The namespace, where it is our own; device plugins mount host paths, which pod security would refuse."""
    name = cluster.spec.namespace
    if name in PRESENT:
        return []
    found = thing("Namespace", "v1", name, "namespace", {})
    found["metadata"]["labels"] = {**labels("namespace"), POD_SECURITY: "privileged"}
    return [found]


def runtime_class(cluster: Cluster) -> list[Object]:
    """The RuntimeClass; it selects nodes only where the spec says so, as its selector is merged into every pod."""
    spec = cluster.spec.runtime_class
    if not spec.name:
        return []
    api = cluster.knowledge.api("RuntimeClass", cluster.server)
    selects = {"scheduling": {"nodeSelector": dict(spec.node_selector)}} if spec.node_selector else {}
    return [thing("RuntimeClass", api, spec.name, "runtime-class", {"handler": spec.handler, **selects})]


# An object stands after those it needs.
ORDER = (
    "Namespace", "RuntimeClass", "ServiceAccount", "ClusterRole", "ClusterRoleBinding",
    "ConfigMap", "Service", "DeviceClass", "ResourceClaimTemplate", "Deployment", "DaemonSet",
    "StatefulSet", "Pod",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NodeWish:
    """What the nodes of a pool have to carry."""

    pool: Pool
    labels: dict[str, str]
    taints: tuple[str, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        """The same by kubectl."""
        chosen = f"-l {shlex.quote(self.pool.selector)}" if self.pool.selector else "NODE"
        nodes = " ".join(self.pool.hosts) or chosen
        pairs = " ".join(f"{key}={value}" for key, value in self.labels.items())
        label = (f"kubectl label nodes {nodes} {pairs} --overwrite",) if pairs else ()
        return (*label, *(f"kubectl taint nodes {nodes} {taint} --overwrite" for taint in self.taints))


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """What `gpunode kube render` writes and `apply` applies; nothing of it may be applied while there are problems."""

    cluster: Cluster
    objects: tuple[Object, ...]
    releases: tuple[Release, ...]
    examples: tuple[Object, ...]
    nodes: tuple[NodeWish, ...]
    notes: tuple[Reason, ...]
    problems: tuple[Problem, ...]


def render(cluster: Cluster) -> Rendered:
    """Everything; equal input gives equal bytes."""
    operator = cluster.spec.install == "operator"
    objects = [*namespace(cluster), *gpushare(cluster)]
    objects += [] if operator else runtime_class(cluster)  # the operator makes its own
    objects += mig_objects(cluster)
    objects += device_plugin(cluster) if cluster.spec.install == "manifest" else []
    wishes = tuple(node_wishes(cluster))
    charts = [release_of(cluster, NAME, operator_values(cluster))] if operator else releases(cluster)
    return Rendered(
        cluster=cluster,
        objects=in_order(objects),
        releases=tuple(charts),
        examples=in_order(
            [*dra_examples(cluster), *(gpushare_examples(cluster) if cluster.pools_of("gpushare") else [])]
        ),
        nodes=tuple(request for request in wishes if request.labels or request.taints),
        notes=tuple(_notes(cluster)),
        problems=tuple(_problems(cluster, charts)),
    )


def in_order(objects: list[Object]) -> tuple[Object, ...]:
    """By kind, and within a kind as they came."""
    return tuple(sorted(objects, key=lambda found: ORDER.index(found["kind"])))


# ---------------------------------------------------------------- nodes


def node_wishes(cluster: Cluster) -> Iterator[NodeWish]:
    """One for each pool, also where its nodes need no label or taint."""
    spec = cluster.spec
    taints = ("nvidia.com/gpu=present:NoSchedule",) if spec.taint else ()
    for pool in cluster.pools:
        strategy = pool.sharing.strategy
        labels = {**spec.node_selector, **spec.runtime_class.node_selector}
        if strategy == "gpushare":
            labels[GPUSHARE_LABEL] = "true"
            labels |= {"nvidia.com/gpu.deploy.device-plugin": "false"} if spec.install == "operator" else {}
        elif pool.has_known_nodes or strategy in ("mps", "dra"):
            labels[POOL_LABEL] = pool.name
        if strategy == "mps" and spec.install == "helm":
            labels[MPS_LABEL] = "true"  # the chart's MPS daemon selects it
        if pool in cluster.mig_managed:  # all-disabled takes away what an earlier layout made
            labels[MIG_LABEL] = pool.name if cuts(pool.sharing) else ALL_DISABLED
        labels |= {CLIENT_LABEL: "true"} if cluster.mig_managed and spec.install != "operator" else {}
        charts = spec.install == "helm" or strategy == "dra"
        if charts and not spec.node_feature_discovery and spec.install != "operator":
            labels["nvidia.com/gpu.present"] = "true"  # the charts' affinity, where nobody discovers
        yield NodeWish(pool=pool, labels=labels, taints=taints)


# ---------------------------------------------------------------- notes and problems


def _notes(cluster: Cluster) -> Iterator[Reason]:
    spec, known = cluster.spec, cluster.knowledge
    if new := untried("kubernetes", str(cluster.server), known.support):
        yield Reason(what=new, why="its objects were not checked against what such a server takes")
    url = extender_url(cluster)
    if cluster.pools_of("gpushare") and url:
        yield Reason(
            what=f"kube-scheduler of every control-plane node has to call {url}",
            why=f"gpunode kube scheduler configure --server-version {cluster.server} --extender-url {url}",
        )
    if cluster.pools_of("gpushare"):
        yield Reason(
            what="gpushare counts memory, and limits no container",
            why="a container may use more than it asked for, and none gets memory of two GPUs",
        )
        shares = known.memory_shares.since
        yield Reason(
            what="gpushare gives a pod's memory away as soon as the pod is to end, while it still runs",
            why="until then a GPU may hold more than it has: end pods quickly (terminationGracePeriodSeconds), or use "
            f"sharing.strategy: dra with sharing.dra.shares: memory, from Kubernetes {shares} on",
        )
    yield from dra_notes(cluster)
    if cluster.pools_of("mps"):
        yield Reason(what="MPS is experimental in the device plugin", why="since 0.15.0, by its README")
    discovers = spec.install == "manifest" and spec.feature_discovery and bool(cluster.plugin_pools)
    if discovers and not spec.node_feature_discovery:
        yield Reason(
            what="GPU Feature Discovery writes files that only Node Feature Discovery turns into labels",
            why="set kubernetes.node_feature_discovery, or leave it where the cluster has one already",
        )
    if cluster.mig_managed and spec.install != "operator":
        yield Reason(
            what=f"NVIDIA's MIG manager has to read the ConfigMap {spec.namespace}/{LAYOUTS}",
            why="its DaemonSet mounts the file config.yaml that CONFIG_FILE names; gpunode installs no MIG manager",
        )
    if any(cuts(pool.sharing) and pool not in cluster.mig_managed for pool in cluster.pools):
        yield Reason(what="MIG instances are made on the hosts", why="gpunode provision; objects only offer them")
    if cluster.runtime_class and cluster.plugin_pools:
        yield Reason(
            what=f"pods that use a GPU have to say runtimeClassName: {cluster.runtime_class}",
            why="an engine's default runtime is not nvidia (runtimes.*.default_runtime)",
        )


def _problems(cluster: Cluster, charts: list[Release]) -> Iterator[Problem]:
    for pool in cluster.pools:
        yield from sharing_problems(pool.sharing, f"pool {pool.name}: sharing")
    yield from mig_problems(cluster)
    yield from dra_problems(cluster)
    yield from operator_problems(cluster)
    if cluster.pools_of("gpushare") and not extender_url(cluster):
        yield Problem(
            what=f"with kube-proxy's mode {cluster.spec.gpushare.kube_proxy} 127.0.0.1 does not lead to the extender",
            fix="set kubernetes.gpushare.extender_url: http://ADDRESS:NODEPORT of a control-plane node, or "
            f"http://CLUSTER-IP:{PORT} (kubectl -n {cluster.spec.namespace} get service {EXTENDER})",
        )
    for release in charts:
        if cluster.server < release.chart.kube:
            yield Problem(
                what=f"chart {release.chart.name} needs Kubernetes {release.chart.kube}, this is {cluster.server}",
                fix="upgrade the cluster"
                + (", or choose kubernetes.install: manifest" if release.name == PLUGIN else ""),
            )
        if release.namespace in PRESENT[1:]:
            yield Problem(
                what=f"NVIDIA's charts refuse the namespace {release.namespace}", fix="set kubernetes.namespace"
            )
