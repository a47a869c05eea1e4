"""The one driver of runs that change hosts: a verb brings its phases, which read in order what is done.

Around them the driver has what all runs share: the cluster's consent, budgets and waves, drains, leases on the nodes,
the journal from which a run is resumed, logs and events.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpunode.core.errors import Exit, GpunodeError, InterruptedByUser
from gpunode.core.late import dataclass, field, replace
from gpunode.core.model import HostResult, NodeFacts
from gpunode.core.printable import names
from gpunode.core.rollout import RolloutPool, make_pools
from gpunode.core.spec.rollout import RolloutSpec, parse_rollout
from gpunode.edge.ansible.runner import Event, HostRun, PlayInterrupted, PlayOptions, run_playbook
from gpunode.edge.ansible.step_limit import READING
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets
from gpunode.edge.fleet.budget import find_down, rollout_of
from gpunode.edge.fleet.draining import Connect, NodeChange, NodeDrains, connect, spoilt, stays_cordoned
from gpunode.edge.fleet.executor import Hooks, Job, Results, Rollout
from gpunode.edge.fleet.host_plan import HostPlan
from gpunode.edge.fleet.runs import HostRow, Runs, all_unfinished, current_folder, this_process
from gpunode.edge.fleet.worker import Worker
from gpunode.edge.fleet.workflow import INVENTORY, inventory_sources
from gpunode.edge.isolate import isolated
from gpunode.edge.lease import WORKED, give_back
from gpunode.edge.report_data import keep_results
from gpunode.edge.state import (
    StateError,
    append_private,
    controller_name,
    new_run,
    next_generation,
    run_name,
    write_private,
)  # fmt: skip

if TYPE_CHECKING:
    from gpunode.kube.edge.nodes import Taken

REHEARSAL = RolloutSpec(max_failures="100%")  # it disturbs nobody: all at once


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run goes: `check` changes nothing and says what would change, `diff` adds diffs of files.

    `rollout` has values that replace those of the spec (its keys are those of `rollout` in gpunode.yml), `deadline` is
    the number of seconds after which no further host is started, `arguments` are more words for ansible-playbook.
    `cluster` opens the Kubernetes API for hosts that are nodes of a cluster and have to be drained; without it that of
    the current kubeconfig is opened when it is needed.  `resumes` is the run that this one continues, `last` the hosts
    that come last in their pools.
    """

    check: bool = False
    diff: bool = False
    arguments: tuple[str, ...] = ()
    rollout: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = math.inf
    cluster: Connect | None = None
    resumes: str = ""
    last: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class RunCallbacks:
    """Functions that a run calls, from several threads: with each event of Ansible, wave, result of a host, notice.

    `wave` gets the pool, the number of the wave from 0, and what happens to it; `notice` a sentence for a person;
    `node` a host and what happens to its node of a cluster: cordoned, drained, given back.
    """

    event: Callable[[Event], None] = lambda event: None
    wave: Callable[[str, int, str], None] = lambda pool, wave, what: None
    result: Callable[[HostResult], None] = lambda result: None
    notice: Callable[[str], None] = lambda text: None
    node: Callable[[str, str], None] = lambda host, what: None


@dataclass(kw_only=True)
class Work:
    """Hosts on their way through phases, and what is known of them so far."""

    job: Job
    results: dict[str, HostResult] = field(default_factory=dict)
    ran: dict[str, HostRun] = field(default_factory=dict)  # what Ansible says of them
    taken: dict[str, Taken] = field(default_factory=dict)  # those whose nodes were emptied
    after: dict[str, HostPlan] = field(default_factory=dict)  # as they were probed after the play
    boots: dict[str, str] = field(default_factory=dict)  # the boot that each had then

    @property
    def left(self) -> list[str]:
        """The hosts that nothing has ended yet."""
        return [host for host in self.job.hosts if host not in self.results]

    @property
    def good(self) -> list[str]:
        return [host for host in self.job.hosts if host in self.results and self.results[host].ok]


