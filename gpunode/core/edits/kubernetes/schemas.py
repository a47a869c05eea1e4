"""Strict schemas of KubeSchedulerConfiguration and KubeletConfiguration, by release.

kube-scheduler decodes strictly: an unknown field, another spelling or a wrong type keeps it from starting.  The kubelet
does not start with a wrong type either, and passes over an unknown field with a warning.  The fields are data,
knowledge/kube_schemas.toml; what types cannot say (ranges, one binder) is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from gpunode.core.knowledge.scheduler import SchedulerRules
from gpunode.core.late import regex
from gpunode.core.mask import mask_quoted
from gpunode.core.plain import mapping, mappings

# ---------------------------------------------------------------- values out of range

# Source: github kubernetes/kubernetes pkg/scheduler/apis/config/validation and component-base config/validation, of
# tags to v1.36.2; compared with what kube-scheduler 1.36 says itself.

_STRATEGIES = ("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_JITTER = 1.2  # of client-go's leaderelection: a retry may take so much longer


class UnknownField(str):
    """A fault that the kubelet only reports; others keep it from starting, and each fault keeps kube-scheduler."""


def range_faults(data: Mapping[str, Any], rules: SchedulerRules) -> Iterator[str]:
    """Everything here; what has a wrong type is another's to say."""
    for path, holder in (("", data), *((f"profiles[{at}].", profile) for at, profile in profiles_of(data))):
        share = _number(holder, "percentageOfNodesToScore", 0)
        if not 0 <= share <= 100:
            yield f"{path}percentageOfNodesToScore: {share} is not from 0 to 100"
    if (parallel := _number(data, "parallelism", 16)) <= 0:
        yield f"parallelism: {parallel} is not greater than 0"
    first, most = _number(data, "podInitialBackoffSeconds", 1), _number(data, "podMaxBackoffSeconds", 10)
    if first <= 0:
        yield f"podInitialBackoffSeconds: {first} is not greater than 0"
    if most < first:
        yield f"podMaxBackoffSeconds: {most} is less than podInitialBackoffSeconds, {first}"
    if (burst := _number(mapping(data, "clientConnection"), "burst", 0)) < 0:
        yield f"clientConnection.burst: {burst} is less than 0"
    yield from _election(data)
    yield from _argument_ranges(data, rules)


