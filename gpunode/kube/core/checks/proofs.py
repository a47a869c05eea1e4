"""Pods that prove that a cluster's GPUs can be used: what is started for each pool, and what counts as proof.

A proof is planned from the usage at hand, so that it fits; where nothing is free it stays unproven, which is no
failure.  The edge starts the objects, waits for `until`, and asks `judge` what came of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpunode.core.model import Check
from gpunode.core.spec.kubernetes import SharingSpec
from gpunode.kube.core.checks.proof_rules import NAMESPACE, Proof
from gpunode.kube.core.cluster import OWNED, Cluster, Object, Pool, required_affinity, tolerations
from gpunode.kube.core.objects import pod, selector
from gpunode.kube.core.placing import untolerated
from gpunode.kube.core.render.dra import DRIVER, claim, claim_template
from gpunode.kube.core.render.gpushare import MEMORY
from gpunode.kube.core.render.plugin_config import shared_resources
from gpunode.kube.core.usage import Use

IMAGE = "cuda-sample"
_MIB_OF_GIB = 1024
_OF_A_NODE = ("kube.vectoradd", "kube.which-gpu", "kube.dra-claim")
_LIST = ("sh", "-c", "nvidia-smi -L && exec sleep 3600")  # nvidia-smi comes from the host, with the driver


def closed_nodes(cluster: Cluster, nodes: Sequence[Object]) -> dict[str, str]:
    """Node → why no proof pod may run there: it is cordoned, or has a taint that the pods do not tolerate."""
    closed = {}
    for node in nodes:
        if (node.get("spec") or {}).get("unschedulable"):
            closed[node["metadata"]["name"]] = "cordoned"
        elif foreign := untolerated(node, tolerations(cluster)):
            closed[node["metadata"]["name"]] = f"taint {', '.join(foreign)}"
    return closed


# ---------------------------------------------------------------- plans


def proofs(cluster: Cluster, pool: Pool, there: Sequence[tuple[str, Use]]) -> Iterator[Proof | Check]:
    """The proofs of one pool, or for what cannot be proven now why not."""
    if pool.sharing.strategy == "dra":
        memory = pool.sharing.dra.shares == "memory"
        yield from _memory_proofs(cluster, there) if memory else _dra_proofs(cluster, there)
        return
    gpushare = pool.sharing.strategy == "gpushare"
    one = 1024 if gpushare and any(use.unit == "MiB" for _, use in there) else 1  # GiB
    node, use = max(there, key=lambda at: at[1].most)
    if use.most < one:
        ids = ("kube.vectoradd", "kube.which-gpu")
        yield from (_busy(found, f"all {use.resource} are in use") for found in ids)
    else:
        limits = {use.resource: str(one)}
        adds = Proof(id="kube.vectoradd", title="a pod adds two vectors on a GPU", until="ended", rule="passed")
        yield _with_pods(adds, cluster, node, [limits])
        one_gpu = "a container gets exactly one GPU"
        yield _with_pods(
            Proof(id="kube.which-gpu", title=one_gpu, until="running", rule="one-gpu"), cluster, node, [limits]
        )
    if pool.sharing.replicas > 1:
        yield _shared(cluster, pool.sharing, there)
    if gpushare:
        yield from _gpushare_proofs(cluster, there, one)
    else:
        most, node = max((other.total, name) for name, other in there if other.resource == use.resource)
        yield _too_large(cluster, "kube.too-many-stays-pending", node, use.resource, most + 1)


def pool_proofs(cluster: Cluster, pool: Pool, there: Sequence[tuple[str, Use]]) -> Iterator[Proof | Check]:
    """What one node of the pool is enough for."""
    yield from (proof for proof in proofs(cluster, pool, there) if proof.id not in _OF_A_NODE)


def node_proofs(cluster: Cluster, pool: Pool, there: Sequence[tuple[str, Use]]) -> Iterator[Proof | Check]:
    """Whether pods can use the GPUs of one node, of which `there` is what it offers."""
    yield from (proof for proof in proofs(cluster, pool, there) if proof.id in _OF_A_NODE)


def _shared(cluster: Cluster, sharing: SharingSpec, there: Sequence[tuple[str, Use]]) -> Proof | Check:
    """One pod more than the node has GPUs: two of them must share one."""
    check, shared = "kube.shared-gpu", shared_resources(sharing)
    fits = [(use.total // sharing.replicas + 1, node, use)
            for node, use in there if use.resource.removesuffix(".shared") in shared]  # fmt: skip
    fits = [(count, node, use) for count, node, use in fits if use.free >= count]
    if not fits:
        return _busy(check, "no node has one share more free than it has GPUs")
    count, node, use = min(fits, key=lambda fit: fit[0])
    limits = [{use.resource: "1"}] * count
    proof = Proof(id=check, title=f"{count} pods on {count - 1} GPUs", until="running", rule="shared")
    return _with_pods(proof, cluster, node, limits)


def _too_large(cluster: Cluster, found: str, node: str, resource: str, amount: int) -> Proof:
    """More than the largest node of the pool has; on that node, as one of another pool may have it."""
    title = f"a request of {amount} {resource} stays Pending"
    proof = Proof(id=found, title=title, until="unschedulable", rule="pending")
    return _with_pods(proof, cluster, node, [{resource: str(amount)}])


def _gpushare_proofs(cluster: Cluster, there: Sequence[tuple[str, Use]], unit: int) -> Iterator[Proof | Check]:
    """3 + 5 of a GPU's memory; more than the largest GPU has; a StatefulSet that is packed onto one GPU."""
    card, node = max(((gpu.total, name) for name, use in there for gpu in use.gpus), default=(0, there[0][0]))
    check = "kube.gpushare-two-pods"
    fit = next(((node, use) for node, use in there if use.most >= 8 * unit), None)
    if fit:
        limits = [{MEMORY: str(3 * unit)}, {MEMORY: str(5 * unit)}]
        title = f"pods with {3 * unit} and {5 * unit} {fit[1].unit} run side by side"
        size = (max(gpu.total for gpu in fit[1].gpus),)
        proof = Proof(id=check, title=title, until="running", rule="cards", expected=size)
        yield _with_pods(proof, cluster, fit[0], limits)
    else:
        yield _busy(check, f"no GPU has {8 * unit} {there[0][1].unit} of memory free")
    yield _too_large(cluster, "kube.gpushare-too-large-stays-pending", node, MEMORY, card + 1)
    yield _binpack(cluster, there, 3 * unit)


