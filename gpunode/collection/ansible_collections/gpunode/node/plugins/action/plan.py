# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import OURS, NodeAction, Result, is_ours, say

if TYPE_CHECKING:
    from gpunode.core.model import NodeFacts, Problem
    from gpunode.core.secrets import Secrets
    from gpunode.edge.desired import DesiredState, Planned


VERIFY = ("changed", "always", "never")  # when the GPUs are used for real


class ActionModule(NodeAction):
    """Probe the node, plan it on the controller, give back the variables of the roles."""

    ARGUMENTS: ClassVar[Result] = {"spec": {"type": "dict", "default": {}}, "config": {"type": "path", "default": ""}}

    def act(self, args: Result) -> Result:
        from gpunode.core.errors import InputError
        from gpunode.core.mask import mask
        from gpunode.core.plan.steps import STEPS, role_variables
        from gpunode.core.printable import printable
        from gpunode.core.report.text import Detail, chosen_text, plan_data, plan_text
        from gpunode.core.spec import merge_spec
        from gpunode.core.spec.flat import in_variables, misspelt
        from gpunode.edge.desired import DesiredState
        from gpunode.edge.load import load_spec_data

        host = self._vars["inventory_hostname"]
        many = len(self._vars.get("ansible_play_batch") or ()) > 1
        for keyword, value in (("delegate_to", self._task.delegate_to), ("run_once", self._task.run_once and many)):
            if value:
                raise InputError(
                    f"{keyword}: {value}: the plan of one machine would be that of another",
                    expected=f"a plan made on {host} for {host}, and on each other host for itself",
                    fix=f"remove {keyword} from the task, the role or the play",
                )
        verify = self._parameters()
        config = args["config"] or self._templar.template(self._vars.get("gpunode_config") or "")
        data = load_spec_data(config) if config else {}
        desired = DesiredState(data, source=config or "gpunode_spec", apart=self._apart())
        over = merge_spec(self.inventory_spec(), args["spec"])
        try:
            spec = desired.spec(over, host=host)
        except InputError as error:
            for one in (error, *error.others):
                one.excerpt = self._set_by(one.key)
            raise
        asked = sha256(repr((spec, verify)).encode()).hexdigest()
        earlier = self._earlier(asked)
        if earlier:
            return earlier
        _text, facts = self.probe()
        planned = self._asked(desired, host, facts, over)
        self._check_secrets(planned.secrets)
        plan = replace(planned.plan, warnings=tuple(map(in_variables, planned.plan.warnings)))
        warnings = [*plan.warnings, *self.clashes, *misspelt(self._vars), *self._strange]
        chosen = chosen_text(planned.solution, planned.facts)
        smoke = {} if plan.problems else desired.smoke(planned)
        variables = role_variables(plan)
        variables["verify_smoke"] = {"changed": variables["verify_smoke"], "always": smoke, "never": {}}[verify]
        parts = [row.role for row in STEPS if variables[row.variable] != row.kind.shape.empty]
        result: Result = {
            "plan": plan_data(plan),
            "variables": variables,
            "parts": list(dict.fromkeys(parts)),
            "warnings": warnings,
            "asked": asked,
        }
        result |= {"chosen": chosen, "smoke": smoke}
        result["digest"] = self.digest(result)
        if plan.problems:
            return result | self._refused(plan.problems)
        titles = [step.title for step in plan.steps]
        result["msg"] = "; ".join(plan.warnings if plan.no_gpu else titles) or f"nothing to do: {chosen}"
        if self._task.diff and not self._vars.get("gpunode_run"):
            detail = Detail(why=True, sources=True, diff=True)
            shown = printable(mask(plan_text(plan, chosen=chosen, detail=detail)))
            say(shown)  # Ansible's own output shows no diff of a task that changes nothing
            result["diff"] = [{"prepared": f"{shown}\n"}]
        return result

    def _refused(self, problems: Sequence[Problem]) -> Result:
        from gpunode.core.errors import Exit
        from gpunode.core.spec.flat import in_variables

        msg = "; ".join(problem.what for problem in problems)
        fix = in_variables("; ".join(dict.fromkeys(problem.fix for problem in problems)))
        if not self._vars.get("gpunode_run"):  # Ansible's own output has both among the whole plan
            say(f"{self._vars['inventory_hostname']}: refused: {msg}; do next: {fix}")
        return {"failed": True, "msg": msg, "fix": fix, "gpunode_exit": int(Exit.REFUSED)}

    def _earlier(self, asked: str) -> Result:
        """The plan of the role before this one, where that is of gpunode, too, and the same is asked for.

        Whatever else runs between two roles may have changed the node: then it is probed again.
        """
        _role, roles, place = self._place()
        if not place or not is_ours(roles[place - 1]):
            return {}
        plan = self.own_plan(self._vars.get("gpunode_plan"))
        if plan.get("asked") != asked:
            return {}
        kept = {key: plan[key] for key in ("plan", "variables", "asked", "chosen", "smoke", "digest")}
        parts = [part for part in plan["parts"] if part != "preflight"]
        return {**kept, "parts": parts, "msg": f"planned by {roles[place - 1].get_name()}"}

    def _place(self) -> tuple[Any, Sequence[Any], int]:
        """The role that asks for the plan, the roles of its play, and its place among them; 0 where it has none."""
        role = self._task._role if self.of_gpunode else None
        while role and role._parents:
            role = role._parents[0]
        roles = self._task.play.roles if role else []
        return role, roles, next((number for number, one in enumerate(roles) if one is role), 0)

    def _apart(self) -> set[str]:
        """The parts that neither the role, nor those of ours right behind it, carry out with these tags."""
        from gpunode.core.meant import meant
        from gpunode.core.plan.steps import ROLES

        role, roles, place = self._place()
        behind = takewhile(is_ours, roles[place + 1 :]) if role in roles else ()
        names = {one.get_name().removeprefix(OURS) for one in (role, *behind) if one}
        parts = {one.name for one in ROLES}
        run, skip = (set(self._vars.get(f"ansible_{kind}_tags") or ()) for kind in ("run", "skip"))
        tagged = {f"gpunode_{part}": part for part in parts}
        unknown = [tag for tag in sorted((run | skip) - tagged.keys()) if tag in parts or tag.startswith("gpunode_")]
        self._strange = [
            f"no part of gpunode has the tag {tag}: "
            + meant(tag.removeprefix("gpunode_"), parts, "--list-tags shows them", prefix="gpunode_")
            for tag in unknown
            if tag not in self._task.tags  # the user's own of the role
        ]
        wanted = {tagged[tag] for tag in run} if run and run <= tagged.keys() else parts
        wanted = wanted & names if names and names <= parts else wanted
        return parts - {part for tag, part in tagged.items() if part in wanted and tag not in skip}

    def _asked(self, desired: DesiredState, host: str, facts: NodeFacts, over: Result) -> Planned:
        """The plan as the node's own package manager can carry it out."""
        from gpunode.edge.ask import Talk, settle

        talk = Talk(
            planned=desired.plan(host, facts, over),
            knowledge=desired.knowledge,
            replan=lambda archive: desired.plan(host, facts, over, archive=archive),
        )
        settle(
            [talk],
            lambda requests: {n: self.send("packages.sh", request, changes=False) for n, request in requests.items()},
        )
        return talk.planned

    def _parameters(self) -> str:
        """The value of gpunode_verify.

        An unknown parameter of a role is refused in a line, before Ansible prints the documentation of all others.
        """
        from gpunode.core.errors import InputError
        from gpunode.core.meant import meant
        from gpunode.core.spec.flat import misspelt, unknown_parameters

        role, chain = self._task._role, self._task.get_dep_chain() or ()
        ours = [name for one in (*chain, role) if is_ours(one) for name in one._role_params]
        if wrong := [*misspelt(role.get_role_params(chain) if role else ()), *unknown_parameters(ours)]:
            raise InputError(wrong[0], fix="correct it where the role is named")
        verify = self._templar.template(self._vars.get("gpunode_verify") or VERIFY[0])
        if verify not in VERIFY:
            raise InputError(
                f"gpunode_verify is {verify!r}", expected=", ".join(VERIFY), fix=meant(str(verify), VERIFY)
            )
        return str(verify)

    def _set_by(self, key: str) -> str:
        """The variable, file and line that a key's value is from, as an excerpt; "" where it is from gpunode.yml."""
        from ansible._internal._datatag._tags import Origin

        from gpunode.core.spec.flat import flat_variables

        for variable in flat_variables().values():
            if key != variable.key and not key.startswith((f"{variable.key}.", f"{variable.key}[")):
                continue
            name, value = variable.name, self._vars.get(variable.name)
            if value in (None, ""):
                name, value = "gpunode_spec", self._vars.get("gpunode_spec")
                for part in variable.path:
                    value = value.get(part) if isinstance(value, dict) else None
            origin = Origin.get_tag(value)
            return f"  set by:   {name}{f', {origin}' if origin else ''}" if value is not None else ""
        return ""

    def _check_secrets(self, secrets: Secrets) -> None:
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
