"""Prove on a cluster that its GPUs can be used: proof pods in a namespace of their own, gone again afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from gpunode.core.errors import GpunodeError, RefusedError, UnreachableError
from gpunode.core.kube.checks.preflight import Right, mig_state, node_names
from gpunode.core.kube.checks.proof_rules import NAMESPACE, Proof, Seen, is_done, judge
from gpunode.core.kube.checks.proofs import allocatable, namespace_object, node_proofs, offers, proofs
from gpunode.core.kube.checks.ready import WORKLOADS, gates
from gpunode.core.kube.cluster import MIG_LABEL, Object, Pool
from gpunode.core.kube.owned import Key, is_ours, key_of
from gpunode.core.kube.render import Rendered
from gpunode.core.kube.render.device_plugin import plugin_configs
from gpunode.core.kube.usage import Usage, Use
from gpunode.core.model import Check, HostOutcome, HostResult
from gpunode.core.sharing.rules import cuts
from gpunode.edge.isolate import as_error, isolated
from gpunode.edge.kube.apply import apply, await_gone, pod_warning, wait_ready
from gpunode.edge.kube.client import Api, ApiError
from gpunode.edge.kube.preflight import missing_rights
from gpunode.edge.kube.status import read_usage

Notify = Callable[[str], None]
_NAMESPACE = Key("v1", "Namespace", "", NAMESPACE)
ACCOUNT_SECONDS = 60.0  # until Kubernetes has made the account of a new namespace
GONE_SECONDS = 180.0
GATE_SECONDS = 20.0  # until a controller has let a new pod go
OFFER_SECONDS = 30.0  # until a kubelet reports the GPUs of a device plugin that has just started
LIST_SECONDS = 60.0  # until nvidia-smi has listed the GPUs of a container
RETRY_SECONDS = 35.0  # until a device plugin that did not find its MPS control daemon has tried again


@dataclass(frozen=True, kw_only=True)
class ProofOptions:
    """Without `smoke` nothing is started; `keep` leaves the pods of failed proofs.  `timeout` seconds for each proof.

    `each_node`: pods of one pool's every node, too; nodes after more than `max_failures` that failed are not tried.
    """

    smoke: bool = True
    keep: bool = False
    timeout: float = 300
    each_node: bool = False
    max_failures: int | None = None


def verify(api: Api, rendered: Rendered, options: ProofOptions | None = None, *, notify: Notify) -> list[HostResult]:
    """What `gpunode kube verify` reports: the cluster as a whole, then each pool, and each node where that is asked."""
    how = options or ProofOptions()
    if rendered.problems:
        raise RefusedError(rendered.problems[0].what, fix=rendered.problems[0].fix)
    first, more = _alone("cluster", partial(_cluster, api, rendered, notify)), list[Check]()
    odd: dict[str, None] = {}  # objects that could not be read, each once

    def pools(run: _Runner | None) -> list[HostResult]:
        known = rendered.cluster.pools
        found = [_alone(f"pool {pool.name}", partial(_pool, api, rendered, pool, run, odd, notify)) for pool in known]
        return [*found, *(_each_node(api, rendered, run, how, notify) if run and how.each_node else ())]

    if how.smoke:
        with _namespace(api, keep=how.keep, notify=notify) as more:
            results = pools(_Runner(api, how.timeout, how.keep, notify))
    else:
        results = pools(None)
    more = [*(Check(id="kube.object", status="failed", message=text) for text in odd), *more]
    return [_result(first.host, [*first.checks, *more], refused=first.outcome == "refused"), *results]


def _alone(name: str, call: Callable[[], HostResult]) -> HostResult:
    """The result of the cluster or of one pool; what goes wrong there is its result, and the others have theirs.

    Raises UnreachableError and RefusedError: no other pool would get further.
    """
    found = isolated(name, call)
    if isinstance(found, UnreachableError | RefusedError):
        raise found
    if isinstance(found, GpunodeError):
        check = Check(id="kube.error", status="failed", message=found.what, fix=found.fix)
        return HostResult(host=name, outcome=found.outcome, message=found.what, checks=(check,))
    return found


# ---------------------------------------------------------------- the cluster, and a pool


def _cluster(api: Api, rendered: Rendered, notify: Notify) -> HostResult:
    """What was rendered is applied, and ready."""
    applied = apply(api, rendered, dry_run=True, notify=notify)
    checks = [Check(id="kube.problem", status="failed", message=p.what, fix=p.fix) for p in applied.problems]
    differ = [change for change in applied.changes if change.how not in ("unchanged", "kept")]
    for change in differ:
        text = f"{change.key} would be {change.how}"
        checks.append(Check(id="kube.applied", status="failed", message=text, fix="gpunode kube apply --dry-run"))
    if not checks:
        text = f"{len(applied.changes)} objects are as gpunode.yml asks for"
        checks.append(Check(id="kube.applied", status="passed", message=text))
    there = [change.key for change in applied.changes if change.how in ("unchanged", "changed")]
    for key in (key for key in there if key.kind in WORKLOADS):
        (why,) = wait_ready(api, [key], 0, notify) or ("",)
        status = Check(id="kube.ready", status="failed", message=why, fix=f"kubectl -n {key.namespace} get pods")
        checks.append(status if why else Check(id="kube.ready", status="passed", message=f"{key} is ready"))
    return _result("cluster", checks, refused=bool(applied.problems))


def _pool(
    api: Api, rendered: Rendered, pool: Pool, run: _Runner | None, odd: dict[str, None], notify: Notify
) -> HostResult:
    notify(f"pool {pool.name}: looking at what it offers")
    nodes = api.items("/api/v1/nodes", odd=[]) if pool.hosts or cuts(pool.sharing) else []
    names, lost = node_names(pool.hosts, nodes) if pool.hosts else ({}, [])
    patience = OFFER_SECONDS + (RETRY_SECONDS if pool.sharing.strategy == "mps" else 0)
    found, there, offered = _settled(api, rendered, pool, names, min(patience, run.timeout) if run else 0)
    odd |= dict.fromkeys(found.errors)
    checks = [Check(id="kube.node", status="failed", message=p.what, fix=p.fix) for p in lost]
    mine = [node for node in nodes if not pool.has_known_nodes or node["metadata"]["name"] in names.values()]
    checks += _mig(pool, mine)
    checks.append(offered)
    if run and there:
        for proof in proofs(rendered.cluster, pool, there):
            checks.append(run.prove(proof) if isinstance(proof, Proof) else proof)
            notify(f"pool {pool.name}: {checks[-1].id}: {checks[-1].status}")
    return _result(f"pool {pool.name}", checks)


def _settled(
    api: Api, rendered: Rendered, pool: Pool, names: Mapping[str, str], seconds: float
) -> tuple[Usage, list[tuple[str, Use]], Check]:
    """What the pool offers, and the check of it; asked again for so many seconds while it offers too little."""
    deadline = api.clock() + seconds
    while True:
        found = read_usage(api, configs=plugin_configs(rendered.cluster))
        there = _offered(pool, found, names)
        offered = allocatable(pool, there, names, found) if pool.hosts or not pool.selector else _no_node(pool)
        if offered.status != "failed" or api.clock() >= deadline:
            return found, there, offered
        api.pause(1)


def _mig(pool: Pool, nodes: list[Object]) -> Iterator[Check]:
    """That the layout is in force where a label asks for one: of NVIDIA's MIG manager, or of our own unit."""
    labelled = [node for node in nodes if MIG_LABEL in (node["metadata"].get("labels") or {})]
    if not cuts(pool.sharing) or not labelled:
        return
    wrong = [f"{node['metadata']['name']}: {text}" for node in labelled if (text := mig_state(node))]
    if wrong:
        yield Check(
            id="kube.mig", status="failed", message="; ".join(wrong[:5]), fix="the log of its MIG manager's pod"
        )
    else:
        yield Check(id="kube.mig", status="passed", message=f"the MIG layout is in force on {len(labelled)} nodes")


