# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from typing import ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction, Result


class ActionModule(NodeAction):
    """Run cdi.sh: the CDI specification as nvidia-ctk makes it, and what renews it."""

    ARGUMENTS: ClassVar[Result] = {"cdi": {"type": "dict", "default": {}}}

    def act(self, args: Result) -> Result:
        from gpunode.core.items.cdi import cdi_request

        if not args["cdi"]:
            return {}
        outcome, _text = self.node("cdi.sh", cdi_request(args["cdi"], check=self.check))
        return self.result_or_not_yet(outcome, "the CDI specification would be made")
