"""Hosts that are nodes of a cluster: emptied before they are disturbed, given back when they offer their GPUs again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpunode.core.errors import RefusedError
from gpunode.core.kube.draining import DrainOptions
from gpunode.core.kube.quantity import quantity
from gpunode.core.model import NodeFacts, Plan
from gpunode.core.spec_rollout import DrainSpec
from gpunode.edge.cluster import Api
from gpunode.edge.drain import Tell, cordon, drain, uncordon, wait_ready

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A node that was emptied: by us cordoned, and how many GPUs it offered before (0: none, or it was not ready)."""

    node: str
    ours: bool
    gpus: int


def concerns(drain: DrainSpec, facts: NodeFacts, plan: Plan) -> bool:
    """Whether a host is to be emptied first: a node of Kubernetes, for a plan that disturbs what runs there."""
    if drain.when == "never" or not facts.kubernetes.present:
        return False
    return drain.when == "always" or any(step.disruptive for step in plan.steps)


class ClusterNodes:
    """The nodes of one cluster.  Safe for threads."""

    def __init__(self, connect: Callable[[], Api], tell: Tell) -> None:
        self._connect, self._tell = connect, tell
        self._names: Mapping[str, str] | None = None

    def take(self, host: str, facts: NodeFacts, options: DrainSpec) -> Taken:
        """Cordon and drain.  Raises GpunodeError; a node that could not be emptied is open again then."""
        api = self._connect()
        node = self._node(api, host, facts)
        live = api.find(f"/api/v1/nodes/{node}") or {}
        offered = quantity(((live.get("status") or {}).get("allocatable") or {}).get(GPU, "0"))
        taken = Taken(node=node, ours=cordon(api, node), gpus=int(offered))
        rules = DrainOptions(
            delete_local_data=options.delete_local_data, force=options.force, timeout=float(options.timeout)
        )
        try:
            drain(api, node, rules, tell=self._tell)
        except BaseException:
            if taken.ours:
                uncordon(api, node)
            raise
        return taken

    def give_back(self, taken: Taken, options: DrainSpec) -> None:
        """Wait until the node is ready with as many GPUs as before, then let pods come, if it was us who kept them out.

        Raises GpunodeError; the node then stays cordoned.
        """
        api = self._connect()
        resource = GPU if taken.gpus else ""
        wait_ready(
            api,
            taken.node,
            resource,
            at_least=max(1, taken.gpus),
            timeout=float(options.ready_timeout),
            tell=self._tell,
        )
        if taken.ours:
            uncordon(api, taken.node)

    def _node(self, api: Api, host: str, facts: NodeFacts) -> str:
        """A host's name in the cluster: its hostname, the label that has it, its name or address in the inventory."""
        if self._names is None:
            names: dict[str, str] = {}
            for node in api.items("/api/v1/nodes"):
                name = node["metadata"]["name"]
                addresses = [a["address"] for a in (node.get("status") or {}).get("addresses") or []]
                label = (node["metadata"].get("labels") or {}).get("kubernetes.io/hostname", name)
                names |= dict.fromkeys((*addresses, label, name), name)
            self._names = names
        for word in (facts.hostname, facts.hostname.lower(), facts.hostname.partition(".")[0], host):
            if word in self._names:
                return self._names[word]
        raise RefusedError(
            f"{host} runs a kubelet, and the cluster has no node {facts.hostname}",
            expected="the cluster that the host belongs to",
            fix="name it by --kubeconfig and --context, or set rollout.drain.when to never for this pool",
        )
