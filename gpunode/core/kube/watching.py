"""What `gpunode kube watch` finds: objects that drifted, workloads that are not ready, GPUs and pools that are lost.

Everything is judged from what reading gives: no dry run, which would need the right to write.  A finding is known again
by its check and what it is about, so that only changes are reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from gpunode.core.kube.checks.preflight import chosen_by, fits, mig_state, node_names, offers_gpus
from gpunode.core.kube.checks.ready import WORKLOADS, crash_loop, pods_trouble, readiness
from gpunode.core.kube.cluster import GPUSHARE_LABEL, MIG_STATE, POOL_LABEL, Object
from gpunode.core.kube.marks import node_key, parse_taint
from gpunode.core.kube.owned import Inventory, Key, NodeMarks, is_ours, owner_words, serves_as_ours
from gpunode.core.kube.plain import mapping
from gpunode.core.kube.quantity import quantity
from gpunode.core.kube.render import NodeWish
from gpunode.core.kube.usage import Usage, Use
from gpunode.core.printable import printable

CHECKS = ("kube.drift", "kube.ready", "kube.node", "kube.gpus", "kube.mig", "kube.pool", "kube.waiting")
COUNT_LABEL = "nvidia.com/gpu.count"  # of GPU Feature Discovery: GPUs that the driver sees
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
_OFFERED = ("nvidia.com/gpu", "nvidia.com/mig-", "aliyun.com/gpu-")  # prefixes of what device plugins offer
_APPLY = "gpunode kube apply --dry-run shows it, gpunode kube apply corrects it"
_MIG = "nvidia.com/mig-"
_PAUSED = "paused-for-mig-change"  # by NVIDIA's MIG manager, which sets it back by itself
_MOST = 5  # differences, pods or nodes that a message names


@dataclass(frozen=True, order=True, kw_only=True)
class Finding:
    """`about`: the object, node or pool; `key` where an Event can be written about it.

    `passing`: it is normal for a while (a rollout), and a finding only when it is still so at the next look.
    """

    check: str
    about: str
    message: str
    fix: str
    key: Key
    passing: bool = False

    @property
    def name(self) -> tuple[str, str]:
        return self.check, self.about


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was read in one round; `live` has None for an object that is gone, and lacks those that cannot be read.

    `marks`: what the nodes of each pool have to carry, None where nobody knows.  `recorded`: what apply recorded as
    applied.  `recently`: the time since which a container's end counts as recent, as the API writes times.
    """

    wanted: Mapping[Key, Object]
    live: Mapping[Key, Object | None]
    pods: Mapping[Key, Sequence[Object]]  # of each workload
    nodes: Sequence[Object]
    usage: Usage
    marks: Sequence[NodeWish] | None = None
    recorded: Inventory = field(default_factory=Inventory)
    most: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # devices that a node has offered so far
    recently: str = ""

    @cached_property
    def wishes(self) -> dict[str, tuple[NodeWish, ...]]:
        return wished(self.marks or (), self.nodes)

    def pool_of(self, node: Object) -> str:
        """The pool that a node is in by the spec, else the one that it is marked for; "" for none."""
        wishes = self.wishes.get(node["metadata"]["name"])
        return wishes[0].pool if wishes else pool_of(node)

    @property
    def plugins(self) -> dict[Key, Object]:
        """The DaemonSets of ours that offer GPUs."""
        return {key: item for key, item in self.wanted.items() if key.kind == "DaemonSet" and offers_gpus(item)}


def wished(wishes: Sequence[NodeWish], nodes: Sequence[Object]) -> dict[str, tuple[NodeWish, ...]]:
    """Node → what its pool, of those that share alike, has to carry: by the inventory, or by label as of now."""
    found: dict[str, tuple[NodeWish, ...]] = {}
    for wish in wishes:
        names = chosen_by(wish.selector, nodes) if wish.selector else node_names(wish.hosts, nodes)[0].values()
        for name in dict.fromkeys(names):
            found[name] = (*found.get(name, ()), wish)
    return found


