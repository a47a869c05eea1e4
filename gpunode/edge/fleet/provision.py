"""provision: the plans of hosts → runs of Ansible, wave by wave, with a journal that outlives this process."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gpunode.core.checks.gpus import unfit_checks
from gpunode.core.checks.health import Expected, presence_checks
from gpunode.core.errors import Exit, GpunodeError, InterruptedByUser
from gpunode.core.items.first_boot import prepares
from gpunode.core.model import Check, HostOutcome, HostResult, Plan
from gpunode.core.plan import class_key
from gpunode.core.plan.lockfile import lock_text
from gpunode.core.plan.playbook import HEADER, Shape, dump, group_names, make_playbook
from gpunode.core.report.text import MANY, names, news
from gpunode.core.rollout import Progress, RolloutPool, make_pools
from gpunode.core.spec.rollout import DrainSpec, RolloutSpec, parse_rollout
from gpunode.edge.accept.model import AcceptRun
from gpunode.edge.accept.run import measure
from gpunode.edge.ansible.runner import Event, HostRun, PlayInterrupted, PlayOptions, run_playbook
from gpunode.edge.desired import DesiredState, Planned
from gpunode.edge.detect import Targets, probe
from gpunode.edge.fleet.budget import find_down, rollout_of
from gpunode.edge.fleet.draining import Connect, NodeChange, NodeDrains, connect
from gpunode.edge.fleet.executor import Hooks, Job, Results, Rollout
from gpunode.edge.fleet.host_plan import HostPlan
from gpunode.edge.fleet.runs import HostRow, Runs, all_unfinished, this_process
from gpunode.edge.fleet.worker import Worker
from gpunode.edge.fleet.workflow import (
    INVENTORY,
    ansible_arguments,
    error_result,
    expected_gpus,
    inventory_sources,
    plan_all,
    verify_found,
    write_plan,
)
from gpunode.edge.isolate import isolated
from gpunode.edge.lease import give_back, may_hold
from gpunode.edge.report_data import keep_results
from gpunode.edge.saved import SavedPlan
from gpunode.edge.secrets import handed_over
from gpunode.edge.state import StateError, append_private, controller_name, new_run, next_generation, write_private

CHECK = RolloutSpec(max_failures="100%")  # a rehearsal disturbs nobody: all at once


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How provision runs: `check` changes nothing and says what would change, `diff` adds diffs of files.

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


def provision(
    hosts: Sequence[HostPlan],
    targets: Targets,
    desired: DesiredState,
    *,
    options: RunOptions | None = None,
    saved: SavedPlan | None = None,
    callbacks: RunCallbacks | None = None,
) -> list[HostResult]:
    """Run the plans of `hosts` through generated playbooks, wave by wave, and probe the changed ones again.

    Hosts that have converged, were refused or could not be reached are in no play.  `saved` is the plan's folder where
    there is one, whose `check` the plans have passed: its files are used as they were read.
    Raises InputError for bad values of `options.rollout`, InterruptedByUser on Ctrl-C.
    """
    how, callbacks = options or RunOptions(), callbacks or RunCallbacks()
    over = parse_rollout(how.rollout, "the options of provision")
    asked = {h: replace(planned.spec.rollout, **over) for h, planned in _planned(hosts).items()}
    accepts = frozenset(host for host, spec in asked.items() if spec.accept != "off" and not how.check)
    unproven = _unproven(hosts, accepts)
    todo = {h.host: h for h in hosts if h.planned and (h.planned.plan.steps or h.host in unproven)}
    worker = Worker(controller="" if how.check else controller_name(), take_over=targets.break_lock)
    nodes = NodeDrains(how.cluster or connect, callbacks.notice, worker)
    quiet = [h for h in hosts if h.host not in todo]
    expected = expected_gpus(hosts)
    untouched = {h.host: _untouched(h, expected.get(h.host)) for h in quiet} | (
        {} if how.check else nodes.open_again(_planned(quiet))
    )
    all_drains = {host: spec.drain for host, spec in asked.items()}
    drains = {host: all_drains[host] for host in todo}
    if not how.check and (closed := nodes.refused(_changes(list(todo.values())), drains)):
        untouched |= closed
        todo = {name: host for name, host in todo.items() if name not in closed}
        quiet = [h for h in hosts if h.host not in todo]
    if not todo:
        return [untouched[h.host] for h in hosts]
    own, before = new_run(), targets
    if saved is None:
        write_plan(own, hosts, targets, desired)
    else:
        for name, text in saved.texts.items():
            write_private(own / name, text)
        if not saved.sources:  # hosts that were named on the command line
            targets = replace(targets, inventory=(str(own / INVENTORY),))
    specs = {host: CHECK if how.check else spec for host, spec in asked.items() if host in todo}
    down = find_down(
        hosts, untouched, specs, rollout_of(desired, over), before, lambda: nodes.cordoned(_changes(hosts), all_drains)
    )
    pools = make_pools(list(specs.items()), how.last, down.hosts, down.idle)
    run = _Run(
        name=own.name, own=own, targets=targets, desired=desired, options=how,
        todo=todo, callbacks=callbacks, runs=None if how.check else Runs(),
        drains=drains, worker=worker, accepts=accepts, beside=down.beside,
        generation=next_generation(), expected=expected,
        groups=group_names(_plan(h) for h in todo.values()),
    )  # fmt: skip
    progress = run.go(pools, how.deadline, [(h, untouched[h.host]) for h in quiet])
    left = run.of_run(HostResult(host="", outcome="pending", message=f"not started: {progress.stopped}", started=False))
    return [untouched.get(h.host) or run.results.get(h.host) or replace(left, host=h.host) for h in hosts]


@dataclass(frozen=True, kw_only=True)
class After:
    """What the probe after a play found: the key of the host's state, and its boot."""

    found: str
    boot_id: str


