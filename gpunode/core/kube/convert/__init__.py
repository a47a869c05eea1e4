"""Old manifests → today's form: the same YAML with its comments, and what was changed and why."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from gpunode.core.edits.kubernetes.scheduler_config import Extender, converted_policy, new_config, ours
from gpunode.core.edits.kubernetes.schemas import kubelet_faults, scheduler_faults
from gpunode.core.edits.target import Refusal
from gpunode.core.errors import InputError
from gpunode.core.knowledge.kubernetes import KubeKnowledge, Right, Server
from gpunode.core.knowledge.kubernetes_old import OldForms
from gpunode.core.knowledge.scheduler import GROUP, SchedulerRules
from gpunode.core.kube.checks.objects import Found, check_objects, is_object, template_of, title
from gpunode.core.kube.convert.objects import Conversion, convert_api, ended
from gpunode.core.kube.convert.pod import convert_pods, superseded
from gpunode.core.kube.plain import mapping, mappings, plain, texts
from gpunode.core.model import Problem


def missing_rights(objects: Sequence[Found], needs: Mapping[str, Sequence[Right]]) -> list[Problem]:
    """What the roles among the objects do not allow to those of their pods whose images are known."""
    return [
        Problem(
            what=f"{title(item)}: its ServiceAccount {account} may not {right.verb} {right.resource}",
            fix="add it to a ClusterRole that is bound to the account",
        )
        for item in objects
        for account, right in _wanted(item, needs)
        if not any(_allows(rule, right) for rule in _rules(objects, account, _namespace(item)))
    ]


def _wanted(item: Found, needs: Mapping[str, Sequence[Right]]) -> Iterator[tuple[str, Right]]:
    """Account and right, for every component that runs in the object's pods."""
    spec = mapping(template_of(item)[0], "spec")
    for container in mappings(spec, "containers"):
        name = re.split(r"[:@]", str(container.get("image", "")).rpartition("/")[2])[0]
        account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
        yield from ((account, right) for right in needs.get(name, ()))


def _rules(objects: Sequence[Found], account: str, namespace: str) -> Iterator[Found]:
    """The rules of the roles that are bound to an account."""
    roles = {(item.get("kind"), str(_name(item))): mappings(item, "rules") for item in objects}
    for item in objects:
        if item.get("kind") not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        subjects = [(s.get("kind"), s.get("name"), s.get("namespace")) for s in mappings(item, "subjects")]
        if ("ServiceAccount", account, namespace) in subjects:
            role = mapping(item, "roleRef")
            yield from roles.get((str(role.get("kind")), str(role.get("name"))), ())


def _allows(rule: Found, right: Right) -> bool:
    groups, resources, verbs = (set(texts(rule.get(key))) for key in ("apiGroups", "resources", "verbs"))
    return bool(groups & {"", "*"} and resources & {right.resource, "*"} and verbs & {right.verb, "*"})


def _namespace(item: Found) -> str:
    return str(mapping(item, "metadata").get("namespace") or "default")


def _name(item: Found) -> Any:
    return mapping(item, "metadata").get("name")


_KUBELET = "kubelet.config.k8s.io/"
Config = tuple[Any, list[Conversion], list[Problem]]  # the object, what changed, what is left


def convert_config(item: Any, minor: int, rules: SchedulerRules) -> Config | None:
    """The configuration for a component of this release; None for what is no configuration."""
    kind, api = item.get("kind"), str(item.get("apiVersion", ""))
    if kind == "Policy" and not api.startswith("audit."):
        return _policy(item, minor, rules)
    if kind == "KubeSchedulerConfiguration":
        return _scheduler(item, minor, rules)
    if kind == "KubeletConfiguration" and api.startswith(_KUBELET):
        return _kubelet(item, minor, rules)
    return None