def lost_hosts(wish: NodeWish, nodes: Sequence[Object]) -> tuple[str, ...]:
    """Hosts of the inventory that are no nodes; of a label selector none can be lost."""
    names, _ = node_names(wish.hosts, nodes)
    return () if wish.selector else tuple(host for host in wish.hosts if host not in names)


def findings(look: Look, before: Look | None = None) -> tuple[Finding, ...]:
    """All that is not as it should be, in the order of CHECKS."""
    found = [
        *_objects(look),
        *_orphans(look),
        *_marks(look),
        *_stale_marks(look),
        *_nodes(look, before),
        *_overcommitted(look),
        *_mig(look),
        *_pools(look),
        *_waiting(look),
    ]
    return tuple(sorted(found, key=lambda one: (CHECKS.index(one.check), one.about)))


State = Literal["found", "gone"]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A finding that is new, has another message, or is gone."""

    state: State
    finding: Finding


def turns(before: Iterable[Finding], now: Iterable[Finding]) -> tuple[Turn, ...]:
    """What changed from one round to the next."""
    old, new = {one.name: one for one in before}, {one.name: one for one in now}
    fresh = [Turn(state="found", finding=one) for one in new.values() if old.get(one.name) != one]
    gone = [Turn(state="gone", finding=one) for name, one in old.items() if name not in new]
    return (*fresh, *gone)


def settled(now: Iterable[Finding], before: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those of `now` that do not pass by themselves, or were there in the round before."""
    known = {one.name for one in before}
    return tuple(one for one in now if not one.passing or one.name in known)


def finding_data(finding: Finding) -> dict[str, Any]:
    """The shape of a finding in JSON (docs/kubernetes.md)."""
    return {"check": finding.check, "about": finding.about, "message": finding.message, "fix": finding.fix}


# ---------------------------------------------------------------- objects


def _objects(look: Look) -> Iterator[Finding]:
    for key, wanted in look.wanted.items():
        if key not in look.live:
            continue
        live = look.live[key]
        if live is None:
            yield Finding(check="kube.drift", about=str(key), message="it is gone", fix=_APPLY, key=key)
            continue
        if text := _drift(wanted, live):
            yield Finding(check="kube.drift", about=str(key), message=text, fix=_APPLY, key=key)
        if key.kind in WORKLOADS:
            yield from _workload(key, live, look.pods.get(key, ()), look.recently)


def _orphans(look: Look) -> Iterator[Finding]:
    """Objects that were applied earlier and are not wanted any more.

    What somebody else took over stays theirs.  An object that cannot be read is believed to be there: its record is.
    """
    for key in look.recorded.without(look.wanted):
        live = look.live.get(key)
        if key in look.live and (live is None or not is_ours(live) or live["metadata"].get("deletionTimestamp")):
            continue
        text = "applied earlier, and no longer in gpunode.yml: gpunode kube apply would remove it"
        yield Finding(check="kube.drift", about=str(key), message=text, fix=_APPLY, key=key, passing=True)


def _drift(wanted: Object, live: Object) -> str:
    """ "" also for what is somebody else's and as it is needed: apply keeps that."""
    if live["metadata"].get("deletionTimestamp"):
        return "it is being deleted"
    if not is_ours(live):
        theirs = f"it is not gpunode's but {owner_words(live)}'s"
        return "" if serves_as_ours(wanted, live) else printable(" ".join(theirs.split()))
    differ = differences(wanted, live)
    more = f" and {len(differ) - _MOST} more" if len(differ) > _MOST else ""
    return f"differs from what was rendered: {'; '.join(differ[:_MOST])}{more}" if differ else ""


