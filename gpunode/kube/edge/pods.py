"""Pods of workloads, and why they are not there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from gpunode.core.plain import mapping
from gpunode.kube.core.api_error import ApiError
from gpunode.kube.core.checks.ready import event_time, last_warning, pod_trouble, pods_trouble, readiness, wanted_pods
from gpunode.kube.core.cluster import Object
from gpunode.kube.core.owned import ObjectKey
from gpunode.kube.edge.client import Api, segment


def pods_of(api: Api, key: ObjectKey, live: Object) -> list[Object]:
    """The pods that a workload selects.  Raises ApiError."""
    labels = ((live.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    chosen = ",".join(f"{name}={value}" for name, value in labels.items())
    return api.items(f"/api/v1/namespaces/{segment(key.namespace)}/pods", labelSelector=chosen) if labels else []


def creation_denied(api: Api, key: ObjectKey, known: dict[str, ObjectKey]) -> str:
    """Why pods of a workload are not even created (quota, pod security, limits, a webhook); "" for nothing known.

    The controller says it of the workload itself, of a Deployment's ReplicaSet.  A pod that it has created since says
    that nothing denies them any more.  `known`: reason → the workload of which it was said: once is enough.
    Raises ApiError.
    """

    def said(reason: str) -> Iterator[Object]:
        for event in events(api, f"reason={reason}", key.namespace):
            kind, name = (str(mapping(event, "involvedObject").get(one, "")) for one in ("kind", "name"))
            if (kind, name) == (key.kind, key.name) or (kind == "ReplicaSet" and name.rpartition("-")[0] == key.name):
                yield event

    created = max(map(event_time, said("SuccessfulCreate")), default="")
    text = last_warning(event for event in said("FailedCreate") if event_time(event) >= created)
    first = known.setdefault(re.sub(r'\(combined from similar events\): |pods "[^"]*"', "", text), key) if text else key
    return text if first == key else f"denied as the pods of {first} are"


def pod_warning(api: Api, namespace: str, name: str) -> str:
    """The latest event that warns of a pod; "" for none, and where nobody lets us look."""
    with suppress(ApiError):
        return last_warning(events(api, f"involvedObject.kind=Pod,involvedObject.name={name}", namespace))
    return ""


def warnings_of(api: Api, pods: Sequence[Object]) -> dict[str, str]:
    """Of pods that wait and do not say for what: the latest event that warns of each."""
    waits = [
        pod["metadata"] for pod in pods if mapping(pod, "status").get("phase") == "Pending" and not pod_trouble(pod)
    ]
    said = {one["name"]: pod_warning(api, one["namespace"], one["name"]) for one in waits}
    return {name: text for name, text in said.items() if text}


def events(api: Api, chosen: str, namespace: str = "") -> list[Object]:
    """Events of a namespace, or of all, by a field selector.  Raises ApiError."""
    place = f"namespaces/{segment(namespace)}/" if namespace else ""
    return api.items(f"/api/v1/{place}events", odd=[], fieldSelector=chosen)


def unready(api: Api, key: ObjectKey, live: Object | None, known: dict[str, ObjectKey]) -> str:
    """Why a workload is not ready: its state, and what is wrong with its pods, as far as we may look; "" for ready."""
    state, found = readiness(live), list[str]()
    if state.ready:
        return ""
    with suppress(ApiError):
        pods = pods_of(api, key, live or {})
        found += pods_trouble(pods, warnings_of(api, pods))[:3]
        found += [] if found or len(pods) >= wanted_pods(live or {}) else [creation_denied(api, key, known)]
    return "; ".join(filter(None, [state.text, *found]))
