"""What no JSON schema says of objects: selectors and labels, handlers, roles and subjects, what belongs together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.errors import InputError
from gpunode.core.kube.checks import words
from gpunode.core.kube.checks.pod import check_pod, expression
from gpunode.core.kube.plain import mapping, mappings, texts
from gpunode.core.kube.render.plugin_config import check_plugin_config
from gpunode.core.model import Problem
from gpunode.core.untrusted import load_yaml

Found = Mapping[str, Any]

WORKLOADS = ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
CLUSTER_WIDE = (
    "Namespace", "Node", "RuntimeClass", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "DeviceClass",
    "PersistentVolume", "StorageClass", "CustomResourceDefinition",
)  # fmt: skip
_VERBS = frozenset("get list watch create update patch delete deletecollection bind escalate impersonate use *".split())


def check_objects(objects: Sequence[Found]) -> list[Problem]:
    """Everything wrong with objects, each by itself and all together; what stands elsewhere is not missed.

    Shapes and types are the JSON schemas' part; an object that is no object is passed over.
    """
    objects = [item for item in objects if not _FILES.match(f"{item.get('apiVersion')} {item.get('kind')}")]
    found = [(item, reported) for item in objects for reported in _alone(item)]
    found += [(item, reported) for item in objects for reported in _together(item, objects)]
    return [Problem(what=f"{title(item)}: {reported}", fix=_FIX) for item, reported in found]


_FILES = re.compile(r"(kubescheduler|kubelet|kubeadm|audit)\.|v1 Policy")  # files of components, no objects
_FIX = "fix it: the API server would refuse it, or nothing would run"


def is_object(item: Any) -> bool:
    """Whether it says what it is."""
    return isinstance(item, Mapping) and all(isinstance(item.get(k), str) and item[k] for k in ("apiVersion", "kind"))


def title(item: Found) -> str:
    """Kind and name, as kubectl says them."""
    metadata = mapping(item, "metadata")
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    return (
        f"{item.get('kind')} {metadata.get('namespace') or ''}{'/' if metadata.get('namespace') else ''}{name}".strip()
    )


def template_of(item: Found) -> tuple[Found, str]:
    """A workload's pod template and its path; ({}, "") for what has none."""
    kind, spec = item.get("kind"), mapping(item, "spec")
    if kind in (*WORKLOADS, "Job", "ReplicationController"):
        return mapping(spec, "template"), "spec.template"
    if kind == "CronJob":
        return mapping(mapping(mapping(spec, "jobTemplate"), "spec"), "template"), "spec.jobTemplate.spec.template"
    return (item, "") if kind == "Pod" else ({}, "")


# ---------------------------------------------------------------- one object


def _alone(item: Found) -> Iterator[str]:
    metadata = mapping(item, "metadata")
    if not metadata.get("generateName"):
        names = words.label_name if item.get("kind") == "Namespace" else words.subdomain
        rbac = str(item.get("apiVersion", "")).startswith("rbac.")  # their names are free
        if reported := "" if rbac and metadata.get("name") else names(metadata.get("name")):
            yield f"metadata.name: {reported}"
    if item.get("kind") in CLUSTER_WIDE and metadata.get("namespace"):
        yield f"metadata.namespace is {metadata['namespace']!r}, and a {item['kind']} is in none"
    yield from words.labels(metadata.get("labels"), "metadata.labels")
    yield from words.labels(metadata.get("annotations"), "metadata.annotations", values=False)
    template, path = template_of(item)
    if template:
        yield from words.labels(mapping(template, "metadata").get("labels"), f"{path}.metadata.labels".lstrip("."))
        yield from check_pod(mapping(template, "spec"), f"{path}.spec".lstrip("."))
    if special := _SPECIAL.get(str(item.get("kind"))):
        yield from special(item)


def _workload(item: Found) -> Iterator[str]:
    """The selector finds the pods of the template, and they start again for ever."""
    spec = mapping(item, "spec")
    template, _ = template_of(item)
    selector = mapping(spec, "selector")
    wanted, has = mapping(selector, "matchLabels"), mapping(mapping(template, "metadata"), "labels")
    yield from words.labels(wanted, "spec.selector.matchLabels")
    for one in mappings(selector, "matchExpressions"):
        yield from expression(one, "spec.selector")
    if not wanted and not selector.get("matchExpressions"):
        yield "spec.selector is empty"
    for key, value in wanted.items():
        if has.get(key) != value:
            yield f"spec.selector wants {key}={value}, and the template's labels have {has.get(key)!r}"
    policy = mapping(template, "spec").get("restartPolicy", "Always")
    if policy != "Always":
        yield f"spec.template.spec.restartPolicy is {policy!r}: a {item['kind']} wants Always"