def _workload(key: Key, live: Object, pods: Sequence[Object], recently: str) -> Iterator[Finding]:
    loops = [f"pod {pod['metadata']['name']}: {text}" for pod in pods if (text := crash_loop(pod, recently))]
    state, trouble = readiness(live), tuple(dict.fromkeys((*pods_trouble(pods), *loops)))
    if state.ready and not trouble:
        return
    text = "; ".join((*(() if state.ready else (state.text,)), *trouble[:_MOST]))
    fix = f"kubectl -n {key.namespace} describe pods; kubectl -n {key.namespace} logs"
    passing = not state.failed and not loops and not any("CrashLoop" in one or "ImagePull" in one for one in trouble)
    yield Finding(check="kube.ready", about=str(key), message=printable(text), fix=fix, key=key, passing=passing)


def differences(wanted: Any, live: Any, at: str = "") -> list[str]:
    """Where a live object does not say what the rendered one says, as `path: live, not wanted`.

    What only the live one has (defaults, status, what others added) is no difference; items of a list are matched by
    their name where they have one; quantities are compared as numbers.

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
            for one in differences(value, live.get(key), f"{at}.{key}".lstrip("."))
        ]
    if isinstance(wanted, list):
        return _lists(wanted, live, at)
    same = wanted == live or (not wanted and not live) or _same_quantity(wanted, live)
    return [] if same else [_differ(at, live, wanted)]


def _lists(wanted: list[Any], live: Any, at: str) -> list[str]:
    there = live if isinstance(live, list) else []
    key = "mountPath" if at.endswith(".volumeMounts") else "name"  # by which a server merges items
    names = [item.get(key) if isinstance(item, Mapping) else None for item in wanted]
    if wanted and all(isinstance(name, str) for name in names):
        by_name = {item.get(key): item for item in there if isinstance(item, Mapping)}
        return [
            one
            for name, item in zip(names, wanted, strict=True)
            for one in (
                differences(item, by_name[name], f"{at}[{name}]") if name in by_name else [f"{at}[{name}]: gone"]
            )
        ]
    if len(wanted) != len(there):
        return [_differ(at, live, wanted)]
    return [one for number, item in enumerate(wanted) for one in differences(item, there[number], f"{at}[{number}]")]


def _same_quantity(wanted: Any, live: Any) -> bool:
    """0.5 is 500m to the API server, which writes quantities in a form of its own."""
    if not isinstance(wanted, str | int) or not isinstance(live, str | int):
        return False
    number = quantity(wanted)
    return bool(number) and number == quantity(live)


def _differ(at: str, live: Any, wanted: Any) -> str:
    return f"{printable(at)}: {_short(live)}, not {_short(wanted)}"


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    text = printable(value if isinstance(value, str) else repr(value))
    return text if len(text) <= 60 else f"{text[:57]}…"


# ---------------------------------------------------------------- labels and taints of nodes


def _marks(look: Look) -> Iterator[Finding]:
    """Nodes without what apply put on them; hosts of the inventory that are no nodes any more."""
    by_name = {node["metadata"]["name"]: node for node in look.nodes}
    for wish in look.marks or ():
        for host in lost_hosts(wish, look.nodes):
            text, fix = "no node of this cluster has that name or address", "did it leave the cluster?"
            yield Finding(check="kube.node", about=f"host {host}", message=text, fix=fix, key=node_key(host))
    for name, wishes in look.wishes.items():
        if len(wishes) > 1:
            text = f"it is in the pools {' and '.join(wish.pool for wish in wishes)}"
            fix = "make the selectors of kubernetes.pools exclude each other"
            yield Finding(check="kube.node", about=f"node {name}", message=text, fix=fix, key=node_key(name))
        elif lacking := [*_labels(by_name[name], wishes[0].labels), *_taints(by_name[name], wishes[0].taints)]:
            text = printable("; ".join(lacking))
            yield Finding(check="kube.drift", about=f"node {name}", message=text, fix=_APPLY, key=node_key(name))


def _stale_marks(look: Look) -> Iterator[Finding]:
    """Labels and taints that were applied earlier to nodes for which nothing asks for them any more."""
    if look.marks is None:
        return
    for node in look.nodes:
        name = node["metadata"]["name"]
        applied, asked = look.recorded.nodes.get(name, NodeMarks()), look.wishes.get(name, (None,))[0]
        labels = [one for one in applied.labels if one in (node["metadata"].get("labels") or {})]
        taints = [one for one in applied.taints if not list(_taints(node, [one]))]
        stale = [f"the label {one}" for one in labels if not asked or one not in asked.labels]
        stale += [f"the taint {one}" for one in taints if not asked or one not in asked.taints]
        if stale:
            text = printable(f"applied earlier, and no longer in gpunode.yml: {', '.join(stale)}")
            yield Finding(
                check="kube.drift", about=f"marks of node {name}", message=text, fix=_APPLY, key=node_key(name),
                passing=True,
            )  # fmt: skip


def _labels(node: Object, wanted: Mapping[str, str]) -> Iterator[str]:
    there = node["metadata"].get("labels") or {}
    for key, value in wanted.items():
        if there.get(key) not in (value, _PAUSED):
            yield f"the label {key} is {_short(there.get(key))}, not {value}"


def _taints(node: Object, wanted: Sequence[str]) -> Iterator[str]:
    there = mapping(node, "spec").get("taints") or ()
    for text in wanted:
        if parse_taint(text) not in [{k: v for k, v in one.items() if v and k != "timeAdded"} for one in there]:
            yield f"the taint {text} is missing"


# ---------------------------------------------------------------- nodes


def offered(node: Object, what: str) -> dict[str, int]:
    """Resource of GPUs → number, of a node's `capacity` or `allocatable`."""
    listed = mapping(node, "status", what)
    return {name: quantity(amount) for name, amount in listed.items() if name.startswith(_OFFERED)}


