"""The cluster's side of an apply, read before anything is changed: what is there, what we may do, what would become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpunode.core.diff import unified
from gpunode.core.errors import GpunodeError
from gpunode.core.model import Problem
from gpunode.kube.core.applied import ObjectChange
from gpunode.kube.core.checks.preflight import (
    GPU_OPERATOR,
    Right,
    cdi_problems,
    foreign_problem,
    memory_claim,
    memory_problems,
    needs_cdi,
    node_names,
    other_problems,
    pod_security_problem,
    selector_problems,
    server_problems,
)
from gpunode.kube.core.cluster import Object
from gpunode.kube.core.marks import left_over, node_key, node_labels, overwritten, taints_patch
from gpunode.kube.core.owned import (
    INVENTORY_LABELS,
    Inventory,
    NodeMarks,
    ObjectKey,
    digest,
    inventory_key,
    is_ours,
    key_of,
    parse_inventory,
    serves_as_ours,
    shown,
)
from gpunode.kube.core.render import Rendered
from gpunode.kube.edge.client import Api, ApiError

Marks = tuple[dict[str, str], tuple[str, ...]]  # labels, and taints as KEY=VALUE:EFFECT


@dataclass(kw_only=True)
class Ground:
    """What apply builds on: live objects by key, the nodes to mark, and what an earlier apply recorded."""

    wanted: dict[ObjectKey, Object]
    live: dict[ObjectKey, Object | None] = field(default_factory=dict)
    pool_nodes: list[str] = field(default_factory=list)  # that the inventory names
    kept: list[ObjectKey] = field(default_factory=list)  # somebody else's, and as we need them
    nodes: dict[str, Object] = field(default_factory=dict)
    marks: dict[str, Marks] = field(default_factory=dict)
    before: Inventory = field(default_factory=Inventory)
    places: list[ObjectKey] = field(default_factory=list)  # the inventories that were found
    stale: tuple[ObjectKey, ...] = ()
    changes: list[ObjectChange] = field(default_factory=list)  # what apply would do

    @property
    def after(self) -> Inventory:
        """What will be ours."""
        objects = tuple(key for key in self.wanted if key not in self.kept)
        nodes = {name: NodeMarks(labels=tuple(labels), taints=taints) for name, (labels, taints) in self.marks.items()}
        digests = {key: digest(self.wanted[key]) for key in objects}
        return Inventory(objects=objects, nodes=nodes, digests=digests)


def look(api: Api, rendered: Rendered) -> tuple[Ground, list[Problem]]:
    """Everything that must hold, in an order in which one mistake is not reported as many.  Changes nothing."""
    ground = Ground(wanted={key_of(item): item for item in rendered.objects})
    namespace = rendered.cluster.spec.namespace
    for problems in (_server(api, rendered), rendered.problems, _kinds(api, rendered)):
        if found := list(problems):
            return ground, found
    try:
        ground.before, ground.places = inventories(api, namespace)
    except ApiError as error:  # whoever may not read ConfigMaps sees all that is lacking, not this alone
        if error.status == 403 and (found := missing_rights(api, _rights(api, rendered, ground))):
            return ground, found
        raise
    ground.stale = ground.before.without(ground.wanted)
    found = missing_rights(api, _rights(api, rendered, ground))
    found = found or [*_objects(api, ground), *_nodes(api, rendered, ground), *_others(api, rendered, ground)]
    found += _memory_shares(api, rendered)
    return ground, found or list(_rehearse(api, ground))


# ---------------------------------------------------------------- server, kinds, rights


def _server(api: Api, rendered: Rendered) -> Iterator[Problem]:
    stated = rendered.cluster.spec.server_version
    yield from server_problems(
        rendered.cluster.server, stated, f"{api.server} (context {api.context or 'of this pod'})"
    )


def _kinds(api: Api, rendered: Rendered) -> Iterator[Problem]:
    lacking: dict[str, list[str]] = {}
    for version, kind in dict.fromkeys((item["apiVersion"], item["kind"]) for item in rendered.objects):
        if api.resource(version, kind) is None:
            lacking.setdefault(version, []).append(kind)
    for version, kinds in lacking.items():
        operator = version.startswith("monitoring.coreos.com/")
        yield Problem(
            what=f"the server does not serve {', '.join(kinds)} of {version}",
            fix="install the Prometheus operator, or set kubernetes.monitoring.prometheus_operator: false"
            if operator
            else "kubectl api-resources; is the server's version the one that was rendered for?",
        )


def _memory_shares(api: Api, rendered: Rendered) -> Iterator[Problem]:
    """Whether the server keeps shares of a device's memory, by a dry run; nothing for who may not make claims."""
    asked = memory_claim(rendered.cluster)
    if not asked:
        return
    if api.resource(asked["apiVersion"], asked["kind"]) is None:
        yield Problem(
            what=f"the server does not serve {asked['kind']} of {asked['apiVersion']}",
            fix="kubectl api-resources; is DRA turned off on kube-apiserver (DynamicResourceAllocation)?",
        )
        return
    try:
        kept = api.apply(key_of(asked), asked, force=False, dry_run=True)
    except ApiError as error:
        if error.status != 403:
            raise
        return
    yield from memory_problems(rendered.cluster, kept)


