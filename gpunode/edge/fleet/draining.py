"""Hosts of a run that are nodes of a cluster: the one way from a rollout to gpunode.kube, loaded where there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from gpunode.core.errors import GpunodeError, InterruptedByUser
from gpunode.core.late import dataclass, field, replace
from gpunode.core.model import HostResult, NodeFacts
from gpunode.core.report.drains import DrainPreview
from gpunode.core.spec import Spec
from gpunode.core.spec.rollout import DrainSpec
from gpunode.edge.desired import Planned
from gpunode.edge.fleet.worker import Worker
from gpunode.edge.isolate import isolated
from gpunode.edge.side_by_side import side_by_side

if TYPE_CHECKING:
    from gpunode.kube.edge.client import Api
    from gpunode.kube.edge.nodes import ClusterNodes, Taken

T = TypeVar("T")
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
    drain: DrainSpec
    has_steps: bool  # False: the host is changed by nothing
    disturbs: bool  # what runs there
    relaid: bool = False  # how its GPUs are cut changes
    spec: Spec = field(default_factory=Spec)

    @classmethod
    def of(cls, planned: Planned, drain: DrainSpec | None = None) -> NodeChange:
        """What the plan does; `drain` is in place of that of the spec."""
        steps = planned.plan.steps
        return cls(
            facts=planned.facts,
            drain=drain or planned.spec.rollout.drain,
            has_steps=bool(steps),
            disturbs=any(step.disruptive for step in steps),
            relaid=any(step.id == "sharing.mig" for step in steps),
            spec=planned.spec,
        )

    @property
    def is_node(self) -> bool:
        """Whether the host is a node of Kubernetes that may be drained at all."""
        return self.drain.when != "never" and self.facts.kubernetes.present

    @property
    def drains(self) -> bool:
        """Whether the host is to be emptied first."""
        return self.is_node and self.has_steps and (self.drain.when == "always" or self.disturbs)


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

    def cordoned(self, hosts: Mapping[str, NodeChange]) -> dict[str, bool]:
        """Whether a gpunode has cordoned the node, for the hosts that may be drained; {} where the cluster is mute."""
        facts = {host: change.facts for host, change in hosts.items() if change.is_node}
        found = isolated("", lambda: self.nodes.cordoned(facts)) if facts else set()
        return {} if isinstance(found, GpunodeError) else {host: host in found for host in facts}

    def refusal(self, hosts: Mapping[str, NodeChange]) -> GpunodeError | None:
        """Why the cluster does not let us drain these hosts; nothing is changed."""
        facts = {host: change.facts for host, change in hosts.items()}
        drains = {host: change.drain for host, change in hosts.items()}
        return isolated("", lambda: self.nodes.check(facts, drains)) if hosts else None

    def previews(self, hosts: Mapping[str, NodeChange]) -> list[DrainPreview]:
        """What draining would do now, for the hosts that it would be done for; nothing is changed."""
        drained = {host: change for host, change in hosts.items() if change.drains}
        if error := self.refusal(drained):
            return [DrainPreview(host=host, error=error) for host in drained]

        def preview(host: str) -> DrainPreview:
            return self.nodes.preview(host, drained[host].facts, drained[host].drain)

        came = self._each(preview, drained)
        return [DrainPreview(host=h, error=p) if isinstance(p, GpunodeError) else p for h, p in came.items()]

    def claim_all(self, hosts: Mapping[str, NodeChange]) -> tuple[dict[str, Taken], dict[str, GpunodeError]]:
        """Those of `hosts` that were emptied, and why others could not be.

        One that is not to be drained is taken where an earlier run has left its node cordoned.
        """

        def claim(host: str) -> Taken | None:
            change = hosts[host]
            if not change.drains:
                return self.nodes.left(host, change.facts)
            return self.nodes.take(host, change.facts, change.drain, relaid=change.relaid)

        came = self._each(claim, hosts)
        errors = {host: one for host, one in came.items() if isinstance(one, GpunodeError)}
        return {host: one for host, one in came.items() if one and not isinstance(one, GpunodeError)}, errors

    def release_all(
        self,
        taken: Mapping[str, Taken],
        results: Mapping[str, HostResult],
        hosts: Mapping[str, NodeChange],
        boots: Mapping[str, str],
    ) -> dict[str, HostResult]:
        """The results of emptied hosts, with what came of giving them back; one that failed stays cordoned.

        `boots`: the boot that each host itself has now.
        """

        def give_back(host: str) -> None:
            change, boot = hosts[host], boots.get(host, "")
            shares = self.nodes.shares(taken[host], change.spec, len(change.facts.nvml))
            self.nodes.give_back(taken[host], change.drain, boot_id=boot, host=host, shares=shares)

        came = self._each(give_back, [host for host in taken if results[host].ok])
        return {host: _released(results[host], one.node, came.get(host)) for host, one in taken.items()}

    def _each(self, act: Callable[[str], T], hosts: Iterable[str]) -> dict[str, T | GpunodeError]:
        """What `act` made of each host; at an interrupt each has moments to uncordon a node that it drains."""
        found: dict[str, T | GpunodeError] = {}

        def one(host: str, _: object) -> None:
            found[host] = isolated(host, lambda: act(host))

        names = list(hosts)
        with contextlib.suppress(InterruptedByUser):
            side_by_side(one, names, at_once=_AT_ONCE, stop=self._worker.cancelled)
        return {host: found.get(host, InterruptedByUser("interrupted")) for host in names}


def _released(result: HostResult, node: str, error: GpunodeError | None) -> HostResult:
    if not result.ok:
        return replace(result, message=f"{result.message} (node {node} stays cordoned)")
    return stays_cordoned(result, error) if error else result


def stays_cordoned(result: HostResult, error: GpunodeError) -> HostResult:
    """The result of a host whose node could not be given back."""
    return spoilt(result, error, f", but the node stays cordoned: {error}")


def spoilt(result: HostResult, error: GpunodeError, text: str) -> HostResult:
    """The result with an error that came behind it; one that is bad already keeps its outcome."""
    outcome = error.outcome if result.ok else result.outcome
    return replace(result, outcome=outcome, message=f"{result.message}{text}")
