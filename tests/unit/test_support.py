"""The versions that are supported: too old is refused by name, untried is a warning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from edit_cases import case, write_tree
from test_plan import probe

from gpunode.cli.main import cli
from gpunode.core.engines import ENGINES
from gpunode.core.knowledge.support import programs_of, too_old
from gpunode.core.model import Kubernetes
from gpunode.core.numbers import release
from gpunode.edge.desired import DesiredState
from gpunode.edge.load import load_support

SUPPORT = load_support()
Answer = tuple[int, str]  # an exit code, and what was said


def planned(program: str, version: str) -> Answer:
    """A plan for a node with this program."""
    facts = probe("debian12-kubeadm-two-engines")
    if program in ENGINES:
        engine = next(one for one in facts.runtimes if one.name == program)
        facts = replace(facts, runtimes=(replace(engine, version=version),))
    else:
        kind: Any = program if program != "kubernetes" else "kubeadm"
        facts = replace(facts, kubernetes=Kubernetes(kind=kind, kubelet=f"v{version}.1"))
    plan = DesiredState({}, to_run=False).plan("gpu1", facts).plan
    says = [f"{problem.what}: {problem.fix}" for problem in plan.problems]
    return (5 if says else 0), " ".join([*says, *plan.warnings])


def of_a_cluster(version: str, root: Path) -> list[Answer]:
    """The commands that are given a release of Kubernetes."""
    write_tree(case("scheduler", "kubeadm-1.30").before | case("kubelet", "kubeadm-1.30").before, root)
    there = ["configure", "--root", str(root), "--server-version", version, "--dry-run"]
    commands = (["render", "--server-version", version], ["scheduler", *there], ["kubelet", *there, "--node-label=a=b"])
    ran = [CliRunner().invoke(cli, ["kube", *words], standalone_mode=False) for words in commands]
    return [(getattr(one.exception, "exit", one.return_value), f"{one.output}{one.exception}") for one in ran]


@pytest.mark.parametrize("program", SUPPORT)
def test_below_the_oldest_all_refuse_and_above_the_newest_all_warn(program: str, tmp_path: Path) -> None:
    row = SUPPORT[program]
    (first, oldest), (last, newest) = release(row.oldest), release(row.newest)
    below, above = f"{first}.{oldest - 1}" if oldest else f"{first - 1}.99", f"{last}.{newest + 1}"
    refusal = (f"older than {row.oldest}", f"update {program}", f"{row.oldest} to {row.newest}", row.ended)
    for version, code, says in (
        (below, 5, refusal),
        (row.oldest, 0, ()),
        (row.newest, 0, ()),
        (above, 0, (f"newer than {row.newest}, the newest that gpunode was tried with",)),
    ):
        answers = [planned(program, version)]
        answers += of_a_cluster(version, tmp_path / version) if program == "kubernetes" else []
        for found, text in answers:
            assert (found, [word for word in says if word not in text]) == (code, []), text
            assert ("gpunode was tried with" in text) == bool(says), text


def test_a_version_that_nobody_knows_is_not_refused() -> None:
    assert [too_old(*one, SUPPORT) for one in (("docker", ""), ("containerd", "1.6.20~ds1"), ("podman", "1.0"))] == [
        None
    ] * 3


def test_the_kubernetes_of_a_node_counts_where_its_engine_is_managed() -> None:
    facts = replace(probe("debian12-kubeadm-two-engines"), kubernetes=Kubernetes(kind="k3s", kubelet="v1.30.1+k3s1"))
    assert ("k3s", "v1.30.1+k3s1") in programs_of(facts, ["containerd"])
    assert [*programs_of(facts, [])] == []
