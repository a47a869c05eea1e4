"""RBAC: whether a component that is known may do what it does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpunode.core.knowledge.kubernetes import Right
from gpunode.core.kube.checks.objects import Found, template_of, title
from gpunode.core.kube.plain import mapping, mappings, texts
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
