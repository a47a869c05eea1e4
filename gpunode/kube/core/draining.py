"""Which pods of a node a drain evicts, leaves, or refuses to touch: the rules of `kubectl drain --ignore-daemonsets`.

https://kubernetes.io/docs/tasks/administer-cluster/safely-drain-node/
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from gpunode.core.late import dataclass
from gpunode.core.spec.rollout import DrainSpec
from gpunode.kube.core.checks.ready import has_ended
from gpunode.kube.core.cluster import Object

CORDONED = "gpunode/cordoned"  # annotation of the nodes that we cordoned, and may uncordon
_MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True, kw_only=True)
class DrainPlan:
    """`refused`: why, and which pods; with any of them nothing is evicted."""

    evict: tuple[Object, ...]
    refused: tuple[tuple[str, tuple[str, ...]], ...]


def drain_plan(pods: Iterable[Object], daemon_sets: Set[tuple[str, str]], options: DrainSpec) -> DrainPlan:
    """`daemon_sets`: (namespace, name) of those that are there: pods of one that is gone come back nowhere."""
    evict: list[Object] = []
    refused: dict[str, list[str]] = {}
    for pod in pods:
        if _MIRROR in (pod["metadata"].get("annotations") or {}):
            continue
        if why := "" if has_ended(pod) else _refusal(pod, daemon_sets, options):
            refused.setdefault(why, []).append(pod_name(pod))
        elif not (_is_daemon(pod) and _daemon_set(pod) in daemon_sets):
            evict.append(pod)
    return DrainPlan(evict=tuple(evict), refused=tuple((why, tuple(names)) for why, names in refused.items()))


def refusals(plan: DrainPlan) -> list[str]:
    """Why the drain is refused, each with its pods."""
    return [f"{why}: {', '.join(names)}" for why, names in plan.refused]


def pod_name(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def is_over(pod: Object) -> bool:
    """Deleted, its containers have ended, and only a finalizer keeps the object: nothing of it is on the node.

    A Job's controller takes its finalizer away when it may write again, which a webhook on that node can keep it from.
    """
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    runs = any("running" in (one.get("state") or {}) for one in statuses)
    return bool(pod["metadata"].get("deletionTimestamp")) and has_ended(pod) and not runs


def _refusal(pod: Object, daemon_sets: Set[tuple[str, str]], options: DrainSpec) -> str:
    if _is_daemon(pod):
        gone = _daemon_set(pod) not in daemon_sets and not options.force
        return "pods of a DaemonSet that is gone (force deletes them)" if gone else ""
    if any("emptyDir" in volume for volume in pod["spec"].get("volumes") or []) and not options.delete_local_data:
        return "pods with local data in an emptyDir (delete_local_data deletes it)"
    if _controller(pod) is None and not options.force:
        return "pods without a controller, which nothing starts again (force deletes them)"
    return ""


def _controller(pod: Object) -> Object | None:
    return next((owner for owner in pod["metadata"].get("ownerReferences") or [] if owner.get("controller")), None)


def _is_daemon(pod: Object) -> bool:
    owner = _controller(pod)
    return bool(owner and owner["kind"] == "DaemonSet")


def _daemon_set(pod: Object) -> tuple[str, str]:
    owner = _controller(pod) or {"name": ""}
    return (pod["metadata"]["namespace"], owner["name"])


def daemon_sets_of(pods: Iterable[Object]) -> set[tuple[str, str]]:
    """(namespace, name) of the daemon sets that these pods say they are of."""
    return {_daemon_set(pod) for pod in pods if _is_daemon(pod)}
