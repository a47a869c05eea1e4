"""Node Feature Discovery as objects: what its chart makes, for who does not run helm.

The worker of each node finds its hardware, and takes in the labels that GPU Feature Discovery leaves in a file; the
master makes labels of what workers write down as NodeFeatures; the collector deletes those of nodes that are gone.
"""

from __future__ import annotations

import json
from typing import Any

from gpunode.kube.core.cluster import Cluster, Object, tolerations
from gpunode.kube.core.objects import (
    UNPRIVILEGED,
    account,
    container,
    daemon_set,
    field,
    host_path,
    mount,
    namespaced_role,
    pod,
    rule,
    service_account,
    single,
    thing,
)

COMPONENT = "node-feature-discovery"  # whose image and chart are known by this name
MASTER, WORKER, COLLECTOR = "nfd-master", "nfd-worker", "nfd-gc"
PCI = {"deviceClassWhitelist": ["02", "03"], "deviceLabelFields": ["vendor"]}
LABELS = "nvidia.com"  # the names of labels that may come from features.d, besides NFD's own
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"
_GROUP = "nfd.k8s-sigs.io"
_PORT = 8080
_SECURITY = {**UNPRIVILEGED, "readOnlyRootFilesystem": True, "runAsNonRoot": True}
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_HOST = {  # volume: path on the host, mounted read-only below /host-…
    "host-boot": "/boot",
    "host-os-release": "/etc/os-release",
    "host-sys": "/sys",
    "host-usr-lib": "/usr/lib",
    "host-lib": "/lib",
    "host-proc-swaps": "/proc/swaps",
}


def node_feature_discovery(cluster: Cluster) -> list[Object]:
    """Everything, where the spec wants it as objects; [] otherwise."""
    if not cluster.spec.has_discovery_objects:
        return []
    return [
        *_definitions(),
        *account(cluster, MASTER, _master_rules()),
        single(cluster, MASTER, _master(cluster)),
        service_account(cluster, WORKER),
        *namespaced_role(
            cluster,
            WORKER,
            [
                rule(["nodefeatures"], ["create", "get", "update", "delete"], group=_GROUP),
                rule(["pods"], ["get"]),  # whose owner becomes that of the NodeFeature
            ],
        ),
        daemon_set(cluster, WORKER, _worker(cluster), gpu=False),
        *account(
            cluster,
            COLLECTOR,
            [
                rule(["nodes"], ["list", "watch"]),
                rule(["nodefeatures"], ["delete", "list"], group=_GROUP),
                rule(["noderesourcetopologies"], ["delete", "list"], group="topology.node.k8s.io"),
            ],
        ),
        single(cluster, COLLECTOR, _collector(cluster)),
    ]


def _master_rules() -> list[Object]:
    return [
        rule(["namespaces"], ["watch", "list"]),
        rule(["nodes", "nodes/status"], ["get", "patch", "update", "list"]),
        rule(["nodefeatures", "nodefeaturerules", "nodefeaturegroups"], ["get", "list", "watch"], group=_GROUP),
        rule(["nodefeaturegroups/status"], ["patch", "update"], group=_GROUP),
        rule(["leases"], ["create"], group="coordination.k8s.io"),
        {
            **rule(["leases"], ["get", "update"], group="coordination.k8s.io"),
            "resourceNames": ["nfd-master.nfd.kubernetes.io"],
        },
    ]


# ---------------------------------------------------------------- workloads


