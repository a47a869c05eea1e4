"""What is kept for `gpunode report`: with a plan what was found on each host, with a run what came of each host."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpunode.core.errors import error_data
from gpunode.core.model import HostResult
from gpunode.core.report import plan_data, results_data
from gpunode.core.reports.seen import see
from gpunode.core.rollout import make_pools

if TYPE_CHECKING:
    from gpunode.edge.planner import Planner
    from gpunode.edge.workflow import HostPlan

RESULTS = "results.jsonl"  # in a run's folder: a line for each time that a host was ended with; the last one holds


def plans_data(hosts: Sequence[HostPlan], planner: Planner) -> list[dict[str, Any]]:
    """The hosts of a plan as JSON data: plan, pool and what was found; of those in error the error."""
    asked = [(h.host, h.planned.spec.rollout) for h in hosts if h.planned]
    pools = {host: pool.name for pool in make_pools(asked) for host in pool.hosts}
    rows = []
    for host in hosts:
        if host.planned:
            found = asdict(see(host.planned.facts, planner.knowledge))
            rows.append(plan_data(host.planned.plan) | {"pool": pools[host.host], "found": found})
        else:
            rows.append({"host": host.host, "error": host.error and error_data(host.error)})
    return rows


def keep_results(folder: Path, results: Iterable[HostResult], after: Mapping[str, HostPlan], planner: Planner) -> None:
    """Add to RESULTS of a run's folder; `after` are the hosts as they were probed afterwards."""
    lines = []
    for row in results_data(results):
        now = after.get(row["host"])
        found = asdict(see(now.planned.facts, planner.knowledge)) if now and now.planned else None
        lines.append(json.dumps({**row, "extra": {}, "found": found}, ensure_ascii=False, default=str))
    descriptor = os.open(folder / RESULTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
