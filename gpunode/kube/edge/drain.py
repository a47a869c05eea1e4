"""Take a node out of use and back: cordon, drain, uncordon, wait until it offers its GPUs again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.spec.rollout import DrainSpec
from gpunode.kube.core.api_error import ApiError
from gpunode.kube.core.checks.ready import not_ready
from gpunode.kube.core.cluster import Object
from gpunode.kube.core.draining import CORDONED, DrainPlan, daemon_sets_of, drain_plan, is_over, pod_name, refusals
from gpunode.kube.core.marks import node_key
from gpunode.kube.core.offers import lack
from gpunode.kube.core.owned import ObjectKey
from gpunode.kube.core.usage import resources_of
from gpunode.kube.edge.client import AGAIN, Api, Retry

Notify = Callable[[str], None]
ANY = "resources of GPUs"
SETTLED = 12.0  # seconds, in which a kubelet reports what it offers by now (nodeStatusUpdateFrequency: 10 s)
RETRY_SECONDS = 5.0  # between evictions that a disruption budget refuses


def cordon(api: Api, node: str, *, mark: str, over: str) -> bool:
    """No new pods there.  False: somebody else had cordoned it already, and it stays theirs to uncordon.

    `mark` takes the place of the mark `over` ("": of none); RefusedError where another gpunode has written another one
    meanwhile.  Raises InputError for a node that is not there.
    """

    def patch(live: Object) -> Object | None:
        there = our_mark(live)
        if (live.get("spec") or {}).get("unschedulable") and there in (None, mark):
            return None
        if (there or "") != over:
            raise RefusedError(
                f"node {node} was cordoned by another gpunode at the same time: {there}",
                expected="one controller that works on a node",
                fix="wait until its run has ended",
            )
        return {"metadata": {"annotations": {CORDONED: mark}}, "spec": {"unschedulable": True}}

    return our_mark(_change(api, node, patch)) is not None


def uncordon(api: Api, node: str, *, mark: str) -> bool:
    """Pods may come again, if the node has this mark of ours.  False: it has not, and stays as it is.

    Another controller that took the node over has written its own.
    """

    was_ours = False

    def patch(live: Object) -> Object | None:
        nonlocal was_ours
        if our_mark(live) != mark:
            return None
        was_ours = True
        return {"metadata": {"annotations": {CORDONED: None}}, "spec": {"unschedulable": None}}

    _change(api, node, patch)
    return was_ours


def our_mark(live: Object) -> str | None:
    """The text of our mark on a node that is cordoned, None where there is none."""
    if not (live.get("spec") or {}).get("unschedulable"):
        return None
    mark = (live["metadata"].get("annotations") or {}).get(CORDONED)
    return None if mark is None else str(mark)


def drain(api: Api, node: str, options: DrainSpec, *, notify: Notify) -> tuple[str, ...]:
    """Evict the node's pods and wait until they are gone; the names of those evicted.  Cordon it first.

    Raises RefusedError, with nothing evicted, for pods that would lose something; GpunodeError at the timeout.
    """
    deadline = api.clock() + options.timeout
    plan = pods_to_evict(api, node, options)
    waiting = {pod["metadata"]["uid"]: pod for pod in plan.evict}
    reasons = dict.fromkeys(waiting, "is terminating")
    due = dict.fromkeys((uid for uid, pod in waiting.items() if not pod["metadata"].get("deletionTimestamp")), 0.0)
    while waiting:
        for uid in [uid for uid, at in due.items() if at <= api.clock()]:
            refusal = _evict(api, waiting[uid])
            if refusal:
                if refusal != reasons[uid]:
                    tried = f"tried every {RETRY_SECONDS:g} s, until {options.timeout} s have passed"
                    notify(f"{node}: waiting for {pod_name(waiting[uid])}: {refusal} ({tried})")
                reasons[uid] = refusal
                due[uid] = api.clock() + RETRY_SECONDS
            else:
                reasons[uid] = "is terminating"
                del due[uid]
                notify(f"{node}: evicting {pod_name(waiting[uid])}")
        alive = {pod["metadata"]["uid"] for pod in _pods(api, node) if not is_over(pod)}
        waiting = {uid: pod for uid, pod in waiting.items() if uid in alive}
        due = {uid: at for uid, at in due.items() if uid in alive}
        if waiting and api.clock() >= deadline:
            left = "; ".join(f"{pod_name(pod)} {reasons[uid]}" for uid, pod in waiting.items())
            raise GpunodeError(
                f"{node} is not drained after {options.timeout} s: {left}",
                fix="look at the disruption budgets (kubectl get pdb -A) and at finalizers of these pods",
            )
        if waiting:
            api.pause(1.0)
    return tuple(map(pod_name, plan.evict))


def plan_drain(api: Api, node: str, options: DrainSpec) -> DrainPlan:
    """What a drain of the node does with its pods."""
    pods = _pods(api, node)
    there = {at for at in daemon_sets_of(pods) if api.live(ObjectKey("apps/v1", "DaemonSet", *at))}
    return drain_plan(pods, there, options)


def refused_for_now(api: Api, pods: Iterable[Object]) -> list[tuple[str, str]]:
    """Pods whose eviction the API server would refuse at this moment, and its words: asked by dry runs."""
    asked = ((pod_name(pod), _evict(api, pod, dry=True)) for pod in pods)
    return [(name, refusal) for name, refusal in asked if refusal]


def pods_to_evict(api: Api, node: str, options: DrainSpec) -> DrainPlan:
    """What a drain of the node does with its pods.  Raises RefusedError for pods that would lose something."""
    plan = plan_drain(api, node, options)
    if plan.refused:
        raise RefusedError(
            f"{node} is not drained: " + "; ".join(refusals(plan)),
            expected="pods that start again elsewhere and lose nothing",
            fix="move or delete these pods, or allow it by the option that is named",
        )
    return plan


def wait_ready(
    api: Api,
    node: str,
    offers: Mapping[str, int] | Mapping[str, range] = {},
    *,
    boot_id: str = "",
    stale: str = "",
    timeout: float = 900,
    notify: Notify,
) -> None:
    """Wait until the node is Ready and offers as much of each resource: {"nvidia.com/gpu": 8}; {ANY: 1}: of any GPUs.

    Of what a pool shares (gpunode.kube.core.offers) as much and nothing else.
    `boot_id`: the boot that the host itself tells of; `stale`: the one from before a reboot, where cluster and host
    name them otherwise.  What the node says of another boot is old.  Raises GpunodeError.
    """
    last = ""

    def judge(live: Object | None) -> bool | None:
        nonlocal last
        now = _state(live, offers, boot_id, stale)
        if now != last:
            notify(f"{node}: {now or 'ready'}")
        last = now
        return None if now else True

    def lost(live: Object | None) -> str | None:
        return _state(live, offers, boot_id, stale) or None

    deadline = api.clock() + timeout
    shared = any(isinstance(amount, range) for amount in offers.values())
    while api.follow(node_key(node), judge, deadline - api.clock()):
        # a device plugin that starts again offers nothing for a moment, which the kubelet has not reported yet
        if not shared or not api.follow(node_key(node), lost, SETTLED):
            return
    raise GpunodeError(
        f"{node} is not ready after {timeout:g} s: {last}",
        expected=", ".join(["Ready", *offers]),
        fix=f"kubectl describe node {node}; gpunode verify {node}",
    )


def gpus_offered(live: Object) -> dict[str, int]:
    """Resources of GPUs, shares and instances that a node's pods can have, with how many."""
    return {name: count for name, count in resources_of(live, "allocatable").items() if count}