def inventories(api: Api, namespace: str) -> tuple[Inventory, list[ObjectKey]]:
    """What was applied before, wherever: the namespace may have been another one.  Raises RefusedError."""
    name = "app.kubernetes.io/name"
    try:
        found = api.items("/api/v1/configmaps", labelSelector=f"{name}={INVENTORY_LABELS[name]}")
    except ApiError as error:
        if error.status != 403:
            raise
        one = api.find(api.path(inventory_key(namespace)))
        found = [one] if one else []
    before = Inventory()
    for item in found:
        before += parse_inventory(item)
    return before, [inventory_key(item["metadata"]["namespace"]) for item in found]


def _rights(api: Api, rendered: Rendered, ground: Ground) -> Iterator[Right]:
    for key in (*ground.wanted, inventory_key(rendered.cluster.spec.namespace)):
        for verb in ("get", "create", "patch"):
            yield right_of(api, key, verb)
    for key in ground.stale:
        if api.resource(key.api, key.kind):
            yield right_of(api, key, "delete")
    known = any(pool.has_known_nodes for pool in rendered.cluster.pools)
    if known or ground.before.nodes or needs_cdi(rendered.cluster):
        yield Right("list", "", "nodes")
    if any(request.hosts for request in rendered.nodes) or ground.before.nodes:
        yield Right("patch", "", "nodes")


def right_of(api: Api, key: ObjectKey, verb: str) -> Right:
    """The right to do this to that object."""
    resource = api.resource(key.api, key.kind)
    if resource is None:
        raise GpunodeError(f"the server does not serve {key.api} {key.kind}", fix="kubectl api-resources")
    return Right(verb, resource.group, resource.plural, key.namespace if resource.namespaced else "")


def missing_rights(api: Api, rights: Iterable[Right]) -> list[Problem]:
    """One problem that names all rights that we lack."""
    lacking = [
        str(right)
        for right in dict.fromkeys(rights)
        if not api.allowed(verb=right.verb, group=right.group, resource=right.resource, namespace=right.namespace)
    ]
    if not lacking:
        return []
    return [
        Problem(
            what=f"{api.context or 'this account'} may not {'; '.join(lacking)}",
            fix="ask the cluster's administrator for these rights (cluster-admin has them), or use another --context",
        )
    ]


# ---------------------------------------------------------------- what is there


def _objects(api: Api, ground: Ground) -> Iterator[Problem]:
    for key, wanted in ground.wanted.items():
        live = ground.live[key] = api.find(api.path(key))
        if live is None:
            continue
        if live["metadata"].get("deletionTimestamp"):
            yield Problem(what=f"{key} is being deleted", fix="wait until it is gone, then apply again")
        elif not is_ours(live):
            if serves_as_ours(wanted, live):
                ground.kept.append(key)
            else:
                yield foreign_problem(key, live)
        elif found := pod_security_problem(key, live):
            yield found
    for key in ground.stale:
        ground.live[key] = api.find(api.path(key)) if api.resource(key.api, key.kind) else None


def _others(api: Api, rendered: Rendered, ground: Ground) -> Iterator[Problem]:
    try:
        policies = api.items(GPU_OPERATOR) if api.resource("nvidia.com/v1", "ClusterPolicy") else []
        daemon_sets = api.items("/apis/apps/v1/daemonsets")
    except ApiError as error:
        if error.status != 403:
            raise
        return  # whoever may not look sees no problem
    yield from other_problems(rendered, daemon_sets, policies, [ground.nodes[name] for name in ground.pool_nodes])


def _nodes(api: Api, rendered: Rendered, ground: Ground) -> Iterator[Problem]:
    hosts = [host for pool in rendered.cluster.pools for host in pool.hosts]
    spec = rendered.cluster.spec
    selects = spec.node_selector or spec.runtime_class.node_selector
    if not (hosts or ground.before.nodes or selects or needs_cdi(rendered.cluster)):
        return
    nodes = api.items("/api/v1/nodes")
    ground.nodes = {node["metadata"]["name"]: node for node in nodes}
    yield from selector_problems(rendered.cluster, nodes, rendered.nodes)
    names, lost = node_names(hosts, nodes)
    yield from lost
    ground.pool_nodes = sorted(set(names.values()))
    by_plugin = {names.get(host, "") for pool in rendered.cluster.plugin_pools for host in pool.hosts}
    yield from cdi_problems(rendered.cluster, nodes, sorted(filter(None, by_plugin)))
    for request in rendered.nodes:
        ground.marks |= {names[host]: (request.labels, request.taints) for host in request.hosts if host in names}


# ---------------------------------------------------------------- what would become of it