def _policy(item: Any, minor: int, rules: SchedulerRules) -> Config:
    """gpushare's extender keeps its URL, and is written as upstream has it today."""
    if rules.policy(minor):
        return item, [], []
    if wrong := _shape(item):
        return item, [], [Problem(what=f"Policy: {wrong}", fix="fix it: kube-scheduler never took that")]
    mine = next((one for one in item.get("extenders") or () if ours(one, rules)), None)
    url = next((str(value) for key, value in (mine or {}).items() if key.lower() == "urlprefix"), "")
    request = Extender(minor=minor, url=url, default="", rules=rules)
    try:
        extra, reasons = converted_policy("Policy", yaml.safe_dump(plain(item)).encode(), request)
        changed = _config(request, extra) if mine is None else yaml.safe_load(new_config(request, [], extra))
    except Refusal as refusal:
        return item, [], [refusal.problem]
    reported = [(f"Policy → KubeSchedulerConfiguration {changed['apiVersion'].rpartition('/')[2]}", reasons[0].why)]
    reported += [(reason.what.removeprefix("Policy: ") + " left out", reason.why) for reason in reasons[1:]]
    reported += [("name it by --config, in place of --policy-config-file", "gpunode kube scheduler configure does so")]
    return changed, reported, _faults(scheduler_faults(changed, minor, rules), "KubeSchedulerConfiguration")


def _shape(item: Any) -> str:
    """What of a Policy is no list of mappings with names."""
    for key, names in (("predicates", True), ("priorities", True), ("extenders", False)):
        found = item.get(key) or []
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            return f"{key} is no list of mappings"
        if names and not all(isinstance(one.get("name"), str) for one in found):
            return f"{key} wants a name for each"
    return ""


def _config(asked: Extender, extra: Mapping[str, Any]) -> dict[str, Any]:
    api = f"{GROUP}/{asked.rules.best(asked.minor)}"
    return {"apiVersion": api, "kind": "KubeSchedulerConfiguration", **extra}


def _scheduler(item: Any, minor: int, rules: SchedulerRules) -> Config:
    """A version that the server reads, without the fields that it has no more."""
    reported: list[Conversion] = []
    old, best, takes = str(item.get("apiVersion")).rpartition("/")[2], rules.best(minor), rules.takes(minor)
    if old not in takes and takes:
        item["apiVersion"] = f"{GROUP}/{best}"
        reported.append((f"apiVersion {old} → {best}", f"kube-scheduler 1.{minor} reads {', '.join(takes)}"))
        for key in ("healthzBindAddress", "metricsBindAddress"):
            if key in item and best in ("v1beta3", "v1"):
                del item[key]
                reported.append((f"{key} taken out", f"{best} has it no more"))
    return item, reported, _faults(scheduler_faults(plain(item), minor, rules), "KubeSchedulerConfiguration")


def _kubelet(item: Any, minor: int, rules: SchedulerRules) -> Config:
    """Without the feature gates that keep the kubelet from starting."""
    reported: list[Conversion] = []
    gates = item.get("featureGates")
    for gate in rules.gates:
        if isinstance(gates, dict) and minor >= gate.gone and gate.name in gates:
            del gates[gate.name]
            reported.append((f"featureGates.{gate.name} taken out", f"gone since 1.{gate.gone}: {gate.instead}"))
    if gates == {} and reported:
        del item["featureGates"]
    return item, reported, _faults(kubelet_faults(plain(item), minor, rules), "KubeletConfiguration")


