"""Hosts that are nodes of a cluster: emptied before they are disturbed, given back when they offer their GPUs again.

What a node was like before stands in the annotation of our cordon, so it outlives the controller that was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from gpunode.core.errors import GpunodeError, RefusedError
from gpunode.core.late import dataclass, replace
from gpunode.core.model import NodeFacts
from gpunode.core.report.drains import DrainPreview
from gpunode.core.spec import Spec
from gpunode.core.spec.rollout import DrainSpec
from gpunode.edge.fleet.worker import Worker
from gpunode.edge.isolate import isolated
from gpunode.kube.core.checks.preflight import Right, aliases
from gpunode.kube.core.cluster import POOL_LABEL, Object
from gpunode.kube.core.draining import CORDONED, pod_name, refusals
from gpunode.kube.core.marks import node_key
from gpunode.kube.core.offers import expected
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.drain import (
    ANY,
    Notify,
    cordon,
    drain,
    gpus_offered,
    our_mark,
    plan_drain,
    pods_to_evict,
    refused_for_now,
    uncordon,
    wait_ready,
)
from gpunode.kube.edge.preflight import missing_rights

_EVICT = Right("create", "", "pods/eviction")
_RIGHTS = (
    Right("list", "", "nodes"),
    Right("patch", "", "nodes"),
    Right("list", "", "pods"),
    Right("get", "apps", "daemonsets"),
)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A node that was emptied: whether it was us who cordoned it, and what it was like before."""

    node: str
    ours: bool
    offers: Mapping[str, int]  # resources of GPUs that it offered; {}: none, or it was not ready
    relaid: bool = False  # what it offers changes: then what its pool shares counts
    boot_id: str = ""  # as the cluster had it
    host_boot_id: str = ""  # as the host itself said
    controller: str = ""  # that has it in work
    run: str = ""  # of that controller
    begun: bool = False  # they have begun to change the host
    awaits: Mapping[str, int] | None = None  # what it has to offer before it is given back; None: as before

    @property
    def mark(self) -> str:
        """For the annotation of our cordon; `_taken` reads it."""
        offers = ",".join(f"{resource}:{count}" for resource, count in self.offers.items())
        offers = "changes" if self.relaid and self.offers else offers
        words = ["gpunode", f"offers={offers}", f"boot={self.boot_id}", f"host={self.host_boot_id}"]
        words += [f"by={self.controller}"] if self.controller else []
        words += [f"run={self.run}"] if self.run else []
        return " ".join([*words, "begun=yes"] if self.begun else words)

    def stale(self, boot_id: str) -> str:
        """The boot that the cluster must no longer tell of, for a host whose boot is `boot_id` now; "" for any."""
        booted = self.host_boot_id and boot_id not in ("", self.host_boot_id, self.boot_id)
        return self.boot_id if booted else ""

    def expected(self, boot_id: str) -> str:
        """The boot that the cluster has to tell of, where it once told of the one that the host told of; "" for any.

        However often the host has booted since, what the cluster tells of any earlier boot is old.
        """
        return boot_id if self.boot_id and self.boot_id == self.host_boot_id else ""


