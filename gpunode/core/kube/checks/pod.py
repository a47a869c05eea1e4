"""What an API server refuses, or a node cannot run, in a pod's spec, and no JSON schema tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.kube.checks import words
from gpunode.core.kube.plain import mapping, mappings, texts

_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
_PLAIN = ("cpu", "memory", "ephemeral-storage")  # requests of these may be less than limits


def check_pod(spec: Mapping[str, Any], where: str) -> Iterator[str]:
    """Everything wrong with a pod's spec; `where` is its path in the object."""
    containers = [(kind, c) for kind in ("initContainers", "containers") for c in mappings(spec, kind)]
    volumes = mappings(spec, "volumes")
    yield from _twice([c.get("name") for _, c in containers], f"{where}: containers")
    yield from _twice([v.get("name") for v in volumes], f"{where}.volumes")
    if not mappings(spec, "containers"):
        yield f"{where} has no containers"
    for volume in volumes:
        yield from _volume(volume, f"{where}.volumes[{volume.get('name')}]")
    known = [v.get("name") for v in volumes]
    claims = [c.get("name") for c in mappings(spec, "resourceClaims")]
    for kind, container in containers:
        at = f"{where}.{kind}[{container.get('name')}]"
        yield from _container(container, at)
        for mount in mappings(container, "volumeMounts"):
            if mount.get("name") not in known:
                yield f"{at} mounts {mount.get('name')!r}, which is none of the pod's volumes"
        for claim in mappings(mapping(container, "resources"), "claims"):
            if claim.get("name") not in claims:
                yield f"{at} uses the claim {claim.get('name')!r}, which is none of the pod's resourceClaims"
    yield from words.labels(spec.get("nodeSelector"), f"{where}.nodeSelector")
    for one in mappings(spec, "tolerations"):
        yield from toleration(one, f"{where}.tolerations")
    yield from _affinity(spec.get("affinity"), f"{where}.affinity")
    if spec.get("runtimeClassName") is not None and (reported := words.subdomain(spec["runtimeClassName"])):
        yield f"{where}.runtimeClassName: {reported}"


def _container(container: Mapping[str, Any], at: str) -> Iterator[str]:
    if reported := words.label_name(container.get("name")):
        yield f"{at}.name: {reported}"
    if not container.get("image"):
        yield f"{at} has no image"
    elif reported := words.image(container["image"]):
        yield f"{at}.image: {reported}"
    yield from _twice([m.get("mountPath") for m in mappings(container, "volumeMounts")], f"{at}.volumeMounts")
    yield from _resources(mapping(container, "resources"), f"{at}.resources")
    yield from _rights(mapping(container, "securityContext"), f"{at}.securityContext")
    ports = [port.get("name") for port in mappings(container, "ports")]
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        port = mapping(mapping(container, probe), "httpGet").get("port")
        if isinstance(port, str) and port not in ports:
            yield f"{at}.{probe} asks the port {port!r}, which the container does not name"


def _resources(found: Mapping[str, Any], at: str) -> Iterator[str]:
    """https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources"""
    requests, limits = mapping(found, "requests"), mapping(found, "limits")
    for kind, given in (("requests", requests), ("limits", limits)):
        for name, value in given.items():
            number = words.amount(value)
            if number is None or number < 0:
                yield f"{at}.{kind}.{name}: {value!r} is no amount"
            elif name not in _PLAIN and number != int(number):
                yield f"{at}.{kind}.{name} is {value!r}: whole numbers only, a GPU has no fraction"
    for name, value in requests.items():
        asked, most = words.amount(value), words.amount(limits.get(name))
        if name not in _PLAIN and limits.get(name) is None:
            yield f"{at}: {name} is requested without a limit, and both must be equal"
        elif name not in _PLAIN and asked != most:
            yield f"{at}: {name} is requested {value!r} with the limit {limits[name]!r}, and both must be equal"
        elif asked is not None and most is not None and asked > most:
            yield f"{at}: {name} is requested {value!r}, above its limit {limits[name]!r}"


def _rights(found: Mapping[str, Any], at: str) -> Iterator[str]:
    """https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"""
    if found.get("allowPrivilegeEscalation") is not False:
        return
    if found.get("privileged"):
        yield f"{at}: privileged with allowPrivilegeEscalation: false is refused"
    if "CAP_SYS_ADMIN" in texts(mapping(found, "capabilities").get("add")):  # SYS_ADMIN passes, if spelled so
        yield f"{at}: CAP_SYS_ADMIN with allowPrivilegeEscalation: false is refused"


def _volume(volume: Mapping[str, Any], at: str) -> Iterator[str]:
    if reported := words.label_name(volume.get("name")):
        yield f"{at}.name: {reported}"
    sources = [key for key in volume if key != "name"]
    if len(sources) != 1:
        yield f"{at} has {', '.join(sources) or 'no source'}: one source is wanted"
    path = mapping(volume, "hostPath").get("path", "/")
    if not str(path).startswith("/") or ".." in str(path).split("/"):
        yield f"{at}.hostPath.path: {path!r} is no absolute path"


def toleration(found: Mapping[str, Any], at: str) -> Iterator[str]:
    operator = found.get("operator", "Equal")
    at = f"{at}[{found.get('key', '')}]"
    if found.get("effect", "") not in _EFFECTS:
        yield f"{at}.effect is {found['effect']!r}: one of {', '.join(_EFFECTS[1:])}"
    if operator not in ("Exists", "Equal", "Lt", "Gt"):
        yield f"{at}.operator is {operator!r}: Exists or Equal"
    if operator == "Exists" and found.get("value"):
        yield f"{at} has a value with the operator Exists"
    if not found.get("key") and operator != "Exists":
        yield f"{at} has no key: only the operator Exists goes without"
    if found.get("key") and (reported := words.label_key(found["key"])):
        yield f"{at}.key: {reported}"
    if "tolerationSeconds" in found and found.get("effect") != "NoExecute":
        yield f"{at}.tolerationSeconds goes with the effect NoExecute only"


def _affinity(found: Any, at: str) -> Iterator[str]:
    """Every node selector term and label selector below an affinity."""
    if isinstance(found, Mapping):
        if "operator" in found and "key" in found:
            yield from expression(found, at)
        for key, value in found.items():
            yield from _affinity(value, f"{at}.{key}")
    elif isinstance(found, list):
        for value in found:
            yield from _affinity(value, at)


def expression(found: Mapping[str, Any], at: str) -> Iterator[str]:
    """One of matchExpressions: the operator says how many values there are."""
    operator, values = found.get("operator"), texts(found.get("values"))
    if reported := words.label_key(found.get("key")):
        yield f"{at}: {reported}"
    if operator in ("In", "NotIn") and not values:
        yield f"{at}: {found.get('key')} {operator} has no values"
    elif operator in ("Exists", "DoesNotExist") and values:
        yield f"{at}: {found.get('key')} {operator} has values"
    elif operator in ("Gt", "Lt") and len(values) != 1:
        yield f"{at}: {found.get('key')} {operator} wants one number"
    elif operator not in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"):
        yield f"{at}: {found.get('key')} has the operator {operator!r}"


def _twice(found: Sequence[Any], at: str) -> Iterator[str]:
    yield from (f"{at}: {name!r} stands twice" for name in dict.fromkeys(texts(found)) if found.count(name) > 1)
