"""The configuration of kube-scheduler with gpushare's extender in it: a KubeSchedulerConfiguration, or a Policy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import yaml

from gpunode.core.edits.kubernetes.schemas import extender_faults, profiles_of, scheduler_faults
from gpunode.core.edits.target import Refusal
from gpunode.core.edits.text import yamltext
from gpunode.core.flags import Flag, last_value
from gpunode.core.knowledge.scheduler import GROUP, SchedulerRules
from gpunode.core.model import Reason

# ---------------------------------------------------------------- a Policy, up to 1.22

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


def converted_policy(path: str, data: bytes, asked: Extender) -> tuple[dict[str, Any], tuple[Reason, ...]]:
    """What the Policy says but gpushare's extender, as keys of a KubeSchedulerConfiguration; and what became of it.

    Refusal for what has no counterpart.
    """
    _, stated = yamltext.parse(path, data)
    if stated.get("kind", "Policy") != "Policy":
        raise Refusal(f"{path} holds {stated['kind']}, not Policy", "name the right file")
    known = {"kind", "apiVersion", "predicates", "priorities", "extenders", "hardPodAffinitySymmetricWeight"}
    for key in stated:
        if key not in {*known, "alwaysCheckAllPredicates"}:
            raise Refusal(f"{path}: {key} is not known of a Policy", _HAND)
    profile: dict[str, Any] = {}
    reasons = [Reason(what=path, why=f"the Policy becomes a configuration: 1.{asked.minor} reads none", source=_SOURCE)]
    reasons += _predicates(path, stated.get("predicates") or [])
    weights = dict(_weights(path, stated.get("priorities") or [], profile))
    if weights:
        disabled = [{"name": name} for name in sorted(weights)]
        enabled = [{"name": name, "weight": weights[name]} for name in sorted(weights)]
        profile["plugins"] = {"score": {"enabled": enabled, "disabled": disabled}}
    if weight := stated.get("hardPodAffinitySymmetricWeight"):
        args = {"name": "InterPodAffinity", "args": {"hardPodAffinityWeight": weight}}
        profile.setdefault("pluginConfig", []).append(args)
    extenders = [_extender(path, one) for one in stated.get("extenders") or [] if not ours(one, asked.rules)]
    for one in extenders:
        if manages(one, asked.rules) or one.get("bindVerb"):
            raise Refusal(
                f"{path}: another extender, {one.get('urlPrefix')}, binds or manages {asked.rules.resource}", _HAND
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


# ---------------------------------------------------------------- flags that --config makes void

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


# ---------------------------------------------------------------- the configuration

_VERBS = {"filterVerb": "filter", "bindVerb": "bind", "nodeCacheCapable": True, "ignorable": False}
_BY_HAND = "take it out, or into one extender, then run again"


@dataclass(frozen=True)
class Extender:
    """What the configuration should say: the extender's URL, "" keeps one that is there, else `default`.

    `loopback`: whether a NodePort answers on 127.0.0.1; where not, a URL that says so becomes the default one.
    """

    minor: int
    url: str
    default: str
    rules: SchedulerRules
    loopback: bool = True

    def extender(self, *, policy: bool = False) -> dict[str, Any]:
        """The extender as upstream has it; a Policy spells enableHttps."""
        url = self.url or self.default
        if not url:
            raise Refusal(
                "a NodePort does not answer on 127.0.0.1 with this kube-proxy, and the node's address is unknown",
                "give --extender-url, such as http://NODE:32766/gpushare-scheduler, or --node-address",
            )
        https = {"enableHttps" if policy else "enableHTTPS": url.startswith("https:")}
        resources = [{"name": self.rules.resource, "ignoredByScheduler": False}]
        verbs = {"filterVerb": "filter", "bindVerb": "bind", **https, "nodeCacheCapable": True}
        return {"urlPrefix": url, **verbs, "managedResources": resources, "ignorable": False}


# ---------------------------------------------------------------- new ones


def new_policy(asked: Extender) -> bytes:
    """A Policy with the extender alone: predicates and priorities stay what kube-scheduler has by default."""
    policy = {"kind": "Policy", "apiVersion": "v1", "extenders": [asked.extender(policy=True)]}
    return (json.dumps(policy, indent=2) + "\n").encode()


def new_config(asked: Extender, flags: Sequence[Flag], extra: Mapping[str, Any] = {}) -> bytes:
    """A KubeSchedulerConfiguration with the extender, and what the flags said that --config makes it pass over."""
    api = asked.rules.best(asked.minor)
    config: dict[str, Any] = {"apiVersion": f"{GROUP}/{api}", "kind": "KubeSchedulerConfiguration"}
    config |= moved_flags(flags, asked.rules)
    config |= with_profile(flags, {key: value for key, value in extra.items() if key != "extenders"}, api)
    config["extenders"] = [*extra.get("extenders", ()), asked.extender()]
    _check(config, "the flags as a configuration", asked)
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=1000).encode()


# ---------------------------------------------------------------- those that are there


def merged_config(path: str, data: bytes, asked: Extender) -> tuple[bytes, tuple[Reason, ...]]:
    """The configuration with the extender, in a version that the server takes; all else stays as it is written.

    Raises Refusal for what kube-scheduler would not start with, InputError for what is no YAML.
    """
    text, stated = yamltext.parse(path, data)
    if stated.get("kind") != "KubeSchedulerConfiguration":
        raise Refusal(
            f"{path} holds {stated.get('kind') or 'no kind'}, not KubeSchedulerConfiguration", "name the right file"
        )
    text, reasons = _migrated(path, text, stated, asked)
    _check(yamltext.load(text), path, asked)
    text, more = _with_extender(path, text, asked, policy=False)
    _check(yamltext.load(text), path, asked)
    return text.encode(), (*reasons, *more)


def merged_policy(path: str, data: bytes, asked: Extender) -> tuple[bytes, tuple[Reason, ...]]:
    """The Policy with the extender; JSON stays JSON."""
    text, stated = yamltext.parse(path, data)
    if stated.get("kind", "Policy") != "Policy":
        raise Refusal(f"{path} holds {stated['kind']}, not Policy", "name the right file")
    text, reasons = _with_extender(path, text, asked, policy=True)
    for fault in extender_faults(yamltext.load(text).get("extenders")):
        raise Refusal(f"{path}: {fault}", _BY_HAND)
    return text.encode(), reasons


def _migrated(path: str, text: str, printed: Mapping[str, Any], asked: Extender) -> tuple[str, tuple[Reason, ...]]:
    """The text in the version to write, where the server does not read the one it has."""
    version = str(printed.get("apiVersion", ""))
    group, _, api = version.rpartition("/")
    takes = asked.rules.takes(asked.minor)
    if not takes:
        raise Refusal(
            f"{path}: kube-scheduler 1.{asked.minor} takes no configuration that gpunode writes",
            "take --config away; a Policy (--policy-config-file) holds the extender",
        )
    if group != GROUP or api in takes:
        return text, ()
    best = asked.rules.best(asked.minor)
    if api not in ("v1beta1", "v1beta2", "v1beta3") or api > best > "v1beta":
        raise Refusal(
            f"{path}: {version} is not known to kube-scheduler 1.{asked.minor}", f"write it as {GROUP}/{best}"
        )
    text = yamltext.set_value(text, ("apiVersion",), f"{GROUP}/{best}")
    source = asked.rules.api_source(asked.minor)
    reasons = [Reason(what=path, why=f"{api} becomes {best}: 1.{asked.minor} takes {', '.join(takes)}", source=source)]
    for place in _arguments(printed):
        held = str(yamltext.value_at(printed, (*place, "apiVersion")) or "")
        if held.startswith(f"{GROUP}/") and held.rpartition("/")[2] not in takes:
            text = yamltext.set_value(text, (*place, "apiVersion"), f"{GROUP}/{best}")
    for key in ("healthzBindAddress", "metricsBindAddress"):
        if key in printed and best in ("v1beta3", "v1"):
            text = yamltext.remove(text, (key,))
            reasons.append(Reason(what=f"{path}: {key}", why=f"{best} has it no more", source=source))
    return text, tuple(reasons)


def _arguments(printed: Mapping[str, Any]) -> Iterator[tuple[str | int, ...]]:
    """Where the arguments of plugins stand: some say their own version, too."""
    for at, profile in profiles_of(printed):
        configs = profile.get("pluginConfig")
        for number in range(len(configs) if isinstance(configs, list) else 0):
            yield ("profiles", at, "pluginConfig", number, "args")


def _check(data: Any, path: str, asked: Extender) -> None:
    faults = scheduler_faults(data, asked.minor, asked.rules)
    if faults:
        raise Refusal(
            f"{path}: kube-scheduler 1.{asked.minor} would not start with it: {'; '.join(faults[:5])}",
            "fix the file, then run again",
        )


# ---------------------------------------------------------------- the extender in it


def ours(extender: Any, rules: SchedulerRules) -> bool:
    """Whether an extender is gpushare's: it manages the resource, at a URL that ends as gpushare's does."""
    return manages(extender, rules) and str(_get(extender, "urlPrefix")).rstrip("/").endswith(rules.url_path)


def manages(extender: Any, rules: SchedulerRules) -> bool:
    resources = _get(extender, "managedResources")
    names = [_get(one, "name") for one in resources] if isinstance(resources, list) else []
    return rules.resource in names


def _get(holder: Any, key: str) -> Any:
    """A value by its key; the case of a Policy's extenders does not matter."""
    if not isinstance(holder, dict):
        return None
    return next((value for name, value in holder.items() if str(name).lower() == key.lower()), None)


