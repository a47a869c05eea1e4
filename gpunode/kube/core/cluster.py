"""What all objects of a cluster are made from: the spec, its pools, the server, and what is known."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gpunode.core import words
from gpunode.core.edits.kubernetes.scheduler import is_url
from gpunode.core.errors import InputError, RefusedError
from gpunode.core.knowledge.kubernetes import KubeKnowledge, Server
from gpunode.core.knowledge.support import refuse_old
from gpunode.core.late import dataclass, field, regex
from gpunode.core.meant import meant
from gpunode.core.numbers import whole
from gpunode.core.spec import Spec
from gpunode.core.spec.kubernetes import MODES, KubernetesSpec, PoolSpec, SharingSpec
from gpunode.kube.core.selector import parse_selector

_REGISTRY = regex(r"[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:\d{1,5})?(/[a-z0-9]([a-z0-9._-]*[a-z0-9])?)*/?")


def _faults(spec: KubernetesSpec, known: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Key, what is wrong, what to do."""
    for key, reported in _names(spec):
        if reported:
            yield key, reported, "choose another"
    yield from _wrong_labels(spec, known)
    for name, pool in spec.pools.items():
        yield from _wrong_pool(name, pool)
    for one in spec.tolerations:
        yield from (("tolerations", reported, "fix it") for reported in words.toleration(one.given))
    for component, image in spec.images.names.items():
        if reported := words.image(image):
            yield f"images.names.{component}", reported, "write NAME:TAG, with its registry in front"
    yield from _wrong_values(spec)


def _wrong_pool(name: str, pool: PoolSpec) -> Iterator[tuple[str, str, str]]:
    if reported := words.label_value(name) if name else "'' is no name":
        yield "pools", reported, "choose another"
    try:
        parse_selector(pool.nodes)
    except InputError as error:
        yield f"pools.{name}.nodes", error.what, f"write a label selector {error.expected}"


def _wrong_labels(spec: KubernetesSpec, known: Collection[str]) -> Iterator[tuple[str, str, str]]:
    selectors = {
        "node_selector": spec.node_selector,
        "runtime_class.node_selector": spec.runtime_class.node_selector,
    }
    for key, labels in (*selectors.items(), ("monitoring.labels", spec.monitoring.labels)):
        yield from ((key, reported, "see kubectl get nodes --show-labels") for reported in words.labels(labels))
    for key, label in ((key, label) for key, labels in selectors.items() for label in labels):
        # it would choose no node, and nobody would say so
        if label not in known and (near := meant(label, known, cutoff=0.92)):
            yield key, f"{label!r} is no label that nodes carry", near


def _wrong_values(spec: KubernetesSpec) -> Iterator[tuple[str, str, str]]:
    if spec.images.registry and not _REGISTRY.fullmatch(spec.images.registry):
        yield (
            "images.registry",
            f"{spec.images.registry!r} is no registry",
            "write HOST[:PORT][/PATH], without https://",
        )
    if spec.gpushare.extender_url and not is_url(spec.gpushare.extender_url):
        yield "gpushare.extender_url", f"{spec.gpushare.extender_url!r} is no URL", "write http://HOST:PORT"
    if not 1 <= spec.gpushare.node_port <= 65535:
        yield "gpushare.node_port", f"{spec.gpushare.node_port} is no port", "choose one of 30000 to 32767"
    if not re.fullmatch(r"(\d+(ms|s|m|h))+", spec.monitoring.interval):
        yield "monitoring.interval", f"{spec.monitoring.interval!r} is no duration", "write it as 30s"
    if not spec.device_plugin.device_list_strategy:
        yield "device_plugin.device_list_strategy", "it is empty", "write [envvar]"
    if not spec.kubelet_dir.startswith("/"):
        yield "kubelet_dir", f"{spec.kubelet_dir!r} is no absolute path", "write it as /var/lib/kubelet"


def _names(spec: KubernetesSpec) -> Iterator[tuple[str, str]]:
    """A pool's name is a label's value, and a ConfigMap's key."""
    yield "pool", words.label_value(spec.pool) if spec.pool else "'' is no name"
    yield "namespace", words.label_name(spec.namespace)
    yield "runtime_class.handler", words.label_name(spec.runtime_class.handler)
    if spec.runtime_class.name:
        yield "runtime_class.name", words.subdomain(spec.runtime_class.name)
    if spec.device_plugin.priority_class:
        yield "device_plugin.priority_class", words.subdomain(spec.device_plugin.priority_class)
    yield from (("images.pull_secrets", words.subdomain(name)) for name in spec.images.pull_secrets)


