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
    where = f"/api/v1/namespaces/{segment(key.namespace)}/events"
    try:
        events = api.items(where, odd=[], fieldSelector="reason=FailedCreate")
    except ApiError:
        return ""
    about = [mapping(event, "involvedObject").get("name", "") for event in events]
    mine = [e for e, name in zip(events, about, strict=True) if name == key.name or name.startswith(f"{key.name}-")]
    return last_warning([event for event in mine if mapping(event, "involvedObject").get("kind") != "Pod"])


def pod_warning(api: Api, namespace: str, name: str) -> str:
    """The latest event that warns of a pod; "" for none, and where nobody lets us look."""
    about = f"involvedObject.kind=Pod,involvedObject.name={name}"
    try:
        return last_warning(api.items(f"/api/v1/namespaces/{segment(namespace)}/events", odd=[], fieldSelector=about))
    except ApiError:
        return ""


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