def _rehearse(api: Api, ground: Ground) -> Iterator[Problem]:
    """Every change as the server's own dry run: its validation, admission, quota and rules of rights all speak."""
    fresh = {key.name for key, live in ground.live.items() if key.kind == "Namespace" and live is None}
    for key, wanted in ground.wanted.items():
        live = ground.live[key]
        if key in ground.kept:
            ground.changes.append(ObjectChange(key=key, how="kept", why="somebody else's, and as it is needed"))
            continue
        try:
            # nothing can be rehearsed in a namespace that is not there yet
            new = key.namespace in fresh
            then = wanted if new else api.apply(key, wanted, force=live is not None, dry_run=True)
        except ApiError as error:
            if not _beyond_rehearsal(ground, wanted, error):
                yield _rejected(key, error)
                continue
            then = wanted
        ground.changes.append(_change(key, live, then))
    yield from _rehearse_nodes(api, ground)
    for key in ground.stale:
        live = ground.live[key]
        if live is not None and is_ours(live):
            ground.changes.append(ObjectChange(key=key, how="deleted", why="no longer wanted"))


def _beyond_rehearsal(ground: Ground, wanted: Object, error: ApiError) -> bool:
    """Whether only the dry run fails: a binding whose role is still to be made, a webhook that knows no dry runs."""
    role = wanted.get("roleRef", {}).get("name", "")
    fresh = any(key.kind.endswith("Role") and key.name == role and live is None for key, live in ground.live.items())
    return (error.status == 404 and fresh) or "does not support dry run" in error.what


def _rehearse_nodes(api: Api, ground: Ground) -> Iterator[Problem]:
    for name, (labels, taints) in marks_to_set(ground).items():
        live = ground.nodes[name]
        taken = overwritten(live, labels)
        plain = {key: value for key, value in labels.items() if key not in taken}
        try:
            then = api.apply(node_key(name), node_labels(live, plain), force=False, dry_run=True)
        except ApiError as error:
            yield _rejected(node_key(name), error)
            continue
        gone = left_over(then, labels, ground.before.nodes.get(name, NodeMarks()).labels)
        after = {key: value for key, value in (then["metadata"].get("labels") or {}).items() if key not in gone}
        if taken or gone:
            then = {**then, "metadata": {**then["metadata"], "labels": {**after, **taken}}}
        patch = taints_patch(live, taints, stale_taints(ground, name))
        if patch:
            then = {**then, "spec": {**then.get("spec", {}), "taints": patch["spec"]["taints"]}}
        ground.changes.append(_change(node_key(name), live, then))


def marks_to_set(ground: Ground) -> dict[str, Marks]:
    """Node → our labels and taints; empty ones remove what was put on a node that is no longer wanted."""
    gone: dict[str, Marks] = {name: ({}, ()) for name in ground.before.nodes if name in ground.nodes}
    return {**gone, **ground.marks}


def stale_taints(ground: Ground, node: str) -> tuple[str, ...]:
    before = ground.before.nodes.get(node, NodeMarks())
    _, wanted = ground.marks.get(node, ({}, ()))
    return tuple(taint for taint in before.taints if taint not in wanted)


def _change(key: ObjectKey, live: Object | None, then: Object) -> ObjectChange:
    before, after = shown(live), shown(then)
    if before == after:
        return ObjectChange(key=key, how="unchanged")
    diff = unified(before.encode() if live else None, after.encode(), str(key))
    return ObjectChange(key=key, how="changed" if live else "created", diff=diff)


def _rejected(key: ObjectKey, error: ApiError) -> Problem:
    if "FieldManagerConflict" in error.causes:
        return Problem(what=f"{key}: {error.what}", fix="let whoever manages that field give it up, or agree with it")
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


def strangers(api: Api, namespace: str, ours: Sequence[ObjectKey]) -> list[str]:
    """What lives in the namespace that is not ours and not made for what is: reasons not to delete it."""
    mine = {key.same for key in ours}
    found = []
    for version, kind in _LIVES_IN_NAMESPACES:
        resource = api.resource(version, kind)
        for item in api.items(f"{resource.base}/namespaces/{namespace}/{resource.plural}") if resource else []:
            metadata = item["metadata"]
            key = ObjectKey(version, kind, namespace, metadata["name"])
            made = metadata.get("ownerReferences") or (kind, metadata["name"]) in _BY_KUBERNETES
            token = item.get("type") == "kubernetes.io/service-account-token"
            if not (made or token or is_ours(item) or key.same in mine or metadata.get("deletionTimestamp")):
                found.append(str(key))
    return found


_LIVES_IN_NAMESPACES = (
    ("v1", "Pod"), ("v1", "ConfigMap"), ("v1", "Secret"), ("v1", "Service"), ("v1", "ServiceAccount"),
    ("v1", "PersistentVolumeClaim"), ("apps/v1", "Deployment"), ("apps/v1", "DaemonSet"), ("apps/v1", "StatefulSet"),
    ("batch/v1", "Job"), ("batch/v1", "CronJob"),
)  # fmt: skip
_BY_KUBERNETES = (  # and by OpenShift and Istio, in every namespace
    ("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default"),
    ("ConfigMap", "openshift-service-ca.crt"), ("ServiceAccount", "builder"), ("ServiceAccount", "deployer"),
    ("ConfigMap", "istio-ca-root-cert"),
)  # fmt: skip
