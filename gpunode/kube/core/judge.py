"""What is wrong with a cluster: objects that drifted, workloads that are not ready, GPUs and pools that are lost.

Everything is judged from one reading: no dry run, which would need the right to write.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal

from gpunode.core.late import dataclass, field, regex
from gpunode.core.meant import meant
from gpunode.core.model import Check, HostResult, Problem
from gpunode.core.plain import mapping, mappings
from gpunode.core.printable import few, printable
from gpunode.kube.core.checks.preflight import mig_state, node_names, offers_gpus, pool_nodes, renamed
from gpunode.kube.core.checks.ready import (
    WORKLOADS,
    crash_loop,
    deletion_waits_for,
    event_time,
    not_ready,
    pod_trouble,
    pods_trouble,
    readiness,
    wanted_pods,
)
from gpunode.kube.core.cluster import CLIENT_LABEL, GPUSHARE_LABEL, MIG_LABEL, MIG_STATE, POOL_LABEL, Object, Pool
from gpunode.kube.core.marks import CONTROL_PLANE, taints_patch
from gpunode.kube.core.offers import expected, lack
from gpunode.kube.core.owned import MANAGER, Inventory, NodeMarks, ObjectKey, digest, is_ours, owner_words
from gpunode.kube.core.placing import pods_on, selects, unserved
from gpunode.kube.core.quantity import quantity
from gpunode.kube.core.render import NodeWish
from gpunode.kube.core.usage import GpuUse, Usage, Use, resources_of

CHECKS = ("kube.drift", "kube.ready", "kube.node", "kube.gpus", "kube.mig", "kube.pool", "kube.waiting")
COUNT_LABEL = "nvidia.com/gpu.count"  # of GPU Feature Discovery: GPUs that the driver sees
_APPLY = "gpunode kube apply --dry-run shows it, gpunode kube apply corrects it"
_PAUSED = "paused-for-mig-change"  # by NVIDIA's MIG manager, which sets it back by itself
_MOST = 5  # differences, pods or nodes that a message names
REFUSALS = ("UnexpectedAdmissionError", "FailedPrepareDynamicResources")  # reasons of a kubelet's events
# pkg/kubelet/cm/devicemanager/manager.go and pkg/kubelet/cm/dra/plugin
_UNAVAILABLE = regex(r"devices unavailable for ([^ ]+)\. Requested: ?(\d+), Available: ?(\d+)")
_UNREGISTERED = regex(r"((?:gpu|compute-domain)\.nvidia\.com) (?:is not|not found in the list of) registered")


@dataclass(frozen=True, order=True, kw_only=True)
class ClusterFinding:
    """`about`: the object, node or pool.  `passing`: it is normal for a while, as during a rollout."""

    check: str
    about: str
    message: str
    fix: str
    passing: bool = False


@dataclass(frozen=True, kw_only=True)
class ClusterReading:
    """What was read at once; `live` has None for an object that is gone, and lacks those that cannot be read.

    `marks`: what the nodes of each pool have to carry, None where nobody knows.  `recorded`: what apply recorded as
    applied.  `recently`: the time since which a container's end counts as recent, as the API writes times; `just_now`:
    that since which a device plugin has started, and its kubelet may not offer the GPUs yet.
    """

    wanted: Mapping[ObjectKey, Object]
    live: Mapping[ObjectKey, Object | None]
    pods: Mapping[ObjectKey, Sequence[Object]]  # of each workload
    nodes: Sequence[Object]
    usage: Usage
    refusals: Sequence[Object] = ()  # events of REFUSALS
    others: Sequence[Problem] = ()  # who else hands out the same GPUs, or cuts them
    charts: Mapping[ObjectKey, Object] = field(default_factory=dict)  # workloads that helm made of our releases
    marks: Sequence[NodeWish] | None = None
    recorded: Inventory = field(default_factory=Inventory)
    denied: Mapping[ObjectKey, str] = field(default_factory=dict)  # workload → why its pods are not even created
    said: Mapping[str, str] = field(default_factory=dict)  # pod that waits → what an event warns of
    gpus: Mapping[str, int] = field(default_factory=dict)  # of nodes, where they are known otherwise than by labels
    handler: str = ""  # the runtime that pods with GPUs name, "" for the engine's default
    recently: str = ""
    just_now: str = ""

    @cached_property
    def wishes(self) -> dict[str, tuple[NodeWish, ...]]:
        """Node → what its pool, of those that share alike, has to carry: by the inventory, or by label as of now."""
        by_node: dict[str, tuple[NodeWish, ...]] = {}
        for wish in self.marks or ():
            for name in pool_nodes(wish.pool, self.nodes):
                by_node[name] = (*by_node.get(name, ()), wish)
        return by_node

    def pool_of(self, node: Object) -> Pool | None:
        """The pool that names a node; where no pool names nodes the only one, if the node has or had GPUs, or its mark.

        A kubelet keeps the resource of a device plugin that went, with 0, until it restarts.  While a device plugin is
        on no node at all, each worker that it selects may be one, and each node on which it has just started.
        """
        if wishes := self.wishes.get(node["metadata"]["name"]):
            return wishes[0].pool
        pools = [wish.pool for wish in self.marks or ()]
        if not pools or any(pool.has_known_nodes for pool in pools):
            return None
        labels, capacity = node["metadata"].get("labels") or {}, resources_of(node, "capacity")
        there = self.offers(node) or any(capacity.values()) or quantity(labels.get(COUNT_LABEL, "0"))
        worker = CONTROL_PLANE not in {taint.get("key") for taint in node["spec"].get("taints") or ()}
        lone = any(live and not wanted_pods(live) for live in map(self.live.get, self.plugins))
        left = ((worker and lone) or resources_of(node, "allocatable")) and not all(
            selects(one, node) for one in self._templates.values()
        )
        marked = labels.get(POOL_LABEL) == pools[0].name or labels.get(GPUSHARE_LABEL) == "true"
        return pools[0] if there or left or marked or self._plugin_starts(node) else None

    def _plugin_starts(self, node: Object) -> bool:
        pods = (pod for key in self.plugins for pod in self.pods.get(key, ()))
        here = (pod for pod in pods if mapping(pod, "spec").get("nodeName") == node["metadata"]["name"])
        states = (
            mapping(one, "state", "running") for pod in here for one in mappings(pod.get("status"), "containerStatuses")
        )
        return bool(self.just_now) and any(str(state.get("startedAt", "")) > self.just_now for state in states)

    def plugin_of(self, pool: Pool) -> ObjectKey | None:
        """The DaemonSet of ours that offers the GPUs of a pool: the one that takes nodes with the pool's labels."""
        labels = next(wish.labels for wish in self.marks or () if wish.pool == pool)
        marked = {"metadata": {"labels": labels}}
        return next((key for key, template in self._templates.items() if not selects(template, marked)), None)

    def offers(self, node: Object) -> dict[str, int]:
        """Resource → how much pods can have of it there."""
        mine = (one for one in self.usage.nodes if one.name == node["metadata"]["name"])
        return {use.name: use.total for one in mine for use in one.uses if use.total}

    def offers_of(self, pool: Pool) -> list[tuple[str, Use]]:
        """(node, use) of what a pool shares on its nodes that are Ready: others run no pod."""
        mine = {node["metadata"]["name"] for node in self.nodes if self.pool_of(node) == pool}
        shares = expected(pool.sharing)
        there = [node for node in self.usage.nodes if node.is_ready and node.name in mine]
        return [(node.name, use) for node in there for use in node.uses if not shares or use.name in shares]

    @property
    def plugins(self) -> dict[ObjectKey, Object]:
        """The DaemonSets of ours that offer GPUs."""
        return {key: item for key, item in self.wanted.items() if key.kind == "DaemonSet" and offers_gpus(item)}

    @property
    def _templates(self) -> dict[ObjectKey, Object]:
        return {key: mapping(item, "spec", "template", "spec") for key, item in self.plugins.items()}


