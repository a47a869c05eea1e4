# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from typing import ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction, Result, result_of


class ActionModule(NodeAction):
    """Run smoke.sh: use the GPU for real, and give back the checks."""

    ARGUMENTS: ClassVar[Result] = {"smoke": {"type": "dict", "default": {}}}

    def act(self, args: Result) -> Result:
        from gpunode.core.items.smoke import smoke_files
        from gpunode.core.remote import parse_outcome
        from gpunode.edge.doctor import smoke_checks

        if not args["smoke"]:
            return {}
        if self.check:
            return {"skipped": True, "skip_reason": "not run in check mode: the checks start containers"}
        stdout, rc = self.send("smoke.sh", smoke_files(args["smoke"]) | self._signature())
        if (outcome := parse_outcome(stdout, rc)).status == "refused":
            return result_of(outcome)
        checks = [vars(check) for check in smoke_checks(stdout, rc)]
        failed = [check for check in checks if check["status"] == "failed"]
        if not failed:
            return {"checks": checks, "msg": f"{sum(c['status'] == 'passed' for c in checks)} checks passed"}
        return {
            "failed": True,
            "checks": checks,
            "msg": "; ".join(f"{check['id']}: {check['message']}" for check in failed),
            "fix": "; ".join(dict.fromkeys(check["fix"] for check in failed if check["fix"])),
            "gpunode_exit": 1,
        }