Object = dict[str, Any]

POD_SECURITY = "pod-security.kubernetes.io/enforce"  # label of a namespace: which pods are let in
MIG_LABEL, MIG_STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"  # of NVIDIA's MIG manager
CLIENT_LABEL = "nvidia.com/gpu.deploy.client"  # daemon sets that select it make room for a change of MIG
POOL_LABEL = "nvidia.com/device-plugin.config"
GPUSHARE_LABEL = "gpushare"
UNPROVEN, PROVEN = "gpunode/unproven", "gpunode/proven"  # taint and label of kubernetes.gate
OWNED = {"app.kubernetes.io/managed-by": "gpunode"}
NEEDS_PLUGIN = tuple(name for name, mode in MODES.items() if not mode.in_cluster)
_GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Nodes that share their GPUs alike: hosts of an inventory whose spec says so, or the nodes of a label selector.

    `hosts`: their names, of a selector those of the nodes that it chooses now.
    """

    name: str
    sharing: SharingSpec
    hosts: tuple[str, ...] = ()
    selector: str = ""

    @property
    def has_known_nodes(self) -> bool:
        """False where nobody said which nodes: then they may be any, and there is no other pool."""
        return bool(self.hosts or self.selector)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Everything an object may depend on.

    `runtime_class`: what pods that need the driver name, "" for none; `has_toolkit`: whether any host has the toolkit.
    `gpus`: host → how many it had when gpunode last provisioned it, where that is known.
    """

    spec: KubernetesSpec
    pools: tuple[Pool, ...]
    server: Server
    knowledge: KubeKnowledge
    runtime_class: str = ""
    has_toolkit: bool = True
    gpus: Mapping[str, int] = field(default_factory=dict)

    def pools_of(self, *strategies: str) -> tuple[Pool, ...]:
        return tuple(pool for pool in self.pools if pool.sharing.strategy in strategies)

    @property
    def plugin_pools(self) -> tuple[Pool, ...]:
        """The pools whose GPUs NVIDIA's device plugin offers."""
        return self.pools_of(*NEEDS_PLUGIN) if self.spec.device_plugin.enabled is not False else ()

    @property
    def mig_managed(self) -> tuple[Pool, ...]:
        """The pools whose instances NVIDIA's MIG manager makes."""
        return tuple(pool for pool in self.pools if pool.sharing.mig.manager == "mig-manager")

    @property
    def gpu_selector(self) -> dict[str, str]:
        """What daemon sets on GPU nodes select."""
        client = {CLIENT_LABEL: "true"} if self.mig_managed else {}
        return {**self.spec.node_selector, **client}

    def image(self, component: str) -> str:
        """The component's image: the one named in the spec, else the known one, from the private registry if any."""
        if component in self.spec.images.names:
            return self.spec.images.names[component]
        known = self.knowledge.images[component]
        registry = self.spec.images.registry.rstrip("/")
        return f"{registry}/{known.partition('/')[2]}" if registry else known

    def image_parts(self, component: str) -> tuple[str, str]:
        """The image as repository and tag (or sha256:… digest), as charts want them."""
        image = self.image(component)
        name, at, digest = image.partition("@")
        if at:
            return f"{name}@sha256", digest.removeprefix("sha256:")
        head, colon, tag = image.rpartition(":")
        return (head, tag) if colon and "/" not in tag else (image, "latest")


def parse_server(text: str, knowledge: KubeKnowledge) -> Server:
    """v1.34.2+k3s1 → Server 1.34; raises InputError for no version, RefusedError for one that is too old."""
    match = re.fullmatch(r"v?(\d+)\.(\d{1,3})(?:\+|\.\d+)?(?:[-+].*)?", text.strip())
    if not match:
        raise InputError(
            f"the server version is {text!r}" if text.strip() else "the server version is not given",
            expected="MAJOR.MINOR such as 1.34",
            fix="give --server-version, or kubernetes.server_version; kubectl version shows it",
        )
    server = Server(whole(match[1]), whole(match[2]))
    refuse_old("kubernetes", str(server), knowledge.support)
    return server


