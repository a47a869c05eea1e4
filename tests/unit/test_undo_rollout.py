"""uninstall and rollback of many hosts: waves, budgets and drains as provision has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer
from kube_cluster import node

from gpunode.core.errors import Exit, RefusedError, UnreachableError
from gpunode.core.model import Changed, DriverState, HostResult, Kubernetes, MigInstance, NodeFacts, Sharing
from gpunode.edge.ansible.runner import Event, HostRun
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet import driver, undo
from gpunode.edge.fleet.driver import RunCallbacks, RunOptions
from gpunode.edge.fleet.prepare import prepare
from gpunode.edge.fleet.runs import Runs
from gpunode.edge.report import of_run
from gpunode.kube.edge.client import Api

pytest_plugins = ("kube_fixtures",)

WHAT = {"verb": "uninstall"}
DRAINED = {"rollout": {"drain": {"when": "disruptive", "timeout": 3, "ready_timeout": 2}}}
LOADED = NodeFacts(
    hostname="gpu1", driver=DriverState(loaded="580.95.05"), kubernetes=Kubernetes(kind="kubeadm", kubelet="v1.34.1")
)
CUT = MigInstance(gpu=0, id=1, profile="1g.10gb", start=0, size=1)
DONE = HostRun(changed=[Changed(text="removed x")])


class Fleet:
    """Nodes with something to undo, and who was undone with whom; `during` is called while a play runs."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, **runs: HostRun) -> None:
        self.runs, self.plays = runs, list[list[str]]()
        self.during: Callable[[], None] = lambda: None
        self.events: list[Event] = []
        self.facts: dict[str, NodeFacts] = {}
        self.after: NodeFacts | None = None  # what a node is like once it is undone
        patch.setenv("XDG_STATE_HOME", str(folder))
        patch.setattr(driver, "run_playbook", self.play)
        patch.setattr(undo, "probe", self.probe)
        patch.setattr(driver, "give_back", lambda *_, **__: None)

    def play(self, folder: Path, _: str, *, arguments: Sequence[str], options: Any, **more: Any) -> dict[str, HostRun]:
        hosts = Path(arguments[arguments.index("--limit") + 1].removeprefix("@")).read_text().split()
        if not options.check:
            self.plays.append(hosts)
            self.during()
            self.facts |= {host: self.after for host in hosts if self.after}
        for host in hosts:
            more["on_event"](Event(host=host, kind="changed", task=undo.TASK, message="as it was"))
        return {host: self.runs.get(host, DONE) for host in hosts}

    def probe(self, hosts: Sequence[Detected], _: Targets) -> list[Detected]:
        return [replace(one, facts=self.facts.get(one.host, NodeFacts(hostname=one.host))) for one in hosts]

    def undo(self, hosts: Sequence[str], spec: dict[str, Any], **options: Any) -> dict[str, HostResult]:
        found = undo.undo(
            Targets(hosts=tuple(hosts)), WHAT, desired=DesiredState(spec), options=RunOptions(**options),
            callbacks=RunCallbacks(event=self.events.append),
        )  # fmt: skip
        return {result.host: result for result in found}


HOSTS = [f"gpu{number}" for number in range(1, 6)]