@dataclass(frozen=True)
class Phase:
    """A part of a run: `run` gets the hosts that `needed` names; where it names none, the phase is skipped."""

    title: str
    run: Callable[[Work, Sequence[str]], None]
    needed: Callable[[Work], Collection[str]] = lambda work: work.left


def each(hosts: Iterable[str], result: Callable[[str], HostResult]) -> dict[str, HostResult]:
    """The result of each host; where none can be made of what came of it, the error."""
    found = {host: isolated(host, partial(result, host)) for host in hosts}
    return {h: one.of_host(h) if isinstance(one, GpunodeError) else one for h, one in found.items()}


@dataclass(kw_only=True)
class Run:
    """One run.

    `go_on` is the command after an interrupt ({run} is its name); `stands`: whether the journals of the nodes have it
    as a run that can be undone.  A verb sets `specs` and `changes` of the hosts that have them, and `results` of those
    that nothing is to be done on; `go` does the rest.
    """

    verb: str
    hosts: dict[str, Detected]
    targets: Targets
    desired: DesiredState
    options: RunOptions
    callbacks: RunCallbacks
    go_on: str
    stands: bool = True
    specs: dict[str, RolloutSpec] = field(default_factory=dict)
    changes: dict[str, NodeChange] = field(default_factory=dict)
    results: dict[str, HostResult] = field(default_factory=dict)
    name: str = field(default_factory=run_name)
    _journal: Runs | None = None  # while it runs; a rehearsal has none
    _states: dict[str, NodeFacts] = field(default_factory=dict)  # what was found before it began
    _found: dict[str, str] = field(default_factory=dict)  # host → key of its newest state
    _leased: set[str] = field(default_factory=set)  # hosts that may hold a lease of this run
    _reported: set[str] = field(default_factory=set)
    _began: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _unfinished: frozenset[str] = frozenset()  # hosts that an earlier run began with

    def __post_init__(self) -> None:
        self.over = parse_rollout(self.options.rollout)
        self.cancelled = threading.Event()
        self.targets = replace(self.targets, stop=self.cancelled)
        worker = Worker(
            controller="" if self.options.check else controller_name(), run=self.name, stage=self.stage,
            take_over=self.targets.break_lock, cancelled=self.cancelled,
        )  # fmt: skip
        self._nodes = NodeDrains(self.options.cluster or connect, self.callbacks.notice, worker)

    @cached_property
    def folder(self) -> Path:
        """The plan, logs, and the playbooks of jobs."""
        return new_run(self.name)

    @cached_property
    def _generation(self) -> int:
        """It orders the runs of this controller, on the nodes."""
        return next_generation()

    @property
    def inventory(self) -> list[str]:
        return [*inventory_sources(self.targets), str((self.folder / INVENTORY).resolve())]

    def saw(self, hosts: Iterable[HostPlan]) -> None:
        """Keep what hosts are like."""
        planned = {host.host: host.planned for host in hosts if host.planned}
        states = {one.plan.facts_hash: one.facts for one in planned.values()}
        with self._lock:
            self._found |= {host: one.plan.facts_hash for host, one in planned.items()}
            if self._journal:
                self._journal.keep(states)
            else:
                self._states |= states

    # ------------------------------------------------------------ phases that all runs share

    @property
    def give_back_left(self) -> Phase:
        """For hosts that nothing is to be done on."""

        def needed(work: Work) -> Collection[str]:
            nodes = {h for h, change in self._changes(work.results).items() if change.is_node and not change.has_steps}
            return nodes & all_unfinished().keys() if nodes else ()

        return Phase("give back nodes that earlier runs left cordoned", self._give_back_left, needed)

    def _give_back_left(self, work: Work, hosts: Sequence[str]) -> None:
        changes = self._changes(hosts)
        taken, errors = self._nodes.claim_all(changes)
        work.results |= {host: stays_cordoned(work.results[host], error) for host, error in errors.items()}
        boots = {host: change.facts.boot_id for host, change in changes.items()}
        work.results |= self._nodes.release_all(taken, work.results, changes, boots)
        journal, started = Runs(), all_unfinished()
        for host, one in taken.items():
            if (result := work.results[host]).ok:
                work.results[host] = replace(result, message=f"{result.message}; node {one.node} is given back")
                journal.ended(started[host], [work.results[host]], {host: self._found[host]})
        journal.close()

    @property
    def ask_the_cluster(self) -> Phase:
        """Before anything is changed: hosts that it does not let us drain are not started."""

        def ask(work: Work, hosts: Sequence[str]) -> None:
            if error := self._nodes.refusal(self._changes(hosts)):
                work.results |= {host: _not_started(host, error) for host in hosts}

        drained = lambda work: [h for h, one in self._changes(work.left).items() if one.drains]  # noqa: E731
        return Phase("ask the cluster whether it lets us drain nodes", ask, drained)

    def _to_drain(self, work: Work) -> list[str]:
        changes = self._changes(work.left).items()
        return [host for host, one in changes if one.drains or (one.is_node and host in self._unfinished)]

    def _drain(self, work: Work, hosts: Sequence[str]) -> None:
        work.taken, errors = self._nodes.claim_all(self._changes(hosts))
        work.results |= {host: _not_started(host, error) for host, error in errors.items()}
        if self.cancelled.is_set():
            cut = InterruptedByUser("interrupted")
            work.results |= {host: _not_started(host, cut) for host in work.left if host not in work.taken}

    def _release(self, work: Work, _: Sequence[str]) -> None:
        work.results |= self._nodes.release_all(work.taken, work.results, self.changes, work.boots)

    def _changes(self, hosts: Iterable[str]) -> dict[str, NodeChange]:
        """Of those of the hosts that are changed; a rehearsal changes none."""
        return {host: self.changes[host] for host in hosts if host in self.changes and not self.options.check}

    def record(self, results: Results, after: Mapping[str, HostPlan]) -> None:
        """What came of hosts, and what was found on them then, for `gpunode report`."""
        if self._journal:
            with self._lock:
                keep_results(self.folder, results.values(), after, self.desired)

    def walk(self, phases: Iterable[Phase], work: Work) -> Results:
        """One phase after the other; what a phase raises has ended the hosts that it was for."""
        for phase in phases:
            if not (hosts := [*phase.needed(work)]):
                continue
            with self._lock:
                for host in hosts:
                    self._step(host, phase.title)
            error = isolated("", partial(phase.run, work, hosts))
            if error is not None:
                work.results |= {host: error.of_host(host) for host in hosts}
        return work.results

    def work_on(self, hosts: Iterable[str], results: dict[str, HostResult] | None = None) -> Work:
        """Hosts that are in no job of the rollout."""
        job = Job(number=0, hosts=tuple(hosts), forks=self.targets.forks)
        return Work(job=job, results={} if results is None else results)

    def prepare(self, *phases: Phase) -> None:
        """What comes before the rollout, for all hosts at once."""
        self.walk(phases, self.work_on(self.hosts, self.results))

    # ------------------------------------------------------------ the rollout

    def go(
        self,
        request: Mapping[str, Any],
        *phases: Phase,
        verify: Callable[[Sequence[str]], Results],
        classes: Mapping[str, str] | None = None,
    ) -> list[HostResult]:
        """The phases of each job, in waves within budgets, on all hosts without a result; then the results of all.

        `request` is what it takes to ask for the same again, `verify` what is asked of a wave after its soak time,
        `classes` has for each host that with which it may share a job.  Raises InterruptedByUser on Ctrl-C.
        """
        specs = {host: spec for host, spec in self.specs.items() if host not in self.results}
        if not specs:
            return [self.results[host] for host in self.hosts]
        down = find_down(
            list(self.hosts.values()), self.results, specs, rollout_of(self.desired, self.over), self.targets,
            lambda: self._nodes.cordoned(self.changes),
        )  # fmt: skip
        pools = make_pools(list(specs.items()), self.options.last, down.hosts, down.idle)
        classes = classes or dict.fromkeys(specs, "")
        each_job = (
            Phase("drain nodes", self._drain, self._to_drain),
            *phases,
            Phase("give nodes back", self._release, lambda work: work.taken),
            Phase(
                "keep what came of it", lambda work, _: self.record(work.results, work.after), lambda work: work.results
            ),
        )
        hooks = Hooks(
            do=lambda job: self.walk(each_job, Work(job=job)), verify=verify, on_start=self._started,
            on_end=self._ended, on_wave=self.callbacks.wave, on_tick=self._tick,
        )  # fmt: skip
        rollout = Rollout(
            pools, classes, hooks, forks=self.targets.forks, deadline=self.options.deadline, cancelled=self.cancelled
        )
        (self.folder / "hosts").mkdir(mode=0o700, exist_ok=True)
        if not self.options.check:
            self._begin(request, pools, classes, down.beside)
        status = "failed"
        try:
            progress = rollout.run()
            bad = "failed" in progress.states.values()
            status = "stopped" if progress.stopped else "failed" if bad else "done"
        except KeyboardInterrupt as error:
            status = "interrupted"
            cut = [result.host for result in self.results.values() if result.outcome == "interrupted"]
            where = f"; a package transaction that runs on {names(cut)} goes on there to its end" if cut else ""
            raise InterruptedByUser(f"interrupted{where}", fix=self.go_on.format(run=self.name)) from error
        finally:
            self._finish(status)
        left = HostResult(host="", outcome="pending", message=f"not started: {progress.stopped}", started=False)
        return [self.results.get(host) or self._of_run(replace(left, host=host)) for host in self.hosts]

    def _begin(
        self,
        request: Mapping[str, Any],
        pools: Sequence[RolloutPool],
        classes: Mapping[str, str],
        beside: Collection[str],
    ) -> None:
        """Every host into the journal, also those that nothing is done on: what they were like, or what was wrong.

        Raises RefusedError where another run has one of them at work, or shares a budget.
        """
        row = HostRow(run=self.name, host="", pool="", wave=0, plan="", state="waiting")
        rows = [
            replace(row, host=h, pool=pool.name, wave=number, plan=classes[h], found=self._found.get(h, ""))
            for pool in pools
            for number in range(len(pool.ends))
            for h in pool.wave(number)
        ]
        for host, result in self.results.items():
            end = replace(row, host=host, state=result.state, found=self._found.get(host, ""))
            rows.append(replace(end, exit=int(Exit.of(result.outcome)), message=result.message, fix=result.fix))
        self._journal = Runs()
        self._journal.keep(self._states)
        self._unfinished = frozenset(self._journal.all_unfinished())
        place = {"folder": current_folder(), "where": {"inventory": inventory_sources(self.targets)}}
        asked = {**place, **request, **({"resumes": self.options.resumes} if self.options.resumes else {})}
        self._journal.begin(self.name, self.verb, asked, this_process(), rows, beside)

    def _finish(self, status: str) -> None:
        try:
            if self._journal:
                self._journal.finish(self.name, status)
                self._journal.close()
        except GpunodeError as error:  # what came of the hosts is to be shown
            self.callbacks.notice(f"the end of run {self.name} is not recorded: {error}")

    def _started(self, job: Job) -> None:
        with self._lock:
            self._began |= dict.fromkeys(job.hosts, time.monotonic())
        if self._journal:
            self._journal.started(self.name, job.hosts, str(self.folder / "hosts"))

    def _ended(self, results: Sequence[HostResult]) -> None:
        now = time.monotonic()
        reported = [replace(self._of_run(r), seconds=round(now - self._began.get(r.host, now), 1)) for r in results]
        with self._lock:
            self.results |= {result.host: result for result in reported}
            try:
                if self._journal:
                    self._journal.ended(self.name, reported, self._found)
            except GpunodeError as error:  # it is on the node all the same: here nobody can look it up
                reported = [spoilt(result, error, f" (not recorded: {error.what})") for result in reported]
                self.results |= {result.host: result for result in reported}
                raise
            finally:
                for result in reported:
                    self.report(result)

    def report(self, result: HostResult) -> None:
        """What came of a host, once; before its job ends where no later phase can change it."""
        if result.host not in self._reported:
            self._reported.add(result.host)
            self.callbacks.result(result)

    def _of_run(self, result: HostResult) -> HostResult:
        """With the run that it is part of; check mode is none."""
        return replace(result, run=self.name) if self._journal else result

    # ------------------------------------------------------------ Ansible, and what happens meanwhile

    def play(
        self,
        work: Work,
        hosts: Sequence[str],
        playbook: str,
        *,
        arguments: Sequence[str] = (),
        check: bool = False,
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """One ansible-playbook; `work.ran` then has what came of the hosts, at an interrupt of those that failed.

        The leases of those that Ansible got to are ended: this run does nothing more there.
        """
        limit = self.folder / f"limit-{work.job.number}"
        write_private(limit, "".join(f"{host}\n" for host in hosts))
        how = PlayOptions(
            forks=work.job.forks, check=check, diff=self.options.diff, become_password=self.targets.become_password,
            targets=tuple(one for host in hosts if (one := self.hosts[host].target)),
        )  # fmt: skip
        ended: dict[str, str] = {}

        def heard(event: Event) -> None:
            on_event(event)
            if not check or self.options.check:  # else it is a look before the run
                self._heard(event)

        try:
            ran = run_playbook(
                self.folder, playbook, inventory=self.inventory, options=how, on_event=heard,
                arguments=[*self._arguments(), *arguments, "--limit", f"@{limit}"], cancelled=self.cancelled.is_set,
            )  # fmt: skip
            work.ran |= ran
            # the proofs come behind all changes: a run that they failed has ended, and the next one is another
            ended = {h: "failed" if one.exit and not one.checks else "done" for h, one in ran.items() if self.stands}
        except PlayInterrupted as error:
            work.ran |= {host: run for host, run in error.hosts.items() if run.exit}
            work.results |= {host: error.of_host(host) for host in hosts if host not in work.ran}
        finally:
            if held := [self.hosts[host] for host in hosts if host in self._leased and not check]:
                give_back(held, self.targets, run=self.name, generation=self._generation, ended=ended)

    def _arguments(self) -> list[str]:
        """What ansible-playbook gets beside the inventory: the journals of the nodes have the run's name."""
        targets = self.targets
        vault = [f"--vault-password-file={Path(path).resolve()}" for path in targets.vault_password_files]
        become = ["--become"] if targets.become and targets.inventory else []
        names = {"gpunode_run": self.name, "gpunode_controller": controller_name()}
        names |= {"gpunode_generation": str(self._generation)}
        names |= {"gpunode_timeout": f"{targets.timeout:g}"} if targets.timeout != READING else {}
        names |= {"gpunode_break_lock": "1"} if targets.break_lock else {}
        words = [word for name, text in names.items() for word in ("-e", f"{name}={text}")]
        return [*vault, *become, *words, *self.options.arguments]

    def _heard(self, event: Event) -> None:
        with self._lock:
            if event.kind in WORKED:
                self._leased.add(event.host)
            if event.kind == "started":
                self._step(event.host, event.task)
            elif event.kind != "skipped":
                self._log(event.host, f"{event.kind}: {event.task} ({event.seconds:.1f} s) {event.message}")
            self.callbacks.event(event)

    def stage(self, host: str, what: str) -> None:
        """What happens to a host outside of Ansible; on disk before the next thing happens."""
        with self._lock:
            self._step(host, f"node {what}", now=True)
            self._log(host, f"node {what}")
            self.callbacks.node(host, what)

    def _step(self, host: str, text: str, *, now: bool = False) -> None:
        """A full disk ends no play: the host's end will say it."""
        if self._journal:
            with contextlib.suppress(StateError):
                self._journal.step(self.name, host, text, now=now)

    def _log(self, host: str, line: str) -> None:
        if self._journal or self.options.check:  # before a run there is no folder to write to
            path = self.folder / "hosts" / f"{host.replace('/', '_')}.log"
            with contextlib.suppress(OSError), append_private(path) as log:
                log.write(f"{line}\n")

    def _tick(self) -> None:
        if self._journal:
            with contextlib.suppress(StateError):
                self._journal.flush()


def _not_started(host: str, error: GpunodeError) -> HostResult:
    return HostResult(host=host, outcome=error.outcome, message=f"not started: {error}", touched=False)
