"""Apply what was rendered, and take it away again: rehearsed as a whole, done in order, reported when it breaks."""

from __future__ import annotations

from collections.abc import Callable

from gpunode.core.errors import GpunodeError, InterruptedByUser
from gpunode.core.late import dataclass, field, replace
from gpunode.kube.core.api_error import ApiError, DeniedError
from gpunode.kube.core.applied import Applied, How, ObjectChange
from gpunode.kube.core.checks.ready import WORKLOADS, Readiness, deletion_waits_for, readiness
from gpunode.kube.core.cluster import MIG_LABEL, PROVEN, UNPROVEN, Object
from gpunode.kube.core.gate import gate_patch, has_taint
from gpunode.kube.core.ground import Ground, former_gpus
from gpunode.kube.core.judge import additions, again, not_offering
from gpunode.kube.core.marks import left_over, node_key, node_labels, overwritten, taints_patch
from gpunode.kube.core.owned import MANAGER, Inventory, NodeMarks, ObjectKey, inventory_key, inventory_object, is_ours
from gpunode.kube.core.render import Rendered
from gpunode.kube.core.render.mig import LAYOUTS
from gpunode.kube.edge.client import Api
from gpunode.kube.edge.pods import unready
from gpunode.kube.edge.preflight import inventories, look, missing_rights, right_of, strangers
from gpunode.kube.edge.reading import read

Notify = Callable[[str], None]
# A ConfigMap is renewed in pods after the kubelet's sync period (1 min) and the delay of its cache:
# https://kubernetes.io/docs/concepts/configuration/configmap/#mounted-configmaps-are-updated-automatically
LAYOUTS_SECONDS = 90.0
GONE_SECONDS = 120.0  # that a deletion may take


@dataclass(kw_only=True)
class _Run:
    """The work, and what was done of it so far: that stays true when the rest breaks."""

    api: Api
    notify: Notify
    dry_run: bool = False
    changes: list[ObjectChange] = field(default_factory=list)
    left: list[ObjectKey] = field(default_factory=list)

    def add(self, key: ObjectKey, how: How, why: str = "") -> None:
        self.changes.append(ObjectChange(key=key, how=how, why=why))
        if key in self.left:
            self.left.remove(key)

    def carry_out(self, work: Callable[[], None]) -> GpunodeError | None:
        """Do the work; what stopped it."""
        try:
            work()
        except GpunodeError as error:
            return error
        except KeyboardInterrupt:
            return InterruptedByUser("interrupted", fix="run the same command again: it continues where it stopped")
        return None


def apply(
    api: Api, rendered: Rendered, *, dry_run: bool = False, wait: bool = True, timeout: float = 300, notify: Notify
) -> Applied:
    """Make the cluster what was rendered.  With problems nothing is changed; waits `timeout` seconds for readiness."""
    notify("looking at the cluster, rehearsing")
    ground, problems = look(api, rendered)
    notes = _notes(ground, news=any(change.how not in ("kept", "unchanged") for change in ground.changes))
    mine = [(key, live) for key, live in ground.live.items() if live and is_ours(live)]
    # what others added to the pods of our workloads server-side apply leaves there
    notes += tuple(f"{key}: {text}, which stays; {again(key)}" for key, live in mine for text in additions(live))
    if problems or dry_run:
        changes = () if problems and not dry_run else tuple(ground.changes)  # nothing is changed beside a problem
        return Applied(problems=tuple(problems), changes=changes, notes=notes, dry_run=dry_run)
    run = _Run(api=api, notify=notify)
    run.left = [change.key for change in ground.changes if change.how not in ("kept", "unchanged")]
    error = run.carry_out(lambda: _apply_all(run, rendered.cluster.spec.namespace, ground))
    waiting: list[str] = []
    if not error and wait:
        error = run.carry_out(lambda: waiting.extend(_await_all(api, rendered, ground, timeout, notify)))
    left = tuple(run.left) if error else ()
    return Applied(changes=tuple(run.changes), notes=notes, waiting=tuple(waiting), left=left, error=error)


