"""A Policy, read up to 1.22, as what a KubeSchedulerConfiguration says today."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.edits.kubernetes.scheduler_config import Wish, manages, ours
from gpunode.core.edits.kubernetes.scheduler_moved import most_allocated
from gpunode.core.edits.request import Refusal
from gpunode.core.edits.text import yamltext
from gpunode.core.model import Reason

_SOURCE = "https://kubernetes.io/docs/reference/scheduling/config/ and github kubernetes/kubernetes pull request 105424"
# predicates that the default filters contain
_PREDICATES = frozenset(
    "PodFitsHostPorts PodFitsPorts PodFitsResources HostName MatchNodeSelector NoVolumeZoneConflict NoDiskConflict "
    "MaxEBSVolumeCount MaxGCEPDVolumeCount MaxAzureDiskVolumeCount MaxCinderVolumeCount MaxCSIVolumeCountPred "
    "CheckVolumeBinding CheckNodeUnschedulable PodToleratesNodeTaints MatchInterPodAffinity GeneralPredicates "
    "EvenPodsSpread CheckNodeCondition CheckNodeMemoryPressure CheckNodeDiskPressure CheckNodePIDPressure".split()
)
# priorities: the score plugin that does the same, and its weight by default
_PRIORITIES = {
    "LeastRequestedPriority": ("NodeResourcesFit", 1),
    "BalancedResourceAllocation": ("NodeResourcesBalancedAllocation", 1),
    "NodeAffinityPriority": ("NodeAffinity", 1),
    "TaintTolerationPriority": ("TaintToleration", 1),
    "InterPodAffinityPriority": ("InterPodAffinity", 1),
    "ImageLocalityPriority": ("ImageLocality", 1),
    "SelectorSpreadPriority": ("PodTopologySpread", 2),
    "ServiceSpreadingPriority": ("PodTopologySpread", 2),
    "EvenPodsSpreadPriority": ("PodTopologySpread", 2),
    "MostRequestedPriority": ("NodeResourcesFit", 1),
    "NodePreferAvoidPodsPriority": ("", 10000),
    "EqualPriority": ("", 1),
}
_HAND = "write a KubeSchedulerConfiguration by hand, name it by --config, then run again"


def converted_policy(path: str, data: bytes, wish: Wish) -> tuple[dict[str, Any], tuple[Reason, ...]]:
    """What the Policy says but gpushare's extender, as keys of a KubeSchedulerConfiguration; and what became of it.

    Refusal for what has no counterpart.
    """
    _, said = yamltext.parse(path, data)
    if said.get("kind", "Policy") != "Policy":
        raise Refusal(f"{path} holds {said['kind']}, not Policy", "name the right file")
    known = {"kind", "apiVersion", "predicates", "priorities", "extenders", "hardPodAffinitySymmetricWeight"}
    for key in said:
        if key not in {*known, "alwaysCheckAllPredicates"}:
            raise Refusal(f"{path}: {key} is not known of a Policy", _HAND)
    profile: dict[str, Any] = {}
    reasons = [Reason(what=path, why=f"the Policy becomes a configuration: 1.{wish.minor} reads none", source=_SOURCE)]
    reasons += _predicates(path, said.get("predicates") or [])
    weights = dict(_weights(path, said.get("priorities") or [], profile))
    if weights:
        disabled = [{"name": name} for name in sorted(weights)]
        enabled = [{"name": name, "weight": weights[name]} for name in sorted(weights)]
        profile["plugins"] = {"score": {"enabled": enabled, "disabled": disabled}}
    if weight := said.get("hardPodAffinitySymmetricWeight"):
        args = {"name": "InterPodAffinity", "args": {"hardPodAffinityWeight": weight}}
        profile.setdefault("pluginConfig", []).append(args)
    extenders = [_extender(path, one) for one in said.get("extenders") or [] if not ours(one, wish.rules)]
    for one in extenders:
        if manages(one, wish.rules) or one.get("bindVerb"):
            raise Refusal(
                f"{path}: another extender, {one.get('urlPrefix')}, binds or manages {wish.rules.resource}", _HAND
            )
    profiles = {"profiles": [{"schedulerName": "default-scheduler", **profile}]} if profile else {}
    return {**profiles, **({"extenders": extenders} if extenders else {})}, tuple(reasons)


def _predicates(path: str, predicates: list[Any]) -> Iterator[Reason]:
    for one in predicates:
        if not isinstance(one, dict) or one.get("name") not in _PREDICATES or one.get("argument"):
            name = one.get("name") if isinstance(one, dict) else one
            raise Refusal(f"{path}: the predicate {name} has no counterpart that gpunode knows", _HAND)
    if predicates:
        why = "the default filters of kube-scheduler contain them, and run in full"
        yield Reason(what=f"{path}: predicates", why=why, source=_SOURCE)


def _weights(path: str, priorities: list[Any], profile: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Score plugins whose weight is not the default one; changes `profile` where one needs arguments."""
    for one in priorities:
        name = one.get("name") if isinstance(one, dict) else one
        if not isinstance(one, dict) or name not in _PRIORITIES or one.get("argument"):
            raise Refusal(f"{path}: the priority {name} has no counterpart that gpunode knows", _HAND)
        plugin, default = _PRIORITIES[name]
        if name == "MostRequestedPriority":
            args = {"name": plugin, "args": most_allocated()}
            profile.setdefault("pluginConfig", []).append(args)
        weight = one.get("weight", 1)
        if plugin and weight not in (1, default):
            yield plugin, weight


def _extender(path: str, one: Any) -> dict[str, Any]:
    """An extender in today's spelling: keys in any case, enableHTTPS, a timeout in words."""
    if not isinstance(one, Mapping):
        raise Refusal(f"{path}: an extender is no mapping", _HAND)
    names = (
        "urlPrefix filterVerb preemptVerb prioritizeVerb weight bindVerb enableHTTPS tlsConfig httpTimeout "
        "nodeCacheCapable managedResources ignorable"
    ).split()
    by_case = {name.lower(): name for name in names}
    found: dict[str, Any] = {}
    for key, value in one.items():
        if (name := by_case.get(str(key).lower())) is None:
            raise Refusal(f"{path}: an extender's key {key} is not known", _HAND)
        found[name] = f"{value}ns" if name == "httpTimeout" and isinstance(value, int) else value
    return found
