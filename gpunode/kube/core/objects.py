"""The shape that all objects of gpunode share: names, labels, pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpunode.kube.core.cluster import OWNED, Cluster, Object, tolerations

UNPRIVILEGED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def labels(component: str) -> dict[str, str]:
    """https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/"""
    return {**selector(component), "app.kubernetes.io/part-of": "gpunode", **OWNED}


def selector(component: str) -> dict[str, str]:
    """The labels by which a workload knows its pods; they can never be changed, so there are few."""
    return {"app.kubernetes.io/name": component, "app.kubernetes.io/instance": "gpunode"}


def thing(kind: str, api: str, name: str, component: str, body: Mapping[str, Any], *, namespace: str = "") -> Object:
    """An object with its labels; without a namespace it is one of the cluster's."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), "labels": labels(component)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **body}


def image_values(cluster: Cluster, component: str) -> dict[str, Any]:
    """A component's image as most charts want it."""
    repository, tag = cluster.image_parts(component)
    images = cluster.spec.images
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": images.pull_policy},
        "imagePullSecrets": [{"name": name} for name in images.pull_secrets],
    }


def container(cluster: Cluster, component: str, name: str, **fields: Any) -> Object:
    """A container of a component's image; empty fields are left out."""
    body = {
        "name": name,
        "image": cluster.image(component),
        "imagePullPolicy": cluster.spec.images.pull_policy,
        "terminationMessagePolicy": "FallbackToLogsOnError",  # why it ended, for who may not read logs
        **fields,
    }
    return {key: value for key, value in body.items() if value or value is False}


def pod(cluster: Cluster, *, containers: Sequence[Object], gpu: bool = True, **fields: Any) -> Object:
    """A pod's spec; `gpu`: it runs on GPU nodes and needs the driver.  Empty fields are left out."""
    runs_there = {
        "runtimeClassName": cluster.runtime_class,
        "nodeSelector": dict(cluster.spec.node_selector),
        "tolerations": tolerations(cluster),
    }
    body = {
        **(runs_there if gpu else {}),
        "imagePullSecrets": [{"name": name} for name in cluster.spec.images.pull_secrets],
        **fields,
        "containers": list(containers),
    }
    return {key: value for key, value in body.items() if value or value is False}


def daemon_set(cluster: Cluster, component: str, pod_spec: Object, *, annotations: Mapping[str, str] = {}) -> Object:
    """One pod on every GPU node that the pod's selectors and tolerations allow."""
    if cluster.mig_managed:
        pod_spec = {**pod_spec, "nodeSelector": {**pod_spec.get("nodeSelector", {}), **cluster.gpu_selector}}
    return thing("DaemonSet", "apps/v1", component, component, _workload(component, pod_spec, annotations, {
        "updateStrategy": {"type": "RollingUpdate"},
    }), namespace=cluster.spec.namespace)  # fmt: skip


def single(cluster: Cluster, component: str, pod_spec: Object) -> Object:
    """A Deployment of one pod that never runs twice."""
    return thing("Deployment", "apps/v1", component, component, _workload(component, pod_spec, {}, {
        "replicas": 1, "strategy": {"type": "Recreate"},
    }), namespace=cluster.spec.namespace)  # fmt: skip


def _workload(component: str, pod_spec: Object, annotations: Mapping[str, str], more: Mapping[str, Any]) -> Object:
    metadata = {"labels": labels(component), **({"annotations": dict(annotations)} if annotations else {})}
    body = {"selector": {"matchLabels": selector(component)}, "template": {"metadata": metadata, "spec": pod_spec}}
    return {"spec": {**more, **body}}


def config_map(cluster: Cluster, name: str, component: str, data: Mapping[str, str]) -> Object:
    return thing("ConfigMap", "v1", name, component, {"data": dict(data)}, namespace=cluster.spec.namespace)


def account(cluster: Cluster, component: str, rules: Sequence[Object]) -> list[Object]:
    """A ServiceAccount with a ClusterRole of these rules, bound to it."""
    name = f"gpunode-{component}"  # cluster-wide names say whose they are
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": component, "namespace": cluster.spec.namespace}
    rbac = "rbac.authorization.k8s.io/v1"
    return [
        thing("ServiceAccount", "v1", component, component, {}, namespace=cluster.spec.namespace),
        thing("ClusterRole", rbac, name, component, {"rules": list(rules)}),
        thing("ClusterRoleBinding", rbac, name, component, {"roleRef": role, "subjects": [subject]}),
    ]


def rule(resources: Sequence[str], verbs: Sequence[str]) -> Object:
    """What a ClusterRole allows of the core API."""
    return {"apiGroups": [""], "resources": list(resources), "verbs": list(verbs)}


def env(**values: str) -> list[Object]:
    return [{"name": name, "value": value} for name, value in values.items()]


def field(name: str, path: str) -> Object:
    """An environment variable that says something of the pod itself."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


# wherever the kubelet's folder is: https://github.com/kubernetes/kubernetes/issues/68567
DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"


def host_path(name: str, path: str, kind: str = "DirectoryOrCreate") -> Object:
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def mount(name: str, path: str, **fields: Any) -> Object:
    return {"name": name, "mountPath": path, **fields}