def profiles_of(data: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """The profiles with their numbers."""
    profiles = data.get("profiles")
    return [(at, one) for at, one in enumerate(profiles if isinstance(profiles, list) else []) if isinstance(one, dict)]


def _election(data: Mapping[str, Any]) -> Iterator[str]:
    election = mapping(data, "leaderElection")
    if election.get("leaderElect") is False:
        return
    lock = election.get("resourceLock") or "leases"
    if lock != "leases":
        yield f"leaderElection.resourceLock: {lock} is gone, write leases"
    lease, renew = _seconds(election, "leaseDuration", 15), _seconds(election, "renewDeadline", 10)
    retry = _seconds(election, "retryPeriod", 2)
    if lease <= renew:
        yield f"leaderElection.leaseDuration: {lease:g} s is not greater than renewDeadline, {renew:g} s"
    if renew <= _JITTER * retry:
        yield f"leaderElection.renewDeadline: {renew:g} s is not greater than {_JITTER} × retryPeriod, {retry:g} s"


# ---------------------------------------------------------------- arguments of plugins


def _argument_ranges(data: Mapping[str, Any], rules: SchedulerRules) -> Iterator[str]:
    for where, _, args in _plugin_arguments(data):
        if (api := args.get("apiVersion", rules.api)) != rules.api:
            yield f"{where}.apiVersion: {api} is not {rules.api}"
        weight = _number(args, "hardPodAffinityWeight", 0)
        if not 0 <= weight <= 100:
            yield f"{where}.hardPodAffinityWeight: {weight} is not from 0 to 100"
        yield from _strategy(mapping(args, "scoringStrategy"), f"{where}.scoringStrategy")


def _plugin_arguments(data: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Where each stands, the plugin, and the arguments."""
    for at, profile in profiles_of(data):
        configs = profile.get("pluginConfig")
        for number, one in enumerate(configs if isinstance(configs, list) else []):
            if isinstance(one, dict) and isinstance(one.get("args"), dict):
                yield f"profiles[{at}].pluginConfig[{number}].args", str(one.get("name")), one["args"]


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


def _number(holder: Mapping[str, Any], key: str, default: int) -> int:
    value = holder.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _seconds(holder: Mapping[str, Any], key: str, default: float) -> float:
    """A duration of Go's, such as 1m30s; 0 is the default too."""
    parts = re.findall(r"(\d{1,15}\.?\d{0,15}|\.\d{1,15})(ns|us|µs|ms|s|m|h)", str(holder.get(key) or ""))
    return sum(float(number) * _UNITS[unit] for number, unit in parts) or default


# ---------------------------------------------------------------- fields and types

_DURATION = regex(r"[+-]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))+)\Z")
_RESOURCE = regex(
    r"(?!requests\.)(?!.*kubernetes\.io/)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+/"
    r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?\Z"
)
Fields = Mapping[str, Mapping[str, tuple[str, ...]]]


def scheduler_faults(data: Any, minor: int, rules: SchedulerRules) -> list[str]:
    """What kube-scheduler 1.`minor` has against a configuration, as `PATH: fault`; nothing: it takes it."""
    if not isinstance(data, dict):
        return ["the document is no mapping"]
    if data.get("kind") != "KubeSchedulerConfiguration":
        return [f"kind is {data.get('kind')!r}, not KubeSchedulerConfiguration"]
    if data.get("apiVersion") != rules.api:
        return [f"apiVersion is {data.get('apiVersion')!r}, not {rules.api}"]
    fields = _fields(str(rules.schemas["scheduler"]), min(minor, rules.newest))
    lenient = minor > rules.newest
    return [
        *_faults(data, "KubeSchedulerConfiguration", "", fields, lenient=lenient),
        *_args_faults(data, fields, lenient=lenient),
        *_plugin_faults(data, minor, rules),
        *range_faults(data, rules),
        *extender_faults(data.get("extenders")),
    ]


def kubelet_faults(data: Any, minor: int, rules: SchedulerRules) -> list[str]:
    """What kubelet 1.`minor` has against a configuration."""
    if not isinstance(data, dict):
        return ["the document is no mapping"]
    if (data.get("kind"), data.get("apiVersion")) != ("KubeletConfiguration", "kubelet.config.k8s.io/v1beta1"):
        return ["it is no KubeletConfiguration of kubelet.config.k8s.io/v1beta1"]
    fields = _fields(str(rules.schemas["kubelet"]), min(minor, rules.newest))
    return list(_faults(data, "KubeletConfiguration", "", fields, lenient=minor > rules.newest))


def extender_faults(extenders: Any) -> Iterator[str]:
    """What the validation of extenders says: one binder, each resource once, no weight of 0."""
    managed: set[str] = set()
    binders = 0
    for at, extender in enumerate(extenders if isinstance(extenders, list) else []):
        if not isinstance(extender, dict):
            continue
        binders += bool(extender.get("bindVerb"))
        weight = extender.get("weight")
        positive = isinstance(weight, int) and not isinstance(weight, bool) and weight > 0
        if extender.get("prioritizeVerb") and not positive:
            yield f"extenders[{at}].weight: a prioritizeVerb needs a positive weight"
        for name in _names(extender, "managedResources"):
            if not _RESOURCE.match(name):
                yield f"extenders[{at}].managedResources: {name!r} is no name of an extended resource"
            if name in managed:
                yield f"extenders[{at}].managedResources: {name} is managed by another extender too"
            managed.add(name)
    if binders > 1:
        yield f"extenders: {binders} of them bind, and only one can"


# ---------------------------------------------------------------- fields


@cache
def _fields(table: str, minor: int) -> Fields:
    """STRUCT → FIELD → types, as the release knows them."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for line in table.strip().splitlines():
        struct, name, kind, *span = line.split()
        first, _, last = span[0].partition("-") if span else ("", "", "")
        if int(first or 0) <= minor <= int(last or minor):
            found.setdefault(struct, {})[name] = (*found.get(struct, {}).get(name, ()), kind)
    return found


def _faults(data: Any, struct: str, path: str, fields: Fields, *, lenient: bool) -> Iterator[str]:
    for key, value in data.items():
        here = f"{path}.{key}" if path else str(key)
        kinds = fields[struct].get(str(key))
        if kinds is None:
            if not lenient:
                near = get_close_matches(str(key), fields[struct], 1)
                yield UnknownField(f"{here}: unknown field{f', near {near[0]}' if near else ''}")
        elif value is not None:
            stated = [list(_value_faults(value, kind, here, fields, lenient=lenient)) for kind in kinds]
            yield from min(stated, key=len)


def _value_faults(value: Any, kind: str, path: str, fields: Fields, *, lenient: bool) -> Iterator[str]:
    if kind[0] in "[{":
        holder = list if kind[0] == "[" else dict
        if not isinstance(value, holder):
            yield f"{path}: {_quoted(value)} is no {'list' if holder is list else 'mapping'}"
            return
        items = enumerate(value) if isinstance(value, list) else value.items()
        for key, item in items:
            at = f"{path}[{key}]" if holder is list else f"{path}.{key}"
            yield from _value_faults(item, kind[1:-1], at, fields, lenient=lenient)
    elif kind[0].isupper():
        if isinstance(value, dict):
            yield from _faults(value, kind, path, fields, lenient=lenient)
        else:
            yield f"{path}: {_quoted(value)} is no mapping"
    elif not _fits(value, kind):
        yield f"{path}: {_quoted(value)} is no {kind}"


def _fits(value: Any, kind: str) -> bool:
    if kind == "any":
        return True
    if kind == "string":
        return isinstance(value, str)
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "duration":
        return isinstance(value, str) and bool(_DURATION.match(value))
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (isinstance(value, float) and (kind == "float" or value.is_integer()))


def _quoted(value: Any) -> str:
    return mask_quoted(repr(value))[:40]


# ---------------------------------------------------------------- profiles and plugins


def _args_faults(data: Mapping[str, Any], fields: Fields, *, lenient: bool) -> Iterator[str]:
    """The arguments of plugins of kube-scheduler's own; those of others are theirs."""
    for where, plugin, args in _plugin_arguments(data):
        if f"{plugin}Args" in fields:
            yield from _faults(args, f"{plugin}Args", where, fields, lenient=lenient)


def _plugin_faults(data: Mapping[str, Any], minor: int, rules: SchedulerRules) -> Iterator[str]:
    removed = {name for start, names in rules.plugins_removed if minor >= start for name in names}
    seen: set[str] = set()
    profiles = profiles_of(data)
    for at, profile in profiles:
        stated = profile.get("schedulerName")
        name = str(stated) if stated is not None else "default-scheduler" if len(profiles) == 1 else ""
        if not name:
            yield f"profiles[{at}].schedulerName: missing"
        elif name in seen:
            yield f"profiles[{at}].schedulerName: {name} stands twice"
        seen.add(name)
        for point, chosen in mapping(profile, "plugins").items():
            for plugin in _names(chosen, "enabled"):
                if plugin in removed:
                    yield f"profiles[{at}].plugins.{point}: the plugin {plugin} is gone"
        configured = _names(profile, "pluginConfig")
        for number, plugin in enumerate(configured):
            if plugin in removed:
                yield f"profiles[{at}].pluginConfig[{number}]: the plugin {plugin} is gone"
            if plugin in configured[:number]:
                yield f"profiles[{at}].pluginConfig[{number}]: {plugin} stands twice"
    if len({_queue_sort(profile) for _, profile in profiles}) > 1:
        yield "profiles: plugins.queueSort has to be the same in all of them"


def _queue_sort(profile: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    chosen = mapping(profile, "plugins", "queueSort")
    return tuple(_names(chosen, "enabled")), tuple(_names(chosen, "disabled"))


def _names(holder: Any, key: str) -> list[str]:
    return [str(one.get("name")) for one in mappings(holder, key)]
