"""provision: the plans of hosts → runs of Ansible, wave by wave, with a journal that outlives this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from gpunode.core.checks.health import Expected
from gpunode.core.errors import Exit
from gpunode.core.late import dataclass, fields, replace
from gpunode.core.model import HostResult, Plan
from gpunode.core.plan import class_key
from gpunode.core.plan.lockfile import lock_text
from gpunode.core.plan.playbook import HEADER, Shape, dump, group_names, make_playbook
from gpunode.core.report.text import MANY
from gpunode.edge.ansible.runner import HostRun
from gpunode.edge.desired import DesiredState, Planned
from gpunode.edge.detect import Targets, probe
from gpunode.edge.fleet.draining import NodeChange
from gpunode.edge.fleet.driver import REHEARSAL, Phase, Run, RunCallbacks, RunOptions, Work, each
from gpunode.edge.fleet.ends import accepted, ran, settled, untouched, would
from gpunode.edge.fleet.executor import Results
from gpunode.edge.fleet.host_plan import HostPlan
from gpunode.edge.fleet.runs import all_unfinished
from gpunode.edge.fleet.workflow import (
    INVENTORY,
    expected_gpus,
    inventory_sources,
    plan_all,
    verify_planned,
    write_plan,
)
from gpunode.edge.saved import SavedPlan
from gpunode.edge.secrets import handed_over
from gpunode.edge.state import write_private

if TYPE_CHECKING:
    from gpunode.edge.accept.model import AcceptRun


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
    how = options or RunOptions()
    run = Run(
        verb="provision", hosts={h.host: h.detected for h in hosts}, targets=targets, desired=desired, options=how,
        callbacks=callbacks or RunCallbacks(), go_on="resume: gpunode runs resume {run}",
    )  # fmt: skip
    planned = _planned(hosts)
    wanted = {host: replace(found.spec.rollout, **run.over) for host, found in planned.items()}
    accepts = frozenset(host for host, spec in wanted.items() if spec.accept != "off" and not how.check)
    unproven = _unproven(hosts, accepts)
    todo = {h.host: h for h in hosts if h.plan and (h.plan.steps or h.host in unproven)}
    expected = expected_gpus(hosts)
    run.specs = {host: REHEARSAL if how.check else wanted[host] for host in todo}
    run.changes = {host: NodeChange.of(found, wanted[host].drain) for host, found in planned.items()}
    run.results = {h.host: untouched(h, expected.get(h.host)) for h in hosts if h.host not in todo}
    run.saw(hosts)
    run.prepare(run.give_back_left, run.ask_the_cluster)
    todo = {name: host for name, host in todo.items() if name not in run.results}
    if todo and saved is None:
        write_plan(run.folder, hosts, targets, desired)
    elif todo and saved:
        for name, text in saved.texts.items():
            write_private(run.folder / name, text)
        if not saved.sources:  # hosts that were named on the command line
            run.targets = replace(run.targets, inventory=(str(run.folder / INVENTORY),))
    jobs = _Provision(
        run=run, todo=todo, accepts=accepts, expected=expected, groups=group_names(_plan(h) for h in todo.values())
    )
    return run.go(
        _request(run), *jobs.phases, verify=jobs.verify, classes={name: class_key(_plan(h)) for name, h in todo.items()}
    )


@dataclass(kw_only=True)
class _Provision:
    """What provision does on the hosts of a job."""

    run: Run
    todo: Mapping[str, HostPlan]
    accepts: frozenset[str]  # hosts that are measured before they count as done
    expected: Mapping[str, Expected]
    groups: Mapping[Shape, str]  # of the plays of the whole run

    @cached_property
    def _acceptance(self) -> AcceptRun:
        from gpunode.edge.accept.model import AcceptRun

        return AcceptRun(
            folder=self.run.folder / "accept", targets=self.run.targets, level="quick", say=self._measuring,
        )  # fmt: skip

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase("apply the plan", self._apply),
            Phase("probe again", self._probe_again),
            Phase("measure", self._measure, lambda work: [host for host in work.good if host in self.accepts]),
        )

    def _apply(self, work: Work, hosts: Sequence[str]) -> None:
        """Run Ansible on those that have steps; hosts that it went well on are left."""
        plans = {host: _plan(self.todo[host]) for host in hosts}
        work.ran = {host: HostRun(exit=Exit.OK, message="") for host, plan in plans.items() if not plan.steps}
        if steps := [host for host in hosts if plans[host].steps]:
            playbook = f"playbook-{work.job.number}.yml"
            plays = make_playbook([plans[host] for host in steps], self.groups)
            write_private(self.run.folder / playbook, dump(plays, HEADER))
            with handed_over(self.run.desired.secrets) as secrets:
                self.run.play(work, steps, playbook, arguments=secrets, check=self.run.options.check)
        check = self.run.options.check

        def result(host: str) -> HostResult:
            found = ran(host, work.ran.get(host))
            return would(found, f"change {len(found.changed)} things") if check else found

        good = {host for host, run in work.ran.items() if not run.exit and not check}
        work.results |= each([host for host in work.left if host not in good], result)

    def _probe_again(self, work: Work, hosts: Sequence[str]) -> None:
        work.after = {host.host: host for host in self._planned(hosts)}
        work.boots = {host: one.facts.boot_id for host, one in _planned(list(work.after.values())).items()}
        self.run.saw(work.after.values())
        work.results |= each(hosts, partial(self._settled, work))

    def _planned(self, hosts: Sequence[str]) -> list[HostPlan]:
        """The hosts as they are now."""
        found = probe([self.todo[host].detected for host in hosts], self.run.targets)
        return plan_all(found, self.run.targets, self.run.desired)

    def _settled(self, work: Work, host: str) -> HostResult:
        before = _plan(self.todo[host])
        return settled(host, work.ran[host], before, work.after[host], self.expected.get(host))

    def _measure(self, work: Work, hosts: Sequence[str]) -> None:
        """The results of hosts that have come to a good end, with what `gpunode accept` says of them."""
        from gpunode.edge.accept.run import measure

        for host in hosts:
            self._measuring(host, "")
        found = measure([work.after[host] for host in hosts], self._acceptance, self.run.desired)
        work.results |= {host: accepted(work.results[host], found[host]) for host in hosts}

    def verify(self, hosts: Sequence[str]) -> Results:
        """A wave after its soak time."""
        planned = self._planned(hosts)
        results = {result.host: result for result in verify_planned(planned, self.run.targets, self.run.desired)}
        self.run.record(results, {one.host: one for one in planned})
        return results

    def _measuring(self, host: str, what: str) -> None:
        """Which stage of an acceptance a host has behind it."""
        self.run.stage(host, f"is measured: {what}" if what else "is measured")
        if len(self.todo) <= MANY:
            self.run.callbacks.notice(f"{host} is measured{f': {what}' if what else ''}")


def _request(run: Run) -> dict[str, Any]:
    """What it takes to ask for the same again."""
    return {
        "where": _repeatable(run.targets),
        "spec": run.desired.spec_data,
        "arguments": list(run.options.arguments),
        "rollout": dict(run.options.rollout),
        "lock": None if run.desired.lock is None else lock_text(run.desired.lock),
    }


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


def _planned(hosts: Sequence[HostPlan]) -> dict[str, Planned]:
    return {h.host: h.planned for h in hosts if h.planned}


def _plan(host: HostPlan) -> Plan:
    assert host.planned
    return host.planned.plan