def lost_hosts(wish: NodeWish, nodes: Sequence[Object]) -> tuple[str, ...]:
    """Hosts of the inventory that are no nodes; of a label selector none can be lost."""
    names, _ = node_names(wish.pool.hosts, nodes)
    return () if wish.pool.selector else tuple(host for host in wish.pool.hosts if host not in names)


def findings(look: ClusterReading) -> tuple[ClusterFinding, ...]:
    """All that is not as it should be, in the order of CHECKS."""
    faults = [
        *_objects(look),
        *_orphans(look),
        *_marks(look),
        *_stale_marks(look),
        *_nodes(look),
        *_handlers(look),
        *_overcommitted(look),
        *_refused(look),
        *_mig(look),
        *_pools(look),
        *(ClusterFinding(check="kube.pool", about="the cluster", message=one.what, fix=one.fix) for one in look.others),
        *_waiting(look),
    ]
    return tuple(sorted(faults, key=lambda one: (CHECKS.index(one.check), one.about)))


def node_faults(look: ClusterReading) -> tuple[ClusterFinding, ...]:
    """Nodes of pools that are not Ready, or do not offer what their pool should."""
    return (*_nodes(look), *_mig(look))


def not_offering(look: ClusterReading) -> tuple[ClusterFinding, ...]:
    """Those that are Ready, and that a device plugin of ours is for, unless its pods are denied: that says it all."""
    ours = set()
    for node in look.nodes:
        name, pool = node["metadata"]["name"], look.pool_of(node)
        key = look.plugin_of(pool) if pool else None
        if key and (key not in look.denied or any(pods_on(look.pods.get(key, ()), name))):
            ours.add(f"node {name}")
    return tuple(one for one in node_faults(look) if one.check != "kube.node" and one.about in ours)


