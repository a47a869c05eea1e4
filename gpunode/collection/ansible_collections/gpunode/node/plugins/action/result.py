# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from typing import ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import DONE, NodeAction, Result, say


class ActionModule(NodeAction):
    """Say what the roles have done to this host in this run, and what it has now."""

    ARGUMENTS: ClassVar[Result] = {}

    def act(self, args: Result) -> Result:
        from gpunode.core.plan.steps import STEPS

        due = self.own_plan(self._vars.get("gpunode_plan")).get("parts") or ()
        rows = [row for row in STEPS if row.role in due]
        ran = {row.role for row in rows if f"{DONE}{row.variable}" in self._vars}
        done = {row.variable: {} for row in STEPS} | {
            row.variable: self._vars.get(f"{DONE}{row.variable}") or {} for row in rows
        }
        changed = [row.role for row in STEPS if row.role != "preflight" and done[row.variable].get("changed")]
        parts = list(dict.fromkeys(changed))
        changes = [one for result in done.values() for one in result.get("changes") or ()]
        _text, facts = self.probe("pci", "driver", "nvidia_smi", "cuda", "toolkit", "units", "runtimes")
        result = {
            "parts": parts,
            "left_out": [part for part in due if part not in ran],
            "changes": changes,
            "rebooted": any(result.get("rebooted") for result in done.values()),
            "reboot_needed": any(result.get("reboot_needed") for result in done.values()),
            "engines": list(done["runtime_edits"].get("engines") or ()),
            "checks": list(done["verify_smoke"].get("checks") or ()),
            "driver": facts.driver.loaded,
            "cuda": list(facts.cuda),
            "toolkit": facts.toolkit,
            "gpus": [gpu.name for gpu in facts.nvml] or [gpu.id for gpu in facts.gpus],
        }
        sentence = _sentence(result, check=self.check)
        say(f"{self._vars['inventory_hostname']}: {sentence}")  # Ansible's own output shows no message of a task
        return result | {"msg": sentence, "anything_changed": bool(parts)}


def _sentence(result: Result, *, check: bool) -> str:
    """What the node has, and what was done for it."""
    has = [f"driver {result['driver']}"] if result["driver"] else ["no driver loaded"]
    has += [f"CUDA {' and '.join(result['cuda'])}"] if result["cuda"] else []
    has += [f"toolkit {result['toolkit']}"] if result["toolkit"] else []
    passed = [one for one in result["checks"] if one.get("status") == "passed"]
    has += [f"{len(passed)} checks passed"] if passed else []
    done = f"{'would change' if check else 'changed'}: {', '.join(result['parts'])}" if result["parts"] else "no change"
    done += f"; left out: {', '.join(result['left_out'])}" if result["left_out"] else ""
    return f"{', '.join(has)}; {done}{'; rebooted' if result['rebooted'] else ''}"
