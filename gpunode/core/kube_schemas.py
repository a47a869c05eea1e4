"""Strict schemas of KubeSchedulerConfiguration and KubeletConfiguration, by version and release.

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

from gpunode.core.scheduler_rules import GROUP, SchedulerRules

_DURATION = re.compile(r"[+-]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))+)\Z")
_RESOURCE = re.compile(r"([a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+)/([A-Za-z0-9][\w.-]*)\Z")
Fields = Mapping[str, Mapping[str, tuple[str, ...]]]


def scheduler_faults(data: Any, minor: int, rules: SchedulerRules) -> list[str]:
    """What kube-scheduler 1.`minor` has against a configuration, as `PATH: fault`; nothing: it takes it."""
    if not isinstance(data, dict):
        return ["the document is no mapping"]
    api = str(data.get("apiVersion", "")).removeprefix(f"{GROUP}/")
    if data.get("kind") != "KubeSchedulerConfiguration":
        return [f"kind is {data.get('kind')!r}, not KubeSchedulerConfiguration"]
    if data.get("apiVersion") != f"{GROUP}/{api}" or api not in rules.takes(minor):
        known = ", ".join(f"{GROUP}/{one}" for one in rules.takes(minor)) or "no version"
        return [f"apiVersion is {data.get('apiVersion')!r}, and kube-scheduler 1.{minor} takes {known}"]
    fields = _fields(str(rules.schemas["scheduler"]), api, min(minor, rules.newest))
    lenient = minor > rules.newest
    return [
        *_faults(data, "KubeSchedulerConfiguration", "", fields, lenient=lenient),
        *_args_faults(data, fields, lenient=lenient),
        *_plugin_faults(data, api, minor, rules),
        *_range_faults(data, minor),
        *extender_faults(data.get("extenders")),
    ]


def kubelet_faults(data: Any, minor: int, rules: SchedulerRules) -> list[str]:
    """What kubelet 1.`minor` has against a configuration."""
    if not isinstance(data, dict):
        return ["the document is no mapping"]
    if (data.get("kind"), data.get("apiVersion")) != ("KubeletConfiguration", "kubelet.config.k8s.io/v1beta1"):
        return ["it is no KubeletConfiguration of kubelet.config.k8s.io/v1beta1"]
    fields = _fields(str(rules.schemas["kubelet"]), "v1beta1", min(max(minor, 17), rules.newest))
    known = 17 <= minor <= rules.newest
    return list(_faults(data, "KubeletConfiguration", "", fields, lenient=not known))


def extender_faults(extenders: Any) -> Iterator[str]:
    """What the validation of extenders says: one binder, each resource once, no weight of 0."""
    managed: set[str] = set()
    binders = 0
    for at, extender in enumerate(extenders if isinstance(extenders, list) else []):
        if not isinstance(extender, dict):
            continue
        binders += bool(extender.get("bindVerb"))
        if not extender.get("urlPrefix"):
            yield f"extenders[{at}].urlPrefix: missing"
        if extender.get("prioritizeVerb") and not _positive(extender.get("weight")):
            yield f"extenders[{at}].weight: a prioritizeVerb needs a positive weight"
        resources = extender.get("managedResources")
        for resource in resources if isinstance(resources, list) else []:
            name = str(resource.get("name")) if isinstance(resource, dict) else ""
            if not _RESOURCE.match(name):
                yield f"extenders[{at}].managedResources: {name!r} is no name of an extended resource"
            if name in managed:
                yield f"extenders[{at}].managedResources: {name} is managed by another extender too"
            managed.add(name)
    if binders > 1:
        yield f"extenders: {binders} of them bind, and only one can"


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


# ---------------------------------------------------------------- fields


@cache
def _fields(table: str, api: str, minor: int) -> Fields:
    """STRUCT → FIELD → types, as the release knows them."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for line in table.strip().splitlines():
        struct, name, kind, *where = line.split()
        if not where or any(_holds(one, api, minor) for one in where):
            found.setdefault(struct, {})[name] = (*found.get(struct, {}).get(name, ()), kind)
    return found


def _holds(where: str, api: str, minor: int) -> bool:
    name, _, span = where.partition(":")
    first, _, last = span.partition("-")
    return name == api and int(first or 0) <= minor <= int(last or 999)


