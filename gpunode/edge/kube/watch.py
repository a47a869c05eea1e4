"""Watch a cluster without changing it: a look every so often, what changed as lines, Events and metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpunode.core.errors import GpunodeError, InputError, UnreachableError
from gpunode.core.kube.checks.ready import WORKLOADS
from gpunode.core.kube.cluster import Object
from gpunode.core.kube.owned import Inventory, Key, inventory_key, key_of, parse_inventory
from gpunode.core.kube.render import MARKS, NodeWish, parse_marks
from gpunode.core.kube.render.device_plugin import CONFIG
from gpunode.core.kube.render.watch import is_watch, namespaces_of
from gpunode.core.kube.usage import Usage
from gpunode.core.kube.watching import CHECKS, Finding, Look, Turn, findings, most_devices, settled, turns
from gpunode.core.untrusted import load_yaml_documents
from gpunode.edge.extras import install_command
from gpunode.edge.kube.apply import pods_of
from gpunode.edge.kube.client import Api, ApiError, Retry, segment
from gpunode.edge.kube.preflight import inventories
from gpunode.edge.kube.status import read_usage

COMPONENT = "gpunode-watch"
_REMIND = timedelta(minutes=55)
_RECENT = timedelta(minutes=10)
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(kw_only=True)
class Watcher:
    """Rounds over one cluster.  `found` is what the last round found; `unread` what it could not read.

    `namespace`: that of the spec; "" where only its objects are known, which then say it.
    """

    api: Api
    wanted: Mapping[Key, Object]
    marks: Sequence[NodeWish] | None = None
    namespace: str = ""
    events: bool = False
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    found: tuple[Finding, ...] = ()
    unread: tuple[str, ...] = ()
    read_at: datetime | None = None
    usage: Usage | None = None
    _raw: tuple[Finding, ...] = ()
    _look: Look | None = field(default=None, repr=False)
    _most: Mapping[str, Mapping[str, int]] = field(default_factory=dict, repr=False)
    _sent: dict[tuple[str, str], datetime] = field(default_factory=dict)  # finding → when its Event was written

    def round(self, *, once: bool = False) -> tuple[Turn, ...]:
        """Look, and say what changed.  Raises GpunodeError where the cluster cannot be read.

        `once`: there is no second look, so what may pass by itself counts.
        """
        recently = (self.clock() - _RECENT).strftime(_TIME)
        look, self.unread = read_look(self.api, self.wanted, self.namespace, recently)
        look = replace(look, marks=self.marks, most=self._most)
        now = findings(look, self._look)
        fresh = now if once else settled(now, self._raw)
        changed = turns(self.found, fresh)
        self.found, self._raw, self._look = fresh, now, look
        self.usage, self.read_at = look.usage, self.clock()
        self._most = most_devices(self._most, look.usage)
        if self.events:
            self._write_events(changed)
        return changed

    def _write_events(self, changed: Iterable[Turn]) -> None:
        """Those of what changed, and again those of what lasts: API servers forget an Event after an hour."""
        now, fresh = self.clock(), {turn.finding.name for turn in changed}
        known = {one.name for one in self.found}
        self._sent = {name: at for name, at in self._sent.items() if name in known}
        old = [one for one in self.found if one.name not in fresh and now - self._sent.get(one.name, now) >= _REMIND]
        for turn in (*changed, *(Turn(state="found", finding=one) for one in old)):
            try:
                write_event(self.api, turn, now)
                self._sent[turn.finding.name] = now
            except ApiError as error:
                self.unread = (*self.unread, f"no Event for {turn.finding.about}: {error.what}")


def read_look(
    api: Api, wanted: Mapping[Key, Object], namespace: str = "", recently: str = ""
) -> tuple[Look, tuple[str, ...]]:
    """One round of reading, and what could not be read.  Raises GpunodeError where nodes and pods cannot be."""
    live: dict[Key, Object | None] = {}
    pods: dict[Key, Sequence[Object]] = {}
    unread: list[str] = []
    for key in wanted:
        try:
            live[key] = api.find(api.path(key)) if api.resource(key.api, key.kind) else None
            if key.kind in WORKLOADS and (there := live[key]):
                pods[key] = pods_of(api, key, there)
        except UnreachableError:
            raise
        except GpunodeError as error:  # no right to, or no object
            unread.append(f"{key}: {error.what}")
    recorded = _recorded(api, wanted, namespace, unread)
    live |= _orphans(api, recorded.without(wanted))
    odd: list[GpunodeError] = []
    nodes = api.items("/api/v1/nodes", odd=odd)
    usage = read_usage(api, configs=_plugin_configs(wanted))
    unread += [error.what for error in odd] + list(usage.errors)
    look = Look(wanted=wanted, live=live, pods=pods, nodes=nodes, usage=usage, recorded=recorded, recently=recently)
    return look, tuple(dict.fromkeys(unread))


def _recorded(api: Api, wanted: Mapping[Key, Object], namespace: str, unread: list[str]) -> Inventory:
    """What apply recorded.  In the cluster only the inventory beside the objects may be read, without watch's own."""
    try:
        if namespace:
            return inventories(api, namespace)[0]
        found = Inventory()
        for place in namespaces_of(wanted):
            if live := api.find(api.path(inventory_key(place))):
                found += parse_inventory(live)
    except UnreachableError:
        raise
    except GpunodeError as error:  # no right to, or not one of ours
        unread.append(f"what apply recorded: {error.what}")
        return Inventory()
    return replace(found, objects=tuple(key for key in found.objects if not is_watch(key)))


