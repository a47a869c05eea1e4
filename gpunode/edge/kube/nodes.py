"""Hosts that are nodes of a cluster: emptied before they are disturbed, given back when they offer their GPUs again.

What a node was like before stands in the annotation of our cordon, so it outlives the controller that was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.kube.cluster import Object
from gpunode.core.kube.draining import CORDONED, DrainOptions
from gpunode.core.kube.marks import node_key
from gpunode.core.kube.usage import WHOLE
from gpunode.core.model import HostResult, NodeFacts, Plan
from gpunode.core.spec.rollout import DrainSpec
from gpunode.edge.desired import Planned
from gpunode.edge.fleet.runs import Runs
from gpunode.edge.isolate import isolated
from gpunode.edge.kube.client import Api
from gpunode.edge.kube.drain import ANY, Notify, cordon, drain, gpus_offered, uncordon, wait_ready

_AT_ONCE = 20  # nodes that are drained side by side


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A node that was emptied: whether it was us who cordoned it, and what it was like before."""

    node: str
    ours: bool
    offers: Mapping[str, int]  # resources of GPUs that it offered; {}: none, or it was not ready
    relaid: bool = False  # what it offers changes: then any will do
    boot_id: str = ""  # as the cluster had it
    host_boot_id: str = ""  # as the host itself said

    @property
    def mark(self) -> str:
        """For the annotation of our cordon; `_taken` reads it."""
        offers = ",".join(f"{resource}:{count}" for resource, count in self.offers.items())
        offers = "changes" if self.relaid and self.offers else offers
        return f"gpunode offers={offers} boot={self.boot_id} host={self.host_boot_id}"

    def stale(self, boot_id: str) -> str:
        """The boot that the cluster must no longer tell of, for a host whose boot is `boot_id` now; "" for any."""
        booted = self.host_boot_id and boot_id not in ("", self.host_boot_id, self.boot_id)
        return self.boot_id if booted else ""


def concerns(drain: DrainSpec, facts: NodeFacts, plan: Plan) -> bool:
    """Whether a host is to be emptied first: a node of Kubernetes, for a plan that disturbs what runs there."""
    if drain.when == "never" or not facts.kubernetes.present:
        return False
    return drain.when == "always" or any(step.disruptive for step in plan.steps)