def _binpack(cluster: Cluster, there: Sequence[tuple[str, Use]], each: int) -> Proof | Check:
    check = "kube.gpushare-binpack"
    fits = [(node, packed({gpu.name: gpu.total - gpu.allocated for gpu in use.gpus}, each, 3)) for node, use in there]
    node, expected = next((fit for fit in fits if fit[1]), ("", ()))
    if not expected:
        return _busy(check, f"no node has room for three pods of {each} {there[0][1].unit}")
    name = "binpack"
    labels = {**selector(f"verify-{name}"), **OWNED}
    template = _spec(cluster, node, {MEMORY: str(each)}, hold=True)
    del template["restartPolicy"]  # a StatefulSet's pods always start again
    spec = {
        "serviceName": name, "replicas": 3, "podManagementPolicy": "Parallel", "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": template},
    }  # fmt: skip
    item = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": _metadata(name), "spec": spec}
    return Proof(
        id=check,
        title=f"three pods of {each} {there[0][1].unit} are packed",
        objects=(item,),
        pods=tuple(f"{name}-{i}" for i in range(3)),
        until="running",
        rule="packed",
        expected=expected,
    )


def packed(free: Mapping[str, int], size: int, count: int) -> tuple[int, ...]:
    """Pods by card as the extender packs them: each on the card with the least memory left that has room.

    https://github.com/AliyunContainerService/gpushare-scheduler-extender pkg/cache/nodeinfo.go; () when one has none.

    >>> packed({"0": 16, "1": 16}, 3, 3), packed({"0": 4, "1": 16}, 3, 3), packed({"0": 2}, 3, 1)
    ((3,), (2, 1), ())
    """
    left = dict(free)
    on: Counter[str] = Counter()
    for _ in range(count):
        room = [name for name, memory in left.items() if memory >= size]
        if not room:
            return ()
        card = min(room, key=lambda name: left[name])
        left[card] -= size
        on[card] += 1
    return tuple(sorted(on.values(), reverse=True))


def _dra_proofs(cluster: Cluster, there: Sequence[tuple[str, Use]]) -> Iterator[Proof | Check]:
    node = next((name for name, use in there if use.resource == f"{DRIVER}/gpu" and use.free), "")
    if not node:
        yield _busy("kube.dra-claim", "no whole GPU of the DRA driver is free")
        return
    api = cluster.knowledge.api("ResourceClaimTemplate", cluster.server)
    yield _by_template(cluster, node, claim_template(api, "gpu", DRIVER), "a pod gets a GPU by a claim")