# ---------------------------------------------------------------- objects


def _objects(look: ClusterReading) -> Iterator[ClusterFinding]:
    for key, wanted in look.wanted.items():
        if key not in look.live:
            continue
        live = look.live[key]
        if live is None:
            yield ClusterFinding(check="kube.drift", about=str(key), message="it is gone", fix=_APPLY)
            continue
        if text := _drift(wanted, live, applied=look.recorded.digests.get(key) == digest(wanted)):
            fix = _APPLY if differences(wanted, live) else again(key)
            yield ClusterFinding(check="kube.drift", about=str(key), message=text, fix=fix)
        if key.kind in WORKLOADS:
            yield from _workload(key, live, look.pods.get(key, ()), look)
    for key, live in look.charts.items():
        yield from _workload(key, live, look.pods.get(key, ()), look)


def again(key: ObjectKey) -> str:
    """
    >>> again(ObjectKey("apps/v1", "DaemonSet", "gpunode", "nfd-worker"))
    'kubectl -n gpunode delete daemonset nfd-worker; gpunode kube apply makes it again'
    """
    place = f"-n {key.namespace} " if key.namespace else ""
    return f"kubectl {place}delete {key.kind.lower()} {key.name}; gpunode kube apply makes it again"


def _orphans(look: ClusterReading) -> Iterator[ClusterFinding]:
    """Objects that were applied earlier and are not wanted any more.

    What somebody else took over stays theirs.  An object that cannot be read is believed to be there: its record is.
    """
    for key in look.recorded.without(look.wanted):
        live = look.live.get(key)
        if key in look.live and (live is None or not is_ours(live) or live["metadata"].get("deletionTimestamp")):
            continue
        text = "applied earlier, and no longer in gpunode.yml: gpunode kube apply would remove it"
        yield ClusterFinding(check="kube.drift", about=str(key), message=text, fix=_APPLY, passing=True)


def _drift(wanted: Object, live: Object, *, applied: bool) -> str:
    """`applied`: the object as it is wanted now is what was applied last.

    "" also for what is somebody else's and as it is needed: apply keeps that.
    """
    if live["metadata"].get("deletionTimestamp"):
        return f"it is being deleted, and waits for {deletion_waits_for(live)}"
    if not is_ours(live):
        theirs = f"it is not gpunode's but {owner_words(live)}'s"
        return "" if serves_as_ours(wanted, live) else printable(" ".join(theirs.split()))
    differ = differences(wanted, live, owned=(ours_in(live) or None) if applied else None)
    differ += additions(live)
    return f"differs from what was rendered: {few(differ, _MOST, '; ')}" if differ else ""


def serves_as_ours(wanted: Object, live: Object) -> bool:
    """Whether a foreign object already says everything that ours would, but for the labels that name us.

    k3s, for one, makes a RuntimeClass nvidia of its own.
    """
    labels = {k: v for k, v in wanted["metadata"].get("labels", {}).items() if not k.startswith("app.kubernetes.io/")}
    bare = {k: v for k, v in wanted.items() if k not in ("apiVersion", "metadata")}
    return not differences({**bare, "metadata": {"labels": labels}}, live)


