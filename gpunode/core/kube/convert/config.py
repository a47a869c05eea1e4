"""Configurations of Kubernetes' own components: the scheduler's Policy, KubeSchedulerConfiguration, the kubelet's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from gpunode.core.edits.kubernetes.scheduler_config import Wish, new_config, ours
from gpunode.core.edits.kubernetes.scheduler_policy import converted_policy
from gpunode.core.edits.kubernetes.schemas import kubelet_faults, scheduler_faults
from gpunode.core.edits.request import Refusal
from gpunode.core.knowledge.scheduler import GROUP, SchedulerRules
from gpunode.core.kube.convert.objects import Told
from gpunode.core.kube.plain import plain
from gpunode.core.model import Problem

_KUBELET = "kubelet.config.k8s.io/"
Config = tuple[Any, list[Told], list[Problem]]  # the object, what changed, what is left


def convert_config(item: Any, minor: int, rules: SchedulerRules) -> Config | None:
    """The configuration for a component of this release; None for what is no configuration."""
    kind, api = item.get("kind"), str(item.get("apiVersion", ""))
    if kind == "Policy" and not api.startswith("audit."):
        return _policy(item, minor, rules)
    if kind == "KubeSchedulerConfiguration":
        return _scheduler(item, minor, rules)
    if kind == "KubeletConfiguration" and api.startswith(_KUBELET):
        return _kubelet(item, minor, rules)
    return None


def _policy(item: Any, minor: int, rules: SchedulerRules) -> Config:
    """gpushare's extender keeps its URL, and is written as upstream has it today."""
    if rules.policy(minor):
        return item, [], []
    if wrong := _shape(item):
        return item, [], [Problem(what=f"Policy: {wrong}", fix="mend it: kube-scheduler never took that")]
    mine = next((one for one in item.get("extenders") or () if ours(one, rules)), None)
    url = next((str(value) for key, value in (mine or {}).items() if key.lower() == "urlprefix"), "")
    wish = Wish(minor=minor, url=url, default="", rules=rules)
    try:
        extra, reasons = converted_policy("Policy", yaml.safe_dump(plain(item)).encode(), wish)
        anew = _config(wish, extra) if mine is None else yaml.safe_load(new_config(wish, [], extra))
    except Refusal as refusal:
        return item, [], [refusal.problem]
    told = [(f"Policy → KubeSchedulerConfiguration {anew['apiVersion'].rpartition('/')[2]}", reasons[0].why)]
    told += [(reason.what.removeprefix("Policy: ") + " left out", reason.why) for reason in reasons[1:]]
    told += [("name it by --config, in place of --policy-config-file", "gpunode kube scheduler configure does so")]
    return anew, told, _faults(scheduler_faults(anew, minor, rules), "KubeSchedulerConfiguration")


def _shape(item: Any) -> str:
    """What of a Policy is no list of mappings with names."""
    for key, names in (("predicates", True), ("priorities", True), ("extenders", False)):
        found = item.get(key) or []
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            return f"{key} is no list of mappings"
        if names and not all(isinstance(one.get("name"), str) for one in found):
            return f"{key} wants a name for each"
    return ""


def _config(wish: Wish, extra: Mapping[str, Any]) -> dict[str, Any]:
    api = f"{GROUP}/{wish.rules.best(wish.minor)}"
    return {"apiVersion": api, "kind": "KubeSchedulerConfiguration", **extra}


def _scheduler(item: Any, minor: int, rules: SchedulerRules) -> Config:
    """A version that the server reads, without the fields that it has no more."""
    told: list[Told] = []
    old, best, takes = str(item.get("apiVersion")).rpartition("/")[2], rules.best(minor), rules.takes(minor)
    if old not in takes and takes:
        item["apiVersion"] = f"{GROUP}/{best}"
        told.append((f"apiVersion {old} → {best}", f"kube-scheduler 1.{minor} reads {', '.join(takes)}"))
        for key in ("healthzBindAddress", "metricsBindAddress"):
            if key in item and best in ("v1beta3", "v1"):
                del item[key]
                told.append((f"{key} taken out", f"{best} has it no more"))
    return item, told, _faults(scheduler_faults(plain(item), minor, rules), "KubeSchedulerConfiguration")


def _kubelet(item: Any, minor: int, rules: SchedulerRules) -> Config:
    """Without the feature gates that keep the kubelet from starting."""
    told: list[Told] = []
    gates = item.get("featureGates")
    for gate in rules.gates:
        if isinstance(gates, dict) and minor >= gate.gone and gate.name in gates:
            del gates[gate.name]
            told.append((f"featureGates.{gate.name} taken out", f"gone since 1.{gate.gone}: {gate.instead}"))
    if gates == {} and told:
        del item["featureGates"]
    return item, told, _faults(kubelet_faults(plain(item), minor, rules), "KubeletConfiguration")


def _faults(found: list[str], kind: str) -> list[Problem]:
    return [Problem(what=f"{kind}: {fault}", fix="mend it: the component would not start with it") for fault in found]