def _with_extender(path: str, text: str, asked: Extender, *, policy: bool) -> tuple[str, tuple[Reason, ...]]:
    stated = yamltext.load(text)
    extenders = stated.get("extenders") if isinstance(stated, dict) else None
    if extenders is not None and not isinstance(extenders, list):
        raise Refusal(f"{path}: extenders is no list", "fix the file, then run again")
    for at, one in enumerate(extenders or ()):
        if ours(one, asked.rules):
            return _repaired(path, text, at, one, asked)
        if manages(one, asked.rules) or _get(one, "bindVerb"):
            what = f"manages {asked.rules.resource}" if manages(one, asked.rules) else "binds pods, which only one can"
            raise Refusal(f"{path}: another extender, {_get(one, 'urlPrefix')}, {what}", _BY_HAND)
    extender = asked.extender(policy=policy)
    text = yamltext.append(text, ("extenders",), extender)
    why = f"gpushare's extender at {extender['urlPrefix']} decides on {asked.rules.resource}"
    return text, (Reason(what=path, why=why, source=asked.rules.extender_source),)


def _repaired(
    path: str, text: str, at: int, there: Mapping[str, Any], asked: Extender
) -> tuple[str, tuple[Reason, ...]]:
    """An extender of gpushare's that is there: its URL as asked, its verbs as gpushare has them."""
    url = str(_get(there, "urlPrefix"))
    if not asked.loopback and urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1"):
        url = asked.extender()["urlPrefix"]
    wanted: dict[str, Any] = {"urlPrefix": asked.url or url, **_VERBS}
    reasons = []
    for key, value in wanted.items():
        name = next((name for name in there if str(name).lower() == key.lower()), key)
        if there.get(name, False) != value:
            text = yamltext.set_value(text, ("extenders", at, name), value)
            why = f"is {json.dumps(value)}, it was {json.dumps(there.get(name))}"
            reasons.append(Reason(what=f"{path}: {key}", why=why, source=asked.rules.extender_source))
    for number, one in enumerate(_get(there, "managedResources")):
        if _get(one, "name") == asked.rules.resource and _get(one, "ignoredByScheduler"):
            key = next(name for name in one if str(name).lower() == "ignoredbyscheduler")
            place = ("extenders", at, _key(there, "managedResources"), number, key)
            text = yamltext.set_value(text, place, False)
            why = "kube-scheduler itself counts the resource too"
            reasons.append(Reason(what=f"{path}: {key}", why=why, source=asked.rules.extender_source))
    return text, tuple(reasons)


def _key(holder: Mapping[str, Any], key: str) -> str:
    return next(str(name) for name in holder if str(name).lower() == key.lower())


def without_extender(path: str, data: bytes, rules: SchedulerRules) -> tuple[bytes | None, tuple[Reason, ...]]:
    """The file without gpushare's extender; None where nothing but what configure writes is left."""
    text, stated = yamltext.parse(path, data)
    extenders = stated.get("extenders")
    mine = [at for at, one in enumerate(extenders or ()) if ours(one, rules)] if isinstance(extenders, list) else []
    if not mine:
        return data, ()
    written = {"apiVersion", "kind", "extenders", "clientConnection", "leaderElection"}
    why = "gpushare's extender goes"
    reasons = (Reason(what=path, why=why, source=""),)
    if len(mine) == len(extenders or ()) and set(stated) <= written and path in (rules.config_file, rules.policy_file):
        return None, reasons
    for at in reversed(mine):
        text = yamltext.remove(text, ("extenders", at))
    if len(mine) == len(extenders or ()):
        text = yamltext.remove(text, ("extenders",))
    return text.encode(), reasons