def _workload(key: ObjectKey, live: Object, pods: Sequence[Object], look: ClusterReading) -> Iterator[ClusterFinding]:
    loops = [
        f"pod {pod['metadata']['name']}: {text}"
        for pod in pods
        if not pod_trouble(pod) and (text := crash_loop(pod, look.recently))
    ]
    state, trouble = readiness(live), (*pods_trouble(pods, look.said), *loops)
    if state.ready and not trouble:
        return
    denied = look.denied.get(key, "")
    text = "; ".join((*(() if state.ready else (state.text,)), *((denied,) if denied else ()), *trouble[:_MOST]))
    kubectl = f"kubectl -n {key.namespace}"
    fix = f"{kubectl} describe pods; {kubectl} logs {key.kind.lower()}/{key.name}"
    if denied:
        fix = f"what the message names: a quota, limits, a webhook or the pod security of {key.namespace}"
    lasting = any("CrashLoop" in one or "ImagePull" in one for one in trouble)
    passing = not (state.failed or loops or denied or lasting)
    yield ClusterFinding(check="kube.ready", about=str(key), message=printable(text), fix=fix, passing=passing)


# ---------------------------------------------------------------- who wrote which field

# What of a pod decides where it runs and what it does; whoever else writes there changes what gpunode applied.
_DECIDES = ("f:nodeSelector", "f:affinity", "f:tolerations")
_DECIDES_IN_CONTAINERS = ("f:env", "f:args", "f:command", "f:image", "f:resources", "f:securityContext")


def ours_in(live: Object) -> Mapping[str, Any]:
    """The fields that gpunode wrote last, in the form of managedFields: {"f:spec": {"f:replicas": {}}}."""
    for entry in live["metadata"].get("managedFields") or ():
        if entry.get("manager") == MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource"):
            return dict(mapping(entry, "fieldsV1"))
    return {}


def additions(live: Object) -> list[str]:
    """What others wrote into the pods of a workload of gpunode's, and where gpunode wrote nothing: who, and when."""
    spec = ("f:spec", "f:template", "f:spec")
    mine, texts = mapping(ours_in(live), *spec), []
    for entry in live["metadata"].get("managedFields") or ():
        if entry.get("manager") == MANAGER or entry.get("subresource"):
            continue
        theirs = mapping(entry, "fieldsV1", *spec)
        paths = [*_beside(theirs, mine, _DECIDES, "")]
        for kind in ("f:containers", "f:initContainers"):
            for name, fields in mapping(theirs, kind).items():
                if name in mapping(mine, kind):  # another container is a sidecar of its own
                    own, at = mapping(mine, kind, name), f"{_name(name)}."
                    paths += _beside(mapping(fields), own, _DECIDES_IN_CONTAINERS, at)
        if paths:
            who = f"{entry.get('manager')} at {entry.get('time', 'an unknown time')}"
            texts.append(printable(f"{who} added {', '.join(paths[:_MOST])}"))
    return texts


def _name(step: str) -> str:
    """
    >>> _name('k:{"name":"ctr"}'), _name("f:disk"), _name('k:{"key":"a","effect":"NoSchedule"}')
    ('ctr', 'disk', '{"key":"a","effect":"NoSchedule"}')
    """
    found = re.fullmatch(r'k:\{"name":"([^"]*)"\}', step)
    return found[1] if found else step.partition(":")[2]


def _beside(theirs: Mapping[str, Any], mine: Mapping[str, Any], fields: Sequence[str], at: str) -> Iterator[str]:
    for field_name in (one for one in fields if one in theirs):
        inner = [one for one in mapping(theirs, field_name) if one != "."]
        known = mapping(mine, field_name)
        if field_name not in mine or any(one not in known for one in inner):
            new = [_name(one) for one in inner if one not in known]
            yield f"{at}{field_name.removeprefix('f:')}" + (f" {', '.join(new[:_MOST])}" if new else "")