def _job(item: Found) -> Iterator[str]:
    template, path = template_of(item)
    if mapping(template, "spec").get("restartPolicy") not in ("Never", "OnFailure"):
        yield f"{path}.spec.restartPolicy: a job wants Never or OnFailure"


def _runtime_class(item: Found) -> Iterator[str]:
    if reported := words.label_name(item.get("handler")):
        yield f"handler: {reported}"
    yield from words.labels(mapping(mapping(item, "scheduling"), "nodeSelector"), "scheduling.nodeSelector")


def _binding(item: Found) -> Iterator[str]:
    if mapping(item, "roleRef").get("apiGroup") != "rbac.authorization.k8s.io":
        yield "roleRef.apiGroup has to be rbac.authorization.k8s.io"
    for subject in mappings(item, "subjects"):
        if subject.get("kind") == "ServiceAccount" and not subject.get("namespace"):
            yield f"the ServiceAccount {subject.get('name')} of subjects has no namespace"
        if subject.get("kind") in ("User", "Group") and subject.get("apiGroup") != "rbac.authorization.k8s.io":
            yield f"the {subject['kind']} {subject.get('name')} of subjects wants apiGroup rbac.authorization.k8s.io"


def _role(item: Found) -> Iterator[str]:
    for number, rule in enumerate(mappings(item, "rules")):
        at = f"rules[{number}]"
        if not rule.get("verbs"):
            yield f"{at} has no verbs"
        yield from (f"{at} has the verb {verb!r}" for verb in texts(rule.get("verbs")) if verb not in _VERBS)
        if not rule.get("nonResourceURLs") and not (rule.get("resources") and "apiGroups" in rule):
            yield f"{at} wants apiGroups and resources"


def _service(item: Found) -> Iterator[str]:
    spec = mapping(item, "spec")
    yield from words.labels(spec.get("selector"), "spec.selector")
    ports = mappings(spec, "ports")
    if len(ports) > 1 and not all(port.get("name") for port in ports):
        yield "spec.ports: several ports want a name each"
    if spec.get("type", "ClusterIP") == "ClusterIP" and any(port.get("nodePort") for port in ports):
        yield "spec.ports: a nodePort goes with type: NodePort"


def _config_map(item: Found) -> Iterator[str]:
    for key, text in mapping(item, "data").items():
        if not re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", str(key)):
            yield f"data: {key!r} is no key of letters, digits, -, _ and ."
        if isinstance(text, str) and re.search(r"^version: *v1$", text, re.MULTILINE):
            yield from _plugin_config(str(key), text)


def _plugin_config(key: str, text: str) -> Iterator[str]:
    """A configuration of NVIDIA's device plugin, which itself passes over what it does not know."""
    try:
        data = load_yaml(text, f"data.{key}")
    except InputError as error:
        yield f"data.{key} is no YAML: {error.what}"
        return
    if isinstance(data, Mapping) and {"sharing", "flags", "imex"} & set(data):
        yield from (f"data.{key}: {problem.what} ({problem.fix})" for problem in check_plugin_config(data))


def _device_class(item: Found) -> Iterator[str]:
    for one in mappings(mapping(item, "spec"), "selectors"):
        if reported := cel(str(mapping(one, "cel").get("expression", ""))):
            yield f"spec.selectors: {reported}"


