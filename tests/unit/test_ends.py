"""How a host's result reads after a good run of Ansible."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpunode.core.model import HostResult, Plan, Problem, Reason, Step
from gpunode.edge.ansible.runner import Event, HostRun, _note
from gpunode.edge.fleet.ends import settled

STALE = Reason(what="/var/run/cdi/nvidia.yaml", why="/var/run/cdi/nvidia.yaml names 0 MIG devices; there are 3")
CDI = Step(role="runtime", option="cdi", title="Make the CDI specification", value={}, reasons=(STALE,))


LINK = replace(CDI, option="link", title="Make the link to CUDA")
PROOF = replace(CDI, role="verify", option="smoke", title="Prove it")


def result(
    *steps: Step, problems: tuple[Problem, ...] = (), before: tuple[Step, ...] = (CDI,), changing: tuple[Step, ...] = ()
) -> HostResult:
    after: Any = SimpleNamespace(plan=Plan(host="gpu1", steps=steps, problems=problems), planned=None)
    run = HostRun()
    for step in changing:
        _note(run, Event(host="gpu1", kind="changed", task=step.title))
    return settled("gpu1", run, Plan(host="gpu1", steps=before), after, None)


def test_a_step_that_is_still_to_be_done_says_what_of_it_is_not_as_it_should_be() -> None:
    found = result(CDI)
    assert found.outcome == "pending"
    assert found.message == (
        "done, but still to do: Make the CDI specification (/var/run/cdi/nvidia.yaml names 0 MIG devices; there are 3)"
    )


def test_a_problem_that_a_run_leaves_is_named() -> None:
    assert result(problems=(Problem(what="no MIG", fix=""),)).message == "done, but still to do: no MIG"


@pytest.mark.parametrize(
    ("before", "changing", "stated"),
    [
        ((CDI, PROOF), (CDI,), "1 step applied, nothing pending"),
        ((CDI, LINK, PROOF), (LINK, CDI), "2 steps applied, nothing pending"),
        ((CDI, LINK, PROOF), (LINK,), "1 step applied (the rest had nothing to do), nothing pending"),
        ((CDI, LINK, PROOF), (), "nothing to do"),
        ((PROOF,), (), "nothing to do"),
        ((), (), "nothing to do"),
    ],
)
def test_nothing_left_is_said_with_the_number_of_steps_that_changed_something(
    before: tuple[Step, ...], changing: tuple[Step, ...], stated: str
) -> None:
    assert result(before=before, changing=changing).message == stated