class ClusterNodes:
    """The nodes of one cluster.  Safe for threads."""

    def __init__(self, connect: Callable[[], Api], notify: Notify) -> None:
        self._connect, self._notify = connect, notify
        self._names: Mapping[str, str] | None = None

    def take(self, host: str, facts: NodeFacts, options: DrainSpec, *, relaid: bool = False) -> Taken:
        """Cordon and drain.  Raises GpunodeError; a node that could not be emptied is open again then.

        `relaid`: how its GPUs are cut is about to change, and with it what the node offers.
        """
        api = self._connect()
        node = self._node(api, host, facts)
        taken = _taken(api.find(api.path(node_key(node))), node, facts)
        taken = replace(taken, relaid=taken.relaid or relaid)
        taken = replace(taken, ours=cordon(api, node, why=taken.mark))
        rules = DrainOptions(
            delete_local_data=options.delete_local_data, force=options.force, timeout=float(options.timeout)
        )
        try:
            drain(api, node, rules, notify=self._notify)
        except BaseException:
            if taken.ours:
                uncordon(api, node)
            raise
        return taken

    def left(self, host: str, facts: NodeFacts) -> Taken | None:
        """A node that an earlier run has cordoned and never gave back; None where there is no such node."""
        api = self._connect()
        node = self._node(api, host, facts)
        taken = _taken(api.find(api.path(node_key(node))), node, facts)
        return taken if taken.ours else None

    def give_back(self, taken: Taken, options: DrainSpec, *, boot_id: str = "") -> None:
        """Wait until the node is ready with as many GPUs as before, then let pods come, if it was us who kept them out.

        `boot_id` is what the host itself says now: after a reboot what the cluster still has from before counts for
        nothing.  Raises GpunodeError; the node then stays cordoned.
        """
        api = self._connect()
        wait_ready(
            api,
            taken.node,
            {ANY: 1} if taken.relaid and taken.offers else taken.offers,
            boot_id=taken.stale(boot_id),
            timeout=float(options.ready_timeout),
            notify=self._notify,
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


# ---------------------------------------------------------------- many at once


def claim_all(
    nodes: ClusterNodes, hosts: Mapping[str, Planned], drains: Mapping[str, DrainSpec]
) -> tuple[dict[str, Taken], dict[str, HostResult]]:
    """Those of `hosts` that were emptied; and the results of those that could not be, and get no play."""
    taken: dict[str, Taken] = {}
    refused: dict[str, HostResult] = {}

    def one(host: str) -> None:
        planned = hosts[host]
        if not concerns(drains[host], planned.facts, planned.plan):
            return
        relaid = any(step.id == "sharing.mig" for step in planned.plan.steps)
        emptied = isolated(host, lambda: nodes.take(host, planned.facts, drains[host], relaid=relaid))
        if isinstance(emptied, GpunodeError):
            refused[host] = HostResult(host=host, outcome=emptied.outcome, message=f"not started: {emptied}")
        else:
            taken[host] = emptied

    _side_by_side(one, hosts)
    return taken, refused


def release_all(
    nodes: ClusterNodes,
    taken: Mapping[str, Taken],
    results: Mapping[str, HostResult],
    drains: Mapping[str, DrainSpec],
    boots: Mapping[str, str],
) -> dict[str, HostResult]:
    """The results of emptied hosts, with what came of giving them back; one whose play failed stays cordoned.

    `boots`: the boot that each host itself has now.
    """
    ends: dict[str, HostResult] = {}

    def one(host: str) -> None:
        result = ends[host] = results[host]
        if not result.ok:
            ends[host] = replace(result, message=f"{result.message} (node {taken[host].node} stays cordoned)")
            return
        error = isolated(host, lambda: nodes.give_back(taken[host], drains[host], boot_id=boots.get(host, "")))
        if error:
            text = f"{result.message}, but the node stays cordoned: {error}"
            ends[host] = replace(result, outcome=error.outcome, message=text)

    _side_by_side(one, taken)
    return ends


def open_again(hosts: Mapping[str, Planned], nodes: ClusterNodes) -> dict[str, HostResult]:
    """Nodes that an earlier run, killed or failed, left cordoned, and that are now what they should be: given back.

    `hosts` are those that nothing is to be done on; the results of those that were given back, or could not be.
    """
    drains = {host: planned.spec.rollout.drain for host, planned in hosts.items() if not planned.plan.problems}
    asked = [h for h, drain in drains.items() if drain.when != "never" and hosts[h].facts.kubernetes.present]
    if not asked:
        return {}
    journal = Runs()
    started = journal.unfinished(asked)
    results: dict[str, HostResult] = {}

    def one(host: str) -> None:
        error = isolated(host, lambda: give_back(host, hosts[host].facts))
        if error:
            text = f"nothing to do, but the node stays cordoned: {error}"
            results[host] = HostResult(host=host, outcome=error.outcome, message=text)

    def give_back(host: str, facts: NodeFacts) -> None:
        taken = nodes.left(host, facts)
        if taken is None:
            return
        nodes.give_back(taken, drains[host], boot_id=facts.boot_id)
        results[host] = HostResult(host=host, message=f"nothing to do; node {taken.node} is given back")
        journal.ended(started[host], [results[host]], {host: hosts[host].plan.facts_hash})

    _side_by_side(one, started)
    journal.close()
    return results


def _side_by_side(act: Callable[[str], None], hosts: Iterable[str]) -> None:
    names = list(hosts)
    with ThreadPoolExecutor(min(_AT_ONCE, len(names)) or 1) as pool:
        list(pool.map(act, names))


def _taken(live: Object | None, node: str, facts: NodeFacts) -> Taken:
    """What a node is like; for one that we had cordoned already: what it was like then."""
    live = live or {"metadata": {}}
    closed = (live.get("spec") or {}).get("unschedulable")
    marks = (live["metadata"].get("annotations") or {}) if closed else {}
    then = dict(word.split("=", 1) for word in marks.get(CORDONED, "").split() if "=" in word)
    status = live.get("status") or {}
    relaid = then.get("offers") == "changes"
    return Taken(
        node=node,
        ours=CORDONED in marks,
        offers=_marked(then) or ({ANY: 1} if relaid else gpus_offered(live)),
        relaid=relaid,
        boot_id=then.get("boot", (status.get("nodeInfo") or {}).get("bootID", "")),
        host_boot_id=then.get("host", facts.boot_id),
    )


def _marked(then: Mapping[str, str]) -> dict[str, int]:
    """What our mark says that a node offered; an earlier gpunode counted whole GPUs alone."""
    if then.get("gpus", "").isdecimal():
        return {WHOLE: int(then["gpus"])} if int(then["gpus"]) else {}
    pairs = [pair.rpartition(":") for pair in then.get("offers", "").split(",")]
    return {resource: int(count) for resource, _, count in pairs if resource and count.isdecimal()}
