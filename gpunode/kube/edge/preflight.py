"""The cluster's side of an apply, read before anything is changed: what is there, what we may do, what would become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from gpunode.core.model import Problem
from gpunode.kube.core.api_error import ApiError, DeniedError
from gpunode.kube.core.checks.preflight import (
    GPU_OPERATOR,
    Right,
    memory_claim,
    needs_cdi,
    other_problems,
    pool_nodes,
    server_problems,
)
from gpunode.kube.core.cluster import Object
from gpunode.kube.core.ground import (
    Ground,
    Rehearsal,
    ground_problems,
    held_problems,
    planned_changes,
    rehearsal_problems,
    right_problems,
    to_rehearse,
)
from gpunode.kube.core.owned import (
    INVENTORY_LABELS,
    Inventory,
    ObjectKey,
    inventory_key,
    is_ours,
    key_of,
    parse_inventory,
)
from gpunode.kube.core.render import Rendered
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.status import read_usage


def look(api: Api, rendered: Rendered) -> tuple[Ground, list[Problem]]:
    """What apply builds on, and all that stands against it: read once, judged, rehearsed.  Changes nothing."""
    if problems := problems_at_once(api, rendered):
        return Ground(rendered=rendered, account=_account(api)), problems
    ground = read_ground(api, rendered)
    if problems := ground_problems(ground):
        return ground, problems
    rehearsal = _rehearse(api, ground)
    ground.changes = planned_changes(ground, rehearsal)
    return ground, [*rehearsal_problems(ground, rehearsal), *held_problems(ground)]


def problems_at_once(api: Api, rendered: Rendered) -> list[Problem]:
    """Another cluster than the spec's, or what no cluster can have: known before anything is read."""
    where = f"{api.server} (context {api.context or 'of this pod'})"
    cluster = rendered.cluster
    return [*server_problems(cluster.server, cluster.spec.server_version, where)] or [*rendered.problems]


def read_ground(api: Api, rendered: Rendered) -> Ground:
    """All of it; where kinds are not served, or rights are lacking, no more than that.  Raises GpunodeError."""
    ground = Ground(rendered=rendered, account=_account(api))
    for version, kind in dict.fromkeys((key.api, key.kind) for key in ground.wanted):
        if api.resource(version, kind) is None:
            ground.unserved.setdefault(version, []).append(kind)
    if ground.unserved:
        return ground
    denied = None
    try:
        ground.before, ground.places = inventories(api, rendered.cluster.spec.namespace)
    except DeniedError as error:  # whoever may not read ConfigMaps sees all that is lacking, not this alone
        denied = error
    ground.lacking = _lacking(api, _rights(api, ground))
    _read_claim(api, ground)
    if ground.lacking:
        return ground
    if denied:
        raise denied
    for key in (*ground.wanted, *ground.stale):
        ground.live[key] = api.live(key)
    with suppress(DeniedError):
        ground.nodes = {node["metadata"]["name"]: node for node in api.items("/api/v1/nodes")}
    with suppress(DeniedError):  # nothing for who may not look
        ground.others = others(api, ground.rendered, list(ground.nodes.values()))
        ground.usage = read_usage(api)
    return ground


def others(api: Api, rendered: Rendered, nodes: Sequence[Object]) -> list[Problem]:
    """Who else hands out the GPUs of our nodes, or cuts them.  Raises DeniedError."""
    policies = api.items(GPU_OPERATOR) if api.resource("nvidia.com/v1", "ClusterPolicy") else []
    chosen = {name for pool in rendered.cluster.pools for name in pool_nodes(pool, nodes)}
    ours = [node for node in nodes if node["metadata"]["name"] in chosen]
    return list(other_problems(rendered, api.items("/apis/apps/v1/daemonsets"), policies, ours))


def _read_claim(api: Api, ground: Ground) -> None:
    """Whether the server keeps shares of a device's memory, by a dry run; nothing for who may not make claims."""
    claim = memory_claim(ground.rendered.cluster)
    if not claim:
        return
    ground.claims_served = api.resource(claim["apiVersion"], claim["kind"]) is not None
    if ground.claims_served:
        with suppress(DeniedError):
            ground.claim = api.apply(key_of(claim), claim, force=False, dry_run=True)


def _rehearse(api: Api, ground: Ground) -> Rehearsal:
    """Every change as the server's own dry run."""
    answers: dict[ObjectKey, Object | ApiError] = {}
    for key, body in to_rehearse(ground).items():
        try:
            answers[key] = api.apply(key, body, force=ground.live.get(key) is not None, dry_run=True)
        except ApiError as error:
            answers[key] = error
    return answers


def inventories(api: Api, namespace: str) -> tuple[Inventory, list[ObjectKey]]:
    """What was applied before, wherever: the namespace may have been another one.  Raises RefusedError."""
    name = "app.kubernetes.io/name"
    try:
        listed = api.items("/api/v1/configmaps", labelSelector=f"{name}={INVENTORY_LABELS[name]}")
    except DeniedError:
        one = api.live(inventory_key(namespace))
        listed = [one] if one else []
    before = Inventory()
    for item in listed:
        before += parse_inventory(item)
    return before, [inventory_key(item["metadata"]["namespace"]) for item in listed]


# ---------------------------------------------------------------- rights


def _rights(api: Api, ground: Ground) -> Iterator[Right]:
    cluster = ground.rendered.cluster
    for key in (*ground.wanted, inventory_key(cluster.spec.namespace)):
        for verb in ("get", "create", "patch"):
            yield right_of(api, key, verb)
    for key in ground.stale:
        if api.resource(key.api, key.kind):
            yield right_of(api, key, "delete")
    known = any(pool.has_known_nodes for pool in cluster.pools)
    if known or ground.before.nodes or needs_cdi(cluster):
        yield Right("list", "", "nodes")
    if any(wish.pool.hosts for wish in ground.rendered.nodes) or ground.before.nodes:
        yield Right("patch", "", "nodes")


def right_of(api: Api, key: ObjectKey, verb: str) -> Right:
    """The right to do this to that object."""
    resource = api.resource_of(key)
    return Right(verb, resource.group, resource.plural, key.namespace if resource.namespaced else "")


def missing_rights(api: Api, rights: Iterable[Right]) -> list[Problem]:
    """One problem that names all rights that we lack."""
    return right_problems(_account(api), _lacking(api, rights))


def _lacking(api: Api, rights: Iterable[Right]) -> list[Right]:
    return [
        right
        for right in dict.fromkeys(rights)
        if not api.allowed(verb=right.verb, group=right.group, resource=right.resource, namespace=right.namespace)
    ]


def _account(api: Api) -> str:
    return api.context or "this account"


# ---------------------------------------------------------------- what is in a namespace


def strangers(api: Api, namespace: str, ours: Sequence[ObjectKey]) -> list[str]:
    """What lives in the namespace that is not ours and not made for what is: reasons not to delete it."""
    mine = {key.same for key in ours}
    others = []
    for version, kind in _LIVES_IN_NAMESPACES:
        resource = api.resource(version, kind)
        for item in api.items(f"{resource.base}/namespaces/{namespace}/{resource.plural}") if resource else []:
            metadata = item["metadata"]
            key = ObjectKey(version, kind, namespace, metadata["name"])
            made = metadata.get("ownerReferences") or (kind, metadata["name"]) in _BY_KUBERNETES
            token = item.get("type") == "kubernetes.io/service-account-token"
            if not (made or token or is_ours(item) or key.same in mine or metadata.get("deletionTimestamp")):
                others.append(str(key))
    return others


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
