# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from typing import ClassVar

from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction, Result

SECTIONS = """
system os_release secure_boot kernels dkms pci lspci driver nvidia_smi nvlink topology links tuning xids gpu_containers
cuda toolkit cdi units runtimes containers kubernetes sysctl packages holds locks journal first_boot sharing
files
""".split()


class ActionModule(NodeAction):
    """Send probe.sh, give back the facts in its text, and the text itself where it is asked for."""

    ARGUMENTS: ClassVar[Result] = {
        "sections": {"type": "list", "elements": "str", "default": [], "choices": SECTIONS},
        "text": {"type": "bool", "default": False},
    }

    def act(self, args: Result) -> Result:
        from gpunode.core.facts import shown_facts

        text, facts = self.probe(*args["sections"])
        return {"facts": shown_facts(facts), **({"probe": text} if args["text"] else {})}
