"""Plans → plays, as plain data.  A reader of the dumped YAML sees what will happen: every value is a literal.

Values come from nodes, which are not trusted, so that nothing in them may be a template.  `dump` sees to that, and all
that gpunode writes for Ansible goes through it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import count, pairwise
from typing import Any

import yaml

from gpunode.core.model import Plan, Step
from gpunode.core.plan import class_key, shared_value
from gpunode.core.plan.steps import BY_ID, DONE, EXPECT, ROLES

HEADER = """\
# Written by gpunode.  Run it with:  ansible-playbook playbook.yml  (in this folder)
# The controller needs the Python package gpunode, which brings the roles, in the version that manifest.json names.
# Users, become and passwords come from your inventory, which ansible.cfg names.
# Parts are chosen by tags: --tags gpunode_driver, --skip-tags gpunode_runtime; --list-tags shows them.
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


class Template(str):
    """A template of ours, which Ansible is to evaluate: made of constants, never of what a node said."""


_Dumper.add_representer(str, _text)
_Dumper.add_representer(Template, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text)))
_Dumper.add_multi_representer(str, _text)  # Ansible tags its strings: a subclass of str


def classes(plans: Iterable[Plan]) -> dict[str, list[Plan]]:
    """The plans that have steps, by class: equal steps, equal key.  Converged and refused hosts are in none."""
    found: dict[str, list[Plan]] = {}
    for plan in plans:
        if plan.steps:
            found.setdefault(class_key(plan), []).append(plan)
    return found


def split(plans: Iterable[Plan], parts: int) -> list[list[Plan]]:
    """At most `parts` lists of about equal length; hosts with equal plans stay together, so that plays are few."""
    sorted_plans = [plan for members in classes(plans).values() for plan in members]
    parts = min(parts, len(sorted_plans))
    ends = [len(sorted_plans) * number // parts for number in range(parts + 1)] if parts else []
    return [sorted_plans[start:end] for start, end in pairwise(ends)]


def group_names(plans: Iterable[Plan]) -> dict[str, str]:
    """Class → its inventory group, named by the first of its hosts: it stays when the steps change."""
    firsts = {key: min(plan.host for plan in members) for key, members in classes(plans).items()}
    names: dict[str, str] = {}
    for key, host in sorted(firsts.items(), key=lambda item: item[1]):
        name = "gpunode_" + re.sub(r"\W", "_", host, flags=re.ASCII)
        like = (name if number == 1 else f"{name}_{number}" for number in count(1))
        names[key] = next(one for one in like if one not in names.values())
    return names


def make_playbook(plans: Iterable[Plan], groups: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """One play for each class of plans; `groups` names the classes where these are but some plans of a run."""
    found = classes(plans)
    names = groups or group_names(plan for members in found.values() for plan in members)
    return [_play(names[key], members) for key, members in found.items()]


def make_inventory(plans: Iterable[Plan], connection: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Groups of the classes, with what preflight expects of each host; `connection` adds variables by host.

    Given beside the user's own inventory it adds to it; with `connection` it stands alone.  Those variables are what
    Ansible and the command line have made of the user's: literals like all others.
    """
    plans = list(plans)
    hosts = {
        p.host: {**(connection or {}).get(p.host, {}), **({EXPECT: _expected(p)} if p.steps else {})}
        for p in plans
        if p.steps or connection
    }
    names = group_names(plans)
    groups: dict[str, Any] = {
        names[k]: {"hosts": {p.host: {} for p in members}} for k, members in classes(plans).items()
    }
    return {"all": {"hosts": hosts, "children": groups}}


def dump(data: Any, header: str = "", width: int = 110) -> str:
    """Plain data as YAML text in which Ansible finds no template, whatever the data is."""
    body = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width, explicit_start=True)
    return header + body


def _expected(plan: Plan) -> dict[str, Any]:
    """The node that the plan was made for, and the files that edits were worked out on."""
    [node] = [s.value for s in plan.steps if s.id == "preflight.expect"] or [{}]
    edits = [edit for s in plan.steps if s.id == "runtime.edits" for edit in s.value]
    files = {edit["runtime"]: edit["expect"] for edit in edits if edit.get("expect")}
    return {**node, **({"files": files} if files else {})}


def _play(group: str, members: list[Plan]) -> dict[str, Any]:
    return {
        "name": f"{_summary(members[0])} ({group})",
        "hosts": group,
        "gather_facts": False,
        "strategy": "free",  # one slow DKMS build holds nobody up
        "tasks": [task for one in ROLES for task in _tasks(one.name, members)],
    }


def _tasks(role: str, members: list[Plan]) -> list[dict[str, Any]]:
    """The steps of a role as tasks: every value is a literal argument, which no variable overrides."""
    first = members[0]
    steps = [s for s in first.steps if s.role == role]
    if role == "preflight":
        recover = [s for plan in members for s in plan.steps if s.id == "preflight.recover"]
        steps = [*recover[:1], *(s for s in steps if s.id != "preflight.recover")]
    there = {s.id for s in first.steps}
    return [_task(s, there) for s in steps]


def _task(step: Step, there: Collection[str]) -> dict[str, Any]:
    row = BY_ID[step.id]
    arguments = {row.kind.argument: shared_value(step)}
    if step.id == "preflight.expect":
        arguments = {"expect": Template(f"{{{{ {EXPECT} }}}}")}
    if step.id == "runtime.edits":
        arguments["expect"] = Template(f"{{{{ {EXPECT} }}}}")
    after = [option for option in row.results_of if f"{row.role}.{option}" in there]
    if after:
        arguments["after"] = [Template(f"{{{{ {DONE}{row.role}_{option} }}}}") for option in after]
    kept = any(row.option in other.results_of and other.role == row.role for other in BY_ID.values())
    return {
        "name": step.title,
        f"gpunode.node.{row.kind.action}": arguments,
        **({"register": f"{DONE}{row.variable}"} if kept else {}),
        # no choice of tags leaves the check out
        "tags": ["always", "gpunode_preflight"] if step.role == "preflight" else f"gpunode_{step.role}",
    }


def _summary(plan: Plan) -> str:
    """The roles that have something to do, in a play's title."""
    named = list(dict.fromkeys(s.role for s in plan.steps if s.role not in ("preflight", "verify")))
    text = ", ".join(named) or "verify"
    return f"{text[0].upper()}{text[1:]}"
