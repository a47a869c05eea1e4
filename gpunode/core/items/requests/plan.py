"""A plan as the variables of the roles, for authors of Ansible code who use the role gpunode.node.node."""

from __future__ import annotations

from typing import Any

from gpunode.core.model import Plan

# The options of the roles, in their order: what roles/*/meta/argument_specs.yml say, each with its empty value.
_SOFTWARE: dict[str, Any] = {"sources": [], "packages": {}, "files": []}
ROLE_OPTIONS: dict[str, dict[str, Any]] = {
    "preflight": {"recover": False, "expect": {}, "fetch": []},
    "driver": {
        "sources": [],
        "uninstall": [],
        "repositories": {},
        "packages": {},
        "runfile": [],
        "files": [],
        "first_boot": {},
        "activate": {},
    },
    "fabric": {**_SOFTWARE, "activate": {}},
    "cuda": {"sources": [], "packages": {}, "runfile": [], "files": [], "activate": {}},
    "toolkit": {**_SOFTWARE, "config": {}},
    "sharing": {"mig": {}, "mps": {}},
    "runtime": {**_SOFTWARE, "activate": {}, "edits": [], "cdi": {}},
    "verify": {"smoke": {}},
}


def role_variables(plan: Plan) -> dict[str, Any]:
    """`<role>_<option>` for every option there is: the step's literal value, or empty."""
    empty = {f"{role}_{name}": value for role, options in ROLE_OPTIONS.items() for name, value in options.items()}
    return empty | {f"{step.role}_{step.option}": step.value for step in plan.steps}
