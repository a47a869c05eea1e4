# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction, Result, result_of, say

if TYPE_CHECKING:
    from gpunode.core.model import Outcome

ONE_WAIT = 20  # seconds the script waits for a lock before this plugin says who holds it


class ActionModule(NodeAction):
    """Run packages.sh: one package transaction."""

    ARGUMENTS: ClassVar[Result] = {"packages": {"type": "dict", "default": {}}, "wait": {"type": "int", "default": 300}}

    def act(self, args: Result) -> Result:
        from gpunode.core.items.package import locked_by, nothing_to_do, packages_request

        value = args["packages"]
        if nothing_to_do(value):
            return {}
        deadline = time.monotonic() + args["wait"]
        while True:
            left = deadline - time.monotonic()
            request = packages_request(value, wait=max(0, min(ONE_WAIT, int(left))), check=self.check)
            outcome, text = self.node("packages.sh", request)
            holder = locked_by(text)
            if not holder or left <= ONE_WAIT:
                return self._named(outcome, value)
            say(f"{self._vars.get('inventory_hostname')}: waiting for the package manager: {holder}")

    def _named(self, outcome: Outcome, value: Result) -> Result:
        """What was installed, in place of «packages are up to date»."""
        from gpunode.core.items.package import held_text, installed_text

        rows = [item if isinstance(item, dict) else {"name": item} for item in value.get("install") or ()]
        wanted = [row["name"] for row in sorted(rows, key=lambda row: not row.get("version"))]  # not headers, say
        result, text = result_of(outcome), installed_text(outcome.changed, wanted)
        if not result["changed"] or self.check:
            return result
        if not text:
            return result | {"msg": held_text(outcome.changed) or result["msg"]}
        return result | {"msg": text, "installed": text}
