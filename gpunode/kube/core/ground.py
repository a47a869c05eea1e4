"""What apply builds on: one reading of the cluster, what must hold of it, and what the dry runs on it say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from gpunode.core.diff import unified
from gpunode.core.late import dataclass, field
from gpunode.core.model import Problem
from gpunode.core.plain import mapping
from gpunode.core.printable import few, printable
from gpunode.kube.core.api_error import ApiError
from gpunode.kube.core.applied import ObjectChange
from gpunode.kube.core.checks.preflight import (
    Right,
    cdi_problems,
    foreign_problem,
    memory_claim,
    memory_problems,
    node_names,
    pod_security_problem,
    pool_nodes,
)
from gpunode.kube.core.checks.ready import deletion_waits_for
from gpunode.kube.core.cluster import Object, Pool
from gpunode.kube.core.judge import serves_as_ours
from gpunode.kube.core.marks import left_over, node_key, node_labels, overwritten, taints_patch
from gpunode.kube.core.offers import expected, gpus_of
from gpunode.kube.core.owned import Inventory, NodeMarks, ObjectKey, digest, is_ours, key_of, shown
from gpunode.kube.core.render import Rendered
from gpunode.kube.core.render.device_plugin import CONFIG, config_text
from gpunode.kube.core.render.plugin_config import sharing_of
from gpunode.kube.core.usage import NodeUse, Usage

Marks = tuple[dict[str, str], tuple[str, ...]]  # labels, and taints as KEY=VALUE:EFFECT
Rehearsal = Mapping[ObjectKey, Object | ApiError]  # what each would become, or why the server refuses it


@dataclass(kw_only=True)
class Ground:
    """Live objects by key, the nodes, and what an earlier apply recorded.

    A reading ends where kinds are not served or rights are lacking: all after `lacking` is then empty.
    """

    rendered: Rendered
    account: str  # whose rights these are
    unserved: dict[str, list[str]] = field(default_factory=dict)  # version → kinds
    before: Inventory = field(default_factory=Inventory)
    places: list[ObjectKey] = field(default_factory=list)  # the inventories that were found
    lacking: list[Right] = field(default_factory=list)
    live: dict[ObjectKey, Object | None] = field(default_factory=dict)
    nodes: dict[str, Object] = field(default_factory=dict)  # by name; {} where nothing depends on them
    others: list[Problem] = field(default_factory=list)  # who else hands out the same GPUs, or cuts them
    usage: Usage = field(default_factory=lambda: Usage(nodes=(), waiting=()))
    claims_served: bool = True
    claim: Object | None = None  # what the server would keep of one for a part of a device's memory
    changes: list[ObjectChange] = field(default_factory=list)  # what apply would do

    @cached_property
    def wanted(self) -> dict[ObjectKey, Object]:
        return {key_of(item): item for item in self.rendered.objects}

    @property
    def stale(self) -> tuple[ObjectKey, ...]:
        """Ours, and no longer wanted."""
        return self.before.without(self.wanted)

    @property
    def kept(self) -> list[ObjectKey]:
        """Somebody else's, and as we need them."""
        return [
            key
            for key, wanted in self.wanted.items()
            if (live := self.live.get(key)) and not is_ours(live) and serves_as_ours(wanted, live)
        ]

    def nodes_of(self, pools: Iterable[Pool]) -> list[str]:
        """The names of these pools' nodes."""
        nodes = list(self.nodes.values())
        return sorted({name for pool in pools for name in pool_nodes(pool, nodes)})

    @property
    def left(self) -> list[str]:
        """Nodes that an earlier apply marked, and that are no longer there."""
        return [name for name in self.before.nodes if self.nodes and name not in self.nodes]

    @property
    def marks(self) -> dict[str, Marks]:
        """Node → our labels and taints; empty ones remove what was put on a node that is no longer wanted."""
        gone: dict[str, Marks] = {name: ({}, ()) for name in self.before.nodes if name in self.nodes}
        return gone | self._wanted_marks

    @property
    def _wanted_marks(self) -> dict[str, Marks]:
        return {name: (wish.labels, wish.taints) for wish in self.rendered.nodes for name in self.nodes_of([wish.pool])}

    @property
    def after(self) -> Inventory:
        """What will be ours."""
        kept = self.kept
        objects = tuple(key for key in self.wanted if key not in kept)
        nodes = {
            n: NodeMarks(labels=tuple(labels), taints=taints) for n, (labels, taints) in self._wanted_marks.items()
        }
        digests = {key: digest(self.wanted[key]) for key in objects}
        return Inventory(objects=objects, nodes=nodes, digests=digests)


