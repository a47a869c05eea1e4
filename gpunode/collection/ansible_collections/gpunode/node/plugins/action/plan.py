# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction

try:
    from gpunode.core.errors import Exit
    from gpunode.core.report import plan_data
    from gpunode.core.requests_plan import role_variables
    from gpunode.edge.load import load_spec_data
    from gpunode.edge.planner import Planner
except ImportError:
    Exit = plan_data = role_variables = load_spec_data = Planner = None  # NodeAction says it


class ActionModule(NodeAction):
    """Probe the node, plan it on the controller, set the variables of the roles."""

    ARGUMENTS = {"spec": {"type": "dict", "default": {}}, "config": {"type": "path", "default": ""}}

    def act(self, args):
        host = self._vars["inventory_hostname"]
        _text, facts = self.probe()
        base = load_spec_data(args["config"]) if args["config"] else {}
        plan = Planner(base, where=args["config"] or "gpunode_spec").plan(host, facts, args["spec"]).plan
        result = {"plan": plan_data(plan), "warnings": list(plan.warnings), "ansible_facts": role_variables(plan)}
        if plan.problems:
            return result | {
                "failed": True,
                "msg": "; ".join(problem.what for problem in plan.problems),
                "fix": "; ".join(problem.fix for problem in plan.problems),
                "gpunode_exit": int(Exit.REFUSED),
            }
        return result | {"msg": "; ".join(step.title for step in plan.steps) or "nothing to do"}