def _nodes(look: Look, before: Look | None) -> Iterator[Finding]:
    earlier = {node["metadata"]["name"]: offered(node, "capacity") for node in before.nodes} if before else {}
    for node in look.nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
        capacity = offered(node, "capacity") or offered(node, "allocatable")
        counted = quantity(labels.get(COUNT_LABEL, "0"))
        expected = _has_plugin(look, node) and not _offers_anything(look, name)
        left = [resource for resource in capacity if resource.startswith(_OFFERED[:2])] if expected else []
        pool = "" if _offers_anything(look, name) else look.pool_of(node)  # whose nodes should offer GPUs
        fewer = _fewer_devices(name, look)
        if not (any(capacity.values()) or counted or any(earlier.get(name, {}).values()) or left or pool or fewer):
            continue
        if why := _not_ready(node):
            fix = f"kubectl describe node {name}; the kubelet's log on it"
            yield Finding(check="kube.node", about=f"node {name}", message=why, fix=fix, key=node_key(name))
            continue
        lost = [*_unhealthy(node, capacity), *_fewer(labels, counted, capacity, earlier.get(name, {})), *fewer]
        if left and not lost:  # a kubelet keeps the resource of a device plugin that went, with 0, until it restarts
            lost = [f"no {', '.join(left)} any more"]
        new = bool(pool) and not lost  # its device plugin may just be starting
        if new:
            lost = [f"it is in the pool {printable(pool)}, and offers no GPU"]
        if lost:
            fix = f"the log of the device plugin's pod on {name}; gpunode verify and gpunode doctor for it"
            text = "; ".join(lost)
            yield Finding(
                check="kube.gpus", about=f"node {name}", message=text, fix=fix, key=node_key(name), passing=new
            )


def _fewer_devices(name: str, look: Look) -> list[str]:
    """What a DRA driver offers no longer: its slices are no resource of the node, and nobody else counts them."""
    now, most = devices(look.usage).get(name, {}), look.most.get(name, {})
    less = [(what, count) for what, count in most.items() if now.get(what, 0) < count]
    return [f"{now.get(what, 0)} of {count} {what} are offered" for what, count in less]


def devices(usage: Usage) -> dict[str, dict[str, int]]:
    """Node → resource of its DRA driver → how many."""
    return {
        node.name: {use.resource: use.total for use in node.uses if use.kind == "dra"}
        for node in usage.nodes
        if any(use.kind == "dra" for use in node.uses)
    }