def differences(wanted: Any, live: Any, at: str = "", owned: Mapping[str, Any] | None = None) -> list[str]:
    """Where a live object does not say what the rendered one says, as `path: live, not wanted`.

    What only the live one has (defaults, status, what others added) is no difference; items of a list are matched by
    their name where they have one; quantities are compared as numbers.  `owned`: fields (`ours_in`) whose value came by
    gpunode's own request, and may have been rewritten by an admission policy on its way.

    >>> differences({"a": {"b": 1, "c": []}}, {"a": {"b": 2}})
    ['a.b: 2, not 1']
    """
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return [] if not wanted and live is None else [_differ(at, live, wanted)]
        return [
            one
            for key, value in wanted.items()
            if (at, key) != ("", "apiVersion")  # the same object in another version of its API
            for one in differences(value, live.get(key), f"{at}.{key}".lstrip("."), _below(owned, f"f:{key}"))
        ]
    if isinstance(wanted, list):
        return _lists(wanted, live, at, owned)
    same = wanted == live or (not wanted and not live) or _same_quantity(wanted, live) or owned is not None
    return [] if same else [_differ(at, live, wanted)]


def _lists(wanted: list[Any], live: Any, at: str, owned: Mapping[str, Any] | None) -> list[str]:
    there = live if isinstance(live, list) else []
    key = "mountPath" if at.endswith(".volumeMounts") else "name"  # by which a server merges items
    names = [item.get(key) if isinstance(item, Mapping) else None for item in wanted]
    if wanted and all(isinstance(name, str) for name in names):
        by_name = {item.get(key): item for item in there if isinstance(item, Mapping)}
        return [
            one
            for name, item in zip(names, wanted, strict=True)
            for one in (
                differences(item, by_name[name], f"{at}[{name}]", _below(owned, f'k:{{"{key}":"{name}"}}'))
                if name in by_name
                else [_in_a_line(f"{at}[{name}]: gone")]
            )
        ]
    if len(wanted) != len(there):
        return [] if owned == {} else [_differ(at, live, wanted)]
    atomic: Mapping[str, Any] | None = {} if owned == {} else None
    return [
        one for number, item in enumerate(wanted) for one in differences(item, there[number], f"{at}[{number}]", atomic)
    ]


def _below(owned: Mapping[str, Any] | None, step: str) -> Mapping[str, Any] | None:
    """What is owned below a step; all of it where the field is owned as a whole, None where it is not ours."""
    if not owned:
        return owned
    return mapping(owned, step) if step in owned else None


def _same_quantity(wanted: Any, live: Any) -> bool:
    """0.5 is 500m to the API server, which writes quantities in a form of its own."""
    if not isinstance(wanted, str | int) or not isinstance(live, str | int):
        return False
    number = quantity(wanted)
    return bool(number) and number == quantity(live)


def _differ(at: str, live: Any, wanted: Any) -> str:
    """Of texts of several lines the first that differ."""
    if isinstance(live, str) and isinstance(wanted, str) and "\n" in wanted:
        lines = zip_longest(live.split("\n"), wanted.split("\n"))
        number, (live, wanted) = next((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1])
        at = f"{at}, line {number}"
    return f"{_in_a_line(at)}: {_short(live)}, not {_short(wanted)}"


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    text = _in_a_line(value if isinstance(value, str) else repr(value))
    return text if len(text) <= 60 else f"{text[:57]}…"


def _in_a_line(text: str) -> str:
    return printable(text).replace("\n", "\\n")


# ---------------------------------------------------------------- labels and taints of nodes


def _marks(look: ClusterReading) -> Iterator[ClusterFinding]:
    """Nodes without what apply put on them; hosts of the inventory that are no nodes any more."""
    by_name = {node["metadata"]["name"]: node for node in look.nodes}
    for wish in look.marks or ():
        for host in lost_hosts(wish, look.nodes):
            text, fix = "no node of this cluster has that name or address", "did it leave the cluster?"
            yield ClusterFinding(check="kube.node", about=f"host {host}", message=text, fix=fix)
    for name, wishes in look.wishes.items():
        if len(wishes) > 1:
            text = f"it is in the pools {' and '.join(wish.pool.name for wish in wishes)}"
            fix = "make the selectors of kubernetes.pools exclude each other"
            yield ClusterFinding(check="kube.node", about=f"node {name}", message=text, fix=fix)
            continue
        there = by_name[name]["metadata"].get("labels") or {}
        wrong = {key: one for key, one in wishes[0].labels.items() if there.get(key) not in (one, _PAUSED)}
        lacking = [f"the label {key} is {_short(there.get(key))}, not {one}" for key, one in wrong.items()]
        if lacking := [*lacking, *_taints(by_name[name], wishes[0].taints)]:
            text = printable("; ".join(lacking))
            yield ClusterFinding(check="kube.drift", about=f"node {name}", message=text, fix=_APPLY)


