# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

import contextlib
import time
from typing import ClassVar

from ansible.errors import AnsibleError
from ansible.plugins.connection import ConnectionBase
from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction, result_of

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
LONGEST_PAUSE = 15  # seconds between two tries to reach a node that boots


class ActionModule(NodeAction):
    """Run activate.sh; reboot the node where that is needed and allowed, and run it again to be sure."""

    ARGUMENTS: ClassVar[dict] = {
        "activate": {"type": "dict", "default": {}},
        "reboot_timeout": {"type": "int", "default": 900},
        "reboot_controller": {"type": "bool", "default": False},
    }

    def act(self, args):
        from gpunode.core.requests_activate import activate_nothing, may_reboot

        value = args["activate"]
        if activate_nothing(value):
            return {}
        result, said = self._activate(value)
        why = may_reboot(value.get("reboot", "never"), said, changed=result["changed"])
        if result.get("failed") or not (why or said.reboot):
            return result
        here = self._connection.transport == "local" and not args["reboot_controller"]
        if here or not why:
            hint = "gpunode does not reboot the machine it runs on" if here else "the policy is never"
            return result | {"warnings": [f"reboot needed: {said.reboot or why} ({hint})"], "reboot_needed": True}
        if self.check:
            return result | {"changed": True, "changes": [*result["changes"], f"reboot: {why}"]}
        self._reboot(said.boot_id, args["reboot_timeout"])
        again, said = self._activate(value)
        again["changes"] = [*result["changes"], f"rebooted: {why}", *again["changes"]]
        if said.reboot:
            text = f"rebooted, and it still needs a reboot: {said.reboot}"
            return again | {"failed": True, "gpunode_exit": 1, "msg": text}
        return again | {"changed": True}

    def _activate(self, value):
        from gpunode.core.requests_activate import activate_request, parse_activation

        outcome, text = self.node("activate.sh", activate_request(value, check=self.check))
        return result_of(outcome), parse_activation(text)

    def _reboot(self, before, timeout):
        """Reboot, and wait until the node answers with another boot id and its start-up has ended."""
        from gpunode.core.errors import GpunodeError

        deadline = time.monotonic() + timeout
        with contextlib.suppress(AnsibleError):  # the connection may go before the answer comes
            self._low_level_execute_command("systemctl reboot")
        pause = 1
        while time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            now = self._ask(BOOT_ID)
            if now and now != before:
                break
        else:
            raise GpunodeError(
                f"the node did not come back within {timeout} s after the reboot",
                fix="look at its console; raise reboot_timeout if it boots slowly",
            )
        while time.monotonic() < deadline and self._ask("systemctl is-system-running") in ("starting", "initializing"):
            time.sleep(2)

    def _ask(self, command):
        """What a command prints, "" while the node cannot be reached."""
        try:
            if type(self._connection).reset is not ConnectionBase.reset:  # that one only warns
                self._connection.reset()
            return self._low_level_execute_command(command)["stdout"].strip()
        except AnsibleError:
            return ""
