"""Plans → plays, as plain data.  A reader of the dumped YAML sees what will happen: every value is a literal, in the
play where all of its hosts have the same, else in the inventory.

Values come from nodes, which are not trusted, so that nothing in them may be a template.  `dump` sees to that, and all
that gpunode writes for Ansible goes through it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import count
from typing import Any

import yaml

from gpunode.core.grouped import grouped
from gpunode.core.late import regex
from gpunode.core.model import Plan, Step
from gpunode.core.plan import class_key, shared_value
from gpunode.core.plan.steps import BY_ID, DONE, EXPECT, ROLES, VALUES
from gpunode.core.yaml_text import PlainDumper

HEADER = """\
# Written by gpunode.  Run it with:  ansible-playbook playbook.yml  (in this folder)
# The controller needs the Python package gpunode, which brings the roles, in the version that manifest.json names.
# Users, become and passwords come from your inventory, which ansible.cfg names.
# Parts are chosen by tags: --tags gpunode_driver, --skip-tags gpunode_runtime; --list-tags shows them.
# Every value is a literal that `gpunode plan` decided; those in which the hosts of a play differ are in inventory.yml.
# A text that could be read as a template is tagged !unsafe: Ansible takes it as it is, and evaluates nothing in it.
"""
Shape = tuple[tuple[str, str], ...]  # the ids and titles of steps
TEMPLATE_MARKERS = ("{{", "{%", "{#")
NO_TEMPLATE = "!unsafe"  # Ansible's tag for a text that is never templated, wherever it is passed on to
_LINE_BREAKS = regex("[\r\x85\u2028\u2029]")  # they are kept by escapes alone: YAML folds them


class _Dumper(PlainDumper):
    """With lists below their keys indented, as ansible-lint wants them."""

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
    return grouped((class_key(plan), plan) for plan in plans if plan.steps)


def group_names(plans: Iterable[Plan]) -> dict[Shape, str]:
    """Shape → the inventory group of its play, named by the parts: it stays when hosts come, go or get other values."""
    names: dict[Shape, str] = {}
    for shape, found in sorted(_shapes(plans).items()):
        names[shape] = _unused("_".join(["gpunode", *_parts(next(iter(found.values()))[0])]), names.values())
    return names


def make_playbook(plans: Iterable[Plan], groups: Mapping[Shape, str] | None = None) -> list[dict[str, Any]]:
    """One play for all plans with the same steps; `groups` names these where the plans are but some of a run."""
    found = _shapes(plans)
    names = groups or group_names(plan for members in found.values() for plans in members.values() for plan in plans)
    return [_play(names[shape], members) for shape, members in found.items()]


def make_inventory(plans: Iterable[Plan], connection: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """The groups of the plays, with the values in which their hosts differ; `connection` adds variables by host.

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
    groups = {names[shape]: _group(names[shape], found) for shape, found in _shapes(plans).items()}
    return {"all": {"hosts": hosts, "children": groups}}


def _shapes(plans: Iterable[Plan]) -> dict[Shape, dict[str, list[Plan]]]:
    """The plans that have steps, by these, and by class among those."""
    found: dict[Shape, dict[str, list[Plan]]] = {}
    for key, members in classes(plans).items():
        shape = tuple((s.id, s.title) for s in members[0].steps if s.id != "preflight.recover")
        found.setdefault(shape, {})[key] = members
    return found


def _group(name: str, found: Mapping[str, list[Plan]]) -> dict[str, Any]:
    """The hosts of a play; where they differ, groups with the values of each class, named by the first host."""
    differing = _differing(found)
    if not differing:
        return {"hosts": {plan.host: {} for members in found.values() for plan in members}}
    groups: dict[str, Any] = {}
    for members in sorted(found.values(), key=lambda members: min(plan.host for plan in members)):
        first = re.sub(r"\W", "_", min(plan.host for plan in members), flags=re.ASCII)
        values = {BY_ID[s.id].variable: shared_value(s) for s in members[0].steps if s.id in differing}
        groups[_unused(f"{name}_as_{first}", groups)] = {
            "hosts": {plan.host: {} for plan in members},
            "vars": {VALUES: values},
        }
    return {"children": groups}


def _differing(found: Mapping[str, list[Plan]]) -> set[str]:
    """The steps whose values are not the same in all classes of a play."""
    first, *others = (members[0] for members in found.values())
    values = {s.id: shared_value(s) for s in first.steps if s.id not in ("preflight.recover", "preflight.expect")}
    return {s.id for plan in others for s in plan.steps if s.id in values and shared_value(s) != values[s.id]}


def _unused(name: str, names: Collection[str]) -> str:
    like = (name if number == 1 else f"{name}_{number}" for number in count(1))
    return next(one for one in like if one not in names)


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


def _play(group: str, found: Mapping[str, list[Plan]]) -> dict[str, Any]:
    members = [plan for one in found.values() for plan in one]
    number = group.rpartition("_")[2]
    title = ", ".join(_parts(members[0])).capitalize()
    return {
        "name": f"{title} ({number})" if number.isdecimal() else title,
        "hosts": group,
        "gather_facts": False,
        "strategy": "free",  # one slow DKMS build holds nobody up
        "tasks": [task for one in ROLES for task in _tasks(one.name, members, _differing(found))],
    }


def _tasks(role: str, members: list[Plan], differing: Collection[str]) -> list[dict[str, Any]]:
    """The steps of a role as tasks: values are literal arguments, which no variable overrides."""
    first = members[0]
    steps = [s for s in first.steps if s.role == role]
    if role == "preflight":
        recover = [s for plan in members for s in plan.steps if s.id == "preflight.recover"]
        steps = [*recover[:1], *(s for s in steps if s.id != "preflight.recover")]
    there = {s.id for s in first.steps}
    return [_task(s, there, differing) for s in steps]


def _task(step: Step, there: Collection[str], differing: Collection[str]) -> dict[str, Any]:
    row = BY_ID[step.id]
    arguments = {row.kind.argument: shared_value(step)}
    if step.id in differing:
        arguments = {row.kind.argument: Template(f"{{{{ {VALUES}.{row.variable} }}}}")}
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


def _parts(plan: Plan) -> list[str]:
    """The roles that have something to do."""
    return list(dict.fromkeys(s.role for s in plan.steps if s.role not in ("preflight", "verify"))) or ["verify"]
