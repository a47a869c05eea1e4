"""verify of what changed since a run: every host is probed once, only those that are other than then use their GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gpunode.core.errors import GpunodeError
from gpunode.core.model import Check, HostResult
from gpunode.core.plan.since import since_checks, state_of
from gpunode.edge.desired import DesiredState
from gpunode.edge.detect import Detected, Targets, detect
from gpunode.edge.fleet.runs import HostRow, Runs
from gpunode.edge.fleet.workflow import verify_found
from gpunode.edge.share import in_its_share


def verify_since(
    targets: Targets,
    desired: DesiredState,
    runs: Runs,
    run: str,
    *,
    smoke: bool = True,
    on_done: Callable[[Detected], None] = lambda d: None,
) -> list[HostResult]:
    """`verify`, with what is other than `run` left it as warnings; `since` and `unchanged_since` are set.

    A host that is as it was left there costs its probe alone.
    """
    rows = {row.host: row for row in runs.hosts(run)}
    found: list[Detected] = []
    reported: dict[str, list[Check]] = {}
    for one in detect(targets, on_done=on_done):
        checks = in_its_share(one.host, partial(_differences, one, rows.get(one.host), runs, run))
        found.append(replace(one, facts=None, error=checks) if isinstance(checks, GpunodeError) else one)
        reported[one.host] = [] if isinstance(checks, GpunodeError) else checks
    quiet = [one for one in found if not one.error and not reported[one.host]]
    other = [one for one in found if one not in quiet]
    ends = [*verify_found(quiet, targets, desired, smoke=False), *verify_found(other, targets, desired, smoke=smoke)]
    results = {end.host: _with(end, reported[end.host], run) for end in ends}
    return [results[one.host] for one in found]


def _differences(host: Detected, row: HostRow | None, runs: Runs, run: str) -> list[Check]:
    """How a host is other than the run left it; [] for a host that is as it was."""
    if row is None:
        return [_warning(f"this host was not in run {run}")]
    if row.state not in ("done", "pending"):
        return [_warning(f"run {run} did not bring it to an end: {row.message or row.state}")]
    if host.facts is None:
        return []
    before = runs.state(row.found)
    if not before:
        return [_warning(f"run {run} did not write down what it was like")]
    return since_checks(before, state_of(host.facts), run)


def _warning(text: str) -> Check:
    return Check(id="since.run", status="warning", message=text)


def _with(result: HostResult, differences: list[Check], run: str) -> HostResult:
    same = not differences and result.ok
    message = f"as run {run} left it" if same else result.message
    return replace(result, message=message, checks=(*differences, *result.checks), since=run, unchanged_since=same)