def _no_node(pool: Pool) -> Check:
    """A pool of a cloud may have no node for now."""
    text, fix = f"no node of the cluster is chosen by {pool.selector!r}", "kubectl get nodes --show-labels"
    return Check(id="kube.allocatable", status="not-proven", message=text, fix=fix)


def _each_node(api: Api, rendered: Rendered, run: _Runner, how: ProofOptions, notify: Notify) -> list[HostResult]:
    """A result for every node that offers what its pool's sharing should, pool by pool."""
    found = read_usage(api, configs=plugin_configs(rendered.cluster))
    nodes = api.items("/api/v1/nodes", odd=[])
    todo = [
        (pool, name, [(node, use) for node, use in there if node == name])
        for pool in rendered.cluster.pools
        for there in [_offered(pool, found, node_names(pool.hosts, nodes)[0])]
        for name in sorted({node for node, _ in there})
    ]
    results: list[HostResult] = []
    for number, (pool, name, there) in enumerate(todo, 1):
        failed = sum(result.outcome == "failed" for result in results)
        if how.max_failures is not None and failed > how.max_failures:
            text = f"not tried: {failed} nodes failed before (--max-failures {how.max_failures})"
            checks = (Check(id="kube.node-proof", status="not-proven", message=text),)
            results.append(HostResult(host=f"node {name}", message=text, checks=checks))
            continue
        notify(f"node {name} (pool {pool.name}, {number} of {len(todo)})")
        results.append(_alone(f"node {name}", partial(_node, rendered, pool, name, there, run)))
        notify(f"node {name}: {results[-1].message}")
    return results


