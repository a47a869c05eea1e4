# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from typing import ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction


class ActionModule(NodeAction):
    """Send probe.sh, give back its text and the facts in it."""

    ARGUMENTS: ClassVar[dict] = {"sections": {"type": "list", "elements": "str", "default": []}}

    def act(self, args):
        from gpunode.core.facts import facts_to_data

        text, facts = self.probe(*args["sections"])
        return {"probe": text, "facts": facts_to_data(facts)}
