# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from typing import ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction, Result


class ActionModule(NodeAction):
    """Refuse when the node is not the one that the plan was made for."""

    ARGUMENTS: ClassVar[Result] = {"expect": {"type": "dict", "default": {}}}

    def act(self, args: Result) -> Result:
        from gpunode.core.errors import StaleError
        from gpunode.core.items.preflight import mismatches

        if not args["expect"]:
            return {}
        _text, facts = self.probe("system", "os_release", "kernels", "pci")
        if wrong := mismatches(args["expect"], facts):
            raise StaleError(
                f"this is not the node the plan was made for: {'; '.join(wrong)}", fix="make the plan again"
            )
        return {"msg": "the node is the one the plan was made for"}
