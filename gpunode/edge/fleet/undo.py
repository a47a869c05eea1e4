"""uninstall and rollback over hosts: the role gpunode.node.undo by Ansible, which reads each node's journal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from gpunode.core.errors import Exit, GpunodeError, InputError, InterruptedByUser
from gpunode.core.model import HostResult
from gpunode.core.plan.playbook import HEADER, dump
from gpunode.core.remote import parse_outcome, program
from gpunode.core.report.text import counted
from gpunode.core.rollout import RolloutPool, make_pools
from gpunode.core.spec import Spec
from gpunode.core.spec.rollout import DrainSpec, parse_rollout
from gpunode.core.undo.journal import Run, parse_snapshot, standing
from gpunode.core.undo.summary import summary
from gpunode.edge.ansible.runner import Event, HostRun, PlayInterrupted, PlayOptions, run_playbook
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets, find_hosts, probe
from gpunode.edge.fleet.budget import find_down, rollout_of
from gpunode.edge.fleet.draining import NodeChange, NodeDrains, connect, undone
from gpunode.edge.fleet.executor import Hooks, Job, Rollout
from gpunode.edge.fleet.host_plan import HostPlan
from gpunode.edge.fleet.provision import RunCallbacks, RunOptions
from gpunode.edge.fleet.runs import HostRow, Runs, this_process
from gpunode.edge.fleet.worker import Worker
from gpunode.edge.fleet.workflow import (
    ANSIBLE_CFG,
    CONFIG,
    INVENTORY,
    PLAYBOOK,
    ansible_arguments,
    connection_vars,
    error_result,
    inventory_sources,
)
from gpunode.edge.isolate import isolated
from gpunode.edge.lease import give_back, may_hold, without_leased
from gpunode.edge.ssh.many import Ran, run_many
from gpunode.edge.state import controller_name, new_run, next_generation, write_private
from gpunode.node import script

GROUP = "gpunode_undo"
TASK = "Undo what gpunode has changed"
NEVER = DrainSpec()


def undo(
    targets: Targets,
    what: dict[str, Any],
    *,
    desired: DesiredState | None = None,
    options: RunOptions | None = None,
    callbacks: RunCallbacks | None = None,
    shown: Sequence[HostResult] = (),
) -> list[HostResult]:
    """Take back on each host what `what` says (core/undo/requests.py); with `check`, say what that would be.

    `changed` are the sentences, `notes` what stays as it is, `diffs` those of files where `diff` asks for them; the
    outcome is pending where a check found something to do.  Hosts are gone through as `rollout` of their spec says;
    `shown` is what a check has found before.  Raises InterruptedByUser on Ctrl-C.
    """
    hosts = find_hosts(targets)
    run = _Undo(
        what=what, targets=targets, hosts={host.host: host for host in hosts},
        options=options or RunOptions(), callbacks=callbacks or RunCallbacks(),
    )  # fmt: skip
    results = run.check(run.hosts) if run.options.check else run.go(desired or DesiredState(), shown)
    return [results[host.host] for host in hosts]


@dataclass(kw_only=True)
class _Undo:
    """One undo of many hosts: what its jobs share."""

    what: dict[str, Any]
    targets: Targets
    hosts: Mapping[str, Detected]
    options: RunOptions
    callbacks: RunCallbacks
    nodes: Mapping[str, NodeChange] = field(default_factory=dict)  # hosts that are nodes of a cluster, to be drained
    drains: Mapping[str, DrainSpec] = field(default_factory=dict)
    folder: Path = field(default_factory=new_run)
    generation: int = field(default_factory=next_generation)
    _unfinished: frozenset[str] = frozenset()  # hosts that an earlier run began with
    _stated: dict[str, str] = field(default_factory=dict)
    _leased: set[str] = field(default_factory=set)
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        sources = inventory_sources(self.targets)
        self._inventory = [*sources, str((self.folder / INVENTORY).resolve())]
        write_private(self.folder / INVENTORY, dump(_inventory(list(self.hosts.values()), own=not sources), HEADER))
        write_private(self.folder / PLAYBOOK, dump([_play(self.what)], HEADER))
        write_private(self.folder / CONFIG, ANSIBLE_CFG.format(inventory=",".join(self._inventory)))

    def check(self, hosts: Collection[str]) -> dict[str, HostResult]:
        """What would be undone."""
        job = Job(number=0, hosts=tuple(hosts), forks=self.targets.forks)
        runs = self._play(job, check=True)
        return {host: self._result(host, runs.get(host), check=True) for host in job.hosts}

    def go(self, desired: DesiredState, shown: Sequence[HostResult]) -> dict[str, HostResult]:
        """Go through the hosts in waves, within their budgets."""
        over = parse_rollout(self.options.rollout, "the options of the command")
        read = {name: isolated(name, partial(desired.spec, host.spec, host=name)) for name, host in self.hosts.items()}
        results = {name: error_result(name, spec) for name, spec in read.items() if isinstance(spec, GpunodeError)}
        specs = {name: replace(spec.rollout, **over) for name, spec in read.items() if isinstance(spec, Spec)}
        self.drains = {host: spec.drain for host, spec in specs.items()}
        worker = Worker(
            controller=controller_name(), run=self.folder.name, take_over=self.targets.break_lock,
            stage=self.callbacks.node, cancelled=self._cancelled,
        )  # fmt: skip
        self._nodes = NodeDrains(self.options.cluster or connect, self.callbacks.notice, worker)
        if any(spec.max_unavailable != "100%" or spec.drain.when != "never" for spec in specs.values()):
            results |= self._look(shown)
        specs = {host: spec for host, spec in specs.items() if host not in results}
        down = find_down(
            [HostPlan(detected=host) for host in self.hosts.values()], results, specs, rollout_of(desired, over),
            self.targets, lambda: self._nodes.cordoned(self.nodes, self.drains),
        )  # fmt: skip
        done: dict[str, HostResult] = {}
        pools = make_pools(list(specs.items()), down=down.hosts, idle=down.idle)
        name, runs = self.folder.name, self._begin(pools, down.beside)

        def started(job: Job) -> None:
            runs.started(name, job.hosts, "")

        def ended(some: Sequence[HostResult]) -> None:
            done.update({result.host: result for result in some})
            for result in some:
                self.callbacks.result(result)
            runs.ended(name, some)

        hooks = Hooks(do=self._do, verify=self._verify, on_start=started, on_end=ended, on_wave=self.callbacks.wave)
        forks, deadline = self.targets.forks, self.options.deadline
        rollout = Rollout(pools, dict.fromkeys(specs, ""), hooks, forks=forks, deadline=deadline)
        rollout.cancelled = self._cancelled
        status = "failed"
        try:
            progress = rollout.run()
            bad = "failed" in progress.states.values()
            status = "stopped" if progress.stopped else "failed" if bad else "done"
        except KeyboardInterrupt as error:
            status, fix = "interrupted", "run the same command again: it continues where it was"
            raise InterruptedByUser("interrupted", fix=fix) from error
        finally:
            self._finish(runs, status)
        left = HostResult(host="", outcome="pending", message=f"not started: {progress.stopped}", started=False)
        return {host: results.get(host) or done.get(host) or replace(left, host=host) for host in self.hosts}

    def _begin(self, pools: Sequence[RolloutPool], beside: Collection[str]) -> Runs:
        """This undo in the journal of runs, so that no other run takes its hosts.  Raises RefusedError."""
        runs, name, verb = Runs(), self.folder.name, self.what["verb"]
        self._unfinished = frozenset(runs.unfinished(self.hosts))
        rows = [
            HostRow(run=name, host=host, pool=pool.name, wave=wave, plan="", state="waiting")
            for pool in pools
            for wave in range(len(pool.ends))
            for host in pool.wave(wave)
        ]
        runs.begin(name, verb, {"what": self.what}, this_process(), rows, beside)
        return runs

    def _finish(self, runs: Runs, status: str) -> None:
        try:
            runs.finish(self.folder.name, status)
            runs.close()
        except GpunodeError as error:  # what came of the hosts is to be shown
            self.callbacks.notice(f"the end of run {self.folder.name} is not recorded: {error}")

    def _look(self, shown: Sequence[HostResult]) -> dict[str, HostResult]:
        """Probe the hosts, and which nodes are to be drained; the results of those that nothing can be done on."""
        probed = probe(list(self.hosts.values()), self.targets)
        found = {one.host: one for one in (probed if self.targets.break_lock else without_leased(probed))}
        results = {name: error_result(name, one.error) for name, one in found.items() if one.error}
        self.hosts = {name: replace(one, error=None) for name, one in found.items()}
        facts = {
            host: one.facts
            for host, one in found.items()
            if one.facts and one.facts.kubernetes.present and self.drains.get(host, NEVER).when != "never"
        }
        if not facts:
            return results
        said = {result.host: result for result in shown} or self.check(facts)
        results |= {host: said[host] for host in facts if said[host].outcome not in ("ok", "pending")}
        self.nodes = {
            host: NodeChange(facts=one, disturbs=bool(said[host].changed))
            for host, one in facts.items()
            if host not in results
        }
        return results | self._nodes.refused({h: p for h, p in self.nodes.items() if p.disturbs}, self.drains)

    def _do(self, job: Job) -> dict[str, HostResult]:
        """Drain the nodes among the hosts of a job, undo, and give them back; also such that an earlier undo left."""
        quiet = {host: replace(self.drains[host], when="disruptive") for host in job.hosts}  # with no step: not at all
        nodes = {host: self.nodes[host] for host in job.hosts if host in self.nodes}
        taken, refused = self._nodes.claim_all(nodes, quiet, self._unfinished)
        job = replace(job, hosts=tuple(host for host in job.hosts if host not in refused))
        undone_now = isolated("", partial(self._undo, job)) if job.hosts else {}
        if isinstance(undone_now, GpunodeError):
            undone_now = {host: error_result(host, undone_now) for host in job.hosts}
        results = {**refused, **undone_now}
        good = [self.hosts[host] for host in taken if results[host].ok]
        after = {one.host: one.facts for one in probe(good, self.targets) if one.facts} if good else {}
        taken |= {host: undone(taken[host], self.nodes[host].facts, facts) for host, facts in after.items()}
        boots = {host: facts.boot_id for host, facts in after.items()}
        return results | self._nodes.release_all(taken, results, self.drains, boots)

    def _undo(self, job: Job) -> dict[str, HostResult]:
        try:
            runs = self._play(job, check=False)
        except PlayInterrupted as error:
            failed = {host: run for host, run in error.hosts.items() if run.exit}
            return {h: self._result(h, failed[h]) if h in failed else error_result(h, error) for h in job.hosts}
        return {host: self._result(host, runs.get(host)) for host in job.hosts}

    def _verify(self, hosts: Sequence[str]) -> dict[str, HostResult]:
        """After the soak time: a host that does not answer has failed."""
        found = probe([self.hosts[host] for host in hosts], self.targets)
        return {o.host: error_result(o.host, o.error) if o.error else HostResult(host=o.host) for o in found}

    def _play(self, job: Job, *, check: bool) -> dict[str, HostRun]:
        """One ansible-playbook for the hosts of a job.  Raises PlayInterrupted."""
        limit = self.folder / f"limit-{job.number}"
        write_private(limit, "".join(f"{host}\n" for host in job.hosts))
        arguments = ansible_arguments(
            self.targets, self.options.arguments, run=self.folder.name, generation=self.generation
        )
        runs: dict[str, HostRun] = {}
        try:
            runs = run_playbook(
                self.folder,
                PLAYBOOK,
                inventory=self._inventory,
                options=PlayOptions(
                    forks=job.forks,
                    check=check,
                    diff=self.options.diff,
                    become_password=self.targets.become_password,
                ),
                arguments=[*arguments, "--limit", f"@{limit}"],
                on_event=partial(self._heard, check=check),
                cancelled=self._cancelled.is_set,
            )
        finally:
            held = [self.hosts[host] for host in job.hosts if host in self._leased]
            if held and not check:
                parts = runs if self.what.get("parts") else {}  # what undoes all, or a run, is no run that stands
                ended = {host: "failed" if run.exit else "done" for host, run in parts.items()}
                give_back(
                    held, self.targets, self.folder, self._inventory,
                    run=self.folder.name, generation=self.generation, ended=ended,
                )  # fmt: skip
        return runs

    def _heard(self, event: Event, *, check: bool) -> None:
        if may_hold(event):
            self._leased.add(event.host)
        if event.task == TASK and event.message:
            self._stated[event.host] = event.message
        if not check:
            self.callbacks.event(event)

    def _result(self, host: str, run: HostRun | None, *, check: bool = False) -> HostResult:
        never = HostRun(exit=Exit.FAILED, message="Ansible never got to this host")
        return _result(host, run or never, self._stated.get(host, ""), self.folder.name, check=check)


Listed: TypeAlias = "list[Run] | GpunodeError"


def list_runs(
    targets: Targets, on_done: Callable[[str, Listed], None] = lambda host, listed: None
) -> list[tuple[Detected, Listed]]:
    """The runs that stand on each host, oldest first, or why they cannot be read; `on_done` sees each as it comes."""
    hosts = find_hosts(targets)
    text = program(script("read_journal.sh"), {})
    found: dict[str, Listed] = {}

    def done(ran: Ran) -> None:
        host = ran.target.name
        found[host] = isolated(host, partial(_standing, host, ran))
        on_done(host, found[host])

    run_many([(host.target, text) for host in hosts if host.target], reach=targets.reach(), on_done=done)
    return [(host, found[host.host]) for host in hosts]


def _standing(host: str, ran: Ran) -> list[Run]:
    outcome = parse_outcome(ran.stdout, ran.rc)
    if ran.error:
        raise ran.error
    if outcome.status != "unchanged":
        raise GpunodeError(f"{host}: {outcome.message}", fix=outcome.fix)
    try:
        journal = parse_snapshot(ran.stdout)
    except InputError as error:  # the user's input is fine: it is the node's journal that is not as it should be
        raise GpunodeError(f"{host}: {error.what}", expected=error.expected, fix=error.fix) from error
    if journal.damage.problem:
        raise GpunodeError(f"{host}: {journal.damage.problem.what}", fix=journal.damage.problem.fix)
    return [replace(run, what=summary(journal.records[run.first : run.last + 1])) for run in standing(journal.records)]


def _inventory(hosts: Sequence[Detected], *, own: bool) -> dict[str, Any]:
    values = {host.host: connection_vars(host) if own else {} for host in hosts}
    return {"all": {"hosts": values, "children": {GROUP: {"hosts": {host.host: {} for host in hosts}}}}}


def _play(what: dict[str, Any]) -> dict[str, Any]:
    task = {"name": TASK, "gpunode.node.undo": {"what": what}}
    return {"name": f"gpunode {what['verb']}", "hosts": GROUP, "gather_facts": False, "tasks": [task]}


def _result(host: str, run: HostRun, printed: str, name: str, *, check: bool) -> HostResult:
    result = HostResult(
        host=host,
        outcome=run.exit.outcome,
        message=run.sentence,
        changed=tuple(run.changed),
        notes=tuple(run.notes),
        diffs=tuple(run.diffs),
        run=name,
    )
    if run.exit:
        return result
    if check and run.changed:
        return replace(
            result,
            outcome="pending",
            message=f"would undo {counted(len(run.changed), 'change')}",
        )
    return replace(result, message=printed)
