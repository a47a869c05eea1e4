"""The versions that are supported: too old is refused by name, untried is a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_plan import probe

from gpunode.core.knowledge.support import programs_of, too_old, untried
from gpunode.core.model import Kubernetes
from gpunode.core.numbers import release
from gpunode.edge.desired import DesiredState
from gpunode.edge.load import load_support

SUPPORT = load_support()


def test_every_row_says_from_which_version_to_which() -> None:
    assert [row.program for row in SUPPORT.values() if not (0, 0) < release(row.oldest) < release(row.newest)] == []


@pytest.mark.parametrize(
    ("program", "version", "refused", "warned"),
    [
        ("containerd", "1.5.18", True, False),
        ("containerd", "1.6.20~ds1", False, False),
        ("containerd", "3.0.0", False, True),
        ("docker", "19.03.15", True, False),
        ("docker", "", False, False),
        ("k3s", "v1.30.9+k3s1", True, False),
        ("podman", "1.0", False, False),
    ],
)
def test_a_version_is_refused_below_the_oldest_and_warned_of_above_the_newest(
    program: str, version: str, refused: bool, warned: bool
) -> None:
    assert (too_old(program, version, SUPPORT) is not None, bool(untried(program, version, SUPPORT))) == (
        refused,
        warned,
    )


def test_a_plan_for_an_engine_that_is_too_old_names_it_and_has_no_steps() -> None:
    facts = probe("debian12-kubeadm-two-engines")
    old = replace(facts, runtimes=tuple(replace(one, version="1.5.9") for one in facts.runtimes))
    plan = DesiredState({}, to_run=False).plan("gpu1", old).plan
    assert plan.steps == () and "containerd 1.5.9 is older than 1.6" in plan.problems[0].what
    assert "ended its support on 2025-08-23" in plan.problems[0].what


def test_the_kubernetes_of_a_node_counts_where_its_engine_is_managed() -> None:
    facts = replace(probe("debian12-kubeadm-two-engines"), kubernetes=Kubernetes(kind="k3s", kubelet="v1.30.1+k3s1"))
    assert ("k3s", "v1.30.1+k3s1") in programs_of(facts, ["containerd"])
    assert [*programs_of(facts, [])] == []
