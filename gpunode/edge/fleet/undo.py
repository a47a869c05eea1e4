"""uninstall and rollback over hosts: the role gpunode.node.undo by Ansible, which reads each node's journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gpunode.core.errors import Exit, GpunodeError, InputError
from gpunode.core.model import HostResult
from gpunode.core.plan.playbook import HEADER, dump
from gpunode.core.remote import parse_outcome, program
from gpunode.core.report.text import counted
from gpunode.core.undo.journal import Run, parse_snapshot, standing
from gpunode.core.undo.summary import summary
from gpunode.edge.ansible.runner import Event, HostRun, PlayOptions, run_playbook
from gpunode.edge.detect import Detected, Targets, find_hosts
from gpunode.edge.fleet.workflow import (
    ANSIBLE_CFG,
    CONFIG,
    INVENTORY,
    PLAYBOOK,
    ansible_arguments,
    connection_vars,
    inventory_sources,
)
from gpunode.edge.isolate import isolated
from gpunode.edge.lease import give_back, may_hold
from gpunode.edge.ssh.many import Ran, run_many
from gpunode.edge.state import new_run, next_generation, write_private
from gpunode.node import script

GROUP = "gpunode_undo"
TASK = "Undo what gpunode has changed"


def undo(
    targets: Targets,
    what: dict[str, Any],
    *,
    check: bool = False,
    diff: bool = False,
    arguments: Sequence[str] = (),
    on_event: Callable[[Event], None] = lambda event: None,
) -> list[HostResult]:
    """Take back on each host what `what` says (core/undo/requests.py); with `check`, say what that would be.

    `changed` are the sentences, `notes` what stays as it is, `diffs` those of files where `diff` asks for them; the
    outcome is pending where a check found something to do.
    """
    hosts = find_hosts(targets)
    folder = new_run()
    sources = inventory_sources(targets)
    stated: dict[str, str] = {}
    leased: set[str] = set()
    generation = next_generation()
    inventory = [*sources, str((folder / INVENTORY).resolve())]

    def note(event: Event) -> None:
        if may_hold(event):
            leased.add(event.host)
        if event.task == TASK and event.message:
            stated[event.host] = event.message
        on_event(event)

    write_private(folder / INVENTORY, dump(_inventory(hosts, own=not sources), HEADER))
    write_private(folder / PLAYBOOK, dump([_play(what)], HEADER))
    write_private(folder / CONFIG, ANSIBLE_CFG.format(inventory=",".join(inventory)))
    runs: dict[str, HostRun] = {}
    try:
        runs = run_playbook(
            folder,
            PLAYBOOK,
            inventory=inventory,
            options=PlayOptions(forks=targets.forks, check=check, diff=diff, become_password=targets.become_password),
            arguments=ansible_arguments(targets, arguments, run=folder.name, generation=generation),
            on_event=note,
        )
    finally:
        held = [host for host in hosts if host.host in leased]
        if held and not check:
            parts = runs if what.get("parts") else {}  # what undoes all, or a run, is no run that stands
            ended = {host: "failed" if run.exit else "done" for host, run in parts.items()}
            give_back(held, targets, folder, inventory, run=folder.name, generation=generation, ended=ended)
    never = HostRun(exit=Exit.FAILED, message="Ansible never got to this host")
    return [_result(h.host, runs.get(h.host, never), stated.get(h.host, ""), folder.name, check=check) for h in hosts]


def list_runs(targets: Targets) -> list[tuple[Detected, list[Run] | GpunodeError]]:
    """The runs that stand on each host, oldest first, or why they cannot be read."""
    hosts = find_hosts(targets)
    ran = run_many(
        [host.target for host in hosts if host.target],
        program(script("read_journal.sh"), {}),
        forks=targets.forks,
        connect_timeout=targets.connect_timeout,
        timeout=targets.timeout,
        accept_new=targets.accept_new_host_keys,
    )
    return [(h, isolated(h.host, partial(_standing, h.host, one))) for h, one in zip(hosts, ran, strict=True)]


def _standing(host: str, ran: Ran) -> list[Run]:
    outcome = parse_outcome(ran.stdout, ran.rc)
    if ran.error:
        raise ran.error
    if outcome.status != "unchanged":
        raise GpunodeError(f"{host}: {outcome.message}", fix=outcome.fix)
    try:
        journal = parse_snapshot(ran.stdout)
    except InputError as error:  # the user's input is fine: it is the node's journal that is not as it should be
        raise GpunodeError(f"{host}: {error.what}", expected=error.expected) from error
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