def _master(cluster: Cluster) -> Object:
    main = _container(
        cluster, MASTER, [f"-extra-label-ns={LABELS}", f"-port={_PORT}"],
        startupProbe={**_probe(), "failureThreshold": 30},
        livenessProbe=_probe(),
        readinessProbe={**_probe(), "failureThreshold": 10},
        resources={"limits": {"memory": "4Gi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
    )  # fmt: skip
    prefer = {"matchExpressions": [{"key": _CONTROL_PLANE, "operator": "In", "values": [""]}]}
    near = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": prefer}]}
    return pod(
        cluster,
        containers=[main],
        gpu=False,
        serviceAccountName=MASTER,
        enableServiceLinks=False,
        affinity={"nodeAffinity": near},
        tolerations=[{"key": _CONTROL_PLANE, "operator": "Exists", "effect": "NoSchedule"}],
    )


def _worker(cluster: Cluster) -> Object:
    """On every node: the labels that other pods select by come from here."""
    options = json.dumps({"sources": {"pci": PCI}}, separators=(",", ":"))
    main = _container(
        cluster, WORKER, ["-owner-refs=pod,ds", f"-options={options}", f"-port={_PORT}"],
        env=[field("POD_NAME", "metadata.name"), field("POD_UID", "metadata.uid")],
        livenessProbe={**_probe(), "initialDelaySeconds": 10},
        readinessProbe={**_probe(), "initialDelaySeconds": 5, "failureThreshold": 10},
        resources={"limits": {"memory": "512Mi"}, "requests": {"cpu": "5m", "memory": "64Mi"}},
        volumeMounts=[
            *(mount(name, _inside(path), readOnly=True) for name, path in _HOST.items()),
            mount("features", FEATURES, readOnly=True),
        ],
    )  # fmt: skip
    volumes = [*({"name": name, "hostPath": {"path": path}} for name, path in _HOST.items())]
    return pod(
        cluster,
        containers=[main],
        gpu=False,
        serviceAccountName=WORKER,
        tolerations=tolerations(cluster),
        volumes=[*volumes, host_path("features", FEATURES)],
    )


def _inside(path: str) -> str:
    """Where the worker looks for a path of the host.

    >>> _inside("/etc/os-release"), _inside("/boot")
    ('/host-etc/os-release', '/host-boot')
    """
    return f"/host-{path.removeprefix('/')}"


def _collector(cluster: Cluster) -> Object:
    main = _container(
        cluster, COLLECTOR, ["-gc-interval=1h"],
        livenessProbe={**_probe(), "initialDelaySeconds": 10},
        readinessProbe={**_probe(), "initialDelaySeconds": 5},
        resources={"limits": {"memory": "1Gi"}, "requests": {"cpu": "10m", "memory": "128Mi"}},
    )  # fmt: skip
    return pod(cluster, containers=[main], gpu=False, serviceAccountName=COLLECTOR)


def _container(cluster: Cluster, name: str, args: list[str], **fields: Any) -> Object:
    env = [field("NODE_NAME", "spec.nodeName"), *fields.pop("env", [])]
    ports = [{"name": "http", "containerPort": _PORT}]
    return container(
        cluster, COMPONENT, name, command=[name], args=args, env=env, ports=ports, securityContext=_SECURITY, **fields
    )


def _probe() -> Object:
    return {"httpGet": {"path": "/healthz", "port": "http"}}


# ---------------------------------------------------------------- resource definitions


def _definitions() -> list[Object]:
    """NodeFeature in full; of rules and groups, which gpunode makes none of, nfd-master itself checks the inside."""
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    elements = {
        "flags": {"type": "object", "additionalProperties": {"type": "object"}},
        "attributes": texts,
        "instances": {"type": "array", "items": _record({"attributes": texts})},
    }
    features = {name: _named(_record({"elements": found})) for name, found in elements.items()}
    rules = {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    nodes = {
        "type": "array",
        "items": _record({"name": {"type": "string"}}),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    feature = {
        "type": "object",
        "properties": {"features": {"type": "object", "properties": features}, "labels": texts},
    }
    status = {"type": "object", "properties": {"nodes": nodes}}
    return [
        _definition("NodeFeature", feature, scope="Namespaced"),
        _definition("NodeFeatureRule", _record({"rules": rules}), scope="Cluster", short="nfr"),
        _definition(
            "NodeFeatureGroup", _record({"featureGroupRules": rules}), scope="Namespaced", short="nfg", status=status
        ),
    ]


def _record(properties: Object) -> Object:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _named(inner: Object) -> Object:
    return {"type": "object", "additionalProperties": inner}


def _definition(kind: str, spec: Object, *, scope: str, short: str = "", status: Object | None = None) -> Object:
    plural = f"{kind.lower()}s"
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    text = {"type": "string"}
    properties = {"apiVersion": text, "kind": text, "metadata": {"type": "object"}, "spec": spec}
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": properties | ({"status": status} if status else {}),
                "required": ["spec"],
            }
        },
    }
    body = {
        "spec": {
            "group": _GROUP,
            "names": names | ({"shortNames": [short]} if short else {}),
            "scope": scope,
            "versions": [version | ({"subresources": {"status": {}}} if status else {})],
        }
    }
    return thing("CustomResourceDefinition", "apiextensions.k8s.io/v1", f"{plural}.{_GROUP}", COMPONENT, body)