def _orphans(api: Api, keys: Iterable[Key]) -> dict[Key, Object | None]:
    """Recorded objects that are not wanted, as far as they can be read: nobody has to give the right to."""
    found: dict[Key, Object | None] = {}
    for key in keys:
        try:
            found[key] = api.find(api.path(key)) if api.resource(key.api, key.kind) else None
        except UnreachableError:
            raise
        except GpunodeError:
            continue
    return found


def _plugin_configs(wanted: Mapping[Key, Object]) -> dict[str, str]:
    """The device plugin's configurations, as they should be: for the replicas of nodes without labels of them."""
    return next((dict(item.get("data") or {}) for key, item in wanted.items() if key.name == CONFIG), {})


def write_event(api: Api, turn: Turn, now: datetime) -> None:
    """A core/v1 Event about the object: Warning when it is found, Normal when it is gone."""
    key, stamp = turn.finding.key, now.strftime(_TIME)
    namespace = key.namespace or "default"  # where Events of cluster-wide objects live
    words = turn.finding.message if turn.state == "found" else f"no longer: {turn.finding.message}"
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{COMPONENT}-", "namespace": namespace},
        "involvedObject": {"apiVersion": key.api, "kind": key.kind, "name": key.name}
        | ({"namespace": key.namespace} if key.namespace else {}),
        "type": "Warning" if turn.state == "found" else "Normal",
        "reason": "Gpunode" + "".join(part.capitalize() for part in turn.finding.check.split(".")[1:]),
        "message": f"{turn.finding.about}: {words}"[:1024],  # https://pkg.go.dev/k8s.io/api/core/v1#Event
        "source": {"component": COMPONENT},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
    api.request("POST", f"/api/v1/namespaces/{segment(namespace)}/events", body=event, retry=Retry(attempts=1))


def wanted_objects(objects: Iterable[Object]) -> dict[Key, Object]:
    return {key_of(item): item for item in objects}


def read_marks(path: Path) -> tuple[NodeWish, ...] | None:
    """What nodes have to carry, by the file beside the objects; None where there is none.  Raises InputError."""
    file = path / MARKS
    if not path.is_dir() or not file.exists():
        return None
    try:
        return parse_marks(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}", expected="what gpunode kube apply wrote") from error


def read_objects(path: Path) -> dict[Key, Object]:
    """The objects in a YAML file, or in those of a folder, such as `gpunode kube render` writes.  Raises InputError."""
    files = sorted(path.glob("*.y*ml")) if path.is_dir() else [path]
    found: list[Object] = []
    for file in files:
        try:
            documents = load_yaml_documents(file.read_text(encoding="utf-8"), str(file))
        except (OSError, UnicodeDecodeError, InputError) as error:
            raise InputError(f"{file} cannot be read: {str(error)[:200]}", expected="objects in YAML") from error
        found += [item for item in documents if _is_object(item)]
    if not found:
        raise InputError(f"{path} has no Kubernetes object", expected="what gpunode kube render -o wrote")
    return wanted_objects(found)


def _is_object(item: Any) -> bool:
    texts = ("apiVersion", "kind")
    return (
        isinstance(item, dict)
        and all(isinstance(item.get(key), str) for key in texts)
        and isinstance(item.get("metadata"), dict)
        and isinstance(item["metadata"].get("name"), str)
    )


# ---------------------------------------------------------------- metrics


class Metrics:
    """What Prometheus reads of a Watcher; a collector of the package prometheus-client."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.up = False

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        def gauge(name: str, text: str, *labels: str) -> Any:
            return GaugeMetricFamily(f"gpunode_kube_{name}", text, labels=labels)

        up = gauge("watch_up", "1 while the cluster can be read")
        up.add_metric([], float(self.up))
        yield up
        if self.watcher.read_at is None:
            return
        read = gauge("watch_read_timestamp_seconds", "when the cluster was read last")
        read.add_metric([], self.watcher.read_at.timestamp())
        counts = gauge("findings", "findings of each check", "check")
        for check in CHECKS:
            counts.add_metric([check], sum(one.check == check for one in self.watcher.found))
        each = gauge("finding", "1 for each finding", "check", "about")
        for one in self.watcher.found:
            each.add_metric([one.check, one.about], 1)
        unread = gauge("unread", "objects that could not be read")
        unread.add_metric([], len(self.watcher.unread))
        yield from (read, counts, each, unread)
        if usage := self.watcher.usage:
            yield from _usage_metrics(usage, gauge)


def _usage_metrics(usage: Usage, gauge: Callable[..., Any]) -> Iterator[Any]:
    total = gauge("node_resource_total", "what a node offers", "node", "resource")
    allocated = gauge("node_resource_allocated", "what pods on it hold", "node", "resource")
    ready = gauge("node_ready", "1 for a node that is Ready", "node")
    for node in usage.nodes:
        ready.add_metric([node.name], float(node.is_ready))
        for use in node.uses:
            total.add_metric([node.name, use.resource], use.total)
            allocated.add_metric([node.name, use.resource], use.allocated)
    waiting = gauge("pods_waiting", "pods that ask for GPUs and have no node")
    waiting.add_metric([], len(usage.waiting))
    yield from (total, allocated, ready, waiting)


@contextlib.contextmanager
def serving(metrics: Metrics, listen: str) -> Iterator[int]:
    """Serve /metrics on ADDRESS:PORT (or :PORT) meanwhile; gives the port, of port 0 the one that was free."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise InputError(
            "--metrics-listen needs the package prometheus-client", fix=install_command("kubernetes")
        ) from error

    address, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InputError(f"--metrics-listen {listen!r}", expected="ADDRESS:PORT, or :PORT for all addresses")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    try:
        server, thread = start_http_server(int(port), address.strip("[]") or "0.0.0.0", registry=registry)  # noqa: S104
    except OSError as error:
        raise InputError(f"cannot listen on {listen}: {error.strerror}", fix="choose another port") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
