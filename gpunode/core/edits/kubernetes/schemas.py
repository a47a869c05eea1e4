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

from gpunode.core.edits.kubernetes.scheduler_ranges import profiles_of, range_faults
from gpunode.core.knowledge.scheduler import GROUP, SchedulerRules
from gpunode.core.mask import mask_quoted

_DURATION = re.compile(r"[+-]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))+)\Z")
_RESOURCE = re.compile(
    r"(?!requests\.)(?!.*kubernetes\.io/)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+/"
    r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?\Z"
)
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
        *range_faults(data, minor, rules),
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
    return whole or (isinstance(value, float) and (kind == "float" or value.is_integer()))


def _said(value: Any) -> str:
    return mask_quoted(repr(value))[:40]


# ---------------------------------------------------------------- profiles and plugins


def _args_faults(data: Mapping[str, Any], fields: Fields, *, lenient: bool) -> Iterator[str]:
    """The arguments of plugins of kube-scheduler's own; those of others are theirs."""
    for at, profile in profiles_of(data):
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
    profiles = profiles_of(data)
    for at, profile in profiles:
        said = profile.get("schedulerName")
        name = str(said) if said is not None else "default-scheduler" if len(profiles) == 1 else ""
        if not name:
            yield f"profiles[{at}].schedulerName: missing"
        elif name in seen:
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
    if api in ("v1beta3", "v1") and len({_queue_sort(profile) for _, profile in profiles}) > 1:
        yield "profiles: plugins.queueSort has to be the same in all of them"


def _queue_sort(profile: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    plugins = profile.get("plugins")
    chosen = plugins.get("queueSort") if isinstance(plugins, dict) else None
    said = chosen if isinstance(chosen, dict) else {}
    return tuple(_names(said.get("enabled"))), tuple(_names(said.get("disabled")))


def _names(plugins: Any) -> list[str]:
    return [str(one.get("name")) for one in plugins if isinstance(one, dict)] if isinstance(plugins, list) else []
