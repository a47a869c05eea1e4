"""Plans → plays, as plain data.  A reader of the dumped YAML sees what will happen: every value is a literal.

Values come from nodes, which are not trusted, so that nothing in them may be a template.  `dump` sees to that, and all
that gpunode writes for Ansible goes through it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import yaml

from gpunode.core.model import Plan, Step
from gpunode.core.plan import class_key
from gpunode.core.plan.steps import ROLES

HEADER = """\
# Written by gpunode.  Run it with:  ansible-playbook playbook.yml  (in this folder)
# Every value is a literal that `gpunode plan` decided; hosts with the same plan share a play.
# A text that could be read as a template is tagged !unsafe: Ansible takes it as it is, and evaluates nothing in it.
"""
TEMPLATE_MARKERS = ("{{", "{%", "{#")
NO_TEMPLATE = "!unsafe"  # Ansible's tag for a text that is never templated, wherever it is passed on to
_LINE_BREAKS = re.compile("[\r\x85\u2028\u2029]")  # they are kept by escapes alone: YAML folds them


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper; a text of several lines becomes a literal block, so that files can be read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Keys and values alike; no text with a marker is read as anything but a text, so the tag changes no type."""
    tag = NO_TEMPLATE if any(marker in text for marker in TEMPLATE_MARKERS) else "tag:yaml.org,2002:str"
    style = '"' if _LINE_BREAKS.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar(tag, text, style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_multi_representer(str, _text)  # Ansible tags its strings: a subclass of str


def classes(plans: Iterable[Plan]) -> dict[str, list[Plan]]:
    """The plans that have steps, by class: equal steps, equal key.  Converged and refused hosts are in none."""
    found: dict[str, list[Plan]] = {}
    for plan in plans:
        if plan.steps:
            found.setdefault(class_key(plan), []).append(plan)
    return found


def split(plans: Iterable[Plan], count: int) -> list[list[Plan]]:
    """At most `count` lists of about equal length; hosts with equal plans stay together, so that plays are few."""
    sorted_plans = [plan for members in classes(plans).values() for plan in members]
    count = min(count, len(sorted_plans))
    ends = [len(sorted_plans) * number // count for number in range(count + 1)] if count else []
    return [sorted_plans[start:end] for start, end in pairwise(ends)]


def group_name(key: str) -> str:
    """The inventory group of a class."""
    return f"gpunode_{key}"


def make_playbook(plans: Iterable[Plan]) -> list[dict[str, Any]]:
    """One play for each class of plans."""
    return [_play(key, members) for key, members in classes(plans).items()]


def make_inventory(plans: Iterable[Plan], connection: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Groups of the classes, with what preflight expects of each host; `connection` adds variables by host.

    Given beside the user's own inventory it adds to it; with `connection` it stands alone.  Those variables are what
    Ansible and the command line have made of the user's: literals like all others.
    """
    plans = list(plans)
    hosts = {
        p.host: {**(connection or {}).get(p.host, {}), **{f"{s.role}_{s.option}": s.value for s in _own(p)}}
        for p in plans
        if p.steps or connection
    }
    groups: dict[str, Any] = {
        group_name(k): {"hosts": {p.host: {} for p in members}} for k, members in classes(plans).items()
    }
    return {"all": {"hosts": hosts, "children": groups}}


def dump(data: Any, header: str = "") -> str:
    """Plain data as YAML text in which Ansible finds no template, whatever the data is."""
    body = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, explicit_start=True)
    return header + body


def _own(plan: Plan) -> list[Step]:
    return [s for s in plan.steps if s.role == "preflight"]


def _play(key: str, members: list[Plan]) -> dict[str, Any]:
    count = len(members)
    return {
        "name": f"Class {key}, {count} host{'s' if count != 1 else ''}: {_summary(members[0])}",
        "hosts": group_name(key),
        "gather_facts": False,
        "strategy": "free",  # one slow DKMS build holds nobody up
        "roles": [role for one in ROLES if (role := _role(one.name, members[0]))],
    }


def _role(name: str, plan: Plan) -> dict[str, Any] | None:
    if name == "preflight":
        return {"role": "gpunode.node.preflight"}  # its values are the hosts' own, see make_inventory
    values = {f"{s.role}_{s.option}": s.value for s in plan.steps if s.role == name}
    return {"role": f"gpunode.node.{name}", "vars": values} if values else None


def _summary(plan: Plan) -> str:
    """The roles that have something to do, in a play's title."""
    named = list(dict.fromkeys(s.role for s in plan.steps if s.role not in ("preflight", "verify")))
    return ", ".join(named) or "verify"