def _claim(item: Found) -> Iterator[str]:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/"""
    spec = (
        mapping(mapping(item, "spec"), "spec") if item.get("kind") == "ResourceClaimTemplate" else mapping(item, "spec")
    )
    for request in mappings(mapping(spec, "devices"), "requests"):
        at = f"the request {request.get('name')}"
        if reported := words.label_name(request.get("name")):
            yield f"{at}: {reported}"
        flat = item.get("apiVersion") == "resource.k8s.io/v1beta1"
        ways = [key for key in ("deviceClassName", "exactly", "firstAvailable") if request.get(key)]
        if len(ways) != 1 or (ways[0] == ("exactly" if flat else "deviceClassName")):
            yield f"{at} wants {'deviceClassName' if flat else 'exactly'} or firstAvailable"
        for one in mappings(request, "selectors") or mappings(mapping(request, "exactly"), "selectors"):
            if reported := cel(str(mapping(one, "cel").get("expression", ""))):
                yield f"{at}: {reported}"


def cel(expression: str) -> str:
    """What is plainly wrong with a CEL expression about a device, "" for nothing; only a server compiles it."""
    bare = re.sub(r"'(\\.|[^'\\])*'|\"(\\.|[^\"\\])*\"", "''", expression)
    closing = {")": "(", "]": "[", "}": "{"}
    open_: list[str] = []
    for char in bare:
        if char in closing.values():
            open_.append(char)
        elif char in closing and (not open_ or open_.pop() != closing[char]):
            return f"{expression!r} closes a bracket that is not open"
    if open_:
        return f"{expression!r} leaves {open_[-1]} open"
    if bare.count("'") % 2 or bare.count('"') % 2:
        return f"{expression!r} leaves a quote open"
    if re.search(r"(?<![=!<>])=(?!=)", bare) or re.search(r"(?<!&)&(?!&)|(?<!\|)\|(?!\|)", bare):
        return f"{expression!r}: write ==, && and ||"
    if not re.search(r"\bdevice\b", bare):
        return f"{expression!r} says nothing of a device"
    return ""


_SPECIAL = {
    **dict.fromkeys(WORKLOADS, _workload),
    **dict.fromkeys(("Job", "CronJob"), _job),
    **dict.fromkeys(("ClusterRoleBinding", "RoleBinding"), _binding),
    **dict.fromkeys(("ClusterRole", "Role"), _role),
    **dict.fromkeys(("ResourceClaim", "ResourceClaimTemplate"), _claim),
    "RuntimeClass": _runtime_class,
    "Service": _service,
    "ConfigMap": _config_map,
    "DeviceClass": _device_class,
}


# ---------------------------------------------------------------- several objects


def _together(item: Found, objects: Sequence[Found]) -> Iterator[str]:
    """What an object names and the others are, as far as they are there: two names for one thing do not meet."""
    kind = item.get("kind")
    if kind == "Service":
        yield from _backs(item, objects)
    if kind in ("ClusterRoleBinding", "RoleBinding"):
        role = mapping(item, "roleRef")
        ours = [one for one in objects if one.get("kind") == role.get("kind")]
        if ours and not any(_name(one) == role.get("name") for one in ours):
            yield f"roleRef names {role.get('kind')} {role.get('name')}, which is not among the others"
    template, path = template_of(item)
    spec = mapping(template, "spec")
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    accounts = [one for one in objects if one.get("kind") == "ServiceAccount"]
    if account and accounts and account != "default":
        place = mapping(item, "metadata").get("namespace")
        if not any(_name(one) == account and mapping(one, "metadata").get("namespace") == place for one in accounts):
            yield f"{path}.spec.serviceAccountName is {account!r}, which is not among the others".lstrip(".")
    for volume in mappings(spec, "volumes"):
        name, maps = mapping(volume, "configMap").get("name"), [o for o in objects if o.get("kind") == "ConfigMap"]
        optional = mapping(volume, "configMap").get("optional")
        if name and maps and not optional and not any(_name(one) == name for one in maps):
            yield f"{path}.spec.volumes: ConfigMap {name} is not among the others".lstrip(".")


def _backs(item: Found, objects: Sequence[Found]) -> Iterator[str]:
    """A Service selects a pod of the others, and its named target ports are that pod's."""
    wanted = mapping(mapping(item, "spec"), "selector")
    place = mapping(item, "metadata").get("namespace")
    pods = [template_of(one)[0] for one in objects if mapping(one, "metadata").get("namespace") == place]
    pods = [pod for pod in pods if pod]
    if not wanted or not pods:
        return
    chosen = [pod for pod in pods if wanted.items() <= mapping(mapping(pod, "metadata"), "labels").items()]
    if not chosen:
        yield "spec.selector matches no pod of the others"
    names = {
        str(p.get("name"))
        for pod in chosen
        for c in mappings(mapping(pod, "spec"), "containers")
        for p in mappings(c, "ports")
    }
    for port in mappings(mapping(item, "spec"), "ports"):
        target = port.get("targetPort")
        if chosen and isinstance(target, str) and target not in names:
            yield f"spec.ports: targetPort {target!r} is no port of the pods"


def _name(item: Found) -> Any:
    return mapping(item, "metadata").get("name")
