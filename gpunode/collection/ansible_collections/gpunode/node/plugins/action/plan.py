# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from typing import ClassVar

from ansible.utils.display import Display
from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction


class ActionModule(NodeAction):
    """Probe the node, plan it on the controller, give back the variables of the roles."""

    ARGUMENTS: ClassVar[dict] = {"spec": {"type": "dict", "default": {}}, "config": {"type": "path", "default": ""}}

    def act(self, args):
        from gpunode.core.errors import Exit, InputError
        from gpunode.core.mask import mask
        from gpunode.core.plan.steps import role_variables
        from gpunode.core.printable import printable
        from gpunode.core.report.text import Detail, chosen_text, plan_data, plan_text
        from gpunode.core.spec import merge_spec
        from gpunode.edge.desired import DesiredState
        from gpunode.edge.load import load_spec_data

        host = self._vars["inventory_hostname"]
        if self._task.delegate_to:
            raise InputError(
                f"delegate_to: {self._task.delegate_to}: the plan of {host} would be made for another machine",
                expected="a plan made on the host itself",
                fix="remove delegate_to",
            )
        _text, facts = self.probe()
        base = load_spec_data(args["config"]) if args["config"] else {}
        desired = DesiredState(base, source=args["config"] or "gpunode_spec")
        planned = self._asked(desired, host, facts, merge_spec(self.inventory_spec(), args["spec"]))
        self._check_secrets(planned.secrets)
        plan = planned.plan
        result = {"plan": plan_data(plan), "variables": role_variables(plan), "warnings": list(plan.warnings)}
        if plan.problems:
            return result | {
                "failed": True,
                "msg": "; ".join(problem.what for problem in plan.problems),
                "fix": "; ".join(dict.fromkeys(problem.fix for problem in plan.problems)),
                "gpunode_exit": int(Exit.REFUSED),
            }
        if self._task.diff and not self._vars.get("gpunode_run"):
            detail = Detail(why=True, sources=True, diff=True)
            shown = plan_text(plan, chosen=chosen_text(planned.solution, planned.facts), detail=detail)
            Display().display(printable(mask(shown)))
        titles = [step.title for step in plan.steps]
        return result | {"smoke": desired.smoke(planned), "msg": "; ".join(titles) or "nothing to do"}

    def _asked(self, desired, host, facts, over):
        """The plan as the node's own package manager can carry it out."""
        from gpunode.edge.ask import Talk, settle

        talk = Talk(
            planned=desired.plan(host, facts, over),
            knowledge=desired.knowledge,
            replan=lambda archive: desired.plan(host, facts, over, archive=archive),
        )
        settle([talk], lambda requests: {n: self.send("packages.sh", request) for n, request in requests.items()})
        return talk.planned

    def _check_secrets(self, secrets):
        """Later tasks get references, and can follow only those to gpunode_spec and gpunode_config."""
        from gpunode.core.errors import InputError

        known = self.secrets().values if secrets else {}
        lost = [reference for reference, value in secrets.values.items() if known.get(reference) != value]
        if lost:
            raise InputError(
                f"{lost[0]}: a secret in the argument spec",
                expected="secrets in the variable gpunode_spec: results of tasks refer to it",
                fix="set it there (in the inventory, in a vault), and leave it out of spec",
            )