def _stale_marks(look: ClusterReading) -> Iterator[ClusterFinding]:
    """Labels and taints that were applied earlier to nodes for which nothing asks for them any more."""
    if look.marks is None:
        return
    for node in look.nodes:
        name = node["metadata"]["name"]
        applied, wish = look.recorded.nodes.get(name, NodeMarks()), look.wishes.get(name, (None,))[0]
        labels = [one for one in applied.labels if one in (node["metadata"].get("labels") or {})]
        taints = [one for one in applied.taints if not list(_taints(node, [one]))]
        stale = [f"the label {one}" for one in labels if not wish or one not in wish.labels]
        stale += [f"the taint {one}" for one in taints if not wish or one not in wish.taints]
        if stale:
            text = printable(f"applied earlier, and no longer in gpunode.yml: {', '.join(stale)}")
            about = f"marks of node {name}"
            yield ClusterFinding(check="kube.drift", about=about, message=text, fix=_APPLY, passing=True)


def _taints(node: Object, wanted: Sequence[str]) -> Iterator[str]:
    yield from (f"the taint {text} is missing" for text in wanted if taints_patch(node, [text], ()))


# ---------------------------------------------------------------- nodes


def _nodes(look: ClusterReading) -> Iterator[ClusterFinding]:
    former = renamed(look.nodes)
    for node in look.nodes:
        name, pool = node["metadata"]["name"], look.pool_of(node)
        if pool is None:
            continue
        if why := not_ready(node):
            fix = f"kubectl describe node {name}; the kubelet's log on it"
            if now := former.get(name):
                fix = f"node {now} has its address now; if the machine was renamed: kubectl delete node {name}"
            yield ClusterFinding(check="kube.node", about=f"node {name}", message=why, fix=fix)
        elif lost := _lost_gpus(look, pool, node):
            why, fix = _why(look, node, pool)
            text = f"{lost} (pool {printable(pool.name)}){why and f': {why}'}"
            yield ClusterFinding(check="kube.gpus", about=f"node {name}", message=text, fix=fix, passing=True)


def _lost_gpus(look: ClusterReading, pool: Pool, node: Object) -> str:
    """What a node offers less of than its pool shares, or than it has: a device plugin takes out a GPU that is ill."""
    labels = node["metadata"].get("labels") or {}
    if labels.get(CLIENT_LABEL) == _PAUSED and mig_state(node):
        return ""  # by the MIG manager, which has taken the plugin away
    should, there = expected(pool.sharing, labels, look.gpus.get(node["metadata"]["name"], 0)), look.offers(node)
    ill = [
        f"{there.get(resource, 0)} of {count} {resource} can be allocated"
        for resource, count in resources_of(node, "capacity").items()
        if resource in should and there.get(resource, 0) < count and (should[resource].start or resource in there)
    ]
    return "; ".join(ill) or lack(should, there)


def _why(look: ClusterReading, node: Object, pool: Pool) -> tuple[str, str]:
    """Why no pod of the pool's device plugin serves the node, and what to do; "" where its DaemonSet was not read."""
    if (key := look.plugin_of(pool)) and key in look.live:
        if live := look.live[key]:
            return unserved(key, live, node, look.pods.get(key, ()), look.said, denied=key in look.denied)
        return f"{key} is gone", _APPLY
    return "", f"gpunode verify {node['metadata']['name']} and gpunode doctor for it"


def _handlers(look: ClusterReading) -> Iterator[ClusterFinding]:
    """Nodes of pools whose engine has no runtime of that name; kubelets say which it has from 1.30 on."""
    for node in look.nodes:
        handlers = [one.get("name", "") for one in mappings(mapping(node, "status"), "runtimeHandlers")]
        if look.handler and any(handlers) and look.handler not in handlers and look.pool_of(node):
            name = node["metadata"]["name"]
            text = f"its container engine has no runtime {look.handler}: pods of the RuntimeClass cannot start"
            fix = f"gpunode verify {name}; gpunode provision configures the engine"
            yield ClusterFinding(check="kube.node", about=f"node {name}", message=printable(text), fix=fix)