def _apply_all(run: _Run, namespace: str, ground: Ground) -> None:
    planned = {change.key: change.how for change in ground.changes}
    first = [key for key in ground.wanted if key.kind == "Namespace"]  # the inventory lives in it
    for key in first:
        _apply_one(run, ground, key, planned[key])
    _record(run.api, ground.before + ground.after, namespace)
    early = [key for key in ground.wanted if (key.kind, key.name) == ("ConfigMap", LAYOUTS)]
    for key in early:
        _apply_one(run, ground, key, planned[key])
    if any(planned[key] in ("created", "changed") for key in early):
        _let_layouts_arrive(run, ground)
    for name, (labels, taints) in ground.marks.items():
        _mark(run.api, name, labels, taints, ground.before.nodes.get(name, NodeMarks()))
        run.add(node_key(name), planned[node_key(name)])
    for key in ground.wanted:
        if key not in (*first, *early):
            _apply_one(run, ground, key, planned[key])
    stays = tuple(key for key in ground.stale if not _delete_ours(run, key, ground.stale))
    _record(run.api, Inventory(objects=stays) + ground.after, namespace)
    for place in ground.places:
        if place != inventory_key(namespace):
            run.api.delete(place)


def _let_layouts_arrive(run: _Run, ground: Ground) -> None:
    """Before nodes are labelled: a MIG manager that has not got a layout yet fails, and does not try again."""
    waits = [
        name
        for name, (labels, _) in ground.marks.items()
        if labels.get(MIG_LABEL) != (ground.nodes[name]["metadata"].get("labels") or {}).get(MIG_LABEL)
    ]
    if waits:
        run.notify(f"{LAYOUTS}: {LAYOUTS_SECONDS:g} s until the kubelets have given it to the MIG managers")
        run.api.pause(LAYOUTS_SECONDS)


def _apply_one(run: _Run, ground: Ground, key: ObjectKey, planned: How) -> None:
    if planned not in ("kept", "unchanged"):
        run.notify(f"{key}: applying")
        try:
            run.api.apply(key, ground.wanted[key], force=ground.live[key] is not None)
        except ApiError as error:
            error.what = f"{key}: {error.what}"
            raise
    run.add(key, planned)


def _record(api: Api, inventory: Inventory, namespace: str) -> None:
    api.apply(inventory_key(namespace), inventory_object(inventory, namespace), force=True)


# ---------------------------------------------------------------- nodes


def _mark(api: Api, name: str, labels: dict[str, str], taints: tuple[str, ...], before: NodeMarks) -> None:
    """Labels by server-side apply (ours are then exactly these), taints with the rest of their list."""
    stale = tuple(taint for taint in before.taints if taint not in taints)
    node = api.live(node_key(name))
    if node is None:
        return  # it left the cluster meanwhile
    if taken := overwritten(node, labels):
        api.merge(node_key(name), {"metadata": {"labels": taken}})
    applied = api.apply(node_key(name), node_labels(node, labels), force=False)
    if gone := left_over(applied, labels, before.labels):
        api.merge(node_key(name), {"metadata": {"labels": dict.fromkeys(gone)}})
    api.change(node_key(name), lambda live: taints_patch(live, taints, stale))


def mark_node(api: Api, name: str, *, label: bool, taint: bool) -> bool:
    """Give or take the label of kubernetes.gate, and take its taint unless it is to stay; is there such a node?"""
    return api.change(node_key(name), lambda node: gate_patch(node, label=label, taint=taint)) is not None


def _gated(api: Api, notify: Notify) -> list[str]:
    """The nodes that have that label or taint; without the right to list nodes none, and a notice that they stay."""
    try:
        nodes = [(node["metadata"], has_taint(node)) for node in api.items("/api/v1/nodes")]
        return [one["name"] for one, tainted in nodes if tainted or PROVEN in (one.get("labels") or {})]
    except DeniedError:
        notify(f"nodes may not be listed: those with the taint {UNPROVEN} or the label {PROVEN} keep it")
        return []


