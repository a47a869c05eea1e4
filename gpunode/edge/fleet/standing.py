"""The runs that stand in the journals of nodes: those that a rollback can go back to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.remote import parse_outcome, program
from gpunode.core.undo.journal import Run, parse_snapshot, standing
from gpunode.core.undo.summary import summary
from gpunode.edge.detect import Detected, Targets, find_hosts
from gpunode.edge.share import in_its_share
from gpunode.edge.ssh.many import Ran, run_many
from gpunode.node import script

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
        found[host] = in_its_share(host, partial(_standing, host, ran))
        on_done(host, found[host])

    run_many([(host.target, text) for host in hosts if host.target], reach=targets.reach(), on_done=done)
    return [(host, found[host.host]) for host in hosts]


def _standing(host: str, ran: Ran) -> list[Run]:
    outcome = parse_outcome(ran.stdout, ran.rc)
    if ran.error:
        raise ran.error
    if outcome.status != "unchanged":
        kind = RefusedError if outcome.status == "refused" else GpunodeError
        raise kind(f"{host}: {outcome.message}", fix=outcome.fix)
    try:
        journal = parse_snapshot(ran.stdout)
    except InputError as error:  # the user's input is fine: it is the node's journal that is not as it should be
        raise GpunodeError(f"{host}: {error.what}", expected=error.expected, fix=error.fix) from error
    if journal.damage.problem:
        raise GpunodeError(f"{host}: {journal.damage.problem.what}", fix=journal.damage.problem.fix)
    return [replace(run, what=summary(journal.records[run.first : run.last + 1])) for run in standing(journal.records)]