# ---------------------------------------------------------------- what must hold


def ground_problems(ground: Ground) -> list[Problem]:
    """In an order in which one mistake is not reported as many."""
    if ground.unserved:
        fix = "kubectl api-resources; is the server's version the one that was rendered for?"
        kinds = {version: ", ".join(names) for version, names in ground.unserved.items()}
        return [Problem(what=f"the server does not serve {kinds[one]} of {one}", fix=fix) for one in kinds]
    lacking = right_problems(ground.account, ground.lacking)
    return [*(lacking or (*_objects(ground), *_nodes(ground), *ground.others)), *_memory_shares(ground)]


def right_problems(account: str, lacking: Iterable[Right]) -> list[Problem]:
    """One problem that names all rights that we lack."""
    rights = "; ".join(map(str, lacking))
    fix = "ask the cluster's administrator for these rights (cluster-admin has them), or use another --context"
    return [Problem(what=f"{account} may not {rights}", fix=fix)] if rights else []


def _objects(ground: Ground) -> Iterator[Problem]:
    kept = ground.kept
    for key in ground.wanted:
        live = ground.live[key]
        if live is None:
            continue
        if live["metadata"].get("deletionTimestamp"):
            fix = f"kubectl describe {key.kind.lower()} {key.name}; apply again when it is gone"
            yield Problem(what=f"{key} is being deleted, and waits for {deletion_waits_for(live)}", fix=fix)
        elif not is_ours(live):
            if key not in kept:
                yield foreign_problem(key, live)
        elif problem := pod_security_problem(key, live):
            yield problem


def _nodes(ground: Ground) -> Iterator[Problem]:
    cluster, nodes = ground.rendered.cluster, list(ground.nodes.values())
    yield from node_names([host for pool in cluster.pools if not pool.selector for host in pool.hosts], nodes)[1]
    yield from cdi_problems(cluster, nodes, ground.nodes_of(cluster.plugin_pools))


def held_problems(ground: Ground) -> Iterator[Problem]:
    """Nodes whose GPUs pods hold, and that would share them otherwise, or no more: a pod's own would be given away."""
    for node, pool, former in _switches(ground):
        should = expected(pool.sharing) if pool else {}
        held = [use for use in node.uses if former or not pool or (should and use.total and use.name not in should)]
        if names := [f"{pod.namespace}/{pod.name} ({pod.amount} {use.name})" for use in held for pod in use.pods]:
            yield Problem(
                what=f"node {node.name}: its GPUs would be shared {'otherwise' if pool else 'no more'}, and pods hold "
                f"them: {printable(few(names))}",
                fix=f"end these pods, or have them evicted first: kubectl drain {node.name} --ignore-daemonsets",
            )


def former_gpus(ground: Ground) -> dict[str, int]:
    """Node whose GPUs are shared otherwise from now on → how many, by what it offered; 0 where that does not say."""
    return {node.name: gpus_of(former, ground.nodes.get(node.name, {})) for node, _, former in _switches(ground)}


def _switches(ground: Ground) -> Iterator[tuple[NodeUse, Pool | None, str]]:
    """Nodes that are or were of a pool, that of now, and its plugin's former configuration, "" where that is as now."""
    cluster = ground.rendered.cluster
    former = mapping(ground.live.get(ObjectKey("v1", "ConfigMap", cluster.spec.namespace, CONFIG)), "data")
    only = next(iter(former.values())) if len(former) == 1 else ""
    unnamed = next((pool for pool in cluster.pools if not pool.has_known_nodes), None)
    pools = {name: pool for pool in cluster.pools for name in ground.nodes_of([pool])}
    for node in ground.usage.nodes:
        pool = pools.get(node.name, unnamed)
        text = former.get(node.pool, only) if pool in cluster.plugin_pools else ""
        same = pool and text and sharing_of(text) == sharing_of(config_text(cluster, pool.name))
        if pool or node.name in ground.before.nodes:
            yield node, pool, "" if same else text


def _memory_shares(ground: Ground) -> Iterator[Problem]:
    cluster = ground.rendered.cluster
    claim = memory_claim(cluster)
    if claim and not ground.claims_served:
        yield Problem(
            what=f"the server does not serve {claim['kind']} of {claim['apiVersion']}",
            fix="kubectl api-resources; is DRA turned off on kube-apiserver (DynamicResourceAllocation)?",
        )
    elif ground.claim is not None:
        yield from memory_problems(cluster, ground.claim)


# ---------------------------------------------------------------- what would become of it


