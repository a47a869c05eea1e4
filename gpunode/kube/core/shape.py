"""The types of what gpunode reads in a cluster's answers, checked once, where they come in.

An API server validates what it stores, so a wrong type means another server, a broken proxy or a forged answer.  Every
reader behind this takes objects for what they are; keys that nothing here reads pass as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpunode.core.errors import GpunodeError
from gpunode.core.late import dataclass
from gpunode.core.printable import printable, shortened
from gpunode.kube.core.cluster import Object


@dataclass(frozen=True)
class Map:
    """An object with any keys, whose values have this shape."""

    value: Any


# A shape is a type (or several), [the shape of a list's items], a Map, or shapes by key; "key!" has to be there.
_WORDS = Map(str)
_AMOUNTS = Map((str, int))
_METADATA: Object = {
    "name!": str,
    "namespace": str,
    "uid": str,
    "resourceVersion": str,
    "generation": int,
    "deletionTimestamp": str,
    "labels": _WORDS,
    "annotations": _WORDS,
    "finalizers": [str],
    "ownerReferences": [{"kind!": str, "name!": str, "controller": bool}],
    "managedFields": [{"manager": str}],
}
_CONDITIONS = [{"type!": str, "status!": str, "reason": str, "message": str}]
_CONTAINERS = [
    {
        "name!": str,
        "image": str,
        "command": [str],
        "restartPolicy": str,
        "resources": {"requests": _AMOUNTS, "limits": _AMOUNTS},
    }
]
_POD_SPEC: Object = {
    "nodeName": str,
    "nodeSelector": _WORDS,
    "containers": _CONTAINERS,
    "initContainers": _CONTAINERS,
    "volumes": [Map(object)],
}
_STATE = {
    "waiting": {"reason": str, "message": str},
    "terminated": {"exitCode": int, "reason": str, "message": str, "finishedAt": str},
}
_CONTAINER_STATUSES = [{"name!": str, "restartCount": int, "state": _STATE, "lastState": _STATE}]
_WORKLOAD: Object = {
    "spec!": {
        "replicas": int,
        "selector": {"matchLabels": _WORDS},
        "template": {"metadata": {"labels": _WORDS}, "spec": _POD_SPEC},
    },
    "status": {
        "observedGeneration": int,
        "conditions": _CONDITIONS,
        **dict.fromkeys(
            (
                *("replicas", "updatedReplicas", "availableReplicas", "readyReplicas"),
                *("desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"),
            ),
            int,
        ),
    },
}
_ATTRIBUTES = Map({"string": str})
_CAPACITY = Map({"value": (str, int)})
_KINDS: Mapping[str, Object] = {
    "Namespace": {"spec": {"finalizers": [str]}, "status": {"conditions": _CONDITIONS}},
    "ConfigMap": {"data": _WORDS},
    "Node": {
        "metadata": {"uid!": str, "resourceVersion!": str},
        "spec": {"unschedulable": bool, "taints": [{"key!": str, "value": str, "effect": str}]},
        "status": {
            "allocatable": _AMOUNTS,
            "capacity": _AMOUNTS,
            "addresses": [{"type!": str, "address!": str}],
            "conditions": _CONDITIONS,
            "nodeInfo": {"bootID": str},
        },
    },
    "Pod": {
        "metadata": {"namespace!": str, "uid!": str},
        "spec!": _POD_SPEC,
        "status": {
            "phase": str,
            "reason": str,
            "message": str,
            "conditions": _CONDITIONS,
            "containerStatuses": _CONTAINER_STATUSES,
            "initContainerStatuses": _CONTAINER_STATUSES,
        },
    },
    "Event": {
        **dict.fromkeys(("type", "reason", "message", "lastTimestamp", "eventTime"), str),
        "series": {"lastObservedTime": str},
    },
    **dict.fromkeys(("DaemonSet", "Deployment", "StatefulSet"), _WORKLOAD),
    "ResourceSlice": {
        "spec!": {
            "driver": str,
            "nodeName": str,
            "pool!": {"name!": str, "generation": int},
            "devices": [
                {
                    "name!": str,
                    "attributes": _ATTRIBUTES,
                    "basic": {"attributes": _ATTRIBUTES},
                    "capacity": _CAPACITY,
                    "allowMultipleAllocations": bool,
                }
            ],
        }
    },
    "ResourceClaim": {
        "metadata": {"namespace!": str},
        "status": {
            "reservedFor": [{"resource": str, "name!": str}],
            "allocation": {
                "devices": {
                    "results": [
                        {"driver": str, "pool!": str, "device!": str, "adminAccess": bool, "consumedCapacity": _AMOUNTS}
                    ]
                }
            },
        },
    },
}
# answers that are no objects of the cluster
LIST: Object = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"continue": str, "resourceVersion": str},
    "items": [Map(object)],
}
RESOURCES: Object = {"resources": [{"name!": str, "kind!": str, "namespaced!": bool, "group": str, "version": str}]}
REVIEW: Object = {"status": {"allowed": bool}}
VERSION: Object = {"gitVersion": str, "emulationMajor": (str, int), "emulationMinor": (str, int)}


def checked_object(item: Any, plural: str, where: str) -> Object:
    """An object of the cluster, without its nulls.  Raises GpunodeError.

    `plural` is its kind as the path has it, whatever the object says of itself; `where` says whose answer it is.
    """
    found = checked(item, {"apiVersion": str, "kind": str, "metadata!": _METADATA}, where)
    kind = next((kind for kind in _KINDS if f"{kind.lower()}s" == plural), "")
    return checked(found, _KINDS.get(kind, {}), where)


def checked(answer: Any, shape: Object, where: str) -> Object:
    """An answer of this shape, without the nulls in it.  Raises GpunodeError that names what is wrong."""
    try:
        value: Object = _shaped(answer, shape, "")
    except _Wrong as wrong:
        raise GpunodeError(
            f"{where} answers with what is no Kubernetes object: {wrong}",
            expected="the API server of a Kubernetes cluster",
            fix="look at the server of the kubeconfig, and at proxies between",
        ) from None
    return value


class _Wrong(Exception):
    """Where, and what is there in place of what."""


def _shaped(value: Any, shape: Any, path: str) -> Any:
    if isinstance(shape, dict):
        return _keys(value, shape, path)
    if isinstance(shape, list):
        _is(value, list, path)
        return [_shaped(one, shape[0], f"{path}[{number}]") for number, one in enumerate(value)]
    if isinstance(shape, Map):
        _is(value, dict, path)
        if shape.value is object:
            return value
        return {key: _shaped(one, shape.value, f"{path}.{key}") for key, one in value.items() if one is not None}
    return _is(value, shape, path)


def _keys(value: Any, shape: Object, path: str) -> Object:
    _is(value, dict, path)
    kept = dict(value)
    for key, inner in shape.items():
        name = key.removesuffix("!")
        at = f"{path}.{name}".lstrip(".")
        if kept.get(name) is None:
            if name != key:
                raise _Wrong(f"it has no {at}")
            kept.pop(name, None)
        else:
            kept[name] = _shaped(kept[name], inner, at)
    return kept


_NAMES: Mapping[type, str] = {dict: "object", list: "list", str: "text", int: "number", bool: "yes or no"}


def _is(value: Any, kind: type | tuple[type, ...], path: str) -> Any:
    """bool is an int to Python, and not to JSON."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if type(value) not in kinds:
        words = " or ".join(_NAMES[one] for one in kinds)
        raise _Wrong(f"{printable(path)[:200] or 'the answer'} is {shortened(value, 60)}, not {words}")
    return value
