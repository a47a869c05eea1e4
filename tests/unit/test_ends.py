"""How a host's result reads after a good run of Ansible."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gpunode.core.model import HostResult, Plan, Problem, Reason, Step
from gpunode.edge.fleet.ends import settled

STALE = Reason(what="/var/run/cdi/nvidia.yaml", why="/var/run/cdi/nvidia.yaml names 0 MIG devices; there are 3")
CDI = Step(role="runtime", option="cdi", title="Make the CDI specification", value={}, reasons=(STALE,))


def result(*steps: Step, problems: tuple[Problem, ...] = ()) -> HostResult:
    after: Any = SimpleNamespace(plan=Plan(host="gpu1", steps=steps, problems=problems), planned=None)
    return settled(HostResult(host="gpu1"), Plan(host="gpu1", steps=(CDI,)), after, None)


def test_a_step_that_is_still_to_be_done_says_what_of_it_is_not_as_it_should_be() -> None:
    found = result(CDI)
    assert found.outcome == "pending"
    assert found.message == (
        "done, but still to do: Make the CDI specification (/var/run/cdi/nvidia.yaml names 0 MIG devices; there are 3)"
    )


def test_a_problem_that_a_run_leaves_is_named() -> None:
    assert result(problems=(Problem(what="no MIG", fix=""),)).message == "done, but still to do: no MIG"


def test_nothing_left_is_said_with_the_number_of_steps() -> None:
    assert result().message == "1 step applied, nothing pending"
