"""The objects of the tests' small Kubernetes API: its kinds, selectors, what apply and patches make of them."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

# apiVersion → (kind, plural, namespaced)
RESOURCES: dict[str, list[tuple[str, str, bool]]] = {
    "v1": [
        ("Namespace", "namespaces", False), ("Node", "nodes", False), ("Pod", "pods", True),
        ("ConfigMap", "configmaps", True), ("Secret", "secrets", True), ("Service", "services", True),
        ("ServiceAccount", "serviceaccounts", True), ("PersistentVolumeClaim", "persistentvolumeclaims", True),
        ("Event", "events", True),
    ],
    "apps/v1": [("Deployment", "deployments", True), ("DaemonSet", "daemonsets", True),
                ("StatefulSet", "statefulsets", True)],
    "batch/v1": [("Job", "jobs", True), ("CronJob", "cronjobs", True)],
    "apiextensions.k8s.io/v1": [("CustomResourceDefinition", "customresourcedefinitions", False)],
    "node.k8s.io/v1": [("RuntimeClass", "runtimeclasses", False)],
    "rbac.authorization.k8s.io/v1": [
        ("ClusterRole", "clusterroles", False), ("ClusterRoleBinding", "clusterrolebindings", False),
        ("Role", "roles", True), ("RoleBinding", "rolebindings", True),
    ],
}  # fmt: skip
DRA = {
    "resource.k8s.io/v1": [
        ("ResourceSlice", "resourceslices", False), ("ResourceClaim", "resourceclaims", True),
        ("ResourceClaimTemplate", "resourceclaimtemplates", True), ("DeviceClass", "deviceclasses", False),
    ]
}  # fmt: skip
OPERATOR = {"nvidia.com/v1": [("ClusterPolicy", "clusterpolicies", False)]}


def chosen(item: Object, query: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels") or {}
    for pair in filter(None, query.get("labelSelector", "").split(",")):
        name, _, value = pair.partition("=")
        if labels.get(name) != value:
            return False
    for pair in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = pair.partition("=")
        at: Any = item
        for part in path.split("."):
            at = (at or {}).get(part)
        if (at or "") != value:
            return False
    return True


def with_alias(pod_spec: Object) -> None:
    """The account of a pod under both of its names, as the API server keeps it: whoever takes one away leaves both."""
    if name := pod_spec.get("serviceAccountName") or pod_spec.get("serviceAccount"):
        pod_spec |= {"serviceAccountName": name, "serviceAccount": name}


def bare(item: Object) -> Object:
    hidden = ("resourceVersion", "generation", "managedFields", "uid")
    return {**item, "metadata": {k: v for k, v in item["metadata"].items() if k not in hidden}}


def applicable(item: Object) -> Object:
    """What of an object can be applied: no identity, no status."""
    metadata = {k: v for k, v in item["metadata"].items() if k in ("labels", "annotations")}
    return {k: v for k, v in item.items() if k not in ("apiVersion", "kind", "status", "metadata")} | {
        "metadata": metadata
    }


def leaves(data: Any, at: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if isinstance(data, dict) and data:
        return {path: value for key, inner in data.items() for path, value in leaves(inner, (*at, key)).items()}
    return {at: data} if at and data != {} else {}


def put_at(item: Object, path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        item = item.setdefault(part, {})
    item[path[-1]] = value


def drop_at(item: Object, path: tuple[str, ...]) -> None:
    for part in path[:-1]:
        item = item.get(part, {})
    item.pop(path[-1], None)


def merged(item: Object, patch: Object) -> Object:
    for key, value in patch.items():
        if value is None:
            item.pop(key, None)
        elif isinstance(value, dict):
            item[key] = merged(item.get(key) or {}, value)
        else:
            item[key] = value
    return item
