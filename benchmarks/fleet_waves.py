"""Waves through 100 to 10,000 simulated nodes: the real planner, wave engine and journal, Ansible and nodes played.

Each node answers after a latency and fails now and then, drawn by a seeded generator.  What is promised is asserted:
no budget exceeded, every host in exactly one last state.
"""

from __future__ import annotations

import os
import random
import resource
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import row
from benchmarks.plan_fleet import Offline
from benchmarks.plan_fleet import fleet as recorded
from gpunode.core.errors import Exit
from gpunode.edge.ansible.runner import Event, HostRun
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet import provision as fleet
from gpunode.edge.fleet.host_plan import HostPlan
from gpunode.edge.fleet.runs import Runs
from gpunode.edge.fleet.workflow import plan_one

SPEC = {"rollout": {"waves": [1, "10%", "100%"], "max_unavailable": "25%", "max_failures": "10%"}}
FAILING = 0.01
TASKS = 8  # events of a host


class Played:
    """Ansible and the nodes behind it: some time for each host, some failures, and how many were in work at most."""

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.draw = random.Random(20261122)
        self.lock = threading.Lock()
        self.now = self.most = 0
        self.seen: Counter[str] = Counter()
        self.done: set[str] = set()

    def run_playbook(self, folder: Path, playbook: str, *, arguments: Sequence[str], on_event: Any, **_: Any) -> Any:
        hosts = Path(arguments[list(arguments).index("--limit") + 1][1:]).read_text().split()
        with self.lock:
            self.seen.update(hosts)
            self.now += len(hosts)
            self.most = max(self.most, self.now)
            bad = {host for host in hosts if self.draw.random() < FAILING}
            self.done |= set(hosts) - bad
        for host in hosts:
            for number in range(TASKS):
                on_event(Event(host=host, kind="started", task=f"Task {number}"))
        time.sleep(self.latency)
        with self.lock:
            self.now -= len(hosts)
        return {h: HostRun(exit=Exit.FAILED if h in bad else Exit.OK, message="played") for h in hosts}


def go(count: int, latency: float) -> tuple[float, dict[str, int]]:
    """Seconds of provision, and how the hosts ended."""
    facts = recorded(count)
    planner = Offline(SPEC)
    hosts = [plan_one(Detected(host=f.hostname, facts=f), planner) for f in facts]
    played = Played(latency)

    def again(found: Sequence[Detected], where: Targets) -> list[Detected]:
        return list(found)

    def settled(found: Sequence[Detected], where: Targets, planner: Any) -> list[HostPlan]:
        return [HostPlan(detected=one, planned=quiet) for one in found]

    one = next(h.planned for h in hosts if h.planned)
    quiet = replace(one, plan=replace(one.plan, steps=()))
    replaced: Any = fleet
    replaced.run_playbook, replaced.probe, replaced.plan_all = played.run_playbook, again, settled
    start = time.perf_counter()
    results = fleet.provision(hosts, Targets(inventory=("x,",)), planner)
    whole = time.perf_counter() - start
    todo = sum(bool(h.plan and h.plan.steps) for h in hosts)
    assert set(played.seen.values()) == {1} and played.most <= max(1, todo // 4)
    rows = Runs().hosts(Runs().get("last").name)
    assert len(rows) == todo and {r.state for r in rows} <= {"done", "failed"}
    assert len(results) == count
    return whole, dict(Counter(r.state for r in rows))


def main() -> None:
    base = 0.0
    for count in (100, 1_000, 2_000, 10_000):
        with tempfile.TemporaryDirectory() as name:
            os.environ["XDG_STATE_HOME"] = name
            seconds, ends = go(count, latency=0.02)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        base = base or seconds / count
        growth = f", {seconds / count / base:.1f} × the time per node of 100" if count > 100 else ""
        row(f"waves through {count} nodes", f"{seconds:.1f} s, peak {memory:.0f} MiB, {ends}{growth}", "linear")


if __name__ == "__main__":
    main()
