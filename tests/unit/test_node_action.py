"""What all actions share, without a node: nothing to do, --diff, a long task, a plan for another machine."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpunode.node.plugins.action.plan import ActionModule as PlanAction
from ansible_collections.gpunode.node.plugins.plugin_utils import node
from ansible_collections.gpunode.node.plugins.plugin_utils.node import NodeAction

from gpunode.core.errors import InputError

PACKAGES = {"changed": True, "changes": ["install nvidia-open 595.91.07-1", "hold nvidia-open"]}


def task(kind: type[NodeAction] = NodeAction, **attributes: Any) -> Any:
    made = kind.__new__(kind)
    made._task = SimpleNamespace(
        **{"diff": False, "delegate_to": None, "name": "Install", "action": "packages", "_role": None} | attributes
    )
    made._vars = {"inventory_hostname": "n-1"}
    return made


def run(made: Any, result: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **variables: Any) -> dict[str, Any]:
    monkeypatch.setattr(node.ActionBase, "run", lambda *_: {})
    monkeypatch.setattr(made, "validate_argument_spec", lambda **_: (None, {}), raising=False)
    monkeypatch.setattr(made, "act", lambda args: result, raising=False)
    return dict(made.run(task_vars={"inventory_hostname": "n-1"} | variables))


def test_a_task_with_nothing_to_do_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(task(), {}, monkeypatch) == {"changed": False, "skipped": True, "skip_reason": "nothing to do"}
    assert "skipped" not in run(task(), {"changes": []}, monkeypatch)


@pytest.mark.parametrize(
    ("diff", "result", "variables", "shown"),
    [
        (True, PACKAGES, {}, [{"prepared": "install nvidia-open 595.91.07-1\nhold nvidia-open\n"}]),
        (False, PACKAGES, {}, None),
        (True, PACKAGES, {"gpunode_run": "20261123"}, None),
        (True, PACKAGES | {"diff": [{"prepared": "-a\n+b\n"}]}, {}, [{"prepared": "-a\n+b\n"}]),
        (True, {"changes": []}, {}, None),
    ],
)
def test_diff_shows_the_changes_of_what_is_no_file(
    diff: bool, result: Any, variables: Any, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(task(diff=diff), result, monkeypatch, **variables).get("diff") == shown


def test_a_long_task_says_that_it_runs_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    twice = threading.Event()

    def display(line: str) -> None:
        printed.append(line)
        if len(printed) == 2:
            twice.set()

    monkeypatch.setattr(node, "Display", lambda: SimpleNamespace(display=display))
    monkeypatch.setattr(node, "HEARTBEAT", 0.001)
    with task()._heartbeat():
        assert twice.wait(30)
    count = len(printed)
    assert printed[0] == "n-1: Install: running for 0 min"
    assert len(printed) == count, "nothing after the end"


def test_a_plan_is_not_made_for_another_machine() -> None:
    with pytest.raises(InputError, match="delegate_to: n-2"):
        task(PlanAction, delegate_to="n-2").act({"spec": {}, "config": ""})
