"""Whether a workload is ready, and what keeps its pods from being so, read off live objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpunode.core.late import dataclass
from gpunode.core.plain import mapping
from gpunode.core.printable import printable
from gpunode.kube.core.cluster import Object

WORKLOADS = ("Deployment", "DaemonSet", "StatefulSet")
# Waiting reasons that pass by themselves
_STARTING = ("ContainerCreating", "PodInitializing")


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """`failed`: it will not become ready by waiting."""

    ready: bool
    text: str
    failed: bool = False


def readiness(live: Object | None) -> Readiness:
    """As `kubectl rollout status` judges: the newest generation seen, all pods updated and available."""
    if live is None:
        return Readiness(ready=False, text="is gone", failed=True)
    status = live.get("status") or {}
    if status.get("observedGeneration", 0) < live["metadata"].get("generation", 0):
        return Readiness(ready=False, text="its controller has not seen it yet")
    if live.get("kind") == "DaemonSet":
        updated, there = status.get("updatedNumberScheduled", 0), status.get("numberAvailable", 0)
    else:
        updated = status.get("updatedReplicas", 0)
        there = status.get("availableReplicas", status.get("readyReplicas", 0))
    for condition in status.get("conditions") or []:
        if condition.get("reason") == "ProgressDeadlineExceeded":
            return Readiness(ready=False, text=f"gave up: {condition.get('message', '')}", failed=True)
    good, wanted = min(updated, there), wanted_pods(live)
    old = status.get("replicas", 0) > updated if live.get("kind") == "Deployment" else False
    return Readiness(ready=good >= wanted and not old, text=f"{good} of {wanted} pods")


def not_ready(node: Object) -> str:
    """Why a node is not Ready; "" where it is."""
    listed = (node.get("status") or {}).get("conditions") or []
    ready: Object = next((one for one in listed if one["type"] == "Ready"), {"status": ""})
    why = printable(_short(ready.get("message") or ready.get("reason") or "it says nothing"))
    return "" if ready["status"] == "True" else f"the node is not Ready: {why}"


def wanted_pods(live: Object) -> int:
    """How many pods its controller wants to have."""
    status, spec = live.get("status") or {}, live.get("spec") or {}
    return int(status.get("desiredNumberScheduled", 0) if live.get("kind") == "DaemonSet" else spec.get("replicas", 1))


def has_ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def pods_trouble(pods: Iterable[Object], said: Mapping[str, str]) -> tuple[str, ...]:
    """What is wrong with each pod that is not ready, one line each; `said` of pods by events."""
    names = ((pod["metadata"]["name"], pod) for pod in pods)
    return tuple(f"pod {name}: {text}" for name, pod in names if (text := pod_trouble(pod) or said.get(name)))


def pod_trouble(pod: Object) -> str:
    """Why a pod does not run: unschedulable, an image that cannot be pulled, a container that ends …; "" for nothing.

    >>> pod_trouble({"status": {"phase": "Pending", "conditions": [
    ...     {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}]}})
    '0/1 nodes are available'
    """
    status: Mapping[str, Any] = pod.get("status") or {}
    if status.get("phase") == "Failed" and status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}".rstrip(": ")
    if message := unschedulable(pod):
        return message
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") and waiting["reason"] not in _STARTING:
            last = (container.get("lastState") or {}).get("terminated") or {}
            return _why(f"{container['name']}: {waiting['reason']}", last, waiting.get("message"))
        if ended.get("exitCode"):
            return _why(f"{container['name']} ended with exit status {ended['exitCode']}", ended, ended.get("reason"))
    seen = status.keys() & {"conditions", "containerStatuses"} or mapping(pod, "spec").get("nodeName")
    return "" if seen or status.get("phase") != "Pending" else "no scheduler has seen it: is kube-scheduler running?"


def deletion_waits_for(live: Object) -> str:
    """What keeps an object that is being deleted: by the conditions of a Namespace, else its finalizers.

    https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/namespace-v1/#NamespaceStatus
    """
    conditions = (live.get("status") or {}).get("conditions") or []
    says = [one.get("message", "") for one in conditions if one["status"] == "True" and one["type"].startswith("Name")]
    holds = live["metadata"].get("finalizers") or (live.get("spec") or {}).get("finalizers") or ["?"]
    return printable(_short("; ".join(filter(None, says)) or ", ".join(holds)))


RESTARTS = 3  # from which on a container that ended lately is in a crash loop


def crash_loop(pod: Object, recently: str) -> str:
    """The container that runs now, and has ended again and again, last after `recently` (a time as the API writes it).

    Between two crashes a container runs for a while: its state alone does not show the loop.
    """
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (container.get("lastState") or {}).get("terminated") or {}
        failed = ended.get("exitCode") and ended.get("reason") != "Unknown"  # so are those that a reboot has ended
        again = container.get("restartCount", 0) >= RESTARTS and failed
        if again and ended.get("finishedAt", "") > recently:
            text = f"{container['name']} ends again and again, with exit status {ended['exitCode']}"
            return _why(text, ended, ended.get("reason"))
    return ""


def gates(pod: Object) -> tuple[str, ...]:
    """The scheduling gates that keep the scheduler from looking at a pod, such as `kueue.x-k8s.io/admission`."""
    return tuple(str(gate.get("name")) for gate in (pod.get("spec") or {}).get("schedulingGates") or [])


def unschedulable(pod: Object) -> str:
    """The scheduler's message, where it found no node, or the gates that keep the pod from it; "" otherwise.

    >>> unschedulable({"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}, "status": {"conditions": [
    ...     {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}})
    'scheduling gate kueue.x-k8s.io/admission: its controller has not let the pod go yet'
    """
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            if names := gates(pod):
                return _short(f"scheduling gate {', '.join(names)}: its controller has not let the pod go yet")
            return str(condition.get("message") or condition.get("reason") or "unschedulable")
    return ""


def last_warning(events: Iterable[Object]) -> str:
    """The latest event that warns, as `REASON: message`; "" for none.

    Times sort as the texts that they are: some events have lastTimestamp, those of newer reporters eventTime.
    """
    warnings = [event for event in events if event.get("type") == "Warning"]
    if not warnings:
        return ""
    latest = max(warnings, key=event_time)
    return _short(f"{latest.get('reason', '')}: {latest.get('message', '')}".strip(": "))


def event_time(event: Object) -> str:
    """When it was last seen."""
    series = event.get("series") or {}
    return str(max(series.get("lastObservedTime", ""), event.get("lastTimestamp", ""), event.get("eventTime", "")))


def _why(text: str, ended: Object, reason: str | None) -> str:
    """With the last line of the log that Kubernetes keeps of a container that fails (FallbackToLogsOnError)."""
    lines = [line for line in (ended.get("message") or "").splitlines() if line.strip()]
    why = _short(lines[-1] if lines else reason or "")
    return f"{text}: {why}" if why else text


def _short(text: str) -> str:
    """At most 300 characters, of both ends: the cause is the last part of an error in Go."""
    words = " ".join(text.split())
    return words if len(words) <= 300 else f"{words[:150]} … {words[-147:]}"