def cluster_of(specs: Mapping[str, Spec], server: str, knowledge: KubeKnowledge) -> Cluster:
    """The cluster that hosts with these specs make (host name → Spec; "" stands for a spec without an inventory).

    Hosts with the same kubernetes.pool must share alike, and all else of `kubernetes` must be the same for all.
    Raises InputError and RefusedError.
    """
    first_host, first = next(iter(specs.items()))
    spec = first.kubernetes
    for host, other in specs.items():
        for key in KubernetesSpec.__dataclass_fields__:
            if key != "pool" and getattr(other.kubernetes, key) != getattr(spec, key):
                raise RefusedError(
                    f"kubernetes.{key} of {host} differs from that of {first_host}",
                    expected="one value for the whole cluster; only sharing and kubernetes.pool are a pool's own",
                    fix=f"move kubernetes.{key} to gpunode.yml",
                )
    parsed = parse_server(server or spec.server_version, knowledge)
    _check_images(spec, knowledge)
    for other in specs.values():
        for key, reported, fix in _faults(other.kubernetes, knowledge.labels):
            raise InputError(f"kubernetes.{key}: {reported}", fix=fix)
    use = spec.runtime_class.use
    pools = _pools(specs)
    named = use == "always" or (use == "auto" and any(_default_is_not_nvidia(s) for s in specs.values()))
    return Cluster(
        spec=spec,
        pools=pools,
        server=parsed,
        knowledge=knowledge,
        runtime_class=spec.runtime_class.name if named else "",
        has_toolkit=any(s.toolkit.version != "none" for s in specs.values()),
    )


def tolerations(cluster: Cluster, *more: Object) -> list[Object]:
    """Those of every pod of ours that runs on GPU nodes."""
    unproven = {"key": UNPROVEN, "operator": "Exists", "effect": "NoSchedule"}
    gpu, *others = user_tolerations(cluster)
    return [gpu, *more, *others, *([unproven] if cluster.spec.gate else [])]


def user_tolerations(cluster: Cluster) -> list[Object]:
    """Those of a user's pods, which have to wait until a node is proven."""
    return [_GPU_TAINT, *(one.given for one in cluster.spec.tolerations)]


def pool_affinity(pools: Sequence[Pool], *also: Object) -> Object:
    """The nodes that are labelled for one of these pools, or fit one of the expressions `also`."""
    labelled = {"key": POOL_LABEL, "operator": "In", "values": [pool.name for pool in pools]}
    return required_affinity(*({"matchExpressions": [one]} for one in (labelled, *also)))


def required_affinity(*terms: Object) -> Object:
    """Nodes that fit one of the terms."""
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def _pools(specs: Mapping[str, Spec]) -> tuple[Pool, ...]:
    """Those of the inventory's hosts, then those by label; the file's own pool only where there is no other."""
    first = next(iter(specs.values()))
    chosen = first.kubernetes.pools
    pools: dict[str, tuple[SharingSpec, list[str]]] = {}
    for host, spec in specs.items():
        if not host and chosen:
            continue
        name = spec.kubernetes.pool
        sharing, hosts = pools.setdefault(name, (spec.sharing, []))
        if spec.sharing != sharing:
            raise RefusedError(
                f"{host} and {hosts[0]} are both of pool {name}, and differ in `sharing`",
                expected="nodes of a pool that share their GPUs alike: one configuration is chosen by the node's label",
                fix="give each inventory group a kubernetes.pool of its own",
            )
        hosts += [host] if host else []
    if both := [name for name in chosen if name in pools]:
        raise RefusedError(
            f"the pool {both[0]} has hosts of the inventory ({', '.join(pools[both[0]][1][:5])}) and a label selector",
            expected="nodes of a pool from one of them",
            fix="name it otherwise in kubernetes.pools, or give the hosts another kubernetes.pool",
        )
    by_host = [Pool(name=name, sharing=sharing, hosts=tuple(hosts)) for name, (sharing, hosts) in pools.items()]
    by_label = [
        Pool(name=name, sharing=pool.sharing or first.sharing, selector=pool.nodes) for name, pool in chosen.items()
    ]
    return (*by_host, *by_label)


def _default_is_not_nvidia(spec: Spec) -> bool:
    engines = (spec.runtimes.containerd, spec.runtimes.docker, spec.runtimes.crio)
    return any(engine.manage != "ignore" and engine.default_runtime not in ("auto", "nvidia") for engine in engines)


def _check_images(spec: KubernetesSpec, knowledge: KubeKnowledge) -> None:
    for component in spec.images.names:
        if component not in knowledge.images:
            raise InputError(
                f"kubernetes.images.names has {component!r}",
                expected=f"one of {', '.join(knowledge.images)}",
                fix=meant(component, knowledge.images, "choose one of these"),
            )