def _node(rendered: Rendered, pool: Pool, name: str, there: list[tuple[str, Use]], run: _Runner) -> HostResult:
    planned = node_proofs(rendered.cluster, pool, there)
    return _result(f"node {name}", [run.prove(one) if isinstance(one, Proof) else one for one in planned])


def _offered(pool: Pool, found: Usage, names: Mapping[str, str]) -> list[tuple[str, Use]]:
    return [(node, use) for node, use in offers(pool, found, names) if use.total]


def _result(host: str, checks: list[Check], *, refused: bool = False) -> HostResult:
    failed = {check.id for check in checks if check.status == "failed"}
    count = sum(check.status == "failed" for check in checks)
    outcome: HostOutcome = "ok" if not failed else "pending" if failed == {"kube.applied"} else "failed"
    message = f"{count} of {len(checks)} checks failed" if failed else f"{len(checks)} checks"
    return HostResult(host=host, outcome="refused" if refused else outcome, message=message, checks=tuple(checks))


# ---------------------------------------------------------------- one proof


class _Runner:
    """Starts a proof's objects, waits, reads, judges and deletes them, whatever happens."""

    def __init__(self, api: Api, timeout: float, keep: bool, notify: Notify) -> None:
        self.api, self.timeout, self.keep, self.notify = api, timeout, keep, notify

    def prove(self, proof: Proof) -> Check:
        self.notify(f"{proof.id}: {proof.title}")
        keys = [key_of(item) for item in proof.objects]
        check = None
        try:
            for key, item in zip(keys, proof.objects, strict=True):
                self.api.apply(key, item, force=False)
            check = judge(proof, self._seen(proof))
        except UnreachableError:
            raise
        except Exception as cause:
            error = as_error(cause)
            check = Check(id=proof.id, status="failed", message=f"{proof.title}: {error.what}", fix=error.fix)
        finally:
            if not (self.keep and check and check.status == "failed"):
                self._delete(keys, proof)
        return check

    def _seen(self, proof: Proof) -> Seen:
        deadline = self.api.clock() + self.timeout
        pods: list[Object | None] = []
        for name in proof.pods:
            last: list[Object | None] = [None]

            def until(live: Object | None, last: list[Object | None] = last) -> bool | None:
                last[0] = live
                return True if is_done(proof.until, live) else None

            held = min(self.timeout, GATE_SECONDS)  # a queue that lets pods of no queue go does so at once
            self.api.follow(_pod(name), until, max(0.0, deadline - self.timeout + held - self.api.clock()))
            if not (last[0] and (is_done(proof.until, last[0]) or gates(last[0]))):
                self.api.follow(_pod(name), until, max(0.0, deadline - self.api.clock()))
            pods.append(last[0])
        waits = [n for n, live in zip(proof.pods, pods, strict=True) if live and not is_done(proof.until, live)]
        claims = [key_of(item) for item in proof.objects if item["kind"] == "ResourceClaim"]
        return Seen(
            pods=tuple(pods),
            claims=tuple(self.api.find(self.api.path(key)) for key in claims),
            logs=tuple(self._log(name, proof, deadline) for name in proof.pods),
            warnings={name: pod_warning(self.api, NAMESPACE, name) for name in waits},
        )

    def _log(self, name: str, proof: Proof, deadline: float) -> str:
        """What the pod wrote.  One that runs on has to list its GPUs first, which takes the driver some seconds."""
        if proof.until == "unschedulable":
            return ""
        last = min(deadline, self.api.clock() + LIST_SECONDS)
        try:
            while not (log := self.api.log(NAMESPACE, name)) and proof.lists_gpus and self.api.clock() < last:
                self.api.pause(0.5)
            return log
        except ApiError as error:
            return error.what  # no log yet: what the pod says of itself tells more

    def _delete(self, keys: list[Key], proof: Proof) -> None:
        """So that the next proof finds the GPUs free; what does not go now goes with the namespace."""
        try:
            for key in reversed(keys):
                self.api.delete(key)
            await_gone(self.api, [_pod(name) for name in proof.pods], 60)
        except GpunodeError as error:
            self.notify(error.what)