# ---------------------------------------------------------------- waiting


def _await_all(api: Api, rendered: Rendered, ground: Ground, timeout: float, notify: Notify) -> tuple[str, ...]:
    deadline = api.clock() + timeout
    waiting = wait_ready(api, [key for key in ground.after.objects if key.kind in WORKLOADS], timeout, notify)
    cluster = replace(rendered.cluster, gpus={**former_gpus(ground), **rendered.cluster.gpus})
    return (*waiting, *_await_offers(api, replace(rendered, cluster=cluster), deadline, notify))


def _await_offers(api: Api, rendered: Rendered, deadline: float, notify: Notify) -> tuple[str, ...]:
    """Wait until each node offers what its pool should: a device plugin that is ready may have found no GPU."""
    printed: list[str] = []
    while True:
        try:
            reading, _ = read(api, rendered)
        except DeniedError as error:
            notify(f"not known whether the nodes offer their GPUs: {error.what}")
            return ()
        lacking = not_offering(reading)
        texts = tuple(f"{one.about}: {one.message} ({one.fix})" for one in lacking)
        if not lacking or api.clock() >= deadline or not any(one.passing for one in lacking):
            return texts
        waits = [f"waiting for {one.about}: {one.message}" for one in lacking]
        for text in (one for one in waits if one not in printed):
            notify(text)
        printed = waits
        api.pause(2)


def wait_ready(api: Api, workloads: list[ObjectKey], timeout: float, notify: Notify) -> tuple[str, ...]:
    """Wait until all are ready; why those are not that are not ready in time."""
    deadline = api.clock() + timeout
    waiting, known = [], dict[str, ObjectKey]()
    for key in workloads:
        last: list[Readiness] = []

        def judge(live: Object | None, key: ObjectKey = key, last: list[Readiness] = last) -> Readiness | None:
            now = readiness(live)
            if not last or last[-1] != now:
                notify(f"{key}: {now.text}")
            last.append(now)
            return now if now.ready or now.failed else None

        found = api.follow(key, judge, max(0.0, deadline - api.clock()))
        if found is None or found.failed:
            waiting.append(f"{key} is not ready: {unready(api, key, api.live(key), known) or last[-1].text}")
    return tuple(waiting)


# ---------------------------------------------------------------- taking away


def remove(
    api: Api, namespace: str, *, dry_run: bool = False, timeout: float = GONE_SECONDS, notify: Notify
) -> Applied:
    """Take away everything that apply recorded, in the reverse order, and what it put on nodes."""
    try:
        before, places = inventories(api, namespace)
    except DeniedError:
        if found := missing_rights(api, [right_of(api, inventory_key(namespace), "get")]):
            return Applied(problems=tuple(found), dry_run=dry_run)
        raise
    keys = before.without(())
    served = [key for key in keys if api.resource(key.api, key.kind)]
    rights = [right_of(api, key, verb) for key in (*served, *places) for verb in ("get", "delete")]
    gated = _gated(api, notify)
    rights += [right_of(api, node_key(""), "patch")] if before.nodes or gated else []
    if problems := missing_rights(api, rights):
        return Applied(problems=tuple(problems), dry_run=dry_run)
    nodes = tuple(dict.fromkeys((*before.nodes, *gated)))
    run = _Run(api=api, notify=notify, dry_run=dry_run, left=[*map(node_key, nodes), *served, *places])
    error = run.carry_out(lambda: _remove_all(run, before, nodes, tuple(served), tuple(places), timeout))
    return Applied(changes=tuple(run.changes), left=tuple(run.left) if error else (), error=error, dry_run=dry_run)