def most_devices(before: Mapping[str, Mapping[str, int]], usage: Usage) -> dict[str, dict[str, int]]:
    """The most that each node has offered so far."""
    found = {name: dict(most) for name, most in before.items()}
    for name, now in devices(usage).items():
        known = found.setdefault(name, {})
        known |= {what: max(count, known.get(what, 0)) for what, count in now.items()}
    return found


def _overcommitted(look: Look) -> Iterator[Finding]:
    """GPUs that gpushare's extender gave more of away than they have, as it does while pods end."""
    for node in look.usage.nodes:
        for use in node.uses:
            full = [gpu for gpu in use.gpus if use.kind == "gpushare" and gpu.allocated > gpu.total]
            for gpu in full:
                yield Finding(
                    check="kube.gpus",
                    about=f"GPU {printable(gpu.name)} of node {node.name}",
                    message=printable(f"its pods hold {gpu.allocated} of {gpu.total} {use.unit or use.resource}"),
                    fix=f"gpunode kube status -d {node.name} names the pods: end one of them",
                    key=node_key(node.name),
                    passing=True,
                )


def _mig(look: Look) -> Iterator[Finding]:
    """Nodes whose MIG layout is not in force; while it is being changed only when that lasts."""
    for node in look.nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
        if text := mig_state(node):
            fix = f"the log of the MIG manager's pod on {name} (gpunode verify {name}, where gpunode cuts it)"
            passing = labels.get(MIG_STATE) != "failed"
            yield Finding(
                check="kube.mig", about=f"node {name}", message=text, fix=fix, key=node_key(name), passing=passing
            )


def _has_plugin(look: Look, node: Object) -> bool:
    """Whether a device plugin of ours selects the node."""
    return any(
        fits(mapping(plugin, "spec", "template", "spec", "nodeSelector"), node) for plugin in look.plugins.values()
    )


def _offers_anything(look: Look, name: str) -> bool:
    return any(use.total for node in look.usage.nodes if node.name == name for use in node.uses)


def _not_ready(node: Object) -> str:
    for condition in mapping(node, "status").get("conditions") or ():
        if condition["type"] == "Ready" and condition["status"] != "True":
            why = condition.get("message") or condition.get("reason") or ""
            return printable(f"the node is not Ready: {why}".rstrip(": "))[:300]
    return ""


def _unhealthy(node: Object, capacity: Mapping[str, int]) -> Iterator[str]:
    """A device plugin takes a GPU that is not healthy out of what can be allocated."""
    good = offered(node, "allocatable")
    for resource, count in capacity.items():
        twin = resource.removesuffix(".shared") if resource.endswith(".shared") else f"{resource}.shared"
        if not good.get(resource) and good.get(twin):
            continue  # offered under its other name now: a kubelet keeps the former one, with 0, until it restarts
        if good.get(resource, 0) < count:
            yield f"{good.get(resource, 0)} of {count} {resource} can be allocated"


def _fewer(
    labels: Mapping[str, str], counted: int, capacity: Mapping[str, int], earlier: Mapping[str, int]
) -> Iterator[str]:
    """Fewer than Feature Discovery counted (where whole GPUs or shares of them are offered), or none any more."""
    shared = quantity(labels.get(REPLICAS_LABEL, "1")) or 1
    whole = sum(count for resource, count in capacity.items() if resource.startswith("nvidia.com/gpu"))
    mig = any(resource.startswith("nvidia.com/mig-") for resource in capacity) or "MIG" in labels.get(
        "nvidia.com/gpu.product", ""
    )
    if counted and not mig and labels.get(GPUSHARE_LABEL) != "true" and whole < counted * shared:
        yield f"{whole} nvidia.com/gpu are offered, and {counted} GPUs are counted there" + (
            f" with {shared} shares each" if shared > 1 else ""
        )
    for label, value in labels.items():  # of instances, by profile
        resource = label.removesuffix(".count")
        if label == resource or not label.startswith(_MIG):
            continue
        there = capacity.get(resource, 0) + capacity.get(f"{resource}.shared", 0)
        instances = quantity(value) * (quantity(labels.get(f"{resource}.replicas", "1")) or 1)
        if there < instances:
            yield f"{there} {resource} are offered, and {instances} are counted there"
    gone = [resource for resource, count in earlier.items() if count and not capacity.get(resource)]
    if gone:
        yield f"no {', '.join(gone)} any more ({', '.join(f'{earlier[one]} before' for one in gone)})"