class ClusterNodes:
    """The nodes of one cluster, for `worker`.  Safe for threads."""

    def __init__(self, connect: Callable[[], Api], notify: Notify, worker: Worker | None = None) -> None:
        self._open, self._notify, self._worker = connect, notify, worker or Worker()
        self._names: Mapping[str, str] | None = None
        self._answered = False

    def check(self, hosts: Mapping[str, NodeFacts], drains: Mapping[str, DrainSpec]) -> None:
        """Raises GpunodeError where the cluster cannot be asked, or does not let us drain these hosts' nodes."""
        api = self._connect()
        lacking = missing_rights(api, _RIGHTS)
        if not lacking and missing_rights(api, [_EVICT]):  # it may be there for the namespaces that matter
            spaces: set[str] = set()
            for host, facts in hosts.items():
                plan = plan_drain(api, self._node(api, host, facts), drains[host])
                spaces |= {pod["metadata"]["namespace"] for pod in plan.evict}
            lacking = missing_rights(api, [replace(_EVICT, namespace=space) for space in sorted(spaces)])
        for problem in lacking:
            raise RefusedError(problem.what, expected="the rights that draining a node takes", fix=problem.fix)

    def preview(self, host: str, facts: NodeFacts, options: DrainSpec) -> DrainPreview:
        """What a drain of the host's node would do now; it changes nothing.  Raises GpunodeError."""
        api = self._connect()
        node = self._node(api, host, facts)
        plan = plan_drain(api, node, options)
        waits = tuple(f"{name}: {refusal}" for name, refusal in refused_for_now(api, plan.evict))
        evicts = tuple(map(pod_name, plan.evict))
        return DrainPreview(host=host, node=node, evicts=evicts, refuses=tuple(refusals(plan)), waits=waits)

    def cordoned(self, hosts: Mapping[str, NodeFacts]) -> set[str]:
        """Those of the hosts whose nodes a gpunode has cordoned.  Raises GpunodeError."""
        nodes = self._connect().items("/api/v1/nodes")
        marked = {node["metadata"]["name"] for node in nodes if our_mark(node) is not None}
        known = aliases(nodes)
        return {host for host, facts in hosts.items() if known.get(facts.hostname, known.get(host)) in marked}

    def take(self, host: str, facts: NodeFacts, options: DrainSpec, *, relaid: bool = False) -> Taken:
        """Cordon and drain.  Raises GpunodeError; a node that could not be emptied is open again then.

        One that an earlier run has begun to change stays cordoned.
        `relaid`: how its GPUs are cut is about to change, and with it what the node offers.
        """
        say = self._teller(host)
        api = self._patient(float(options.timeout), say)
        node = self._node(api, host, facts)
        live = api.live(node_key(node))
        before, taken = our_mark(live or {"metadata": {}}) or "", _taken(live, node, facts, retaken=True)
        self._refuse_others(taken)
        pods_to_evict(api, node, options)
        relaid = taken.relaid or relaid
        taken = replace(taken, relaid=relaid, controller=self._worker.controller, run=self._worker.run)
        taken = replace(taken, ours=cordon(api, node, mark=taken.mark, over=before))
        say(f"{node}: cordoned" if taken.ours else f"{node}: was cordoned already, and stays so")
        with self._reopening(taken):
            drain(api, node, options, notify=say)
            begun = replace(taken, begun=True)
            if taken.ours:
                cordon(api, node, mark=begun.mark, over=taken.mark)
        say(f"{node}: drained")
        return begun

    @contextmanager
    def _reopening(self, taken: Taken) -> Iterator[None]:
        """A node that could not be emptied is open again, unless somebody has begun to change it."""
        try:
            yield
        except BaseException as error:
            what = "is as it was"
            if taken.begun:
                what = "stays cordoned: an earlier run has begun to change it"
            elif taken.ours:
                failed = isolated("", lambda: uncordon(self._connect(), taken.node, mark=taken.mark))
                open_now = not isinstance(failed, GpunodeError)
                what = "is uncordoned again" if open_now else f"stays cordoned: {failed}"
            if isinstance(error, GpunodeError):
                error.what = f"{error.what} (node {taken.node} {what})"
            raise

    def left(self, host: str, facts: NodeFacts) -> Taken | None:
        """A node that an earlier run has cordoned and never gave back; None where there is no such node."""
        api = self._connect()
        node = self._node(api, host, facts)
        taken = _taken(api.live(node_key(node)), node, facts)
        return taken if taken.ours and not self._is_others(taken) else None

    def _is_others(self, taken: Taken) -> bool:
        """Whether another controller has it in work, which is not to be taken over."""
        return taken.controller not in ("", self._worker.controller) and not self._worker.take_over

    def _refuse_others(self, taken: Taken) -> None:
        if self._is_others(taken):
            raise RefusedError(
                f"node {taken.node} was cordoned by run {taken.run} of the controller {taken.controller}",
                expected="a node that no other controller works on",
                fix=f"wait until that run has ended; if it was killed, gpunode runs resume {taken.run} there, or "
                "--break-lock here takes the node over",
            )

    def shares(self, taken: Taken, spec: Spec, gpus: int) -> dict[str, range]:
        """What a node offers whose GPUs are cut otherwise now, by its pool; {} for others, and for any GPUs."""
        if not taken.relaid:
            return {}
        live = self._connect().live(node_key(taken.node)) or {"metadata": {}}
        labels = live["metadata"].get("labels") or {}
        pool = spec.kubernetes.pools.get(labels.get(POOL_LABEL, ""))
        return expected((pool and pool.sharing) or spec.sharing, gpus=gpus)

    def give_back(
        self, taken: Taken, options: DrainSpec, *, boot_id: str = "", host: str = "", shares: Mapping[str, range] = {}
    ) -> None:
        """Wait until the node is ready with as many GPUs as before, then let pods come, if it was us who kept them out.

        `boot_id` is what the host itself says now: after a reboot what the cluster still has from before counts for
        nothing.  `shares` as `shares` gives them.  Raises GpunodeError; the node then stays cordoned.
        """
        say = self._teller(host or taken.node)
        api = self._patient(float(options.ready_timeout), say)
        offers = {ANY: 1} if taken.relaid and taken.offers else taken.offers
        awaited = taken.awaits if taken.awaits is not None else (offers and shares) or offers
        say(f"{taken.node}: waiting until it is ready{' and offers its GPUs' if awaited else ''}")
        wait_ready(
            api,
            taken.node,
            awaited,
            stale=taken.stale(boot_id),
            boot_id=taken.expected(boot_id),
            timeout=float(options.ready_timeout),
            notify=say,
        )
        if not taken.ours:
            return
        say(f"{taken.node}: is given back")
        if uncordon(api, taken.node, mark=taken.mark):
            say(f"{taken.node}: uncordoned")
        elif our_mark(api.live(node_key(taken.node)) or {"metadata": {}}) is not None:
            say(f"{taken.node}: stays cordoned: another controller has taken it over")

    def _connect(self) -> Api:
        api = self._open()
        api.answered = api.answered or self._answered
        return api

    def _patient(self, seconds: float, say: Notify) -> Api:
        """The cluster, waited for where it answered before and went away."""
        api = self._connect()
        if not self._answered:
            api.version()
            self._answered = True
        return api.patient(seconds, stopped=self._worker.cancelled.is_set, notify=say)

    def _teller(self, host: str) -> Notify:
        def say(text: str) -> None:
            self._notify(text)
            self._worker.stage(host, text)

        return say

    def _node(self, api: Api, host: str, facts: NodeFacts) -> str:
        """A host's name in the cluster: its hostname, the label that has it, its name or address in the inventory."""
        if self._names is None:
            self._names = aliases(api.items("/api/v1/nodes"))
        for word in (facts.hostname, facts.hostname.lower(), facts.hostname.partition(".")[0], host):
            if word in self._names:
                return self._names[word]
        raise RefusedError(
            f"{host} runs a kubelet, and the cluster has no node {facts.hostname}",
            expected="the cluster that the host belongs to",
            fix="name it by --kubeconfig and --context, or set rollout.drain.when to never for this pool",
        )


