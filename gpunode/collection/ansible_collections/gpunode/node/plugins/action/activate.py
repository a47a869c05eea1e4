# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ansible.errors import AnsibleError
from ansible.plugins.connection import ConnectionBase
from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction, Result, result_of

if TYPE_CHECKING:
    from gpunode.core.items.activation import ActivationResult

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
# while systemd answers so, it may not have cleared /tmp yet; "" and offline: it cannot even be asked
BOOTING = ("", "offline", "unknown", "initializing", "starting")
LONGEST_PAUSE = 15  # seconds between two tries to reach a node that boots


class ActionModule(NodeAction):
    """Run activate.sh; reboot the node where that is needed and allowed, and run it again to be sure."""

    ARGUMENTS: ClassVar[Result] = {
        "activate": {"type": "dict", "default": {}},
        "after": {"type": "list", "elements": "dict", "default": []},
    }

    def act(self, args: Result) -> Result:
        from gpunode.core.items.activation import activate_nothing
        from gpunode.core.model import Changed

        value = args["activate"]
        done = [one for result in args["after"] for one in result.get("changes", ())] if self.check else []
        self._before = [Changed(**one) for one in done]
        return {} if activate_nothing(value) else self.rebooting(self._activate, value)

    def rebooting(self, run: Callable[[Result], tuple[Result, ActivationResult]], value: Result) -> Result:
        """`run(value)` -> (result, what it said); again after a reboot, where one is wanted and allowed."""
        from gpunode.core.items.activation import may_reboot

        result, stated = run(value)
        here = self._connection.transport == "local" or stated.boot_id == _own_boot()
        why, hindered = may_reboot(value, stated, changed=result["changed"], here=here)
        if result.get("failed") or not why:
            return result
        if hindered:
            return result | {"warnings": [f"reboot needed: {why} ({hindered})"], "reboot_needed": True}
        if self.check:
            return result | {"changed": True, "changes": [*result["changes"], {"text": f"reboot: {why}"}]}
        self._reboot(stated.boot_id, value.get("reboot_timeout", 900))
        again, stated = run(value)
        again["rebooted"] = True
        again["changes"] = [*result["changes"], {"text": f"rebooted: {why}"}, *again["changes"]]
        if stated.reboot:
            text = f"rebooted, and it still needs a reboot: {stated.reboot}"
            return again | {"failed": True, "gpunode_exit": 1, "msg": text}
        return again | {"changed": True}

    def _activate(self, value: Result) -> tuple[Result, ActivationResult]:
        from gpunode.core.items.activation import activate_request, parse_activation

        outcome, text = self.node("activate.sh", activate_request(value, check=self.check, after=self._before))
        return result_of(outcome), parse_activation(text)

    def _reboot(self, before: str, timeout: int) -> None:
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
                fix="look at its console; if it only boots slowly, raise reboot_timeout in gpunode.yml",
            )
        while time.monotonic() < deadline and self._ask("systemctl is-system-running") in BOOTING:
            time.sleep(2)

    def _ask(self, command: str) -> str:
        """What a command prints, "" while the node cannot be reached."""
        try:
            if type(self._connection).reset is not ConnectionBase.reset:  # that one only warns
                self._connection.reset()
            return self._low_level_execute_command(command)["stdout"].strip()
        except AnsibleError:
            return ""


def _own_boot() -> str | None:
    """The boot id of the machine that Ansible runs on: a node that has the same is that machine, however reached."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux, so no node either
        return None
