"""Hosts of a run that are nodes of a cluster: the one way from a rollout to gpunode.kube, loaded where there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from gpunode.core.checks.gpus import unfit_checks
from gpunode.core.errors import GpunodeError, InterruptedByUser
from gpunode.core.model import HostResult, NodeFacts
from gpunode.core.report.drains import DrainPreview
from gpunode.core.spec.rollout import DrainSpec
from gpunode.edge.desired import Planned
from gpunode.edge.fleet.runs import Runs
from gpunode.edge.fleet.worker import Worker
from gpunode.edge.isolate import isolated
from gpunode.edge.side_by_side import side_by_side

if TYPE_CHECKING:
    from gpunode.kube.edge.client import Api
    from gpunode.kube.edge.nodes import ClusterNodes, Taken

Connect: TypeAlias = "Callable[[], Api]"

_AT_ONCE = 20  # nodes that are drained side by side


def connect(kubeconfig: str = "", context: str = "", *, timeout: float = 30) -> Api:
    """The cluster that kubectl would talk to: --kubeconfig, $KUBECONFIG, ~/.kube/config, else that of this pod."""
    from gpunode.kube.edge import kubeconfig as cluster

    return cluster.connect(kubeconfig, context, timeout=timeout)


@dataclass(frozen=True, kw_only=True)
class NodeChange:
    """What a run is about to do to a host, as far as its node of a cluster is concerned."""

    facts: NodeFacts
    disturbs: bool  # what runs there
    relaid: bool = False  # how its GPUs are cut changes

    @classmethod
    def of(cls, planned: Planned) -> NodeChange:
        steps = planned.plan.steps
        relaid = any(step.id == "sharing.mig" for step in steps)
        return cls(facts=planned.facts, disturbs=any(step.disruptive for step in steps), relaid=relaid)


def concerns(drain: DrainSpec, change: NodeChange) -> bool:
    """Whether a host is to be emptied first: a node of Kubernetes, for a change that disturbs what runs there."""
    if drain.when == "never" or not change.facts.kubernetes.present:
        return False
    return drain.when == "always" or change.disturbs


def undone(taken: Taken, before: NodeFacts, after: NodeFacts) -> Taken:
    """An emptied node whose host has been undone: without a driver it offers no GPUs, with other instances some."""
    from gpunode.kube.edge.drain import ANY

    if not after.driver.loaded:
        return replace(taken, awaits={})
    alike = before.sharing.instances == after.sharing.instances
    return taken if alike or not taken.offers else replace(taken, awaits={ANY: 1})


class NodeDrains:
    """The nodes that hosts of a run are, of the cluster that `connect` opens, for `worker`.  Safe for threads."""

    def __init__(self, connect: Connect, notify: Callable[[str], None], worker: Worker) -> None:
        self._connect, self._notify, self._worker = connect, notify, worker

    @cached_property
    def nodes(self) -> ClusterNodes:
        from gpunode.kube.edge.nodes import ClusterNodes

        return ClusterNodes(self._connect, self._notify, self._worker)

    def cordoned(self, hosts: Mapping[str, NodeChange], drains: Mapping[str, DrainSpec]) -> dict[str, bool]:
        """Whether a gpunode has cordoned the node, for the hosts that would be drained; {} where nobody can say."""
        facts = {h: p.facts for h, p in hosts.items() if drains[h].when != "never" and p.facts.kubernetes.present}
        found = isolated("", lambda: self.nodes.cordoned(facts)) if facts else set()
        return {} if isinstance(found, GpunodeError) else {host: host in found for host in facts}

    def previews(self, hosts: Mapping[str, NodeChange], drains: Mapping[str, DrainSpec]) -> list[DrainPreview]:
        """What draining would do now, for the hosts that it would be done for; nothing is changed."""
        facts = {h: p.facts for h, p in hosts.items() if concerns(drains[h], p)}
        if error := isolated("", lambda: self.nodes.check(facts, drains)) if facts else None:
            return [DrainPreview(host=host, error=error) for host in facts]
        found: dict[str, DrainPreview] = {}

        def one(host: str) -> None:
            preview = isolated(host, lambda: self.nodes.preview(host, facts[host], drains[host]))
            found[host] = DrainPreview(host=host, error=preview) if isinstance(preview, GpunodeError) else preview

        self._each(one, facts)
        return [found[host] for host in facts]

    def refused(self, hosts: Mapping[str, NodeChange], drains: Mapping[str, DrainSpec]) -> dict[str, HostResult]:
        """Hosts that would be drained, where the cluster does not let us: said before anything is changed."""
        facts = {h: p.facts for h, p in hosts.items() if concerns(drains[h], p)}
        error = isolated("", lambda: self.nodes.check(facts, drains)) if facts else None
        if error is None:
            return {}
        return {host: _not_begun(host, error) for host in facts}

    def claim_all(
        self,
        hosts: Mapping[str, NodeChange],
        drains: Mapping[str, DrainSpec],
        unfinished: Collection[str] = (),
    ) -> tuple[dict[str, Taken], dict[str, HostResult]]:
        """Those of `hosts` that were emptied; and the results of those that could not be, and get no play.

        A host of `unfinished` whose node an earlier run has left cordoned is with them, whatever is still to be done.
        """
        taken: dict[str, Taken] = {}
        refused: dict[str, HostResult] = {}

        def one(host: str) -> None:
            change, drain = hosts[host], drains[host]
            emptied: Taken | GpunodeError | None
            if concerns(drain, change):
                emptied = isolated(host, lambda: self.nodes.take(host, change.facts, drain, relaid=change.relaid))
            elif host in unfinished and drain.when != "never" and change.facts.kubernetes.present:
                emptied = isolated(host, lambda: self.nodes.left(host, change.facts))
            else:
                return
            if isinstance(emptied, GpunodeError):
                refused[host] = _not_begun(host, emptied)
            elif emptied:
                taken[host] = emptied

        with contextlib.suppress(InterruptedByUser):
            self._each(one, hosts)
        if self._worker.cancelled.is_set():
            cut = InterruptedByUser("interrupted")
            refused |= {host: _not_begun(host, cut) for host in hosts if host not in (taken.keys() | refused.keys())}
        return taken, refused

    def release_all(
        self,
        taken: Mapping[str, Taken],
        results: Mapping[str, HostResult],
        drains: Mapping[str, DrainSpec],
        boots: Mapping[str, str],
    ) -> dict[str, HostResult]:
        """The results of emptied hosts, with what came of giving them back; one whose play failed stays cordoned.

        `boots`: the boot that each host itself has now.
        """
        stays = {
            h: replace(r, message=f"{r.message} (node {taken[h].node} stays cordoned)")
            for h, r in results.items()
            if h in taken
        }
        ends = {host: result for host, result in stays.items() if not result.ok}

        def one(host: str) -> None:
            boot = boots.get(host, "")
            error = isolated(host, lambda: self.nodes.give_back(taken[host], drains[host], boot_id=boot, host=host))
            text = f"{results[host].message}, but the node stays cordoned: {error}"
            ends[host] = replace(results[host], outcome=error.outcome, message=text) if error else results[host]

        with contextlib.suppress(InterruptedByUser):
            self._each(one, stays.keys() - ends.keys())
        return {host: ends.get(host) or replace(result, outcome="interrupted") for host, result in stays.items()}

    def open_again(self, hosts: Mapping[str, Planned]) -> dict[str, HostResult]:
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
            taken = self.nodes.left(host, facts)
            if taken is None:
                return
            if unfit := unfit_checks(facts):
                raise GpunodeError("; ".join(check.message for check in unfit), fix=unfit[0].fix)
            self.nodes.give_back(taken, drains[host], boot_id=facts.boot_id, host=host)
            results[host] = HostResult(host=host, message=f"nothing to do; node {taken.node} is given back")
            journal.ended(started[host], [results[host]], {host: hosts[host].plan.facts_hash})

        self._each(one, started)
        journal.close()
        return results

    def _each(self, act: Callable[[str], None], hosts: Iterable[str]) -> None:
        """At an interrupt each has moments to uncordon a node that it drains.  Raises InterruptedByUser."""
        work = lambda host, deadline: act(host)  # noqa: E731
        side_by_side(work, list(hosts), at_once=_AT_ONCE, stop=self._worker.cancelled)


def _not_begun(host: str, error: GpunodeError) -> HostResult:
    return HostResult(host=host, outcome=error.outcome, message=f"not started: {error}", touched=False)