def _taken(live: Object | None, node: str, facts: NodeFacts, *, retaken: bool = False) -> Taken:
    """What a node is like; for one that we had cordoned already: what it was like then.

    `retaken`: taken once more, so that its boots are those of now where cluster and host never told of the same one.
    """
    live = live or {"metadata": {}}
    closed = (live.get("spec") or {}).get("unschedulable")
    marks = (live["metadata"].get("annotations") or {}) if closed else {}
    then = dict(word.split("=", 1) for word in marks.get(CORDONED, "").split() if "=" in word)
    status = live.get("status") or {}
    relaid = then.get("offers") == "changes"
    boot, host = (status.get("nodeInfo") or {}).get("bootID", ""), facts.boot_id
    agreed = then.get("boot") and then.get("boot") == then.get("host")
    if "host" in then and (agreed or not retaken or not host):
        boot, host = then.get("boot", ""), then["host"]
    return Taken(
        node=node,
        ours=CORDONED in marks,
        offers=_marked(then) or ({ANY: 1} if relaid else gpus_offered(live)),
        relaid=relaid,
        boot_id=boot,
        host_boot_id=host,
        controller=then.get("by", ""),
        run=then.get("run", ""),
        begun=then.get("begun") == "yes",
    )


def _marked(then: Mapping[str, str]) -> dict[str, int]:
    """What our mark says that a node offered."""
    pairs = [pair.rpartition(":") for pair in then.get("offers", "").split(",")]
    return {resource: int(count) for resource, _, count in pairs if resource and count.isdecimal()}