@dataclass(kw_only=True)
class _Run:
    """One run of provision: what its jobs share."""

    name: str
    own: Path  # the run's folder: the plan, logs, playbooks of jobs
    targets: Targets
    desired: DesiredState
    options: RunOptions
    todo: Mapping[str, HostPlan]
    callbacks: RunCallbacks
    drains: Mapping[str, DrainSpec]
    worker: Worker
    expected: Mapping[str, Expected]
    groups: Mapping[Shape, str]  # of the plays of the whole run
    accepts: frozenset[str]  # hosts that are measured before they count as done
    beside: frozenset[str]  # hosts that have part in the budgets of this run, and are not in it
    generation: int  # orders the runs of this controller, on the nodes
    runs: Runs | None  # the journal; None for a rehearsal
    results: dict[str, HostResult] = field(default_factory=dict)
    after: dict[str, After] = field(default_factory=dict)
    _leased: set[str] = field(default_factory=set)  # hosts that may hold a lease of this run
    _began: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _unfinished: frozenset[str] = frozenset()  # hosts that an earlier run began with

    def __post_init__(self) -> None:
        self._trial = AcceptRun(
            folder=self.own / "accept", targets=self.targets, level="quick", say=self._measuring,
        )  # fmt: skip

    def go(
        self, pools: Sequence[RolloutPool], deadline: float, untouched: Sequence[tuple[HostPlan, HostResult]]
    ) -> Progress:
        classes = {host: class_key(_plan(h)) for host, h in self.todo.items()}
        hooks = Hooks(
            do=self._do, verify=self._verify, on_start=self._started, on_end=self._ended, on_wave=self.callbacks.wave,
            on_tick=self._tick,
        )  # fmt: skip
        rollout = Rollout(pools, classes, hooks, forks=self.targets.forks, deadline=deadline)
        self._cancelled = rollout.cancelled
        self.targets = self._trial.targets = replace(self.targets, stop=rollout.cancelled)
        worker = replace(self.worker, run=self.name, stage=self._staged, cancelled=rollout.cancelled)
        self.nodes = NodeDrains(self.options.cluster or connect, self.callbacks.notice, worker)
        (self.own / "hosts").mkdir(mode=0o700, exist_ok=True)
        if self.runs:
            self._begin(self.runs, pools, classes, untouched)
        try:
            progress = rollout.run()
        except KeyboardInterrupt as error:
            self._finish("interrupted")
            cut = [result.host for result in self.results.values() if result.outcome == "interrupted"]
            where = f"; a package transaction that runs on {names(cut)} goes on there to its end" if cut else ""
            raise InterruptedByUser(f"interrupted{where}", fix=f"resume: gpunode runs resume {self.name}") from error
        except BaseException:
            self._finish("failed")
            raise
        bad = any(state == "failed" for state in progress.states.values())
        self._finish("stopped" if progress.stopped else "failed" if bad else "done")
        return progress

    def _begin(
        self,
        runs: Runs,
        pools: Sequence[RolloutPool],
        classes: Mapping[str, str],
        untouched: Sequence[tuple[HostPlan, HostResult]],
    ) -> None:
        """Every host into the journal, also those that nothing is done on: what they were like, or what was wrong."""
        row = HostRow(run=self.name, host="", pool="", wave=0, plan="", state="waiting")
        rows = [
            replace(row, host=h, pool=p.name, wave=number, plan=classes[h], found=_plan(self.todo[h]).facts_hash)
            for p in pools
            for number in range(len(p.ends))
            for h in p.wave(number)
        ]
        for quiet, result in untouched:
            end = replace(row, host=quiet.host, state="done" if result.ok else "failed", found=_found(quiet))
            rows.append(replace(end, exit=int(Exit.of(result.outcome)), message=result.message))
        planned = [*self.todo.values(), *(host for host, _ in untouched)]
        runs.keep({_found(h): h.planned.facts for h in planned if h.planned})
        self._unfinished = frozenset(runs.unfinished(self.todo))
        runs.begin(self.name, "provision", self._request(), this_process(), rows, self.beside)

    def _finish(self, status: str) -> None:
        try:
            if self.runs:
                self.runs.finish(self.name, status)
                self.runs.close()
        except GpunodeError as error:  # what came of the hosts is to be shown
            self.callbacks.notice(f"the end of run {self.name} is not recorded: {error}")

    def _request(self) -> dict[str, Any]:
        """What it takes to ask for the same again."""
        return {
            "where": _repeatable(self.targets),
            "spec": self.desired.spec_data,
            "arguments": list(self.options.arguments),
            "rollout": dict(self.options.rollout),
            "lock": None if self.desired.lock is None else lock_text(self.desired.lock),
            **({"resumes": self.options.resumes} if self.options.resumes else {}),
        }

    def _do(self, job: Job) -> Results:
        """Empty the hosts that are nodes of a cluster, run Ansible on the job's hosts, and give the nodes back."""
        changes = _changes([self.todo[host] for host in job.hosts])
        taken, refused = (
            ({}, {}) if self.options.check else self.nodes.claim_all(changes, self.drains, self._unfinished)
        )
        left = tuple(host for host in job.hosts if host not in refused)
        simulated = isolated("", lambda: self._work(replace(job, hosts=left))) if left else {}
        if isinstance(simulated, GpunodeError):  # what was refused, and what is cordoned, is reported all the same
            simulated = {host: error_result(host, simulated) for host in left}
        results = {**refused, **simulated}
        boots = {host: self.after[host].boot_id for host in left if host in self.after}
        return results | self.nodes.release_all(taken, results, self.drains, boots)

    def _work(self, job: Job) -> Results:
        """Apply the plans of the job's hosts, probe those that it went well on, and measure those that ask for it."""
        steps = tuple(host for host in job.hosts if _plan(self.todo[host]).steps)
        done = {host: HostRun(exit=Exit.OK, message="") for host in job.hosts if host not in steps}
        try:
            done |= self._play(replace(job, hosts=steps)) if steps else {}
        except PlayInterrupted as error:
            return self._interrupted(job.hosts, error)
        good = {host for host in job.hosts if host in done and not done[host].exit}
        again = [] if self.options.check else probe([self.todo[host].detected for host in good], self.targets)
        after = {host.host: host for host in plan_all(again, self.targets, self.desired)}
        self._seen(list(after.values()))
        results = {h: self._result(h, done.get(h), after.get(h)) for h in job.hosts}
        results |= self._measured({h: after[h] for h, r in results.items() if r.ok and h in self.accepts}, results)
        if self.runs:
            self._keep(results, after)
        return results

    def _measured(self, hosts: Mapping[str, HostPlan], results: Results) -> Results:
        """The results of hosts that have come to a good end, with what `gpunode accept` says of them."""
        if not hosts:
            return {}
        for host in hosts:
            self._measuring(host, "")
        found = isolated("", lambda: measure(list(hosts.values()), self._trial, self.desired))
        if isinstance(found, GpunodeError):
            return {host: error_result(host, found) for host in hosts}
        return {host: accepted(results[host], found[host]) for host in hosts}

    def _play(self, job: Job) -> Mapping[str, HostRun]:
        """One ansible-playbook for the hosts of a job.  Raises PlayInterrupted."""
        playbook, limit = f"playbook-{job.number}.yml", self.own / f"limit-{job.number}"
        plans = [_plan(self.todo[host]) for host in job.hosts]
        write_private(self.own / playbook, dump(make_playbook(plans, self.groups), HEADER))
        write_private(limit, "".join(f"{host}\n" for host in job.hosts))
        arguments = ansible_arguments(self.targets, self.options.arguments, run=self.name, generation=self.generation)
        done: Mapping[str, HostRun] = {}
        try:
            with handed_over(self.desired.secrets) as secrets:
                done = run_playbook(
                    self.own,
                    playbook,
                    inventory=self._inventory,
                    options=PlayOptions(
                        forks=job.forks,
                        check=self.options.check,
                        diff=self.options.diff,
                        become_password=self.targets.become_password,
                    ),
                    arguments=[*arguments, *secrets, "--limit", f"@{limit}"],
                    on_event=self._heard,
                    cancelled=self._cancelled.is_set,
                )
        finally:
            self._give_back(job.hosts, {host: "failed" if run.exit else "done" for host, run in done.items()})
        return done

    def _interrupted(self, hosts: Sequence[str], error: PlayInterrupted) -> Results:
        """Hosts that had failed before the interrupt keep their cause."""
        failed = {host: done for host in hosts if (done := error.hosts.get(host)) and done.exit}
        results = {h: self._result(h, failed[h], None) if h in failed else error_result(h, error) for h in hosts}
        if self.runs:
            self._keep(results, {})
        return results

    @property
    def _inventory(self) -> list[str]:
        return [*inventory_sources(self.targets), str((self.own / INVENTORY).resolve())]

    def _give_back(self, hosts: Sequence[str], ended: Mapping[str, str]) -> None:
        """End the leases of those that Ansible got to: this run does nothing more there."""
        found = [self.todo[host].detected for host in hosts if host in self._leased]
        if found and not self.options.check:
            give_back(
                found,
                self.targets,
                self.own,
                self._inventory,
                run=self.name,
                generation=self.generation,
                ended=ended,
            )

    def _result(self, host: str, done: HostRun | None, after: HostPlan | None) -> HostResult:
        expected = self.expected.get(host)
        result = isolated(host, lambda: _result(self.todo[host], done, after, expected, check=self.options.check))
        return result if isinstance(result, HostResult) else error_result(host, result)

    def _seen(self, hosts: Sequence[HostPlan]) -> None:
        """Keep what hosts are like after their play."""
        found = _planned(hosts)
        states = {p.plan.facts_hash: p.facts for p in found.values()}
        with self._lock:
            self.after |= {h: After(found=p.plan.facts_hash, boot_id=p.facts.boot_id) for h, p in found.items()}
            if self.runs:
                self.runs.keep(states)

    def _verify(self, hosts: Sequence[str]) -> Results:
        found = probe([self.todo[host].detected for host in hosts], self.targets)
        results = {result.host: result for result in verify_found(found, self.targets, self.desired)}
        self._keep(results, {one.host: one for one in plan_all(found, self.targets, self.desired)})
        return results

    def _keep(self, results: Results, after: Mapping[str, HostPlan]) -> None:
        """What came of hosts, and what was found on them then, for `gpunode report`."""
        with self._lock:
            keep_results(self.own, results.values(), after, self.desired)

    def _started(self, job: Job) -> None:
        with self._lock:
            self._began |= dict.fromkeys(job.hosts, time.monotonic())
        if self.runs:
            self.runs.started(self.name, job.hosts, str(self.own / "hosts"))

    def _heard(self, event: Event) -> None:
        with self._lock:
            if may_hold(event):
                self._leased.add(event.host)
            if self.runs and event.kind == "started":
                with contextlib.suppress(StateError):  # a full disk ends no play; the host's end will say it
                    self.runs.step(self.name, event.host, event.task)
            if event.kind not in ("started", "skipped"):
                self._log(event.host, f"{event.kind}: {event.task} ({event.seconds:.1f} s) {event.message}")
            self.callbacks.event(event)

    def _staged(self, host: str, what: str) -> None:
        """What happens to a host's node of the cluster; on disk before the next thing happens."""
        with self._lock:
            if self.runs:
                with contextlib.suppress(StateError):
                    self.runs.step(self.name, host, f"node {what}", now=True)
            self._log(host, f"node {what}")
            self.callbacks.node(host, what)

    def _measuring(self, host: str, what: str) -> None:
        """Which stage of an acceptance a host has behind it."""
        self._staged(host, f"is measured: {what}" if what else "is measured")
        if len(self.todo) <= MANY:
            self.callbacks.notice(f"{host} is measured{f': {what}' if what else ''}")

    def _log(self, host: str, line: str) -> None:
        path = self.own / "hosts" / f"{host.replace('/', '_')}.log"
        with contextlib.suppress(OSError), append_private(path) as log:
            log.write(f"{line}\n")

    def _tick(self) -> None:
        if self.runs:
            with contextlib.suppress(StateError):
                self.runs.flush()

    def _ended(self, results: Sequence[HostResult]) -> None:
        now = time.monotonic()
        reported = [replace(self.of_run(r), seconds=round(now - self._began.get(r.host, now), 1)) for r in results]
        with self._lock:
            self.results |= {result.host: result for result in reported}
            try:
                if self.runs:
                    found = {r.host: self.after[r.host].found for r in reported if r.host in self.after}
                    self.runs.ended(self.name, reported, found)
            except GpunodeError as error:  # it is on the node all the same: here nobody can look it up
                reported = [_unrecorded(result, error) for result in reported]
                self.results |= {result.host: result for result in reported}
                raise
            finally:
                for result in reported:
                    self.callbacks.result(result)

    def of_run(self, result: HostResult) -> HostResult:
        """With the run that it is part of; check mode is none."""
        return replace(result, run=self.name) if self.runs else result


