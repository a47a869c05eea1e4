"""Pods of workloads, and why they are not there."""

from __future__ import annotations

from gpunode.kube.core.api_error import ApiError
from gpunode.kube.core.checks.ready import last_warning, pods_trouble, wanted_pods
from gpunode.kube.core.cluster import Object
from gpunode.kube.core.owned import ObjectKey
from gpunode.kube.core.plain import mapping
from gpunode.kube.edge.client import Api, segment


def pods_of(api: Api, key: ObjectKey, live: Object) -> list[Object]:
    """The pods that a workload selects.  Raises ApiError."""
    labels = ((live.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    chosen = ",".join(f"{name}={value}" for name, value in labels.items())
    return api.items(f"/api/v1/namespaces/{segment(key.namespace)}/pods", labelSelector=chosen) if labels else []


def creation_denied(api: Api, key: ObjectKey) -> str:
    """Why pods of a workload are not even created (quota, pod security, limits, a webhook); "" for nothing known.

    The controller says it of the workload itself, of a Deployment's ReplicaSet.
    """
    mine = []
    for event in events(api, "reason=FailedCreate", key.namespace):
        about = mapping(event, "involvedObject")
        if about.get("kind") != "Pod" and f"{about.get('name', '')}-".startswith(f"{key.name}-"):
            mine.append(event)
    return last_warning(mine)


def pod_warning(api: Api, namespace: str, name: str) -> str:
    """The latest event that warns of a pod; "" for none, and where nobody lets us look."""
    return last_warning(events(api, f"involvedObject.kind=Pod,involvedObject.name={name}", namespace))


def events(api: Api, chosen: str, namespace: str = "") -> list[Object]:
    """Events of a namespace, or of all, by a field selector; none where nobody lets us look."""
    try:
        return api.items(
            f"/api/v1/{f'namespaces/{segment(namespace)}/' * bool(namespace)}events", odd=[], fieldSelector=chosen
        )
    except ApiError:
        return []


def pods_missing(api: Api, key: ObjectKey, live: Object) -> str:
    """What is wrong with a workload's pods; "" when nothing is seen, or nobody lets us look."""
    try:
        pods = pods_of(api, key, live)
    except ApiError:
        return ""
    if found := pods_trouble(pods):
        return "; ".join(found[:3])
    if len(pods) < wanted_pods(live) and (denied := creation_denied(api, key)):
        return denied
    waits = [pod["metadata"]["name"] for pod in pods if (pod.get("status") or {}).get("phase") == "Pending"][:3]
    return "; ".join(f"pod {name}: {text}" for name in waits if (text := pod_warning(api, key.namespace, name)))
