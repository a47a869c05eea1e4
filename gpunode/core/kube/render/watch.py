"""`gpunode kube watch` as a Deployment of the cluster: it reads what it reports on, writes Events, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpunode.core.kube.cluster import Cluster, Object
from gpunode.core.kube.objects import (
    UNPRIVILEGED,
    account,
    config_map,
    mount,
    namespaced_role,
    pod,
    rule,
    selector,
    single,
    thing,
)
from gpunode.core.kube.owned import Inventory, Key, inventory_object, key_of

NAME = "watch"
OBJECTS = "watch-objects"
_ROLE = f"gpunode-{NAME}"
PORT = 9405
_FOLDER = "/etc/gpunode/objects"


def watch(cluster: Cluster, objects: Sequence[Object], files: Mapping[str, str]) -> list[Object]:
    """What watches these objects (`files`: what they are, as files), where kubernetes.watch.image names an image."""
    spec = cluster.spec.watch
    if not spec.image:
        return []
    sums = {"gpunode/config-sha256": hashlib.sha256("".join(files.values()).encode()).hexdigest()}
    found = [
        *account(cluster, NAME, list(_rules(cluster, objects))),
        *_role(cluster, objects),
        config_map(cluster, OBJECTS, NAME, files),
        _service(cluster),
        single(cluster, NAME, _pod(cluster), annotations=sums),
    ]
    if cluster.spec.monitoring.prometheus_operator:
        found.append(_monitor(cluster))
    return found


def is_watch(key: Key) -> bool:
    """Whether it is an object of the Deployment itself, which watches all but these."""
    return key.name in (NAME, OBJECTS, _ROLE)


def namespaces_of(keys: Iterable[Key]) -> tuple[str, ...]:
    """Where the inventory of these objects may be: the namespaces that they are in, or make."""
    return tuple(sorted({key.name if key.kind == "Namespace" else key.namespace for key in keys} - {""}))


def _pod(cluster: Cluster) -> Object:
    spec = cluster.spec.watch
    command = ["gpunode", "kube", "watch", "--objects", _FOLDER, "--interval", str(spec.interval)]
    command += ["--metrics-listen", f":{PORT}", "--format", "json", *(["--events"] if spec.events else [])]
    container = {
        "name": NAME,
        "image": spec.image,
        "imagePullPolicy": cluster.spec.images.pull_policy,
        "command": command,
        "ports": [{"name": "metrics", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/metrics", "port": "metrics"}},
        "resources": {"requests": {"cpu": "20m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {**UNPRIVILEGED, "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount("objects", _FOLDER, readOnly=True)],
    }
    return pod(
        cluster,
        containers=[container],
        gpu=False,
        serviceAccountName=NAME,
        securityContext={"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        volumes=[{"name": "objects", "configMap": {"name": OBJECTS}}],
    )


# ---------------------------------------------------------------- rights


def plural(kind: str) -> str:
    """The name of a kind in paths and rights.

    >>> plural("RuntimeClass"), plural("DaemonSet")
    ('runtimeclasses', 'daemonsets')
    """
    return kind.lower() + ("es" if kind.endswith("s") else "s")


def _named(objects: Sequence[Object], *, namespaced: bool) -> Iterator[Object]:
    """A rule for each kind: get, and only the objects of these names."""
    names: dict[tuple[str, str], list[str]] = {}
    for item in objects:
        if bool(item["metadata"].get("namespace")) == namespaced:
            group = item["apiVersion"].rpartition("/")[0]
            names.setdefault((group, plural(item["kind"])), []).append(item["metadata"]["name"])
    for (group, resource), known in names.items():
        yield {**rule((resource,), ("get",), group=group), "resourceNames": known}


def _rules(cluster: Cluster, objects: Sequence[Object]) -> Iterator[Object]:
    yield rule(("nodes", "pods"), ("list",))
    if cluster.pools_of("dra"):
        yield rule(("resourceslices", "resourceclaims"), ("list",), group="resource.k8s.io")
    if cluster.spec.watch.events:
        yield rule(("events",), ("create",))
    yield from _named(objects, namespaced=False)


def _role(cluster: Cluster, objects: Sequence[Object]) -> list[Object]:
    """Rights in our own namespace."""
    namespace = cluster.spec.namespace
    known = namespace in namespaces_of(map(key_of, objects))  # the inventory can be found
    rules = list(_named([*objects, *([inventory_object(Inventory(), namespace)] if known else [])], namespaced=True))
    if not rules:
        return []
    return namespaced_role(cluster, NAME, rules)


# ---------------------------------------------------------------- metrics


def _service(cluster: Cluster) -> Object:
    ports = [{"name": "metrics", "port": PORT, "targetPort": "metrics", "protocol": "TCP"}]
    body = {"spec": {"selector": selector(NAME), "ports": ports}}
    return thing("Service", "v1", NAME, NAME, body, namespace=cluster.spec.namespace)


def _monitor(cluster: Cluster) -> Object:
    """For the Prometheus operator; `monitoring.labels` are those that it selects by."""
    spec = cluster.spec.monitoring
    body = {"spec": {"selector": {"matchLabels": selector(NAME)}, "endpoints": [
        {"port": "metrics", "interval": spec.interval},
    ]}}  # fmt: skip
    found = thing("ServiceMonitor", "monitoring.coreos.com/v1", NAME, NAME, body, namespace=cluster.spec.namespace)
    found["metadata"]["labels"] |= spec.labels
    return found
