"""What must hold before anything is applied, judged from what the cluster says of itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpunode.core.errors import InputError, RefusedError
from gpunode.core.knowledge.kubernetes import Server
from gpunode.core.late import dataclass, regex, replace
from gpunode.core.meant import meant
from gpunode.core.model import Problem
from gpunode.core.numbers import release
from gpunode.core.plain import mapping, mappings
from gpunode.core.printable import few, printable
from gpunode.core.sharing.rules import cuts
from gpunode.kube.core.checks.ready import not_ready
from gpunode.kube.core.cluster import MIG_LABEL, MIG_STATE, POD_SECURITY, Cluster, Object, Pool
from gpunode.kube.core.owned import ObjectKey, is_ours, owner_words
from gpunode.kube.core.placing import selects
from gpunode.kube.core.render import Rendered
from gpunode.kube.core.render.dra import DRIVER, claim, shares_memory
from gpunode.kube.core.selector import fits, parse_selector

GPU_OPERATOR = "/apis/nvidia.com/v1/clusterpolicies"
# Images whose containers hand out GPUs to the kubelet: NVIDIA's device plugin, Aliyun's, NVIDIA's DRA driver
_OFFERS = regex(r"k8s-device-plugin|gpushare-plugin|gpushare-device-plugin|dra-driver-(?:nvidia-)?gpu")


@dataclass(frozen=True, order=True)
class Right:
    """A verb on a resource; `namespace` "" for the whole cluster."""

    verb: str
    group: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource}" + (f" in {self.namespace}" if self.namespace else "")


def server_problems(server: Server, printed: str, where: str) -> Iterator[Problem]:
    """The server against `kubernetes.server_version`: a spec for another version is likely for another cluster."""
    if printed and printed.removeprefix("v").split(".")[:2] != [str(server.major), str(server.minor)]:
        yield Problem(
            what=f"kubernetes.server_version is {printed}, and {where} runs {server}",
            fix="is it the right cluster (--context)? Else set kubernetes.server_version to it, or leave it out",
        )


def pod_security_problem(key: ObjectKey, live: Object) -> Problem | None:
    """A namespace of ours whose pod security somebody tightened: that is theirs to take back, not apply's."""
    level = (live["metadata"].get("labels") or {}).get(POD_SECURITY, "privileged")
    if key.kind != "Namespace" or level == "privileged":
        return None
    return Problem(
        what=printable(f"{key} is labelled {POD_SECURITY}={level}, and gpunode's pods mount paths of the host"),
        fix=f"kubectl label namespace {key.name} --overwrite {POD_SECURITY}=privileged, or set kubernetes.namespace",
    )


def memory_claim(cluster: Cluster) -> Object | None:
    """A claim for a part of a device's memory, where a pool needs that API servers know of it."""
    if not shares_memory(cluster):
        return None
    api = cluster.knowledge.api("ResourceClaimTemplate", cluster.server)
    return claim(api, "gpunode-knows-memory-shares", DRIVER, memory="1Gi")


def memory_problems(cluster: Cluster, kept: Object) -> Iterator[Problem]:
    """What the server would store of that claim: without its feature gate it drops the amount, and says nothing."""
    requests = mappings(mapping(kept, "spec", "devices"), "requests")
    if not any(mapping(request, "exactly", "capacity") for request in requests):
        gate = cluster.knowledge.memory_shares.gate
        yield Problem(
            what=f"the server drops the memory that a claim asks for: its feature gate {gate} is off",
            fix=f"--feature-gates={gate}=true on kube-apiserver, kube-scheduler, kube-controller-manager and every "
            "kubelet; or set sharing.dra.shares: none",
        )


# ---------------------------------------------------------------- nodes

# The first versions that take CDI devices from the kubelet: containerd docs/cri/config.md, CRI-O's crio.conf.5
_CDI_SINCE = {"containerd": (1, 7), "cri-o": (1, 24)}
# https://kubernetes.io/docs/reference/command-line-tools-reference/feature-gates/ DevicePluginCDIDevices
_KUBELET_CDI = (1, 28)


def needs_cdi(cluster: Cluster) -> bool:
    """Whether containers get their GPUs by CDI alone."""
    return bool(cluster.plugin_pools) and cluster.spec.device_plugin.by_cdi_alone


def cdi_problems(cluster: Cluster, nodes: Sequence[Object], chosen: Sequence[str]) -> Iterator[Problem]:
    """Nodes whose engine or kubelet knows no CDI: their containers would get no GPUs, or all that an image asks for.

    `chosen`: the nodes of the pools, [] where nobody names them; then it is a problem where no node has CDI.
    """
    if not needs_cdi(cluster):
        return
    own = {"nodeSelector": cluster.spec.node_selector}
    mine = [node for node in nodes if (_name(node) in chosen if chosen else not selects(own, node))]
    lacking = {node["metadata"]["name"]: why for node in mine if (why := _without_cdi(cluster, node))}
    if lacking and (chosen or len(lacking) == len(mine)):
        strategy = ", ".join(cluster.spec.device_plugin.device_list_strategy)
        yield Problem(
            what=f"device_list_strategy {strategy} takes CDI, and {few(list(lacking))} cannot: "
            f"{'; '.join(sorted(set(lacking.values())))}",
            fix="set kubernetes.device_plugin.device_list_strategy: [envvar], or upgrade these nodes",
        )