def _repeatable(targets: Targets) -> dict[str, Any]:
    """The fields with which another process can mean the same hosts; passwords have to be asked for again."""
    kept = [f.name for f in fields(targets) if not f.metadata.get("internal") and f.name != "become_password"]
    return {name: getattr(targets, name) for name in kept} | {"inventory": inventory_sources(targets)}


def to_measure(hosts: Sequence[HostPlan]) -> list[str]:
    """Those of the hosts that provision would measure: it changes them, or they were not found good since a change."""
    planned = _planned(hosts)
    accepts = frozenset(host for host, found in planned.items() if found.spec.rollout.accept != "off")
    unproven = _unproven(hosts, accepts)
    return [host for host in planned if host in unproven or (host in accepts and planned[host].plan.steps)]


def _unproven(hosts: Sequence[HostPlan], accepts: frozenset[str]) -> frozenset[str]:
    """Hosts that nothing is to be done on, and that their last run changed and never found good: they are measured."""
    found = {h.host for h in hosts if h.host in accepts and not (_plan(h).steps or _plan(h).problems)}
    return frozenset(found & all_unfinished().keys()) if found else frozenset()


def accepted(result: HostResult, measured: HostResult) -> HostResult:
    """A result with what was measured: what failed is a failed host; what is not proven is said, and holds no node."""
    ids = {check.id for check in result.checks}
    more = tuple(check for check in measured.checks if check.id not in ids or check.status == "failed")
    result = replace(result, checks=(*result.checks, *more))
    if failed := [f"{check.id}: {check.message}" for check in measured.checks if check.status == "failed"]:
        return replace(result, outcome="failed", message=f"{result.message}, but not accepted: {'; '.join(failed)}")
    unproven = [check for check in measured.checks if check.status == "not-proven"]
    if measured.outcome == "refused" or not any(check.id.startswith("accept.") for check in measured.checks):
        text = f"not measured: {unproven[-1].message if unproven else measured.message}"
    else:
        text = f"accepted, not proven: {', '.join(check.id for check in unproven)}" if unproven else "accepted"
    return replace(result, message=f"{result.message}; {text}")