def _remove_all(
    run: _Run,
    before: Inventory,
    nodes: tuple[str, ...],
    served: tuple[ObjectKey, ...],
    places: tuple[ObjectKey, ...],
    timeout: float,
) -> None:
    for name in nodes:
        if not run.dry_run:
            mark_node(run.api, name, label=False, taint=False)
            if name in before.nodes:
                _mark(run.api, name, {}, (), before.nodes[name])
            _forget(run.api, name)
        run.add(node_key(name), "changed", "our labels and taints taken off")
    namespaces = [key for key in served if key.kind == "Namespace"]
    for key in (*(key for key in served if key not in namespaces), *places, *namespaces):
        _delete_ours(run, key, (*served, *places))
    if not run.dry_run:
        await_gone(run.api, [change.key for change in run.changes if change.how == "deleted"], timeout)


def _forget(api: Api, name: str) -> None:
    """Take our entry off the node's managedFields."""

    def patch(node: Object) -> Object | None:
        entries = node["metadata"].get("managedFields") or []
        rest = [entry for entry in entries if entry.get("manager") != MANAGER]
        return {"metadata": {"managedFields": rest}} if rest and len(rest) < len(entries) else None

    api.change(node_key(name), patch)


def _delete_ours(run: _Run, key: ObjectKey, ours: tuple[ObjectKey, ...]) -> bool:
    """Delete one object if it is still ours and nothing foreign is in it; False where it stays ours to delete."""
    live = run.api.live(key)
    if live is None:
        return True
    if not is_ours(live):
        run.add(key, "kept", "it no longer says that it is gpunode's")
        return True
    if key.kind == "Namespace" and (others := strangers(run.api, key.name, ours)):
        run.add(key, "kept", f"it holds what is not gpunode's: {', '.join(others[:5])}")
        return False
    run.notify(f"{key}: deleting")
    going = live["metadata"].get("deletionTimestamp")  # a second deletion of a namespace would be a conflict
    if not (run.dry_run or going):
        run.api.delete(key, uid=live["metadata"].get("uid", ""))
    run.add(key, "deleted")
    return True


def await_gone(api: Api, keys: list[ObjectKey], timeout: float) -> None:
    """Wait until they are gone.  Raises GpunodeError that names what stays, with its finalizers."""
    deadline = api.clock() + timeout
    for key in keys:
        if api.follow(key, lambda live: True if live is None else None, max(0.0, deadline - api.clock())):
            continue
        live = api.live(key) or {"metadata": {}}
        raise GpunodeError(
            f"{key} was deleted, and is not gone after {timeout:g} s: it waits for {deletion_waits_for(live)}",
            fix=f"kubectl describe {key.kind.lower()} {key.name}",
        )


def _notes(ground: Ground, *, news: bool) -> tuple[str, ...]:
    """What apply leaves to others; without `news` only what pools lack: the rest was said before."""
    rendered = ground.rendered
    helm = [f"helm is yours to run: {release.command}" for release in rendered.releases]
    nodes = [command for request in rendered.nodes if not request.pool.has_known_nodes for command in request.commands]
    marks = [f"without an inventory (-i) the nodes are yours to mark: {command}" for command in nodes]
    spec = rendered.cluster.spec
    labels = [node["metadata"].get("labels") or {} for node in ground.nodes.values()]
    labels += [wish.labels for wish in rendered.nodes if wish.pool.hosts]
    selectors = {"node_selector": spec.node_selector, "runtime_class.node_selector": spec.runtime_class.node_selector}
    chosen = {f"pool {pool.name}": pool.selector for pool in rendered.cluster.pools if not pool.hosts}
    for where, selector in selectors.items():
        lone = ground.nodes and not any(selector.items() <= one.items() for one in labels)
        chosen |= {f"kubernetes.{where}": ",".join(map("=".join, selector.items()))} if lone else {}
    empty = [
        f"{where}: no node is chosen by {text!r} now; apply again when there is one"
        for where, text in chosen.items()
        if text
    ]
    empty += [f"node {name}: it was in a pool, and has left the cluster" for name in ground.left]
    lines = [*(f"{note.what}: {note.why}" for note in rendered.notes), *helm, *marks]
    return (*(lines if news else ()), *empty)
