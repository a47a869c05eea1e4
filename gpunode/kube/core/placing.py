"""Why a DaemonSet has no pod that serves a node, by the facts of its template, the node, pods and events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.plain import mapping, mappings
from gpunode.core.printable import printable
from gpunode.kube.core.checks.ready import pod_trouble
from gpunode.kube.core.cluster import Object
from gpunode.kube.core.owned import ObjectKey
from gpunode.kube.core.selector import How, Requirement, fits

# https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations
_ALWAYS = ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
_OF_DAEMONS = [{"key": f"node.kubernetes.io/{name}", "operator": "Exists"} for name in _ALWAYS]

_HOWS: Mapping[str, How] = {"In": "in", "NotIn": "notin", "DoesNotExist": "absent"}


def selects(spec: Object, node: Object) -> str:
    """Which label keeps a pod's node selector or required affinity from a node; "" where they take it."""
    labels = node["metadata"].get("labels") or {}
    for key, value in mapping(spec, "nodeSelector").items():
        if labels.get(key) != value:
            return f"label {key}={value}"
    required = mapping(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    terms = [list(mappings(term, "matchExpressions")) for term in mappings(required, "nodeSelectorTerms")]
    if not terms or any(fits(map(_requirement, term), labels) for term in terms):
        return ""
    return "label " + " or ".join(dict.fromkeys(str(one["key"]) for term in terms for one in term))


def _requirement(one: Mapping[str, Any]) -> Requirement:
    return Requirement(key=one["key"], how=_HOWS.get(one["operator"], "present"), values=tuple(one.get("values") or ()))


def untolerated(node: Object, tolerations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The taints that keep pods with these tolerations from a node, as KEY=VALUE:EFFECT."""
    taints = [one for one in mappings(mapping(node, "spec"), "taints") if one.get("effect") != "PreferNoSchedule"]
    return [
        f"{one['key']}{'=' * bool(one.get('value'))}{one.get('value', '')}:{one.get('effect', '')}"
        for one in taints
        if not any(_tolerates(own, one) for own in tolerations)
    ]


def _tolerates(own: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/"""
    same = own.get("operator") == "Exists" or own.get("value", "") == taint.get("value", "")
    return own.get("key") in (None, "", taint["key"]) and own.get("effect") in (None, "", taint.get("effect")) and same


def pods_on(pods: Sequence[Object], node: str) -> Iterator[Object]:
    """The pods of a DaemonSet on a node, also those that wait for it: a field of their affinity names it."""
    for pod in pods:
        terms = mappings(
            mapping(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"),
            "nodeSelectorTerms",
        )
        named = [value for term in terms for one in mappings(term, "matchFields") for value in one.get("values") or ()]
        if mapping(pod, "spec").get("nodeName") == node or node in named:
            yield pod


def unserved(
    key: ObjectKey, live: Object, node: Object, pods: Sequence[Object], said: Mapping[str, str], *, denied: bool
) -> tuple[str, str]:
    """Why no pod of a DaemonSet serves a node, or what its pod does there; and what to do about it."""
    name, spec = node["metadata"]["name"], mapping(live, "spec", "template", "spec")
    kubectl, daemon_set = f"kubectl -n {key.namespace}", f"DaemonSet {key.name}"
    for pod in sorted(pods_on(pods, name), key=lambda pod: "deletionTimestamp" in pod["metadata"]):
        its = pod["metadata"]["name"]
        phase = (
            "being deleted" if "deletionTimestamp" in pod["metadata"] else mapping(pod, "status").get("phase", "new")
        )
        text = pod_trouble(pod) or said.get(its) or f"is {phase}"
        look = f"{kubectl} {'logs' if phase == 'Running' else 'describe pod'} {its}"
        return printable(f"pod {its}: {text}"), f"{look}; gpunode verify {name} and gpunode doctor for it"
    if label := selects(spec, node):
        return printable(f"{daemon_set} does not select it by its {label}"), "gpunode kube apply --dry-run"
    if taints := untolerated(node, [*mappings(spec, "tolerations"), *_OF_DAEMONS]):
        listed = printable(", ".join(taints))
        fix = f"tolerate it by kubernetes.tolerations, or take it off: kubectl taint nodes {name} {listed}-"
        return f"{daemon_set} does not tolerate its taint {listed}", fix
    if denied:
        return f"the pods of {daemon_set} are denied", f"{kubectl} describe daemonset {key.name}"
    fix = f"{kubectl} describe daemonset {key.name}; is kube-controller-manager running?"
    return f"{daemon_set} has no pod on it", fix
