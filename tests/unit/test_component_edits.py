"""What holds for every case of kube-scheduler's and the kubelet's files; a new case needs no code."""

from __future__ import annotations

import pytest
from edit_cases import EditCase, Kind, applied, every, problems, record

from gpunode.core.edits.kubernetes.kubelet import KubeletRequest, kubelet_target
from gpunode.core.edits.kubernetes.scheduler import SchedulerRequest, scheduler_target
from gpunode.core.errors import GpunodeError
from gpunode.edge.load import load_scheduler_rules

RULES = load_scheduler_rules()
KINDS = (
    Kind(
        name="scheduler",
        request=SchedulerRequest,
        configure=lambda before, request: scheduler_target(request, RULES).configure(before),
        unconfigure=lambda after, request, undo: scheduler_target(request, RULES).unconfigure(after, [undo]),
    ),
    Kind(
        name="kubelet",
        request=KubeletRequest,
        configure=lambda before, request: kubelet_target(request, RULES).configure(before),
        unconfigure=lambda after, request, undo: kubelet_target(request, RULES).unconfigure(after, [undo]),
    ),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_case_says_what_comes_of_it(kind: Kind) -> None:
    for case in kind.cases():
        record(case, lambda case: kind.configure(case.before, kind.asked(case)))
    assert [c.name for c in kind.cases() if (c.after is not None) + bool(c.problem) + bool(c.error) != 1] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_files_become_those_of_the_case_once_and_go_back_to_the_byte(kind: Kind) -> None:
    def check(case: EditCase) -> None:
        before, request = case.before, kind.asked(case)
        edit = kind.configure(before, request)
        after = applied(before, edit)
        assert after == case.done
        assert kind.configure(after, request).changes == {}
        back = kind.unconfigure(after, request, edit.undo)
        assert applied(after, back) == before

    every(kind.cases("after"), check)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_would_not_work_is_a_problem_and_changes_nothing(kind: Kind) -> None:
    def check(case: EditCase) -> None:
        edit = kind.configure(case.before, kind.asked(case))
        assert edit.changes == {}
        assert problems(edit) == case.problem

    every(kind.cases("problem"), check)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_cannot_be_read_is_named(kind: Kind) -> None:
    def check(case: EditCase) -> None:
        with pytest.raises(GpunodeError) as caught:
            kind.configure(case.before, kind.asked(case))
        assert f"{caught.value}\n" == case.error

    every(kind.cases("error"), check)
