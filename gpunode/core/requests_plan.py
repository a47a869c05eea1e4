"""A plan as the variables of the roles, for authors of Ansible code who use the role gpunode.node.node."""

from __future__ import annotations

from typing import Any

from gpunode.core.model import Plan
from gpunode.core.plan import TITLES

_EMPTY: dict[str, Any] = {"recover": False, "expect": {}, "packages": {}, "activate": {}, "smoke": {}}


def role_variables(plan: Plan) -> dict[str, Any]:
    """`<role>_<option>` for every option there is: the step's literal value, or empty."""
    empty = {f"{role}_{option}": _EMPTY.get(option, []) for role, option in TITLES}
    return empty | {f"{step.role}_{step.option}": step.value for step in plan.steps}
