"""What kube-scheduler refuses of a configuration whose fields and types are right: ranges, locks, names, weights.

Source: github kubernetes/kubernetes pkg/scheduler/apis/config/validation and component-base config/validation, of tags
from v1.22.3 to v1.36.2; compared with what kube-scheduler 1.36 says itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.core.knowledge.scheduler import GROUP, SchedulerRules

_STRATEGIES = ("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_JITTER = 1.2  # of client-go's leaderelection: a retry may take so much longer


def range_faults(data: Mapping[str, Any], minor: int, rules: SchedulerRules) -> Iterator[str]:
    """Everything here; what has a wrong type is another's to say."""
    yield from _percentages(data)
    if (parallel := _number(data, "parallelism", 16)) <= 0:
        yield f"parallelism: {parallel} is not greater than 0"
    first, most = _number(data, "podInitialBackoffSeconds", 1), _number(data, "podMaxBackoffSeconds", 10)
    if first <= 0:
        yield f"podInitialBackoffSeconds: {first} is not greater than 0"
    if most < first:
        yield f"podMaxBackoffSeconds: {most} is less than podInitialBackoffSeconds, {first}"
    if (burst := _number(_mapping(data, "clientConnection"), "burst", 0)) < 0:
        yield f"clientConnection.burst: {burst} is less than 0"
    yield from _election(data, minor)
    yield from _arguments(data, minor, rules)


def profiles_of(data: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """The profiles with their numbers."""
    profiles = data.get("profiles")
    return [(at, one) for at, one in enumerate(profiles if isinstance(profiles, list) else []) if isinstance(one, dict)]


def _percentages(data: Mapping[str, Any]) -> Iterator[str]:
    for path, holder in (("", data), *((f"profiles[{at}].", profile) for at, profile in profiles_of(data))):
        share = _number(holder, "percentageOfNodesToScore", 0)
        if not 0 <= share <= 100:
            yield f"{path}percentageOfNodesToScore: {share} is not from 0 to 100"


def _election(data: Mapping[str, Any], minor: int) -> Iterator[str]:
    election = _mapping(data, "leaderElection")
    if election.get("leaderElect") is False:
        return
    lock = election.get("resourceLock") or "leases"
    if (minor >= 27 and lock != "leases") or (minor >= 24 and lock in ("endpoints", "configmaps")):
        yield f"leaderElection.resourceLock: {lock} is gone, write leases"
    lease, renew = _seconds(election, "leaseDuration", 15), _seconds(election, "renewDeadline", 10)
    retry = _seconds(election, "retryPeriod", 2)
    if lease <= renew:
        yield f"leaderElection.leaseDuration: {lease:g} s is not greater than renewDeadline, {renew:g} s"
    if renew <= _JITTER * retry:
        yield f"leaderElection.renewDeadline: {renew:g} s is not greater than {_JITTER} × retryPeriod, {retry:g} s"


# ---------------------------------------------------------------- arguments of plugins


def _arguments(data: Mapping[str, Any], minor: int, rules: SchedulerRules) -> Iterator[str]:
    for at, profile in profiles_of(data):
        configs = profile.get("pluginConfig")
        for number, one in enumerate(configs if isinstance(configs, list) else []):
            args = _mapping(one, "args") if isinstance(one, dict) else {}
            where = f"profiles[{at}].pluginConfig[{number}].args"
            group, _, api = str(args.get("apiVersion", "")).rpartition("/")
            if group == GROUP and api not in rules.takes(minor):
                yield f"{where}.apiVersion: kube-scheduler 1.{minor} takes no {api}"
            weight = _number(args, "hardPodAffinityWeight", 0)
            if not 0 <= weight <= 100:
                yield f"{where}.hardPodAffinityWeight: {weight} is not from 0 to 100"
            yield from _strategy(_mapping(args, "scoringStrategy"), f"{where}.scoringStrategy")


def _strategy(strategy: Mapping[str, Any], where: str) -> Iterator[str]:
    kind = strategy.get("type") or _STRATEGIES[0]
    if kind not in _STRATEGIES:
        yield f"{where}.type: {kind} is none of {', '.join(_STRATEGIES)}"
    resources = strategy.get("resources")
    for number, one in enumerate(resources if isinstance(resources, list) else []):
        weight = _number(one, "weight", 1) if isinstance(one, dict) else 1
        if not 0 <= weight <= 100:  # 0 is the default, 1
            yield f"{where}.resources[{number}].weight: {weight} is not from 1 to 100"


# ---------------------------------------------------------------- values, or what counts in their place


def _mapping(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = holder.get(key)
    return value if isinstance(value, dict) else {}


def _number(holder: Mapping[str, Any], key: str, default: int) -> int:
    value = holder.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _seconds(holder: Mapping[str, Any], key: str, default: float) -> float:
    """A duration of Go's, such as 1m30s; 0 is the default too."""
    parts = re.findall(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)", str(holder.get(key) or ""))
    return sum(float(number) * _UNITS[unit] for number, unit in parts) or default