def _faults(data: Any, struct: str, path: str, fields: Fields, *, lenient: bool) -> Iterator[str]:
    for key, value in data.items():
        here = f"{path}.{key}" if path else str(key)
        kinds = fields[struct].get(str(key))
        if kinds is None:
            if not lenient:
                near = get_close_matches(str(key), fields[struct], 1)
                yield f"{here}: unknown field{f', near {near[0]}' if near else ''}"
        elif value is not None:
            said = [list(_value_faults(value, kind, here, fields, lenient=lenient)) for kind in kinds]
            yield from min(said, key=len)


def _value_faults(value: Any, kind: str, path: str, fields: Fields, *, lenient: bool) -> Iterator[str]:
    if kind[0] in "[{":
        holder = list if kind[0] == "[" else dict
        if not isinstance(value, holder):
            yield f"{path}: {_said(value)} is no {'list' if holder is list else 'mapping'}"
            return
        items = enumerate(value) if isinstance(value, list) else value.items()
        for key, item in items:
            at = f"{path}[{key}]" if holder is list else f"{path}.{key}"
            yield from _value_faults(item, kind[1:-1], at, fields, lenient=lenient)
    elif kind[0].isupper():
        if isinstance(value, dict):
            yield from _faults(value, kind, path, fields, lenient=lenient)
        else:
            yield f"{path}: {_said(value)} is no mapping"
    elif not _fits(value, kind):
        yield f"{path}: {_said(value)} is no {kind}"


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
    return whole or (kind == "float" and isinstance(value, float))


def _said(value: Any) -> str:
    return repr(value)[:40]


# ---------------------------------------------------------------- profiles and plugins


def _profiles(data: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    profiles = data.get("profiles")
    for at, profile in enumerate(profiles if isinstance(profiles, list) else []):
        if isinstance(profile, dict):
            yield at, profile


def _args_faults(data: Mapping[str, Any], fields: Fields, *, lenient: bool) -> Iterator[str]:
    """The arguments of plugins of kube-scheduler's own; those of others are theirs."""
    for at, profile in _profiles(data):
        configs = profile.get("pluginConfig")
        for number, one in enumerate(configs if isinstance(configs, list) else []):
            struct = f"{one.get('name')}Args" if isinstance(one, dict) else ""
            args = one.get("args") if isinstance(one, dict) else None
            if struct in fields and isinstance(args, dict):
                where = f"profiles[{at}].pluginConfig[{number}].args"
                yield from _faults(args, struct, where, fields, lenient=lenient)


def _plugin_faults(data: Mapping[str, Any], api: str, minor: int, rules: SchedulerRules) -> Iterator[str]:
    order = ("v1beta1", "v1beta2", "v1beta3", "v1")
    removed = {
        name
        for one, start, names in rules.plugins_removed
        if order.index(one) <= order.index(api) and minor >= start
        for name in names
    }
    seen: set[str] = set()
    for at, profile in _profiles(data):
        name = str(profile.get("schedulerName") or "default-scheduler")
        if name in seen:
            yield f"profiles[{at}].schedulerName: {name} stands twice"
        seen.add(name)
        plugins = profile.get("plugins")
        for point, chosen in plugins.items() if isinstance(plugins, dict) else ():
            for plugin in _names(chosen.get("enabled") if isinstance(chosen, dict) else None):
                if plugin in removed:
                    yield f"profiles[{at}].plugins.{point}: the plugin {plugin} is gone in {api}"
        configured = _names(profile.get("pluginConfig"))
        for number, plugin in enumerate(configured):
            if plugin in removed:
                yield f"profiles[{at}].pluginConfig[{number}]: the plugin {plugin} is gone in {api}"
            if plugin in configured[:number]:
                yield f"profiles[{at}].pluginConfig[{number}]: {plugin} stands twice"


def _names(plugins: Any) -> list[str]:
    return [str(one.get("name")) for one in plugins if isinstance(one, dict)] if isinstance(plugins, list) else []


# ---------------------------------------------------------------- ranges


def _range_faults(data: Mapping[str, Any], minor: int) -> Iterator[str]:
    """Numbers that validation.go of kube-scheduler refuses, and locks that are gone."""
    for path, holder in (("", data), *((f"profiles[{at}].", profile) for at, profile in _profiles(data))):
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
    election = data.get("leaderElection")
    if not isinstance(election, dict) or election.get("leaderElect") is False:
        return
    lock = election.get("resourceLock") or "leases"
    if (minor >= 27 and lock != "leases") or (minor >= 24 and lock in ("endpoints", "configmaps")):
        yield f"leaderElection.resourceLock: {lock} is gone, write leases"


def _number(holder: Mapping[str, Any], key: str, default: int) -> int:
    """A whole number; the default where there is none, or what is no number (its type is another fault)."""
    value = holder.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
