"""Whether a cluster is as gpunode.yml says, by reading; and with proof pods, in a namespace of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from gpunode.core.errors import GpunodeError, InputError, RefusedError, UnreachableError
from gpunode.core.late import dataclass, replace
from gpunode.core.model import ENDS, Check, HostResult, counted_checks, outcome_of
from gpunode.edge.isolate import as_error, isolated
from gpunode.kube.core.api_error import ApiError
from gpunode.kube.core.checks.preflight import Right
from gpunode.kube.core.checks.proof_rules import NAMESPACE, Proof, ProofOutcome, is_done, judge
from gpunode.kube.core.checks.proofs import closed_nodes, node_proofs, pool_proofs
from gpunode.kube.core.checks.ready import gates, unschedulable
from gpunode.kube.core.cluster import OWNED, POD_SECURITY, PROVEN, UNPROVEN, Cluster, Object, Pool
from gpunode.kube.core.gate import has_taint, waiting_check
from gpunode.kube.core.judge import ClusterReading, checks_of, findings
from gpunode.kube.core.owned import ObjectKey, is_ours, key_of
from gpunode.kube.core.render import Rendered
from gpunode.kube.core.usage import Use
from gpunode.kube.edge.apply import await_gone, mark_node
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.pods import pod_warning
from gpunode.kube.edge.preflight import missing_rights, problems_at_once
from gpunode.kube.edge.reading import read

Notify = Callable[[str], None]
_NAMESPACE = ObjectKey("v1", "Namespace", "", NAMESPACE)
PATIENCE = 60.0  # for kubelets to report the GPUs of a device plugin that has just started, or waits for MPS
ACCOUNT_SECONDS = 60.0  # until Kubernetes has made the account of a new namespace
GONE_SECONDS = 180.0
SOON_SECONDS = 20.0  # until a controller has let a new pod go, and the scheduler has found a node for it
LIST_SECONDS = 60.0  # until nvidia-smi has listed the GPUs of a container


@dataclass(frozen=True, kw_only=True)
class ProofOptions:
    """How much is proven."""

    smoke: bool = False  # start pods that use GPUs, on each node; else the cluster is only read
    keep: bool = False  # the pods of failed proofs
    timeout: float = 300  # seconds for each proof
    max_failures: int | None = None  # nodes after more than so many that failed are not tried
    unproven: bool = False  # only the nodes that have the taint of kubernetes.gate
    patience: float = PATIENCE  # seconds in which what may pass by itself is waited for


def verify(api: Api, rendered: Rendered, options: ProofOptions | None = None, *, notify: Notify) -> list[HostResult]:
    """What `gpunode kube verify` reports: the cluster as a whole; with `smoke` also each pool, and each node."""
    how, gate = options or ProofOptions(), rendered.cluster.spec.gate
    if problems := problems_at_once(api, rendered):
        raise RefusedError(problems[0].what, fix=problems[0].fix)
    if how.unproven and not gate:
        raise InputError("--unproven is for the taint of kubernetes.gate", expected="kubernetes: {gate: true}")
    notify("reading the cluster")
    reading, checks = settled(api, rendered, how.patience)
    if not how.smoke:
        return [_result("cluster", [*checks, *([waiting_check(reading.nodes)] if gate else [])])]
    with _namespace(api, rendered.cluster, keep=how.keep, notify=notify) as cleaned:
        run = _Runner(api, how.timeout, how.keep, notify)
        pools = [] if how.unproven else list(_pools(rendered, reading, run))
        nodes = _each_node(rendered, reading, run, how, notify)
    found = ((result.host, check) for result in nodes for check in result.checks if check.status == "passed")
    opened = [host.removeprefix("node ") for host, check in found if check.id == "kube.opened"]
    waiting = [waiting_check(reading.nodes, opened)] if gate else []
    return [_result("cluster", [*checks, *waiting, *cleaned]), *pools, *nodes]


def settled(api: Api, rendered: Rendered, patience: float) -> tuple[ClusterReading, list[Check]]:
    """A reading and its checks, read again for so many seconds while what is wrong may pass by itself."""
    deadline = api.clock() + patience
    while True:
        reading, unread = read(api, rendered)
        found = findings(reading)
        lasting = not any(one.passing and one.check != "kube.waiting" for one in found)
        if lasting or api.clock() >= deadline:
            checks = [*checks_of(reading, found)]
            return reading, [*checks, *(Check(id="kube.unread", status="not-proven", message=one) for one in unread)]
        api.pause(1)


def _proven(name: str, planned: Iterable[Proof | Check], run: _Runner) -> HostResult:
    """The result of one pool or node; what goes wrong there is its result, and the others have theirs.

    Raises UnreachableError and RefusedError: no other one would get further.
    """
    proven = (run.prove(one) if isinstance(one, Proof) else one for one in planned)
    result = isolated(name, lambda: _result(name, list(proven)))
    if isinstance(result, UnreachableError | RefusedError):
        raise result
    if isinstance(result, GpunodeError):
        check = Check(id="kube.error", status="failed", message=result.what, fix=result.fix)
        return HostResult(host=name, outcome=result.outcome, message=result.what, checks=(check,))
    return result


# ---------------------------------------------------------------- the cluster, pools and nodes


def _usable(rendered: Rendered, reading: ClusterReading, pool: Pool) -> tuple[list[tuple[str, Use]], str]:
    """(node, use) of what a pool offers where a proof pod may run; why there is none."""
    there = [(node, use) for node, use in reading.offers_of(pool) if use.total]
    closed = closed_nodes(rendered.cluster, reading.nodes)
    free = [(node, use) for node, use in there if node not in closed]
    shut = ", ".join(f"{node} ({closed[node]})" for node in dict.fromkeys(node for node, _ in there) if node in closed)
    return free, "" if free else f"no proof pod may run: {shut}" if shut else "no node that is Ready offers its GPUs"


def _pools(rendered: Rendered, reading: ClusterReading, run: _Runner) -> Iterator[HostResult]:
    """What one node of a pool is enough for: shares of the same GPU, requests that are too large."""
    for pool in rendered.cluster.pools:
        there, why = _usable(rendered, reading, pool)
        planned = pool_proofs(rendered.cluster, pool, there) if there else [_unproven("kube.pool-proof", why)]
        yield _proven(f"pool {pool.name}", planned, run)


def _each_node(
    rendered: Rendered, reading: ClusterReading, run: _Runner, how: ProofOptions, notify: Notify
) -> list[HostResult]:
    """Whether pods can use the GPUs of every node, pool by pool."""
    tainted = {node["metadata"]["name"] for node in reading.nodes if has_taint(node)}
    todo = [
        (pool, name, [(node, use) for node, use in there if node == name])
        for pool in rendered.cluster.pools
        for there, _ in [_usable(rendered, reading, pool)]
        for name in sorted({node for node, _ in there})
        if not how.unproven or name in tainted
    ]
    faulty = {one.about for one in findings(reading) if one.check in ("kube.node", "kube.gpus", "kube.mig")}
    results: list[HostResult] = []
    for number, (pool, name, there) in enumerate(todo, 1):
        failed = sum(result.outcome == "failed" for result in results)
        if how.max_failures is not None and failed > how.max_failures:
            text = f"not tried: {failed} nodes failed before (--max-failures {how.max_failures})"
            results.append(HostResult(host=f"node {name}", message=text, checks=(_unproven("kube.node-proof", text),)))
            continue
        notify(f"node {name} (pool {pool.name}, {number} of {len(todo)})")
        planned = node_proofs(rendered.cluster, pool, there)
        result = _proven(f"node {name}", planned, run)
        results.append(_gated(run.api, name, result, faulty) if rendered.cluster.spec.gate else result)
        notify(f"node {name}: {results[-1].message}")
    return results


def _gated(api: Api, name: str, result: HostResult, faulty: Collection[str]) -> HostResult:
    """The node opened to other pods where all of its proofs passed; one whose proof failed loses our label.

    `faulty`: what was found wrong by reading, such as a node that offers fewer GPUs than it has.
    """
    passed = bool(result.checks) and all(check.status == "passed" for check in result.checks)
    proven = passed and f"node {name}" not in faulty  # what is not proven leaves it where it is
    if not proven and result.outcome != "failed":
        return result
    found = isolated(name, lambda: mark_node(api, name, label=proven, taint=not proven))
    if isinstance(found, GpunodeError):
        check = Check(id="kube.opened", status="failed", message=found.what, fix=found.fix)
    elif not found:
        check = Check(id="kube.opened", status="failed", message="the node has left the cluster since its proof")
    elif proven:
        check = Check(id="kube.opened", status="passed", message=f"labelled {PROVEN}, without the taint {UNPROVEN}")
    else:
        return result
    return _result(result.host, [*result.checks, check])


def _unproven(found: str, why: str) -> Check:
    return Check(id=found, status="not-proven", message=why)


def _result(host: str, checks: list[Check]) -> HostResult:
    counts = counted_checks(checks, *ENDS)
    message = f"{len(checks)} checks{f', {counts}' if counts else ''}"
    return HostResult(host=host, outcome=outcome_of(checks), message=message, checks=tuple(checks))


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
            check = judge(proof, self._outcome(proof))
        except UnreachableError:
            raise
        except Exception as cause:
            error = as_error(cause)
            check = Check(id=proof.id, status="failed", message=f"{proof.title}: {error.what}", fix=error.fix)
        finally:
            if not (self.keep and check and check.status == "failed"):
                self._delete(keys, proof)
        return check

    def _outcome(self, proof: Proof) -> ProofOutcome:
        deadline = self.api.clock() + self.timeout
        pods: list[Object | None] = []
        for name in proof.pods:
            last: list[Object | None] = [None]

            def until(live: Object | None, last: list[Object | None] = last) -> bool | None:
                last[0] = live
                return True if is_done(proof.until, live) else None

            # a queue lets pods of no queue go at once, and a scheduler that has no node for one says so at once
            soon = max(0.0, deadline - self.timeout + min(self.timeout, SOON_SECONDS) - self.api.clock())
            self.api.follow(_pod(name), until, soon)
            live = last[0]
            if not (live and (is_done(proof.until, live) or gates(live) or unschedulable(live))):
                self.api.follow(_pod(name), until, max(0.0, deadline - self.api.clock()))
            pods.append(last[0])
        waits = [n for n, live in zip(proof.pods, pods, strict=True) if live and not is_done(proof.until, live)]
        claims = [key_of(item) for item in proof.objects if item["kind"] == "ResourceClaim"]
        return ProofOutcome(
            pods=tuple(pods),
            claims=tuple(self.api.live(key) for key in claims),
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

    def _delete(self, keys: list[ObjectKey], proof: Proof) -> None:
        """So that the next proof finds the GPUs free; what does not go now goes with the namespace."""
        try:
            for key in reversed(keys):
                self.api.delete(key)
            await_gone(self.api, [_pod(name) for name in proof.pods], 60)
        except GpunodeError as error:
            self.notify(error.what)


def _pod(name: str) -> ObjectKey:
    return ObjectKey("v1", "Pod", NAMESPACE, name)


# ---------------------------------------------------------------- the namespace


@contextmanager
def _namespace(api: Api, cluster: Cluster, *, keep: bool, notify: Notify) -> Iterator[list[Check]]:
    """The namespace for the proofs; afterwards it is gone, and the list says so.  Raises RefusedError."""
    rights = [Right("create", "", "namespaces"), Right("delete", "", "namespaces")]
    rights += [Right(verb, "", "pods", NAMESPACE) for verb in ("create", "patch", "get", "list", "delete")]
    rights += [Right("get", "", "pods/log", NAMESPACE), Right("list", "", "nodes"), Right("list", "", "pods")]
    rights += [Right("patch", "", "nodes")] if cluster.spec.gate else []
    secrets = [ObjectKey("v1", "Secret", cluster.spec.namespace, name) for name in cluster.spec.images.pull_secrets]
    rights += [Right("get", "", "secrets", cluster.spec.namespace)] if secrets else []
    rights += [Right(verb, "", "secrets", NAMESPACE) for verb in ("create", "patch") if secrets]
    if problems := missing_rights(api, rights):
        raise RefusedError(problems[0].what, fix=problems[0].fix)
    live = api.live(_NAMESPACE)
    if live and not is_ours(live):
        raise RefusedError(f"the namespace {NAMESPACE} is not gpunode's", fix="delete it, or move what is in it")
    if live:
        notify(f"the namespace {NAMESPACE} is left over from an earlier run: deleting it")
        _clear(api)
    cleaned: list[Check] = []
    labels = {**OWNED, "app.kubernetes.io/part-of": "gpunode", POD_SECURITY: "baseline"}
    own = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    api.apply(_NAMESPACE, own, force=False)
    try:
        account = ObjectKey("v1", "ServiceAccount", NAMESPACE, "default")
        if not api.follow(account, lambda found: True if found else None, ACCOUNT_SECONDS):
            raise GpunodeError(
                f"the namespace {NAMESPACE} got no account `default` in {ACCOUNT_SECONDS:g} s",
                fix="is kube-controller-manager running?",
            )
        for secret in secrets:  # a pod pulls by those of its own namespace alone
            if live := api.live(secret):
                metadata = {"name": secret.name, "namespace": NAMESPACE, "labels": OWNED}
                api.apply(replace(secret, namespace=NAMESPACE), {**live, "metadata": metadata}, force=False)
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
    live = api.live(_NAMESPACE)
    if live and not live["metadata"].get("deletionTimestamp"):  # a second deletion would be a conflict
        api.delete(_NAMESPACE)
    await_gone(api, [_NAMESPACE], GONE_SECONDS)