def _overcommitted(look: ClusterReading) -> Iterator[ClusterFinding]:
    """What pods hold more of than there is: a resource of before; or gpushare's extender gave it while pods end."""
    for node in look.usage.nodes:
        for use in node.uses:
            fix = f"gpunode kube status -d {node.name} names the pods: end one of them"
            gpus: list[tuple[str, GpuUse | Use]] = [(f"GPU {one.name} of node {node.name}", one) for one in use.gpus]
            for about, one in gpus or [(f"node {node.name}", use)]:
                if one.allocated > one.total:
                    text = printable(f"its pods hold {one.allocated} of {one.total} {use.unit or use.resource}")
                    where = printable(about)
                    yield ClusterFinding(check="kube.gpus", about=where, message=text, fix=fix, passing=True)


def _refused(look: ClusterReading) -> Iterator[ClusterFinding]:
    """Nodes whose kubelet lately refused what is there: it counts devices of pods that are gone, or has lost a driver.

    kubernetes/kubernetes issue 130145; kubernetes-sigs/dra-driver-nvidia-gpu issue 814
    """
    free = {(node.name, use.resource): use.free for node in look.usage.nodes for use in node.uses}
    latest: dict[tuple[str, str], ClusterFinding] = {}
    for event in sorted(look.refusals, key=event_time):
        about, said = mapping(event, "involvedObject"), str(event.get("message", ""))
        node, pod = str(mapping(event, "source").get("host", "")), f"{about.get('namespace')}/{about.get('name')}"
        if event_time(event) < look.recently:
            continue
        if (one := _UNAVAILABLE.search(said)) and free.get((node, one[1]), 0) >= int(one[2]):
            text = f"its kubelet refused pod {pod} ({one[1]}: asked for {one[2]}, {one[3]} available), though no pod "
            text += f"holds {free[node, one[1]]}: it still counts those of pods that are gone"
            fix = f"systemctl restart kubelet on {node}, after crictl pods there names none that is gone"
        elif one := _UNREGISTERED.search(said):
            text = f"its kubelet has no DRA driver {one[1]} registered: pod {pod} cannot start"
            fix = f"the log of that driver's pod on {node}; delete the pod: a new one registers again"
        else:
            continue
        text = printable(text)
        latest[node, one[1]] = ClusterFinding(check="kube.gpus", about=f"node {printable(node)}", message=text, fix=fix)
    yield from latest.values()


def _mig(look: ClusterReading) -> Iterator[ClusterFinding]:
    """Nodes whose MIG layout is not in force; while it is being changed only when that lasts."""
    for node in look.nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
        if text := mig_state(node):
            fix = f"the log of the MIG manager's pod on {name} (gpunode verify {name}, where gpunode cuts it)"
            passing = labels.get(MIG_STATE) != "failed"
            yield ClusterFinding(check="kube.mig", about=f"node {name}", message=text, fix=fix, passing=passing)


# ---------------------------------------------------------------- pools


def _pools(look: ClusterReading) -> Iterator[ClusterFinding]:
    """No node that offers a GPU, where none is known to be of a pool: these have findings of their own."""
    able = any(node.is_ready and any(use.total for use in node.uses) for node in look.usage.nodes)
    if look.plugins and not able and not any(map(look.pool_of, look.nodes)):
        text, fix = "no node that is Ready offers a GPU", "gpunode kube status; gpunode kube verify"
        yield ClusterFinding(check="kube.pool", about="the cluster", message=text, fix=fix, passing=True)


def _free(use: Use) -> Iterator[tuple[str, int]]:
    """What one pod can get of a resource, by the names that waiting pods ask for it: by several claims of them all."""
    yield use.name, use.free if use.kind == "dra-memory" else use.most
    if use.kind == "dra-memory":  # claims ask for memory, or for whole devices
        yield use.resource, sum(not gpu.allocated for gpu in use.gpus)


