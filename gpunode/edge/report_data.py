"""What is kept for `gpunode report`: with a plan what was found on each host, with a run what came of each host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpunode.core.checks.health import Expected
from gpunode.core.errors import GpunodeError, error_data
from gpunode.core.model import HostResult
from gpunode.core.plan.since import state_of
from gpunode.core.printable import json_text
from gpunode.core.report.drains import DrainPreview, drain_data
from gpunode.core.report.seen import see
from gpunode.core.report.text import plan_data, results_data
from gpunode.core.rollout import make_pools
from gpunode.edge.share import in_its_share
from gpunode.edge.state import append_private

if TYPE_CHECKING:
    from gpunode.edge.desired import DesiredState
    from gpunode.edge.fleet.host_plan import HostPlan

FOUND = "found.jsonl"  # beside a plan: a line for each host
RESULTS = "results.jsonl"  # in a run's folder: a line for each time that a host was ended with; the last one holds


def plans_data(
    hosts: Sequence[HostPlan], desired: DesiredState, *, found: bool = True, drains: Iterable[DrainPreview] = ()
) -> list[dict[str, Any]]:
    """The hosts of a plan as JSON data: plan, pool and, with `found`, what was found; of those in error the error.

    Hosts of `drains` also have `drain`: what draining them would do.
    """
    drained = {preview.host: {"drain": drain_data(preview)} for preview in drains}
    asked = [(h.host, h.planned.spec.rollout) for h in hosts if h.planned]
    pools = {host: pool.name for pool in make_pools(asked) for host in pool.hosts}
    rows = []
    for host in hosts:
        row = in_its_share(host.host, partial(_plan_row, host, desired, pools.get(host.host, ""), found=found))
        row = {"host": host.host, "error": error_data(row)} if isinstance(row, GpunodeError) else row
        rows.append(row | drained.get(host.host, {}))
    return rows


def _plan_row(host: HostPlan, desired: DesiredState, pool: str, *, found: bool) -> dict[str, Any]:
    if not host.planned:
        return {"host": host.host, "error": host.error and error_data(host.error)}
    row = plan_data(host.planned.plan) | {"pool": pool}
    return row | ({"found": _found(host, desired)} if found else {})


def found_text(hosts: Sequence[HostPlan], desired: DesiredState) -> str:
    """FOUND of a plan's folder: a file of its own, so that plan.json stays one to read; states by their facts_hash."""
    rows: list[dict[str, Any]] = [{"host": h.host, "found": _found(h, desired)} for h in hosts if h.planned]
    states = {h.planned.plan.facts_hash: h.planned.facts for h in hosts if h.planned}
    rows += [{"facts_hash": key, "state": state_of(facts)} for key, facts in states.items()]
    return "".join(f"{json_text(row)}\n" for row in rows)


def _found(host: HostPlan | None, desired: DesiredState) -> dict[str, Any] | None:
    """For a reader of reports; None where nothing is known, or it cannot be put into words."""
    if host is None or host.planned is None:
        return None
    facts, expected = host.planned.facts, Expected(spec=host.planned.spec.verify)
    seen = in_its_share(host.host, lambda: asdict(see(facts, desired.knowledge, expected)))
    return None if isinstance(seen, GpunodeError) else seen


def keep_results(
    folder: Path, results: Iterable[HostResult], after: Mapping[str, HostPlan], desired: DesiredState
) -> None:
    """Add to RESULTS of a run's folder; `after` are the hosts as they were probed afterwards."""
    lines = []
    for row in results_data(results):
        found = _found(after.get(row["host"]), desired)
        lines.append(json_text({**row, "extra": {}, "found": found}, default=str))
    with append_private(folder / RESULTS) as file:
        file.writelines(f"{line}\n" for line in lines)
