"""Going through a fleet: what core/rollout.py says is to be done, in threads, each change reported before the next.

Nothing here knows of Ansible or of nodes: `do` and `verify` are given.  A host is in work from `on_start` to `on_end`.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from gpunode.core.errors import GpunodeError, InterruptedByUser
from gpunode.core.grouped import grouped
from gpunode.core.late import dataclass, replace
from gpunode.core.model import HostResult
from gpunode.core.rollout import Gate, Progress, RolloutPool, Start, Stop, next_actions
from gpunode.edge.isolate import isolated

Results = Mapping[str, HostResult]
JOBS = 2 * (os.cpu_count() or 1)  # ansible-playbook processes at a time: each keeps about one core busy
JOB_HOSTS = 250  # hosts of one process at most
_TICK = 0.5  # seconds between looks at the clock
NEVER_REACHED = "Ansible never got to this host"


@dataclass(frozen=True, kw_only=True)
class Job:
    """Hosts of one class that one ansible-playbook process does, with so many forks."""

    number: int
    hosts: tuple[str, ...]
    forks: int


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What is done, and who is reported; `cancelled` is asked while a job runs."""

    do: Callable[[Job], Results]
    verify: Callable[[Sequence[str]], Results]
    on_start: Callable[[Job], None] = lambda job: None
    on_end: Callable[[Sequence[HostResult]], None] = lambda results: None
    on_wave: Callable[[str, int, str], None] = lambda pool, wave, what: None  # what: begins, waits, verified, stopped
    on_tick: Callable[[], None] = lambda: None  # now and then, while something runs


class Rollout:
    """One walk through the pools.  `run` returns when nothing is in work any more; then ask `progress`."""

    def __init__(
        self,
        pools: Sequence[RolloutPool],
        classes: Mapping[str, str],
        hooks: Hooks,
        *,
        forks: int = 50,
        deadline: float = math.inf,  # seconds from now: then nothing more is started
        cancelled: threading.Event | None = None,
    ) -> None:
        self.pools, self.classes, self.hooks = pools, classes, hooks
        self.forks, self.progress = forks, Progress()
        self.cancelled = cancelled or threading.Event()
        self._until = time.monotonic() + deadline
        self._jobs = 0
        self._begun: set[tuple[str, int]] = set()
        self._gates: set[tuple[str, int]] = set()

    def run(self) -> Progress:
        """Go through all of it.  On KeyboardInterrupt what runs is cancelled, waited for, and the interrupt goes on."""
        running: dict[Future[Results], Job | Gate] = {}
        with ThreadPoolExecutor(JOBS + len(self.pools)) as pool:
            try:
                while True:
                    self._act(pool, running)
                    if not running:
                        return self.progress
                    done, _ = wait(running, timeout=_TICK, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._take(running.pop(future), future)
                    self._watch_the_clock()
                    self.hooks.on_tick()
            except BaseException:
                self.cancelled.set()
                for future, what in running.items():
                    if not future.cancel():
                        self._take(what, future)
                raise

    def _act(self, pool: ThreadPoolExecutor, running: dict[Future[Results], Job | Gate]) -> None:
        while True:
            actions = [a for a in next_actions(self.pools, self.progress) if not self._waits(a)]
            if not actions:
                return
            for action in actions:
                if isinstance(action, Stop):
                    self.hooks.on_wave(action.pool, self.progress.gates.get(action.pool, 0), f"stopped: {action.why}")
                    self.progress = replace(self.progress, stopped=f"pool {action.pool}: {action.why}")
                elif isinstance(action, Gate):
                    self._gates.add((action.pool, action.wave))
                    running[pool.submit(self._gate, action)] = action
                else:
                    self._start(action, pool, running)

    def _waits(self, action: object) -> bool:
        return isinstance(action, Gate) and (action.pool, action.wave) in self._gates

    def _start(self, start: Start, pool: ThreadPoolExecutor, running: dict[Future[Results], Job | Gate]) -> None:
        if (start.pool, start.wave) not in self._begun:
            self._begun.add((start.pool, start.wave))
            self.hooks.on_wave(start.pool, start.wave, "begins")
        self.progress = self.progress.with_states(start.hosts, "running")
        for job in self._split(start.hosts):
            running[pool.submit(self._do, job)] = job

    def _split(self, hosts: Sequence[str]) -> list[Job]:
        """Jobs by class, none too large; they share the forks."""
        by_class = grouped((self.classes[host], host) for host in hosts)
        parts = [tuple(m[i : i + JOB_HOSTS]) for m in by_class.values() for i in range(0, len(m), JOB_HOSTS)]
        neighbours = min(len(parts), JOBS)
        jobs = []
        for part in parts:
            self._jobs += 1
            jobs.append(Job(number=self._jobs, hosts=part, forks=max(1, min(len(part), self.forks // neighbours))))
        return jobs

    def _do(self, job: Job) -> Results:
        if self.cancelled.is_set():
            return {}
        self.hooks.on_start(job)
        return self.hooks.do(job)

    def _gate(self, gate: Gate) -> Results:
        if not gate.soak:
            return {}
        self.hooks.on_wave(gate.pool, gate.wave, f"waits {gate.soak} s")
        if self.cancelled.wait(min(gate.soak, max(0.0, self._until - time.monotonic()))):
            return {}
        return self.hooks.verify(gate.hosts)

    def _take(self, what: Job | Gate, future: Future[Results]) -> None:
        """What came of a job or of a gate; a host that it says nothing of has failed."""
        found = isolated("", future.result)
        if isinstance(what, Gate) and isinstance(found, InterruptedByUser):
            return  # nothing was found out about hosts that are done
        if isinstance(found, GpunodeError):
            found = {h: found.of_host(h) for h in what.hosts}
        results = dict(found)
        if isinstance(what, Gate):
            self._pass(what, results)
            return
        silent = HostResult(host="", outcome="failed", message=NEVER_REACHED)
        ended = [results.get(host) or replace(silent, host=host) for host in what.hosts]
        self.progress = self.progress.with_states([r.host for r in ended if not r.ok], "failed")
        self.progress = self.progress.with_states([r.host for r in ended if r.ok], "done")
        self._end(ended)

    def _end(self, results: Sequence[HostResult]) -> None:
        """What nobody can write down is where it stops: what runs goes to its end, nothing else is started."""
        try:
            self.hooks.on_end(results)
        except GpunodeError as error:
            self.progress = replace(self.progress, stopped=self.progress.stopped or error.what)

    def _pass(self, gate: Gate, results: Results) -> None:
        bad = [result for result in results.values() if not result.ok]
        if bad:
            self._end([replace(r, message=f"failed after its wave: {r.message}") for r in bad])
        self.progress = self.progress.with_states([r.host for r in bad], "failed").past_gate(gate.pool)
        if gate.soak:
            self.hooks.on_wave(
                gate.pool, gate.wave, "verified" if not bad else f"{len(bad)} broken after the soak time"
            )

    def _watch_the_clock(self) -> None:
        if time.monotonic() > self._until and not self.progress.stopped:
            self.progress = replace(self.progress, stopped="the deadline has passed")
