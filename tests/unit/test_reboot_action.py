"""The action activate around a reboot: whose machine it is, what the policy says, and what is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpunode.node.plugins.action import activate
from ansible_collections.gpunode.node.plugins.action.activate import ActionModule

from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.items.activation import ActivationResult
from gpunode.core.items.item import reboots
from gpunode.core.spec import parse_spec

OWN = "b-controller"


def action(monkeypatch: pytest.MonkeyPatch, *, transport: str = "ssh", check: bool = False) -> Any:
    monkeypatch.setattr(activate, "_own_boot", lambda: OWN)
    made = ActionModule.__new__(ActionModule)
    made._connection = SimpleNamespace(transport=transport)
    made._task = SimpleNamespace(check_mode=check)
    made.reboots = []
    monkeypatch.setattr(made, "_reboot", lambda before, timeout: made.reboots.append(before), raising=False)
    return made


def answers(*reasons: str, boot_id: str) -> Any:
    """A script that says these reasons for a reboot, one a run."""
    left = list(reasons)

    def run(value: dict[str, Any]) -> tuple[dict[str, Any], ActivationResult]:
        reason = left.pop(0)
        return {"changed": True, "changes": [{"text": "x"}]}, ActivationResult(reboot=reason, boot_id=boot_id)

    return run


@pytest.mark.parametrize(
    ("transport", "boot_id", "value", "reboots"),
    [
        ("ssh", "b-node", {"reboot": "if-needed"}, True),
        ("ssh", "b-node", {"reboot": "never"}, False),
        ("ssh", OWN, {"reboot": "if-needed"}, False),
        ("ssh", OWN, {"reboot": "always"}, False),
        ("ssh", OWN, {"reboot": "if-needed", "reboot_controller": True}, True),
        ("local", "b-lab", {"reboot": "if-needed"}, False),
        ("local", OWN, {"reboot": "never", "reboot_controller": True}, False),
    ],
)
def test_which_machines_are_rebooted(
    transport: str, boot_id: str, value: dict[str, Any], reboots: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = action(monkeypatch, transport=transport)
    result = made.rebooting(answers("nouveau is in use", "", boot_id=boot_id), value)
    assert made.reboots == ([boot_id] if reboots else [])
    assert bool(result.get("reboot_needed")) is not reboots
    if reboots:
        assert {"text": "rebooted: nouveau is in use"} in result["changes"] and result["rebooted"]
    else:
        assert "reboot needed: nouveau is in use" in result["warnings"][0]


def test_check_mode_says_that_a_reboot_would_follow_and_does_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = action(monkeypatch, check=True)
    result = made.rebooting(answers("nouveau is in use", boot_id="b-node"), {"reboot": "if-needed"})
    assert (made.reboots, result["changes"][-1]) == ([], {"text": "reboot: nouveau is in use"})


def test_a_node_that_needs_another_reboot_after_one_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = action(monkeypatch)
    result = made.rebooting(answers("nouveau is in use", "still", boot_id="b-node"), {"reboot": "always"})
    assert result["failed"] and "still needs a reboot: still" in result["msg"]


def test_a_node_that_stays_away_names_the_key_that_gives_it_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = parse_spec({"reboot_timeout": 1800})
    assert reboots(spec)["reboot_timeout"] == 1800 and "reboot_timeout" not in reboots(parse_spec({}))
    made = action(monkeypatch)
    waited = []
    monkeypatch.setattr(made, "_reboot", lambda before, timeout: waited.append(timeout), raising=False)
    made.rebooting(answers("nouveau is in use", "", boot_id="b-node"), reboots(spec))
    made.rebooting(answers("nouveau is in use", "", boot_id="b-node"), reboots(parse_spec({})))
    assert waited == [1800, 900]
    with pytest.raises(InputError, match="reboot_timeout is 0"):
        parse_spec({"reboot_timeout": 0})


def test_the_message_names_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    made = action(monkeypatch)
    monkeypatch.setattr(made, "_low_level_execute_command", lambda command: {"stdout": ""}, raising=False)
    with pytest.raises(GpunodeError) as caught:
        ActionModule._reboot(made, "b-node", 0)
    assert "raise reboot_timeout in gpunode.yml" in caught.value.fix