def _unrecorded(result: HostResult, error: GpunodeError) -> HostResult:
    text = f"{result.message} (not recorded: {error.what})"
    return replace(result, outcome=error.outcome if result.ok else result.outcome, message=text)


def _found(host: HostPlan) -> str:
    """The key of a host's state in the journal."""
    return host.planned.plan.facts_hash if host.planned else ""


def _planned(hosts: Sequence[HostPlan]) -> dict[str, Planned]:
    return {h.host: h.planned for h in hosts if h.planned}


def _changes(hosts: Sequence[HostPlan]) -> dict[str, NodeChange]:
    return {host: NodeChange.of(planned) for host, planned in _planned(hosts).items()}


def _plan(host: HostPlan) -> Plan:
    assert host.planned
    return host.planned.plan


def _untouched(host: HostPlan, expected: Expected | None) -> HostResult:
    """A host that nothing is to be done on, or nothing can be."""
    if host.error:
        return HostResult(host=host.host, outcome=host.outcome, message=str(host.error))
    plan = _plan(host)
    if plan.problems:
        text = "; ".join(f"{p.what} (fix: {p.fix})" for p in plan.problems)
        return HostResult(host=host.host, outcome="refused", message=text)
    result = HostResult(host=host.host, message="; ".join(("nothing to do", *plan.warnings)))
    return _with_gpus(result, host, expected)