# ---------------------------------------------------------------- pools


def pool_of(node: Object) -> str:
    """The pool that a node is marked for; "" for none."""
    labels = node["metadata"].get("labels") or {}
    return labels.get(POOL_LABEL, "") or ("gpushare" if labels.get(GPUSHARE_LABEL) == "true" else "")


def _pools(look: Look) -> Iterator[Finding]:
    """Pools whose nodes offer nothing at all."""
    members: dict[str, list[Object]] = defaultdict(list)
    for node in look.nodes:
        if pool := look.pool_of(node):
            members[pool].append(node)
    able = {use.name for use in look.usage.nodes if use.is_ready and any(one.total for one in use.uses)}
    for pool, nodes in members.items():
        names = [node["metadata"]["name"] for node in nodes]
        if able.isdisjoint(names):
            more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
            text = f"none of its nodes offers a GPU: {', '.join(names[:_MOST])}{more}"
            fix = "gpunode kube status; gpunode kube verify --no-smoke"
            yield Finding(check="kube.pool", about=f"pool {pool}", message=text, fix=fix, key=node_key(names[0]))
    chosen = {wish.pool for wishes in look.wishes.values() for wish in wishes}
    for wish in look.marks or ():
        if wish.selector and wish.pool not in chosen:
            text = f"no node of the cluster is chosen by {printable(wish.selector)!r}"
            fix, key = "kubectl get nodes --show-labels", next(iter([*look.plugins, *look.wanted]), node_key(""))
            yield Finding(check="kube.pool", about=f"pool {wish.pool}", message=text, fix=fix, key=key)
    if not members and not able and look.plugins:  # one pool alone needs no label
        text, fix = "no node that is Ready offers a GPU", "gpunode kube status; gpunode kube verify --no-smoke"
        yield Finding(check="kube.pool", about="the cluster", message=text, fix=fix, key=next(iter(look.plugins)))


def _free(use: Use) -> Iterator[tuple[str, int]]:
    """What is free of a resource, by the names that waiting pods ask for it."""
    if use.kind == "dra-memory":  # claims ask for memory, or for whole devices
        yield f"{use.resource} (MiB)", use.free
        yield use.resource, sum(not gpu.allocated for gpu in use.gpus)
    else:
        yield use.resource, use.free


def _waiting(look: Look) -> Iterator[Finding]:
    """Resources that pods wait for: none free anywhere, or offered by no node."""
    free: dict[str, int] = defaultdict(int)
    for node in look.usage.nodes:
        for use in node.uses:
            for name, amount in _free(use):
                free[name] += amount if node.is_ready else 0
    for resource in sorted({name for pod in look.usage.waiting for name in pod.asks}):
        pods = [pod for pod in look.usage.waiting if resource in pod.asks]
        if free.get(resource, 0) >= min(pod.asks[resource] for pod in pods):
            continue  # the scheduler has another reason, and says it
        names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in pods[:_MOST])
        why = f"{free[resource]} are free" if resource in free else "no node offers it"
        text = f"{len(pods)} pod{'s'[: len(pods) > 1]} wait{'s'[: len(pods) == 1]} for it, and {why}: {names}"
        key = Key("v1", "Pod", pods[0].namespace, pods[0].name)
        fix = "gpunode kube status --details shows who has them"
        yield Finding(check="kube.waiting", about=resource, message=printable(text), fix=fix, key=key, passing=True)