def _without_cdi(cluster: Cluster, node: Object) -> str:
    """Why a node's containers cannot get devices by CDI; "" where they can, or nobody knows."""
    info = mapping(node, "status", "nodeInfo")
    engine, _, version = str(info.get("containerRuntimeVersion", "")).partition("://")
    since = _CDI_SINCE.get(engine, (0, 0))
    if (0, 0) < release(version) < since:
        return printable(f"{engine} {version} has no CDI ({since[0]}.{since[1]} has)")
    kubelet = str(info.get("kubeletVersion", ""))
    if "cdi-annotations" not in cluster.spec.device_plugin.device_list_strategy and (
        (0, 0) < release(kubelet) < _KUBELET_CDI
    ):
        return printable(f"its kubelet {kubelet} passes no CDI devices on (1.28 does by a feature gate, 1.29 always)")
    return ""


def renamed(nodes: Sequence[Object]) -> dict[str, str]:
    """Node that is not Ready → the Ready one that has its address now: what a machine's former name has left."""
    now = {address: _name(node) for node in nodes if not not_ready(node) for address in _addresses(node, "InternalIP")}
    return {
        _name(node): now[address]
        for node in nodes
        if not_ready(node)
        for address in _addresses(node, "InternalIP")
        if address in now
    }


def aliases(nodes: Sequence[Object]) -> dict[str, str]:
    """Name, hostname label or address → node."""
    known: dict[str, str] = {}
    former = renamed(nodes)
    for node in (node for node in nodes if _name(node) not in former):
        label = (node["metadata"].get("labels") or {}).get("kubernetes.io/hostname", "")
        known |= {alias: _name(node) for alias in (*_addresses(node), label, _name(node)) if alias}
    return known


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])


def _addresses(node: Object, kind: str = "") -> list[str]:
    listed = (node.get("status") or {}).get("addresses") or []
    return [one["address"] for one in listed if kind in ("", one["type"])]


def node_names(hosts: Iterable[str], nodes: Sequence[Object]) -> tuple[dict[str, str], list[Problem]]:
    """Host of the inventory → name of its node (by name, hostname label or address); problems for those without one."""
    known = aliases(nodes)
    matched = {host: known[host] for host in hosts if host in known}
    lost = [host for host in hosts if host not in known]
    if not lost:
        return matched, []
    names = ", ".join(sorted({node["metadata"]["name"] for node in nodes})[:5]) or "none"
    return matched, [
        Problem(
            what=f"{', '.join(lost)} of the inventory: no node of this cluster has that name or address",
            fix=meant(
                lost[0],
                known,
                f"its nodes are {names} …: is it the right context (--context)? --limit leaves hosts out",
            ),
        )
    ]


def with_nodes(cluster: Cluster, nodes: Sequence[Object]) -> Cluster:
    """The cluster with the nodes that the selectors of its pools choose.

    Raises RefusedError for a node of two pools, and InputError where no selector chooses any.
    """
    pools = tuple(replace(pool, hosts=pool_nodes(pool, nodes)) if pool.selector else pool for pool in cluster.pools)
    owners: dict[str, list[str]] = {}
    for pool in pools:
        for node in pool_nodes(pool, nodes):
            owners.setdefault(node, []).append(f"{pool.name} ({pool.selector or 'by the inventory'})")
    if twice := {node: found for node, found in owners.items() if len(found) > 1}:
        raise RefusedError(
            few([f"node {node} is in the pools {' and '.join(found)}" for node, found in twice.items()], 5, "; "),
            expected="each node in one pool: one way of sharing is chosen by its label",
            fix="make the selectors of kubernetes.pools exclude each other, such as pool=a and pool!=a",
        )
    selectors = [pool.selector for pool in pools if pool.selector]
    if selectors and not any(pool.hosts for pool in pools):
        raise InputError(
            f"no node of the cluster is chosen by {' or '.join(map(repr, selectors))}",
            expected="a label selector of nodes that are there, such as gpu=yes or 'pool in (a, b)'",
            fix="kubectl get nodes --show-labels",
        )
    return replace(cluster, pools=pools)


def pool_nodes(pool: Pool, nodes: Sequence[Object]) -> tuple[str, ...]:
    """Names of a pool's nodes: those that its selector chooses now, else its hosts'; () where nobody names them."""
    if not pool.selector:
        return tuple(dict.fromkeys(node_names(pool.hosts, nodes)[0].values()))
    wanted = parse_selector(pool.selector)
    return tuple(_name(node) for node in nodes if fits(wanted, node["metadata"].get("labels")))