def _with_gpus(result: HostResult, host: HostPlan, expected: Expected | None) -> HostResult:
    """The result, unless GPUs are missing or cannot be used: failed, or pending for a machine that has none."""
    if host.planned is None or prepares(host.planned.spec):
        return result
    facts = host.planned.facts
    present = presence_checks(facts, expected) if expected else []
    missing = [check for check in (*present, *unfit_checks(facts)) if check.status == "failed"]
    if not missing:
        return result
    text = "; ".join(f"{check.message} (fix: {check.fix})" for check in missing)
    outcome: HostOutcome = "pending" if all(check.id == "gpu.present" for check in missing) else "failed"
    return replace(result, outcome=outcome, message=f"{result.message.partition(';')[0]}; {text}")


def _result(
    before: HostPlan, done: HostRun | None, after: HostPlan | None, expected: Expected | None, *, check: bool
) -> HostResult:
    if done is None:
        return HostResult(host=before.host, outcome="failed", message="Ansible never got to this host")
    result = HostResult(
        host=before.host,
        outcome=done.exit.outcome,
        message=done.sentence,
        changed=tuple(done.changed),
        checks=tuple(Check(**c) for c in done.checks),
        diffs=tuple(done.diffs),
    )
    if done.exit:
        return result
    if check:
        return replace(result, outcome="pending", message=f"would change {len(done.changed)} things")
    settled = _settled(result, after, len(news(_plan(before))))
    return _with_gpus(settled, after, expected) if settled.ok and after else settled


def _settled(result: HostResult, after: HostPlan | None, steps: int) -> HostResult:
    """After a good run the plan must be empty; what still stands in it is reported, and the outcome is pending."""
    failed = [c.id for c in result.checks if c.status == "failed"]
    if failed:
        return replace(result, outcome="failed", message=f"done, but these checks failed: {', '.join(failed)}")
    if after is None or after.error:
        return replace(result, outcome="failed", message=f"done, but probing again failed: {after and after.error}")
    plan = _plan(after)
    left = [s.title for s in plan.steps if s.role not in ("preflight", "verify")]
    left += [p.what for p in plan.problems]
    if left:
        return replace(result, outcome="pending", message=f"done, but still to do: {'; '.join(left)}")
    applied = f"{steps} step{'s' if steps > 1 else ''} applied, nothing pending" if steps else "nothing to do"
    return replace(result, message=applied)