def _by_template(cluster: Cluster, node: str, template: Object, title: str) -> Proof:
    named = {**template, "metadata": _metadata(template["metadata"]["name"])}
    item = _claims(cluster, node, "dra-claim", {"resourceClaimTemplateName": named["metadata"]["name"]}, hold=False)
    return Proof(
        id="kube.dra-claim", title=title, objects=(named, item), pods=("dra-claim",), until="ended", rule="passed",
    )  # fmt: skip


def _memory_proofs(cluster: Cluster, there: Sequence[tuple[str, Use]]) -> Iterator[Proof | Check]:
    """A GiB that adds vectors; 3 + 5 GiB; a GiB more than the largest GPU has.  Of devices that are whole GPUs."""
    api = cluster.knowledge.api("ResourceClaimTemplate", cluster.server)
    gpus = [(node, use) for node, use in there if use.resource == f"{DRIVER}/gpu"]
    free = [(node, use.most // _MIB_OF_GIB) for node, use in gpus]
    one = next((node for node, gap in free if gap >= 1), "")
    if one:
        template = claim_template(api, "gpu", DRIVER, memory="1Gi")
        yield _by_template(cluster, one, template, "a pod gets a GiB of a GPU by a claim")
    else:
        yield _busy("kube.dra-claim", "no GPU of the DRA driver has a GiB of memory free")
    both = next((node for node, gap in free if gap >= 8), "")
    if both:
        proof = Proof(
            id="kube.dra-memory-two-pods", title="pods with 3 and 5 GiB run side by side",
            until="running", rule="claimed", expected=(3, 5),
        )  # fmt: skip
        yield _with_claims(proof, cluster, both, api)
    else:
        yield _busy("kube.dra-memory-two-pods", "no GPU has 8 GiB of memory free")
    if gpus:
        most, node = max((gpu.total, name) for name, use in gpus for gpu in use.gpus)
        more = most // _MIB_OF_GIB + 1
        proof = Proof(
            id="kube.dra-memory-too-large-stays-pending", title=f"a claim for {more} GiB stays Pending",
            until="unschedulable", rule="pending", expected=(more,),
        )  # fmt: skip
        yield _with_claims(proof, cluster, node, api)


def _with_claims(proof: Proof, cluster: Cluster, node: str, api: str) -> Proof:
    """The proof with a pod on that node, and its claim of the same name, for each GiB of `expected`."""
    base = proof.id.removeprefix("kube.")
    objects: list[Object] = []
    for size in proof.expected:
        name = f"{base}-{size}"
        objects.append({**claim(api, name, DRIVER, memory=f"{size}Gi"), "metadata": _metadata(name)})
        objects.append(_claims(cluster, node, name, {"resourceClaimName": name}, hold=True))
    return replace(proof, objects=tuple(objects), pods=tuple(f"{base}-{size}" for size in proof.expected))


def _claims(cluster: Cluster, node: str, name: str, source: Mapping[str, str], *, hold: bool) -> Object:
    """A pod on that node that has a claim."""
    spec = _spec(cluster, node, {}, hold=hold)
    spec["resourceClaims"] = [{"name": "gpu", **source}]
    spec["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(name), "spec": spec}


def _busy(found: str, why: str) -> Check:
    return Check(id=found, status="not-proven", message=why, fix="run it again when GPUs are free")


def _with_pods(proof: Proof, cluster: Cluster, node: str, limits: Sequence[Mapping[str, str]]) -> Proof:
    """The proof with a pod on that node for each of `limits`."""
    name = proof.id.removeprefix("kube.")
    names = tuple(name if len(limits) == 1 else f"{name}-{i}" for i in range(len(limits)))
    hold = proof.until != "ended"
    items = tuple(
        {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(n), "spec": _spec(cluster, node, limit, hold=hold)}
        for n, limit in zip(names, limits, strict=True)
    )
    return replace(proof, objects=items, pods=names)


def _metadata(name: str) -> Object:
    return {"name": name, "namespace": NAMESPACE, "labels": {**selector(f"verify-{name}"), **OWNED}}


def _spec(cluster: Cluster, node: str, limits: Mapping[str, str], *, hold: bool) -> Object:
    """A pod that the scheduler may put on this node only; `hold`: it lists its GPUs and stays."""
    main: Object = {"name": "cuda", "image": cluster.image(IMAGE), "imagePullPolicy": cluster.spec.images.pull_policy}
    main |= {"command": list(_LIST)} if hold else {}
    main |= {"resources": {"limits": dict(limits)}} if limits else {}
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    return pod(
        cluster,
        containers=[main],
        restartPolicy="Never",
        terminationGracePeriodSeconds=1,
        automountServiceAccountToken=False,
        affinity=required_affinity({"matchFields": fields}),
    )