def to_rehearse(ground: Ground) -> dict[ObjectKey, Object]:
    """What to apply as dry runs: all but what is kept, and what goes to a namespace that is not there yet."""
    fresh = {key.name for key, live in ground.live.items() if key.kind == "Namespace" and live is None}
    kept = ground.kept
    objects = {key: ground.wanted[key] for key in ground.wanted if key not in kept and key.namespace not in fresh}
    for name, (labels, _) in ground.marks.items():
        taken = overwritten(ground.nodes[name], labels)  # these are patched
        own = {key: value for key, value in labels.items() if key not in taken}
        objects[node_key(name)] = node_labels(ground.nodes[name], own)
    return objects


def rehearsal_problems(ground: Ground, rehearsal: Rehearsal) -> list[Problem]:
    """What the server's validation, admission, quota and rules of rights say against it."""
    return [_rejected(key, answer) for key, answer in rehearsal.items() if _refuses(ground, key, answer)]


def planned_changes(ground: Ground, rehearsal: Rehearsal) -> list[ObjectChange]:
    """What apply would do, without what the server refuses."""
    planned, kept = [], ground.kept
    for key, wanted in ground.wanted.items():
        answer = rehearsal.get(key, wanted)
        if key in kept:
            planned.append(ObjectChange(key=key, how="kept", why="another program's, and as it is needed"))
        elif not _refuses(ground, key, answer):
            then = wanted if isinstance(answer, ApiError) else answer
            planned.append(_change(key, ground.live[key], then))
    for name in ground.marks:
        key = node_key(name)
        if not isinstance(answer := rehearsal[key], ApiError):
            planned.append(_change(key, ground.nodes[name], _marked(ground, name, answer)))
    for key in ground.stale:
        live = ground.live[key]
        if live is not None and is_ours(live):
            planned.append(ObjectChange(key=key, how="deleted", why="no longer wanted"))
    return planned


def _refuses(ground: Ground, key: ObjectKey, answer: Object | ApiError) -> bool:
    """Not where only the dry run fails: a binding whose role is still to be made, a webhook that knows no dry runs."""
    if not isinstance(answer, ApiError):
        return False
    if key not in ground.wanted:  # a node
        return True
    role = ground.wanted[key].get("roleRef", {}).get("name", "")
    fresh = any(key.kind.endswith("Role") and key.name == role and live is None for key, live in ground.live.items())
    return not ((answer.status == 404 and fresh) or "does not support dry run" in answer.what)


def _marked(ground: Ground, name: str, applied: Object) -> Object:
    """The node as it would be: what the dry run says, and what is patched after it."""
    live, (labels, taints) = ground.nodes[name], ground.marks[name]
    before = ground.before.nodes.get(name, NodeMarks())
    taken, gone = overwritten(live, labels), left_over(applied, labels, before.labels)
    then = applied
    if taken or gone:
        rest = {key: value for key, value in (then["metadata"].get("labels") or {}).items() if key not in gone}
        then = {**then, "metadata": {**then["metadata"], "labels": {**rest, **taken}}}
    patch = taints_patch(live, taints, [taint for taint in before.taints if taint not in taints])
    return {**then, "spec": {**then.get("spec", {}), "taints": patch["spec"]["taints"]}} if patch else then


def _change(key: ObjectKey, live: Object | None, then: Object) -> ObjectChange:
    before, after = shown(live), shown(then)
    if before == after:
        return ObjectChange(key=key, how="unchanged")
    diff = unified(before.encode() if live else None, after.encode(), str(key))
    return ObjectChange(key=key, how="changed" if live else "created", diff=diff)


def _rejected(key: ObjectKey, error: Object | ApiError) -> Problem:
    assert isinstance(error, ApiError)
    if "FieldManagerConflict" in error.causes:
        return Problem(what=f"{key}: {error.what}", fix="have its other manager give that field up, or use its value")
    immutable = error.status == 422 and "immutable" in error.what
    fix = f"it cannot be changed in place: delete {key}, and apply again" if immutable else error.fix
    return Problem(what=f"{key}: {error.what}", fix=_webhook_fix(error.what) or fix or "fix that in gpunode.yml")


def _webhook_fix(text: str) -> str:
    """What to do where an admission webhook denies a change, or does not answer; "" where none is involved."""
    if "webhook" not in text:
        return ""
    where = "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"
    if "failed calling webhook" in text:
        return f"the webhook does not answer: look at its service and pods ({where} names them)"
    return f"a policy of this cluster forbids it: ask who maintains the webhook ({where} names it)"
