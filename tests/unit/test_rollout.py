"""Waves and budgets: cases as a table, and a machine that draws outcomes and watches the promises."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpunode.core.errors import InputError
from gpunode.core.rollout import Gate, Progress, RolloutPool, Start, Stop, make_pools, next_actions
from gpunode.core.spec import parse_spec
from gpunode.core.spec.rollout import RolloutSpec, share

HOSTS = tuple(f"gpu{n:02d}" for n in range(20))


def one_pool(**options: Any) -> RolloutPool:
    (pool,) = make_pools([(host, RolloutSpec(**options)) for host in HOSTS])
    return pool


@pytest.mark.parametrize(
    ("text", "count", "hosts"),
    [("1", 20, 1), ("30", 20, 20), ("10%", 20, 2), ("1%", 20, 1), ("0%", 20, 0), ("0", 20, 0), ("100%", 7, 7)],
)
def test_a_share_of_hosts(text: str, count: int, hosts: int) -> None:
    assert share(text, count) == hosts


@pytest.mark.parametrize(
    ("waves", "ends"),
    [(("100%",), (20,)), (("1", "10%", "100%"), (1, 2, 20)), (("1", "5%", "100%"), (1, 20)), (("40", "100%"), (20,))],
)
def test_waves_are_counted_from_the_first_host(waves: tuple[str, ...], ends: tuple[int, ...]) -> None:
    assert one_pool(waves=waves).ends == ends


def test_hosts_with_other_values_are_another_pool() -> None:
    canary = RolloutSpec(waves=("1", "100%"))
    pools = make_pools([("b", canary), ("a", canary), ("c", RolloutSpec(pool="edge", order="name"))])
    assert [(pool.name, pool.hosts) for pool in pools] == [("all", ("b", "a")), ("edge", ("c",))]


@pytest.mark.parametrize(("order", "hosts"), [("inventory", ("c", "a", "d", "b")), ("name", ("a", "c", "b", "d"))])
def test_hosts_that_failed_before_end_their_pool(order: Any, hosts: tuple[str, ...]) -> None:
    spec = RolloutSpec(waves=("1", "100%"), order=order)
    [pool] = make_pools([(host, spec) for host in "dcab"], last={"d", "b", "z"})
    assert pool.hosts == hosts and pool.wave(0) == hosts[:1]


def test_a_canary_is_done_and_its_gate_passed_before_the_next_wave() -> None:
    pool = one_pool(waves=("1", "100%"), soak=30)
    progress = Progress()
    assert next_actions([pool], progress) == (Start(pool="all", wave=0, hosts=("gpu00",)),)
    progress = progress.with_states(["gpu00"], "running")
    assert next_actions([pool], progress) == ()
    progress = progress.with_states(["gpu00"], "done")
    assert next_actions([pool], progress) == (Gate(pool="all", wave=0, soak=30, hosts=("gpu00",)),)
    (start,) = next_actions([pool], progress.past_gate("all"))
    assert isinstance(start, Start) and start.hosts == HOSTS[1:]


def test_a_canary_that_fails_stops_all() -> None:
    pool = one_pool(waves=("1", "100%"))
    (stop,) = next_actions([pool], Progress().with_states(["gpu00"], "failed"))
    assert isinstance(stop, Stop) and "max_failures" in stop.why


def test_failed_hosts_use_up_what_may_be_unavailable() -> None:
    pool = one_pool(max_unavailable="2", max_failures="100%")
    (start,) = next_actions([pool], Progress().with_states(["gpu00"], "failed"))
    assert isinstance(start, Start) and start.hosts == ("gpu01",)
    (stop,) = next_actions([pool], Progress().with_states(["gpu00", "gpu01"], "failed"))
    assert isinstance(stop, Stop) and "max_unavailable" in stop.why


@pytest.mark.parametrize(
    ("most", "down", "idle", "first"),
    [
        ("3", "cd", "", "a"),  # two of three are down: one more may be
        ("3", "c", "z", "a"),  # also such that nothing is done on
        ("50%", "c", "z", "a"),  # of the pool with all that is down: three of six
        ("2", "cd", "", "cd"),  # the budget is used up: those that are down are nobody's loss
        ("2", "c", "yz", "c"),
        ("2", "", "yz", "2 unavailable from before (y, z), 2 may be"),
        ("100%", "cd", "z", "abe"),
    ],
)
def test_hosts_that_are_down_before_it_begins_count(most: str, down: str, idle: str, first: str) -> None:
    spec = RolloutSpec(max_unavailable=most)
    pools = make_pools([(host, spec) for host in "abcde"], down=down, idle=[(host, spec) for host in idle])
    (action,) = next_actions(pools, Progress())
    assert first in (action.why if isinstance(action, Stop) else "".join(action.hosts))


def test_a_host_that_is_back_makes_room_and_one_that_failed_again_does_not() -> None:
    spec = RolloutSpec(max_unavailable="1", max_failures="100%")
    pools = make_pools([(host, spec) for host in "ab"], down="b")
    (start,) = next_actions(pools, Progress())
    assert isinstance(start, Start) and start.hosts == ("b",)
    assert next_actions(pools, Progress().with_states("b", "running")) == ()
    (start,) = next_actions(pools, Progress().with_states("b", "done"))
    assert isinstance(start, Start) and start.hosts == ("a",)
    (stop,) = next_actions(pools, Progress().with_states("b", "failed"))
    assert isinstance(stop, Stop) and "1 failed, 1 may be unavailable" in stop.why


BAD: list[tuple[dict[str, Any], str]] = [
    ({"waves": [1, "10 %", "100%"]}, "10 %"),
    ({"waves": [1, "10%"]}, "100% as the last wave"),
    ({"waves": []}, "100% as the last wave"),
    ({"waves": ["50%", "10%", "100%"]}, "larger"),
    ({"waves": [5, 5, "100%"]}, "larger"),
    ({"max_unavailable": 0}, "at least 1"),
    ({"max_unavailable": "150%"}, "150%"),
    ({"max_failures": "-1"}, "-1"),
    ({"soak": -5}, "-5"),
    ({"order": "size"}, "order"),
]


@pytest.mark.parametrize(("rollout", "message"), BAD)
def test_bad_values_are_named(rollout: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_spec({"rollout": rollout})
    assert message in str(caught.value)


COUNTS = st.one_of(st.integers(1, 12).map(str), st.integers(1, 100).map(lambda n: f"{n}%"))


class Fleet(RuleBasedStateMachine):
    """Hosts end in any order, well or badly; what is promised holds at every moment."""

    @initialize(data=st.data())
    def draw(self, data: Any) -> None:
        specs = []
        for name in ("one", "two"):
            sizes = sorted({data.draw(st.integers(1, 99)) for _ in range(data.draw(st.integers(0, 3)))})
            specs.append(
                RolloutSpec(
                    pool=name,
                    waves=(*(f"{n}%" for n in sizes), "100%"),
                    max_unavailable=data.draw(COUNTS),
                    max_failures=data.draw(st.one_of(st.just("0"), COUNTS)),
                )
            )
        count = data.draw(st.integers(1, 30))
        hosts = [(f"h{n}", specs[data.draw(st.integers(0, 1))]) for n in range(count)]
        down = data.draw(st.sets(st.sampled_from([host for host, _ in hosts]), max_size=4))
        idle = [(f"i{n}", specs[data.draw(st.integers(0, 1))]) for n in range(data.draw(st.integers(0, 2)))]
        self.pools = make_pools(hosts, down=down, idle=idle)
        self.progress = Progress()
        self.ended: dict[str, int] = {}

    def pool(self, name: str) -> RolloutPool:
        return next(pool for pool in self.pools if pool.name == name)

    @rule(data=st.data())
    def act(self, data: Any) -> None:
        actions = next_actions(self.pools, self.progress)
        if not actions:
            return
        action = data.draw(st.sampled_from(actions))
        if isinstance(action, Start):
            pool = self.pool(action.pool)
            assert action.hosts
            for earlier in range(action.wave):
                assert all(self.progress.state(h) in ("done", "failed") for h in pool.wave(earlier))
            assert self.progress.gates.get(pool.name, 0) == action.wave, "started before the gate was passed"
            assert all(self.progress.state(h) == "waiting" for h in action.hosts), "disturbed twice"
            before = self.unavailable(pool)
            self.progress = self.progress.with_states(action.hosts, "running")
            assert self.unavailable(pool) <= max(before, pool.max_unavailable)
        elif isinstance(action, Gate):
            bad = [h for h in action.hosts if data.draw(st.integers(0, 9)) == 0]
            self.progress = self.progress.with_states(bad, "failed").past_gate(action.pool)
        else:
            from dataclasses import replace

            self.progress = replace(self.progress, stopped=action.why)

    @precondition(lambda self: any(s == "running" for s in self.progress.states.values()))
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        running = [host for host, state in self.progress.states.items() if state == "running"]
        host = data.draw(st.sampled_from(running))
        self.ended[host] = self.ended.get(host, 0) + 1
        self.progress = self.progress.with_states([host], data.draw(st.sampled_from(("done", "done", "failed"))))

    def unavailable(self, pool: RolloutPool) -> int:
        """In work, failed, or down since before; the gate may add some, which nobody can help."""
        states = {host: self.progress.state(host) for host in {*pool.hosts, *pool.down}}
        return sum(s in ("running", "failed") or (s == "waiting" and h in pool.down) for h, s in states.items())

    @invariant()
    def no_more_run_than_may_be_unavailable(self) -> None:
        for pool in getattr(self, "pools", ()):
            fresh = [h for h in pool.hosts if self.progress.state(h) == "running" and h not in pool.down]
            assert len(fresh) <= pool.max_unavailable

    @invariant()
    def nobody_ends_twice(self) -> None:
        assert all(count == 1 for count in getattr(self, "ended", {}).values())

    def is_over(self) -> bool:
        """Whether nothing runs and nothing is to be started."""
        running = "running" in self.progress.states.values()
        return not running and not next_actions(self.pools, self.progress)

    def teardown(self) -> None:
        """Left to itself, with hosts that end well, it comes to an end with every host in one last state."""
        if not hasattr(self, "pools"):
            return
        for _ in range(10_000):
            if self.is_over():
                break
            running = [host for host, state in self.progress.states.items() if state == "running"]
            self.progress = self.progress.with_states(running, "done")
            for action in next_actions(self.pools, self.progress):
                if isinstance(action, Start):
                    self.progress = self.progress.with_states(action.hosts, "running")
                elif isinstance(action, Gate):
                    self.progress = self.progress.past_gate(action.pool)
                else:
                    self.progress = Progress(states=self.progress.states, gates=self.progress.gates, stopped=action.why)
        assert self.is_over()
        left = [h for pool in self.pools for h in pool.hosts if self.progress.state(h) not in ("done", "failed")]
        assert not left or self.progress.stopped


TestFleet = Fleet.TestCase
TestFleet.settings = settings(stateful_step_count=60)