def _waiting(look: ClusterReading) -> Iterator[ClusterFinding]:
    """Resources that pods wait for: more than any node has free, or offered by none."""
    free: dict[str, int] = {}
    for node in look.usage.nodes:
        for use in node.uses:
            for name, amount in _free(use):
                free[name] = max(free.get(name, 0), amount if node.state == "Ready" else 0)
    for resource in sorted({name for pod in look.usage.waiting for name in pod.asks}):
        # of the others the scheduler has another reason, and says it
        pods = [pod for pod in look.usage.waiting if pod.asks.get(resource, 0) > free.get(resource, 0)]
        if not pods:
            continue
        names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in pods[:_MOST])
        most = f"more than {free[resource]}" if free.get(resource) else "any"
        why = f"no node that takes pods has {most} free" if resource in free else "no node offers it"
        text = f"{len(pods)} pod{'s'[: len(pods) > 1]} wait{'s'[: len(pods) == 1]} for it, and {why}: {names}"
        fix = "gpunode kube status --details shows who has them"
        fix = fix if resource in free else meant(resource, free, fix, cutoff=0.9)
        yield ClusterFinding(check="kube.waiting", about=resource, message=printable(text), fix=fix, passing=True)


# ---------------------------------------------------------------- checks

# of what is found, where it is no failure: those who wait may just be many
_STATUS: Mapping[str, Literal["failed", "pending", "warning"]] = {"kube.drift": "pending", "kube.waiting": "warning"}


def checks_of(look: ClusterReading, found: Sequence[ClusterFinding]) -> Iterator[Check]:
    """A check for each finding, and one that passed for what has none, with what it was judged by."""
    for check in CHECKS:
        mine, status = [one for one in found if one.check == check], _STATUS.get(check, "failed")
        for one in mine:
            yield Check(id=check, status=status, message=f"{one.about}: {one.message}", fix=one.fix)
        if not mine and (text := _good(look, check)):
            yield Check(id=check, status="passed", message=text)
    for wish in look.marks or ():
        if wish.pool.selector and not pool_nodes(wish.pool, look.nodes):  # a pool of a cloud may have no node for now
            text = f"pool {wish.pool.name}: no node of the cluster is chosen by {printable(wish.pool.selector)!r}"
            yield Check(id="kube.pool", status="not-proven", message=text, fix="kubectl get nodes --show-labels")
    there = {node["metadata"]["name"] for node in look.nodes}
    there |= {host for wish in look.marks or () for host in lost_hosts(wish, look.nodes)}  # these failed
    for name in sorted(set(look.recorded.nodes) - there):
        text = f"node {name}: it was in a pool when gpunode kube apply last ran, and has left the cluster"
        yield Check(id="kube.pool", status="not-proven", message=text, fix="kubectl get nodes; gpunode kube apply")


_VALUES = {"passed": 1, "warning": 1, "failed": 0, "pending": 0}


def metrics(results: Iterable[HostResult]) -> str:
    """The checks in the text format of Prometheus: of each what is worst; those that are not proven have no value."""
    values: dict[tuple[str, str], int] = {}
    for result in results:
        for check in result.checks:
            if check.status in _VALUES:
                at = (result.host, check.id)
                values[at] = min(values.get(at, 1), _VALUES[check.status])
    head = "# HELP gpunode_kube_check 1 where a check passed, 0 where it failed\n# TYPE gpunode_kube_check gauge\n"
    lines = (f'gpunode_kube_check{{about="{at[0]}",check="{at[1]}"}} {value}\n' for at, value in values.items())
    return head + "".join(lines)


def _good(look: ClusterReading, check: str) -> str:
    """What is right, "" for nothing that could be wrong."""
    nodes = look.usage.nodes
    totals: Counter[str] = Counter()
    for use in (use for node in nodes if node.is_ready for use in node.uses):
        totals[use.resource] += use.total
    mig = sum(bool((node["metadata"].get("labels") or {}).get(MIG_LABEL)) for node in look.nodes)
    unread = any(key not in look.live for key in look.wanted)  # what was not seen may have drifted
    return {
        "kube.drift": "" if unread else f"{len(look.live)} objects are as gpunode.yml asks for",
        "kube.ready": ", ".join(
            str(key) for key, live in {**look.live, **look.charts}.items() if live and key.kind in WORKLOADS
        ),
        "kube.node": f"{len(nodes)} node{'s'[: len(nodes) > 1]} with GPUs, all Ready" if nodes else "",
        "kube.gpus": ", ".join(f"{count} {resource}" for resource, count in totals.items()),
        "kube.mig": f"the MIG layout is in force on {mig} nodes" if mig else "",
        "kube.waiting": "no pod waits for GPUs that no node has",
    }.get(check, "")
