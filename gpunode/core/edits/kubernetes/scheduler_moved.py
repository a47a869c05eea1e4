"""What the flags of a kube-scheduler say that `--config` makes it pass over, as keys of its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpunode.core.edits.request import Refusal
from gpunode.core.edits.text.flags import Flag, last_value
from gpunode.core.knowledge.scheduler import SchedulerRules

_MOST = "NodeResourcesMostAllocated"  # of v1beta1; from v1beta2 on NodeResourcesFit does it
_LEAST = "NodeResourcesLeastAllocated"


def moved_flags(flags: Sequence[Flag], rules: SchedulerRules) -> dict[str, Any]:
    """Flags with a field of their own: `--kubeconfig`, `--leader-elect`, `--kube-api-qps` …"""
    config: dict[str, Any] = {}
    for moved in rules.moved:
        value = last_value(flags, moved.flag)
        if value is not None:
            holder = config
            for part in moved.field[:-1]:
                holder = holder.setdefault(part, {})
            holder[moved.field[-1]] = _typed(value, moved.type, moved.flag)
    return config


def with_profile(flags: Sequence[Flag], config: Mapping[str, Any], api: str) -> dict[str, Any]:
    """The configuration with the flags that a profile says now: the scheduler's name, a weight, a provider.

    Until 1.22 these were flags.  Arguments that the configuration has for a plugin already count over them.
    Source: kubernetes 1.21, cmd/kube-scheduler/app/options/deprecated.go, pkg/scheduler/algorithmprovider/registry.go.
    """
    profile: dict[str, Any] = {"schedulerName": "default-scheduler", **next(iter(config.get("profiles", ())), {})}
    before = dict(profile)
    if name := last_value(flags, "scheduler-name"):
        profile["schedulerName"] = name
    if weight := last_value(flags, "hard-pod-affinity-symmetric-weight"):
        number = _typed(weight, "int", "hard-pod-affinity-symmetric-weight")
        _configured(profile, "InterPodAffinity", {"hardPodAffinityWeight": number})
    provider = last_value(flags, "algorithm-provider") or "DefaultProvider"
    if provider == "ClusterAutoscalerProvider":
        _fullest_first(profile, api)
    elif provider != "DefaultProvider":
        raise Refusal(f"--algorithm-provider is {provider!r}, which no kube-scheduler has", "fix the flag first")
    return dict(config) if profile == before else {**config, "profiles": [profile]}


def most_allocated() -> dict[str, Any]:
    """The arguments of NodeResourcesFit that prefer the fullest node."""
    resources = [{"name": name, "weight": 1} for name in ("cpu", "memory")]
    return {"scoringStrategy": {"type": "MostAllocated", "resources": resources}}


def _fullest_first(profile: dict[str, Any], api: str) -> None:
    """What ClusterAutoscalerProvider does; changes `profile`."""
    if api != "v1beta1":
        _configured(profile, "NodeResourcesFit", most_allocated())
        return
    score = {"enabled": [{"name": _MOST, "weight": 1}], "disabled": [{"name": _LEAST}]}
    profile["plugins"] = {"score": score}


def _configured(profile: dict[str, Any], plugin: str, args: Mapping[str, Any]) -> None:
    """The profile with arguments of a plugin, where it has none; changes `profile`."""
    configs = list(profile.get("pluginConfig", ()))
    if not any(one["name"] == plugin for one in configs):
        profile["pluginConfig"] = [*configs, {"name": plugin, "args": dict(args)}]


def _typed(value: str, kind: str, flag: str) -> Any:
    try:
        if kind == "bool":
            return {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}[value.lower()]
        return int(value) if kind == "int" else float(value) if kind == "float" else value
    except (KeyError, ValueError):
        raise Refusal(f"--{flag} is {value!r}, no {kind}", "fix the flag first") from None
