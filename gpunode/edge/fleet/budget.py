"""Which hosts of a rollout's pools are unavailable before it begins, for whatever reason of ours.

A plan has one reboot for all that needs one, so that a host in work counts once.  What else counts: hosts that their
newest run left in work or failed, nodes that a gpunode cordoned, hosts that another controller holds; also such that
nothing is to be done on, or that this command does not name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gpunode.core.errors import GpunodeError
from gpunode.core.late import dataclass, replace
from gpunode.core.model import HostResult
from gpunode.core.spec.rollout import RolloutSpec
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets, find_hosts
from gpunode.edge.fleet.runs import all_unfinished, asked
from gpunode.edge.isolate import isolated
from gpunode.edge.lease import leased_to


@dataclass(frozen=True, kw_only=True)
class Down:
    """For `make_pools`; `beside` are all hosts of limited pools that this command does not name."""

    hosts: frozenset[str] = frozenset()
    idle: tuple[tuple[str, RolloutSpec], ...] = ()
    beside: frozenset[str] = frozenset()


def find_down(
    hosts: Sequence[Detected],
    untouched: Mapping[str, HostResult],
    specs: Mapping[str, RolloutSpec],
    rollout_of: Callable[[Detected], RolloutSpec | None],
    targets: Targets,
    cordoned: Callable[[], Mapping[str, bool]],
) -> Down:
    """`specs` are those of the hosts that something is done on, `untouched` came of the others.

    The journal is asked, and for nodes of a cluster the cluster, whose marks say more: one that could not be drained
    has failed, and is open.  One whose steps failed is down, drained or not.
    """
    limited = {spec for spec in specs.values() if spec.max_unavailable != "100%"}
    if not limited:
        return Down()
    begun: dict[str, str] = asked(lambda journal: journal.all_unfinished(begun=True), {})
    left = {*all_unfinished(), *begun}
    marks = cordoned()
    found = {h.host for h in hosts if h.host in begun or marks.get(h.host, h.host in left) or leased_to(h)}
    good = {host for host, result in untouched.items() if result.ok}
    quiet = [h for h in hosts if h.host in untouched and h.host in found - good]
    idle = [(one.host, spec) for one in quiet if (spec := rollout_of(one))]
    named = {host.host for host in hosts}
    more = _others(named, targets) if targets.limit or left - named else []
    others = [(one.host, spec) for one in more if (spec := rollout_of(one)) and spec in limited]
    return Down(
        hosts=frozenset(found & set(specs)),
        idle=(*idle, *((host, spec) for host, spec in others if host in left)),
        beside=frozenset(host for host, _ in others),
    )


def _others(named: Collection[str], targets: Targets) -> list[Detected]:
    """The hosts of the inventory that this command leaves out."""
    if not targets.inventory:
        return []
    found = isolated("", lambda: find_hosts(replace(targets, limit="", listing=None)))
    return [] if isinstance(found, GpunodeError) else [one for one in found if one.host not in named]


def rollout_of(desired: DesiredState, over: Mapping[str, Any]) -> Callable[[Detected], RolloutSpec | None]:
    """A host's merged `rollout` section, with the options of the command; None for one whose spec is wrong."""

    def rollout(host: Detected) -> RolloutSpec | None:
        spec = isolated(host.host, lambda: desired.spec(host.spec, host=host.host).rollout)
        return None if isinstance(spec, GpunodeError) else replace(spec, **over)

    return rollout
