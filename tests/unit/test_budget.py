"""rollout.max_unavailable counts every host that is down for a reason of ours, whichever run or controller it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from api_server import ApiServer
from kube_cluster import node, silent

from gpunode.core.errors import RefusedError
from gpunode.core.model import HostResult, Kubernetes, NodeFacts, Plan
from gpunode.core.spec.rollout import DrainSpec, RolloutSpec
from gpunode.edge.desired import DesiredState, Planned
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet.budget import find_down, rollout_of
from gpunode.edge.fleet.draining import NodeChange, NodeDrains
from gpunode.edge.fleet.host_plan import HostPlan
from gpunode.edge.fleet.runs import HostRow, Runs, this_process
from gpunode.edge.fleet.worker import Worker
from gpunode.kube.core.draining import CORDONED
from gpunode.kube.edge.client import Api

pytest_plugins = ("kube_fixtures",)

SPEC = {"rollout": {"max_unavailable": "2", "drain": {"when": "disruptive"}}}
ROLLOUT = RolloutSpec(max_unavailable="2", drain=DrainSpec(when="disruptive"))
TODO, QUIET, BESIDE = "gpu1", "gpu2", "gpu3"  # gpu3 is in the inventory, and not in the command
OK, BAD = HostResult(host=QUIET), HostResult(host=QUIET, outcome="failed")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def journal(**states: Any) -> Runs:
    """A run of this process that is over, with these states of hosts."""
    runs = Runs()
    rows = [HostRow(run="one", host=h, pool="all", wave=0, plan="", state=s) for h, s in states.items()]
    runs.begin("one", "provision", {}, this_process(), rows)
    runs.finish("one", "failed")
    return runs


def host(name: str, **facts: Any) -> HostPlan:
    plan = Plan(host=name, steps=(), problems=(), reasons=(), warnings=(), facts_hash="", files={})
    found = NodeFacts(hostname=name, **facts)
    planned = Planned(plan=plan, facts=found, spec=DesiredState(SPEC).spec(), solution=None)  # type: ignore[arg-type]
    return HostPlan(detected=Detected(host=name, facts=found), planned=planned)


def down(*hosts: HostPlan, quiet: HostResult = BAD, nodes: NodeDrains | None = None) -> tuple[list[str], list[str]]:
    """Hosts to be done that are down, and others that are."""
    planned = {one.host: one.planned for one in hosts if one.planned}
    found = find_down(
        [one.detected for one in hosts], {QUIET: quiet}, {TODO: ROLLOUT}, rollout_of(DesiredState(SPEC), {}),
        Targets(inventory=(f"{TODO},{QUIET},{BESIDE},",), limit=f"{TODO},{QUIET}"),
        (lambda: nodes.cordoned({h: NodeChange.of(p) for h, p in planned.items()})) if nodes else dict,
    )  # fmt: skip
    assert found.beside == {BESIDE}
    return sorted(found.hosts), sorted(name for name, _ in found.idle)


@pytest.mark.parametrize(
    ("states", "quiet", "to_do", "idle"),
    [
        ({TODO: "done", QUIET: "done"}, BAD, [], []),
        ({TODO: "failed"}, BAD, [TODO], []),
        ({TODO: "running"}, BAD, [TODO], []),  # its controller was killed
        ({TODO: "waiting"}, BAD, [], []),  # nobody has touched it
        ({QUIET: "failed"}, BAD, [], [QUIET]),
        ({QUIET: "failed"}, OK, [], []),  # it is what it should be by now
        ({BESIDE: "failed"}, BAD, [], [BESIDE]),
        ({"retired": "failed"}, BAD, [], []),  # in no inventory any more
    ],
)
def test_what_earlier_runs_left_counts(
    states: dict[str, str], quiet: HostResult, to_do: list[str], idle: list[str]
) -> None:
    journal(**states)
    assert down(host(TODO), host(QUIET), quiet=quiet) == (to_do, idle)


@pytest.mark.parametrize(
    ("then", "message", "left"),
    [("failed", "not started: gpu1: not drained after 600 s", "two"), ("waiting", "", "one")],
)
def test_what_an_earlier_run_broke_counts_until_a_run_has_touched_it_again(then: str, message: str, left: str) -> None:
    runs = journal(**{TODO: "failed", BESIDE: "failed"})
    rows = [
        HostRow(run="two", host=h, pool="all", wave=0, plan="", state=then, message=message, touched=not message)
        for h in (TODO, BESIDE)
    ]
    runs.begin("two", "provision", {}, this_process(), rows)
    assert down(host(TODO), host(QUIET)) == ([TODO], [BESIDE])
    assert {TODO: runs.all_unfinished()[TODO]} == {TODO: left}, "whose cordon is given back"


def test_a_host_whose_spec_is_wrong_is_its_own_matter() -> None:
    journal(**{QUIET: "failed", TODO: "failed"})
    wrong = host(QUIET)
    wrong = replace(wrong, detected=replace(wrong.detected, spec={"rollout": {"waves": []}}))
    assert down(host(TODO), wrong) == ([TODO], [])


def test_what_another_controller_holds_counts() -> None:
    leased = "other-123456 run1"
    assert down(host(TODO, lease=leased), host(QUIET, lease=leased)) == ([TODO], [QUIET])


@pytest.mark.parametrize(
    ("mark", "failed", "to_do"),
    [
        ({CORDONED: "gpunode by=other-1 run=9"}, "", [TODO]),  # by a controller that this one's journal knows not
        ({}, "", []),  # a person's cordon
        ({}, "not started: gpu1: not drained after 600 s", []),  # and was opened again
        ({}, "modprobe nvidia failed", [TODO]),  # in a step that no drain was for
    ],
)
def test_what_a_gpunode_has_cordoned_or_begun_counts(
    mark: dict[str, str], failed: str, to_do: list[str], server: ApiServer, api: Api
) -> None:
    if failed:
        touched = "not drained" not in failed
        end = HostResult(host=TODO, outcome="failed", message=failed, touched=touched)
        journal(**{TODO: "running"}).ended("one", [end])
    live = node(TODO, spec={"unschedulable": True})
    server.put(live | {"metadata": live["metadata"] | {"annotations": mark}})
    nodes = NodeDrains(lambda: api, silent, Worker())
    assert down(host(TODO, kubernetes=Kubernetes(kubelet="v1.34.1")), host(QUIET), nodes=nodes) == (to_do, [])


def test_two_runs_that_share_a_budget_are_not_at_work_at_once() -> None:
    runs = Runs()
    row = HostRow(run="one", host=BESIDE, pool="all", wave=0, plan="", state="waiting")
    runs.begin("one", "provision", {}, this_process(), [row])
    mine = [replace(row, run="two", host=TODO)]
    with pytest.raises(RefusedError, match="gpu3, of the same pool, is used by run one"):
        runs.begin("two", "provision", {}, this_process(), mine, {BESIDE})
    runs.ended("one", [HostResult(host=BESIDE)])
    runs.begin("two", "provision", {}, this_process(), mine, {BESIDE})
