# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from typing import ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction, Result


class ActionModule(NodeAction):
    """Leave the program of the first boot on the node: a file like any other, made of the node scripts."""

    ARGUMENTS: ClassVar[Result] = {"first_boot": {"type": "dict", "default": {}}}

    def act(self, args: Result) -> Result:
        from gpunode.core.edits.commit import FileChange, commit_request
        from gpunode.core.items.first_boot import PROGRAM, SCRIPTS, first_boot_program
        from gpunode.node import script

        if not args["first_boot"]:
            return {}
        data = first_boot_program(args["first_boot"], {name: script(name) for name in SCRIPTS})
        change = FileChange(path=PROGRAM, data=data, mode=0o755)
        return self.result("commit.sh", commit_request([change], check=self.check))
