# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from ansible_collections.gpunode.node.plugins.action.activate import ActionModule as Activate
from ansible_collections.gpunode.node.plugins.plugin_utils.node import Result

if TYPE_CHECKING:
    from gpunode.core.items.activation import ActivationResult

SHARED = "the GPUs would be shared"


class ActionModule(Activate):
    """Run mig.sh or mps.sh; reboot the node where only that changes the MIG mode and it may, and run it again."""

    ARGUMENTS: ClassVar[Result] = {"mig": {"type": "dict", "default": {}}, "mps": {"type": "dict", "default": {}}}

    def act(self, args: Result) -> Result:
        from gpunode.core.items.sharing import mps_request

        if args["mps"]:
            outcome, _text = self.node("mps.sh", mps_request(args["mps"], check=self.check))
            return self.result_or_not_yet(outcome, SHARED)
        value = args["mig"]
        if not value:
            return {}
        # a change of MIG by itself is none that `always` is about
        policy = "never" if value.get("reboot", "never") == "never" else "if-needed"
        return self.rebooting(self._mig, value | {"reboot": policy})

    def _mig(self, value: Result) -> tuple[Result, ActivationResult]:
        from gpunode.core.items.activation import parse_activation
        from gpunode.core.items.sharing import mig_request
        from gpunode.node import script

        _text, facts = self.probe("nvidia_smi", "sharing")
        outcome, text = self.node("mig.sh", mig_request(value, facts, script("mig.sh"), check=self.check))
        if outcome.status == "changed" and not self.check and not value.get("gpus"):  # another tool has them now
            outcome = replace(
                outcome, message="gpunode makes no MIG instances here any more; those that are there stay"
            )
        return self.result_or_not_yet(outcome, SHARED), parse_activation(text)
