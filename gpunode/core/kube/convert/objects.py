"""apiVersions that are gone, and what changes with them.  Objects are changed in place; each change is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpunode.core.knowledge.kubernetes import Server
from gpunode.core.knowledge.kubernetes_old import Ended, Moved, OldForms
from gpunode.core.kube.plain import mapping, mappings

Conversion = tuple[str, str]  # what, why


def ended(item: Mapping[str, Any], forms: OldForms, server: Server) -> Ended | None:
    """The row of an object that the server has no more, under any apiVersion."""
    for row in forms.ended:
        if item.get("kind") in row.kinds and item.get("apiVersion") in row.apis and server >= row.gone:
            return row
    return None


def convert_api(item: Any, forms: OldForms, server: Server) -> Iterator[Conversion]:
    """The newest apiVersion that the server takes."""
    row = next((row for row in forms.moved if _applies(row, item, server)), None)
    if row is None:
        return
    old = item["apiVersion"]
    item["apiVersion"] = row.to
    why = f"gone since {row.gone}" if row.gone else f"{row.to} serves since {row.since}"
    yield f"apiVersion {old} → {row.to}", why
    if row.rule:
        yield from _RULES[row.rule](item, old)
    if "status" in item:
        del item["status"]
        yield "status taken out", "the server writes it"


def put(holder: Any, key: str, value: Any, *, before: str = "") -> None:
    """Set a key; a new one stands before another, where that is there."""
    keys = list(holder)
    if key not in holder and before in keys and hasattr(holder, "insert"):
        holder.insert(keys.index(before), key, value)
    else:
        holder[key] = value


def rename(holder: Any, old: str, new: str) -> None:
    """Another key in the same place, with the comment that stands there."""
    comments = getattr(getattr(holder, "ca", None), "items", {})
    put(holder, new, holder[old], before=old)
    if old in comments:
        comments[new] = comments.pop(old)
    del holder[old]


def _applies(row: Moved, item: Mapping[str, Any], server: Server) -> bool:
    return item.get("kind") in row.kinds and item.get("apiVersion") in row.old and server >= row.since


def _workload(item: Any, old: str) -> Iterator[Conversion]:
    """apps/v1 wants a selector, and rolls out by itself."""
    spec = item.get("spec")
    if not isinstance(spec, dict):
        return
    labels = mapping(mapping(mapping(spec, "template"), "metadata"), "labels")
    if not spec.get("selector") and labels:
        put(spec, "selector", {"matchLabels": dict(labels)}, before="template")
        pairs = ", ".join(f"{key}={value}" for key, value in labels.items())
        yield f"spec.selector: {pairs}", "apps/v1 wants one; before it was the template's labels"
    for key in ("rollbackTo", "templateGeneration"):
        if key in spec:
            del spec[key]
            yield f"spec.{key} taken out", "apps/v1 has it no more"
    waits = (item["kind"] == "DaemonSet" and old == "extensions/v1beta1") or (
        item["kind"] == "StatefulSet" and old == "apps/v1beta1"
    )
    if waits and not spec.get("updateStrategy"):
        yield (
            "updateStrategy is RollingUpdate",
            "apps/v1's default; before, pods were renewed when someone deleted them",
        )


def _ingress(item: Any, _: str) -> Iterator[Conversion]:
    spec = item.get("spec")
    if not isinstance(spec, dict):
        return
    if "backend" in spec:
        put(spec, "defaultBackend", _backend(spec["backend"]), before="backend")
        del spec["backend"]
        yield "spec.backend → spec.defaultBackend", "networking.k8s.io/v1 calls it so"
    for rule in mappings(spec, "rules"):
        for path in mappings(mapping(rule, "http"), "paths"):
            if "serviceName" in mapping(path, "backend"):
                path["backend"] = _backend(path["backend"])
                yield f"the backend of {path.get('path', '/')} in today's spelling", "service.name and service.port"
            if "pathType" not in path:
                put(path, "pathType", "ImplementationSpecific", before="backend")
                yield f"pathType of {path.get('path', '/')}", "required; ImplementationSpecific is what it meant"


def _backend(found: Mapping[str, Any]) -> Any:
    if "serviceName" not in found:
        return found
    port = found.get("servicePort")
    return {"service": {"name": found["serviceName"], "port": {"number" if isinstance(port, int) else "name": port}}}


def _rbac(item: Any, _: str) -> Iterator[Conversion]:
    group = "rbac.authorization.k8s.io"
    for subject in mappings(item, "subjects"):
        if "apiVersion" in subject:
            del subject["apiVersion"]
            if subject.get("kind") in ("User", "Group"):
                subject["apiGroup"] = group
            yield f"apiVersion of the subject {subject.get('name')} → apiGroup", "v1alpha1 alone called it so"
    role = item.get("roleRef")
    if isinstance(role, dict) and role.get("apiGroup") != group:
        role.pop("apiVersion", None)
        role["apiGroup"] = group
        yield f"roleRef.apiGroup: {group}", "required"


def _budget(item: Any, _: str) -> Iterator[Conversion]:
    """https://kubernetes.io/docs/reference/using-api/deprecation-guide/#poddisruptionbudget-v125"""
    spec = item.get("spec")
    if isinstance(spec, dict) and spec.get("selector") == {}:
        del spec["selector"]
        yield "spec.selector: {} taken out", "in policy/v1beta1 it chose no pod, in policy/v1 it chooses every one"


def _runtime_class(item: Any, old: str) -> Iterator[Conversion]:
    spec = item.get("spec")
    if not old.endswith("v1alpha1") or not isinstance(spec, dict):
        return
    del item["spec"]
    item["handler"] = spec.get("runtimeHandler", "")
    item.update({key: spec[key] for key in ("overhead", "scheduling") if key in spec})
    yield "spec.runtimeHandler → handler", "from v1beta1 on there is no spec"


def _claim(item: Any, old: str) -> Iterator[Conversion]:
    """v1beta1 says of a request itself what later versions say of `exactly`."""
    if not old.endswith("v1beta1") or item["kind"] == "DeviceClass":
        return
    spec = mapping(item, "spec")
    spec = mapping(spec, "spec") if item["kind"] == "ResourceClaimTemplate" else spec
    for request in mappings(mapping(spec, "devices"), "requests"):
        if "firstAvailable" in request or "exactly" in request:
            continue
        moved = {key: request[key] for key in list(request) if key != "name"}
        for key in moved:
            del request[key]
        request["exactly"] = moved
        yield f"the request {request.get('name')} → exactly", "from v1beta2 on"


_RULES: Mapping[str, Callable[[Any, str], Iterator[Conversion]]] = {
    "workload": _workload,
    "ingress": _ingress,
    "rbac": _rbac,
    "budget": _budget,
    "runtime-class": _runtime_class,
    "claim": _claim,
}
