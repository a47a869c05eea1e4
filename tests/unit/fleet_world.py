"""Simulated nodes behind the real planner, wave engine and journal: recorded probes, and an Ansible that is played.

A node is fresh, drifted (a file is gone), or what the spec asks for; some refuse, some cannot be reached.  A play may
fail, with its work done or not.  The controller may die at any moment of a play: from then on nothing that it does is
written down, as after a SIGKILL.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.cli.terminal import say
from gpunode.core.errors import Exit, UnreachableError
from gpunode.core.facts import parse_probe
from gpunode.core.model import NodeFacts, Repository
from gpunode.core.rollout import Start
from gpunode.core.spec import Spec
from gpunode.edge.ansible.runner import Event, HostRun
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet import driver, runs
from gpunode.edge.fleet import provision as fleet
from gpunode.edge.fleet.driver import RunCallbacks, RunOptions
from gpunode.edge.fleet.executor import Rollout
from gpunode.edge.fleet.runs import Runs
from gpunode.edge.fleet.workflow import HostPlan, plan_one

PROBES = Path(__file__).parents[1] / "cases/probes"
KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n-----END PGP PUBLIC KEY BLOCK-----\n"
DEAD = 2**22 + 1  # no process has this id


def _recorded(name: str) -> NodeFacts:
    return parse_probe((PROBES / name / "probe.txt").read_text())


CONVERGED = _recorded("arch-h100-provisioned")
_FILE = next(path for path in sorted(CONVERGED.files) if path.startswith("/etc/modprobe.d/"))
KINDS = {
    "fresh": _recorded("arch-h100-fresh"),
    "drifted": replace(CONVERGED, files={p: f for p, f in CONVERGED.files.items() if p != _FILE}),
    "converged": CONVERGED,
    "refused": _recorded("debian12-no-root"),
}


class Killed(BaseException):
    """The controller is dead: whoever still does something gets this."""


class Offline(DesiredState):
    """The planner, but for the signing keys."""

    def _key(self, repository: Repository, spec: Spec) -> bytes:
        return KEY


class World:
    """Nodes by name with what they are, and what was done to them."""

    def __init__(self, kinds: Sequence[str], seed: int = 1) -> None:
        self.hosts = [f"gpu{n:04d}" for n in range(len(kinds))]
        self.kinds = dict(zip(self.hosts, kinds, strict=True))
        self.draw = random.Random(seed)
        self.lock = threading.Lock()
        self.failing, self.latency = 0.0, 0.0
        self.dies_after: float = float("inf")  # hosts that are still played
        self.dead = False
        self.begin()

    def begin(self) -> None:
        """A new run."""
        self.dead = False
        self.played: Counter[str] = Counter()
        self.ended: dict[str, bool] = {}  # in the order in which they ended: well?
        self.now: set[str] = set()
        self.failures: list[int] = []
        self.moments: list[tuple[frozenset[str], dict[str, bool]]] = []  # in work, ended: whenever a play began

    # ------------------------------------------------------------ what gpunode asks

    def detect(self) -> list[Detected]:
        return [self.probe(host) for host in self.hosts]

    def probe(self, host: str) -> Detected:
        if self.kinds[host] == "away":
            return Detected(host=host, error=UnreachableError(f"{host}: no route"))
        return Detected(host=host, facts=replace(KINDS[self.kinds[host]], hostname=host))

    def run_playbook(self, folder: Path, playbook: str, *, arguments: Sequence[str], on_event: Any, **_: Any) -> Any:
        hosts = Path(arguments[list(arguments).index("--limit") + 1][1:]).read_text().split()
        with self.lock:
            self.played.update(hosts)
            self.now |= set(hosts)
            self.moments.append((frozenset(self.now), dict(self.ended)))
            bad = {host for host in hosts if self.draw.random() < self.failing}
            torn = self.dies_after < len(hosts)  # it dies in the middle of this play
            done = set(hosts[: int(self.dies_after)]) if torn else set(hosts)
            self.dies_after -= len(hosts)
        for host in hosts:
            on_event(Event(host=host, kind="started", task="Install the driver"))
        time.sleep(self.latency * self.draw.random())
        with self.lock:
            for host in done:  # some that fail have had their work done all the same
                if host not in bad or self.draw.random() < 0.3:
                    self.kinds[host] = "converged"
            self.dead |= torn
            if self.dead:
                raise Killed
            self.now -= set(hosts)
            self.ended |= {host: host not in bad for host in hosts}
        return {h: HostRun(exit=Exit.FAILED if h in bad else Exit.OK, message="played") for h in hosts}

    # ------------------------------------------------------------ a run

    def provision(
        self, spec: dict[str, Any], state: Path, *, rollout: dict[str, Any] | None = None
    ) -> dict[str, int] | None:
        """`gpunode provision` of all of them: exit codes by host; None when the controller died."""
        self.begin()
        self.left = set(self.journal(state).all_unfinished()) if (state / "gpunode/runs.sqlite").exists() else set()
        desired = Offline(spec)
        hosts: list[HostPlan] = [plan_one(found, desired) for found in self.detect()]
        self.good = {host for host, kind in self.kinds.items() if kind == "converged"}
        self.todo = [h.host for h in hosts if h.plan and h.plan.steps and not h.plan.problems]
        with self._patched(state):
            try:
                self.results = fleet.provision(
                    hosts,
                    Targets(inventory=("x,",), forks=1000),
                    desired,
                    options=RunOptions(rollout=rollout or {}),
                    callbacks=RunCallbacks(notice=say),
                )
            except Killed:
                return None
        return {result.host: int(Exit.of(result.outcome)) for result in self.results}

    @contextmanager
    def _patched(self, state: Path) -> Iterator[None]:
        changes = Runs._changes

        @contextmanager
        def mortal(journal: Runs) -> Iterator[Any]:
            if self.dead:
                raise Killed
            with changes(journal) as db:
                yield db

        class Watched(Rollout):
            """How many have failed, to its knowledge, whenever it begins with further hosts."""

            def _start(inner, start: Start, *more: Any) -> None:
                self.failures.append(list(inner.progress.states.values()).count("failed"))
                super()._start(start, *more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(state))
            patch.setattr(driver, "Rollout", Watched)
            patch.setattr(driver, "run_playbook", self.run_playbook)
            patch.setattr(fleet, "probe", lambda hosts, where: [self.probe(one.host) for one in hosts])
            patch.setattr(runs.Runs, "_changes", mortal)
            patch.setattr(driver, "this_process", lambda: f"{socket.gethostname()}:{DEAD}@1")
            yield

    def journal(self, state: Path) -> Runs:
        return Runs(state / "gpunode/runs.sqlite")
