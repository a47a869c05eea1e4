"""uninstall and rollback over hosts: the role gpunode.node.undo by Ansible, which reads each node's journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gpunode.core.errors import GpunodeError
from gpunode.core.late import dataclass, field, replace
from gpunode.core.model import HostResult
from gpunode.core.plan.playbook import HEADER, dump
from gpunode.core.printable import counted
from gpunode.edge.ansible.runner import ENDED, Event, HostRun, run_of
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Targets, find_hosts, one_name_each, probe
from gpunode.edge.fleet.draining import NodeChange, undone
from gpunode.edge.fleet.driver import REHEARSAL, Phase, Run, RunCallbacks, RunOptions, Work, each
from gpunode.edge.fleet.ends import ran, would
from gpunode.edge.fleet.executor import Results
from gpunode.edge.fleet.workflow import (
    ANSIBLE_CFG,
    CONFIG,
    INVENTORY,
    PLAYBOOK,
    connection_vars,
    inventory_sources,
)  # fmt: skip
from gpunode.edge.isolate import isolated
from gpunode.edge.lease import without_leased
from gpunode.edge.state import write_private

GROUP = "gpunode_undo"
TASK = "Undo what gpunode has changed"


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
    run = Run(
        verb=what["verb"], hosts={host.host: host for host in find_hosts(targets)}, targets=targets,
        desired=desired or DesiredState(), options=options or RunOptions(), callbacks=callbacks or RunCallbacks(),
        go_on="run the same command again: it continues where it was",
        stands=bool(what.get("parts")),  # what undoes all, or a run, is none
    )  # fmt: skip
    jobs = _Undo(run=run, shown={result.host: result for result in shown})
    write_private(run.folder / INVENTORY, dump(_inventory(run), HEADER))
    write_private(run.folder / PLAYBOOK, dump([_play(what)], HEADER))
    write_private(run.folder / CONFIG, ANSIBLE_CFG.format(inventory=",".join(run.inventory)))
    if run.options.check:
        run.specs = dict.fromkeys(run.hosts, REHEARSAL)
    else:
        run.prepare(*jobs.before, run.ask_the_cluster)
    return run.go({"what": what}, *jobs.phases, verify=jobs.verify)


@dataclass(kw_only=True)
class _Undo:
    """What an undo does on the hosts of a job."""

    run: Run
    shown: Mapping[str, HostResult]  # what a check has found
    _printed: dict[str, str] = field(default_factory=dict)

    @property
    def before(self) -> tuple[Phase, ...]:
        return (
            Phase("read the spec", self._read_spec),
            Phase("probe the hosts", self._probe, self._several_or_limited),
            Phase("see what there is to undo on nodes of a cluster", self._see, self._nodes),
        )

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase("undo", self._undo),
            Phase("probe emptied nodes again", self._probe_again, lambda work: work.taken.keys() & set(work.good)),
        )

    def _read_spec(self, work: Work, hosts: Sequence[str]) -> None:
        for name in hosts:
            spec = isolated(name, partial(self.run.desired.spec, self.run.hosts[name].spec, host=name))
            if isinstance(spec, GpunodeError):
                work.results[name] = spec.of_host(name)
            else:
                self.run.specs[name] = replace(spec.rollout, **self.run.over)

    def _several_or_limited(self, work: Work) -> list[str]:
        """All hosts, where two may be one machine, or one has a budget or may be drained."""
        hosts, specs = self.run.hosts, self.run.specs.values()
        limited = any(spec.max_unavailable != "100%" or spec.drain.when != "never" for spec in specs)
        return list(hosts) if limited or len(hosts) > 1 else []

    def _probe(self, work: Work, hosts: Sequence[str]) -> None:
        """Whether the hosts can be reached, whether others are at work there, and which are nodes of a cluster."""
        probed = one_name_each(probe([self.run.hosts[host] for host in hosts], self.run.targets))
        found = probed if self.run.targets.break_lock else without_leased(probed)
        work.results |= {one.host: one.error.of_host(one.host) for one in found if one.error}
        self.run.hosts |= {one.host: replace(one, error=None) for one in found}

    def _nodes(self, work: Work) -> list[str]:
        facts = {host: self.run.hosts[host].facts for host in work.left}
        specs = self.run.specs
        return [h for h, one in facts.items() if one and one.kubernetes.present and specs[h].drain.when != "never"]

    def _see(self, work: Work, hosts: Sequence[str]) -> None:
        """What would be undone on each node, so that only those are drained where that is something."""
        found = self.shown or self._check(hosts)
        work.results |= {host: found[host] for host in hosts if found[host].outcome not in ("ok", "pending")}
        for host in hosts:
            if host not in work.results and (facts := self.run.hosts[host].facts):
                some, drain = bool(found[host].changed), self.run.specs[host].drain
                self.run.changes[host] = NodeChange(facts=facts, drain=drain, has_steps=some, disturbs=some)

    def _check(self, hosts: Sequence[str]) -> Results:
        work = self.run.work_on(hosts)
        self._work(work, hosts, check=True)
        return work.results

    def _undo(self, work: Work, hosts: Sequence[str]) -> None:
        self._work(work, hosts, check=self.run.options.check)

    def _work(self, work: Work, hosts: Sequence[str], *, check: bool) -> None:
        self.run.play(work, hosts, PLAYBOOK, check=check, on_event=self._heard)
        work.results |= each(work.left, lambda h: _result(h, work.ran.get(h), self._printed.get(h, ""), check=check))
        lost = [h for h in hosts if (one := work.results[h]).outcome == "unreachable" and not one.changed]
        found = probe([self.run.hosts[host] for host in lost], self.run.targets)  # which says why in its own words
        work.results |= {one.host: one.error.of_host(one.host) for one in found if one.error}

    def _heard(self, event: Event) -> None:
        if event.task == TASK and event.message:
            self._printed[event.host] = event.message
        if event.task == TASK and event.kind in ENDED and self.run.options.check:  # there is nothing behind it
            ended = each([event.host], lambda host: _result(host, run_of(event), event.message, check=True))
            self.run.report(ended[event.host])

    def _probe_again(self, work: Work, hosts: Sequence[str]) -> None:
        """What emptied nodes offer now, which they are given back with."""
        for one in probe([self.run.hosts[host] for host in hosts], self.run.targets):
            if one.facts:
                before = self.run.changes[one.host].facts
                work.taken[one.host] = undone(work.taken[one.host], before, one.facts)
                work.boots[one.host] = one.facts.boot_id

    def verify(self, hosts: Sequence[str]) -> Results:
        """After the soak time: a host that does not answer has failed."""
        found = probe([self.run.hosts[host] for host in hosts], self.run.targets)
        return {o.host: o.error.of_host(o.host) if o.error else HostResult(host=o.host) for o in found}


def _inventory(run: Run) -> dict[str, Any]:
    known = bool(inventory_sources(run.targets))
    values = {name: {} if known else connection_vars(host) for name, host in run.hosts.items()}
    return {"all": {"hosts": values, "children": {GROUP: {"hosts": {name: {} for name in run.hosts}}}}}


def _play(what: dict[str, Any]) -> dict[str, Any]:
    task = {"name": TASK, "gpunode.node.undo": {"what": what}}
    return {"name": f"gpunode {what['verb']}", "hosts": GROUP, "gather_facts": False, "tasks": [task]}


def _result(host: str, run: HostRun | None, printed: str, *, check: bool) -> HostResult:
    result = replace(ran(host, run), notes=tuple(run.notes) if run else ())
    if check and result.changed:
        return would(result, f"undo {counted(len(result.changed), 'change')}")
    return replace(result, message=printed) if result.ok else result
