"""What pods of old said in annotations and old names.  Objects are changed in place; each change is said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpunode.core.flags import change_flags, flags_in, last_value
from gpunode.core.knowledge.kubernetes import Server
from gpunode.core.knowledge.kubernetes_old import OldForms
from gpunode.core.knowledge.scheduler import SchedulerRules
from gpunode.core.kube.checks.objects import template_of, title
from gpunode.core.kube.convert.objects import Conversion, put, rename
from gpunode.core.kube.plain import mapping, mappings
from gpunode.core.model import Problem


def convert_pods(item: Any, forms: OldForms, server: Server, rules: SchedulerRules) -> Iterator[Conversion]:
    """Annotations become fields, old labels and resources their new names, flags that are gone go."""
    template: Any
    template, _ = template_of(item)
    spec = mapping(template, "spec")
    if not spec:
        return
    annotations = mapping(template, "metadata", "annotations")
    for row in forms.annotations:
        if row.old in annotations and server >= row.since:
            yield from _ANNOTATIONS[row.new](item, spec, str(annotations.pop(row.old) or ""))
            yield f"annotation {row.old} taken out", row.why
    if annotations == {} and "annotations" in mapping(template, "metadata"):
        del template["metadata"]["annotations"]
    yield from _labels(spec, {row.old: row.new for row in forms.labels if server >= row.since})
    for container in [*mappings(spec, "initContainers"), *mappings(spec, "containers")]:
        for kind in ("requests", "limits"):
            names = {row.old: row.new for row in forms.resources if server >= row.since}
            yield from _renamed(mapping(container, "resources", kind), names, f"{container.get('name')}: ")
        yield from _image(container, {row.old: row.new for row in forms.images})
        yield from _flags(container, server.minor, rules)
    if "serviceAccount" in spec:
        name = spec.pop("serviceAccount")
        if "serviceAccountName" not in spec:
            put(spec, "serviceAccountName", name, before="containers")
            yield "serviceAccount → serviceAccountName", "the former is an alias of old"


def superseded(item: Any, forms: OldForms, images: Mapping[str, str]) -> Iterator[Problem]:
    """Images that nobody keeps under that name any more; what their successor wants is not the same."""
    spec = mapping(template_of(item)[0], "spec")
    for container in mappings(spec, "containers"):
        image = str(container.get("image", ""))
        row = next((row for row in forms.superseded if re.match(rf"{re.escape(row.old)}(:|@|$)", image)), None)
        if row:
            yield Problem(
                what=f"{title(item)}: the image {image} is kept no more",
                fix=f"today it is {images[row.new]}; gpunode kube render writes a new object",
            )


# ---------------------------------------------------------------- annotations


def _priority(item: Any, spec: Any, _: str) -> Iterator[Conversion]:
    if not spec.get("priorityClassName"):
        name = "system-node-critical" if item.get("kind") == "DaemonSet" else "system-cluster-critical"
        put(spec, "priorityClassName", name, before=next(iter(spec)))
        yield f"priorityClassName: {name}", "what the annotation critical-pod asked for"


def _json(field: str) -> Callable[[Any, Any, str], Iterator[Conversion]]:
    """A field that stood as JSON in an annotation."""

    def rule(_item: Any, spec: Any, text: str) -> Iterator[Conversion]:
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if value and not spec.get(field):
            put(spec, field, value, before="containers")
            yield f"spec.{field}", "what the annotation said"

    return rule


def _seccomp(_item: Any, spec: Any, text: str) -> Iterator[Conversion]:
    kind, _, path = text.partition("/")
    known: dict[str, dict[str, str]] = {
        "runtime": {"type": "RuntimeDefault"},
        "docker": {"type": "RuntimeDefault"},
        "unconfined": {"type": "Unconfined"},
        "localhost": {"type": "Localhost", "localhostProfile": path},
    }
    if kind in known:
        if not mapping(spec, "securityContext"):
            spec["securityContext"] = {}
        spec["securityContext"].setdefault("seccompProfile", known[kind])
        yield f"securityContext.seccompProfile: {known[kind]['type']}", "what the annotation said"


_ANNOTATIONS: Mapping[str, Callable[[Any, Any, str], Iterator[Conversion]]] = {
    "priority": _priority,
    "tolerations": _json("tolerations"),
    "affinity": _json("affinity"),
    "seccomp": _seccomp,
}


# ---------------------------------------------------------------- names


def _labels(spec: Any, names: Mapping[str, str]) -> Iterator[Conversion]:
    """In selectors, in affinities, in tolerations of taints."""
    yield from _renamed(mapping(spec, "nodeSelector"), names, "nodeSelector: ")
    yield from _expressions(spec.get("affinity"), names)
    keys = [toleration.get("key") for toleration in mappings(spec, "tolerations")]
    for toleration in mappings(spec, "tolerations"):
        old = str(toleration.get("key"))
        if old in names and names[old] not in keys:
            toleration["key"] = names[old]
            yield f"toleration of {old} → {names[old]}", "no node has the former taint"


def _expressions(found: Any, names: Mapping[str, str]) -> Iterator[Conversion]:
    if isinstance(found, dict):
        if "operator" in found and str(found.get("key")) in names:
            old = found["key"]
            found["key"] = names[old]
            yield f"affinity: {old} → {names[old]}", "no node has the former label"
        for value in found.values():
            yield from _expressions(value, names)
    elif isinstance(found, list):
        for value in found:
            yield from _expressions(value, names)


def _renamed(found: Any, names: Mapping[str, str], where: str) -> Iterator[Conversion]:
    for old in [key for key in found if key in names]:
        rename(found, old, names[old])
        yield f"{where}{old} → {names[old]}", "the former name is gone"


def _image(container: Any, names: Mapping[str, str]) -> Iterator[Conversion]:
    image = str(container.get("image", ""))
    for old, new in names.items():
        if image.startswith(old):
            container["image"] = new + image.removeprefix(old)
            yield f"image {image} → {container['image']}", "the former registry is frozen since April 2023"


# ---------------------------------------------------------------- flags of Kubernetes' own components


def without_gates(text: str, minor: int, rules: SchedulerRules) -> tuple[str, list[str]]:
    """NAME=true,… without the feature gates that this release refuses, and the names of those."""
    gone = {gate.name for gate in rules.gates if minor >= gate.gone}
    pairs = [pair.strip() for pair in text.split(",") if pair.strip()]
    dropped = [pair.partition("=")[0] for pair in pairs if pair.partition("=")[0] in gone]
    return ",".join(pair for pair in pairs if pair.partition("=")[0] not in gone), dropped


def _flags(container: Any, minor: int, rules: SchedulerRules) -> Iterator[Conversion]:
    """Feature gates of every component, and kube-scheduler's flags, that would keep it from starting."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    program = next((str(word).rpartition("/")[2] for word in words if not str(word).startswith("-")), "")
    if not program.startswith(("kube-", "kubelet", "hyperkube")):
        return
    for key in ("command", "args"):
        listed = container.get(key)
        if not isinstance(listed, list) or not all(isinstance(word, str) for word in listed):
            continue
        gone = rules.gone_flags(minor) if program == "kube-scheduler" else {}
        flags = flags_in(listed)
        drop = {flag.name for flag in flags if flag.name in gone}
        gates = last_value(flags, "feature-gates")
        rest, dropped = without_gates(gates or "", minor, rules)
        want = {"feature-gates": rest} if dropped and rest else {}
        change = change_flags(listed, drop=drop | ({"feature-gates"} if dropped and not rest else set()), want=want)
        changed = change.rewritten or {}
        for at in range(len(listed) - 1, -1, -1):
            if at in change.gone:
                del listed[at]
            elif at in changed:
                listed[at] = changed[at]
        yield from (
            (f"--{name} taken out", f"gone since 1.{gone[name].gone}: {gone[name].instead}") for name in sorted(drop)
        )
        yield from _gates(dropped, rules)


def _gates(dropped: list[str], rules: SchedulerRules) -> Iterator[Conversion]:
    for gate in rules.gates:
        if gate.name in dropped:
            yield f"feature gate {gate.name} taken out", f"gone since 1.{gate.gone}: {gate.instead}"