def counted(cluster: Cluster, nodes: Sequence[Object]) -> dict[str, int]:
    """Node → the GPUs that its host had when gpunode last provisioned it, where that is known."""
    return {node: cluster.gpus[host] for host, node in node_names(cluster.gpus, nodes)[0].items()}


# ---------------------------------------------------------------- others


def foreign_problem(wanted: ObjectKey, live: Object) -> Problem:
    place = f"-n {wanted.namespace} " if wanted.namespace else ""
    command = f"kubectl {place}label {wanted.kind.lower()} {wanted.name} app.kubernetes.io/managed-by=gpunode"
    return Problem(
        what=f"{wanted} is there already, and is not gpunode's but {owner_words(live)}'s",
        fix=f"delete it; or hand it over: {command} --overwrite",
    )


def other_problems(
    rendered: Rendered, daemon_sets: Sequence[Object], policies: Sequence[Object], nodes: Sequence[Object]
) -> Iterator[Problem]:
    """What else in the cluster already hands out the same GPUs: the GPU Operator, another device plugin.

    `nodes`: those that the inventory names, [] where nobody knows which they are.
    """
    if policies and rendered.cluster.spec.install != "operator":
        yield Problem(
            what=f"NVIDIA's GPU Operator runs here (ClusterPolicy {policies[0]['metadata']['name']}): "
            "it would undo what we do",
            fix="set kubernetes.install: operator and give it the values that gpunode kube render writes, or remove it",
        )
        return  # the daemon sets are its own
    yield from _mig_managers(rendered.cluster, daemon_sets, nodes)
    ours = any(item["kind"] == "DaemonSet" and offers_gpus(item) for item in rendered.objects)
    if not ours and not rendered.cluster.pools_of("dra"):  # whose driver comes as a chart
        return
    charts = {release.name for release in rendered.releases}  # ours, on the nodes of other pools
    for daemon_set in daemon_sets:
        metadata = daemon_set["metadata"]
        chart = (metadata.get("annotations") or {}).get("meta.helm.sh/release-name")
        if is_ours(daemon_set) or chart in charts or not offers_gpus(daemon_set) or not _meets(daemon_set, nodes):
            continue
        yield Problem(
            what=f"DaemonSet {metadata['namespace']}/{metadata['name']} hands out GPUs already: two of its kind on "
            "one node hand out the same GPU twice",
            fix=f"kubectl -n {metadata['namespace']} delete daemonset {metadata['name']} "
            f"(it is {owner_words(daemon_set)}'s), or keep it off these nodes by its nodeSelector",
        )


def _mig_managers(cluster: Cluster, daemon_sets: Sequence[Object], nodes: Sequence[Object]) -> Iterator[Problem]:
    """NVIDIA's MIG manager on nodes whose GPUs gpunode cuts on the host: each would undo what the other does."""
    by_host = [pool.name for pool in cluster.pools if cuts(pool.sharing) and pool not in cluster.mig_managed]
    for daemon_set in daemon_sets:
        containers = mappings(mapping(daemon_set, "spec", "template", "spec"), "containers")
        if by_host and any("mig-manager" in c.get("image", "") for c in containers) and _meets(daemon_set, nodes):
            metadata = daemon_set["metadata"]
            yield Problem(
                what=f"NVIDIA's MIG manager runs here (DaemonSet {metadata['namespace']}/{metadata['name']}), and "
                f"gpunode cuts the GPUs of {', '.join(f'pool {name}' for name in by_host)} on the hosts",
                fix="set sharing.mig.manager: mig-manager, or keep it off these nodes by its nodeSelector",
            )


def mig_state(node: Object) -> str:
    """What is wrong with the node's MIG layout, by the word of whoever cuts it; "" for nothing."""
    labels = node["metadata"].get("labels") or {}
    layout, state = labels.get(MIG_LABEL), labels.get(MIG_STATE, "")
    if not layout or state == "success":
        return ""
    said = f"is {state}" if state else "is missing: no MIG manager has answered"
    return printable(f"the MIG layout {layout} is not in force: {MIG_STATE} {said}")


def _meets(daemon_set: Object, nodes: Sequence[Object]) -> bool:
    """Whether it runs where we want to: on one of these nodes, or anywhere where nobody knows them."""
    if nodes:
        return any(not selects(mapping(daemon_set, "spec", "template", "spec"), node) for node in nodes)
    return bool((daemon_set.get("status") or {}).get("desiredNumberScheduled", 1))


def offers_gpus(daemon_set: Object) -> bool:
    """Whether its pods are a device plugin or DRA driver of NVIDIA GPUs."""
    containers = mappings(mapping(daemon_set, "spec", "template", "spec"), "containers")
    feature_discovery = all("feature-discovery" in " ".join((c["name"], *c.get("command", ()))) for c in containers)
    return not feature_discovery and any(_OFFERS.search(c.get("image", "")) for c in containers)