def _pod(name: str) -> Key:
    return Key("v1", "Pod", NAMESPACE, name)


# ---------------------------------------------------------------- the namespace


@contextmanager
def _namespace(api: Api, *, keep: bool, notify: Notify) -> Iterator[list[Check]]:
    """The namespace for the proofs; afterwards it is gone, and the list says so.  Raises RefusedError."""
    rights = [Right("create", "", "namespaces"), Right("delete", "", "namespaces")]
    rights += [Right(verb, "", "pods", NAMESPACE) for verb in ("create", "patch", "get", "list", "delete")]
    rights += [Right("get", "", "pods/log", NAMESPACE), Right("list", "", "nodes"), Right("list", "", "pods")]
    if problems := missing_rights(api, rights):
        raise RefusedError(problems[0].what, fix=problems[0].fix)
    live = api.find(api.path(_NAMESPACE))
    if live and not is_ours(live):
        raise RefusedError(f"the namespace {NAMESPACE} is not gpunode's", fix="delete it, or move what is in it")
    if live:
        notify(f"the namespace {NAMESPACE} is left over from an earlier run: deleting it")
        _clear(api)
    cleaned: list[Check] = []
    api.apply(_NAMESPACE, namespace_object(), force=False)
    try:
        account = Key("v1", "ServiceAccount", NAMESPACE, "default")
        if not api.follow(account, lambda found: True if found else None, ACCOUNT_SECONDS):
            raise GpunodeError(
                f"the namespace {NAMESPACE} got no account `default` in {ACCOUNT_SECONDS:g} s",
                fix="is kube-controller-manager running?",
            )
        yield cleaned
    finally:
        if not keep:
            notify(f"deleting the namespace {NAMESPACE}")
            cleaned.append(_cleaned(api))


def _cleaned(api: Api) -> Check:
    try:
        _clear(api)
    except GpunodeError as error:
        return Check(id="kube.cleaned-up", status="failed", message=error.what, fix=f"kubectl delete ns {NAMESPACE}")
    return Check(id="kube.cleaned-up", status="passed", message=f"the namespace {NAMESPACE} is gone")


def _clear(api: Api) -> None:
    live = api.find(api.path(_NAMESPACE))
    if live and not live["metadata"].get("deletionTimestamp"):  # a second deletion would be a conflict
        api.delete(_NAMESPACE)
    await_gone(api, [_NAMESPACE], GONE_SECONDS)
