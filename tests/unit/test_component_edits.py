"""What holds for every case of kube-scheduler's and the kubelet's files; a new case needs no code.

`python tests/unit/test_component_edits.py` writes what comes out of cases that do not say it yet.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from edit_cases import OUTCOMES, Kind, applied, files, problems

from gpunode.core.edits.kubernetes.kubelet import KubeletRequest, configure_kubelet, unconfigure_kubelet
from gpunode.core.edits.kubernetes.scheduler import SchedulerRequest, configure_scheduler, unconfigure_scheduler
from gpunode.core.errors import GpunodeError
from gpunode.edge.load import load_scheduler_rules

RULES = load_scheduler_rules()
KINDS = (
    Kind(
        name="scheduler",
        request=SchedulerRequest,
        configure=lambda before, request: configure_scheduler(before, request, RULES),
        unconfigure=lambda after, request, undo: unconfigure_scheduler(after, request, RULES, [undo]),
    ),
    Kind(
        name="kubelet",
        request=KubeletRequest,
        configure=lambda before, request: configure_kubelet(before, request, RULES),
        unconfigure=lambda after, request, undo: unconfigure_kubelet(after, request, [undo]),
    ),
)


def each(outcome: str) -> pytest.MarkDecorator:
    found = [
        pytest.param(kind, case, id=f"{kind.name}-{case.name}") for kind in KINDS for case in kind.cases_with(outcome)
    ]
    return pytest.mark.parametrize(("kind", "case"), found)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_case_says_what_comes_of_it(kind: Kind) -> None:
    assert [c.name for c in kind.cases if len(OUTCOMES & {path.name for path in c.iterdir()}) != 1] == []


@each("after")
def test_the_files_become_those_of_the_case_once_and_go_back_to_the_byte(kind: Kind, case: Path) -> None:
    before, request = files(case / "before"), kind.asked(case)
    edit = kind.configure(before, request)
    after = applied(before, edit)
    assert after == files(case / "after")
    assert kind.configure(after, request).changes == {}
    back = kind.unconfigure(after, request, edit.undo)
    assert applied(after, back) == before


@each("problem.txt")
def test_what_would_not_work_is_a_problem_and_changes_nothing(kind: Kind, case: Path) -> None:
    edit = kind.configure(files(case / "before"), kind.asked(case))
    assert edit.changes == {}
    assert problems(edit) == (case / "problem.txt").read_text()


@each("error.txt")
def test_what_cannot_be_read_is_named(kind: Kind, case: Path) -> None:
    with pytest.raises(GpunodeError) as caught:
        kind.configure(files(case / "before"), kind.asked(case))
    assert f"{caught.value}\n" == (case / "error.txt").read_text()


if __name__ == "__main__":
    for one in KINDS:
        for folder in one.cases:
            one.write(folder)