def _faults(found: list[str], kind: str) -> list[Problem]:
    return [Problem(what=f"{kind}: {fault}", fix="fix it: the component would not start with it") for fault in found]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that became another: of which object, what, and why."""

    object: str
    what: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Old:
    """All that is known of old forms, and the server that the new ones are for."""

    server: Server
    forms: OldForms
    knowledge: KubeKnowledge
    rules: SchedulerRules


@dataclass(frozen=True, kw_only=True)
class Converted:
    """The manifest again; `problems` are left to a person."""

    text: str
    changes: tuple[Change, ...]
    problems: tuple[Problem, ...]


def convert(text: str, old: Old, *, name: str = "the manifest") -> Converted:
    """A stream of YAML documents, or one JSON object, in the form that the server takes.

    Without changes the text stays as it is, byte by byte.  Raises InputError for what is no YAML.
    """
    documents = _read(text, name)
    changes: list[Change] = []
    problems: list[Problem] = []
    kept: list[Any] = []
    for document in documents:
        items = document.get("items") if str(document.get("kind", "")).endswith("List") else None
        stay = [_converted(item, old, changes, problems) for item in (items if isinstance(items, list) else [document])]
        if isinstance(items, list):
            items[:] = [item for item in stay if item is not None]
            kept.append(document)
        else:
            kept += [item for item in stay if item is not None]
    objects = [item for document in plain(kept) for item in _objects(document)]
    problems += [problem for item in objects for problem in superseded(item, old.forms, old.knowledge.images)]
    problems += [*check_objects(objects), *missing_rights(objects, old.knowledge.needs)]
    return Converted(
        text=_written(kept, text) if changes else text, changes=tuple(changes), problems=tuple(dict.fromkeys(problems))
    )


def _converted(item: Any, old: Old, changes: list[Change], problems: list[Problem]) -> Any:
    """The object, changed in place; None for one that is taken out."""
    if not is_object(item):
        problems.append(Problem(what=f"{str(item)[:60]!r} is no object", fix="every object has apiVersion and kind"))
        return item
    name = title(item)
    if over := ended(item, old.forms, old.server):
        if over.out:
            changes.append(Change(object=name, what="taken out", why=f"gone since {over.gone}: {over.instead}"))
            return None
        what = f"{name}: {item['apiVersion']} is gone since {over.gone}, and gpunode does not convert it"
        problems.append(Problem(what=what, fix=over.instead))
        return item
    config = convert_config(item, old.server.minor, old.rules)
    if config is not None:
        item, reported, left = config
        problems += left
    else:
        reported = [*convert_api(item, old.forms, old.server), *convert_pods(item, old.forms, old.server, old.rules)]
    changes += [Change(object=name, what=what, why=why) for what, why in reported]
    return item


def _objects(document: Any) -> Iterator[Any]:
    items = document.get("items") if str(document.get("kind", "")).endswith("List") else None
    yield from (item for item in (items if isinstance(items, list) else [document]) if is_object(item))


# ---------------------------------------------------------------- YAML with its comments


def _read(text: str, name: str) -> list[CommentedMap]:
    try:
        documents = [item for item in _yaml(text).load_all(text) if item is not None]
    except (YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{name} is no YAML: {_one_line(error)}", expected="a manifest, YAML or JSON") from error
    wrong = next((item for item in documents if not isinstance(item, CommentedMap)), None)
    if wrong is not None or not documents:
        reported = f"{str(wrong)[:60]!r}" if documents else "no object"
        raise InputError(f"{name} holds {reported}", expected="Kubernetes objects, with apiVersion and kind")
    return documents


def _written(documents: list[Any], text: str) -> str:
    if text.lstrip().startswith("{"):
        return "".join(json.dumps(item, indent=2, ensure_ascii=False) + "\n" for item in plain(documents))
    out = io.StringIO()
    yaml = _yaml(text)
    yaml.explicit_start = text.lstrip().startswith("---")
    yaml.dump_all(documents, out)
    return out.getvalue()


def _yaml(text: str) -> YAML:
    """Reads and writes with comments, quotes, and the indentation that the text has."""
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    found = re.search(r"^( *)[^\s#-][^#\n]*:[ \t]*\n(?: *#.*\n)*( *)- ", text, re.MULTILINE)
    offset = len(found[2]) - len(found[1]) if found else 0
    yaml.indent(mapping=2, sequence=2 + offset, offset=offset)
    return yaml


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