@pytest.mark.parametrize(
    ("spec", "options", "plays"),
    [
        ({}, {}, [HOSTS]),
        ({"rollout": {"max_unavailable": "2"}}, {}, [HOSTS[:2], HOSTS[2:4], HOSTS[4:]]),
        ({"rollout": {"max_unavailable": "2"}}, {"waves": ["1", "100%"]}, [HOSTS[:1], HOSTS[1:3], HOSTS[3:]]),
    ],
)
def test_hosts_are_undone_in_the_waves_and_within_the_budget_of_their_pool(
    spec: dict[str, Any],
    options: dict[str, Any],
    plays: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    fleet = Fleet(monkeypatch, tmp_path)
    results = fleet.undo(HOSTS, spec, rollout=options)
    assert fleet.plays == plays
    assert {result.message for result in results.values()} == {"as it was"}


def test_a_canary_that_fails_stops_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fleet = Fleet(monkeypatch, tmp_path, gpu1=HostRun(exit=Exit.FAILED, message="the GPU is in use"))
    results = fleet.undo(HOSTS, {}, rollout={"waves": ["1", "100%"]})
    assert fleet.plays == [["gpu1"]]
    assert [(results[host].outcome, results[host].started) for host in HOSTS[:2]] == [
        ("failed", True),
        ("pending", False),
    ]
    assert results["gpu2"].message.startswith("not started: pool all: 1 failed, 0 may")


def test_what_was_undone_on_a_host_that_is_lost_then_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    amid = HostRun(exit=Exit.UNREACHABLE, message="the host is lost", changed=DONE.changed)
    fleet = Fleet(monkeypatch, tmp_path, gpu1=amid)

    def gone(hosts: Sequence[Detected], _: Targets) -> list[Detected]:
        return [replace(one, error=UnreachableError("no answer")) for one in hosts]

    fleet.during = lambda: monkeypatch.setattr(undo, "probe", gone)
    lost = fleet.undo(["gpu1"], {})["gpu1"]
    assert (lost.outcome, lost.message, [one.text for one in lost.changed]) == (
        "unreachable",
        "the host is lost",
        ["removed x"],
    )


def test_a_pool_of_the_inventory_has_a_budget_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fleet = Fleet(monkeypatch, tmp_path)
    few = {"gpunode_spec": {"rollout": {"pool": "few", "max_unavailable": 1}}}
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": {"a": few, "b": few, "c": {}, "d": {}}}}))
    undo.undo(Targets(inventory=(str(inventory),)), WHAT)
    assert sorted(map(sorted, fleet.plays)) == [["a"], ["b"], ["c", "d"]]


def shut(server: ApiServer, name: str = "gpu1") -> bool:
    return bool((server.get("Node", name) or {"spec": {}})["spec"].get("unschedulable"))


@pytest.mark.parametrize(
    ("after", "offers", "opened"),
    [
        (replace(LOADED, driver=DriverState()), "0", True),  # without a driver there are no GPUs to wait for
        (LOADED, "8", True),
        (LOADED, "7", False),
        (replace(LOADED, sharing=Sharing(instances=(CUT,))), "7", True),
    ],
)  # fmt: skip
def test_a_node_is_drained_first_and_given_back_with_what_it_then_has(
    after: NodeFacts,
    offers: str,
    opened: bool,
    server: ApiServer,
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    fleet = Fleet(monkeypatch, tmp_path)
    fleet.facts, fleet.after, was_shut = {"gpu1": LOADED}, after, []
    server.put(node("gpu1", allocatable={"nvidia.com/gpu": "8"}))

    def during() -> None:
        was_shut.append(shut(server))
        live = server.get("Node", "gpu1") or {}
        server.put(live | {"status": live["status"] | {"allocatable": {"nvidia.com/gpu": offers}}})

    fleet.during = during
    result = fleet.undo(["gpu1"], DRAINED, cluster=lambda: api)["gpu1"]
    assert (was_shut, shut(server), result.ok) == ([True], not opened, opened), result


def test_a_node_with_nothing_to_undo_is_not_drained_and_one_that_failed_stays_cordoned(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet = Fleet(monkeypatch, tmp_path, gpu1=HostRun())
    fleet.facts = {"gpu1": LOADED}
    server.put(node("gpu1"))
    fleet.during = lambda: pytest.fail("drained") if shut(server) else None
    assert fleet.undo(["gpu1"], DRAINED, cluster=lambda: api)["gpu1"].ok
    assert len(fleet.events) == 1, "not of the check that says whether there is anything to undo"
    fleet.during = lambda: fleet.runs.update(gpu1=HostRun(exit=Exit.FAILED, message="nvidia is in use"))
    fleet.runs["gpu1"] = DONE
    result = fleet.undo(["gpu1"], DRAINED, cluster=lambda: api)["gpu1"]
    assert result.message == "nvidia is in use (node gpu1 stays cordoned)" and shut(server)


def test_a_host_of_an_undo_is_refused_to_a_provision_before_it_is_probed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet, refused = Fleet(monkeypatch, tmp_path), list[str]()

    def during() -> None:
        with pytest.raises(RefusedError, match="gpu2 is used by run") as error:
            prepare(Targets(hosts=("gpu2",)), {})
        refused.append(error.value.what)

    fleet.during = during
    assert all(result.ok for result in fleet.undo(HOSTS, {}).values()) and len(refused) == 1


def test_a_cluster_is_asked_only_for_nodes_with_something_to_undo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet = Fleet(monkeypatch, tmp_path, gpu1=HostRun())
    fleet.facts = {"gpu1": LOADED}
    assert fleet.undo(["gpu1"], DRAINED, cluster=lambda: pytest.fail("asked"))["gpu1"].ok


def test_an_undo_that_failed_is_a_run_that_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fleet = Fleet(monkeypatch, tmp_path, gpu1=HostRun(exit=Exit.FAILED, message="the GPU is in use"))
    fleet.undo(["gpu1", "gpu2"], {})
    [run] = Runs().latest()
    assert {h.name: (h.state, h.run and h.run.changed) for h in of_run(run.name).hosts} == {
        "gpu1": ("failed", ()),
        "gpu2": ("ok", ("removed x",)),
    }
    assert of_run("last").run == of_run(run.name).run
    assert run.status == "failed" and set(Runs().all_unfinished()) == {"gpu1"}
    fleet.runs.clear()
    fleet.undo(["gpu1"], {})
    assert Runs().latest(1)[0].status == "done" and not Runs().all_unfinished()
