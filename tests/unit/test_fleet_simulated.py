"""Simulated fleets through the real planner, wave engine and journal: what is promised holds, also after deaths."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from fleet_world import World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpunode.core.report.fleet import unfinished_text
from gpunode.core.rollout import make_pools
from gpunode.core.spec.rollout import RolloutSpec, parse_rollout

WAVES = st.sampled_from([["100%"], ["1", "100%"], ["1", "10%", "100%"], ["2", "50%", "100%"]])
BUDGETS = st.sampled_from(["1", "3", "50%", "100%"])
ALLOWED = st.sampled_from(["0", "0", "1", "20%", "100%"])
KINDS = st.sampled_from(["fresh", "fresh", "fresh", "drifted", "converged", "refused", "away"])


def watch(world: World, rollout: dict[str, Any]) -> None:
    """What the plays of one run must not have done."""
    if not world.todo:
        assert not world.played
        return
    assert set(world.played.values()) <= {1}, "a host was disturbed twice in one run"
    assert set(world.played) <= set(world.todo), "a host was played that nothing was to be done on"
    spec = RolloutSpec(**parse_rollout(rollout))
    down = world.left - world.good if spec.max_unavailable != "100%" else set()
    idle = [(host, spec) for host in down.difference(world.todo)]
    [pool, *others] = make_pools([(host, spec) for host in world.todo], down=down, idle=idle)
    assert not others
    assert all(count <= pool.max_failures for count in world.failures), "it went on with more failures than may be"
    numbers = {host: n for n in range(len(pool.ends)) for host in pool.wave(n)}
    for now, ended in world.moments:
        failed = [host for host, well in ended.items() if not well]
        lacking = {*now, *failed, *(host for host in down if not ended.get(host))}
        assert len(lacking) <= pool.max_unavailable or now <= down, "the budget was exceeded"
        begun = max(numbers[host] for host in now)
        earlier = {host for host, n in numbers.items() if n < begun}
        assert earlier <= set(ended), "a wave began before the one in front of it was done and verified"


class Fleet(RuleBasedStateMachine):
    """Runs with any options, of nodes that fail, drift, go away and come back, by a controller that dies at times."""

    @initialize(kinds=st.lists(KINDS, min_size=5, max_size=30), seed=st.integers(0, 1000))
    def begin(self, kinds: list[str], seed: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.state = Path(self.folder.name)
        self.world = World(kinds, seed)
        self.died = False

    @rule(
        waves=WAVES, budget=BUDGETS, allowed=ALLOWED, failing=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
        dies=st.sampled_from([None, None, 0, 1, 2, 5, 9]),
    )  # fmt: skip
    def provision(self, waves: list[str], budget: str, allowed: str, failing: float, dies: int | None) -> None:
        world = self.world
        rollout = {"waves": waves, "max_unavailable": budget, "max_failures": allowed}
        world.failing, world.dies_after = failing, float("inf") if dies is None else dies
        before = dict(world.kinds)
        exits = world.provision({}, self.state, rollout=rollout)
        watch(world, rollout)
        if world.todo:
            self.check_journal(exits, before)

    def check_journal(self, exits: dict[str, int] | None, before: dict[str, str]) -> None:
        """One row for each host, in one state; what it says of a host is so on the node, and nothing is forgotten."""
        journal = self.world.journal(self.state)
        run = journal.latest(1)[0]
        rows = {row.host: row for row in journal.hosts(run.name)}
        assert sorted(rows) == self.world.hosts, "every host is in the journal"
        for host, row in rows.items():
            if row.state == "done":
                assert self.world.kinds[host] == "converged", "done, and the node is not"
            if host in self.world.played:
                assert row.state != "waiting", "played, and the journal does not know"
            elif host in self.world.todo:
                assert row.state in ("waiting", "running") and self.world.kinds[host] == before[host]
        if exits is None:
            assert run.status == "running" and not run.alive, "killed, and told so"
            return
        ends = {"done", "failed"} | ({"waiting"} if run.status == "stopped" else set())
        assert {row.state for row in rows.values()} <= ends
        assert {h: row.state == "done" for h, row in rows.items()} == {h: not code for h, code in exits.items()}

    @precondition(lambda self: hasattr(self, "world"))
    @rule(data=st.data(), kind=st.sampled_from(["drifted", "away", "fresh"]))
    def something_happens(self, data: Any, kind: str) -> None:
        self.world.kinds[data.draw(st.sampled_from(self.world.hosts))] = kind

    @invariant()
    def nothing_is_left_in_work(self) -> None:
        world = getattr(self, "world", None)
        assert world is None or world.dead or not world.now

    def teardown(self) -> None:
        """When nothing fails any more, one run brings everybody there, and another has nothing to do."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.failing, world.dies_after = 0.0, float("inf")
        world.kinds = {h: "fresh" if kind in ("away", "refused") else kind for h, kind in world.kinds.items()}
        assert set((world.provision({}, self.state) or {}).values()) == {0}
        assert set(world.kinds.values()) == {"converged"}
        world.provision({}, self.state)
        assert not world.played
        self.folder.cleanup()


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=30, stateful_step_count=6, deadline=None)


def test_a_breach_says_what_is_done_what_is_not_and_how_to_go_on(tmp_path: Path) -> None:
    world = World(["fresh"] * 4 + ["converged", "away"])
    world.failing = 1.0
    world.provision({}, tmp_path, rollout={"waves": ["1", "100%"]})
    run = world.journal(tmp_path).latest(1)[0]
    assert run.status == "stopped"
    assert unfinished_text(world.results).splitlines() == [
        f"run {run.name}: 1 succeeded, 2 failed, 3 not started",
        "  failed: gpu0000, gpu0005",
        "  not started: gpu0001, gpu0002, gpu0003",
        f"resume: gpunode runs resume {run.name}",
    ]
    assert "max_failures" in world.results[1].message


def test_two_thousand_nodes_through_waves_and_budgets(tmp_path: Path) -> None:
    kinds = ["fresh", "fresh", "drifted", "converged", "fresh"] * 396 + ["refused"] * 10 + ["away"] * 10
    world = World(kinds, seed=20261122)
    world.failing, world.latency = 0.01, 0.02
    rollout = {"waves": ["1", "10%", "100%"], "max_unavailable": "25%", "max_failures": "10%"}
    exits = world.provision({}, tmp_path, rollout=rollout)
    watch(world, rollout)
    assert exits and len(exits) == 2000 and len(world.played) == 1584
    states = Counter(row.state for row in world.journal(tmp_path).hosts(world.journal(tmp_path).latest(1)[0].name))
    failed = sum(not well for well in world.ended.values())
    assert 0 < failed < 60
    assert states == {"done": 1980 - failed, "failed": failed + 20}


def test_hosts_that_a_killed_run_left_in_work_use_up_the_budget_of_the_next(tmp_path: Path) -> None:
    world = World(["converged", "converged", "fresh", "fresh", "fresh"])
    world.dies_after = 0
    assert world.provision({}, tmp_path, rollout={"max_unavailable": "2"}) is None
    world.dies_after, world.kinds["gpu0000"] = float("inf"), "drifted"
    exits = world.provision({}, tmp_path, rollout={"max_unavailable": "2"})
    assert set((exits or {}).values()) == {0}
    assert world.moments[0][0] == {"gpu0002", "gpu0003"}, "three would have been down"
