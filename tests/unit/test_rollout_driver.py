"""A fleet gone through by threads: simulated hosts with latencies and failures, a journal on disk, an interrupt."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.errors import InputError, InterruptedByUser, UnreachableError
from gpunode.core.model import HostResult, NodeFacts
from gpunode.core.rollout import make_pools
from gpunode.core.spec.rollout import RolloutSpec
from gpunode.edge.fleet.executor import Hooks, Job, Results, Rollout
from gpunode.edge.fleet.runs import HostRow, Runs


class Fleet:
    """Hosts that take some time and may fail; what happened to each of them, and how many were in work at most."""

    def __init__(
        self, count: int, *, failing: float = 0.0, seconds: float = 0.0, seed: int = 1, **rollout: Any
    ) -> None:
        self.draw = random.Random(seed)
        self.hosts = [f"gpu{n:04d}" for n in range(count)]
        self.failing, self.seconds = failing, seconds
        self.pools = make_pools([(host, RolloutSpec(**rollout)) for host in self.hosts])
        self.classes = {host: f"class{n % 7}" for n, host in enumerate(self.hosts)}
        self.lock = threading.Lock()
        self.started: Counter[str] = Counter()
        self.ended: dict[str, HostResult] = {}
        self.waves: list[tuple[str, int, str]] = []
        self.verified: list[tuple[str, ...]] = []
        self.now = self.most = 0
        self.broken_later: set[str] = set()
        hooks = Hooks(do=self.do, verify=self.verify, on_start=self.start, on_end=self.end, on_wave=self.wave)
        self.rollout = Rollout(self.pools, self.classes, hooks, forks=50)

    def start(self, job: Job) -> None:
        with self.lock:
            self.started.update(job.hosts)
            self.now += len(job.hosts)
            self.most = max(self.most, self.now)

    def do(self, job: Job) -> Results:
        time.sleep(self.seconds)
        with self.lock:
            self.now -= len(job.hosts)
            bad = {host for host in job.hosts if self.draw.random() < self.failing}
        return {h: HostResult(host=h, outcome="failed" if h in bad else "ok", message="done") for h in job.hosts}

    def verify(self, hosts: Sequence[str]) -> Results:
        self.verified.append(tuple(hosts))
        return {h: HostResult(host=h, outcome="failed" if h in self.broken_later else "ok") for h in hosts}

    def end(self, results: Sequence[HostResult]) -> None:
        self.ended |= {result.host: result for result in results}

    def wave(self, pool: str, number: int, what: str) -> None:
        self.waves.append((pool, number, what))


def test_every_host_is_done_once_in_its_wave() -> None:
    fleet = Fleet(40, waves=("1", "10%", "100%"))
    progress = fleet.rollout.run()
    assert set(fleet.started.values()) == {1} and set(progress.states.values()) == {"done"}
    assert [(n, what) for _, n, what in fleet.waves] == [(0, "begins"), (1, "begins"), (2, "begins")]


def test_no_more_hosts_are_in_work_than_may_be_unavailable() -> None:
    fleet = Fleet(30, max_unavailable="4", seconds=0.01)
    fleet.rollout.run()
    assert fleet.most <= 4 and len(fleet.ended) == 30


def test_a_failing_canary_leaves_the_others_alone() -> None:
    fleet = Fleet(40, failing=1.0, waves=("1", "100%"))
    progress = fleet.rollout.run()
    assert fleet.started == Counter({"gpu0000": 1}) and "max_failures" in progress.stopped
    assert fleet.waves[-1][2].startswith("stopped")


def test_a_canary_that_breaks_in_its_soak_time_stops_the_rest() -> None:
    fleet = Fleet(10, waves=("1", "100%"), soak=1)
    fleet.broken_later = {"gpu0000"}
    progress = fleet.rollout.run()
    assert fleet.verified == [("gpu0000",)] and progress.states == {"gpu0000": "failed"}
    assert "failed after its wave" in fleet.ended["gpu0000"].message


def test_what_a_job_raises_is_what_its_hosts_failed_of() -> None:
    fleet = Fleet(3)

    def do(job: Job) -> Results:
        raise UnreachableError("the network is gone")

    rollout = Rollout(fleet.pools, fleet.classes, Hooks(do=do, verify=fleet.verify, on_end=fleet.end))
    assert set(rollout.run().states.values()) == {"failed"}
    assert {r.outcome for r in fleet.ended.values()} == {"unreachable"}


def test_a_host_that_no_result_speaks_of_has_failed() -> None:
    fleet = Fleet(3)
    rollout = Rollout(fleet.pools, fleet.classes, Hooks(do=lambda job: {}, verify=fleet.verify, on_end=fleet.end))
    assert set(rollout.run().states.values()) == {"failed"}
    assert "never got to" in fleet.ended["gpu0001"].message


def test_after_the_deadline_nothing_more_is_started() -> None:
    fleet = Fleet(50, max_unavailable="1", seconds=0.1)
    hooks = Hooks(do=fleet.do, verify=fleet.verify, on_start=fleet.start)
    progress = Rollout(fleet.pools, fleet.classes, hooks, deadline=0.5).run()
    assert "deadline" in progress.stopped and 0 < len(fleet.started) < 50


def test_an_interrupt_cancels_what_runs_and_is_not_swallowed() -> None:
    fleet = Fleet(4)
    asked = threading.Event()

    def do(job: Job) -> Results:
        asked.set()
        assert rollout.cancelled.wait(10)
        return {h: HostResult(host=h, outcome="interrupted") for h in job.hosts}

    def interrupt(pool: str, wave: int, what: str) -> None:
        asked.wait(1)
        raise KeyboardInterrupt

    hooks = Hooks(do=do, verify=fleet.verify, on_end=fleet.end)
    rollout = Rollout(fleet.pools, dict.fromkeys(fleet.hosts, "one"), hooks)
    rollout._watch_the_clock = lambda: interrupt("", 0, "")  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        rollout.run()
    assert set(rollout.progress.states.values()) == {"failed"}


def test_hosts_whose_proofs_after_the_soak_time_are_interrupted_have_not_failed() -> None:
    fleet = Fleet(4, waves=("1", "100%"), soak=1)
    proving = threading.Event()

    def verify(hosts: Sequence[str]) -> Results:
        proving.set()
        rollout.cancelled.wait(10)
        raise InterruptedByUser("interrupted")

    def interrupt() -> None:
        if proving.is_set():
            raise KeyboardInterrupt

    rollout = Rollout(
        fleet.pools, fleet.classes, Hooks(do=fleet.do, verify=verify, on_end=fleet.end, on_tick=interrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        rollout.run()
    assert [result.outcome for result in fleet.ended.values()] == ["ok"]
    assert rollout.progress.states[fleet.hosts[0]] == "done"


def test_two_thousand_hosts_with_failures_end_in_one_state_each() -> None:
    fleet = Fleet(2000, failing=0.02, waves=("1", "10%", "100%"), max_unavailable="20%", max_failures="10%", seed=7)
    progress = fleet.rollout.run()
    assert len(progress.states) == 2000 and not progress.stopped
    assert set(progress.states.values()) == {"done", "failed"} and set(fleet.started.values()) == {1}
    assert fleet.most <= 400


# ---------------------------------------------------------------- the journal


def rows(*states: str) -> list[HostRow]:
    return [HostRow(run="r1", host=f"h{n}", pool="all", wave=0, plan="abc", state=s) for n, s in enumerate(states)]


def test_the_journal_has_what_came_of_each_host(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs.sqlite")
    runs.begin("20260101T000000Z-aa", "provision", {"inventory": ["hosts.yml"]}, "ctl:1", [])
    runs.begin("20260102T000000Z-bb", "provision", {}, "ctl:1", [])
    assert [run.name[:8] for run in runs.latest()] == ["20260102", "20260101"]
    assert runs.get("20260101").request == {"inventory": ["hosts.yml"]} and runs.get("last").name.endswith("bb")
    assert (tmp_path / "runs.sqlite").stat().st_mode & 0o077 == 0


def test_states_are_on_disk_at_once_and_steps_soon(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs.sqlite")
    runs.begin("r1", "provision", {}, "ctl:1", rows("waiting", "waiting"))
    runs.started("r1", ["h0", "h1"], "/log")
    runs.step("r1", "h0", "Install the driver")
    runs.ended("r1", [HostResult(host="h1", outcome="unreachable", message="unreachable")])
    second = Runs(tmp_path / "runs.sqlite")  # as after a kill -9 of the first
    states = {row.host: (row.state, row.exit, row.step, row.message) for row in second.hosts("r1")}
    assert states == {"h0": ("running", None, "Install the driver", ""), "h1": ("failed", 4, "", "unreachable")}
    runs.finish("r1", "stopped")
    assert second.get("r1").status == "stopped" and second.get("r1").ended


@pytest.mark.parametrize(("name", "message"), [("x", "not known"), ("2026", "several"), ("last", "not known")])
def test_a_run_that_is_not_meant_is_named(name: str, message: str, tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs.sqlite")
    if name != "last":
        for day in (1, 2):
            runs.begin(f"2026010{day}", "provision", {}, "ctl:1", [])
    with pytest.raises(InputError, match=message):
        runs.get(name)


UNDONE = "20260103"


@pytest.mark.parametrize(
    ("purpose", "last", "undo"),
    [
        ("show", UNDONE, UNDONE),
        ("resume", "is a run of uninstall: gpunode uninstall again", "gpunode uninstall again"),
        ("compare", "20260102", "name a run of provision"),
    ],
)
def test_which_run_is_the_last_one_depends_on_what_it_is_for(
    purpose: Any, last: str, undo: str, tmp_path: Path
) -> None:
    """An undo keeps no state to compare with, and what was undone is not resumed by a word that did not mean it."""
    runs = Runs(tmp_path / "runs.sqlite")
    for name, verb in (("20260101", "provision"), ("20260102", "provision"), (UNDONE, "uninstall")):
        runs.begin(name, verb, {}, "ctl:1", [])

    def found(name: str) -> str:
        try:
            return runs.get(name, purpose).name
        except InputError as error:
            return f"{error.what}: {error.fix}"

    assert last in found("last") and undo in found(UNDONE) and found("20260101") == "20260101"


def test_a_journal_of_a_newer_gpunode_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version = 99")
    with pytest.raises(InputError, match="format 99"):
        Runs(path)


def test_hosts_that_failed_before_anything_was_done_on_them_were_not_begun(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs.sqlite")
    runs.begin("r1", "provision", {}, "ctl:1", rows("waiting", "waiting", "waiting"))
    runs.ended("r1", [HostResult(host=f"h{n}", outcome="failed", touched=bool(n)) for n in range(2)])
    assert runs.all_unfinished() == {"h0": "r1", "h1": "r1"} and runs.all_unfinished(begun=True) == {"h1": "r1"}


def test_equal_hosts_have_one_state_in_the_journal(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs.sqlite")
    for version in ("1.18.1", "1.19.0"):  # what is there already stays
        runs.keep({"key": NodeFacts(toolkit=version)})
    assert runs.state("key")["toolkit"] == "1.18.1" and runs.state("") == runs.state("other") == {}


def test_hosts_that_were_started_and_not_brought_to_an_end_are_known(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs.sqlite")
    quiet = HostRow(run="r1", host="quiet", pool="", wave=0, plan="", state="failed", exit=4, message="away")
    runs.begin("20260101", "provision", {}, "ctl:1", [*rows("waiting", "waiting", "waiting", "waiting"), quiet])
    runs.started("20260101", ["h0", "h1", "h2"], "")
    runs.ended("20260101", [HostResult(host="h0"), HostResult(host="h1", outcome="failed")])
    assert runs.all_unfinished() == {"h1": "20260101", "h2": "20260101"}
    runs.begin("20260102", "provision", {}, "ctl:1", rows("waiting", "waiting"))
    runs.ended("20260102", [HostResult(host="h0", outcome="failed"), HostResult(host="h1")])
    assert runs.all_unfinished() == {"h0": "20260102", "h2": "20260101"}