# ---------------------------------------------------------------- helpers


def _state(live: Object | None, offers: Mapping[str, int] | Mapping[str, range], boot: str, stale: str) -> str:
    """What is missing, "" for nothing."""
    if live is None:
        return "is not in the cluster"
    status = live.get("status") or {}
    told = (status.get("nodeInfo") or {}).get("bootID", "")
    if (boot and told != boot) or (stale and told == stale):
        return "has not booted yet"
    if why := not_ready(live):
        return why
    there = gpus_offered(live)
    shares = {name: amounts for name, amounts in offers.items() if isinstance(amounts, range)}
    if any(amounts.start for amounts in shares.values()):  # of DRA's devices a node says nothing
        return lack(shares, there)
    there[ANY] = sum(there.values())
    before = [(there.get(name, 0), name, count) for name, count in offers.items() if isinstance(count, int)]
    return ", ".join(f"offers {now} {name}, not {count}" for now, name, count in before if now < count)


def _change(api: Api, node: str, patch: Callable[[Object], Object | None]) -> Object:
    """The node as it is then.  Raises InputError for one that is not there."""
    found = api.change(node_key(node), patch)
    if found is None:
        raise InputError(f"there is no node {node}", expected="a name of kubectl get nodes")
    return found


def _pods(api: Api, node: str) -> list[Object]:
    return api.items("/api/v1/pods", fieldSelector=f"spec.nodeName={node}")


def _evict(api: Api, pod: Object, *, dry: bool = False) -> str:
    """Ask for an eviction: "" when it was granted or the pod is gone, else why not now."""
    metadata = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    requests: Object = {"preconditions": {"uid": pod["metadata"]["uid"]}} | ({"dryRun": ["All"]} if dry else {})
    query = {"dryRun": "All"} if dry else None
    path = api.path(ObjectKey("v1", "Pod", metadata["namespace"], metadata["name"]))
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": requests}
    try:
        again = Retry(statuses=AGAIN - {429}, lost_update=False)
        api.request("POST", f"{path}/eviction", query=query, body=body, retry=again)
    except ApiError as error:
        if error.status == 404 or (error.status == 409 and not error.causes):  # gone, or another pod of that name
            return ""
        terminating = error.status == 403 and "NamespaceTerminating" in error.causes
        if error.status == 429 or terminating:
            return " ".join(error.texts)
        raise
    return ""
